"""Plans of threadblocks as their files have them, and the slots of a schedule that their chunks become."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from ccbench.collectives import collective
from ccbench.errors import ScheduleError

Chunk = tuple[int, str, int]
"""(GPU, buffer, index). Buffers: i (input), o (output) and s (scratch) of the plan."""

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


@dataclass(frozen=True)
class StepPlace:
    """Where an operation stands in a plan."""

    gpu: int
    block: int
    step: int

    def __str__(self) -> str:
        return f"gpu {self.gpu}, threadblock {self.block}, step {self.step}"


@dataclass(eq=False)
class PlanOperation:
    """The sum of sources, written to every target; nothing where there are none.

    sources, targets: chunks in order, each with as many operands as the operation is wide: [operand][chunk].
    after: operations that come before it, besides that before it in its threadblock.
    """

    place: StepPlace
    name: str
    sources: list[list[Chunk]] = field(default_factory=list)
    targets: list[list[Chunk]] = field(default_factory=list)
    after: list[PlanOperation] = field(default_factory=list)


@dataclass
class ThreadblockPlan:
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
    blocks: list[list[PlanOperation]] = field(default_factory=list)

    def error(self, place: StepPlace | str, text: str) -> ScheduleError:
        """Return the error that names the file and the place."""
        return ScheduleError(f"{self.file}: {place}: {text}")


@dataclass(frozen=True)
class Flow:
    """A chunk that is copied, or added, at a time; place: of the operation that writes it."""

    time: int
    source: Chunk
    target: Chunk
    place: StepPlace | None = None


class ChunkLayout:
    """Slots of a plan's chunks: pieces are chunks, regions behind the collective's own are scratch and sums."""

    def __init__(self, plan: ThreadblockPlan) -> None:
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
        names = {"i": "input", "o": "output", "s": "scratch"}
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
        read: dict[tuple[int, int], int] = {}
        written: dict[tuple[int, int], int] = {}
        for flow in flows:
            for chunk, times in ((flow.source, read), (flow.target, written)):
                gpu, buffer, index = chunk
                if buffer == "i":
                    times[gpu, index] = max(flow.time, times.get((gpu, index), 0))
        first: dict[tuple[int, int], int] = {}
        for flow in flows:
            gpu, buffer, index = flow.target
            if buffer == "o":
                first[gpu, index] = min(flow.time, first.get((gpu, index), flow.time))
        # An input that is read after its output was written keeps a place of its own.
        self.separate = any(
            read.get(key, 0) > time or key in written for key, time in first.items()
        )
        last = max((flow.time for flow in flows), default=0) + 2
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
