"""A network of hosts as messages over it were seen to travel, and where each rank is.

The figures come from a probe (``runner.network_probe``) over the very library that is predicted: what a
message costs there is the link and the library's own handling together, which no datasheet has.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike

from ccbench.errors import MachineError
from ccbench.model.machine import Floats


@dataclass(frozen=True)
class MessageTimes:
    """Seconds of one message by its size; both in rising order of sizes.

    Between sizes the time is interpolated in a straight line, which is exact for Hockney's a + b n; beyond
    the largest it goes on at the rate of the last stretch, below the smallest it is flat. Whatever disturbs a
    message makes it take longer, so a time that falls as messages grow counts as the smaller one after it.
    """

    sizes_bytes: tuple[int, ...]
    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.sizes_bytes or len(self.sizes_bytes) != len(self.seconds):
            raise MachineError("message times: as many sizes as times are needed, at least one")
        if any(after <= before for before, after in pairwise(self.sizes_bytes)) or self.sizes_bytes[0] < 0:
            raise MachineError("message times: sizes must rise, from 0 bytes on")
        if not all(value > 0 and math.isfinite(value) for value in self.seconds):
            raise MachineError("message times: every time must be a positive number of seconds")

    @cached_property
    def _rising(self) -> Floats:
        # From the largest size down: a time above that of a larger message was a disturbance.
        return np.asarray(np.minimum.accumulate(self.seconds[::-1])[::-1])

    @property
    def latency_seconds(self) -> float:
        """Of the smallest message."""
        return float(self._rising[0])

    @property
    def bytes_per_second(self) -> float:
        """The rate at which the largest messages grow; infinite when they do not."""
        if len(self.sizes_bytes) < 2:
            return self.sizes_bytes[-1] / self.seconds[-1] or math.inf
        grown = float(self._rising[-1] - self._rising[-2])
        return (self.sizes_bytes[-1] - self.sizes_bytes[-2]) / grown if grown else math.inf

    def at(self, size_bytes: ArrayLike) -> Floats:
        """Seconds of messages of these sizes."""
        sizes = np.asarray(size_bytes, dtype=np.float64)
        inside = np.interp(sizes, self.sizes_bytes, self._rising)
        beyond = np.maximum(0.0, sizes - self.sizes_bytes[-1]) / self.bytes_per_second
        return np.asarray(inside + beyond)


def swaps(host_of_rank: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Messages with which every rank swaps with a partner on another host; () where there is no such way.

    The partner is half of the ranks further on.
    """
    half, odd = divmod(len(host_of_rank), 2)
    pairs = tuple((rank, rank + half) for rank in range(half))
    if odd or any(host_of_rank[one] == host_of_rank[other] for one, other in pairs):
        return ()
    return (*pairs, *((other, one) for one, other in pairs))


@dataclass(frozen=True)
class HostLink:
    """Two hosts as the probe saw the way between them, and back.

    round_trip_seconds: of the smallest message. bytes_per_second: each way while both are used.
    """

    hosts: tuple[str, str]
    round_trip_seconds: float
    bytes_per_second: float


