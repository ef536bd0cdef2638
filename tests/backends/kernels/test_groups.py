"""Groups of ranks run at once and never touch each other: right results, no races, waits of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ccbench.backends.kernels.building import Build
from ccbench.backends.kernels.host_engine import (
    HostCall,
    HostCommunicator,
    HostOptions,
    HostWorld,
    KernelFailed,
    communicator_bytes,
)
from ccbench.backends.kernels.layout import WorkAreas
from ccbench.collectives import collective
from tests.backends.kernels.cases import (
    ENTRIES,
    REAL_LIMIT_NANOSECONDS,
    KernelCase,
    launch_of,
    trials_of,
    world_for,
)
from tests.backends.kernels.checked import CheckedWorld
from tests.backends.kernels.worlds import Prepared, Reference, check

Members = Sequence[int]
TWO_GROUPS = ((0, 2, 4), (5, 1, 3))


class Group:
    """A world as one group sees it: its members count from 0; everything else is the world's."""

    def __init__(self, world: CheckedWorld, members: Members) -> None:
        self.world = world
        self.ranks = len(members)
        self.communicator = world.communicator(members)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.world, name)


def grouped_world(
    case: KernelCase, groups: Sequence[Members]
) -> tuple[CheckedWorld, list[Group]]:
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
        own_world = cast(CheckedWorld, group)
        trials = trials_of(case, seed + 100 * number)
        # Groups are at different launches at any time.
        launched.append(
            [launch_of(case, own_world, trial) for trial in trials[number:] + trials[:number]]
        )
    calls: list[HostCall] = [
        replace(prepared.call, communicator=group.communicator)
        for group, mine in zip(each, launched, strict=True)
        for prepared, _ in mine
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
        for prepared, reference in mine:
            if collective(prepared.trial.collective).moves_data:
                check(cast(CheckedWorld, group), prepared, reference)


OF_EACH_FILE = (
    "ring_all_reduce",
    "tree_all_reduce",
    "ll_all_reduce",
    "mesh_two_shot_all_reduce",
)


@settings(max_examples=20)
@given(st.permutations(range(6)), st.sampled_from([1, 2, 3, 6]), st.integers(0, 1000))
def test_any_groups_of_any_ranks_are_right(order: list[int], size: int, seed: int) -> None:
    groups = [tuple(order[first : first + size]) for first in range(0, 6, size)]
    run_in_groups(KernelCase("ring_all_reduce", count=31, ranks=size), seed, groups=groups)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("entry", ENTRIES)
def test_two_groups_at_once_have_no_race(entry: str) -> None:
    case = KernelCase(entry, count=61)
    run_in_groups(case, 4, Build(case.kernel_file, sanitize=True))


def test_two_groups_have_no_race_on_real_threads() -> None:
    case = KernelCase("ring_all_reduce", count=61, lanes=2, drifting=False)
    run_in_groups(case, 0, Build(case.kernel_file, sanitize=True), engine="threads")


def _mixed(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """The mistake that groups guard against: these areas of every group are the first one's."""
    separate = HostWorld.communicator
    first: list[HostCommunicator] = []

    def shared(world: HostWorld, members: Any) -> HostCommunicator:
        made = separate(world, members)
        first.append(made)
        areas = tuple(
            {**own, **{name: first_areas[name] for name in names}}
            for own, first_areas in zip(made.areas, first[0].areas, strict=True)
        )
        return replace(made, areas=areas)

    monkeypatch.setattr(HostWorld, "communicator", shared)


@pytest.mark.parametrize("entry", OF_EACH_FILE)
def test_groups_that_shared_what_they_keep_would_be_found(
    entry: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = ("packets",) if entry.startswith("ll") else ("flags",)
    _mixed(monkeypatch, *kept)
    case = KernelCase(entry, count=61)

    def every_seed() -> None:
        for seed in range(1, 6):
            run_in_groups(case, seed, Build(case.kernel_file, sanitize=seed > 3))

    with pytest.raises((AssertionError, KernelFailed)):
        every_seed()


# -- memory --------------------------------------------------------------------------------------------------


@given(st.integers(1, 8), st.integers(1, 4), st.integers(0, 1000), st.integers(0, 1000))
def test_room_for_a_communicator_is_enough(
    ranks: int, channels: int, packets: int, staging: int
) -> None:
    work = WorkAreas(ranks, channels, 2, 64, packets, staging)
    world = HostWorld(
        ranks, channels, slots=2, slot_bytes=64, packets_bytes=packets, staging_bytes=staging
    )
    before = world.used
    world.communicator(range(ranks))
    assert world.used - before <= communicator_bytes(work)
    assert np.count_nonzero(world.arena) == 0
