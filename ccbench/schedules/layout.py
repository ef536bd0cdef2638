"""Where every slot of a case begins and ends in its rank's memory.

Out of place a rank has an input and an output buffer; in place both are one buffer, in which piece i of
the collective's unit lies at the same place whether it is read or written (NCCL's in-place rule: a
block that a rank owns lies at its own position in the full buffer). Blocks of different sizes lie one behind
the other, in rank order; they cannot be in place, since what a rank gets does not fit where it sends from.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from itertools import accumulate

from ccbench.collectives import collective
from ccbench.errors import ScheduleError
from ccbench.schedules.schedule import Schedule

Amounts = tuple[tuple[int, ...], ...]
"""Elements that each source sends to each target, [source][target]."""


class Space(IntEnum):
    """Which of a rank's three buffers."""

    INPUT = 0
    OUTPUT = 1
    WORK = 2


@dataclass(frozen=True)
class Place:
    """``elements`` elements of a buffer of one rank, from ``offset`` (in elements) on."""

    rank: int
    space: Space
    offset: int
    elements: int

    def overlaps(self, other: Place) -> bool:
        """True when the two share an element."""
        return (
            self.rank == other.rank
            and self.space == other.space
            and self.offset < other.offset + other.elements
            and other.offset < self.offset + self.elements
        )

    def followed_by(self, other: Place) -> bool:
        """True when ``other`` begins where this ends."""
        return (
            self.rank == other.rank
            and self.space == other.space
            and self.offset + self.elements == other.offset
        )

    def joined(self, other: Place) -> Place:
        """This place and the one that follows it, as one."""
        return Place(self.rank, self.space, self.offset, self.elements + other.elements)


@dataclass(frozen=True)
class Layout:
    """Places of a schedule's slots for one count.

    count: as Case.count. in_place: input and output are the same buffer (kept in Space.OUTPUT).
    sent: of an all_to_all_v, how large each block is; () where every block has ``count`` elements.
    ScheduleError where amounts are not for these ranks or this collective, or in place.
    """

    schedule: Schedule
    count: int
    in_place: bool
    sent: Amounts = ()

    def __post_init__(self) -> None:
        ranks, name = self.schedule.ranks, self.schedule.collective
        if not self.sent:
            return
        if self.in_place:
            raise ScheduleError(f"{name}: blocks of different sizes cannot be in place; take two buffers")
        if len(self.sent) != ranks or any(len(row) != ranks for row in self.sent):
            raise ScheduleError(f"{name}: amounts of {len(self.sent)} sources, expected {ranks} by {ranks}")
        if self.schedule.slots != 2 * ranks or not collective(name).blocked:
            raise ScheduleError(f"{name} {self.schedule.algorithm}: its blocks cannot differ in size")

    def slot_elements(self, rank: int, slot: int) -> int:
        """Elements of a rank's slot: a whole block, or its share of a buffer cut as evenly as possible."""
        if self.sent:
            region, peer = divmod(slot, self.schedule.ranks)
            return self.sent[peer][rank] if region else self.sent[rank][peer]
        row = collective(self.schedule.collective)
        if not row.moves_data:
            return 0
        if row.blocked:
            return self.count
        return self._edge(slot % self.schedule.pieces + 1) - self._edge(slot % self.schedule.pieces)

    def _edge(self, piece: int) -> int:
        return self.count * piece // self.schedule.pieces

    def _offset(self, piece: int) -> int:
        row = collective(self.schedule.collective)
        if not row.moves_data:
            return 0
        return piece * self.count if row.blocked else self._edge(piece)

    @cached_property
    def _uneven_offsets(self) -> dict[Space, list[list[int]]]:
        """Where each block begins in every rank's input and output: [rank][peer]."""
        columns = list(zip(*self.sent, strict=True))
        return {
            space: [[0, *accumulate(blocks)] for blocks in rows]
            for space, rows in ((Space.INPUT, self.sent), (Space.OUTPUT, columns))
        }

    def _place(self, rank: int, slot: int, span: range, space: Space) -> Place | None:
        if slot not in span:
            return None
        elements = self.slot_elements(rank, slot)
        if self.sent:
            return Place(rank, space, self._uneven_offsets[space][rank][slot - span.start], elements)
        if self.in_place:
            return Place(rank, Space.OUTPUT, self._offset(slot % self.schedule.pieces), elements)
        return Place(rank, space, self._offset(slot - span.start), elements)

    @property
    def _root(self) -> int:
        return max(self.schedule.root, 0)  # -1: the collective has none

    def input_place(self, rank: int, slot: int) -> Place | None:
        """Where the slot is read from at the start, None where the rank does not bring it."""
        return self._place(rank, slot, self._span(rank, Space.INPUT), Space.INPUT)

    def output_place(self, rank: int, slot: int) -> Place | None:
        """Where the slot must be at the end, None where it is no part of the rank's output."""
        return self._place(rank, slot, self._span(rank, Space.OUTPUT), Space.OUTPUT)

    def _span(self, rank: int, space: Space) -> range:
        row = collective(self.schedule.collective)
        of = row.inputs if space is Space.INPUT else row.outputs
        return of(rank, self.schedule.ranks, self.schedule.pieces, self._root)

    def input_places(self, rank: int) -> list[Place]:
        """The rank's input in buffer order."""
        places = [self.input_place(rank, slot) for slot in self._span(rank, Space.INPUT)]
        return [place for place in places if place is not None]

    def output_places(self, rank: int) -> list[Place]:
        """The rank's output in buffer order."""
        places = [self.output_place(rank, slot) for slot in self._span(rank, Space.OUTPUT)]
        return [place for place in places if place is not None]

    def buffer_elements(self, rank: int, space: Space) -> int:
        """Elements of the rank's input or output buffer (in place: only the output buffer exists)."""
        if self.in_place:
            if space is Space.INPUT:
                return 0
            places = self.input_places(rank) + self.output_places(rank)
        else:
            places = self.input_places(rank) if space is Space.INPUT else self.output_places(rank)
        return max((place.offset + place.elements for place in places), default=0)
