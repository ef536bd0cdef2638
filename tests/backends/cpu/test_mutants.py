"""No wait of a compiled program is superfluous but those that others imply, and no post may come early."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from ccbench.backends.cpu.program import CompiledCase
from ccbench.collectives import collective, reference
from ccbench.schedules import algorithm_row, schedule_for
from ccbench.verification import Array
from tests.backends.cpu.interpreter import Deadlock, compiled
from tests.backends.cpu.mutants import (
    LAUNCHES,
    Site,
    is_for_a_rewrite,
    is_implied,
    posted_early,
    run_late,
    sites,
    waited_event,
    without,
)
from tests.backends.cpu.test_program import PAIRS

SEEDS = 12
RANKS = (3, 2, 4)
ROOT = 1
COUNT = 12

DATA_PAIRS = [(name, algorithm) for name, algorithm in PAIRS if collective(name).moves_data]


def programs(ranks: int, in_place: bool) -> Iterator[CompiledCase]:
    """The programs of all pairs that this rank count has."""
    for name, algorithm in DATA_PAIRS:
        root = ROOT if collective(name).rooted else 0
        if not algorithm_row(name, algorithm).unsupported(ranks, 0):
            schedule = schedule_for(name, algorithm, ranks, root=root, size_bytes=1 << 20)
            yield compiled(schedule, COUNT, in_place)


def inputs_of(case: CompiledCase) -> list[list[Array]]:
    """[launch][rank]; every value is new."""
    schedule = case.layout.schedule
    row = collective(schedule.collective)
    generator = np.random.default_rng(9)
    return [
        [
            generator.integers(
                1, 1 << 40, row.input_count(COUNT, schedule.ranks, rank, max(schedule.root, 0))
            )
            for rank in range(schedule.ranks)
        ]
        for _ in range(LAUNCHES)
    ]


def right(case: CompiledCase, inputs: list[list[Array]]) -> list[list[Array]]:
    schedule = case.layout.schedule
    return [
        reference(rank_inputs, "sum", schedule.collective, max(schedule.root, 0))
        for rank_inputs in inputs
    ]


def dies(
    mutant: CompiledCase, inputs: list[list[Array]], outputs: list[list[Array]], late: int
) -> bool:
    """True when some order of events gives a wrong result or none; ``late`` is who should be waited for."""
    for seed in range(SEEDS):
        late_rank = late if seed < SEEDS // 2 else seed % len(outputs[0])
        try:
            late_outputs = run_late(mutant, inputs, late_rank, seed)
        except Deadlock:
            return True
        same = (
            np.array_equal(a, b)
            for actual, expected in zip(late_outputs, outputs, strict=True)
            for a, b in zip(actual, expected, strict=True)
        )
        if not all(same):
            return True
    return False


def is_equivalent(case: CompiledCase, site: Site) -> bool:
    """Nothing can change without this wait; see the two reasons."""
    return is_implied(case, site) or is_for_a_rewrite(case, site)


def _missing_waits(case: CompiledCase) -> tuple[int, list[Any]]:
    inputs = inputs_of(case)
    outputs = right(case, inputs)
    needed = [site for site in sites(case) if not is_equivalent(case, site)]
    alive = [
        site for site in needed if not dies(without(case, site), inputs, outputs, site.wait[0])
    ]
    return len(needed), alive


def _early_posts(case: CompiledCase) -> tuple[int, list[Any]]:
    """A post made early matters when a wait that nothing implies is for exactly this post."""
    inputs = inputs_of(case)
    outputs = right(case, inputs)
    awaited = {
        waited_event(case, 0, site.wait)
        for site in sites(case)
        if not is_equivalent(case, site)
    }
    posts = [
        (rank, number)
        for rank, program in case.programs.items()
        for number in range(len(program.groups))
    ]
    needed = [(rank, number) for rank, number in posts if (rank, 0, number + 1) in awaited]
    alive = [
        post for post in needed if not dies(posted_early(case, *post), inputs, outputs, post[0])
    ]
    return len(needed), alive


@pytest.mark.thinned(1)
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("ranks", RANKS)
def test_programs_are_right_whoever_is_late(ranks: int, in_place: bool) -> None:
    for case in programs(ranks, in_place):
        inputs = inputs_of(case)
        outputs = right(case, inputs)
        late = [late for late in case.programs if dies(case, inputs, outputs, late)]
        assert late == [], case.layout.schedule


@pytest.mark.thinned(2)
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize(("find", "least"), [(_missing_waits, 50), (_early_posts, 25)])
def test_every_wait_that_is_not_implied_and_every_awaited_post_is_missed(
    find: Callable[[CompiledCase], tuple[int, list[Any]]],
    least: int,
    ranks: int,
    in_place: bool,
) -> None:
    planted = 0
    for case in programs(ranks, in_place):
        needed, alive = find(case)
        assert alive == [], case.layout.schedule
        planted += needed
    assert planted > least * ranks
