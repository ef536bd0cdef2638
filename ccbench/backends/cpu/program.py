"""A schedule and a count compiled into one program per rank: what to wait for, what to compute, what to post.

Every rank has one progress counter that only it writes: the number of the last step it finished. Whoever
needs a step of another rank waits for that counter. Waits follow from the data flow alone:

* a value is read after its writer finished (read after write),
* a place is overwritten after its readers finished (write after read),
* another rank's memory is touched after that rank entered the launch, and
* a rank leaves the launch after everybody finished with its memory.

Steps that need no new wait and that nobody waits for are one group; inside a group, operations on the
same data become a fused loop that runs block by block, so that a block is still in the cache when the next
operation wants it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ccbench.collectives import collective
from ccbench.schedules.placement import (
    BEFORE_FIRST_STEP,
    Placement,
    SlotLayout,
    SlotPlace,
    Value,
    Versions,
    versions_of,
)

COPY = "copy"
REDUCE = "reduce"
AVERAGE = "average"

Wait = tuple[int, int]
"""(rank, offset): wait until that rank's counter reaches this launch's base plus offset."""


@dataclass(frozen=True)
class Operation:
    """One elementwise operation; REDUCE has two sources, COPY and AVERAGE one."""

    kind: str
    sources: tuple[SlotPlace, ...]
    target: SlotPlace

    def followed_by(self, then: Operation) -> bool:
        """Return whether ``then`` is of the same form, and on the places behind this one's."""
        return (
            self.kind == then.kind
            and len(self.sources) == len(then.sources)
            and self.target.followed_by(then.target)
            and all(map(SlotPlace.followed_by, self.sources, then.sources))
        )

    def joined(self, then: Operation) -> Operation:
        """Return this operation and the next as one."""
        sources = tuple(map(SlotPlace.joined, self.sources, then.sources))
        return Operation(self.kind, sources, self.target.joined(then.target))


@dataclass(frozen=True)
class FusedLoop:
    """Operations on equally many elements that run together, block by block."""

    operations: tuple[Operation, ...]

    @property
    def elements(self) -> int:
        """Elements of each operation."""
        return self.operations[0].target.elements


@dataclass(frozen=True)
class Group:
    """Wait for all of ``waits``, run the loops, then post ``post`` (an offset to the launch's base)."""

    waits: tuple[Wait, ...]
    loops: tuple[FusedLoop, ...]
    post: int


@dataclass(frozen=True)
class Program:
    """Operations of one rank in one launch."""

    rank: int
    groups: tuple[Group, ...]
    exit_waits: tuple[Wait, ...]


@dataclass(frozen=True)
class CompiledCase:
    """Programs of all ranks. ``stride``: how far the counters move in one launch.

    work_elements: elements of every rank's work space.
    """

    layout: SlotLayout
    programs: dict[int, Program]
    work_elements: tuple[int, ...]
    stride: int


Needs = dict[int, int]
"""rank -> the step of it that must be finished (BEFORE_FIRST_STEP: it must have entered)."""


def compile_case(layout: SlotLayout) -> CompiledCase:
    """Compile a proven schedule for one count and placement.

    Every rank compiles for itself; the programs fit together because each is derived from the whole.
    """
    versions = versions_of(layout)
    placement = Placement(layout, versions)
    placement.assign()
    ranks = layout.schedule.ranks
    needs = [_needs_of(value, versions, placement) for value in versions.values]
    # Steps of each rank that anybody waits for, and those that end everybody's use of its memory.
    demanded: list[set[int]] = [set() for _ in range(ranks)]
    exits: list[Needs] = [{} for _ in range(ranks)]
    for value in versions.values:
        for rank, step in needs[value.number].items():
            demanded[rank].add(step)
        if not value.operands:
            continue
        touched = {_place(value).rank} | {
            _place(versions.values[n]).rank for n in value.operands
        }
        for owner in touched - {value.executor}:
            before = exits[owner].get(value.executor, BEFORE_FIRST_STEP)
            exits[owner][value.executor] = max(before, value.step)
    averages = collective(layout.schedule.collective).reduces
    programs = {}
    for rank in range(ranks):
        own = [value for value in versions.values if value.executor == rank and value.operands]
        groups = _groups(own, needs, demanded[rank], versions, averages)
        waits = tuple((peer, step + 1) for peer, step in sorted(exits[rank].items()))
        programs[rank] = Program(rank, groups, waits)
    return CompiledCase(
        layout, programs, tuple(placement.work_elements), versions.last_step + 3
    )


def _place(value: Value) -> SlotPlace:
    assert value.place is not None, "placement ran before"
    return value.place


