"""The schedule interpreter: ranks that do not come, too little room, programs for others, barriers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ccbench.backends.kernels.building import Build
from ccbench.backends.kernels.host_engine import HostOptions, HostWorld, KernelDeadlock, KernelFailed
from ccbench.backends.kernels.programs import compiled_program
from tests.backends.kernels.schedule_reference import chunk_bytes, schedule_of, schedule_reference
from tests.backends.kernels.worlds import Trial, check, prepare

SCHEDULE = Build("schedule.cu")
STAGING_BYTES = 1 << 16


def test_a_rank_that_does_not_come_is_an_error_that_names_it() -> None:
    world = HostWorld(4, 1, staging_bytes=STAGING_BYTES)
    made = schedule_of("all_reduce two_shot", 4, 0)
    assert made is not None
    ready = prepare(world, Trial("schedule", "all_reduce", count=100), None, 1)
    call = replace(ready.call, program=compiled_program(made))
    options = HostOptions(lanes=4, devices=4, limit_nanoseconds=1_000_000)
    with pytest.raises(
        KernelFailed, match=r"rank 0, channel 0: waited too long for rank 2 to send \(message 1"
    ):
        world.run(SCHEDULE, [call], options, instead={2: replace(call, iterations=0)})
    world.reset()
    world.run(SCHEDULE, [call], options)
    check(world, ready, schedule_reference(made, 1, chunk_bytes(made, 1, 256, STAGING_BYTES, False)))


@pytest.mark.parametrize(
    ("slot_bytes", "staging_bytes"), [(32, STAGING_BYTES), (64, 16)], ids=["slots", "work places"]
)
def test_too_little_room_is_refused(slot_bytes: int, staging_bytes: int) -> None:
    world = HostWorld(8, 1, slots=2, slot_bytes=slot_bytes, staging_bytes=staging_bytes)
    made = schedule_of("all_to_all bruck", 8, 0)
    assert made is not None
    ready = prepare(world, Trial("schedule", "all_to_all", count=257), None, 1)
    with pytest.raises(KernelFailed, match="the plan does not fit"):
        world.run(SCHEDULE, [replace(ready.call, program=compiled_program(made))], HostOptions(lanes=4))


def test_a_program_for_other_ranks_is_refused() -> None:
    world = HostWorld(3, 1, staging_bytes=STAGING_BYTES)
    made = schedule_of("all_reduce ring", 4, 0)
    assert made is not None
    ready = prepare(world, Trial("schedule", "all_reduce"), None, 1)
    with pytest.raises(KernelFailed, match="the plan does not fit"):
        world.run(SCHEDULE, [replace(ready.call, program=compiled_program(made))], HostOptions(lanes=4))


def test_a_barrier_moves_no_data_but_waits_for_everybody() -> None:
    """The last rank to come launches something that never posts: nobody gets through."""
    world = HostWorld(4, 1, staging_bytes=STAGING_BYTES)
    made = schedule_of("barrier dissemination", 4, 0)
    assert made is not None
    ready = prepare(world, Trial("schedule", "barrier", count=0), None, 1)
    call = replace(ready.call, program=compiled_program(made))
    idle = replace(call, iterations=0)
    for absent in range(4):
        with pytest.raises(KernelDeadlock) as told:
            world.run(SCHEDULE, [call], HostOptions(devices=4, lanes=4), instead={absent: idle})
        waiting = {f"rank {rank}" for rank in range(4) if rank != absent}
        assert all(one in str(told.value) for one in waiting), told.value
        world.reset()
    world.run(SCHEDULE, [call] * 3, HostOptions(devices=4, lanes=4, seed=3))
    assert np.count_nonzero(world.area(0, "errors")) == 0
