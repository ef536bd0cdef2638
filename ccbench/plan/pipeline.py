"""Overlap in a step: buckets of gradients beside computing, stages of a pipeline in turns.

The field's own example of gradients with stated times: 96 layers of 12 gradients, each 1 ms to compute and
500 ms to communicate, take 96 x 12 x 501 ms = 577,152 ms one after the other; then overlapped with the
backward pass, and in buckets.

A gradient exists when the backward pass of its layer is over; buckets of gradients are sent in that order on
a stream of their own while the rest is computed (S. Li et al., "PyTorch Distributed: Experiences on
Accelerating Data Parallel Training", VLDB 2020, section 3.2.3). Sharded weights are gathered before each
layer, one layer ahead of the computing (Y. Zhao et al., "PyTorch FSDP", VLDB 2023, section 3.3.2).

1F1B is PipeDream-Flush (D. Narayanan et al., "Memory-Efficient Pipeline-Parallel DNN Training", 2021);
with ``chunks`` > 1 it is the interleaved schedule of D. Narayanan et al., "Efficient Large-Scale Language
Model Training on GPU Clusters Using Megatron-LM", SC 2021, section 2.2: every device holds ``chunks`` parts
of the model, and the bubble, (p - 1) / m of the computing, shrinks to (p - 1) / (m v). The orders are those
of megatron/core/pipeline_parallel/schedules.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from ccbench.errors import UsageError

MOST_GRADIENTS = 1_000_000
"""Followed one by one in seconds; the largest models have some thousands."""


@dataclass(frozen=True)
class Gradients:
    """``layers`` of ``per_layer`` gradients, each computed and communicated in stated times.

    startup_seconds: the part of one communication that a larger message does not pay again; None where
    nobody said, and then both ends are shown. buckets: gradients that one message carries, to compare.
    """

    layers: int
    per_layer: int
    compute_seconds: float
    communicate_seconds: float
    startup_seconds: float | None = None
    buckets: tuple[int, ...] = ()

    @property
    def count(self) -> int:
        """Of the step."""
        return self.layers * self.per_layer

    def check(self) -> None:
        """UsageError where the start-up takes longer than the communication that it is a part of, or where
        there are too many to follow."""
        if self.count > MOST_GRADIENTS:
            raise UsageError(
                f"{self.layers} layers x {self.per_layer} gradients are more than {MOST_GRADIENTS:,}, and "
                "each is followed on its own; write fewer"
            )
        if self.startup_seconds is not None and self.startup_seconds > self.communicate_seconds:
            raise UsageError(
                f"startup {self.startup_seconds * 1e3:g} ms is a part of communicate "
                f"{self.communicate_seconds * 1e3:g} ms; write no more than that"
            )


@dataclass(frozen=True)
class Bucketed:
    """A way to send them. bucket: gradients of one message, 0: in series, nothing overlapped.

    startup_seconds: taken for the part that is not paid again. messages: how many. exposed_seconds: of the
    communication, behind the computing.
    """

    bucket: int
    startup_seconds: float
    messages: int
    seconds: float
    computing_seconds: float
    communicating_seconds: float

    @property
    def exposed_seconds(self) -> float:
        """The part of the communication that lengthens the step."""
        return self.seconds - self.computing_seconds

    @property
    def hidden_seconds(self) -> float:
        """The part of the communication that runs behind computing."""
        return self.communicating_seconds - self.exposed_seconds


def in_series(gradients: Gradients) -> Bucketed:
    """Each gradient computed, then communicated, then the next one."""
    computing = gradients.count * gradients.compute_seconds
    communicating = gradients.count * gradients.communicate_seconds
    return Bucketed(
        0, 0.0, gradients.count, computing + communicating, computing, communicating
    )


def bucketed(gradients: Gradients, bucket: int, startup_seconds: float) -> Bucketed:
    """In messages of ``bucket`` gradients (the last may hold fewer), behind the computing of the rest."""
    moving = gradients.communicate_seconds - startup_seconds
    sizes = [
        min(bucket, gradients.count - first) for first in range(0, gradients.count, bucket)
    ]
    ready = [end * gradients.compute_seconds for end in itertools.accumulate(sizes)]
    sent = queue(zip(ready, [startup_seconds + size * moving for size in sizes], strict=True))
    computing = gradients.count * gradients.compute_seconds
    communicating = sum(message.end_seconds - message.begin_seconds for message in sent)
    return Bucketed(
        bucket, startup_seconds, len(sent), sent[-1].end_seconds, computing, communicating
    )


def textbook(gradients: Gradients) -> tuple[Bucketed, ...]:
    """In series first; then overlapped one by one and in buckets.

    Without a stated start-up each bucket is taken twice: as if communication were all bytes, so that buckets
    change nothing, and all start-up, so that a bucket costs as much as one gradient. The truth is in between.
    """
    # Unless stated: one gradient, one layer, eight layers, everything.
    usual = (gradients.per_layer, 8 * gradients.per_layer, gradients.count)
    buckets = dict.fromkeys(
        min(size, gradients.count) for size in (1, *(gradients.buckets or usual))
    )
    startup_seconds = gradients.startup_seconds
    ends = (
        (0.0, gradients.communicate_seconds) if startup_seconds is None else (startup_seconds,)
    )
    schedules = [in_series(gradients)]
    for bucket in buckets:
        # One by one, the start-up is paid each time whatever part of the whole it is.
        startups = ends if bucket > 1 else ends[:1]
        schedules += [bucketed(gradients, bucket, startup) for startup in startups]
    return tuple(schedules)


@dataclass(frozen=True)
class Sent:
    """One message on the stream; seconds from the start of what it runs beside."""

    begin_seconds: float
    end_seconds: float


def queue(messages: Iterable[tuple[float, float]]) -> tuple[Sent, ...]:
    """Messages, each (seconds until it is ready, seconds it takes), one after the other."""
    free = 0.0
    sent = []
    for ready_seconds, seconds in messages:
        begin = max(free, ready_seconds)
        free = begin + seconds
        sent.append(Sent(begin, free))
    return tuple(sent)


def gradients_sent(count: int, seconds: float, computing_seconds: float) -> tuple[Sent, ...]:
    """``count`` equal buckets, each ready when its share of the backward pass is over."""
    return queue((computing_seconds * (number + 1) / count, seconds) for number in range(count))


def even_gradients_exposed(count: int, seconds: float, computing_seconds: float) -> float:
    """The part of ``count`` equal buckets behind the computing: the closed form of ``gradients_sent``."""
    if count < 1:
        return 0.0
    # Either the stream never waits after the first bucket, or it is idle until the last one.
    busy = computing_seconds / count + count * seconds
    return max(busy, computing_seconds + seconds) - computing_seconds


@lru_cache(maxsize=65_536)
def gathered_exposed(
    layers: int, gather_seconds: float, layer_seconds: float, after_seconds: float = 0.0
) -> float:
    """Seconds by which a pass over layers whose weights are gathered is longer than its computing.

    Equal ``layers``: gather one layer ahead, compute, then send ``after_seconds`` of gradients. All messages
    share one stream, on which the next layer's gather goes before this layer's gradients.
    """
    if not after_seconds:
        # Each layer begins with the next one's gather: the longer of the two is what it takes.
        return gather_seconds + (layers - 1) * max(0.0, gather_seconds - layer_seconds)
    free = gathered = gather_seconds
    computed = 0.0
    for layer in range(layers):
        begins = max(computed, gathered)
        if layer + 1 < layers:
            free = gathered = max(free, begins) + gather_seconds
        computed = begins + layer_seconds
        free = max(free, computed) + after_seconds
    return max(computed, free) - layers * layer_seconds


Work = Literal["forward", "backward"]


@dataclass(frozen=True)
class Pipeline:
    """A pipeline and what each stage takes for one chunk of one micro-batch.

    micro_batches: m. chunks: v, virtual stages that a device has. forward_seconds, backward_seconds: of one
    chunk of each of the p stages, everything that is waited for inside it included. hop_seconds: from the end
    of a chunk until the next stage has what it needs. overlapped: whether a stage goes on while it sends;
    else it waits. all_forward_first: GPipe's order (Huang et al. 2019) instead of 1F1B's. An interleaved
    schedule has whole rounds: m is a multiple of p, as Megatron asks and Strategy checks.
    """

    micro_batches: int
    chunks: int
    forward_seconds: tuple[float, ...]
    backward_seconds: tuple[float, ...]
    hop_seconds: float = 0.0
    overlapped: bool = True
    all_forward_first: bool = False

    @property
    def stages(self) -> int:
        """p."""
        return len(self.forward_seconds)

    @property
    def chunk_seconds(self) -> tuple[float, ...]:
        """Forward and backward of one chunk of each stage."""
        return tuple(
            f + b for f, b in zip(self.forward_seconds, self.backward_seconds, strict=True)
        )


@dataclass(frozen=True)
class ChunkInterval:
    """One chunk of one stage at work on one micro-batch; seconds from the step's start."""

    stage: int
    chunk: int
    micro_batch: int
    work: Work
    begin_seconds: float
    end_seconds: float


