"""A short look at the network between the hosts of a team, over the team's own backend.

Pairs of ranks send to each other at once (half a round trip with a small message, a stream with a large
one), then all ranks to the next. What comes out is the ``HostNetwork`` that collectives are priced on. With
few hosts each pair is looked at, with many a ring of them, so that a slow cable is found and the probe stays
short.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median

from ccbench.backends.base import Team
from ccbench.cases import NO_OP, Case, Measurement, Sampling, Status
from ccbench.errors import BackendUnavailable
from ccbench.model.host_collectives import plan_seconds
from ccbench.model.host_network import HostLink, HostNetwork, MessageTimes
from ccbench.model.host_plans import dissemination

SIZES_BYTES = (8, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20)
"""Eager and rendezvous messages, below and above the segments in which libraries cut them."""

EACH_PAIR_HOSTS = 4
"""Up to so many hosts every pair is looked at."""

SAMPLING = Sampling(
    visits=1,
    minimum_samples=7,
    maximum_samples=50,
    target_relative_width=0.05,
    warmup_seconds=0.01,
    minimum_sample_seconds=0.002,
    budget_seconds=0.08,
)
"""A hundred milliseconds a point: seconds for a few hosts."""

VISITS = 3
"""Of what is seen at one place alone, where of pairs of hosts there are several."""

Measured = Callable[[Case, Sampling], Measurement]


def probe_network(team: Team, backend: str, ranks: int) -> HostNetwork:
    """Measure the network of ``team``; BackendUnavailable when its ranks cannot send to each other."""
    return probed(team.run, backend, ranks)


def probed(measured: Measured, backend: str, ranks: int) -> HostNetwork:
    """The same by whatever measures a case."""
    if ranks < 2:
        return HostNetwork(backend, ("",), (0,) * ranks)
    first = _ok(measured(_case(backend, ranks, SIZES_BYTES[0], ""), SAMPLING))
    node_of_rank = first.node_of_rank or (0,) * ranks
    together = _middle([_times(measured, backend, ranks, "") for _ in range(VISITS)])
    names = _host_names(first, node_of_rank)
    leaders = [node_of_rank.index(node) for node in range(len(names))]
    between: MessageTimes | None = None
    links: tuple[HostLink, ...] = ()
    stream: float | None = None
    if len(leaders) > 1:
        pairs = host_pairs(len(leaders))
        curves = {pair: _times(measured, backend, ranks, _pair(leaders, pair)) for pair in pairs}
        between = _middle(list(curves.values()))
        links = tuple(
            HostLink((names[one], names[two]), 2 * curve.latency_seconds, curve.bytes_per_second)
            for (one, two), curve in curves.items()
        )
        one_way = _case(backend, ranks, SIZES_BYTES[-1], f"{leaders[0]}>{leaders[1]}")
        # What a port carries is what it carried at its quickest: streams that go on were seen to fall to
        # half of it, exactly, and single messages of collectives not to.
        samples = [_ok(measured(one_way, SAMPLING)).samples_seconds for _ in range(VISITS)]
        stream = SIZES_BYTES[-1] / min(min(one) for one in samples)
    inside = _inside(measured, backend, node_of_rank)
    found = HostNetwork(backend, names, tuple(node_of_rank), between, inside, together, stream, links)
    return replace(found, call_seconds=_call_seconds(measured, found), library=first.backend_version)


def _call_seconds(measured: Measured, network: HostNetwork) -> float:
    """What a barrier takes beyond its messages, which carry nothing."""
    barrier = replace(_case(network.backend, network.ranks, 0, ""), collective="barrier")
    messages = plan_seconds(dissemination(network.ranks, 0), 0, network)
    return max(0.0, _seconds(_ok(measured(barrier, SAMPLING))) - messages)


def host_pairs(hosts: int) -> tuple[tuple[int, int], ...]:
    """Which hosts are looked at: each pair of a few, neighbours in a ring of many."""
    if hosts <= EACH_PAIR_HOSTS:
        return tuple((one, two) for one in range(hosts) for two in range(one + 1, hosts))
    return tuple((one, (one + 1) % hosts) for one in range(hosts))


def _inside(measured: Measured, backend: str, node_of_rank: Sequence[int]) -> MessageTimes | None:
    """Two ranks of the first host that has two."""
    for rank, node in enumerate(node_of_rank):
        if node in node_of_rank[:rank]:
            return _times(measured, backend, len(node_of_rank), f"{node_of_rank.index(node)}<>{rank}")
    return None


def _pair(leaders: Sequence[int], pair: tuple[int, int]) -> str:
    return f"{leaders[pair[0]]}<>{leaders[pair[1]]}"


def _host_names(measurement: Measurement, node_of_rank: Sequence[int]) -> tuple[str, ...]:
    hosts = measurement.hosts or ("",) * len(node_of_rank)
    return tuple(hosts[node_of_rank.index(node)] for node in range(max(node_of_rank) + 1))


def _times(measured: Measured, backend: str, ranks: int, pair: str) -> MessageTimes:
    seconds = tuple(
        _seconds(_ok(measured(_case(backend, ranks, size, pair), SAMPLING))) for size in SIZES_BYTES
    )
    return MessageTimes(SIZES_BYTES, seconds)


def _middle(curves: Sequence[MessageTimes]) -> MessageTimes:
    """The median of all pairs, or visits, at each size."""
    at_each_size = zip(*(curve.seconds for curve in curves), strict=True)
    return MessageTimes(SIZES_BYTES, tuple(median(times) for times in at_each_size))


def _seconds(measurement: Measurement) -> float:
    return median(measurement.samples_seconds)


def _ok(measurement: Measurement) -> Measurement:
    if measurement.status is not Status.OK or not measurement.samples_seconds:
        raise BackendUnavailable(
            f"network probe: {measurement.case.label}: {measurement.status.value}"
            f"{': ' + measurement.detail if measurement.detail else ''}; mend that or run without"
        )
    return measurement


def _case(backend: str, ranks: int, size_bytes: int, pair: str) -> Case:
    return Case(
        suite="network probe",
        backend=backend,
        collective="send_recv",
        algorithm="default",
        dtype="uint8",
        op=NO_OP,
        size_bytes=size_bytes,
        count=size_bytes,
        ranks=ranks,
        pair=pair,
    )
