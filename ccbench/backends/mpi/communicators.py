"""Communicators of groups: made by all ranks together at first use, kept, freed at the end."""

from __future__ import annotations

from typing import Any

Groups = tuple[tuple[int, ...], ...]

MOST_KEPT = 512
"""MPICH has room for about 2048 in each process; beyond this number the one not asked for longest goes."""


class Communicators:
    """Every rank makes and frees the same ones in the same order, those it does not belong to as well.

    Two collectives that run at the same time need one each, so a communicator has a lane besides its groups.
    """

    def __init__(self, mpi: Any, world: Any) -> None:
        """world: of the whole team; serves its plain cases, and is not freed here."""
        self._mpi, self._world = mpi, world
        self._made: dict[tuple[Groups, int], Any] = {}

    def make(self, groups: Groups, lane: int = 0) -> None:
        """See that there is one for ``groups``. Collective among all ranks."""
        if self._is_world(groups, lane):
            return
        if (groups, lane) in self._made:
            self._made[groups, lane] = self._made.pop((groups, lane))  # now the one asked for last
            return
        if len(self._made) >= MOST_KEPT:
            self._free(self._made.pop(next(iter(self._made))))
        rank = self._world.rank
        colours = [number for number, members in enumerate(groups) if rank in members]
        colour = colours[0] if colours else self._mpi.UNDEFINED
        key = groups[colour].index(rank) if colours else 0
        self._made[groups, lane] = self._world.Split(colour, key)

    def of(self, groups: Groups, lane: int = 0) -> Any:
        """This rank's communicator for ``groups``, which ``make`` has made; none where it is in no group."""
        return self._world if self._is_world(groups, lane) else self._made[groups, lane]

    def free(self) -> None:
        """Give all back. Collective among all ranks."""
        while self._made:
            _, made = self._made.popitem()
            self._free(made)

    def _free(self, made: Any) -> None:
        if made != self._mpi.COMM_NULL:
            made.Free()

    def _is_world(self, groups: Groups, lane: int) -> bool:
        return lane == 0 and groups == (tuple(range(self._world.size)),)
