"""The thread sanitizer finds no race in any kernel nor in any schedule that one interprets, and planted ones.

Five seeds of every entry, with other launches in between; two of every schedule, five of six of them.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from ccbench.backends.kernels.building import Build
from ccbench.backends.kernels.host_engine import (
    HostCall,
    HostOptions,
    KernelDeadlock,
    KernelFailed,
)
from ccbench.backends.kernels.sources import kernel_folder
from tests.backends.kernels.cases import ENTRIES, SCHEDULES, KernelCase, run_case, run_in_a_row
from tests.backends.kernels.checked import CheckedWorld, KernelCrashed, KernelRace
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
@pytest.mark.parametrize("seed", [1, 2, 3, 4, 5])
def test_the_barrier_has_no_race(seed: int) -> None:
    case = KernelCase("barrier", iterations=3, drifting=seed % 2 == 1)
    run_case(case, Build(case.kernel_file, sanitize=True), seed)


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


def changed_barrier(folder: Path, body: str) -> Build:
    """The barrier kernel with another body."""
    shutil.copytree(kernel_folder(), folder)
    text = (folder / "barrier.cu").read_text()
    assert text.count("return rank_barrier(block);") == 1
    (folder / "barrier.cu").write_text(text.replace("return rank_barrier(block);", body))
    return Build("barrier.cu", folder=folder, sanitize=True)


NOWHERE = "return *(volatile bool*)(u64)(block.arguments.ranks * 8);"
UNORDERED = "*(volatile u64*)block.arguments.views[0].state = block.rank;"


@pytest.mark.parametrize(
    ("body", "expected", "words"),
    [
        (NOWHERE, KernelCrashed, "SEGV"),
        (UNORDERED + " return true;", KernelRace, "data race"),
        (UNORDERED + " (void)rank_barrier(block); " + NOWHERE, KernelRace, "data race"),
        ("__builtin_trap();", KernelCrashed, "ended by SIG|ThreadSanitizer"),
    ],
    ids=["a crash", "a race", "a race, then a crash", "a trap"],
)
def test_a_crash_is_not_taken_for_a_race(
    tmp_path: Path, body: str, expected: type[KernelFailed], words: str
) -> None:
    """The sanitizer exits alike for both."""
    build = changed_barrier(tmp_path / "kernels", body)
    call = HostCall("barrier", "uint8", 0, [0] * 3, [0] * 3)
    with pytest.raises(KernelFailed, match=words) as ended:
        CheckedWorld(3, 1).run(build, [call], HostOptions(lanes=1, devices=3))
    assert type(ended.value) is expected


def test_a_deadlock_is_told_and_not_taken_for_a_race() -> None:
    case = KernelCase("ring_all_reduce", drifting=False)
    with pytest.raises(KernelDeadlock, match="deadlock: rank"):
        run_in_a_row(case, 1, Build(case.kernel_file, sanitize=True), resident=case.ranks - 1)
