"""Two collectives of every rank at once, whoever is in whose groups: right in every order, and never stuck.

All ranks run in one thread, on real memory and counters, a step at a time; which rank goes next is random.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.backends.control_block import Control, Word
from ccbench.backends.cpu.arena import Arena
from ccbench.backends.cpu.endpoint import CpuLane
from ccbench.backends.cpu.execution import ConcurrentLauncher, Program, Waiter, while_computing
from ccbench.backends.cpu.program import compile_case
from ccbench.backends.faults import Fault
from ccbench.backends.rank_endpoint import lanes_of
from ccbench.cases.axes import Case
from ccbench.collectives import COLLECTIVES
from ccbench.verification import Mismatch
from tests.backends.cpu.interpreter import in_random_order
from tests.backends.cpu.test_groups import case_of

LAUNCHES = 3


@dataclass
class Rank:
    """One rank's two programs and how far it is."""

    lanes: tuple[CpuLane, ...]
    launcher: ConcurrentLauncher
    seconds: list[float]


class World:
    """All ranks of a case with something beside it."""

    def __init__(
        self,
        case: Case,
        fault: Fault | None = None,
        second_word: Word = Word.PROGRESS_CONCURRENT,
    ) -> None:
        self.control = Control(case.ranks, 1)
        arenas = [Arena() for _ in range(case.ranks)]
        every = [lanes_of(CpuLane, case, rank, fault) for rank in range(case.ranks)]
        begin = 0
        plans = []
        for number, lane in enumerate(every[0]):
            plans.append(lane.plans(compile_case(lane.layout), begin))
            begin += 1 << 18
            assert max(plan.end_bytes for plan in plans[number]) <= begin
        for arena in arenas:
            arena.reserve(begin)
        self.ranks = []
        for lanes in every:
            programs: list[Program] = []
            waiters = [Waiter(self.control, True), Waiter(self.control, True, second_word)]
            for lane, planned, waiter in zip(lanes, plans, waiters, strict=True):
                lane.bind(compile_case(lane.layout), planned, arenas, self.control, waiter)
                assert lane.launcher
                programs.append(lane.launcher)
            seconds = [0.0, 0.0]
            self.ranks.append(
                Rank(lanes, ConcurrentLauncher(programs, waiters[0], seconds), seconds)
            )
        for arena in arenas:
            os.close(arena.file)  # what is mapped stays mapped

    def run(self, shuffle: int, seed: int = 5, launches: int = LAUNCHES) -> list[Mismatch]:
        """Launch a few times in an order that ``shuffle`` draws; what was wrong.

        As adversarial launches do: every rank fills its buffers when it comes, enters, and looks at its
        result as soon as it is out.
        """
        self.wrong: list[Mismatch] = []
        rounds = enumerate(self.ranks)
        going = {number: self._round(number, rank, seed, launches) for number, rank in rounds}
        in_random_order(going, random.Random(shuffle))
        return self.wrong

    def _round(self, number: int, rank: Rank, seed: int, launches: int) -> Iterator[bool]:
        for lane in rank.lanes:
            lane.poison()
            lane.refill(seed)
        self.control.words[self.control.index(number, Word.ARRIVED)] = seed
        for _ in range(launches):
            yield from rank.launcher.steps()
        checked = [lane.check(seed, launches, self.control) for lane in rank.lanes]
        self.wrong += [mismatch for mismatch in checked if mismatch]


def groupings(ranks: int) -> st.SearchStrategy[str]:
    """Lists of equal groups of all ranks in any order."""
    sizes = st.sampled_from([size for size in range(1, ranks + 1) if ranks % size == 0])
    return st.tuples(st.permutations(range(ranks)), sizes).map(
        lambda drawn: json.dumps(
            [list(drawn[0][first : first + drawn[1]]) for first in range(0, ranks, drawn[1])]
        )
    )


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Any two collectives on any groups of 2 to 8 ranks, all groups at once or one alone."""
    ranks = draw(st.integers(2, 8))
    name, concurrent = (draw(st.sampled_from(sorted(COLLECTIVES))) for _ in range(2))
    groups = draw(groupings(ranks))
    alone = draw(st.integers(-1, len(json.loads(groups)) - 1))
    own_groups = groupings(ranks).map(f"{concurrent} on {{}}".format)
    beside = draw(st.one_of(st.just(concurrent), st.just(f"{concurrent} on all"), own_groups))
    traffic = draw(st.sampled_from(["", "hot:0.9", "zipf:2"])) if name == "all_to_all_v" else ""
    count = draw(st.integers(1, 60))
    return case_of(
        name,
        count,
        ranks=ranks,
        groups=groups,
        active_group=alone,
        concurrent=beside,
        traffic=traffic,
    )


@given(case=cases(), shuffle=st.integers(0, 2**32))
def test_both_are_right_in_any_order_and_never_stuck(case: Case, shuffle: int) -> None:
    assert World(case).run(shuffle) == []


@pytest.mark.parametrize(
    ("name", "beside", "faulty"),
    [("all_reduce", "all_gather", "all_reduce"), ("all_gather", "all_reduce", "all_reduce")],
)
def test_a_rank_that_does_not_wait_is_seen_in_either_collective(
    name: str, beside: str, faulty: str
) -> None:
    case = case_of(name, 40, groups="rank // 2", concurrent=f"{beside} on rank % 2")
    fault = Fault("unsynchronised", rank=2, collective=faulty)
    # One launch: those that follow bring the same data once more.
    assert any(World(case, fault).run(shuffle, launches=1) for shuffle in range(30))


# -- a computation -----------------------------------------------------------------------------------------


class Scripted:
    """A program whose steps the test gives; notes what happened in ``done``."""

    def __init__(self, script: list[bool], done: list[str]) -> None:
        self._script = script
        self._done = done

    def steps(self) -> Iterator[bool]:
        for moved in self._script:
            self._done.append("moved" if moved else "looked")
            yield moved


def test_whichever_ends_first_is_over_earlier() -> None:
    waiter = Waiter(Control(1, 1), True)
    short, long = Scripted([True], []), Scripted([False] * 200, [])
    computed, communicated = while_computing(short, lambda: None, 1, 50, waiter)  # type: ignore[arg-type]  # as above
    assert communicated < computed
    computed, communicated = while_computing(long, lambda: None, 1, 3, waiter)  # type: ignore[arg-type]  # as above
    assert computed < communicated
