"""The engine: deadlocks are told and not hung in, limits end waits, and what cannot be run is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ccbench.backends.kernels.building import Build
from ccbench.backends.kernels.host_engine import HostOptions, KernelFailed
from ccbench.backends.kernels.sources import channel_orders, ring_plan
from tests.backends.kernels.checked import CheckedWorld, sanitized
from tests.backends.kernels.references import ring_reference
from tests.backends.kernels.worlds import Prepared, Trial, check, prepare

RING = Build("ring.cu")
RANKS, CHANNELS = 4, 2
ORDERS = channel_orders(RANKS, CHANNELS)


def world_and_trial() -> tuple[CheckedWorld, Prepared]:
    world = CheckedWorld(RANKS, CHANNELS, slot_bytes=64)
    return world, prepare(
        world, Trial("ring_all_reduce", "all_reduce", count=500), ring_plan(ORDERS)
    )


def test_after_an_error_launches_end_at_once_and_a_reset_world_works_again() -> None:
    world, prepared = world_and_trial()
    limited = HostOptions(resident=RANKS - 1, limit_nanoseconds=1000)
    with pytest.raises(KernelFailed, match="waited too long"):
        world.run(RING, [prepared.call], limited)
    with pytest.raises(KernelFailed, match="waited too long"):
        world.run(RING, [prepared.call], HostOptions(resident=1))
    world.reset()
    world.run(RING, [prepared.call])
    check(world, prepared, ring_reference(ORDERS, 64))


def test_an_entry_that_is_not_in_the_file_lists_those_that_are() -> None:
    world, prepared = world_and_trial()
    with pytest.raises(
        KernelFailed, match="no kernel is called ring_all_reduce; there are: barrier"
    ):
        world.run(Build("barrier.cu"), [prepared.call])


def test_a_full_arena_says_so() -> None:
    with pytest.raises(ValueError, match="spare_bytes"):
        CheckedWorld(2, 1, spare_bytes=1000).allocate(10_000)


def test_more_channels_than_the_world_or_the_plan_has_are_refused() -> None:
    world, prepared = world_and_trial()
    for wrong in (
        replace(prepared.call, channels=3),
        replace(prepared.call, plan=ring_plan(ORDERS[:1])),
    ):
        with pytest.raises(ValueError, match=r"ring_all_reduce: \d channels"):
            world.run(RING, [wrong])


def test_a_sanitizer_that_cannot_start_is_no_race(tmp_path: Path) -> None:
    """Older sanitizers end so on kernels that randomise addresses widely, with the exit code of a race."""
    program = tmp_path / "program"
    program.write_text(
        "#!/bin/sh\necho 'FATAL: ThreadSanitizer: unexpected memory mapping 0x1-0x2' >&2\nexit 66\n"
    )
    program.chmod(0o755)
    with pytest.raises(KernelFailed, match=r"cannot start here .*mmap_rnd_bits"):
        sanitized([str(program)])
