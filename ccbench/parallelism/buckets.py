"""What runs beside the computing: messages queued on one communication stream, and what of them shows.

A gradient exists when the backward pass of its layer is over; buckets of gradients are sent in that order on
a stream of their own while the rest is computed (S. Li et al., "PyTorch Distributed: Experiences on
Accelerating Data Parallel Training", VLDB 2020, section 3.2.3). Sharded weights are gathered before each
layer, one layer ahead of the computing (Y. Zhao et al., "PyTorch FSDP", VLDB 2023, section 3.3.2).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True)
class Sent:
    """One message on the stream, or one layer computed; seconds from the start of what it runs beside."""

    begin_seconds: float
    end_seconds: float


def queue(messages: Iterable[tuple[float, float]]) -> tuple[Sent, ...]:
    """Messages, each (seconds until it is ready, seconds it takes), one after the other."""
    free = 0.0
    found = []
    for ready_seconds, seconds in messages:
        begin = max(free, ready_seconds)
        free = begin + seconds
        found.append(Sent(begin, free))
    return tuple(found)


def gradients_sent(count: int, seconds: float, computing_seconds: float) -> tuple[Sent, ...]:
    """``count`` equal buckets, each ready when its share of the backward pass is over."""
    return queue((computing_seconds * (number + 1) / count, seconds) for number in range(count))


def even_gradients_exposed(count: int, seconds: float, computing_seconds: float) -> float:
    """What of ``count`` equal buckets lies behind the computing: the closed form of ``gradients_sent``.

    Either the stream never waits after the first bucket, or it is idle until the last one.
    """
    if count < 1:
        return 0.0
    busy = computing_seconds / count + count * seconds
    return max(busy, computing_seconds + seconds) - computing_seconds


@dataclass(frozen=True)
class Gathered:
    """A pass over layers whose weights are gathered first: when all is done, and each message and layer."""

    end_seconds: float
    messages: tuple[Sent, ...]
    layers: tuple[Sent, ...]


def gathered_pass(
    layers: int, gather_seconds: float, layer_seconds: float, after_seconds: float = 0.0
) -> Gathered:
    """A pass over equal ``layers``: gather one layer ahead, compute, then send ``after_seconds`` of
    gradients.

    All messages share one stream, on which the next layer's gather goes before this layer's gradients.
    """
    free, computed = 0.0, 0.0
    messages: list[Sent] = []
    computing: list[Sent] = []
    begins, gathered = 0.0, 0.0
    for layer in range(layers):
        if layer == 0:
            gathered = gather_seconds
            messages.append(Sent(0.0, gathered))
            free = gathered
        begins = max(computed, gathered)
        if layer + 1 < layers:
            start = max(free, begins)
            free = gathered = start + gather_seconds
            messages.append(Sent(start, free))
        computed = begins + layer_seconds
        computing.append(Sent(begins, computed))
        if after_seconds:
            start = max(free, computed)
            free = start + after_seconds
            messages.append(Sent(start, free))
    return Gathered(max(computed, free if after_seconds else computed), tuple(messages), tuple(computing))


@lru_cache(maxsize=65_536)
def gathered_exposed(
    layers: int, gather_seconds: float, layer_seconds: float, after_seconds: float = 0.0
) -> float:
    """How much longer ``gathered_pass`` takes than its computing alone."""
    if not after_seconds:
        # Each layer begins with the next one's gather: the longer of the two is what it takes.
        return gather_seconds + (layers - 1) * max(0.0, gather_seconds - layer_seconds)
    return (
        gathered_pass(layers, gather_seconds, layer_seconds, after_seconds).end_seconds
        - layers * layer_seconds
    )
