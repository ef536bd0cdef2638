"""A schedule in words and small tables, for people who want to understand it."""

from __future__ import annotations

from collections.abc import Iterator
from math import log2

import numpy as np

from ccbench.collectives import collective
from ccbench.schedules import ALGORITHMS, added_algorithms
from ccbench.schedules.orders import (
    MOST_MOVES,
    MOST_RANKS,
    bit_dependence,
    error_bound,
    followed,
    unit_roundoff,
)
from ccbench.schedules.proof import Contributions
from ccbench.schedules.schedule import Phase, Schedule, Step, sent_pieces
from ccbench.units import plural

MOST_RANKS_SHOWN = 8
MOST_PIECES_SHOWN = 8
FIRST_STEPS, LAST_STEPS = 8, 4
FIRST_FLOWS, LAST_FLOWS = 12, 4


def describe(schedule: Schedule) -> str:
    """Return the text of ``ccbench schedule``: a header, then every step with its flows.

    Up to 8 ranks and 8 pieces, a table after each step shows what every slot holds; what the step changed
    is marked with ``*``. Of long schedules the first 8 and the last 4 steps are told, of crowded steps the
    first 12 and the last 4 flows. Lines end with a newline; the text is ASCII.

    Raises ScheduleError where the schedule is too wrong to be followed (see ``proof``).
    """
    return "\n".join([*_header(schedule), *_body(schedule)]) + "\n"


def slot_name(schedule: Schedule, slot: int) -> str:
    """Return ``3`` where inputs and outputs share slots, else ``in 3``, ``out 3``; work: ``work 3``."""
    row = collective(schedule.collective)
    region, piece = divmod(slot, schedule.pieces)
    shared = row.slots(schedule.ranks, schedule.pieces) == schedule.pieces
    names = [""] if shared else ["in ", "out "]
    if region < len(names):
        return f"{names[region]}{piece}"
    extra = region - len(names)
    return f"work {piece}" if extra == 0 else f"work{extra + 1} {piece}"


def slot_range(schedule: Schedule, first: int, width: int) -> str:
    """Return ``width`` slots from ``first`` on: ``3``, ``2-3``, or around the end of the region ``3,0-1``."""
    pieces = schedule.pieces
    before_end = min(width, pieces - first % pieces)
    text = slot_name(schedule, first)
    if before_end > 1:
        text += f"-{first % pieces + before_end - 1}"
    around = width - before_end
    if around > 1:
        return f"{text},0-{around - 1}"
    return f"{text},0" if around else text


def _header(schedule: Schedule) -> Iterator[str]:
    row, pieces = collective(schedule.collective), schedule.pieces
    root = f", root {schedule.root}" if schedule.root >= 0 else ""
    yield f"{schedule.collective} {schedule.algorithm}, {plural(schedule.ranks, 'rank')}{root}"
    for algorithm in (*ALGORITHMS, *added_algorithms()):
        if (algorithm.collective, algorithm.name) == (schedule.collective, schedule.algorithm):
            if algorithm.parameter:
                yield f"parameter: {schedule.parameter} ({algorithm.parameter})"
            yield f"source: {algorithm.source or algorithm.file}"
    if row.blocked:
        yield f"pieces: {pieces}, one block for each rank"
    elif row.moves_data:
        yield f"pieces: {pieces}{', the whole buffer' if pieces == 1 else ' equal parts of the buffer'}"
    local = local_steps(schedule)
    yield f"steps: {schedule.steps}" + (f", and {local} of local moves" if local else "")
    yield f"sent by each rank: {sent_text(schedule)}"
    if row.reduces:
        yield from _bits(schedule)


def _bits(schedule: Schedule) -> Iterator[str]:
    if not followed(schedule):
        yield f"bits: not followed beyond {MOST_RANKS} ranks or {MOST_MOVES} moves of a slot"
        return
    bits = bit_dependence(schedule)
    # Only all_reduce leaves one sum on several ranks.
    holders = ""
    if schedule.collective == "all_reduce":
        holders = "; ranks differ" if bits.ranks else "; all ranks hold the same"
    if bits.positions:
        yield f"bits: depend on the position in the message, and so on its size{holders}"
    else:
        yield f"bits: the same at every position and size{holders}"
        # In place a root's own part may come first whatever the position.
        if schedule.root < 0 and bit_dependence(schedule, own_first=True).positions:
            yield (
                "in place on the cpu backend they depend on the position: there a rank begins with its own"
            )
    if bits.depth:
        units = ", ".join(
            f"2^{log2(unit_roundoff(dtype)):.0f} for {dtype} ({error_bound(bits.depth, dtype):.1e})"
            for dtype in ("float32", "bfloat16")
        )
        yield (
            f"error: at most {plural(bits.depth, 'rounding')}: {bits.depth} u / (1 - {bits.depth} u) of the sum "
            f"of magnitudes; u = {units}"
        )


