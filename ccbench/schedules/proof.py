"""The proof of a schedule: run on contributions, every output slot ends with each exactly once."""

from __future__ import annotations

import numpy as np

from ccbench.collectives import collective
from ccbench.errors import ScheduleError
from ccbench.schedules.contributions import NOTHING, Contributions, piece_name
from ccbench.schedules.schedule import Phase, Schedule
from ccbench.units import plural


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
    _check_outputs(state)


def check_form(schedule: Schedule) -> None:
    """ScheduleError unless all arrays fit each other and all indices lie where they may."""
    name = f"{schedule.collective} {schedule.algorithm}, {plural(schedule.ranks, 'rank')}"
    row = collective(schedule.collective)
    if schedule.ranks < 1 or schedule.pieces < 1:
        raise ScheduleError(f"{name}: {schedule.pieces} pieces, expected one rank and one piece at least")
    if row.blocked and schedule.pieces != schedule.ranks:
        raise ScheduleError(f"{name}: {schedule.pieces} pieces, expected one block for each rank")
    if row.rooted and not 0 <= schedule.root < schedule.ranks:
        raise ScheduleError(f"{name}: root {schedule.root}, expected 0 to {schedule.ranks - 1}")
    needed = row.slots(schedule.ranks, schedule.pieces)
    if schedule.slots < needed or schedule.slots % schedule.pieces:
        raise ScheduleError(
            f"{name}: {schedule.slots} slots, expected {needed} or more in whole regions of {schedule.pieces}"
        )
    for index, phase in enumerate(schedule.phases):
        problem = _problem(phase, schedule)
        if problem:
            raise ScheduleError(f"{name}: phase {index}: {problem}")


def _problem(phase: Phase, schedule: Schedule) -> str:
    limits = {
        "source": (0, schedule.ranks - 1),
        "target": (0, schedule.ranks - 1),
        "source_slot": (0, schedule.slots - 1),
        "target_slot": (0, schedule.slots - 1),
        "width": (1, schedule.pieces),
    }
    if phase.repeat < 1 or phase.flows < 1:
        return f"{phase.flows} flows repeated {phase.repeat} times, expected once at least"
    for field, (low, high) in limits.items():
        array = getattr(phase, field)
        if array.shape != (phase.flows,) or array.dtype != np.int32:
            return f"{field} is {array.dtype} of shape {array.shape}, expected int32 of ({phase.flows},)"
        wrong = np.flatnonzero((array < low) | (array > high))
        if len(wrong):
            return f"flow {wrong[0]}: {field} is {array[wrong[0]]}, expected {low} to {high}"
    return ""


def _check_outputs(state: Contributions) -> None:
    schedule, row = state.schedule, state.row
    ranks = schedule.ranks
    for rank in range(ranks):
        outputs = row.outputs(rank, ranks, schedule.pieces, schedule.root)
        for index, slot in enumerate(outputs):
            origins = row.origins(rank, index, ranks, schedule.root)
            expected = np.zeros(ranks, dtype=np.int16)
            expected[[origin for origin, _ in origins]] = 1
            right_piece = state.piece[rank, slot] == origins[0][1]
            if not right_piece or not np.array_equal(state.counts[rank, slot], expected):
                raise ScheduleError(_wrong_output(state, rank, slot, expected, origins[0][1]))


def _wrong_output(
    state: Contributions,
    rank: int,
    slot: int,
    expected: np.ndarray[tuple[int], np.dtype[np.int16]],
    piece: int,
) -> str:
    schedule, held = state.schedule, state.counts[rank, slot]
    where = (
        f"{schedule.collective} {schedule.algorithm}, {schedule.ranks} ranks: after the last step: "
        f"slot {slot} of rank {rank}"
    )
    if state.piece[rank, slot] == NOTHING:
        return f"{where} holds nothing, expected piece {piece_name(piece)}"
    missing = [f"{piece_name(piece)}{origin}" for origin in np.flatnonzero((expected > 0) & (held == 0))]
    if state.piece[rank, slot] == piece and missing and not np.any(held[expected == 0]):
        return f"{where} holds {state.show(rank, slot)}; missing: {', '.join(missing)}"
    wanted = "+".join(f"{piece_name(piece)}{origin}" for origin in np.flatnonzero(expected))
    return f"{where} holds {state.show(rank, slot)}, expected {wanted}"
