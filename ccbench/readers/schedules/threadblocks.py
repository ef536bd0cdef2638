"""Plans of threadblocks, made schedules: their order is followed, races are refused, waiting becomes steps.

A plan is a list of operations for every threadblock of every GPU. What is ordered is what the plan orders: a
threadblock's own operations, explicit dependencies, messages, signals and barriers. Two operations that touch
a chunk, of which at least one writes it, must be ordered (vector clocks: Fidge, Timestamps in message-passing
systems that preserve the partial ordering, 1988); then every order that the hardware may choose gives the
same result, and a schedule of steps may stand for all of them.

Not checked: how many messages fit between two GPUs before the sender waits, and that threads of a block meet
before they signal.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ccbench.collectives import collective
from ccbench.errors import ScheduleError
from ccbench.schedules.proof import WrongSlot, prove
from ccbench.schedules.schedule import Phase, Schedule, phase

Chunk = tuple[int, str, int]
"""(GPU, buffer, index). Buffers: i, o and s of the plan, m for messages, t for sums that are not kept."""

COLLECTIVES = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "broadcast": "broadcast",
    "reduce": "reduce",
}
"""By the names in plans."""

MOST_CLOCK_BYTES = 1 << 30


@dataclass(frozen=True)
class Place:
    """Where an operation stands in a plan."""

    gpu: int
    block: int
    step: int

    def __str__(self) -> str:
        return f"gpu {self.gpu}, threadblock {self.block}, step {self.step}"


@dataclass(eq=False)
class Operation:
    """The sum of sources, written to every target; nothing where there are none.

    sources, targets: chunks in order, each with as many operands as the operation is wide: [operand][chunk].
    after: operations that come before it, besides that before it in its threadblock.
    """

    place: Place
    name: str
    sources: list[list[Chunk]] = field(default_factory=list)
    targets: list[list[Chunk]] = field(default_factory=list)
    after: list[Operation] = field(default_factory=list)


@dataclass
class Plan:
    """A plan as its file has it.

    input_chunks, output_chunks: of each GPU. parts: into how many of these the file's own chunks are cut.
    blocks: operations of every threadblock, in order.
    """

    file: str
    collective: str
    name: str
    in_place: bool
    input_chunks: int
    output_chunks: int
    gpus: int
    parts: int = 1
    blocks: list[list[Operation]] = field(default_factory=list)

    def error(self, place: Place | str, text: str) -> ScheduleError:
        """Return the error that names the file and the place."""
        return ScheduleError(f"{self.file}: {place}: {text}")


@dataclass(frozen=True)
class Flow:
    """A chunk that is copied, or added, at a time; place: of the operation that writes it.

    since: when a message's source had its value.
    """

    time: float
    source: Chunk
    target: Chunk
    place: Place | None = None
    since: float | None = None


def schedule_of(plan: Plan) -> Schedule:
    """Return the schedule that does what ``plan`` does, proven.

    Raises ScheduleError with the place for what waits forever, races, reads what nobody has written, or
    leaves a wrong result.
    """
    layout = _Layout(plan)
    order = _in_order(plan)
    _refuse_races(plan, layout, order)
    flows = layout.with_outputs(_staged(_timed(layout, order)))
    built = _stepped(plan, layout, flows)
    try:
        prove(built)
    except WrongSlot as error:
        raise plan.error(_last_writer(layout, flows, error), str(error)) from None
    return built


def _last_writer(layout: _Layout, flows: list[Flow], error: WrongSlot) -> Place | str:
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


class _Layout:
    """Slots of a plan's chunks: pieces are chunks, regions behind the collective's own are scratch and sums."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.row = plan, collective(plan.collective)
        shared = max(plan.input_chunks, plan.output_chunks)
        self.chunks = 1
        if self.row.blocked:
            self.chunks, rest = divmod(shared, plan.gpus)
            if rest or not self.chunks:
                raise plan.error(
                    plan.collective, f"{shared} chunks, expected a multiple of {plan.gpus} GPUs"
                )
        self.pieces = shared
        if plan.in_place and plan.collective == "all_to_all":
            raise plan.error("inplace", "an all_to_all in place has no schedule here")
        self._extra: dict[int, dict[Chunk, int]] = defaultdict(dict)
        self.separate = False

    def canonical(self, chunk: Chunk) -> Chunk:
        """Return one name for one memory: in place, inputs and outputs share buffers."""
        gpu, buffer, index = chunk
        if buffer not in "io":
            return chunk
        own = {"i": "all_gather", "o": "reduce_scatter"}[buffer] == self.plan.collective
        base = gpu * self.chunks if own else 0
        return gpu, "o" if self.plan.in_place else buffer, base + index

    def named(self, chunk: Chunk) -> str:
        """Return a canonical chunk in words."""
        gpu, buffer, index = chunk
        names = {"i": "input", "o": "output", "s": "scratch", "m": "message"}
        if self.plan.in_place:
            names["o"] = "shared"
        number, part = divmod(index, self.plan.parts)
        cut = f", part {part + 1} of {self.plan.parts}," if self.plan.parts > 1 else ""
        return f"{names[buffer]} chunk {number}{cut} of gpu {gpu}"

    def is_input(self, chunk: Chunk) -> bool:
        """Return True for a chunk that holds the rank's data before the first step."""
        gpu, buffer, index = chunk
        slots = self.row.inputs(gpu, self.plan.gpus, self.pieces, 0)
        if self.plan.collective == "all_gather":
            slots = range(gpu * self.chunks, (gpu + 1) * self.chunks)
        return buffer == ("o" if self.plan.in_place else "i") and index in slots

    def with_outputs(self, flows: list[Flow]) -> list[Flow]:
        """Return ``flows`` with copies to the output where it cannot share slots with the input."""
        if self.plan.in_place or self.plan.collective == "all_to_all":
            return flows
        read: dict[tuple[int, int], float] = {}
        written: dict[tuple[int, int], float] = {}
        for flow in flows:
            for chunk, times in ((flow.source, read), (flow.target, written)):
                gpu, buffer, index = chunk
                if buffer == "i":
                    times[gpu, index] = max(flow.time, times.get((gpu, index), 0))
        first: dict[tuple[int, int], float] = {}
        for flow in flows:
            gpu, buffer, index = flow.target
            if buffer == "o":
                first[gpu, index] = min(flow.time, first.get((gpu, index), flow.time))
        # An input that is read after its output was written keeps a place of its own.
        self.separate = any(
            read.get(key, 0) > time or key in written for key, time in first.items()
        )
        last = max((flow.time for flow in flows), default=0.0) + 2
        end = last - last % 2
        copies = [Flow(end, (gpu, "o", index), (gpu, "i", index)) for gpu, index in first]
        return flows + copies if self.separate else flows

    def moves(self, flow: Flow) -> bool:
        """Return False where source and target share a slot, so that nothing is to be copied."""
        ends = [(chunk[0], self.slot(chunk)) for chunk in (flow.source, flow.target)]
        return ends[0] != ends[1]

    def slot(self, chunk: Chunk) -> int:
        """Return the slot of a chunk; what is no input or output gets the next free one."""
        gpu, buffer, index = chunk
        if buffer == "i" or (buffer == "o" and not self.separate):
            shift = buffer == "o" and self.plan.collective == "all_to_all"
            return index + self.pieces * shift
        extra = self._extra[gpu]
        return self.row.slots(self.plan.gpus, self.pieces) + extra.setdefault(chunk, len(extra))

    @property
    def slots(self) -> int:
        """Slots of every rank, in whole regions."""
        extra = max((len(extra) for extra in self._extra.values()), default=0)
        regions = -(-extra // self.pieces)
        return self.row.slots(self.plan.gpus, self.pieces) + regions * self.pieces


def _in_order(plan: Plan) -> list[Operation]:
    """Return the operations, each behind all that it waits for; ScheduleError where some wait forever."""
    waits: dict[Operation, int] = {}
    waiting: dict[Operation, list[Operation]] = defaultdict(list)
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


def _refuse_races(plan: Plan, layout: _Layout, order: list[Operation]) -> None:
    """ScheduleError for two operations on a chunk that nothing orders, and for a read of nothing."""
    column = {block[0]: index for index, block in enumerate(plan.blocks) if block}
    of = {operation: column[block[0]] for block in plan.blocks for operation in block}
    if 4 * len(order) * len(plan.blocks) > MOST_CLOCK_BYTES:
        raise plan.error("plan", f"{len(order)} operations are too many to check for races")
    row = {operation: index for index, operation in enumerate(order)}
    clocks: NDArray[np.int32] = np.full((len(order), len(plan.blocks)), -1, np.int32)
    writer: dict[Chunk, Operation] = {}
    readers: dict[Chunk, list[Operation]] = defaultdict(list)

    def check(operation: Operation, earlier: Operation, chunk: Chunk) -> None:
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


def _chunks(layout: _Layout, operands: list[list[Chunk]]) -> Iterator[Chunk]:
    for operand in operands:
        yield from (layout.canonical(chunk) for chunk in operand)


def _timed(layout: _Layout, order: list[Operation]) -> list[Flow]:
    """Return the flows of all operations. Copies have even times and sums odd ones, so that no step has both."""
    flows: list[Flow] = []
    over: dict[Operation, int] = {}
    # Where the value of a message stands, and since when.
    messages: dict[Chunk, tuple[Chunk, int | None]] = {}
    sums = 0

    def move(time: int, source: Chunk, target: Chunk) -> None:
        value, since = messages.get(source, (source, None))
        flows.append(Flow(time, value, target, operation.place, since))

    for operation in order:
        ready = over[operation] = max((over[earlier] for earlier in operation.after), default=0)
        if not operation.sources:
            continue
        for at in range(len(operation.sources[0])):
            sources = [layout.canonical(operand[at]) for operand in operation.sources]
            targets = [layout.canonical(operand[at]) for operand in operation.targets]
            kept = [target for target in targets if target[1] != "m"]
            standing, time = sources[0], ready
            if len(sources) > 1:
                inside = [target for target in kept if target in sources]
                if inside:
                    standing = inside[0]
                    sources.remove(standing)
                else:
                    sums += not kept
                    standing = kept[0] if kept else (operation.place.gpu, "t", -sums)
                    time += 2 - time % 2
                    # Of a message and the GPU's own chunk the latter is there already.
                    sources.sort(key=lambda chunk: chunk[1] == "m")
                    move(time, sources.pop(0), standing)
                time += 1 + time % 2
                for source in sources:
                    move(time, source, standing)
                kept = [target for target in kept if target != standing]
            if kept:
                time += 2 - time % 2
                for target in kept:
                    move(time, standing, target)
                standing = kept[0] if standing[1] == "m" else standing
            over[operation] = max(over[operation], time)
            messages.update(
                {target: (standing, time) for target in targets if target[1] == "m"}
            )
    return flows


def _staged(flows: list[Flow]) -> list[Flow]:
    """Return flows with a message kept aside where its source is overwritten before it is received."""
    written: dict[Chunk, list[float]] = defaultdict(list)
    for flow in flows:
        written[flow.target].append(flow.time)
    staged = []
    for number, flow in enumerate(flows):
        since = flow.since
        if since is not None and any(since < time < flow.time for time in written[flow.source]):
            aside = (flow.target[0], "t", number)
            staged.append(Flow(since + 0.5, flow.source, aside))
            flow = Flow(flow.time, aside, flow.target, flow.place)
        staged.append(flow)
    return staged


def _stepped(plan: Plan, layout: _Layout, flows: list[Flow]) -> Schedule:
    """Return the schedule with a phase for each time, of the first chunk of a block where blocks have more."""
    times: dict[float, list[tuple[int, int, int, int]]] = defaultdict(list)
    for flow in flows:
        if layout.moves(flow):
            ends = layout.slot(flow.source), layout.slot(flow.target)
            times[flow.time].append((flow.source[0], flow.target[0], *ends))
    pieces, slots = layout.pieces, layout.slots
    if layout.chunks > 1:
        times, slots = _first_chunks(plan, layout, times)
        pieces //= layout.chunks
    return Schedule(
        plan.collective,
        plan.name,
        plan.gpus,
        pieces,
        slots,
        tuple(_phase(time, times[time]) for time in sorted(times)),
        root=0 if layout.row.rooted else -1,
    )


def _phase(time: float, ends: list[tuple[int, int, int, int]]) -> Phase:
    source, target, read, written = np.array(ends, np.int32).T
    reduces = time % 2 == 1
    crowded = reduces and len({(rank, slot) for _, rank, _, slot in ends}) < len(ends)
    return phase(source, target, read, written, reduces=reduces, fan_in=crowded)


def _first_chunks(
    plan: Plan, layout: _Layout, times: Mapping[float, list[tuple[int, int, int, int]]]
) -> tuple[dict[float, list[tuple[int, int, int, int]]], int]:
    """Return the flows of the first chunk of every block, and the slots they need.

    A block is one piece here: ScheduleError unless all its chunks go the same ways in the same order.
    """
    each, own = layout.chunks, layout.row.slots(plan.gpus, layout.pieces)
    carried: dict[tuple[int, int], int] = {}
    renamed: list[dict[tuple[int, int], int]] = [{} for _ in range(each)]
    extra: list[dict[int, int]] = [defaultdict(int) for _ in range(each)]
    ways: list[dict[float, list[tuple[int, int, int, int]]]] = [
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
