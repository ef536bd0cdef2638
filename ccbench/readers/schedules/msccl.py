"""MSCCL's algorithms in XML, as msccl-tools writes them and as MSCCL and RCCL read them.

Sources of the format: microsoft/msccl-tools, msccl/language/ir.py; ROCm/rccl, src/misc/msccl/msccl_parser.cc.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from dataclasses import dataclass

from ccbench.errors import MachineError, ScheduleError
from ccbench.readers.schedules.plans import (
    COLLECTIVES,
    Chunk,
    PlanOperation,
    StepPlace,
    ThreadblockPlan,
)
from ccbench.readers.schedules.threadblocks import schedule_of
from ccbench.readers.xml import Element, parse_xml
from ccbench.schedules import Algorithm, algorithms_of
from ccbench.units import suggestion

RECEIVES = ("r", "rcs", "rrs", "rrc", "rrcs")
SENDS = ("s", "rcs", "rrs", "rrcs")
KEEPS = ("r", "rcs", "rrc", "rrcs", "cpy", "re")
"""Types that write their destination."""

ADDS = ("rrs", "rrc", "rrcs")
"""Types that add their source to what they receive."""

TYPES = ("nop", "s", *RECEIVES, "cpy", "re")


def read_msccl(name: str, text: str) -> list[Algorithm]:
    """Return the algorithm of an XML file; ScheduleError with gpu, threadblock and step of what is wrong."""
    try:
        document = parse_xml(text, name)
    except MachineError as error:
        raise ScheduleError(str(error)) from None
    root = document.root
    if root.tag != "algo" or not document.complete:
        what = f"<{root.tag}>" if root.tag != "algo" else document.warnings[0].text
        raise ScheduleError(
            f"{name}: line {root.line}: {what}, expected a whole <algo>; copy it again"
        )
    reader = _AlgorithmFile(name, root)
    built = schedule_of(reader.plan())
    return [
        Algorithm(
            built.collective,
            built.algorithm,
            lambda ranks, parameter: built,
            f"MSCCL algorithm {root.attributes.get('name', '')} of {name}",
            ranks=built.ranks,
        )
    ]


def plan_name(name: str, collective: str) -> str:
    """Return a plan's name as a suite can write it; ``plan_`` goes before digits and names of the table."""
    spelled = re.sub(r"[^a-z0-9]", "_", name.lower())
    plain = spelled[:1].isalpha() and spelled not in algorithms_of(collective, added=False)
    return (spelled if plain else f"plan_{spelled}")[:48]


@dataclass
class _Message:
    """A send or receive that waits for its other end."""

    operation: PlanOperation
    chunks: list[Chunk]