def _needs_of(value: Value, versions: Versions, placement: Placement) -> Needs:
    needs: Needs = {}

    def need(rank: int, step: int) -> None:
        if rank != value.executor:
            needs[rank] = max(needs.get(rank, BEFORE_FIRST_STEP), step)

    if not value.operands:
        return needs
    for number in value.operands:
        operand = versions.values[number]
        # Read after write, and no touch of another rank's memory before that rank has entered the launch.
        need(operand.executor, operand.step)
        need(_place(operand).rank, BEFORE_FIRST_STEP)
    need(_place(value).rank, BEFORE_FIRST_STEP)
    # Empty places share their addresses with others, and nothing in them can be overwritten.
    held = placement.occupants[_place(value)] if value.elements else [value]
    for before in held[: held.index(value)][-1:]:
        # The one before it waited for those before itself, so the newest occupant is enough.
        need(before.executor, before.step)
        for read in before.reads:
            if read.reader != value.number:
                need(read.executor, read.step)
    return needs


def _groups(
    own: list[Value], needs: list[Needs], demanded: set[int], versions: Versions, averages: bool
) -> tuple[Group, ...]:
    """The rank's values, in step order, cut where a wait is new or where somebody waits for a step."""
    groups: list[Group] = []
    waited: Needs = {}
    waits: dict[int, int] = {}
    pending: list[Operation] = []
    last_step = BEFORE_FIRST_STEP

    def close() -> None:
        if pending:
            ordered = tuple((rank, step + 1) for rank, step in sorted(waits.items()))
            groups.append(Group(ordered, _fused_loops(pending), last_step + 1))
            pending.clear()
        waits.clear()

    for step in sorted({value.step for value in own}):
        values = [value for value in own if value.step == step]
        fresh: Needs = {}
        for value in values:
            for rank, needed in needs[value.number].items():
                # A counter only grows, so an earlier wait for as much of that rank will do.
                if needed > waited.get(rank, BEFORE_FIRST_STEP - 1):
                    fresh[rank] = max(fresh.get(rank, BEFORE_FIRST_STEP), needed)
        if fresh or last_step in demanded:
            close()
        waits.update(fresh)
        waited.update(fresh)
        for value in values:
            pending.extend(_operations(value, versions, averages))
        last_step = step
    close()
    return tuple(groups)


def _operations(value: Value, versions: Versions, averages: bool) -> list[Operation]:
    target = _place(value)
    sources = [_place(versions.values[number]) for number in value.operands]
    if not value.reduces:
        return [Operation(COPY, (sources[0],), target)]
    if sources[0] != target:
        # Where the order is free all ranks add in rank order, so that all get the same rounding.
        sources.sort(key=lambda place: (place.rank, place.space, place.offset))
    operations = [Operation(REDUCE, (sources[0], sources[1]), target)]
    operations += [Operation(REDUCE, (target, source), target) for source in sources[2:]]
    complete = not any(versions.values[read.reader].reduces for read in value.reads)
    # Dividing once, when all have added, keeps an average exact.
    if averages and complete:
        operations.append(Operation(AVERAGE, (target,), target))
    return operations


def _fused_loops(operations: Iterable[Operation]) -> tuple[FusedLoop, ...]:
    """Bundle operations that share data; start afresh where places overlap without being equal."""
    done: list[list[Operation]] = []
    open_loops: list[list[Operation]] = []
    for operation in operations:
        # Pairs of places, of this operation and of an open loop, that have elements in common.
        places = (*operation.sources, operation.target)
        related = []
        for loop in open_loops:
            loop_places = [
                place for earlier in loop for place in (*earlier.sources, earlier.target)
            ]
            shared = [
                (place, loop_place)
                for place in places
                for loop_place in loop_places
                if place.overlaps(loop_place)
            ]
            related += [(loop, shared)] if shared else []
        if len(related) == 1:
            loop, shared = related[0]
            # Shared elements have one index in all operations, or blocks would read what is not there yet.
            same_length = operation.target.elements == loop[0].target.elements
            if same_length and all(place == loop_place for place, loop_place in shared):
                loop.append(operation)
                continue
        if related:
            done += open_loops
            open_loops = []
        open_loops.append([operation])
    joined: list[FusedLoop] = []
    for bundle in (*done, *open_loops):
        last = joined[-1].operations if joined else ()
        if len(last) != len(bundle) or not all(map(Operation.followed_by, last, bundle)):
            joined.append(FusedLoop(tuple(bundle)))
            continue
        # Neighbouring loops of one form on neighbouring places become one: half the calls.
        pairs = zip(joined[-1].operations, bundle, strict=True)
        joined[-1] = FusedLoop(tuple(first.joined(then) for first, then in pairs))
    return tuple(joined)
