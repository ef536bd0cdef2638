"""All communicators of the ranks that one process drives: made when a case asks for them, and kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress

from ccbench.backends.base import ControlChannel
from ccbench.backends.nccl.library import (
    NO_COLOUR,
    Communicator,
    Library,
    communicators_of,
)
from ccbench.groups import Groups

MOST_KEPT = 16
"""Groupings whose communicators are kept besides that of all ranks: more than a suite measures in turn, and
each takes memory of its devices."""


ByRank = dict[int, Communicator]
"""Communicators of this process's ranks, by their rank in the team."""


class Communicators:
    """All communicators of this process's ranks. Collective: every process asks for the same in turn.

    devices: the device of each of the team's ranks that this process drives.
    """

    def __init__(
        self, library: Library, devices: Mapping[int, int], ranks: int, exchange: ControlChannel
    ) -> None:
        self._library = library
        self._devices = dict(devices)
        self._exchange = exchange
        self._made: dict[tuple[int, Groups], ByRank] = {}
        self._all: Groups = (tuple(range(ranks)),)
        self._world = (0, self._all)

    def world(self) -> ByRank:
        """Return those of all ranks together; made the first time, and again after ``abort``."""
        if self._world not in self._made:
            self._made[self._world] = self._new(self._all[0])
        return self._made[self._world]

    def of(self, stream: int, groups: Groups) -> ByRank:
        """Return those of ``groups``, () for all ranks together; each stream has communicators of its own."""
        key = (stream, groups or self._all)
        world = self.world()  # it is one of those asked for, or what they are split from
        if key == self._world:
            return world
        if key not in self._made:
            # Give up what was used longest ago; nothing of it may run. Every process gives up the same.
            kept = [held for held in self._made if held != self._world]
            for oldest in kept[: max(0, len(kept) - MOST_KEPT + 1)]:
                for communicator in self._made.pop(oldest).values():
                    communicator.destroy()
            self._made[key] = self._split(key[1])
        self._made[key] = self._made.pop(
            key
        )  # last, so that what was used longest ago comes first
        return self._made[key]

    def _new(self, members: tuple[int, ...]) -> ByRank:
        return self.join(members, self.unique_id(members))

    def unique_id(self, members: tuple[int, ...]) -> bytes:
        """Return a unique id for ``members``, which the process of the first one makes."""
        if len(self._devices) == len(self._all[0]):
            return self._library.unique_id()
        # Where processes drive one rank each, the first member's number is its process's. All processes hear
        # of every group's id, those outside the group too.
        starts = members[0] in self._devices
        return self._exchange.broadcast(
            self._library.unique_id() if starts else None, members[0]
        )

    def join(self, members: tuple[int, ...], unique_id: bytes) -> ByRank:
        """Return a new communicator of ``members`` for those of them that this process drives."""
        own = [rank for rank in members if rank in self._devices]
        devices = {members.index(rank): self._devices[rank] for rank in own}
        made = communicators_of(self._library, len(members), unique_id, devices)
        return dict(zip(own, made, strict=True))

    def _split(self, groups: Groups) -> ByRank:
        world = self.world()
        if not self._library.has("ncclCommSplit"):
            return {
                rank: communicator
                for members in groups
                for rank, communicator in self._new(members).items()
            }
        places = {
            rank: (number, members.index(rank))
            for number, members in enumerate(groups)
            for rank in members
        }
        # Where one thread has several ranks, in one group.
        with self._library.group() if len(world) > 1 else nullcontext():
            parts = {
                rank: communicator.split(*places.get(rank, (NO_COLOUR, 0)))
                for rank, communicator in world.items()
            }
        return {rank: part for rank, part in parts.items() if part}

    def every(self) -> list[Communicator]:
        """Return all that there are."""
        return [
            communicator for by_rank in self._made.values() for communicator in by_rank.values()
        ]

    def failures(self) -> list[str]:
        """Return what NCCL says of communicators that failed, each once."""
        return list(
            dict.fromkeys(
                filter(None, (communicator.failure() for communicator in self.every()))
            )
        )

    def abort(self) -> None:
        """End everything that runs on any of them, and forget them."""
        self._end(Communicator.abort)

    def close(self) -> None:
        """Give all up after what runs has ended."""
        self._end(Communicator.destroy)

    def _end(self, how: Callable[[Communicator], None]) -> None:
        ending = self.every()
        self._made.clear()
        for communicator in reversed(ending):  # parts before what they were split from
            with suppress(Exception):  # one that does not end must not keep the others from it
                how(communicator)