class _AlgorithmFile:
    """One document. Messages between two GPUs on a channel are received in the order they are sent."""

    def __init__(self, name: str, root: Element) -> None:
        self.name, self.root = name, root
        self._sent: dict[tuple[int, int, int], deque[_Message]] = defaultdict(deque)
        self._received: dict[tuple[int, int, int], deque[_Message]] = defaultdict(deque)
        self._messages = 0

    def plan(self) -> ThreadblockPlan:
        """Return the plan; ScheduleError for what it lacks."""
        coll, gpus = self.root.attributes.get("coll", ""), self.root.named("gpu")
        if coll not in COLLECTIVES:
            raise self.error(self.root, f"coll {coll!r}: {suggestion(coll, COLLECTIVES)}")
        ids = [self.number(gpu, "id") for gpu in gpus]
        if not gpus or sorted(ids) != list(range(len(gpus))):
            raise self.error(
                self.root, f"gpus {ids}, expected each of 0 to {len(gpus) - 1} once"
            )
        gpus = [gpu for _, gpu in sorted(zip(ids, gpus, strict=True), key=lambda pair: pair[0])]
        sizes = [max(self.number(gpu, key) for gpu in gpus) for key in ("i_chunks", "o_chunks")]
        plan = ThreadblockPlan(
            self.name,
            COLLECTIVES[coll],
            plan_name(self.root.attributes.get("name", ""), COLLECTIVES[coll]),
            self.root.attributes.get("inplace") == "1",
            sizes[0],
            sizes[1],
            len(gpus),
        )
        if not max(sizes):
            raise self.error(
                self.root, "no chunks in any input or output, expected i_chunks or o_chunks"
            )
        for rank, gpu in enumerate(gpus):
            blocks: dict[int, list[PlanOperation]] = {}
            steps: dict[int, list[Element]] = {}
            for block in gpu.named("tb"):
                number = self.number(block, "id")
                if number in blocks:
                    raise self.error(
                        block, f"threadblock {number} of gpu {rank} comes twice, expected once"
                    )
                steps[number] = block.named("step")
                blocks[number] = [
                    self._operation(plan, rank, gpu, block, index, step)
                    for index, step in enumerate(steps[number])
                ]
            for number, operations in blocks.items():
                for operation, step in zip(operations, steps[number], strict=True):
                    block_id, wanted = self.number(step, "depid"), self.number(step, "deps")
                    if block_id >= 0:
                        operation.after.append(
                            self._dependency(plan, operation, blocks, steps, (block_id, wanted))
                        )
            plan.blocks += [blocks[number] for number in sorted(blocks) if blocks[number]]
        for messages, what in (
            (self._sent, "is received by nobody"),
            (self._received, "waits forever: nobody sends it"),
        ):
            for (source, target, channel), left in messages.items():
                if left:
                    operation = left[0].operation
                    raise plan.error(
                        operation.place,
                        f"{operation.name} from gpu {source} to gpu {target} on channel {channel} {what}",
                    )
        return plan

    def _dependency(
        self,
        plan: ThreadblockPlan,
        operation: PlanOperation,
        blocks: dict[int, list[PlanOperation]],
        steps: dict[int, list[Element]],
        key: tuple[int, int],
    ) -> PlanOperation:
        """Return the operation whose end lets ``operation`` go on: the first from ``deps`` on that says so."""
        block, first = key
        if not 0 <= first < len(blocks.get(block, ())):
            raise plan.error(
                operation.place,
                f"waits for step {first} of threadblock {block}, which is not there",
            )
        for later in range(first, len(blocks[block])):
            if steps[block][later].attributes.get("hasdep") == "1":
                return blocks[block][later]
        raise plan.error(
            operation.place,
            f"waits forever: step {first} of threadblock {block} and those behind it tell nobody; set hasdep",
        )

    def _operation(
        self,
        plan: ThreadblockPlan,
        rank: int,
        gpu: Element,
        block: Element,
        index: int,
        step: Element,
    ) -> PlanOperation:
        place = StepPlace(rank, self.number(block, "id"), index)
        kind = step.attributes.get("type", "")
        if self.number(step, "s") != index:
            raise plan.error(
                place, f"s is {self.number(step, 's')}, expected {index}; number steps from 0"
            )
        if kind not in TYPES:
            raise plan.error(place, f"type {kind!r}, expected one of {', '.join(TYPES)}")
        operation = PlanOperation(place, kind)
        if kind == "nop":
            return operation
        if kind in RECEIVES:
            incoming = self._message(plan, operation, block, step, rank, receives=True)
            operation.sources.append(incoming)
        if kind in ("s", "cpy", "re", *ADDS):
            operation.sources.append(self._chunks(plan, place, gpu, step, "src"))
        if kind in KEEPS:
            operation.targets.append(self._chunks(plan, place, gpu, step, "dst"))
        if kind == "re":
            operation.sources.append(operation.targets[0])
        if kind in SENDS:
            operation.targets.append(
                self._message(plan, operation, block, step, rank, receives=False)
            )
        return operation

    def _chunks(
        self, plan: ThreadblockPlan, place: StepPlace, gpu: Element, step: Element, end: str
    ) -> list[Chunk]:
        buffer, first = step.attributes.get(f"{end}buf", ""), self.number(step, f"{end}off")
        count = self.number(step, "cnt")
        if buffer not in ("i", "o", "s"):
            raise plan.error(place, f"{end}buf {buffer!r}, expected i, o or s")
        size = self.number(gpu, f"{buffer}_chunks")
        # An output that is the input has no chunks of its own in the file.
        size = (
            max(size, plan.input_chunks, plan.output_chunks)
            if plan.in_place and buffer != "s"
            else size
        )
        if not (count >= 1 and 0 <= first <= size - count):
            raise plan.error(
                place,
                f"{end}off {first} and cnt {count}, but {buffer} has {size} chunks; take some of those",
            )
        return [(place.gpu, buffer, first + offset) for offset in range(count)]

    def _message(
        self,
        plan: ThreadblockPlan,
        operation: PlanOperation,
        block: Element,
        step: Element,
        rank: int,
        receives: bool,
    ) -> list[Chunk]:
        peer = self.number(block, "recv" if receives else "send")
        if not 0 <= peer < plan.gpus or peer == rank:
            raise plan.error(
                operation.place,
                f"{operation.name} of a threadblock whose {'recv' if receives else 'send'} is {peer}, expected "
                "another gpu",
            )
        channel, count = self.number(block, "chan"), self.number(step, "cnt")
        key = (peer, rank, channel) if receives else (rank, peer, channel)
        waiting, mine = (
            (self._sent, self._received) if receives else (self._received, self._sent)
        )
        if waiting[key]:
            other = waiting[key].popleft()
            chunks = other.chunks
            if len(chunks) != count:
                raise plan.error(
                    operation.place,
                    f"cnt is {count}, and {len(chunks)} at the other end, {other.operation.place}",
                )
            sender, receiver = (
                (other.operation, operation) if receives else (operation, other.operation)
            )
            receiver.after.append(sender)
            return chunks
        self._messages += count
        chunks = [(key[1], "m", self._messages - number) for number in range(count, 0, -1)]
        mine[key].append(_Message(operation, chunks))
        return chunks

    def number(self, element: Element, key: str) -> int:
        """Return an attribute as a whole number; ScheduleError with its line."""
        value = element.attributes.get(key, "")
        if not value.removeprefix("-").isdecimal():
            raise self.error(element, f"{key} is {value!r}, expected a whole number")
        return int(value)

    def error(self, element: Element, text: str) -> ScheduleError:
        """Return the error that names file, line and element."""
        return ScheduleError(f"{self.name}: line {element.line}: <{element.tag}>: {text}")
