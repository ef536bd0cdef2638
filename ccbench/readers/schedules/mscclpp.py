"""MSCCL++ execution plans in JSON, read into schedules and written from them.

Source of the format: microsoft/mscclpp, src/core/executor/execution_plan.cc and include/execution_kernel.hpp.
Threadblocks of a group share each chunk, so chunks are cut further until every threadblock has whole ones.
"""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from itertools import chain, pairwise
from typing import Any

from ccbench.errors import ScheduleError
from ccbench.readers.schedules.plans import (
    COLLECTIVES,
    Chunk,
    PlanOperation,
    StepPlace,
    ThreadblockPlan,
)
from ccbench.readers.schedules.threadblocks import schedule_of
from ccbench.schedules import Algorithm, algorithms_of
from ccbench.units import suggestion

PAIRED = ("put", "pws", "pwsf", "get", "copy")
"""Operations that copy each source to the target of its number."""

SUMS = ("re", "res", "rre", "rres")
SIGNALS = ("signal", "rlxsignal", "pws", "pwsf")
WAITS = ("wait", "rlxwait")
NO_DATA = ("nop", "flush", "barrier", *SIGNALS[:2], *WAITS)
OPERATIONS = (*PAIRED, *SUMS, *NO_DATA)

Channel = tuple[int, str, int]
"""(GPU, type of channel, number among those of the type)."""


def read_mscclpp(name: str, text: str) -> list[Algorithm]:
    """Return the algorithm of a plan; ScheduleError with gpu, threadblock and step of what is wrong."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ScheduleError(f"{name}: {error}; expected a plan of MSCCL++ in JSON") from None
    try:
        built = schedule_of(_PlanFile(name, document).plan)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        fault = f"an entry has another form ({error})"
        if not isinstance(document, dict):
            fault = "the top is no object"
        elif isinstance(error, KeyError):
            (key,) = error.args
            at_top = key in ("gpus", "collective", "name", "inplace")
            fault = f"{key} is missing {'at the top' if at_top else 'in an entry of gpus'}"
        raise ScheduleError(
            f"{name}: {fault}; expected a plan in the form that mscclpp reads today, "
            "with input_chunks, threadblocks, channel_ids and remote_buffers; write it anew with its language"
        ) from None
    return [
        Algorithm(
            built.collective,
            built.algorithm,
            lambda ranks, parameter: built,
            f"MSCCL++ plan {document['name']} of {name}",
            ranks=built.ranks,
        )
    ]


def plan_name(name: str, collective: str) -> str:
    """Return a plan's name as a suite can write it; ``plan_`` goes before digits and names of the table."""
    spelled = re.sub(r"[^a-z0-9]", "_", name.lower())
    plain = spelled[:1].isalpha() and spelled not in algorithms_of(collective, added=False)
    return (spelled if plain else f"plan_{spelled}")[:48]


