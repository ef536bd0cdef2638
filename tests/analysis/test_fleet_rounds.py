"""Fleets with planted faults, checked as a run does: what is asked for is measured until nothing is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ccbench.analysis.fleet import FleetVerdict
from ccbench.analysis.fleet_rounds import further_cases, without
from ccbench.analysis.machine_verdict import machine_verdict
from ccbench.cases.axes import Case, asked_of
from ccbench.cases.measurement import NO_TEAM, Measurement, Status
from ccbench.groups import PairingRound, format_ranks
from ccbench.results import Run

from .health.machines import case, run_of

SECONDS = 0.01


@dataclass
class Fleet:
    """Nodes with one rank each, of which some are slow or hang, alone or with one other.

    dead: whoever hangs once takes the team with it for good.
    """

    nodes: int
    slow: frozenset[int] = frozenset()
    slow_links: frozenset[tuple[int, int]] = frozenset()
    hung: frozenset[int] = frozenset()
    hung_links: frozenset[tuple[int, int]] = frozenset()
    wrong: frozenset[int] = frozenset()
    dead: bool = False
    factor: float = 1.6
    measured: int = 0
    racks: tuple[str, ...] = ()

    def measure(self, round_case: Case) -> Measurement:
        self.measured += 1
        stuck = [
            group
            for group in round_case.members
            if self.hung & {*group} or tuple(sorted(group)) in self.hung_links
        ]
        if stuck:
            ranks = ", ".join(str(rank) for group in stuck for rank in group)
            detail = (
                f"timed out before its samples: furthest behind: rank {ranks} of {self.nodes}"
            )
            return Measurement(round_case, Status.TIMED_OUT, detail, hosts=self.names)
        if bad := self.wrong & {*round_case.communicating_ranks}:
            detail = f"rank {min(bad)}: 1 wrong, first at element 5"
            return Measurement(
                round_case, Status.WRONG, detail, wrong_elements=1, hosts=self.names
            )
        random = np.random.default_rng(self.measured)
        times = []
        for group in round_case.members:
            slow = self.slow & {*group} or tuple(sorted(group)) in self.slow_links
            usual = SECONDS * (self.factor if slow else 1.0)
            times.append(tuple((usual * (1 + 0.02 * np.abs(random.normal(size=12)))).tolist()))
        return Measurement(
            round_case,
            Status.OK,
            samples_seconds=times[0],
            round_samples=(12,),
            wrong_elements=0,
            group_names=tuple(f"ranks {format_ranks(group)}" for group in round_case.members),
            group_samples_seconds=tuple(times),
            hosts=self.names,
            node_of_rank=tuple(range(self.nodes)),
        )

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"h{node}" for node in range(self.nodes))

    def planned(self, rounds: Iterable[list[tuple[int, int]]]) -> list[Case]:
        plain = replace(
            case("all_reduce", 1 << 18, 2, backend="gloo"), ranks=self.nodes, nodes=self.nodes
        )
        return [replace(plain, groups=str([list(pair) for pair in pairs])) for pairs in rounds]

    def checked(self, planned: list[Case]) -> Run:
        """The run, as ``runner.run`` makes it of the guide's answers."""
        results: dict[str, Measurement] = {}
        cases, further = list(planned), list[Case]()
        racks = self.racks or ("",) * self.nodes
        hosts = [
            {"name": name, "ranks": 1, "rack": rack}
            for name, rack in zip(self.names, racks, strict=True)
        ]
        while True:
            document = {
                "suite": {"verdict": "fleet", "seed": 1},
                "hosts": hosts,
                "further_cases": [asked_of(round_case) for round_case in further],
            }
            run = run_of(list(results.values()), document)
            left = [round_case for round_case in cases if round_case.case_id not in results]
            more = [
                further_case
                for further_case in further_cases(left, run)
                if further_case.case_id not in results
            ]
            if not more:
                return run
            further += [
                round_case for round_case in more if round_case not in (*planned, *further)
            ]
            cases = more
            for round_case in more:
                measurement = self.measure(round_case)
                if (
                    self.dead
                    and measurement.status is Status.OK
                    and any(each.status is Status.TIMED_OUT for each in results.values())
                ):
                    reason = f"the library did not start: no answer from rank {min(self.hung)} (process 7 on h3)"
                    measurement = Measurement(
                        round_case, Status.FAILED, reason, stop_reason=NO_TEAM
                    )
                results[round_case.case_id] = measurement
                if measurement.status is not Status.OK:
                    break


def round_robin(nodes: int) -> list[list[tuple[int, int]]]:
    return [PairingRound("round_robin", number).pairs(nodes) for number in range(nodes - 1)]


def matchings(nodes: int, rounds: int, seed: int) -> list[list[tuple[int, int]]]:
    return [PairingRound("matching", number, seed).pairs(nodes) for number in range(rounds)]


def fleet_verdict(run: Run) -> FleetVerdict:
    fleet = machine_verdict(run)
    assert isinstance(fleet, FleetVerdict)
    return fleet


def verdict(
    fleet: Fleet, rounds: Iterable[list[tuple[int, int]]] | None = None
) -> FleetVerdict:
    return fleet_verdict(
        fleet.checked(fleet.planned(rounds or matchings(fleet.nodes, 3, seed=1)))
    )


def test_a_slow_link_is_named_and_neither_of_its_nodes() -> None:
    judged = verdict(Fleet(8, slow_links=frozenset({(2, 5)})), round_robin(8))
    assert (judged.excluded, judged.links, judged.exclude) == ((), ((2, 5),), "")
    assert judged.document["links"] == [["h2", "h5"]]


def test_a_check_that_has_ended_asks_for_nothing_when_it_is_resumed() -> None:
    fleet = Fleet(8, hung=frozenset({4}))
    planned = fleet.planned(round_robin(8))
    run = fleet.checked(planned)
    measured = {point.case_id for point in run.points if point.complete}
    assert (
        further_cases(
            [round_case for round_case in planned if round_case.case_id not in measured], run
        )
        == ()
    )


def test_two_that_hang_with_each_other_alone_are_a_bad_link() -> None:
    judged = verdict(Fleet(8, hung_links=frozenset({(0, 6)})), round_robin(8))
    assert (judged.excluded, judged.links) == ((), ((0, 6),))


@pytest.mark.exhaustive
@settings(deadline=None, max_examples=25)
@given(st.integers(4, 12), st.sampled_from(["slow", "hung"]), st.data())
def test_a_bad_node_is_named_whoever_it_is(half: int, kind: str, data: st.DataObject) -> None:
    nodes = 2 * half
    bad = data.draw(st.integers(0, nodes - 1))
    fleet = Fleet(nodes)
    setattr(fleet, kind, frozenset({bad}))
    judged = verdict(fleet, matchings(nodes, 3, data.draw(st.integers(0, 99))))
    assert (judged.excluded, judged.links) == ((bad,), ())
    assert fleet.measured <= 8


@pytest.mark.parametrize(
    ("out", "groups"),
    [
        (set(), "[[0, 1], [2, 3], [4, 5]]"),
        ({0}, "[[2, 3], [4, 5]]"),
        ({0, 3}, "[[1, 2], [4, 5]]"),
        ({0, 1, 2, 4}, "[[3, 5]]"),
    ],
)
def test_partners_of_those_left_out_are_joined(out: set[int], groups: str) -> None:
    pairs_case = replace(
        case("all_reduce", 4096, 2), ranks=6, groups="[[0, 1], [2, 3], [4, 5]]"
    )
    left = without(pairs_case, out)
    assert left is not None
    assert left.groups == groups
    assert without(pairs_case, range(6)) is None
