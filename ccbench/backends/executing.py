"""Schedules executed on small buffers by one process, all ranks' memory in one array, and results checked.

What the simulated backend does in place of running anything: times are the model's, results are computed.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ccbench.backends.cpu.lane import amounts_of
from ccbench.cases import NO_OP, NO_ROOT, Case
from ccbench.collectives import collective
from ccbench.dtypes import item_bytes, numpy_dtype
from ccbench.schedules.placement import Layout
from ccbench.schedules.schedule import Schedule, Step
from ccbench.verification import GROUP_SEEDS, Array, Part, fill, part_of, poison

CHECKED_ELEMENTS = 4096
"""Most elements of a rank's buffer on which a schedule is executed."""

SEED = 1
"""Which of a case's data are taken."""

_UFUNCS = {"sum": np.add, "avg": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}


def wrong_elements(schedule: Schedule, case: Case, seeds: int = 0) -> tuple[int, int]:
    """(wrong elements over all ranks, the count on which the schedule was executed).

    Every group runs the schedule on data of its own. seeds: how far these are from those of a collective that
    runs beside.
    """
    row = collective(case.collective)
    most = max(1, CHECKED_ELEMENTS // case.group_ranks) if row.blocked else CHECKED_ELEMENTS
    count = min(case.count, most)
    size_bytes = row.size_bytes(count, case.group_ranks, item_bytes(case.dtype))
    # Two cases that differ in size alone then ask for the same check, which is made once.
    small = replace(case, suite="", algorithm="", mode="", backend="", count=count, size_bytes=size_bytes)
    return _checked(schedule, small, seeds), count


@lru_cache(maxsize=256)
def _checked(schedule: Schedule, case: Case, seeds: int) -> int:
    return sum(_of_group(schedule, case, members, seeds) for members in case.members)


def _of_group(schedule: Schedule, case: Case, members: tuple[int, ...], seeds: int) -> int:
    parts = [part_of(case, rank) for rank in members]
    taking_part: list[Part] = [part for part in parts if part is not None]
    seed = SEED + seeds
    outputs = execute(schedule, taking_part[0].case, seed + taking_part[0].group * GROUP_SEEDS)
    found = [part.check(outputs[part.group_rank], seed, launches=1) for part in taking_part]
    return sum(mismatch.wrong_elements for mismatch in found if mismatch is not None)


def execute(schedule: Schedule, case: Case, seed: int = SEED) -> list[NDArray[np.generic]]:
    """Outputs of every rank, in buffer order, after running ``schedule`` on the data of ``case``.

    case: as the ranks of one group see it.

    Floating point types are computed in float64, in which their data and everything made of them are exact;
    whole numbers in int64, which wraps as they do.
    """
    row = collective(case.collective)
    dtype = numpy_dtype(case.dtype)
    root = 0 if case.root == NO_ROOT else case.root
    layout = Layout(schedule, case.count, in_place=False, sent=amounts_of(case))
    memory = _filled(layout, case, seed)
    ufunc = _UFUNCS[case.op if case.op != NO_OP else "max"]
    for step in schedule.expanded():
        _execute_step(step, schedule, memory, ufunc)
    if case.op == "avg" and row.reduces:
        memory = memory / case.ranks if memory.dtype.kind == "f" else memory // case.ranks
    outputs: list[NDArray[np.generic]] = []
    for rank in range(case.ranks):
        slots = row.outputs(rank, case.ranks, schedule.pieces, root)
        parts = [memory[rank, slot, : layout.slot_elements(rank, slot)] for slot in slots]
        whole = np.concatenate([*parts, np.zeros(0, memory.dtype)])
        outputs.append(whole.astype(dtype))
    return outputs


def _filled(layout: Layout, case: Case, seed: int) -> Array:
    """Memory of shape (ranks, slots, elements of the largest slot): inputs filled, the rest NaN or poison."""
    row, schedule = collective(case.collective), layout.schedule
    root = 0 if case.root == NO_ROOT else case.root
    ranks = range(case.ranks) if layout.sent else range(1)
    largest = max(layout.slot_elements(rank, slot) for rank in ranks for slot in range(schedule.pieces))
    shape = (case.ranks, schedule.slots, largest)
    if numpy_dtype(case.dtype).kind in "iu":
        memory: Array = np.empty(shape, np.int64)
        poison(memory)
    else:
        memory = np.full(shape, np.nan)
    for rank in range(case.ranks):
        slots = row.inputs(rank, case.ranks, schedule.pieces, root)
        sizes = [layout.slot_elements(rank, slot) for slot in slots]
        buffer = np.empty(sum(sizes), numpy_dtype(case.dtype))
        fill(case, rank, buffer, seed)
        begin = 0
        for slot, size in zip(slots, sizes, strict=True):
            memory[rank, slot, :size] = buffer[begin : begin + size]
            begin += size
    return memory


def _execute_step(step: Step, schedule: Schedule, memory: Array, ufunc: np.ufunc) -> None:
    width = step.phase.width
    flow = np.repeat(np.arange(len(width)), width)
    within = np.arange(len(flow)) - np.repeat(np.cumsum(width) - width, width)
    sources = step.source_slot[flow], step.source[flow]
    targets = step.target_slot[flow], step.target[flow]
    moved = memory[sources[1], _following(sources[0], within, schedule.pieces)]
    place = targets[1], _following(targets[0], within, schedule.pieces)
    if step.phase.reduces:
        ufunc.at(memory, place, moved)
    else:
        memory[place] = moved


def _following(slot: NDArray[np.int32], within: NDArray[np.int64], pieces: int) -> NDArray[np.int64]:
    """The slot ``within`` places on, inside its region of ``pieces`` slots."""
    return np.asarray(slot - slot % pieces + (slot % pieces + within) % pieces, dtype=np.int64)
