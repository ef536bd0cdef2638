"""Several groups of ranks at once: every group a communicator of its own in one world."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, cast

from ccbench.backends.kernels.building import Build
from ccbench.backends.kernels.host_engine import HostCall, HostOptions, HostWorld
from ccbench.collectives import collective as collective_row
from tests.backends.kernels.cases import KernelCase, launch_of, world_for
from tests.backends.kernels.in_a_row import REAL_LIMIT_NANOSECONDS, trials_of
from tests.backends.kernels.worlds import Prepared, Reference, check

Members = Sequence[int]
TWO_GROUPS = ((0, 2, 4), (5, 1, 3))


class Group:
    """A world as one group sees it: its members count from 0; everything else is the world's."""

    def __init__(self, world: HostWorld, members: Members) -> None:
        self.world = world
        self.ranks = len(members)
        self.communicator = world.communicator(members)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.world, name)


def grouped_world(case: KernelCase, groups: Sequence[Members]) -> tuple[HostWorld, list[Group]]:
    """Room for all ranks of all groups; ``case.ranks`` is of one group."""
    world = world_for(replace(case, ranks=sum(map(len, groups))))
    return world, [Group(world, members) for members in groups]


def run_in_groups(
    case: KernelCase,
    seed: int,
    build: Build | None = None,
    groups: Sequence[Members] = TWO_GROUPS,
    engine: Literal["fibers", "threads"] = "fibers",
) -> None:
    """Four launches of every group, each group's in a row, the groups at once, on different data; then all
    outputs. AssertionError where one is wrong, else what the engine raises.
    """
    world, each = grouped_world(case, groups)
    launched: list[list[tuple[Prepared, Reference]]] = []
    for number, group in enumerate(each):
        seen = cast(HostWorld, group)
        trials = trials_of(case, seed + 100 * number)
        # Groups are at different launches at any time.
        launched.append([launch_of(case, seen, trial) for trial in trials[number:] + trials[:number]])
    calls: list[HostCall] = [
        replace(one.call, communicator=group.communicator)
        for group, mine in zip(each, launched, strict=True)
        for one, _ in mine
    ]
    options = HostOptions(
        engine,
        case.lanes,
        seed,
        devices=case.ranks if case.drifting else 1,
        limit_nanoseconds=REAL_LIMIT_NANOSECONDS if engine == "threads" else 0,
    )
    world.run(build or Build(case.kernel_file), calls, options)
    for group, mine in zip(each, launched, strict=True):
        for one, reference in mine:
            if collective_row(one.trial.collective).moves_data:
                check(cast(HostWorld, group), one, reference)
