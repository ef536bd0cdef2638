"""The communicators of the ranks that one process drives: of all ranks, of groups, and a second set beside.

All are blocking. NCCL starts a thread for every launch on a communicator that does not block (src/group.cc),
which would be timed; so errors are asked for while streams are waited for, and a watchman aborts what blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress

from ccbench.backends.base import ControlChannel
from ccbench.backends.nccl.calls import NO_COLOUR
from ccbench.backends.nccl.communicator import Communicator
from ccbench.backends.nccl.library import Nccl
from ccbench.backends.nccl.parts import OWN_LANE, Part
from ccbench.backends.nccl.types import State
from ccbench.groups import Groups

MOST_KEPT = 16
"""Groupings whose communicators are kept besides that of all ranks: more than a suite measures in turn, and
each takes memory of its devices."""

ByRank = dict[int, Communicator]
"""Communicators of this process's ranks, by their rank in the team."""


class Communicators:
    """See the module. Collective as a whole: every process of the team asks for the same in the same order.

    devices: the device of each of the team's ranks that this process drives.
    """

    def __init__(self, nccl: Nccl, devices: Mapping[int, int], ranks: int, exchange: ControlChannel) -> None:
        self.nccl = nccl
        self._devices = dict(devices)
        self._ranks = ranks
        self._exchange = exchange
        self._made: dict[tuple[int, Groups], ByRank] = {}
        self._all: Groups = (tuple(range(ranks)),)

    def world(self) -> ByRank:
        """Of all ranks together; made the first time, and again after ``drop``."""
        key = (OWN_LANE, self._all)
        if key not in self._made:
            self._made[key] = self._new(self._all[0])
        return self._made[key]

    def of(self, part: Part) -> ByRank:
        """Those that ``part`` runs on; in a lane beside, communicators of their own."""
        key = (part.lane, part.together or self._all)
        world = self.world()  # it is one of those asked for, or what they are split from
        if key == (OWN_LANE, self._all):
            return world
        if key in self._made:
            found = self._made.pop(key)
        else:
            self._make_room()
            found = self._split(key[1])
        self._made[key] = found  # last, so that what was used longest ago comes first
        return found

    def _make_room(self) -> None:
        """Give up what was used longest ago; nothing of it may run. Every process gives up the same."""
        kept = [key for key in self._made if key != (OWN_LANE, self._all)]
        for key in kept[: max(0, len(kept) - MOST_KEPT + 1)]:
            self.nccl.close(list(self._made.pop(key).values()))

    def _new(self, members: tuple[int, ...]) -> ByRank:
        """A communicator of ``members`` by a unique id, which the process of the first one makes."""
        own = [rank for rank in members if rank in self._devices]
        if len(own) == len(members):
            made = self.nccl.communicators([self._devices[rank] for rank in own])
            return dict(zip(own, made, strict=True))
        # Where processes drive one rank each, the first member's number is its process's.
        starts = members[0] in self._devices
        unique_id = self._exchange.broadcast(self.nccl.unique_id() if starts else None, members[0])
        return {
            rank: self.nccl.communicator(len(members), unique_id, members.index(rank), self._devices[rank])
            for rank in own
        }

    def _split(self, groups: Groups) -> ByRank:
        world = self.world()
        if not self.nccl.has("ncclCommSplit"):
            return {rank: one for members in groups for rank, one in self._new(members).items()}
        places = {
            rank: (number, members.index(rank)) for number, members in enumerate(groups) for rank in members
        }
        found: ByRank = {}
        with self.nccl.group():
            for rank, communicator in world.items():
                colour, key = places.get(rank, (NO_COLOUR, 0))
                part = communicator.split(colour, key)
                if part is not None:
                    found[rank] = part
        return found

    def every(self) -> Iterator[tuple[int, Communicator]]:
        """(rank, communicator) of all that there are."""
        for by_rank in self._made.values():
            yield from by_rank.items()

    def complaints(self) -> list[str]:
        """What NCCL says of communicators that failed, each once."""
        found = [one.poll() for _, one in self.every()]
        return list(dict.fromkeys(one.detail for one in found if one.state is State.FAILED))

    def abort(self) -> None:
        """End everything that runs on any of them, and forget them."""
        made, self._made = self._made, {}
        for by_rank in reversed(list(made.values())):
            for communicator in by_rank.values():
                with suppress(Exception):  # one that cannot be aborted must not keep the others running
                    communicator.abort()

    def close(self) -> None:
        """Give all up after what runs has ended, those of this process at once."""
        made, self._made = self._made, {}
        for by_rank in reversed(list(made.values())):  # parts before what they were split from
            with suppress(Exception):  # the process ends: whatever NCCL says now helps nobody
                self.nccl.close(list(by_rank.values()))
