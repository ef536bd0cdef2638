"""The low latency kernels: too little room, slow ranks, many rounds."""

from __future__ import annotations

import numpy as np
import pytest

from ccbench.backends.kernels.building import Build
from ccbench.backends.kernels.host_engine import HostOptions, HostWorld, KernelFailed
from tests.backends.kernels.references import ll_reference, packets_bytes
from tests.backends.kernels.worlds import Trial, check, prepare

LL = Build("ll.cu")


def test_no_room_for_packets_is_refused() -> None:
    world = HostWorld(3, 1, packets_bytes=packets_bytes(3, 1))
    one = prepare(world, Trial("ll_all_reduce", "all_reduce"), None)
    with pytest.raises(KernelFailed, match="the plan does not fit"):
        world.run(LL, [one.call], HostOptions(lanes=4))


def test_a_broadcasting_root_cannot_run_ahead_of_slow_ranks() -> None:
    """Many launches on drifting ranks: each would overwrite boxes that a slow rank still reads."""
    world = HostWorld(4, 1, packets_bytes=packets_bytes(4, 4))
    calls = [
        prepare(world, Trial("ll_broadcast", "broadcast", count=11, root=1, seed=n), None) for n in range(12)
    ]
    for seed in range(5):
        for one in calls:
            for offset in one.call.outputs:
                world.view(offset, 44)[:] = 0
        world.run(LL, [one.call for one in calls], HostOptions(lanes=4, seed=seed, devices=4))
        for one in calls:
            check(world, one, ll_reference)


def test_the_number_of_rounds_may_pass_32_bits() -> None:
    world = HostWorld(3, 1, packets_bytes=packets_bytes(3, 4))
    for rank in range(3):
        state = world.area(rank, "state").view(np.uint64).reshape(1, 8, 3)
        state[0, 5, 0] = (1 << 32) - 3
    for _ in range(3):
        one = prepare(world, Trial("ll_all_reduce", "all_reduce", count=20), None)
        world.run(LL, [one.call], HostOptions(lanes=4, devices=3))
        check(world, one, ll_reference)
