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
from ccbench.model.host_network import HostLink, HostNetwork, MessageTimes, swaps
from ccbench.model.host_plans import dissemination

SIZES_BYTES = (8, *(1 << power for power in (10, 12, 14, 15, 16, 17, 18, 20, 22)))
"""Eager and rendezvous messages, below and above the segments in which libraries cut them.

Close together from 16 to 256 KiB, where libraries begin to ask the other side first (Open MPI over TCP at
64 KiB, opal/mca/btl/tcp/btl_tcp_component.c): a message then takes several times as long at once, and of what
is between two sizes of which one asks and the other does not, nothing is known.
"""

EACH_PAIR_HOSTS = 4
"""Up to so many hosts every pair is looked at."""

SAMPLING = Sampling(
    visits=1,
    minimum_samples=5,
    maximum_samples=50,
    target_relative_width=0.05,
    warmup_seconds=0.01,
    minimum_sample_seconds=0.002,
    budget_seconds=0.05,
)
"""Sixty milliseconds a point, but for large messages: a quarter of a minute for four hosts."""

VISITS = 3
"""Of everything, but one of each pair in a ring of many hosts. All is looked at once before anything is a
second time, so that what disturbs the machine for a second spoils one visit and no figure, which are medians
of visits."""

Measured = Callable[[Case, Sampling], Measurement]


def probe_network(team: Team, backend: str, ranks: int) -> HostNetwork:
    """Measure the network of ``team``; BackendUnavailable when its ranks cannot send to each other."""
    return probed(team.run, backend, ranks)


def probed(measured: Measured, backend: str, ranks: int) -> HostNetwork:
    """The same by whatever measures a case."""
    if ranks < 2:
        return HostNetwork(backend, ("",), (0,) * ranks)
    first = _ok(measured(_case(backend, ranks, SIZES_BYTES[0]), SAMPLING))
    node_of_rank = tuple(first.node_of_rank or (0,) * ranks)
    names = _host_names(first, node_of_rank)
    seen = _seen(measured, backend, node_of_rank, len(names))
    curves = {name: _curve(visits) for name, visits in seen.items()}
    pairs = {pair: curves[f"{pair[0]} {pair[1]}"] for pair in host_pairs(len(names))}
    links = tuple(
        HostLink((names[one], names[two]), 2 * curve.latency_seconds, curve.bytes_per_second)
        for (one, two), curve in pairs.items()
    )
    found = HostNetwork(
        backend,
        names,
        node_of_rank,
        between=_middle(list(pairs.values())) if pairs else None,
        inside=curves.get("inside"),
        together=curves["together"],
        stream_bytes_per_second=_stream(seen["one way"]) if pairs else None,
        links=links,
        library=first.backend_version,
        swapped=curves.get("swapped"),
        one_way=curves.get("one way"),
    )
    return replace(found, call_seconds=_call_seconds(measured, found))


def _cases(backend: str, node_of_rank: Sequence[int], hosts: int) -> dict[str, Case]:
    """What is looked at, by name, with messages of any size."""
    ranks = len(node_of_rank)
    plain = _case(backend, ranks, SIZES_BYTES[0])
    found = {"together": plain}
    neighbour = next((rank for rank, node in enumerate(node_of_rank) if node in node_of_rank[:rank]), None)
    if neighbour is not None:
        first = node_of_rank.index(node_of_rank[neighbour])
        found["inside"] = replace(plain, pair=f"{first}<>{neighbour}")
    if hosts < 2:
        return found
    leaders = [node_of_rank.index(node) for node in range(hosts)]
    found["one way"] = replace(plain, pair=f"{leaders[0]}>{leaders[1]}")
    partners = swaps(node_of_rank)
    if len(partners) > 2:  # of two ranks, both send to the next
        groups = [[one, other] for one, other in partners if one < other]
        found["swapped"] = replace(plain, groups=str(groups).replace(" ", ""))
    for one, two in host_pairs(hosts):
        found[f"{one} {two}"] = replace(plain, pair=f"{leaders[one]}<>{leaders[two]}")
    return found


Visits = list[list[Measurement]]
"""Of each visit, the measurement of each size."""


def _seen(measured: Measured, backend: str, node_of_rank: Sequence[int], hosts: int) -> dict[str, Visits]:
    cases = _cases(backend, node_of_rank, hosts)
    pairs = sum(name[0].isdigit() for name in cases)
    seen: dict[str, Visits] = {name: [] for name in cases}
    for visit in range(VISITS):
        for name, case in cases.items():
            if visit == 0 or pairs <= len(host_pairs(EACH_PAIR_HOSTS)) or not name[0].isdigit():
                sized = (replace(case, size_bytes=size, count=size) for size in SIZES_BYTES)
                seen[name].append([_ok(measured(one, SAMPLING)) for one in sized])
    return seen


def _curve(visits: Visits) -> MessageTimes:
    return _middle([MessageTimes(SIZES_BYTES, tuple(map(_seconds, visit))) for visit in visits])


def _stream(visits: Visits) -> float:
    """Bytes per second one way: what a port carries is what it carried at its quickest."""
    return SIZES_BYTES[-1] / min(min(visit[-1].samples_seconds) for visit in visits)


def _call_seconds(measured: Measured, network: HostNetwork) -> float:
    """What a barrier takes beyond its messages, which carry nothing."""
    barrier = replace(_case(network.backend, network.ranks, 0), collective="barrier")
    messages = plan_seconds(dissemination(network.ranks, 0), 0, network)
    seconds = median(_seconds(_ok(measured(barrier, SAMPLING))) for _ in range(VISITS))
    return max(0.0, seconds - messages)


def host_pairs(hosts: int) -> tuple[tuple[int, int], ...]:
    """Which hosts are looked at: each pair of a few, neighbours in a ring of many."""
    if hosts <= EACH_PAIR_HOSTS:
        return tuple((one, two) for one in range(hosts) for two in range(one + 1, hosts))
    return tuple((one, (one + 1) % hosts) for one in range(hosts))


def _host_names(measurement: Measurement, node_of_rank: Sequence[int]) -> tuple[str, ...]:
    hosts = measurement.hosts or ("",) * len(node_of_rank)
    return tuple(hosts[node_of_rank.index(node)] for node in range(max(node_of_rank) + 1))


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


def _case(backend: str, ranks: int, size_bytes: int) -> Case:
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
    )
