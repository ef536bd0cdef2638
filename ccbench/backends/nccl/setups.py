"""Communicators that NCCL makes or splits as what a case measures, by the host's clock.

Each is given back before the next one is made, and unique ids are told before the clock starts, so that both
are out of the time.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext

from ccbench.backends.cuda.context import MAIN_STREAM
from ccbench.backends.endpoint import merged_mismatch
from ccbench.backends.nccl.collectives import CollectivePart
from ccbench.backends.nccl.communicators import Communicators
from ccbench.backends.nccl.library import Communicator, Library
from ccbench.verification import Mismatch


class Setups:
    """Communicators of the ranks of ``parts`` that this process drives, the last ones kept. Collective."""

    def __init__(self, nccl: Library, communicators: Communicators) -> None:
        self._nccl = nccl
        self._communicators = communicators
        self._made: dict[int, Communicator] = {}

    def launch(self, parts: Sequence[CollectivePart], times: int) -> float:
        """Make new communicators for ``parts`` so often; return the seconds that took."""
        seconds = 0.0
        for _ in range(times):
            self.give_back()
            if parts[0].case.collective == "comm_init":
                ids = {
                    part.members: self._communicators.unique_id(part.members) for part in parts
                }
                began = time.perf_counter()
                with self._nccl.group() if len(ids) > 1 else nullcontext():
                    for members, unique_id in ids.items():
                        self._made |= self._communicators.join(members, unique_id)
            else:
                whole, places = (
                    self._communicators.of(MAIN_STREAM, parts[0].groups),
                    places_of(parts),
                )
                splits = [
                    (rank, communicator, places[rank][0])
                    for rank, communicator in whole.items()
                    if rank in places
                ]
                began = time.perf_counter()
                with self._nccl.group() if len(splits) > 1 else nullcontext():
                    halves = [
                        (rank, communicator.split(place % 2, place))
                        for rank, communicator, place in splits
                    ]
                self._made = {rank: half for rank, half in halves if half}
            seconds += time.perf_counter() - began
        return seconds

    def check(self, parts: Sequence[CollectivePart]) -> Mismatch | None:
        """Compare the ranks that each communicator made last has with those that asked for it."""
        places, splits = places_of(parts), parts[0].case.collective == "comm_split"
        mismatches = []
        for rank, made in self._made.items():
            place, ranks = places[rank]
            expected = len(range(place % 2, ranks, 2)) if splits else ranks
            if made.ranks != expected:
                words = f"{made.ranks} ranks answer", f"{expected} ranks"
                mismatches.append(Mismatch(rank, 1, 0, *words))
        return merged_mismatch(mismatches)

    def give_back(self) -> None:
        """Give up what was made."""
        while self._made:
            self._made.popitem()[1].destroy()


def places_of(parts: Sequence[CollectivePart]) -> dict[int, tuple[int, int]]:
    """Return the place of each rank in its part, and how many ranks that has."""
    return {
        rank: (place, len(part.members))
        for part in parts
        for place, rank in enumerate(part.members)
    }
