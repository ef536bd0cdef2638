"""Plans of threadblocks, made schedules: waiting becomes steps.

Where a plan orders all that must be ordered (``ordering``), every order that the hardware may choose gives
the same result, and a schedule of steps may stand for all of them.

Not checked: that threads of a block meet before they signal.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import numpy as np

from ccbench.readers.schedules.ordering import in_order, refuse_races
from ccbench.readers.schedules.plans import (
    Chunk,
    ChunkLayout,
    Flow,
    PlanOperation,
    StepPlace,
    ThreadblockPlan,
)
from ccbench.schedules.proof import WrongSlot, prove
from ccbench.schedules.schedule import Schedule, phase


def schedule_of(plan: ThreadblockPlan) -> Schedule:
    """Return the schedule that does what ``plan`` does, proven.

    Raises ScheduleError with the place for what waits forever, races, reads what nobody has written, or
    leaves a wrong result.
    """
    layout = ChunkLayout(plan)
    order = in_order(plan)
    refuse_races(plan, layout, order)
    flows = layout.with_outputs(_timed(layout, order))
    times: dict[int, list[tuple[int, int, int, int]]] = defaultdict(list)
    for flow in flows:
        if layout.moves(flow):
            ends = layout.slot(flow.source), layout.slot(flow.target)
            times[flow.time].append((flow.source[0], flow.target[0], *ends))
    pieces, slots = layout.pieces, layout.slots
    if layout.chunks > 1:
        times, slots = _first_chunks(plan, layout, times)
        pieces //= layout.chunks
    phases = []
    for time in sorted(times):
        source, target, read, written = np.array(times[time], np.int32).T
        reduces = time % 2 == 1
        crowded = len({(rank, slot) for _, rank, _, slot in times[time]}) < len(times[time])
        phases.append(
            phase(source, target, read, written, reduces=reduces, fan_in=reduces and crowded)
        )
    built = Schedule(
        plan.collective,
        plan.name,
        plan.gpus,
        pieces,
        slots,
        tuple(phases),
        root=0 if layout.row.rooted else -1,
    )
    try:
        prove(built)
    except WrongSlot as error:
        raise plan.error(_last_writer(layout, flows, error), str(error)) from None
    return built


def _last_writer(layout: ChunkLayout, flows: list[Flow], error: WrongSlot) -> StepPlace | str:
    """Return where the plan writes a wrong slot last, up to the step at fault."""
    times = sorted({flow.time for flow in flows if layout.moves(flow)})[: error.step + 1]
    # Of blocks of several chunks the first stands for all.
    slot = error.slot * layout.chunks
    writers = [
        (flow.time, flow.place)
        for flow in flows
        if flow.place
        and flow.time <= times[-1]
        and (flow.target[0], layout.slot(flow.target)) == (error.rank, slot)
    ]
    return max(writers, key=lambda writer: writer[0])[1] if writers else f"gpu {error.rank}"


def _timed(layout: ChunkLayout, order: list[PlanOperation]) -> list[Flow]:
    """Return the flows of all operations. Copies have even times and sums odd ones, so that no step has both."""
    flows: list[Flow] = []
    over: dict[PlanOperation, int] = {}

    def move(time: int, source: Chunk, target: Chunk) -> None:
        flows.append(Flow(time, source, target, operation.place))

    for operation in order:
        ready = over[operation] = max((over[earlier] for earlier in operation.after), default=0)
        if not (operation.sources and operation.targets):
            continue
        for at in range(len(operation.sources[0])):
            sources = [layout.canonical(operand[at]) for operand in operation.sources]
            targets = [layout.canonical(operand[at]) for operand in operation.targets]
            standing, time = sources[0], ready
            if len(sources) > 1:
                inside = [target for target in targets if target in sources]
                standing = (inside or targets)[0]
                if inside:
                    sources.remove(standing)
                else:
                    time += 2 - time % 2
                    move(time, sources.pop(0), standing)
                time += 1 + time % 2
                for source in sources:
                    move(time, source, standing)
                targets = [target for target in targets if target != standing]
            if targets:
                time += 2 - time % 2
                for target in targets:
                    move(time, standing, target)
            over[operation] = max(over[operation], time)
    return flows


def _first_chunks(
    plan: ThreadblockPlan,
    layout: ChunkLayout,
    times: Mapping[int, list[tuple[int, int, int, int]]],
) -> tuple[dict[int, list[tuple[int, int, int, int]]], int]:
    """Return the flows of the first chunk of every block, and the slots they need.

    A block is one piece here: ScheduleError unless all its chunks go the same ways in the same order.
    """
    each, own = layout.chunks, layout.row.slots(plan.gpus, layout.pieces)
    carried: dict[tuple[int, int], int] = {}
    renamed: list[dict[tuple[int, int], int]] = [{} for _ in range(each)]
    extra: list[dict[int, int]] = [defaultdict(int) for _ in range(each)]
    ways: list[dict[int, list[tuple[int, int, int, int]]]] = [
        defaultdict(list) for _ in range(each)
    ]

    def slot(of: int, rank: int, number: int) -> int:
        if number < own:
            return number // each
        if (rank, number) not in renamed[of]:
            renamed[of][rank, number] = own // each + extra[of][rank]
            extra[of][rank] += 1
        return renamed[of][rank, number]

    for time in sorted(times):
        for source, target, read, written in sorted(times[time]):
            of = read % each if read < own else carried[source, read]
            if written < own and written % each != of:
                raise plan.error(
                    plan.collective,
                    f"chunk {of} of a block goes where chunk {written % each} belongs; expected chunks of one "
                    "number to stay together",
                )
            carried[target, written] = of
            ways[of][time].append(
                (source, target, slot(of, source, read), slot(of, target, written))
            )
    orders = [[sorted(way[time]) for time in sorted(way)] for way in ways]
    for of, order in enumerate(orders):
        if order != orders[0]:
            raise plan.error(
                plan.collective,
                f"chunk {of} of a block goes other ways than chunk 0; only blocks that stay whole can be "
                "steps of a schedule here",
            )
    regions = -(-max(extra[0].values(), default=0) // plan.gpus)
    return ways[0], own // each + regions * plan.gpus
