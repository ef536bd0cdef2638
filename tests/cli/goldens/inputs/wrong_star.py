"""A star: up to rank 0, down to all."""

from __future__ import annotations

from ccbench.schedules import Algorithm
from ccbench.schedules.schedule import Schedule, phase, schedule


def star(ranks: int, parameter: int) -> Schedule:
    leaves = range(1, ranks)
    up = phase(leaves, 0, 0, reduces=True, fan_in=True)
    down = phase(0, 1, 0)
    return schedule("all_reduce", "star", ranks, 1, [up, down])


ALGORITHMS = [Algorithm("all_reduce", "star", star)]
