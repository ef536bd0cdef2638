"""A schedule as versions: every write of a slot makes a new value that is never changed again.

A schedule's steps read what was there before the step. Naming each slot's successive contents apart
turns that rule into plain data flow, from which storage and waiting are then derived.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ccbench.schedules.layout import Layout, Place
from ccbench.schedules.schedule import Schedule, Step

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
    place: Place | None = None

    def last_read_step(self, but_by: int) -> int:
        """The last step in which anything but value ``but_by`` reads this one."""
        return max((read.step for read in self.reads if read.reader != but_by), default=BEFORE_FIRST_STEP)


@dataclass
class Versions:
    """All values of a schedule, in order of their steps, and each slot's chain of them."""

    values: list[Value]
    chains: dict[Key, list[Value]]
    last_step: int

    def add(self, key: Key, elements: int, step: int, executor: int) -> Value:
        """A new newest version of ``key``."""
        value = Value(len(self.values), key, elements, step, executor)
        self.values.append(value)
        self.chains.setdefault(key, []).append(value)
        return value

    def read(self, value: Value, operands: tuple[int, ...]) -> None:
        """Note that ``value`` is computed from ``operands``."""
        value.operands = operands
        for number in operands:
            self.values[number].reads.append(Read(value.step, value.executor, value.number))


def versions_of(layout: Layout) -> Versions:
    """Follow the schedule from the ranks' inputs on. The schedule must have been proven."""
    schedule = layout.schedule
    versions = Versions([], {}, BEFORE_FIRST_STEP)
    for rank in range(schedule.ranks):
        for slot in range(schedule.slots):
            place = layout.input_place(rank, slot)
            if place is not None:
                value = versions.add((rank, slot), place.elements, BEFORE_FIRST_STEP, rank)
                value.place = place
    for step in schedule.expanded():
        _follow(step, layout, versions)
        versions.last_step = step.index
    for rank in range(schedule.ranks):
        for slot in range(schedule.slots):
            # What nothing ever reaches is no output: of a pair one way, the source gets nothing.
            if layout.output_place(rank, slot) is not None and (rank, slot) in versions.chains:
                versions.chains[(rank, slot)][-1].is_output = True
    return versions


def _follow(step: Step, layout: Layout, versions: Versions) -> None:
    phase = step.phase
    written: dict[Key, tuple[int, list[int]]] = {}
    for source, target, source_slot, target_slot, width in zip(
        step.source.tolist(),
        step.target.tolist(),
        step.source_slot.tolist(),
        step.target_slot.tolist(),
        phase.width.tolist(),
        strict=True,
    ):
        executor = source if phase.executed_by_source else target
        for inside in range(width):
            from_key = (source, _wrapped(layout.schedule, source_slot, inside))
            to_key = (target, _wrapped(layout.schedule, target_slot, inside))
            operand = versions.chains[from_key][-1].number
            written.setdefault(to_key, (executor, []))[1].append(operand)
    news: list[tuple[Value, tuple[int, ...]]] = []
    old = {key: versions.chains[key][-1].number for key in written if phase.reduces}
    for key, (executor, operands) in written.items():
        value = versions.add(key, layout.slot_elements(*key), step.index, executor)
        value.reduces = phase.reduces
        news.append((value, (old[key], *operands) if phase.reduces else tuple(operands)))
    for value, numbers in news:
        versions.read(value, numbers)


def _wrapped(schedule: Schedule, slot: int, inside: int) -> int:
    region = slot - slot % schedule.pieces
    return region + (slot % schedule.pieces + inside) % schedule.pieces
