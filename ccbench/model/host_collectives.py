"""Times of MPI's and Gloo's collectives: their algorithms' messages, as such messages were seen to take.

A network of hosts is known by what messages over it were seen to take. The figures come from a probe
(``runner.network_probe``) over the very library that is predicted: what a message costs there is the link and
the library's own handling, which no datasheet has.

The messages are in ``host_plans``. Gloo has one algorithm for each. Of MPI's the one counts that the case
names, else the one that the library is known to choose (``mpi_choices.yaml``), else the cheapest: what a
library would choose if it knew this network. Between hosts messages hide the arithmetic; on one host it
is added, as fast as NumPy was seen to add there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike

from ccbench.cases.axes import Case
from ccbench.cases.capabilities import PricedBy, capabilities_of
from ccbench.cases.measurement import Sampling
from ccbench.collectives import collective
from ccbench.dtypes import item_bytes
from ccbench.errors import MachineError
from ccbench.model import Prediction
from ccbench.model.host_plans import (
    GLOO_PLANS,
    MPI_PLANS,
    SEGMENTS_BYTES,
    TOLD_PLANS,
    MessageStage,
    Plan,
    own_choice,
    pipeline_broadcast,
)
from ccbench.model.machine import Floats, Machine
from ccbench.model.pricing import bound_seconds
from ccbench.model.rank_subset import subset_of
from ccbench.units import format_rate, format_seconds


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
        if (
            any(after <= before for before, after in pairwise(self.sizes_bytes))
            or self.sizes_bytes[0] < 0
        ):
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
    if odd or any(host_of_rank[rank_a] == host_of_rank[rank_b] for rank_a, rank_b in pairs):
        return ()
    return (*pairs, *((rank_b, rank_a) for rank_a, rank_b in pairs))


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
            raise MachineError(
                "host network: nothing is known of messages between all its ranks"
            )
        if len(self.hosts) > 1 and self.between is None:
            raise MachineError(
                "host network: several hosts, but nothing is known of messages between them"
            )

    @property
    def ranks(self) -> int:
        """All of the team."""
        return len(self.host_of_rank)

    @property
    def peak_bytes_per_second(self) -> float:
        """The most that any host was seen to send or receive, for bounds."""
        curves = [curve for curve in (self.between, self.together) if curve]
        rates = [
            size / second
            for curve in curves
            for size, second in zip(curve.sizes_bytes, curve.seconds, strict=True)
        ]
        rates += [
            curve.bytes_per_second for curve in curves if math.isfinite(curve.bytes_per_second)
        ]
        return max([*rates, self.stream_bytes_per_second or 0.0])

    @property
    def least_seconds(self) -> float:
        """The quickest message seen between ranks that are as far apart as any."""
        curve = self.between or self.inside or self.together
        return min(curve.seconds) if curve else 0.0

    def step_seconds(
        self,
        messages: Sequence[tuple[int, int]],
        size_bytes: ArrayLike,
        overlapped: bool = False,
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
            shared = max(
                1,
                self._sharing([(rank, (rank + 1) % self.ranks) for rank in range(self.ranks)]),
            )
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

    def sustained_seconds(
        self, messages: Sequence[tuple[int, int]], size_bytes: float
    ) -> float:
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


RANK_THREADS = 2
"""Of a rank: the caller, and one that sends and receives (gloo/transport/tcp/loop.cc in
github.com/pytorch/gloo)."""

LAUNCHES_LIMIT = 10_000
"""In a row, whose first one is then of no weight."""


def plan_seconds(
    plan: Plan, size_bytes: int, network: HostNetwork, adding_seconds_per_byte: float = 0.0
) -> float:
    """The stages' times, one after another."""
    total = 0.0
    for stage in plan:
        if stage.segment_bytes:
            pieces = max(1, -(-size_bytes // stage.segment_bytes))
            piece = min(size_bytes, stage.segment_bytes)
            hop = float(network.step_seconds(stage.messages[:1], piece))
            # While pieces stream over all hops at once, ports carry them both ways and share as a stage does.
            flow = float(network.step_seconds(stage.messages, piece))
            # Queues let a few pieces through faster than links carry them; a long pipeline cannot.
            flow = max(flow, network.sustained_seconds(stage.messages, piece))
            total += stage.times * hop + (pieces - 1) * flow
        else:
            share = stage.share * size_bytes
            total += stage.times * float(
                network.step_seconds(stage.messages, share, stage.overlapped)
            )
            if stage.adds and not stage.overlapped:
                total += stage.times * share * adding_seconds_per_byte
    return total


def _goes_one_way(plan: Plan) -> bool:
    """Return True if messages flow one way only: the graph of senders has no cycle."""
    targets: dict[int, set[int]] = {}
    for stage in plan:
        for source, target in stage.messages:
            targets.setdefault(source, set()).add(target)
    left = set(targets)
    while left:
        ends = {source for source in left if not targets[source] & left}
        if not ends:
            return False
        left -= ends
    return True


def row_seconds(
    plan: Plan, size_bytes: int, network: HostNetwork, adding_seconds_per_byte: float = 0.0
) -> float:
    """Of one launch among as many in a row as are in a sample (``Sampling.minimum_sample_seconds``).

    The first takes the stages' times. Where messages go one way only, from a root or to it, the others
    follow at the pace of the busiest rank: the root is long at the next while the last ranks get the first.
    """
    first = plan_seconds(plan, size_bytes, network, adding_seconds_per_byte)
    sample = Sampling().minimum_sample_seconds
    if first >= sample or not _goes_one_way(plan):
        return first
    sent = [(message, stage.share * size_bytes) for stage in plan for message in stage.messages]
    following = min(first, network.following_seconds(sent))
    # The first launch pays the whole way, the others only the pace; a sample is their mean.
    launches = math.ceil(sample / max(following, sample / LAUNCHES_LIMIT))
    return following + (first - following) / launches


def is_priced_on_one_host(backend: str, ranks: int, host: Machine | None) -> bool:
    """True if times of a library on one host are those of its messages.

    Gloo's are not where its threads share processors: each message then waits for a time slice, or does not
    (all_reduce of 256 KiB took 0.25 to 3.6 ms within one run on two processors). Nor are oneCCL's, of whose
    two threads each polls.
    """
    shares = capabilities_of(backend).priced_by in (PricedBy.GLOO, PricedBy.ONECCL)
    return not shares or host is None or RANK_THREADS * ranks <= host.fabric.cores


def _is_gloo(backend: str) -> bool:
    return capabilities_of(backend).priced_by is PricedBy.GLOO


def _plans(
    case: Case, network: HostNetwork, size_bytes: int, root: int, algorithm: str
) -> dict[str, Plan]:
    """The plans among which the library chooses, by name; one alone where the case or the sources name it."""
    ranks, pair = network.ranks, case.one_pair
    if pair is not None:
        both = ((pair.source, pair.target), (pair.target, pair.source))
        return {"pair": [MessageStage(both if pair.both else both[:1], 1.0)]}
    if _is_gloo(case.backend):
        name, make = GLOO_PLANS[case.collective]
        return {name: make(ranks, root)}
    if not algorithm and case.mode in (
        "streaming",
        "isolated",
    ):  # others have algorithms of their own
        own = own_choice(
            network.library, case.collective, size_bytes, case.count, network.host_of_rank
        )
        if own:
            return {own: TOLD_PLANS[case.collective][own](ranks, root)}
    plans = {name: make(ranks, root) for name, make in MPI_PLANS[case.collective].items()}
    if case.collective == "broadcast":
        plans |= {
            f"pipeline {size}": pipeline_broadcast(ranks, root, size) for size in SEGMENTS_BYTES
        }
    named = algorithm.removeprefix("mpi:").replace("-", "_")
    return (
        {name: plan for name, plan in plans.items() if name.split()[0] == named}
        if named
        else plans
    )


def _own_work(case: Case, size_bytes: int, host: Machine) -> tuple[float, float]:
    """Seconds that a rank adds for each byte, and copies for before it sends.

    All ranks work on an input and an output of this size, on few cores by turns.
    """
    row, fabric = collective(case.collective), host.fabric
    working = min(case.ranks, fabric.cores)
    adding, copying = (
        case.ranks / float(rates.at(2 * size_bytes, working, fabric.cores))
        for rates in (fabric.reduce, fabric.copy)
    )
    # What has to be added to is copied whole, of what is gathered each rank's own block
    # (ompi/mca/coll/base/coll_base_allreduce.c and ..._allgather.c in github.com/open-mpi/ompi; MPICH's
    # src/mpi/coll/allreduce alike). Gloo's all_reduce has no output but its input.
    share = 1.0 if row.reduces else 1 / case.ranks
    uncopied = (
        case.in_place or not row.moves_data or case.collective in ("broadcast", "send_recv")
    )
    if uncopied or (row.reduces and _is_gloo(case.backend)):
        share = 0.0
    return adding, share * size_bytes * copying


def predict_host_library(
    case: Case, network: HostNetwork, algorithm_used: str = "", host: Machine | None = None
) -> Prediction | None:
    """The prediction for one launch of ``case``; None where nothing is known of what runs there.

    algorithm_used: ``mpi:<name>`` where the library was told which; '' and ``default`` leave it the choice.
    host: the one host of all ranks, for how fast it adds and for a bound by its memory.
    """
    if (
        case.backend != network.backend
        or case.ranks != network.ranks
        or case.groups
        or case.concurrent
    ):
        return None
    if case.ranks == 1 or case.collective not in GLOO_PLANS:
        return None
    one_host = len(network.hosts) == 1
    if one_host and not is_priced_on_one_host(case.backend, case.ranks, host):
        return None
    size = (
        case.count
        * item_bytes(case.dtype)
        * (case.ranks if collective(case.collective).blocked else 1)
    )
    algorithm = "" if algorithm_used in ("", "default") else algorithm_used
    plans = _plans(case, network, size, max(case.root, 0), algorithm)
    if not plans:
        return None
    adding, copied = (
        _own_work(case, size, host) if one_host and host is not None else (0.0, 0.0)
    )
    pair = case.one_pair
    price = (
        row_seconds if case.mode == "streaming" and not (pair and pair.both) else plan_seconds
    )
    # What comes on top of messages, as a barrier shows it, in which all ranks are busy at the same time.
    # Nothing does where they are busy one after the other, and in send_recv, which the probe itself timed.
    free = case.collective == "send_recv"
    calls = {
        name: 0.0 if free or _goes_one_way(plan) else network.call_seconds
        for name, plan in plans.items()
    }
    priced = {
        name: calls[name] + copied + price(plan, size, network, adding)
        for name, plan in plans.items()
    }
    # Unless it is known or named, the algorithm is the one a library would choose that knew this network.
    name, seconds = min(priced.items(), key=lambda priced_pair: priced_pair[1])
    latency = min(seconds, calls[name] + price(plans[name], 0, network))
    carried = seconds - latency
    where = "inside the host" if one_host else "between hosts"
    rate = network.between or network.inside or network.together
    if seconds <= 0:
        bottleneck = "nothing to do"
    elif 2 * latency >= seconds:
        steps = sum(stage.times for stage in plans[name])
        bottleneck = f"{steps} messages in a row {where} ({name}): {latency / seconds:.0%} ({format_seconds(latency)})"
    else:
        at = (
            f" at {format_rate(rate.bytes_per_second)}"
            if rate and np.isfinite(rate.bytes_per_second)
            else ""
        )
        bottleneck = (
            f"bytes {where}{at} ({name}): {carried / seconds:.0%} ({format_seconds(carried)})"
        )
    bound = min(seconds, bound_of(case, size, network, host))
    return Prediction(bound, seconds, latency, carried, bottleneck)


def bound_of(case: Case, size_bytes: int, network: HostNetwork, host: Machine | None) -> float:
    """No algorithm is quicker: the least time of any message, or the bytes that must pass the busiest port.

    Bytes that must come to a host: those of its ranks' outputs that depend on ranks elsewhere, each once. On
    one host its memory is the port, which no library's ranks share less than those of shared memory.
    """
    row, root, pair = collective(case.collective), max(case.root, 0), case.one_pair
    one_host, place_of = len(network.hosts) == 1, network.host_of_rank
    if one_host and host is not None:
        arguments = case.group_ranks, case.count, item_bytes(case.dtype)
        return float(bound_seconds(row, *arguments, host, root, case.in_place, subset_of(case)))
    # The quickest message seen where this case's go; of launches in a row whose messages go one way only,
    # the quickest of those for whose answer nobody waited.
    near = pair is not None and place_of[pair.source] == place_of[pair.target]
    least = min(network.inside.seconds) if near and network.inside else network.least_seconds
    unanswered = network.inside_one_way if near or one_host else network.one_way
    if (
        case.mode == "streaming"
        and unanswered
        and (row.rooted or (pair is not None and not pair.both))
    ):
        least = min(least, *unanswered.seconds)
    if one_host or pair is not None:
        return least
    if not row.moves_data or not size_bytes or not network.peak_bytes_per_second:
        return least
    ranks = case.ranks
    slots = ranks if row.blocked else 1
    # What must come to each host: outputs there that depend on a rank elsewhere, equal ones once.
    arriving: list[set[object]] = [set() for _ in network.hosts]
    for rank, place in enumerate(place_of):
        for index in range(len(row.outputs(rank, ranks, slots, root))):
            origins = tuple(row.origins(rank, index, ranks, root))
            if any(place_of[origin] != place for origin, _ in origins):
                arriving[place].add(origins)
    most = max(map(len, arriving)) * (size_bytes / slots)
    return max(least, most / network.peak_bytes_per_second)
