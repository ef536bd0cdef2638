"""The thread sanitizer finds no race in any kernel there is, nor in any schedule that one of them interprets.

Seeds 4 and 5 of every entry; seeds 1 to 3 are run by the tests of each kernel file and by test_sanitizer.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from ccbench.algorithms import ALGORITHMS
from ccbench.kernels.building import Build
from ccbench.kernels.sources import entries
from tests.kernels.cases import KernelCase, run_case
from tests.kernels.mutation import mutants, mutated, outcome, shipped_sources

SCHEDULES = [f"{row.collective} {row.name}" for row in ALGORITHMS if row.collective != "barrier"]
COUNT = 61


@pytest.mark.parametrize("seed", [4, 5])
@pytest.mark.parametrize("entry", sorted(set(entries()) - {"schedule"}))
def test_no_kernel_has_a_race(entry: str, seed: int) -> None:
    case = KernelCase(entry, count=COUNT, in_place=seed == 5, misalignment=seed == 5, drifting=seed == 4)
    run_case(case, Build(case.kernel_file, sanitize=True), seed)


@pytest.mark.parametrize("name", SCHEDULES)
def test_no_interpreted_schedule_has_a_race(name: str) -> None:
    for seed in (4, 5):
        case = KernelCase("schedule", name, ranks=4, count=COUNT, in_place=seed == 5, drifting=seed == 4)
        run_case(case, Build(case.kernel_file, sanitize=True), seed)


def test_a_lane_that_is_late_out_of_a_barrier_does_not_hide_a_race(tmp_path: Path) -> None:
    """What the others do up to the next barrier is not ordered before what it does, whoever runs first."""
    mistakes, _ = mutants()
    (mistake,) = [one for one in mistakes if one.name == "a block's iterations run into each other"]
    case = KernelCase("ring_all_reduce", iterations=3, channels=1)
    ended = outcome(mutated(shipped_sources(), mistake), [case], "sanitizer", tmp_path)
    assert ended.how == "race"
