"""The engine: deadlocks are told and not hung in, limits end waits, and what cannot be built is said."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from ccbench.errors import MissingDependency, UsageError
from ccbench.kernels import building
from ccbench.kernels.building import Build, built
from ccbench.kernels.host_engine import HostOptions, HostWorld, KernelDeadlock, KernelFailed
from ccbench.kernels.plans import natural_orders, ring_plan
from ccbench.kernels.sources import kernel_folder
from tests.kernels.ring_reference import ring_reference
from tests.kernels.worlds import Prepared, Trial, check, prepare

RING = Build("ring.cu")
RANKS, CHANNELS = 4, 2
ORDERS = natural_orders(RANKS, CHANNELS)


def world_and_trial(entry: str = "ring_all_reduce") -> tuple[HostWorld, Prepared]:
    world = HostWorld(RANKS, CHANNELS, slot_bytes=64)
    trial = Trial(entry, entry.removeprefix("ring_"), count=500)
    return world, prepare(world, trial, ring_plan(ORDERS))


@pytest.mark.parametrize(
    "entry", ["ring_all_reduce", "ring_all_gather", "ring_reduce_scatter", "ring_send_recv"]
)
def test_fewer_resident_blocks_than_a_channel_needs_are_reported_as_a_deadlock(entry: str) -> None:
    world, one = world_and_trial(entry)
    with pytest.raises(
        KernelDeadlock, match=r"rank \d block 0 waits for .* rank \d .*never started.* 3 may run"
    ):
        world.run(RING, [one.call], HostOptions(resident=RANKS - 1))


def test_one_channel_after_the_other_is_enough() -> None:
    """Blocks are ordered channel by channel: with room for one channel, all of them run in turn."""
    world, one = world_and_trial()
    world.run(RING, [one.call], HostOptions(resident=RANKS))
    check(world, one, ring_reference(ORDERS, 64))


@pytest.mark.parametrize("engine", ["fibers", "threads"])
def test_a_wait_beyond_its_limit_names_rank_and_peer(engine: str) -> None:
    """The others wait for rank 2, which says that there is nothing to do."""
    world, one = world_and_trial()
    idle = replace(one.call, count=0)
    options = HostOptions(engine=engine, lanes=2, limit_nanoseconds=20_000_000, devices=RANKS)  # type: ignore[arg-type]
    with pytest.raises(
        KernelFailed, match=r"rank 3, channel 0: waited too long for rank 2 to send \(message 1"
    ):
        world.run(RING, [one.call], options, instead={2: idle})
    world.reset()
    with pytest.raises(KernelDeadlock, match=r"rank 3 block 0 waits for data from rank 2 \(step 1, seen 0\)"):
        world.run(RING, [one.call], HostOptions(devices=RANKS), instead={2: idle})


def test_after_an_error_launches_end_at_once_and_a_reset_world_works_again() -> None:
    world, one = world_and_trial()
    limited = HostOptions(resident=RANKS - 1, limit_nanoseconds=1000)
    with pytest.raises(KernelFailed, match="waited too long"):
        world.run(RING, [one.call], limited)
    with pytest.raises(KernelFailed, match="waited too long"):
        world.run(RING, [one.call], HostOptions(resident=1))
    world.reset()
    world.run(RING, [one.call])
    check(world, one, ring_reference(ORDERS, 64))


def test_an_entry_that_is_not_in_the_file_lists_those_that_are() -> None:
    world, one = world_and_trial()
    with pytest.raises(KernelFailed, match="no kernel is called ring_all_reduce; there are: barrier"):
        world.run(Build("barrier.cu"), [one.call])


def test_a_file_that_is_not_there_lists_those_that_are() -> None:
    with pytest.raises(UsageError, match=r"rings\.cu: no such kernel file; one of .*ring\.cu"):
        built(Build("rings.cu"))


def test_without_a_compiler_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    building.compiler.cache_clear()
    try:
        with pytest.raises(MissingDependency, match=r"'no-such-compiler' was found; install .*g\+\+"):
            built(RING)
    finally:
        building.compiler.cache_clear()


def test_a_changed_source_is_built_anew_and_a_wrong_one_tells_the_first_error(tmp_path: Path) -> None:
    copy = tmp_path / "kernels"
    shutil.copytree(kernel_folder(), copy)
    same = built(Build("barrier.cu", folder=copy))
    assert same == built(Build("barrier.cu"))
    source = copy / "barrier.cu"
    source.write_text(source.read_text().replace("return rank_barrier(block);", "return rank_barier(block);"))
    with pytest.raises(UsageError, match=r"barrier\.cu: g\+\+ failed: .*rank_barier"):
        built(Build("barrier.cu", folder=copy))


@pytest.mark.parametrize(("slots", "slot_bytes"), [(1, 64), (3, 64), (0, 64), (4, 24), (4, 0)])
def test_slots_that_kernels_cannot_address_are_refused(slots: int, slot_bytes: int) -> None:
    with pytest.raises(ValueError, match="power of two"):
        HostWorld(2, 1, slots=slots, slot_bytes=slot_bytes)


def test_a_full_arena_says_so() -> None:
    world = HostWorld(2, 1, spare_bytes=1000)
    with pytest.raises(ValueError, match="spare_bytes"):
        world.allocate(10_000)


def test_a_block_without_lanes_is_refused() -> None:
    world, one = world_and_trial()
    with pytest.raises(KernelFailed, match="lanes must be between 1 and 1024"):
        world.run(RING, [one.call], HostOptions(lanes=0))


def test_more_channels_than_the_world_or_the_plan_has_are_refused() -> None:
    world, one = world_and_trial()
    for wrong in (replace(one.call, channels=3), replace(one.call, plan=ring_plan(ORDERS[:1]))):
        with pytest.raises(ValueError, match=r"ring_all_reduce: \d channels"):
            world.run(RING, [wrong])
