"""Communicators are made and freed in the same order on all ranks, and each holds the ranks of one group."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.backends.mpi.endpoint import GroupCommunicators

MPI = SimpleNamespace(UNDEFINED=-1, COMM_NULL=None)
EVERYONE = ((0, 1, 2, 3),)
KINDS = (EVERYONE, ((0, 1), (2, 3)), ((0, 2), (1, 3)), ((2, 3),), ((3, 1, 0, 2),))


@dataclass
class Made:
    """What this rank's call of MPI_Comm_split gave."""

    colour: int
    key: int
    log: list[object]

    def Free(self) -> None:  # noqa: N802 - as mpi4py spells it
        self.log.append("free")


@dataclass
class World:
    """The team's communicator, as one rank sees it."""

    rank: int
    size: int = 4
    log: list[object] = field(default_factory=list)

    def Split(self, colour: int, key: int) -> Made | None:  # noqa: N802 - as mpi4py spells it
        self.log.append("split")
        return None if colour == MPI.UNDEFINED else Made(colour, key, self.log)


requested = st.lists(st.sampled_from(KINDS), max_size=12)


@given(requested)
def test_every_rank_splits_as_often_and_each_group_has_its_own(
    requests: list[tuple[tuple[int, ...], ...]],
) -> None:
    splits = set()
    for rank in range(4):
        world = World(rank)
        kept = GroupCommunicators(MPI, world)
        for groups in requests:
            kept.make(groups)
            mine = kept.of(groups)
            number = next(
                (number for number, group in enumerate(groups) if rank in group), None
            )
            if groups == EVERYONE:
                assert mine is world
            elif number is None:
                assert mine is None
            else:
                assert (mine.colour, groups[number][mine.key]) == (number, rank)
        made = {id(kept.of(request)) for request in requests} - {id(world), id(None)}
        splits.add(world.log.count("split"))
        kept.free()
        assert world.log.count("free") == len(made)
    assert len(splits) == 1
    assert splits == {len(set(requests) - {EVERYONE})}


def test_the_one_not_asked_for_longest_goes_when_there_are_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ccbench.backends.mpi.endpoint.MOST_KEPT", 2)
    world = World(0)
    kept = GroupCommunicators(MPI, world)
    kept.make(KINDS[1])
    kept.make(KINDS[2])
    kept.make(KINDS[1])
    kept.make(KINDS[4])
    assert world.log == ["split", "split", "free", "split"]
    assert kept.of(KINDS[1]).colour == kept.of(KINDS[4]).colour == 0