@dataclass(frozen=True)
class HostNetwork:
    """Hosts that run the ranks of one team, and what messages between ranks cost there.

    backend: the library that was probed. hosts: in the order in which ranks first are on them. host_of_rank:
    index into hosts. between: two ranks on different hosts send to each other at once; inside: the same on
    one host; together: all ranks send to the next at once, the last to the first; swapped: every rank sends
    to a partner on another host and gets as much from it, all at once; one_way: one rank sends to another
    host, message after message, and waits for no answer; inside_one_way: the same on one host. Each None
    where there are no such ranks or it was not looked at. stream_bytes_per_second: one way between two
    hosts. call_seconds: what a collective costs besides its messages, such as handing it to a thread of the
    library. links: pairs of hosts, each looked at on its own. library: the name and version of what was
    probed, which decides what algorithms it takes; '' where it is not known.
    """

    backend: str
    hosts: tuple[str, ...]
    host_of_rank: tuple[int, ...]
    between: MessageTimes | None = None
    inside: MessageTimes | None = None
    together: MessageTimes | None = None
    stream_bytes_per_second: float | None = None
    links: tuple[HostLink, ...] = ()
    call_seconds: float = 0.0
    library: str = ""
    swapped: MessageTimes | None = None
    one_way: MessageTimes | None = None
    inside_one_way: MessageTimes | None = None

    def __post_init__(self) -> None:
        if set(self.host_of_rank) != set(range(len(self.hosts))):
            raise MachineError("host network: every rank needs a host, and every host a rank")
        if self.ranks > 1 and self.together is None:
            raise MachineError("host network: nothing is known of messages between all its ranks")
        if len(self.hosts) > 1 and self.between is None:
            raise MachineError("host network: several hosts, but nothing is known of messages between them")

    @property
    def ranks(self) -> int:
        """All of the team."""
        return len(self.host_of_rank)

    @property
    def peak_bytes_per_second(self) -> float:
        """The most that any host was seen to send or receive, for bounds."""
        curves = [curve for curve in (self.between, self.together) if curve]
        seen = [
            size / second
            for curve in curves
            for size, second in zip(curve.sizes_bytes, curve.seconds, strict=True)
        ]
        seen += [curve.bytes_per_second for curve in curves if math.isfinite(curve.bytes_per_second)]
        return max([*seen, self.stream_bytes_per_second or 0.0])

    @property
    def least_seconds(self) -> float:
        """The quickest message seen between ranks that are as far apart as any."""
        curve = self.between or self.inside or self.together
        return min(curve.seconds) if curve else 0.0

    def step_seconds(
        self, messages: Sequence[tuple[int, int]], size_bytes: ArrayLike, overlapped: bool = False
    ) -> Floats:
        """Seconds until messages of one size that leave together, each (source, target), have all arrived.

        Where every rank sends, ``together`` was seen under the same load and is the measure, and ``swapped``
        where each gets back from whom it sends to: what a library tells the other side before a large message
        then waits behind its own message on the same connection, so that it is often dearer. Else pairs are.
        Messages that share a host's port take their turns on it: k of them cost what one k times as large
        would. Libraries often do not send while they receive, and ``between`` and ``together`` show it: a
        port then has half its rate. Where ranks only send or only receive, and where the library keeps
        several messages on their way (overlapped), no message is dearer than a stream one way.
        """
        sizes = np.asarray(size_bytes, dtype=np.float64)
        if not messages:
            return np.zeros_like(sizes)
        crossing, shared = self._sharing(messages), 1
        curve = self.between if crossing else self.inside
        everyone = len({source for source, _ in messages}) == self.ranks
        partners = set(messages) == {(target, source) for source, target in messages}
        if everyone and crossing and partners and self.swapped is not None:
            curve = self.swapped
            shared = max(1, self._sharing(swaps(self.host_of_rank)))
        elif curve is None or (everyone and crossing):
            curve = self.together
            shared = max(1, self._sharing([(rank, (rank + 1) % self.ranks) for rank in range(self.ranks)]))
        assert curve is not None, "checked when the value was made"
        carried = sizes * max(1, crossing) / shared
        # Where nobody both sends and receives, a port has its full rate one way.
        one_way = not {source for source, _ in messages} & {target for _, target in messages}
        if not crossing or not self.stream_bytes_per_second or not (one_way or overlapped):
            return curve.at(carried)
        # Hockney's a + b n with the rate of a stream; the curve of single messages may be above it.
        streamed = curve.latency_seconds + carried / self.stream_bytes_per_second
        return np.asarray(np.minimum(curve.at(carried), streamed))

    def following_seconds(self, messages: Sequence[tuple[tuple[int, int], float]]) -> float:
        """Seconds per turn in which each of ``messages``, with its bytes, is sent once, turn after turn.

        They go one way only: nobody waits for an answer, so ranks run ahead, and the busiest sets the pace:
        a rank, with each message that it sends or receives, or a host's port, with all of its ranks'.
        """
        ranks, ports = [0.0] * self.ranks, [[0.0, 0.0] for _ in self.hosts]
        for ends, size in messages:
            hosts = [self.host_of_rank[rank] for rank in ends]
            near = hosts[0] == hosts[1]
            curve = self.inside_one_way or self.inside if near else self.one_way or self.between
            assert curve is not None, "checked when the value was made"
            for rank in ends:
                ranks[rank] += float(curve.at(size))
            if not near:
                for way, host in enumerate(hosts):
                    ports[host][way] += size
        rate = self.stream_bytes_per_second or math.inf
        # In the long run ranks run ahead of each other until the busiest rank or port is never idle.
        return max(*ranks, max(max(port) for port in ports) / rate)

    def sustained_seconds(self, messages: Sequence[tuple[int, int]], size_bytes: float) -> float:
        """The least time per turn when turns follow each other without end: what ports carry for long.

        Queues let a few small messages through quicker than the link, but not a stream of them.
        """
        rates = [self.between.bytes_per_second if self.between else math.inf]
        if {source for source, _ in messages} & {target for _, target in messages}:
            rates.append(self.together.bytes_per_second if self.together else math.inf)
        elif self.stream_bytes_per_second:
            rates = [self.stream_bytes_per_second]
        return self._sharing(messages) * size_bytes / min(rates)

    def _sharing(self, messages: Sequence[tuple[int, int]]) -> int:
        """The most messages between hosts that leave, or come to, one host."""
        out, into = [0] * len(self.hosts), [0] * len(self.hosts)
        for source, target in messages:
            here, there = self.host_of_rank[source], self.host_of_rank[target]
            if here != there:
                out[here] += 1
                into[there] += 1
        return max(*out, *into) if len(self.hosts) > 1 else 0
