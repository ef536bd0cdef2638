"""Orders that a plan of threadblocks keeps: refused are races, and operations that wait forever.

Ordered are a threadblock's own operations, dependencies, signals and barriers. Two operations that
touch a chunk, of which at least one writes it, must be ordered (vector clocks: Fidge, Timestamps in
message-passing systems that preserve the partial ordering, 1988).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ccbench.readers.schedules.plans import Chunk, ChunkLayout, PlanOperation, ThreadblockPlan

MOST_CLOCK_BYTES = 1 << 30
"""Of the table of clocks: 4 bytes for every operation and threadblock."""


def in_order(plan: ThreadblockPlan) -> list[PlanOperation]:
    """Return the operations, each behind all that it waits for; ScheduleError where some wait forever."""
    waits: dict[PlanOperation, int] = {}
    waiting: dict[PlanOperation, list[PlanOperation]] = defaultdict(list)
    for block in plan.blocks:
        for before, operation in zip([None, *block], block, strict=False):
            needed = [*operation.after, *([before] if before else [])]
            operation.after = needed
            waits[operation] = len(needed)
            for earlier in needed:
                waiting[earlier].append(operation)
    order = [operation for operation, number in waits.items() if not number]
    for operation in order:
        for later in waiting[operation]:
            waits[later] -= 1
            if not waits[later]:
                order.append(later)
    if len(order) < len(waits):
        done = set(order)
        # The first of a circle says most: what is behind it only waits in its threadblock.
        stuck = next(operation for operation in waits if operation not in done)
        seen = [stuck]
        while (
            blocker := next(earlier for earlier in seen[-1].after if earlier not in done)
        ) not in seen:
            seen.append(blocker)
        circle = seen[seen.index(blocker) :]
        ways = ", which waits for ".join(f"{operation.place}" for operation in circle[1:])
        raise plan.error(
            circle[0].place,
            f"{circle[0].name} waits forever: for {ways or 'itself'}"
            f"{', which waits for it' if ways else ''}; change the order or the dependencies",
        )
    return order


def refuse_races(
    plan: ThreadblockPlan, layout: ChunkLayout, order: list[PlanOperation]
) -> None:
    """ScheduleError for two operations on a chunk that nothing orders, and for a read of nothing."""
    column = {block[0]: index for index, block in enumerate(plan.blocks) if block}
    of = {operation: column[block[0]] for block in plan.blocks for operation in block}
    if 4 * len(order) * len(plan.blocks) > MOST_CLOCK_BYTES:
        raise plan.error("plan", f"{len(order)} operations are too many to check for races")
    row = {operation: index for index, operation in enumerate(order)}
    clocks: NDArray[np.int32] = np.full((len(order), len(plan.blocks)), -1, np.int32)
    writer: dict[Chunk, PlanOperation] = {}
    readers: dict[Chunk, list[PlanOperation]] = defaultdict(list)

    def check(operation: PlanOperation, earlier: PlanOperation, chunk: Chunk) -> None:
        if clocks[row[operation], of[earlier]] < earlier.place.step:
            raise plan.error(
                operation.place,
                f"{operation.name} on {layout.named(chunk)} races with {earlier.name} of {earlier.place}: nothing "
                "orders them; add a dependency",
            )

    for index, operation in enumerate(order):
        clock = clocks[index]
        for earlier in operation.after:
            np.maximum(clock, clocks[row[earlier]], out=clock)
        clock[of[operation]] = operation.place.step
        for chunk in _chunks(layout, operation.sources):
            if chunk in writer:
                check(operation, writer[chunk], chunk)
            elif not layout.is_input(chunk):
                raise plan.error(
                    operation.place,
                    f"{operation.name} reads {layout.named(chunk)}, to which nothing was written before; write it "
                    "first, or wait for who does",
                )
            readers[chunk].append(operation)
        for chunk in _chunks(layout, operation.targets):
            for earlier in (
                *readers.pop(chunk, ()),
                *([writer[chunk]] if chunk in writer else ()),
            ):
                if earlier is not operation:
                    check(operation, earlier, chunk)
            writer[chunk] = operation


def _chunks(layout: ChunkLayout, operands: list[list[Chunk]]) -> Iterator[Chunk]:
    for operand in operands:
        yield from (layout.canonical(chunk) for chunk in operand)
