"""Ranks' memory in one arena, for kernels on a CPU: buffers, and what communicators keep between launches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ccbench.backends.kernels import abi
from ccbench.backends.kernels.layout import ZEROED, WorkAreas

Bytes = NDArray[np.uint8]

SPARE_BYTES = 64 << 20
"""Room for buffers in an arena unless more is asked for; what is not used costs no memory."""

LINE_BYTES = 128


@dataclass(frozen=True, eq=False)
class HostCommunicator:
    """What some ranks keep between launches: flags, counters, slots, scratch; no other launch touches it.

    members: their numbers in the world; among each other they count from 0. work: its sizes. areas: of each
    member, by the names of ``abi.RANK_VIEW``, where each lies.
    """

    members: tuple[int, ...]
    work: WorkAreas
    areas: tuple[dict[str, int], ...]

    @property
    def ranks(self) -> int:
        """How many communicate."""
        return len(self.members)

    @property
    def begin(self) -> int:
        """Where the first area lies."""
        return min(self.areas[0].values())


class HostMemory:
    """An arena, with the communicator of all its ranks; more can be had of some of them."""

    def __init__(
        self,
        ranks: int,
        channels: int,
        *,
        slots: int = 4,
        slot_bytes: int = 256,
        packets_bytes: int = 0,
        staging_bytes: int = 0,
        spare_bytes: int = SPARE_BYTES,
    ) -> None:
        """slots, slot_bytes: of every connection. packets_bytes, staging_bytes: per rank. spare_bytes: for
        buffers, further communicators, plans and tables of addresses."""
        if slot_bytes % abi.VECTOR_BYTES or slot_bytes <= 0 or slots < 2 or slots & (slots - 1):
            raise ValueError(
                f"slots={slots}, slot_bytes={slot_bytes}: write a power of two, 2 or more, and n * 16"
            )
        self.ranks = ranks
        self.channels = channels
        self.work = WorkAreas(ranks, channels, slots, slot_bytes, packets_bytes, staging_bytes)
        own_bytes = LINE_BYTES + communicator_bytes(self.work)
        whole = np.zeros(own_bytes + spare_bytes + 4096, np.uint8)
        start = -whole.ctypes.data % 4096
        self.arena: Bytes = whole[start : start + own_bytes + spare_bytes]
        self.used = LINE_BYTES  # so that no offset is 0, which means none
        self.everybody = self._communicator(tuple(range(ranks)))
        self._parts: list[HostCommunicator] = []

    def allocate(self, size_bytes: int, misalignment: int = 0) -> int:
        """Offset of new memory, ``misalignment`` bytes behind a multiple of 128, never 0."""
        begin = -(-self.used // LINE_BYTES) * LINE_BYTES + misalignment
        if begin + size_bytes > len(self.arena):
            raise ValueError(f"the arena of {len(self.arena)} bytes is full; ask for more spare_bytes")
        self.used = begin + size_bytes
        return begin

    def free_after(self, offset: int) -> None:
        """Forget every allocation from ``offset`` on, communicators too."""
        self.used = offset
        self._parts = [one for one in self._parts if one.begin < offset]

    def communicator(self, members: Sequence[int]) -> HostCommunicator:
        """A communicator of these ranks alone, in the order in which they count."""
        made = self._communicator(tuple(members))
        self._zero(made)  # the memory may have been another's
        self._parts.append(made)
        return made

    def _communicator(self, members: tuple[int, ...]) -> HostCommunicator:
        work = replace(self.work, ranks=len(members))
        sizes = work.sizes()
        areas = tuple({name: self.allocate(size) for name, size in sizes.items()} for _ in members)
        return HostCommunicator(members, work, areas)

    def view(self, offset: int, size_bytes: int) -> Bytes:
        """The memory itself."""
        return self.arena[offset : offset + size_bytes]

    def area(self, rank: int, name: str, of: HostCommunicator | None = None) -> Bytes:
        """A rank's flags, state, errors, packets, fifo or staging; ``rank`` as ``of`` counts (all ranks)."""
        communicator = of or self.everybody
        return self.view(communicator.areas[rank][name], communicator.work.sizes()[name])

    def errors(self) -> list[abi.GivenUp]:
        """Every wait that was given up since the last reset; ranks by their numbers in the world."""
        return [
            error.among(one.members)
            for one in (self.everybody, *self._parts)
            for rank in range(one.ranks)
            for error in abi.given_up(self.area(rank, "errors", one).view(abi.ERROR_WORD))
        ]

    def reset(self) -> None:
        """What a host must do after an error: zero all that outlives a launch."""
        for one in (self.everybody, *self._parts):
            self._zero(one)

    def _zero(self, communicator: HostCommunicator) -> None:
        for rank in range(communicator.ranks):
            for name in ZEROED:
                self.area(rank, name, communicator)[:] = 0


def communicator_bytes(work: WorkAreas) -> int:
    """Room that a communicator with such areas takes."""
    return work.ranks * sum(size + 2 * LINE_BYTES for size in work.sizes().values())
