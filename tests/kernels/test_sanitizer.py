"""The thread sanitizer finds no race in the kernels, and does find one where there is one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ccbench.kernels.building import Build
from ccbench.kernels.host_engine import (
    HostCall,
    HostOptions,
    HostWorld,
    KernelCrashed,
    KernelDeadlock,
    KernelFailed,
    KernelRace,
)
from ccbench.kernels.plans import natural_orders, ring_plan
from ccbench.kernels.sources import kernel_folder
from tests.kernels.ring_reference import ring_reference
from tests.kernels.shared_buffers import reduce_then
from tests.kernels.worlds import Trial, check, prepare

RING = Build("ring.cu", sanitize=True)
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "send_recv")
RANKS, CHANNELS, SLOT_BYTES = 3, 2, 64


def run(build: Build, collective: str, options: HostOptions, in_place: bool = False) -> None:
    """Two launches in a row, and then the outputs of both."""
    world = HostWorld(RANKS, CHANNELS, slots=2, slot_bytes=SLOT_BYTES)
    orders = natural_orders(RANKS, CHANNELS)
    trial = Trial(f"ring_{collective}", collective, count=157, root=1, in_place=in_place)
    prepared = [prepare(world, trial, ring_plan(orders)) for _ in range(2)]
    world.run(build, [one.call for one in prepared], options)
    for one in prepared:
        check(world, one, ring_reference(orders, SLOT_BYTES))


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_ring_kernels_have_no_race(collective: str, seed: int) -> None:
    devices = RANKS if seed % 2 else 1
    run(RING, collective, HostOptions(lanes=4, seed=seed, devices=devices), in_place=seed == 2)


@pytest.mark.parametrize("collective", ["all_gather", "broadcast"])
def test_a_rank_that_is_ahead_does_not_race_with_what_another_still_reads(collective: str) -> None:
    reduce_then(collective, RING, HostOptions(lanes=4, seed=1, devices=4))


def test_ring_kernels_have_no_race_on_real_threads() -> None:
    run(RING, "all_reduce", HostOptions(engine="threads", lanes=2, limit_nanoseconds=60_000_000_000))


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_barrier_has_no_race(seed: int) -> None:
    call = HostCall("barrier", "uint8", 0, [0] * RANKS, [0] * RANKS, iterations=3)
    options = HostOptions(lanes=4, seed=seed, devices=RANKS)
    HostWorld(RANKS, CHANNELS).run(Build("barrier.cu", sanitize=True), [call, call], options)


@pytest.mark.parametrize(
    ("collective", "file", "right", "wrong"),
    [
        (
            "all_reduce",
            "system.cuh",
            "__atomic_load_n(address, __ATOMIC_ACQUIRE)",
            "__atomic_load_n(address, __ATOMIC_RELAXED)",
        ),
        (
            "reduce",
            "primitives.cuh",
            "    if (to.sent < slots) return true;",
            "    return true;",
        ),
    ],
    ids=["a wait that does not acquire", "no wait for credit"],
)
def test_a_planted_race_is_found(tmp_path: Path, collective: str, file: str, right: str, wrong: str) -> None:
    copy = tmp_path / "kernels"
    shutil.copytree(kernel_folder(), copy)
    text = (copy / file).read_text()
    assert text.count(right) == 1
    (copy / file).write_text(text.replace(right, wrong))
    with pytest.raises(KernelRace, match="data race"):
        run(Build("ring.cu", folder=copy, sanitize=True), collective, HostOptions(lanes=4, seed=1))


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
    with pytest.raises(KernelDeadlock, match="deadlock: rank"):
        run(RING, "all_reduce", HostOptions(lanes=4, resident=RANKS - 1))
