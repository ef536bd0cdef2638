"""A short look at what messages between the ranks of a team take, over the team's own backend.

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
from ccbench.cases.axes import DEFAULT, NO_OP, Case
from ccbench.cases.capabilities import capabilities_of
from ccbench.cases.measurement import PROBE, Measurement, Sampling, Status
from ccbench.errors import BackendUnavailable
from ccbench.model.host_collectives import (
    HostLink,
    HostNetwork,
    MessageTimes,
    is_priced_on_one_host,
    plan_seconds,
    swaps,
)
from ccbench.model.host_plans import dissemination
from ccbench.model.machine import Machine

SIZES_BYTES = (8, *(1 << power for power in (10, 12, 14, 15, 16, 17, 18, 20, 22)))
"""Eager and rendezvous messages, below and above the segments in which libraries cut them.

Close together from 16 to 256 KiB, where libraries begin to ask the other side first (Open MPI over TCP at
64 KiB, opal/mca/btl/tcp/btl_tcp_component.c): a message then takes several times as long at once, and of what
is between two sizes of which one asks and the other does not, nothing is known.
"""

ONE_HOST_SIZES_BYTES = (
    8,
    *(1 << power for power in (10, 11, 12, 14, 15, 16, 17, 18, 20, 22, 24, 26)),
)
"""On one host: Open MPI begins to ask at 4 KiB there (opal/mca/btl/vader/btl_vader_component.c), and beyond
what caches hold the rate is another."""

EACH_PAIR_HOSTS = 4
"""Up to so many hosts every pair is looked at."""

SAMPLING = Sampling(
    rounds=1,
    minimum_samples=5,
    maximum_samples=50,
    target_relative_width=0.05,
    warmup_seconds=0.01,
    minimum_sample_seconds=0.002,
    budget_seconds=0.05,
)
"""Sixty milliseconds a point, but for large messages: a quarter of a minute for four hosts."""

ROUNDS = 3
"""Of everything, but one of each pair in a ring of many hosts. All is looked at once before anything is a
second time, so that what disturbs the machine for a second spoils one round and no figure: whatever else runs
only adds time, and a figure is the least of the medians of its rounds."""

MOST_TRIES = 2 * ROUNDS
"""Of a point whose rounds do not agree."""

AGREED = 2.0
"""Ratio up to which rounds agree. Where others use the ranks' processors, a round takes thousands of times as
long as the next one, or has samples that do."""

Measured = Callable[[Case, Sampling], Measurement]


class NetworkLooks:
    """The looks of one run: one for each library and number of ranks, once its team is open.

    cases: of the run. host: what cases on one host are priced on.
    """

    def __init__(
        self, cases: Sequence[Case], several_hosts: bool, host: Machine | None
    ) -> None:
        self.networks: dict[tuple[str, int], HostNetwork] = {}
        self.where = (
            "the network between the hosts" if several_hosts else "messages between the ranks"
        )
        self._largest_bytes: dict[tuple[str, int], int] = {}
        for case in cases:
            kind = case.backend, case.ranks
            priced = several_hosts or is_priced_on_one_host(*kind, host)
            # Messages of another library say nothing about the usual one.
            usual = case.ranks > 1 and case.memory == DEFAULT and not case.started_with.library
            if capabilities_of(case.backend).priced_by_messages and usual and priced:
                self._largest_bytes[kind] = max(
                    case.size_bytes, self._largest_bytes.get(kind, 0)
                )

    def cases(self, case: Case) -> list[Case]:
        """Return what is measured before ``case``, as if on one host; nothing once all was seen."""
        kind = case.backend, case.ranks
        if (
            kind not in self._largest_bytes
            or case.memory != DEFAULT
            or case.started_with.library
        ):
            return []
        probes = _cases(case.backend, (0,) * case.ranks, 1).values()
        sizes = _up_to(self._largest_bytes[kind])
        return [
            replace(probe, size_bytes=size, count=size) for probe in probes for size in sizes
        ] * ROUNDS

    def look(self, team: Team, case: Case) -> None:
        """Add to ``networks``; BackendUnavailable where there is nothing to be found, then or ever."""
        kind = case.backend, case.ranks
        self.networks[kind] = probe_network(team.run, *kind, self._largest_bytes.pop(kind))


def probe_network(
    measured: Measured, backend: str, ranks: int, largest_bytes: int | None = None
) -> HostNetwork:
    """Measure the network between ranks; BackendUnavailable when they cannot send to each other.

    measured: measures a case, as a team's ``run`` does. largest_bytes: of the cases to come, where that is
    known; on one host nothing much larger is sent.
    """
    if ranks < 2:
        return HostNetwork(backend, ("",), (0,) * ranks)
    if not capabilities_of(backend).has("collective", "send_recv"):
        own = measured

        def measured(case: Case, sampling: Sampling) -> Measurement:
            return own(
                without_messages(case) if case.collective == "send_recv" else case, sampling
            )

    # One small message shows whether there is anything to measure, and which rank is where.
    first = _ok(measured(_case(backend, ranks, SIZES_BYTES[0]), SAMPLING))
    node_of_rank = tuple(first.node_of_rank or (0,) * ranks)
    hosts = first.hosts or ("",) * ranks
    names = tuple(hosts[node_of_rank.index(node)] for node in range(max(node_of_rank) + 1))
    sizes = SIZES_BYTES if len(names) > 1 else _up_to(largest_bytes)
    cases, pairs = _cases(backend, node_of_rank, len(names)), host_pairs(len(names))
    # Of many hosts a ring of pairs is looked at, and each of them once: that tells a slow cable.
    once = set(map(_of_pair, pairs)) if len(pairs) > len(host_pairs(EACH_PAIR_HOSTS)) else set()
    points = {
        name: [_Point(measured, replace(case, size_bytes=size, count=size)) for size in sizes]
        for name, case in cases.items()
    }
    for one_round in range(ROUNDS):
        for name, along in points.items():
            if one_round == 0 or name not in once:
                for point in along:
                    point.look()
    curves = {
        name: MessageTimes(sizes, tuple(point.seconds() for point in along))
        for name, along in points.items()
    }
    of_pairs = {pair: curves[_of_pair(pair)] for pair in pairs}
    # Between hosts the median of all pairs counts, at each size.
    at_each_size = zip(*(curve.seconds for curve in of_pairs.values()), strict=True)
    between = MessageTimes(sizes, tuple(map(median, at_each_size))) if of_pairs else None
    network = HostNetwork(
        backend,
        names,
        node_of_rank,
        between=between,
        inside=curves.get("inside", curves["together"] if len(names) == 1 else None),
        together=curves["together"],
        # A port carries what it carried at its quickest.
        stream_bytes_per_second=sizes[-1] / points["one way"][-1].quickest_seconds()
        if of_pairs
        else None,
        links=tuple(
            HostLink(
                (names[first_host], names[second_host]),
                2 * curve.latency_seconds,
                curve.bytes_per_second,
            )
            for (first_host, second_host), curve in of_pairs.items()
        ),
        library=first.backend_version,
        swapped=curves.get("swapped"),
        one_way=curves.get("one way"),
        inside_one_way=curves.get("inside one way"),
    )
    # A barrier's messages carry nothing: what it takes beyond their time is the library's own.
    barrier = _Point(measured, replace(_case(backend, ranks, 0), collective="barrier"))
    for _ in range(ROUNDS):
        barrier.look()
    messages = plan_seconds(dissemination(ranks, 0), 0, network)
    return replace(network, call_seconds=max(0.0, barrier.seconds() - messages))


class _Point:
    """One case of the probe and what its tries found."""

    def __init__(self, measured: Measured, case: Case) -> None:
        self._measured, self._case = measured, case
        self._tries: list[Measurement] = []

    def look(self) -> None:
        """Try once; BackendUnavailable says why nothing came of it."""
        self._tries.append(_ok(self._measured(self._case, SAMPLING)))

    def seconds(self) -> float:
        """Return the least of the medians of all tries, after more of them where they do not agree."""
        while True:
            least, *slower = sorted(median(attempt.samples_seconds) for attempt in self._tries)
            alike = min(slower, default=least) <= AGREED * least
            steady = least <= AGREED * self.quickest_seconds()
            if (alike and steady) or len(self._tries) >= MOST_TRIES:
                return least
            self.look()

    def quickest_seconds(self) -> float:
        """Return the shortest sample of all tries."""
        return min(min(attempt.samples_seconds) for attempt in self._tries)


def _up_to(largest_bytes: int | None) -> tuple[int, ...]:
    """Return sizes on one host: two at least, which make a rate, and the last not below the largest case."""
    every = ONE_HOST_SIZES_BYTES
    below = (
        sum(size < largest_bytes for size in every) if largest_bytes is not None else len(every)
    )
    return every[: max(2, below + 1)]


def _cases(backend: str, node_of_rank: Sequence[int], hosts: int) -> dict[str, Case]:
    """Return the cases that are looked at, by name, with messages of any size."""
    ranks = len(node_of_rank)
    plain = _case(backend, ranks, SIZES_BYTES[0])
    cases = {"together": plain}
    neighbour = next(
        (rank for rank, node in enumerate(node_of_rank) if node in node_of_rank[:rank]), None
    )
    if neighbour is not None:
        first = node_of_rank.index(node_of_rank[neighbour])
        cases["inside one way"] = replace(plain, pair=f"{first}>{neighbour}")
        if ranks > 2:  # of two ranks, all are the pair
            cases["inside"] = replace(plain, pair=f"{first}<>{neighbour}")
    if hosts < 2:
        return cases
    # Between hosts one rank of each speaks for it.
    leaders = [node_of_rank.index(node) for node in range(hosts)]
    cases["one way"] = replace(plain, pair=f"{leaders[0]}>{leaders[1]}")
    partners = swaps(node_of_rank)
    if len(partners) > 2:  # of two ranks, both send to the next
        groups = [[rank, partner] for rank, partner in partners if rank < partner]
        cases["swapped"] = replace(plain, groups=str(groups).replace(" ", ""))
    for pair in host_pairs(hosts):
        first_host, second_host = pair
        cases[_of_pair(pair)] = replace(
            plain, pair=f"{leaders[first_host]}<>{leaders[second_host]}"
        )
    return cases


def without_messages(case: Case) -> Case:
    """Return the collectives that stand for ``case``, messages, on a library that has none to offer.

    Two ranks that gather from each other send what the other needs, both at once; a broadcast to one rank is
    a message one way. The ring of all ranks is pairs of neighbours, who are as busy.
    """
    pair, size = case.one_pair, case.count
    if pair and not pair.both:
        groups = f"[[{pair.source},{pair.target}]]"
        return replace(case, collective="broadcast", root=0, pair="", groups=groups)
    if pair:
        groups = f"[[{pair.source},{pair.target}]]"
    else:
        neighbours = [[rank, rank + 1] for rank in range(0, case.ranks - 1, 2)]
        groups = case.groups or str(neighbours).replace(" ", "")
    return replace(case, collective="all_gather", size_bytes=2 * size, pair="", groups=groups)


def _of_pair(pair: tuple[int, int]) -> str:
    """Return the name of what two hosts send each other."""
    return "{} {}".format(*pair)


def host_pairs(hosts: int) -> tuple[tuple[int, int], ...]:
    """Return the pairs of hosts that are looked at: each of a few, neighbours in a ring of many."""
    if hosts <= EACH_PAIR_HOSTS:
        return tuple(
            (first_host, second_host)
            for first_host in range(hosts)
            for second_host in range(first_host + 1, hosts)
        )
    return tuple((first_host, (first_host + 1) % hosts) for first_host in range(hosts))


def _ok(measurement: Measurement) -> Measurement:
    if measurement.status is not Status.OK or not measurement.samples_seconds:
        raise BackendUnavailable(
            f"network probe: {measurement.case.label}: {measurement.status.value}"
            f"{': ' + measurement.detail if measurement.detail else ''}; mend that to have predictions"
        )
    return measurement


def _case(backend: str, ranks: int, size_bytes: int) -> Case:
    return Case(
        suite=PROBE,
        backend=backend,
        collective="send_recv",
        algorithm="default",
        dtype="uint8",
        op=NO_OP,
        size_bytes=size_bytes,
        count=size_bytes,
        ranks=ranks,
    )
