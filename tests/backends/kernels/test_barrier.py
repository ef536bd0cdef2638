"""The barrier kernel: it ends for everyone, again and again, and for nobody when one rank is missing."""

from __future__ import annotations

import pytest

from ccbench.backends.kernels.building import Build
from ccbench.backends.kernels.host_engine import HostCall, HostOptions, HostWorld, KernelDeadlock

BARRIER = Build("barrier.cu")


def call(ranks: int, iterations: int = 1) -> HostCall:
    nothing = [0] * ranks
    return HostCall("barrier", "uint8", 0, nothing, nothing, iterations=iterations)


@pytest.mark.parametrize("lanes", [1, 4, 32])
@pytest.mark.parametrize("ranks", [1, 2, 5, 8])
def test_it_ends_for_everyone_again_and_again(ranks: int, lanes: int) -> None:
    world = HostWorld(ranks, 3)
    for seed in range(3):
        options = HostOptions(lanes=lanes, seed=seed, devices=ranks)
        world.run(BARRIER, [call(ranks), call(ranks, iterations=5)], options)
    counted = world.area(0, "state").view("u8").reshape(3, 8, ranks)[:, 4, 0]
    assert counted.tolist() == [18, 18, 18]


def test_it_does_not_end_before_everyone_has_come() -> None:
    world = HostWorld(3, 1)
    with pytest.raises(KernelDeadlock, match="rank 0 block 0 waits at a barrier for rank 2"):
        world.run(BARRIER, [call(3)], HostOptions(resident=2))
