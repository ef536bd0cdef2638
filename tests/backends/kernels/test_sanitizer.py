"""The thread sanitizer finds no race in the kernels, and does find one where there is one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ccbench.backends.kernels.building import Build
from ccbench.backends.kernels.host_engine import (
    HostCall,
    HostOptions,
    HostWorld,
    KernelCrashed,
    KernelDeadlock,
    KernelFailed,
    KernelRace,
)
from ccbench.backends.kernels.sources import kernel_folder
from tests.backends.kernels.cases import KernelCase
from tests.backends.kernels.in_a_row import run_in_a_row

RANKS = 3


def test_ring_kernels_have_no_race_on_real_threads() -> None:
    case = KernelCase("ring_all_reduce", lanes=2, drifting=False)
    run_in_a_row(case, 0, Build(case.kernel_file, sanitize=True), engine="threads")


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
    call = HostCall("barrier", "uint8", 0, [0] * RANKS, [0] * RANKS)
    with pytest.raises(KernelFailed, match=words) as ended:
        HostWorld(RANKS, 1).run(build, [call], HostOptions(lanes=1, devices=RANKS))
    assert type(ended.value) is expected


def test_a_deadlock_is_told_and_not_taken_for_a_race() -> None:
    case = KernelCase("ring_all_reduce", drifting=False)
    with pytest.raises(KernelDeadlock, match="deadlock: rank"):
        run_in_a_row(case, 1, Build(case.kernel_file, sanitize=True), resident=case.ranks - 1)
