"""What the interpreted schedule must leave in every output: the schedule itself, step by step in NumPy.

Nothing here is shared with the compiler: a step reads what was there before it, contributions to a slot are
combined in the order of the ranks that hold them, and an average is divided at the very end.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from ccbench.backends.kernels.abi import TYPE_BYTES
from ccbench.backends.kernels.programs import compiled_program
from ccbench.collectives import collective
from ccbench.errors import ScheduleError
from ccbench.schedules import ALGORITHMS, schedule_for
from ccbench.schedules.schedule import Schedule
from tests.backends.kernels.orders import Array, channel_parts, combined, finished
from tests.backends.kernels.worlds import Reference, Trial

Slots = dict[tuple[int, int], Array]
"""(rank, slot) -> its elements."""

Span = tuple[int, int]


def schedule_of(name: str, ranks: int, root: int, pieces: int = 0) -> Schedule | None:
    """The schedule of ``all_reduce ring`` and the like; None where there is none on so many ranks.

    pieces: where its parameter is their number; 0 for the usual one.
    """
    of, algorithm = name.split()
    row = next(
        algorithm_row
        for algorithm_row in ALGORITHMS
        if (algorithm_row.collective, algorithm_row.name) == (of, algorithm)
    )
    parameter = pieces if row.parameter.startswith("pieces") and pieces else None
    try:
        return schedule_for(of, algorithm, ranks, root, parameter)
    except ScheduleError:
        return None


def chunk_bytes(
    schedule: Schedule, channels: int, slot_bytes: int, staging_bytes: int, in_place: bool
) -> int:
    """``chunk_of`` of schedule.cu."""
    program = compiled_program(schedule)
    chunk = min(slot_bytes, 128 << 10) // int(program[4])  # CHAIN_BYTES of block.cuh
    places = int(program[7 if in_place else 5])
    if places:
        chunk = min(chunk, staging_bytes // (places * channels))
    return chunk // 16 * 16


def schedule_reference(schedule: Schedule, channels: int, chunk: int) -> Reference:
    """The reference for ``schedule``. chunk: bytes of a piece in one pass of the kernel."""

    def outputs(trial: Trial, inputs: Sequence[Array]) -> list[Array]:
        row = collective(schedule.collective)
        ranks, root = schedule.ranks, max(schedule.root, 0)
        counts = [row.output_count(trial.count, ranks, rank, root) for rank in range(ranks)]
        results = [np.zeros(count, inputs[root].dtype) for count in counts]
        for spans in _passes(schedule, trial, channels, chunk):
            slots: Slots = {}
            for rank in range(ranks):
                held = row.inputs(rank, ranks, schedule.pieces, root)
                for index, slot in enumerate(held):
                    begin, end = spans[index]
                    slots[rank, slot] = inputs[rank][begin:end]
            slots = _after(schedule, slots, trial.op)
            for rank in range(ranks):
                for index, slot in enumerate(row.outputs(rank, ranks, schedule.pieces, root)):
                    begin, end = spans[index]
                    total = slots[rank, slot]
                    results[rank][begin:end] = (
                        finished(total, trial.op, ranks) if row.reduces else total
                    )
        return results

    return outputs


def _passes(
    schedule: Schedule, trial: Trial, channels: int, chunk_bytes: int
) -> Iterator[list[Span]]:
    """For every channel and pass the elements of each piece, counted from the start of a rank's buffer."""
    item = TYPE_BYTES[trial.dtype]
    chunk, granule, pieces = chunk_bytes // item, 16 // item, schedule.pieces
    blocked = collective(schedule.collective).blocked
    for begin, end in channel_parts(trial.count, channels, item):
        while begin < end:
            if blocked:
                size = min(chunk, end - begin)
                yield [
                    (p * trial.count + begin, p * trial.count + begin + size)
                    for p in range(pieces)
                ]
                begin += size
            else:
                share = -(-(end - begin) // pieces)
                size = min(chunk, -(-share // granule) * granule)
                edges = [min(begin + p * size, end) for p in range(pieces + 1)]
                yield list(itertools.pairwise(edges))
                begin += size * pieces


def _after(schedule: Schedule, slots: Slots, op: str) -> Slots:
    for step in schedule.expanded():
        incoming: dict[tuple[int, int], list[tuple[int, Array]]] = {}
        for flow in range(step.phase.flows):
            source, target = int(step.source[flow]), int(step.target[flow])
            for inside in range(int(step.phase.width[flow])):
                read = int(schedule.wrapped(step.source_slot[flow : flow + 1], inside)[0])
                write = int(schedule.wrapped(step.target_slot[flow : flow + 1], inside)[0])
                incoming.setdefault((target, write), []).append((source, slots[source, read]))
        after = dict(slots)
        for key, arrived in incoming.items():
            if step.phase.reduces:
                arrived = sorted(
                    [(key[0], slots[key]), *arrived], key=lambda part_of_rank: part_of_rank[0]
                )
            result = arrived[0][1]
            for _, part in arrived[1:]:
                result = combined(result, part, op)
            after[key] = result
        slots = after
    return slots
