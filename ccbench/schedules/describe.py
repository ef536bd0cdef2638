"""A schedule in words and small tables, for people who want to understand it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ccbench.collectives import collective
from ccbench.schedules import ALGORITHMS
from ccbench.schedules.proof import Contributions
from ccbench.schedules.schedule import Phase, Schedule, Step, sent_pieces
from ccbench.units import plural

MOST_RANKS_SHOWN = 8
MOST_PIECES_SHOWN = 8
FIRST_STEPS, LAST_STEPS = 8, 4
FIRST_FLOWS, LAST_FLOWS = 12, 4


def describe(schedule: Schedule) -> str:
    """What ``ccbench schedule`` prints: a header, then every step with its flows.

    Up to 8 ranks and 8 pieces, a table after each step shows what every slot holds; what the step changed
    is marked with ``*``. Of long schedules the first 8 and the last 4 steps are told, of crowded steps the
    first 12 and the last 4 flows. Lines end with a newline; the text is ASCII.

    Raises ScheduleError where the schedule is too wrong to be followed (see ``proof``).
    """
    return "\n".join([*_header(schedule), *_body(schedule)]) + "\n"


def slot_name(schedule: Schedule, slot: int) -> str:
    """``3`` where inputs and outputs share their slots, else ``in 3``, ``out 3``; work space ``work 3``."""
    row = collective(schedule.collective)
    region, piece = divmod(slot, schedule.pieces)
    shared = row.slots(schedule.ranks, schedule.pieces) == schedule.pieces
    names = [""] if shared else ["in ", "out "]
    if region < len(names):
        return f"{names[region]}{piece}"
    extra = region - len(names)
    return f"work {piece}" if extra == 0 else f"work{extra + 1} {piece}"


def slot_range(schedule: Schedule, first: int, width: int) -> str:
    """``width`` slots from ``first`` on: ``3``, ``2-3``, or around the end of the region ``3,0-1``."""
    pieces = schedule.pieces
    before_end = min(width, pieces - first % pieces)
    text = _range(slot_name(schedule, first), before_end, first % pieces)
    if before_end == width:
        return text
    return f"{text},{_range('0', width - before_end, 0)}"


def _header(schedule: Schedule) -> Iterator[str]:
    name = f"{schedule.collective} {schedule.algorithm}"
    root = f", root {schedule.root}" if schedule.root >= 0 else ""
    yield f"{name}, {plural(schedule.ranks, 'rank')}{root}"
    for row in ALGORITHMS:
        if (row.collective, row.name) == (schedule.collective, schedule.algorithm):
            if row.parameter:
                yield f"parameter: {schedule.parameter} ({row.parameter})"
            yield f"source: {row.source}"
    if collective(schedule.collective).moves_data:
        yield f"pieces: {_pieces(schedule)}"
    local = local_steps(schedule)
    yield f"steps: {schedule.steps}" + (f", and {local} of local moves" if local else "")
    yield f"sent by each rank: {sent_text(schedule)}"


def local_steps(schedule: Schedule) -> int:
    """Steps that only move pieces inside ranks; ``schedule.steps`` does not count them."""
    return sum(phase.repeat for phase in schedule.phases if _is_local(phase))


def proven_text(schedule: Schedule) -> str:
    """What a proof of ``schedule`` has shown, in one sentence without its full stop."""
    row, ranks = collective(schedule.collective), plural(schedule.ranks, "rank")
    if not row.moves_data:
        return f"every one of {ranks} has heard of every other"
    if row.reduces:
        return f"every output of {ranks} holds every contribution exactly once"
    return f"every output of {ranks} holds the piece it should, and nothing else"


def _pieces(schedule: Schedule) -> str:
    if collective(schedule.collective).blocked:
        return f"{schedule.pieces}, one block for each rank"
    return str(schedule.pieces) + (
        ", the whole buffer" if schedule.pieces == 1 else " equal parts of the buffer"
    )


def sent_text(schedule: Schedule) -> str:
    """``6 pieces = 1.5 x the size``: what each rank sends to others, as a span where ranks differ."""
    sent = sent_pieces(schedule)
    pieces = _span(*(str(bound) for bound in (sent.min(), sent.max())))
    if not collective(schedule.collective).moves_data:
        return f"{pieces} notices, no data"
    share = _span(*(f"{bound / schedule.pieces:.4g}" for bound in (sent.min(), sent.max())))
    # Only where blocks are equal do pieces tell bytes.
    when = " of balanced traffic" if schedule.collective == "all_to_all_v" else ""
    return f"{pieces} pieces = {share} x the size{when}"


def _span(low: str, high: str) -> str:
    return low if low == high else f"{low} to {high}"


def _body(schedule: Schedule) -> Iterator[str]:
    total = sum(phase.repeat for phase in schedule.phases)
    if schedule.ranks > MOST_RANKS_SHOWN or schedule.pieces > MOST_PIECES_SHOWN:
        yield from _steps_only(schedule, total)
        return
    yield from ("", _legend(schedule), "", "before the first step")
    state = Contributions(schedule)
    cells = _cells(state)
    yield from _table(schedule, cells, cells)
    hidden = _hidden(total)
    for step in schedule.expanded():
        state.apply(step)
        before, cells = cells, _cells(state)
        if step.index not in hidden:
            yield from _step(schedule, step, total)
            yield from _table(schedule, before, cells)
        elif step.index == hidden.start:
            yield from _gap(hidden)


def _legend(schedule: Schedule) -> str:
    row = collective(schedule.collective)
    if not row.moves_data:
        meaning = "A0+A2: this rank has heard of ranks 0 and 2"
    elif row.reduces:
        meaning = "B0+B2: piece B of ranks 0 and 2, combined"
    else:
        meaning = "B2: piece B of rank 2's input"
    return f"{meaning}; -: empty; *: changed by the step"


def _steps_only(schedule: Schedule, total: int) -> Iterator[str]:
    """Steps without tables, and without expanding those that are not told."""
    hidden = _hidden(total)
    for index in [*range(hidden.start), *range(hidden.stop, total)]:
        if hidden and index == hidden.stop:
            yield from _gap(hidden)
        yield from _step(schedule, _step_at(schedule, index), total)


def _step_at(schedule: Schedule, index: int) -> Step:
    first = 0
    for phase in schedule.phases:
        if index < first + phase.repeat:
            return schedule.turn(phase, index - first, index)
        first += phase.repeat
    raise IndexError(index)


def _gap(hidden: range) -> tuple[str, str]:
    return "", f"... {plural(len(hidden), 'more step')} ..."


def _hidden(total: int) -> range:
    """The steps that are not told; one alone would not save a line."""
    if total <= FIRST_STEPS + LAST_STEPS + 1:
        return range(total, total)
    return range(FIRST_STEPS, total - LAST_STEPS)


def _step(schedule: Schedule, step: Step, total: int) -> Iterator[str]:
    phase = step.phase
    if _is_local(phase):
        how = "moved inside each rank"
    else:
        how = "combined" if phase.reduces else "copied"
        how += ", written by the sources" if phase.pushed else ", read by the targets"
    yield ""
    yield f"step {step.index + 1} of {total}: {plural(phase.flows, 'flow')}, {how}"
    lines = range(phase.flows)
    cut = phase.flows > FIRST_FLOWS + LAST_FLOWS + 1
    for flow in lines[:FIRST_FLOWS] if cut else lines:
        yield _flow(schedule, step, flow)
    if cut:
        yield f"  ... {phase.flows - FIRST_FLOWS - LAST_FLOWS} more flows ..."
        for flow in lines[-LAST_FLOWS:]:
            yield _flow(schedule, step, flow)


def _flow(schedule: Schedule, step: Step, flow: int) -> str:
    width = int(step.phase.width[flow])
    read = slot_range(schedule, int(step.source_slot[flow]), width)
    written = slot_range(schedule, int(step.target_slot[flow]), width)
    digits = len(str(schedule.ranks - 1))
    what = read if read == written else f"{read} -> {written}"
    ends = f"{step.source[flow]:>{digits}} -> {step.target[flow]:>{digits}}"
    return f"  rank {ends}   {'slot' if width == 1 else 'slots'} {what}"


def _range(name: str, width: int, piece: int) -> str:
    return name if width == 1 else f"{name}-{piece + width - 1}"


def _cells(state: Contributions) -> list[list[str]]:
    schedule = state.schedule
    return [[state.show(rank, slot) for slot in range(schedule.slots)] for rank in range(schedule.ranks)]


def _table(schedule: Schedule, before: list[list[str]], after: list[list[str]]) -> Iterator[str]:
    marked = [
        [cell + ("*" if cell != old else " ") for old, cell in zip(olds, cells, strict=True)]
        for olds, cells in zip(before, after, strict=True)
    ]
    heads = [slot_name(schedule, slot) for slot in range(schedule.slots)]
    if schedule.slots == schedule.pieces:
        heads = [f"slot {head}" for head in heads]
    widths = [max(len(head), *(len(cells[column]) for cells in marked)) for column, head in enumerate(heads)]
    yield _line("", heads, widths)
    for rank, cells in enumerate(marked):
        yield _line(f"rank {rank}", cells, widths)


def _line(name: str, cells: list[str], widths: list[int]) -> str:
    padded = [cell.ljust(width) for cell, width in zip(cells, widths, strict=True)]
    return f"  {name:<6} | {' '.join(padded)}".rstrip()


def _is_local(phase: Phase) -> bool:
    return not bool(np.any(phase.source != phase.target))
