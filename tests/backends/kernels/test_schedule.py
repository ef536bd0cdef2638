"""The schedule interpreter: too little room, programs for others, barriers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ccbench.backends.kernels.building import Build
from ccbench.backends.kernels.host_engine import HostOptions, HostWorld, KernelDeadlock, KernelFailed
from ccbench.backends.kernels.programs import compiled_program
from tests.backends.kernels.schedule_reference import schedule_of
from tests.backends.kernels.worlds import Trial, prepare

SCHEDULE = Build("schedule.cu")
STAGING_BYTES = 1 << 16


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