def pipeline_seconds(pipeline: Pipeline) -> float:
    """Until the last stage has done its last backward: computing, bubble and the hops that show.

    m v (f + b) of the slowest stage, the bubble, and ``exposed_hops``.
    """
    slowest = pipeline.micro_batches * pipeline.chunks * max(pipeline.chunk_seconds)
    return slowest + bubble_seconds(pipeline) + exposed_hops(pipeline) * pipeline.hop_seconds


def bubble_seconds(pipeline: Pipeline) -> float:
    """Idle seconds of the slowest stage for want of micro-batches: a chunk both ways on every other stage.

    (p - 1)(f + b) where all are alike.
    """
    return sum(pipeline.chunk_seconds) - max(pipeline.chunk_seconds)


def exposed_hops(pipeline: Pipeline) -> float:
    """Number of hops between stages that lengthen the step, where one is shorter than a chunk's computing.

    Read off ``simulate``, which the tests hold these against.
    """
    p, m, v = pipeline.stages, pipeline.micro_batches, pipeline.chunks
    if p == 1:
        return 0.0
    # Stages that wait for their messages: two for every chunk of every micro-batch and of the bubble (at the
    # most; the ends of the pipeline have one neighbour only).
    if not pipeline.overlapped:
        return 2.0 * (m * v + p - 1)
    if pipeline.all_forward_first:
        return 2.0 * (p - 1)
    # Stages that go on meanwhile: an interleaved schedule has enough under way to hide all but those of the
    # first micro-batch's way down and the last one's way up; 1F1B has just as many micro-batches under way as
    # stages, so of every round of p of them the way down and up shows.
    return 2.0 * (p * v - 1) if v > 1 else 2.0 * (p - 1) * m / p + 2.0 * (p - 2)