class _PlanFile:
    """One document. Every channel has one end on each of two GPUs; the n-th wait is for the n-th signal."""

    def __init__(self, name: str, document: dict[str, Any]) -> None:
        self.gpus = sorted(document["gpus"], key=lambda gpu: int(gpu["id"]))
        if not self.gpus or [gpu["id"] for gpu in self.gpus] != list(range(len(self.gpus))):
            raise ScheduleError(f"{name}: ids of gpus, expected each from 0 on once")
        coll = str(document["collective"])
        if coll not in COLLECTIVES:
            raise ScheduleError(f"{name}: collective {coll!r}: {suggestion(coll, COLLECTIVES)}")
        groups = [
            operation.get("tbg_info", {}).get("tbg_size", 1)
            for gpu in self.gpus
            for block in gpu["threadblocks"]
            for operation in block["ops"]
        ]
        # Chunks are cut into so many parts.
        self.parts = math.lcm(*groups)
        sizes = [
            max(int(gpu[key]) for gpu in self.gpus) * self.parts
            for key in ("input_chunks", "output_chunks")
        ]
        self.plan = ThreadblockPlan(
            name,
            COLLECTIVES[coll],
            plan_name(str(document["name"]), COLLECTIVES[coll]),
            bool(document["inplace"]),
            sizes[0],
            sizes[1],
            len(self.gpus),
            self.parts,
        )
        self.peers: dict[tuple[int, str], list[int]] = defaultdict(list)
        for rank, gpu in enumerate(self.gpus):
            for channel in gpu["channels"]:
                kind = channel.get("channel_type", channel.get("type"))
                self.peers[rank, kind] += channel.get("connected_to", [])
        self.signals: dict[Channel, list[PlanOperation]] = defaultdict(list)
        self.waits: dict[Channel, list[PlanOperation]] = defaultdict(list)
        self.barriers: dict[tuple[int, int, int], list[PlanOperation]] = defaultdict(list)
        self.meeting: dict[PlanOperation, int] = {}
        for rank, gpu in enumerate(self.gpus):
            blocks: dict[int, list[list[PlanOperation]]] = {}
            for block in gpu["threadblocks"]:
                met: dict[int, int] = defaultdict(int)
                steps = blocks[block["id"]] = []
                for index, step in enumerate(block["ops"]):
                    operations = self._operations(
                        StepPlace(rank, block["id"], index), block, step
                    )
                    steps.append(operations)
                    if step["name"] == "barrier":
                        number = step["barrier_id"]
                        self.barriers[rank, number, met[number]] += operations
                        met[number] += 1
                        self.meeting[operations[0]] = step["num_threadblocks"]
            for block in gpu["threadblocks"]:
                for step, operations in zip(block["ops"], blocks[block["id"]], strict=True):
                    for earlier in step.get("deps", ()):
                        operations[0].after.append(blocks[earlier["tb"]][earlier["step"]][-1])
            self.plan.blocks += [list(chain.from_iterable(steps)) for steps in blocks.values()]
        self._join()

    def _operations(
        self, place: StepPlace, block: dict[str, Any], step: dict[str, Any]
    ) -> list[PlanOperation]:
        """Return the operations of a step: several where it copies several."""
        name = step["name"]
        if name not in OPERATIONS:
            raise self.plan.error(
                place,
                f"{name!r} cannot be a step of a schedule (packets, switches, pipelines and semaphores of a "
                f"device cannot); expected one of {', '.join(OPERATIONS)}",
            )
        operations = [PlanOperation(place, name)]
        if name not in NO_DATA:
            ends = [
                [self._chunks(place, block, step, buffer) for buffer in step[key]]
                for key in ("src_buff", "dst_buff")
            ]
            if len({len(chunks) for end in ends for chunks in end}) != 1:
                raise self.plan.error(
                    place, f"{name} of buffers of different sizes, expected one size"
                )
            if name in PAIRED:
                pairs = zip(*ends, strict=True)
                operations = [
                    PlanOperation(place, name, [source], [target]) for source, target in pairs
                ]
            else:
                operations = [PlanOperation(place, name, ends[0], ends[1])]
        for ways, names in ((self.signals, SIGNALS), (self.waits, WAITS)):
            if name in names:
                for number in step["channel_ids"]:
                    ways[self._channel(place, block, step, number)].append(operations[-1])
        return operations

    def _channel(
        self, place: StepPlace, block: dict[str, Any], step: dict[str, Any], number: int
    ) -> Channel:
        kind = step["channel_type"]
        mine = [
            channel
            for channels in block["channels"]
            if channels["channel_type"] == kind
            for channel in channels["channel_ids"]
        ]
        if number >= len(mine) or mine[number] >= len(self.peers[place.gpu, kind]):
            raise self.plan.error(
                place,
                f"{kind} channel {number} of the threadblock, which has {len(mine)}; add it there",
            )
        return place.gpu, kind, mine[number]

    def _chunks(
        self,
        place: StepPlace,
        block: dict[str, Any],
        step: dict[str, Any],
        buffer: dict[str, Any],
    ) -> list[Chunk]:
        rank, kind = place.gpu, buffer.get("type")
        if "buffer_id" in buffer:
            ids = [
                number
                for reference in block["remote_buffer_refs"]
                if reference["access_channel_type"] == step["channel_type"]
                for number in reference["remote_buffer_ids"]
            ]
            remote = self.gpus[place.gpu]["remote_buffers"][ids[buffer["buffer_id"]]]
            rank, kind = remote["rank"], remote["type"]
        keys = {"i": "input_chunks", "o": "output_chunks", "s": "scratch_chunks"}
        if kind not in keys:
            raise self.plan.error(
                place,
                f"{step['name']} of buffer {buffer}, expected i, o, s or a buffer_id; switches cannot be",
            )
        first, count, size = buffer["index"], buffer["size"], self.gpus[rank][keys[kind]]
        if not (count >= 1 and 0 <= first <= size - count):
            raise self.plan.error(
                place,
                f"chunks {first} to {first + count - 1} of {kind} of gpu {rank}, which has {size}; take some of "
                "those",
            )
        group = step.get("tbg_info", {"tb_id": 0, "tbg_size": 1})
        width = count * self.parts // group["tbg_size"]
        begin = first * self.parts + group["tb_id"] * width
        return [(rank, kind, begin + offset) for offset in range(width)]

    def _join(self) -> None:
        """Order waits behind their signals, and what meets at a barrier behind all that comes before it."""
        for (rank, kind, number), waits in self.waits.items():
            peer = self.peers[rank, kind][number]
            nth = self.peers[rank, kind][:number].count(peer)
            back = [at for at, end in enumerate(self.peers[peer, kind]) if end == rank]
            signals = self.signals.pop((peer, kind, back[nth]), []) if nth < len(back) else []
            if len({signal.place.block for signal in signals}) > 1:
                raise self.plan.error(
                    signals[-1].place, "signals on another threadblock's channel"
                )
            for wait, signal in zip(waits, signals, strict=False):
                wait.after.append(signal)
            if len(waits) > len(signals):
                raise self.plan.error(
                    waits[len(signals)].place,
                    f"waits forever: gpu {peer} signals {len(signals)} times on that {kind} channel, and this "
                    f"is wait {len(signals) + 1}",
                )
            if len(signals) > len(waits):
                raise self.plan.error(
                    signals[len(waits)].place,
                    f"signals gpu {rank}, which does not wait for it: the next launch would go on too early",
                )
        if self.signals:
            (signal, *_), *_ = self.signals.values()
            raise self.plan.error(
                signal.place, "signals, and nobody waits for it; add the wait"
            )
        previous = {
            operation: before
            for block in self.plan.blocks
            for before, operation in pairwise(block)
        }
        for met in self.barriers.values():
            for operation in met:
                if self.meeting[operation] != len(met):
                    raise self.plan.error(
                        operation.place,
                        f"waits forever: a barrier of {self.meeting[operation]} threadblocks, to which "
                        f"{len(met)} come",
                    )
                operation.after += [
                    previous[other]
                    for other in met
                    if other is not operation and other in previous
                ]
