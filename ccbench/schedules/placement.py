"""Places of a schedule's data in the ranks' memory: of every slot, and of every version of a slot.

Out of place a rank has an input and an output buffer; in place both are one buffer, in which piece i of
the collective's unit lies at one place whether it is read or written (NCCL's in-place rule: a block that a
rank owns lies at its own position in the full buffer). Blocks of different sizes lie one behind the other, in
rank order; they cannot be in place, since what a rank gets does not fit where it sends from.

Every write of a slot makes a new version of it that is never changed again. A schedule's steps read what was
there before the step. Naming each slot's successive contents apart turns that rule into plain data flow, from
which storage and waiting are then derived.

Every version gets a place in memory: in the output buffer where that is safe, else in work space. Safe means
that nobody but the version itself still needs what lies there. Which versions of a slot go to the output
buffer is chosen from the last one backwards, so that the last one lands there by itself wherever possible
(recursive doubling then alternates between work space and output).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from ccbench.collectives import collective
from ccbench.errors import ScheduleError
from ccbench.schedules.schedule import Schedule

Amounts = tuple[tuple[int, ...], ...]
"""Elements that each source sends to each target, [source][target]."""


class Space(IntEnum):
    """The three buffers of a rank."""

    INPUT = 0
    OUTPUT = 1
    WORK = 2


@dataclass(frozen=True)
class SlotPlace:
    """``elements`` elements of a buffer of one rank, from ``offset`` (in elements) on."""

    rank: int
    space: Space
    offset: int
    elements: int

    def overlaps(self, place: SlotPlace) -> bool:
        """True when the two share an element."""
        return (
            self.rank == place.rank
            and self.space == place.space
            and self.offset < place.offset + place.elements
            and place.offset < self.offset + self.elements
        )

    def followed_by(self, following: SlotPlace) -> bool:
        """True when ``following`` begins where this ends."""
        return (
            self.rank == following.rank
            and self.space == following.space
            and self.offset + self.elements == following.offset
        )

    def joined(self, following: SlotPlace) -> SlotPlace:
        """Return this place and the one that follows it, as one."""
        return SlotPlace(self.rank, self.space, self.offset, self.elements + following.elements)


@dataclass(frozen=True)
class SlotLayout:
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
            raise ScheduleError(
                f"{name}: blocks of different sizes cannot be in place; take two buffers"
            )
        if len(self.sent) != ranks or any(len(row) != ranks for row in self.sent):
            raise ScheduleError(
                f"{name}: amounts of {len(self.sent)} sources, expected {ranks} by {ranks}"
            )
        if self.schedule.slots != 2 * ranks or not collective(name).blocked:
            raise ScheduleError(
                f"{name} {self.schedule.algorithm}: its blocks cannot differ in size"
            )

    def slot_elements(self, rank: int, slot: int) -> int:
        """Return a slot's elements: a whole block, or its share of a buffer cut as evenly as possible."""
        if self.sent:
            region, peer = divmod(slot, self.schedule.ranks)
            return self.sent[peer][rank] if region else self.sent[rank][peer]
        row = collective(self.schedule.collective)
        if not row.moves_data:
            return 0
        if row.blocked:
            return self.count
        pieces = self.schedule.pieces
        piece = slot % pieces
        return self.count * (piece + 1) // pieces - self.count * piece // pieces

    def places(self, rank: int, space: Space) -> dict[int, SlotPlace]:
        """Return the slots of a rank's input or output with their places, in buffer order."""
        schedule, row = self.schedule, collective(self.schedule.collective)
        span = row.inputs if space is Space.INPUT else row.outputs
        root = max(schedule.root, 0)  # -1: the collective has none
        places, end = {}, 0
        for slot in span(rank, schedule.ranks, schedule.pieces, root):
            elements, offset = self.slot_elements(rank, slot), end
            if self.in_place:
                piece = slot % schedule.pieces
                offset = (
                    piece * elements if row.blocked else self.count * piece // schedule.pieces
                )
            places[slot] = SlotPlace(
                rank, Space.OUTPUT if self.in_place else space, offset, elements
            )
            end += elements
        return places

    def input_places(self, rank: int) -> list[SlotPlace]:
        """Return the rank's input in buffer order."""
        return list(self.places(rank, Space.INPUT).values())

    def output_places(self, rank: int) -> list[SlotPlace]:
        """Return the rank's output in buffer order."""
        return list(self.places(rank, Space.OUTPUT).values())

    def buffer_elements(self, rank: int, space: Space) -> int:
        """Return the elements of the rank's input or output buffer (in place: only the output exists)."""
        if self.in_place:
            if space is Space.INPUT:
                return 0
            places = self.input_places(rank) + self.output_places(rank)
        else:
            places = (
                self.input_places(rank) if space is Space.INPUT else self.output_places(rank)
            )
        return max((place.offset + place.elements for place in places), default=0)


BEFORE_FIRST_STEP = -1
"""The step of a value that a rank brings in its input buffer."""

Key = tuple[int, int]
"""(rank, slot)"""


@dataclass(frozen=True)
class Read:
    """``reader`` (a value's number) is computed from the read value, by ``executor``, in ``step``."""

    step: int
    executor: int
    reader: int


@dataclass(eq=False)
class Value:
    """One version of a slot. ``operands`` are value numbers; a reduction's first one is the old version."""

    number: int
    key: Key
    elements: int
    step: int
    executor: int
    operands: tuple[int, ...] = ()
    reduces: bool = False
    reads: list[Read] = field(default_factory=list)
    is_output: bool = False
    place: SlotPlace | None = None

    def last_read_step(self, but_by: int) -> int:
        """Return the last step in which anything but value ``but_by`` reads this one."""
        return max(
            (read.step for read in self.reads if read.reader != but_by),
            default=BEFORE_FIRST_STEP,
        )