def order_of(pipeline: Pipeline, stage: int) -> list[tuple[Work, int, int]]:
    """(forward or backward, chunk, micro-batch) of a stage, one after the other."""
    p, m, v = pipeline.stages, pipeline.micro_batches, pipeline.chunks
    total = m * v
    ahead = p - stage - 1 if v == 1 else 2 * (p - stage - 1) + (v - 1) * p
    ahead = total if pipeline.all_forward_first else min(ahead, total)
    forward: list[tuple[Work, int, int]] = [
        ("forward", *_place(k, pipeline)) for k in range(total)
    ]
    backward: list[tuple[Work, int, int]] = []
    for k in range(total):
        chunk, micro_batch = _place(k, pipeline)
        backward.append(("backward", v - 1 - chunk, micro_batch))
    order = forward[:ahead]
    for ahead_pass, back_pass in zip(forward[ahead:], backward, strict=False):
        order += [ahead_pass, back_pass]
    return order + backward[total - ahead :]


def _place(k: int, pipeline: Pipeline) -> tuple[int, int]:
    """Chunk and micro-batch of the ``k``-th forward: p micro-batches through a chunk, then the next chunk."""
    p, v = pipeline.stages, pipeline.chunks
    if v == 1:
        return 0, k
    return k % (p * v) // p, k // (p * v) * p + k % p


def simulate(pipeline: Pipeline) -> tuple[ChunkInterval, ...]:
    """Every interval of every stage, each as early as its stage and what it needs allow."""
    p, last = pipeline.stages, pipeline.stages * pipeline.chunks - 1
    orders = [order_of(pipeline, stage) for stage in range(p)]
    done: dict[tuple[Work, int, int, int], float] = {}
    free = [0.0] * p
    at = [0] * p
    intervals: list[ChunkInterval] = []
    moved = True
    while moved:
        moved = False
        for stage, order in enumerate(orders):
            while at[stage] < len(order):
                work, chunk, micro_batch = order[at[stage]]
                place, is_forward = chunk * p + stage, work == "forward"
                # A forward chunk needs the one before it, a backward chunk the one after; where forward
                # turns to backward nothing is sent.
                before = place - 1 if is_forward else place + 1
                needs: float | None = 0.0
                if not is_forward and place == last:
                    needs = done.get(("forward", stage, chunk, micro_batch))
                elif 0 <= before <= last:
                    sent = done.get((work, before % p, before // p, micro_batch))
                    needs = None if sent is None else sent + pipeline.hop_seconds
                if needs is None:
                    break
                begin = max(free[stage], needs)
                length = (
                    pipeline.forward_seconds if is_forward else pipeline.backward_seconds
                )[stage]
                end = done[work, stage, chunk, micro_batch] = begin + length
                intervals.append(ChunkInterval(stage, chunk, micro_batch, work, begin, end))
                # A stage that does not overlap waits until its message is sent.
                sends = place < last if is_forward else place > 0
                free[stage] = end + (
                    pipeline.hop_seconds if sends and not pipeline.overlapped else 0.0
                )
                at[stage] += 1
                moved = True
    return tuple(
        sorted(intervals, key=lambda interval: (interval.begin_seconds, interval.stage))
    )
