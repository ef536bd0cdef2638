"""Contents of every slot while a schedule runs: which piece, and whose contributions how many times.

This is arithmetic with the data left out. A slot holds nothing, or one piece (the index of an input slot
in its buffer) together with a count per origin rank. Copying overwrites both; combining adds the counts.
Counts, not sets: a rank added twice is as wrong as a rank left out, and a set cannot see it.

The proof of a schedule: run on contributions, every output slot ends with each exactly once.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ccbench.collectives import collective
from ccbench.errors import ScheduleError
from ccbench.schedules.schedule import Indices, Schedule, Step
from ccbench.units import plural

NOTHING = -1
"""The piece of a slot that nothing was written to."""

MEMORY_LIMIT_BYTES = 1 << 30


class WrongSlot(ScheduleError):
    """A slot that is wrong. step: index of the step that is at fault, the number of steps after the last."""

    def __init__(self, text: str, step: int, rank: int, slot: int) -> None:
        super().__init__(text)
        self.step, self.rank, self.slot = step, rank, slot


class Contributions:
    """The slots of all ranks of one schedule, before its first step and after each one applied.

    piece: shape (ranks, slots), NOTHING where the slot is empty.
    counts: shape (ranks, slots, ranks): how often each origin's contribution is in the slot.
    """

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.row = collective(schedule.collective)
        ranks, slots = schedule.ranks, schedule.slots
        most_moved = max((int(phase.width.sum()) for phase in schedule.phases), default=0)
        if 2 * ranks * max(ranks * slots, most_moved) > MEMORY_LIMIT_BYTES:
            raise ScheduleError(
                f"{schedule.collective} {schedule.algorithm}: {ranks} ranks of {slots} slots are too many to "
                f"prove in {MEMORY_LIMIT_BYTES >> 30} GiB; prove fewer ranks, or build with prove=False"
            )
        self.piece: NDArray[np.int32] = np.full((ranks, slots), NOTHING, dtype=np.int32)
        self.counts: NDArray[np.int16] = np.zeros((ranks, slots, ranks), dtype=np.int16)
        for rank in range(ranks):
            inputs = self.row.inputs(rank, ranks, schedule.pieces, schedule.root)
            for index, slot in enumerate(inputs):
                self.piece[rank, slot] = index
                self.counts[rank, slot, rank] = 1

    def apply(self, step: Step) -> None:
        """Run one step; ScheduleError when it does what no collective may do."""
        source, source_slot, target, target_slot = self.schedule.single_slots(step)
        empty = np.flatnonzero(self.piece[source, source_slot] == NOTHING)
        if len(empty):
            unwritten = "is read, but nothing was written to it; send it there before"
            raise self._error(step, source[empty[0]], source_slot[empty[0]], unwritten)
        # Everything is read before anything is written: flows of a step happen at once.
        key = target.astype(np.int64) * self.schedule.slots + target_slot
        # Stable, so that an error names the first writer in the order of the builder's flows.
        order = np.argsort(key, kind="stable")
        key = key[order]
        first = np.flatnonzero(np.concatenate([[True], key[1:] != key[:-1]]))
        if len(first) < len(key) and not (step.phase.fan_in and step.phase.reduces):
            twice = order[np.flatnonzero(key[1:] == key[:-1])[0]]
            writers = int(
                np.sum((target == target[twice]) & (target_slot == target_slot[twice]))
            )
            raise self._error(
                step,
                target[twice],
                target_slot[twice],
                f"is written by {writers} flows at once, expected one; only phases that combine with "
                "fan_in may do that",
            )
        order, first = order.astype(np.int32), first.astype(np.int32)
        read = (source[order], source_slot[order])
        pieces, counts = self.piece[read], self.counts[read]
        ranks, slots = target[order], target_slot[order]
        at = (ranks[first], slots[first])
        if not step.phase.reduces:
            self.piece[at], self.counts[at] = pieces, counts
            return
        self._check_combinable(step, pieces, ranks, slots)
        sums = self.counts[at] + np.add.reduceat(counts, first, axis=0)
        # A barrier carries no data: to have heard of a rank twice is to have heard of it, so here, and
        # only here, contributions are united and not counted.
        sums = sums if self.row.moves_data else np.minimum(sums, 1)
        if int(sums.max()) > 1:
            flow, origin = (int(index) for index in np.argwhere(sums > 1)[0])
            rank, slot = at[0][flow], at[1][flow]
            twice = (
                f"{piece_name(int(self.piece[rank, slot]))}{origin} {sums[flow, origin]} times"
            )
            raise self._error(step, rank, slot, f"gets the contribution {twice}, expected once")
        self.counts[at] = sums

    def show(self, rank: int, slot: int) -> str:
        """Return ``A0+A4..7``: letters are pieces, numbers are ranks, ``..`` is a run of three or more.

        ``-`` is an empty slot, ``2*A0`` a contribution counted twice.
        """
        if self.piece[rank, slot] == NOTHING:
            return "-"
        name = piece_name(int(self.piece[rank, slot]))
        held = self.counts[rank, slot]
        words: list[str] = []
        bounds = [0, *(np.flatnonzero(np.diff(held)) + 1).tolist(), len(held)]
        for first, end in itertools.pairwise(bounds):
            count, last = int(held[first]), end - 1
            if not count:
                continue
            times = f"{count}*" if count > 1 else ""
            if last - first >= 2:
                words.append(f"{times}{name}{first}..{last}")
            else:
                words += [f"{times}{name}{origin}" for origin in range(first, last + 1)]
        return "+".join(words)

    def _check_combinable(
        self, step: Step, pieces: Indices, target: Indices, slot: Indices
    ) -> None:
        if not self.row.reduces and self.row.moves_data:
            raise self._error(
                step,
                target[0],
                slot[0],
                f"is combined into, but {self.row.name} has nothing to combine; copy instead",
            )
        there = self.piece[target, slot]
        wrong = np.flatnonzero(there != pieces)
        if len(wrong) == 0:
            return
        flow = wrong[0]
        rank, at, incoming = target[flow], slot[flow], piece_name(int(pieces[flow]))
        if there[flow] == NOTHING:
            text = f"is combined with piece {incoming}, but holds nothing; copy to it first"
        else:
            own = piece_name(int(there[flow]))
            held = self.show(int(rank), int(at))
            text = f"holds {held} and is combined with piece {incoming}, expected piece {own}"
        raise self._error(step, rank, at, text)

    def _error(self, step: Step, rank: Any, slot: Any, fault: str) -> WrongSlot:
        name = f"{self.schedule.collective} {self.schedule.algorithm}, {plural(self.schedule.ranks, 'rank')}"
        text = f"{name}: step {step.index + 1}: slot {slot} of rank {rank} {fault}"
        return WrongSlot(text, step.index, int(rank), int(slot))


def piece_name(piece: int) -> str:
    """Return A to Z; from the 27th piece on ``p26:``, ``p27:``, ..."""
    return chr(ord("A") + piece) if piece < 26 else f"p{piece}:"


def prove(schedule: Schedule) -> None:
    """Return when ``schedule`` does what its collective says, for any data and any op.

    The state is an array over (rank, slot, origin), so memory grows with the cube of the ranks: meant for
    up to some hundred ranks. A builder that is right for all small numbers of ranks is run unproven for
    larger ones.

    Raises ScheduleError naming step, rank, slot and contributions at the first flow that reads what is
    not there, combines different pieces, adds a contribution twice, or meets another flow in one slot;
    and after the last step at the first output slot that lacks a contribution or holds a foreign one.
    """
    check_form(schedule)
    state = Contributions(schedule)
    for step in schedule.expanded():
        state.apply(step)
    row, ranks = state.row, schedule.ranks
    for rank in range(ranks):
        for index, slot in enumerate(row.outputs(rank, ranks, schedule.pieces, schedule.root)):
            origins = row.origins(rank, index, ranks, schedule.root)
            piece, expected = origins[0][1], np.zeros(ranks, dtype=np.int16)
            expected[[origin for origin, _ in origins]] = 1
            counts = state.counts[rank, slot]
            # The piece alone would not do: a slot may hold the right piece of too few ranks, or of strangers.
            if state.piece[rank, slot] != piece or not np.array_equal(counts, expected):
                text = _wrong_output(state, rank, slot, expected, piece)
                steps = sum(phase.repeat for phase in schedule.phases)
                raise WrongSlot(text, steps, rank, slot)


def check_form(schedule: Schedule) -> None:
    """ScheduleError unless all arrays fit each other and all indices lie where they may."""
    name = f"{schedule.collective} {schedule.algorithm}, {plural(schedule.ranks, 'rank')}"
    row = collective(schedule.collective)
    if schedule.ranks < 1 or schedule.pieces < 1:
        raise ScheduleError(
            f"{name}: {schedule.pieces} pieces, expected one rank and one piece at least"
        )
    if row.blocked and schedule.pieces != schedule.ranks:
        raise ScheduleError(
            f"{name}: {schedule.pieces} pieces, expected one block for each rank"
        )
    if row.rooted and not 0 <= schedule.root < schedule.ranks:
        raise ScheduleError(f"{name}: root {schedule.root}, expected 0 to {schedule.ranks - 1}")
    needed = row.slots(schedule.ranks, schedule.pieces)
    if schedule.slots < needed or schedule.slots % schedule.pieces:
        raise ScheduleError(
            f"{name}: {schedule.slots} slots, expected {needed} or more in whole regions of {schedule.pieces}"
        )
    limits = {
        "source": (0, schedule.ranks - 1),
        "target": (0, schedule.ranks - 1),
        "source_slot": (0, schedule.slots - 1),
        "target_slot": (0, schedule.slots - 1),
        "width": (1, schedule.pieces),
    }
    for index, phase in enumerate(schedule.phases):
        where, flows = f"{name}: phase {index}", phase.flows
        if phase.repeat < 1 or flows < 1:
            raise ScheduleError(
                f"{where}: {flows} flows repeated {phase.repeat} times, expected once at least"
            )
        for field, (low, high) in limits.items():
            array = getattr(phase, field)
            if array.shape != (flows,) or array.dtype != np.int32:
                form = f"{array.dtype} of shape {array.shape}"
                raise ScheduleError(f"{where}: {field} is {form}, expected int32 of ({flows},)")
            wrong = np.flatnonzero((array < low) | (array > high))
            if len(wrong):
                flow = wrong[0]
                raise ScheduleError(
                    f"{where}: flow {flow}: {field} is {array[flow]}, expected {low} to {high}"
                )


def _wrong_output(
    state: Contributions, rank: int, slot: int, expected: NDArray[np.int16], piece: int
) -> str:
    schedule, held = state.schedule, state.counts[rank, slot]
    where = (
        f"{schedule.collective} {schedule.algorithm}, {schedule.ranks} ranks: after the last step: "
        f"slot {slot} of rank {rank}"
    )
    if state.piece[rank, slot] == NOTHING:
        return f"{where} holds nothing, expected piece {piece_name(piece)}"
    # Of an output that only lacks something, what is missing says more than what it should have been.
    missing = [
        f"{piece_name(piece)}{origin}"
        for origin in np.flatnonzero((expected > 0) & (held == 0))
    ]
    if state.piece[rank, slot] == piece and missing and not np.any(held[expected == 0]):
        return f"{where} holds {state.show(rank, slot)}; missing: {', '.join(missing)}"
    parts = "+".join(f"{piece_name(piece)}{origin}" for origin in np.flatnonzero(expected))
    return f"{where} holds {state.show(rank, slot)}, expected {parts}"