@dataclass
class Versions:
    """All values of a schedule, in order of their steps, and each slot's chain of them."""

    values: list[Value]
    chains: dict[Key, list[Value]]
    last_step: int

    def add(self, key: Key, elements: int, step: int, executor: int) -> Value:
        """Return a new newest version of ``key``."""
        value = Value(len(self.values), key, elements, step, executor)
        self.values.append(value)
        self.chains.setdefault(key, []).append(value)
        return value

    def read(self, value: Value, operands: tuple[int, ...]) -> None:
        """Note that ``value`` is computed from ``operands``."""
        value.operands = operands
        for number in operands:
            self.values[number].reads.append(Read(value.step, value.executor, value.number))


def versions_of(layout: SlotLayout) -> Versions:
    """Follow the schedule from the ranks' inputs on. The schedule must have been proven."""
    schedule = layout.schedule
    versions = Versions([], {}, BEFORE_FIRST_STEP)
    for rank in range(schedule.ranks):
        for slot, place in layout.places(rank, Space.INPUT).items():
            value = versions.add((rank, slot), place.elements, BEFORE_FIRST_STEP, rank)
            value.place = place
    for step in schedule.expanded():
        phase = step.phase
        written: dict[Key, tuple[int, list[int]]] = {}
        flows = (slot.tolist() for slot in layout.schedule.single_slots(step))
        for source, source_slot, target, target_slot in zip(*flows, strict=True):
            executor = source if phase.executed_by_source else target
            operand = versions.chains[(source, source_slot)][-1].number
            written.setdefault((target, target_slot), (executor, []))[1].append(operand)
        # Operands are noted once all values of the step are made: they are those of before the step.
        news: list[tuple[Value, tuple[int, ...]]] = []
        old = {key: versions.chains[key][-1].number for key in written if phase.reduces}
        for key, (executor, operands) in written.items():
            value = versions.add(key, layout.slot_elements(*key), step.index, executor)
            value.reduces = phase.reduces
            news.append((value, (old[key], *operands) if phase.reduces else tuple(operands)))
        for value, numbers in news:
            versions.read(value, numbers)
        versions.last_step = step.index
    for rank in range(schedule.ranks):
        for slot in layout.places(rank, Space.OUTPUT):
            # What nothing ever reaches is no output: of a pair one way, the source gets nothing.
            if (rank, slot) in versions.chains:
                versions.chains[(rank, slot)][-1].is_output = True
    return versions


ALIGNMENT_ELEMENTS = 64
"""Work places start at multiples of this, so that vector loads are aligned for every dtype."""


class Placement:
    """Assigns places in step order; ``occupants`` are the values that a place held, oldest first."""

    def __init__(self, layout: SlotLayout, versions: Versions) -> None:
        ranks = range(layout.schedule.ranks)
        self._homes = [layout.places(rank, Space.OUTPUT) for rank in ranks]
        self._versions = versions
        self.occupants: dict[SlotPlace, list[Value]] = {}
        self.work_elements = [0] * layout.schedule.ranks
        self._work_places: dict[tuple[int, int], list[SlotPlace]] = {}

    def assign(self) -> None:
        """Give every value a place and append the copies that bring stray results home."""
        home_of: dict[int, SlotPlace] = {}
        for key, chain in self._versions.chains.items():
            home = self._homes[key[0]].get(key[1])
            if home is None:
                continue
            # Backwards: the last version is at home. One that others still read while the next is written
            # must lie elsewhere than the next, so the two change places.
            at_home = True
            following: Value | None = None
            for value in reversed(chain):
                if (
                    following is not None
                    and value.last_read_step(following.number) >= following.step
                ):
                    at_home = not at_home
                if at_home:
                    home_of[value.number] = home
                following = value
        for value in self._versions.values:
            if value.place is None:
                place = home_of.get(value.number)
                value.place = (
                    place if place and self._is_free(place, value) else self._work_place(value)
                )
            self.occupants.setdefault(value.place, []).append(value)
        # What could not end in its output buffer is copied there after the last step.
        step, stray = self._versions.last_step + 1, False
        for key, chain in list(self._versions.chains.items()):
            home = self._homes[key[0]].get(key[1])
            if home is None or chain[-1].place == home:
                continue
            last, stray = chain[-1], True
            copy = self._versions.add(key, last.elements, step, key[0])
            self._versions.read(copy, (last.number,))
            copy.place, copy.is_output = home, True
            self.occupants.setdefault(home, []).append(copy)
        self._versions.last_step += stray

    def _is_free(self, place: SlotPlace, value: Value) -> bool:
        if place.elements == 0:
            return True
        # Overwriting an operand is fine only for the accumulator, which the first operation reads.
        accumulator = value.operands[0] if value.operands and value.reduces else None
        return all(
            not held.is_output
            and held.step < value.step
            and held.last_read_step(value.number) < value.step
            and (
                value.number not in (read.reader for read in held.reads)
                or held.number == accumulator
            )
            for held in self.occupants.get(place, ())
        )

    def _work_place(self, value: Value) -> SlotPlace:
        rank = value.key[0]
        pool = self._work_places.setdefault((rank, value.elements), [])
        for place in pool:
            if self._is_free(place, value):
                return place
        place = SlotPlace(rank, Space.WORK, self.work_elements[rank], value.elements)
        padded = -(-value.elements // ALIGNMENT_ELEMENTS) * ALIGNMENT_ELEMENTS
        self.work_elements[rank] += padded
        pool.append(place)
        return place
