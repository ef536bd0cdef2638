"""The thread sanitizer finds no race in any kernel nor in any schedule that one interprets, and planted ones.

Five seeds of every entry, with other launches in between; two of every schedule, five of six of them.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ccbench.backends.kernels.building import Build
from tests.backends.kernels.cases import ENTRIES, SCHEDULES, KernelCase, run_in_a_row
from tests.backends.kernels.mutation import mutants, mutated, outcome, shipped_sources

OFTENER = (
    "all_reduce ring",
    "all_reduce one_shot",
    "all_reduce double_binary_tree",
    "all_reduce halving_doubling",
    "all_to_all bruck",
    "broadcast scatter_all_gather",
)
"""Few steps and many, wide folds, what is handed on without being stored, work places."""


def run_sanitized(case: KernelCase, seed: int) -> None:
    """In place or out of place, aligned or not, drifting or not."""
    case = replace(
        case, in_place=seed in (2, 5), misalignment=seed == 5, drifting=seed % 2 == 1
    )
    assert run_in_a_row(case, seed, Build(case.kernel_file, sanitize=True))


@pytest.mark.thinned(4)
@pytest.mark.parametrize("seed", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("entry", ENTRIES)
def test_no_kernel_has_a_race(entry: str, seed: int) -> None:
    run_sanitized(KernelCase(entry, count=61), seed)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", SCHEDULES)
def test_no_interpreted_schedule_has_a_race(name: str) -> None:
    for seed in (1, 2, 3, 4, 5) if name in OFTENER else (4, 5):
        run_sanitized(KernelCase("schedule", name, ranks=3 if seed == 2 else 4, count=61), seed)


@pytest.mark.exhaustive
def test_a_lane_that_is_late_out_of_a_barrier_does_not_hide_a_race(tmp_path: Path) -> None:
    """What the others do up to the next barrier is not ordered before what it does, whoever runs first."""
    mistakes, _ = mutants()
    (mistake,) = [
        mistake
        for mistake in mistakes
        if mistake.name == "a block's iterations run into each other"
    ]
    case = KernelCase("ring_all_reduce", iterations=3, channels=1)
    ended = outcome(mutated(shipped_sources(), mistake), [case], "sanitizer", tmp_path)
    assert ended.how == "race"
