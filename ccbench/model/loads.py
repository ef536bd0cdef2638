"""Loads that each step of a schedule puts on each core, in operations and slots: nothing here knows a size.

That is why a sweep over sizes is cheap: loads are found once and multiplied by the bytes of a slot.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ccbench.collectives import collective
from ccbench.model.rank_subset import ALL_RANKS, RankSubset, flow_weights, turns_of
from ccbench.schedules.schedule import Indices, Phase, Schedule

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

MOST_TRACKED_SLOTS = 500_000
"""A step that touches more slots than this counts as depending on the one before it, unlooked at."""


@dataclass(frozen=True)
class StepLoad:
    """``repeat`` equal steps.

    operations, copied, reduced: shape (distinct loads,). Cores with equal loads are listed once.
        ``copied`` and ``reduced`` are in slots of payload, of uneven blocks in mean ones.
    active_cores: cores that have something to do.
    waits: a rank must see another rank's flag before this step.
    flags: the most other ranks that one rank hears from in this step.
    """

    repeat: int
    operations: Integers
    copied: Floats
    reduced: Floats
    active_cores: int
    waits: bool
    flags: int


OPERATIONS, COPIED, REDUCED = range(3)
"""Rows of what each core does in one step, shape (3, cores that have ranks); slots as in StepLoad."""


@dataclass(frozen=True)
class _Cores:
    """The core of each rank of each group, shape (groups, ranks of a group), and how many cores there are."""

    of_rank: Integers
    bins: int

    @staticmethod
    def of(schedule: Schedule, cores: int, subset: RankSubset) -> _Cores:
        places = subset.places(schedule.ranks)
        return _Cores(places % cores, min(int(places.max()) + 1, cores))

    def sums(
        self, ranks: Integers | Indices, weights: Floats | Indices | None = None
    ) -> Floats:
        """Per core, the number of group ranks on it over all groups, or the sum of their ``weights``."""
        groups = len(self.of_rank)
        spread = None if weights is None else np.tile(weights, groups)
        counts = np.bincount(
            self.of_rank[:, ranks].ravel(), weights=spread, minlength=self.bins
        )
        return np.asarray(counts, dtype=np.float64)


def step_loads(
    schedule: Schedule, cores: int, in_place: bool, subset: RankSubset = ALL_RANKS
) -> list[StepLoad]:
    """The steps of ``schedule`` in order, for ranks dealt to cores round robin.

    subset: the groups that run it, all of them in step. Of uneven blocks every repetition is looked at.

    Repetitions are joined, and so are steps between which nobody waits: each rank does them in one go.

    ``Phase.executed_by_source`` says who does the work. Repetitions of a phase are taken to load the cores
    as its first one does, which is exact where every rank does the same and where the indices do not
    advance. Out of place, each rank first copies what it keeps from its input to its output buffer.
    """
    # Work core by core, repetitions, whether these wait, and for how many flags.
    merged: list[tuple[Floats, int, bool, int]] = []
    placed = _Cores.of(schedule, cores, subset)
    weights = subset.weights(schedule.ranks)
    if weights is not None:
        turns = tuple(turn for phase in schedule.phases for turn in turns_of(phase, schedule))
        schedule = replace(schedule, phases=turns)
    kept = None if in_place else _kept_work(schedule, placed)
    if kept is not None:
        merged.append((kept, 1, False, 0))
    touched = _Touched.nothing()
    for phase in schedule.phases:
        moved = None if weights is None else flow_weights(phase, schedule, weights)
        worker = phase.source if phase.executed_by_source else phase.target
        work = np.zeros((3, placed.bins))
        work[OPERATIONS] = placed.sums(worker)
        work[REDUCED if phase.reduces else COPIED] = placed.sums(
            worker, phase.width if moved is None else moved
        )
        apart = phase.source != phase.target
        pairs = np.sort(
            phase.target[apart].astype(np.int64) * schedule.ranks + phase.source[apart]
        )
        # Equal neighbours after sorting are one pair; np.unique hashes, which takes ten times as long.
        targets = (
            pairs[np.append(True, pairs[1:] != pairs[:-1])] // schedule.ranks
            if len(pairs)
            else pairs
        )
        flags = int(np.bincount(targets).max()) if len(pairs) else 0
        # The first repetition follows another phase, the others one like themselves: they may wait where it
        # does not.
        for turn, repeat in ((0, 1), (1, phase.repeat - 1)):
            if repeat < 1:
                continue
            here = _Touched.by(phase, schedule, turn)
            waits = touched.conflicts_with(here)
            last = here if repeat == 1 else _Touched.by(phase, schedule, phase.repeat - 1)
            touched = last if waits else touched.joined(last, complete=repeat == 1)
            # Without a wait in between a rank does both in one go, so the busiest core is that of the sum.
            if merged and not waits and merged[-1][1] == 1:
                before, _, waited, heard = merged.pop()
                merged.append((before + repeat * work, 1, waited, heard))
            else:
                merged.append((work, repeat, waits, flags))
    loads = []
    for work, repeat, waits, flags in merged:
        # Cores with equal loads are listed once.
        operations, copied, reduced = np.unique(work, axis=1)
        active = int(np.count_nonzero(work[OPERATIONS]))
        loads.append(
            StepLoad(repeat, operations.astype(np.int64), copied, reduced, active, waits, flags)
        )
    return loads


@dataclass(frozen=True)
class CompletedLoad:
    """Loads of completed reductions on each core, arrays of shape (distinct loads,).

    operations: separate stretches of slots. slots: slots of payload. active_cores: cores with any.
    """

    operations: Floats
    slots: Floats
    active_cores: int


def completed_load(
    schedule: Schedule, cores: int, subset: RankSubset = ALL_RANKS
) -> CompletedLoad | None:
    """The reduced slots that no later reduction reads, on the cores of the ranks that reduced them last.

    Approximate: they are taken to be what the last turn of the last reducing phase writes. Where that is
    less than one whole result, because pieces are completed one after another, each core's part is scaled
    until it is one. None where nothing is reduced.
    """
    reducing = [phase for phase in schedule.phases if phase.reduces and phase.flows]
    if not reducing:
        return None
    phase, placed = reducing[-1], _Cores.of(schedule, cores, subset)
    touched = _Touched.by(phase, schedule, phase.repeat - 1, most_slots=None)
    _, first = np.unique(touched.written, return_index=True)
    slots = placed.sums(touched.writer[first])
    starts = np.cumsum(phase.width) - phase.width
    _, first_flow = np.unique(touched.written[starts], return_index=True)
    writers = touched.writer[starts][first_flow]
    operations = placed.sums(writers)
    # Pieces may be completed one after another, of which the last turn shows only the last.
    scale = max(1.0, schedule.pieces * len(placed.of_rank) / float(slots.sum()))
    distinct = np.unique(np.stack((operations, slots)), axis=1) * scale
    return CompletedLoad(distinct[0], distinct[1], int(np.count_nonzero(slots)))


def _kept_work(schedule: Schedule, placed: _Cores) -> Floats | None:
    """Copies of input slots that are output slots as well; None where there are none.

    In place they lie where they belong, and a sum of several is written anew anyway.
    """
    row, ranks, root = collective(schedule.collective), schedule.ranks, max(schedule.root, 0)
    if (row.reduces and ranks > 1) or not row.moves_data:
        return None

    def kept(rank: int) -> int:
        inputs = row.inputs(rank, ranks, schedule.pieces, root)
        outputs = row.outputs(rank, ranks, schedule.pieces, root)
        return len(range(max(inputs.start, outputs.start), min(inputs.stop, outputs.stop)))

    slots = np.full(ranks, kept((root + 1) % ranks), dtype=np.int64)
    slots[root] = kept(root)
    if not slots.any():
        return None
    every, work = np.arange(ranks), np.zeros((3, placed.bins))
    work[OPERATIONS] = placed.sums(every[slots > 0])
    work[COPIED] = placed.sums(every, slots.astype(np.float64))
    return work


@dataclass(frozen=True)
class _Touched:
    """Slots that ranks read and wrote since they last waited; a slot of a rank is one number.

    listed: False when there were too many to list, and then any step conflicts.
    """

    read: Integers
    reader: Integers
    written: Integers
    writer: Integers
    listed: bool = True

    @staticmethod
    def nothing(listed: bool = True) -> _Touched:
        none = np.zeros(0, dtype=np.int64)
        return _Touched(none, none, none, none, listed)

    @staticmethod
    def by(
        phase: Phase, schedule: Schedule, turn: int, most_slots: int | None = MOST_TRACKED_SLOTS
    ) -> _Touched:
        if most_slots is not None and int(phase.width.sum()) > most_slots:
            return _Touched.nothing(listed=False)
        source = (phase.source + turn * phase.advance.source) % schedule.ranks
        target = (phase.target + turn * phase.advance.target) % schedule.ranks
        worker = np.repeat(source if phase.executed_by_source else target, phase.width).astype(
            np.int64
        )
        read = _places(
            source, phase.source_slot, turn * phase.advance.source_slot, phase, schedule
        )
        written = _places(
            target, phase.target_slot, turn * phase.advance.target_slot, phase, schedule
        )
        return _Touched(read, worker, written, worker)

    def joined(self, later: _Touched, complete: bool) -> _Touched:
        """Both; ``complete`` says that nothing was touched in between that neither lists."""
        joined = _Touched(
            np.concatenate((self.read, later.read)),
            np.concatenate((self.reader, later.reader)),
            np.concatenate((self.written, later.written)),
            np.concatenate((self.writer, later.writer)),
            self.listed and later.listed and complete,
        )
        if len(joined.written) > MOST_TRACKED_SLOTS:
            return _Touched.nothing(listed=False)
        return joined

    def conflicts_with(self, later: _Touched) -> bool:
        """True if some rank would touch what another rank wrote, or overwrite what another rank read."""
        if not (self.listed and later.listed):
            return True
        return (
            _by_another(self.written, self.writer, later.read, later.reader)
            or _by_another(self.written, self.writer, later.written, later.writer)
            or _by_another(self.read, self.reader, later.written, later.writer)
        )


def _places(
    slots_of: Indices, first: Indices, offset: int, phase: Phase, schedule: Schedule
) -> Integers:
    """One number per slot of every flow, shape (sum of widths,)."""
    width = phase.width
    within = np.arange(int(width.sum()), dtype=np.int64) - np.repeat(
        np.cumsum(width) - width, width
    )
    start = np.repeat(schedule.wrapped(first, offset).astype(np.int64), width)
    pieces = schedule.pieces
    slot = start - start % pieces + (start % pieces + within) % pieces
    return np.asarray(np.repeat(slots_of, width).astype(np.int64) * schedule.slots + slot)


def _by_another(
    earlier: Integers, earlier_rank: Integers, later: Integers, later_rank: Integers
) -> bool:
    """True if a place occurs in both lists with different ranks."""
    if not len(earlier) or not len(later):
        return False
    places, position = np.unique(earlier, return_inverse=True)
    lowest = np.full(len(places), np.iinfo(np.int64).max)
    highest = np.full(len(places), -1, dtype=np.int64)
    np.minimum.at(lowest, position, earlier_rank)
    np.maximum.at(highest, position, earlier_rank)
    position_of_later = np.minimum(np.searchsorted(places, later), len(places) - 1)
    same = places[position_of_later] == later
    return bool(
        np.any(
            same
            & (
                (lowest[position_of_later] != later_rank)
                | (highest[position_of_later] != later_rank)
            )
        )
    )