def local_steps(schedule: Schedule) -> int:
    """Return the steps that only move pieces inside ranks; ``schedule.steps`` does not count them."""
    return sum(phase.repeat for phase in schedule.phases if _is_local(phase))


def proven_text(schedule: Schedule) -> str:
    """Return what a proof of ``schedule`` has shown, in one sentence without its full stop."""
    row, ranks = collective(schedule.collective), plural(schedule.ranks, "rank")
    if not row.moves_data:
        return f"every one of {ranks} has a signal from every other"
    if row.reduces:
        return f"every output of {ranks} holds every contribution exactly once"
    return f"every output of {ranks} holds the piece it should, and nothing else"


def sent_text(schedule: Schedule) -> str:
    """Return ``6 pieces = 1.5 x the size``: what each rank sends to others, a span where ranks differ."""
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
    # The steps that are not told; one alone would not save a line.
    hidden = range(total, total)
    if total > FIRST_STEPS + LAST_STEPS + 1:
        hidden = range(FIRST_STEPS, total - LAST_STEPS)
    gap = ("", f"... {plural(len(hidden), 'more step')} ...")
    if schedule.ranks > MOST_RANKS_SHOWN or schedule.pieces > MOST_PIECES_SHOWN:
        # Without tables, steps that are not told are not expanded either: there may be millions.
        first = 0
        for phase in schedule.phases:
            for turn in range(phase.repeat):
                if first + turn not in hidden:
                    yield from _step(schedule, schedule.turn(phase, turn, first + turn), total)
                elif first + turn == hidden.start:
                    yield from gap
            first += phase.repeat
        return
    row = collective(schedule.collective)
    meaning = "B2: piece B of rank 2's input"
    if not row.moves_data:
        meaning = "A0+A2: this rank has signals from ranks 0 and 2"
    elif row.reduces:
        meaning = "B0+B2: piece B of ranks 0 and 2, combined"
    yield from ("", f"{meaning}; -: empty; *: changed by the step", "", "before the first step")
    state = Contributions(schedule)
    cells = _cells(state)
    yield from _table(schedule, cells, cells)
    for step in schedule.expanded():
        state.apply(step)
        before, cells = cells, _cells(state)
        if step.index not in hidden:
            yield from _step(schedule, step, total)
            yield from _table(schedule, before, cells)
        elif step.index == hidden.start:
            yield from gap


def _step(schedule: Schedule, step: Step, total: int) -> Iterator[str]:
    phase = step.phase
    how = "moved inside each rank"
    if not _is_local(phase):
        how = "combined" if phase.reduces else "copied"
        how += ", written by the sources" if phase.pushed else ", read by the targets"
    yield ""
    yield f"step {step.index + 1} of {total}: {plural(phase.flows, 'flow')}, {how}"
    left_out = range(FIRST_FLOWS, phase.flows - LAST_FLOWS)
    digits = len(str(schedule.ranks - 1))
    shown = [*range(phase.flows)]
    if len(left_out) > 1:
        shown = [*range(left_out.start), *range(left_out.stop, phase.flows)]
    for flow in shown:
        if len(left_out) > 1 and flow == left_out.stop:
            yield f"  ... {len(left_out)} more flows ..."
        width = int(phase.width[flow])
        read = slot_range(schedule, int(step.source_slot[flow]), width)
        written = slot_range(schedule, int(step.target_slot[flow]), width)
        slots = read if read == written else f"{read} -> {written}"
        ends = f"{step.source[flow]:>{digits}} -> {step.target[flow]:>{digits}}"
        yield f"  rank {ends}   {'slot' if width == 1 else 'slots'} {slots}"


def _cells(state: Contributions) -> list[list[str]]:
    schedule = state.schedule
    return [
        [state.show(rank, slot) for slot in range(schedule.slots)]
        for rank in range(schedule.ranks)
    ]


def _table(
    schedule: Schedule, before: list[list[str]], after: list[list[str]]
) -> Iterator[str]:
    marked = [
        [cell + ("*" if cell != old else " ") for old, cell in zip(olds, cells, strict=True)]
        for olds, cells in zip(before, after, strict=True)
    ]
    heads = [slot_name(schedule, slot) for slot in range(schedule.slots)]
    if schedule.slots == schedule.pieces:
        heads = [f"slot {head}" for head in heads]
    widths = [
        max(len(head), *(len(cells[column]) for cells in marked))
        for column, head in enumerate(heads)
    ]
    for name, cells in (
        ("", heads),
        *((f"rank {rank}", cells) for rank, cells in enumerate(marked)),
    ):
        padded = [cell.ljust(width) for cell, width in zip(cells, widths, strict=True)]
        yield f"  {name:<6} | {' '.join(padded)}".rstrip()


def _is_local(phase: Phase) -> bool:
    return not bool(np.any(phase.source != phase.target))
