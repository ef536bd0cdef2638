"""Runs compiled programs in one thread, in any order that their waits allow.

Every rank advances one operation at a time; which rank goes next is random. A wait that is missing shows
as a wrong result in some order, a wait too many as a deadlock in every order.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import numpy as np

from ccbench.backends.cpu.execution import Buffers
from ccbench.backends.cpu.program import COPY, REDUCE, CompiledCase, Operation, compile_case
from ccbench.collectives import collective
from ccbench.schedules.placement import SlotLayout, SlotPlace, Space
from ccbench.verification import Array

LOOKS_LIMIT = 250
"""So many looks in a row for each rank that find nothing to do: nobody will ever go on."""


class Deadlock(AssertionError):
    """No rank can go on."""


def buffers_of(compiled: CompiledCase, dtype: type) -> Buffers:
    """Buffers for all ranks, filled with a value that no test uses."""
    layout = compiled.layout
    buffers: Buffers = {}
    for rank in range(layout.schedule.ranks):
        for space in Space:
            count = (
                compiled.work_elements[rank]
                if space is Space.WORK
                else layout.buffer_elements(rank, space)
            )
            buffers[(rank, space)] = np.full(count, -99, dtype)
    return buffers


def run_in_random_order(
    compiled: CompiledCase, buffers: Buffers, launches: int, seed: int
) -> None:
    """``launches`` launches back to back (sums only), ranks drifting apart as far as the waits let them."""
    progress = [0] * compiled.layout.schedule.ranks
    in_random_order(
        {
            rank: rank_steps(compiled, rank, buffers, progress, launches)
            for rank in compiled.programs
        },
        random.Random(seed),
    )


def in_random_order(steps: dict[int, Iterator[bool]], chooser: random.Random) -> None:
    """Take ranks' steps until all have ended; Deadlock where many in a row find nothing to do."""
    # A rank that is favoured for a while drifts ahead, which is what uncovers missing waits.
    weights = [chooser.choice([1, 1, 20]) for _ in steps]
    stuck, limit = 0, LOOKS_LIMIT * len(steps)
    while steps:
        ranks = list(steps)
        rank = chooser.choices(ranks, [weights[r] for r in ranks])[0]
        moved = next(steps[rank], None)
        if moved is None:
            del steps[rank]
        stuck = stuck + 1 if moved is False else 0
        if stuck > limit:
            raise Deadlock(f"unfinished: {sorted(steps)}")
        if chooser.random() < 0.01:
            weights = [chooser.choice([1, 1, 20]) for _ in weights]


def rank_steps(
    compiled: CompiledCase,
    rank: int,
    buffers: Buffers,
    progress: list[int],
    launches: int,
    enter: Callable[[int], None] = lambda launch: None,
    leave: Callable[[int], None] = lambda launch: None,
) -> Iterator[bool]:
    """Yields after every operation (True) and every look at a flag that was not there yet (False)."""
    program = compiled.programs[rank]
    for launch in range(launches):
        base = 1 + launch * compiled.stride
        enter(launch)
        progress[rank] = base
        yield True
        for group in program.groups:
            for peer, offset in group.waits:
                while progress[peer] < base + offset:
                    yield False
            for loop in group.loops:
                for operation in loop.operations:
                    execute(operation, buffers)
                    yield True
            progress[rank] = base + group.post
            yield True
        for peer, offset in program.exit_waits:
            while progress[peer] < base + offset:
                yield False
        leave(launch)
        yield True


def execute(operation: Operation, buffers: Buffers) -> None:
    """Do one operation (sums only) on all of its elements."""

    def view(place: SlotPlace) -> Array:
        return buffers[(place.rank, place.space)][place.offset : place.offset + place.elements]

    if operation.kind == COPY:
        view(operation.target)[:] = view(operation.sources[0])
    elif operation.kind == REDUCE:
        view(operation.target)[:] = view(operation.sources[0]) + view(operation.sources[1])


def compiled(schedule, count: int, in_place: bool) -> CompiledCase:  # type: ignore[no-untyped-def]
    """All ranks' programs."""
    return compile_case(SlotLayout(schedule, count, in_place))


def fill(compiled: CompiledCase, rank: int, buffers: Buffers, values: Array) -> None:
    """Write a rank's input where it lies."""
    done = 0
    for place in compiled.layout.input_places(rank):
        part = values[done : done + place.elements]
        buffers[(rank, place.space)][place.offset : place.offset + place.elements] = part
        done += place.elements


def output_of(compiled: CompiledCase, rank: int, buffers: Buffers) -> Array:
    """A copy of a rank's output in buffer order."""
    parts = [
        buffers[(rank, place.space)][place.offset : place.offset + place.elements]
        for place in compiled.layout.output_places(rank)
    ]
    return np.concatenate([np.empty(0, np.int64), *parts])


def run_and_collect(
    case_compiled: CompiledCase, inputs: list[Array], launches: int, seed: int
) -> list[Array]:
    """Fill inputs, run, and return every rank's output; inputs must survive out of place."""
    layout = case_compiled.layout
    buffers = buffers_of(case_compiled, np.int64)
    for rank, values in enumerate(inputs):
        fill(case_compiled, rank, buffers, values)
    run_in_random_order(case_compiled, buffers, launches, seed)
    if not layout.in_place and collective(layout.schedule.collective).moves_data:
        assert all(
            np.array_equal(buffers[(rank, Space.INPUT)], values)
            for rank, values in enumerate(inputs)
        )
    return [output_of(case_compiled, rank, buffers) for rank in range(len(inputs))]
