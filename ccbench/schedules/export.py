"""A schedule as an execution plan of MSCCL++, in JSON.

Source of the format: microsoft/mscclpp, src/core/executor/execution_plan.cc. Every rank has one threadblock,
which reads what others have and writes only its own memory; after each step it meets those it ever talks to.
Buffers are in place, but for all_to_all.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any

from ccbench.collectives import collective
from ccbench.errors import ScheduleError
from ccbench.schedules.schedule import Schedule, Step

NAMES = {
    "all_reduce": "allreduce",
    "all_gather": "allgather",
    "reduce_scatter": "reducescatter",
    "all_to_all": "alltoall",
    "broadcast": "broadcast",
    "reduce": "reduce",
}
"""Collectives that plans have, by ccbench's names."""

Flow = tuple[int, int, int, int]
"""(target, its slot, source, its slot)."""

Moves = tuple[bool, list[Flow]]
"""True if flows are added, and the flows; nobody reads what another one of them writes."""


def execution_plan(schedule: Schedule) -> dict[str, Any]:
    """Return the plan as a document for JSON; ScheduleError where plans have no such collective or root."""
    if schedule.collective not in NAMES or schedule.root > 0:
        what = f"{schedule.collective} with root {schedule.root}" if schedule.root > 0 else ""
        raise ScheduleError(
            f"{what or schedule.collective}: MSCCL++ plans have no such collective; expected one of "
            f"{', '.join(NAMES)}, with root 0"
        )
    aside = [0] * schedule.ranks
    moves = [part for step in schedule.expanded() for part in _apart(schedule, step, aside)]
    return {
        "name": schedule.algorithm,
        "collective": NAMES[schedule.collective],
        "protocol": "Simple",
        "inplace": schedule.collective != "all_to_all",
        "reuse_resources": False,
        "gpus": [
            _gpu(schedule, rank, moves, schedule.slots + max(aside))
            for rank in range(schedule.ranks)
        ],
        "num_threads_per_block": 1024,
        "use_double_scratch_buffer": False,
        "buffer_alignment": 16,
        "min_message_size": 0,
        "max_message_size": 2**64 - 1,
    }


def _apart(schedule: Schedule, step: Step, aside: list[int]) -> Iterator[Moves]:
    """Yield a step's flows; where one reads what another writes, first to slots aside, then from there.

    aside: slots that each rank needs for that, raised here.
    """
    source, read, target, written = (ends.tolist() for ends in schedule.single_slots(step))
    flows = list(zip(target, written, source, read, strict=True))
    if not {(rank, slot) for rank, slot, _, _ in flows} & {
        (rank, slot) for _, _, rank, slot in flows
    }:
        yield step.phase.reduces, flows
        return
    free = [schedule.slots] * schedule.ranks
    kept: list[Flow] = []
    taken: list[Flow] = []
    for rank, slot, origin, read_slot in flows:
        kept.append((rank, free[rank], origin, read_slot))
        taken.append((rank, slot, rank, free[rank]))
        free[rank] += 1
        aside[rank] = max(aside[rank], free[rank] - schedule.slots)
    yield False, kept
    yield step.phase.reduces, taken


def _gpu(schedule: Schedule, rank: int, moves: list[Moves], slots: int) -> dict[str, Any]:
    row, pieces = collective(schedule.collective), schedule.pieces
    ends = {(flow[0], flow[2]) for _, flows in moves for flow in flows}
    peers = sorted({b for a, b in ends if a == rank} | {a for a, b in ends if b == rank})
    peers = [peer for peer in peers if peer != rank]
    buffers = [(peer, kind) for peer in peers for kind in "ios"]
    shared = row.slots(schedule.ranks, pieces)
    input_kind = "o" if schedule.collective == "all_gather" else "i"

    def place(owner: int, slot: int) -> dict[str, Any]:
        kind, index = input_kind, slot
        if slot >= pieces:
            kind, index = ("s", slot - shared) if slot >= shared else ("o", slot - pieces)
        if owner == rank:
            return {"type": kind, "index": index, "size": 1}
        return {"buffer_id": buffers.index((owner, kind)), "index": index, "size": 1}

    channels = {"channel_ids": list(range(len(peers))), "channel_type": "memory"}
    # Threads of the block meet before its neighbours are told, and after it was told.
    meeting = [
        {"name": "nop"},
        *({"name": name, **channels} for name in ("signal", "wait") if peers),
        {"name": "nop"},
    ]
    steps = list(meeting)
    for reduces, flows in moves:
        own = sorted(flow for flow in flows if flow[0] == rank)
        for (_, slot), group in groupby(own, key=lambda flow: flow[:2]):
            steps += _operations(
                reduces, place(rank, slot), [place(*flow[2:]) for flow in group]
            )
        steps += meeting
    gathers, scatters = (
        schedule.collective == name for name in ("all_gather", "reduce_scatter")
    )
    shared = row.slots(schedule.ranks, pieces)
    return {
        "id": rank,
        "input_chunks": 1 if gathers else pieces,
        "output_chunks": 1 if scatters else pieces,
        "scratch_chunks": slots - shared,
        "threadblocks": [
            {
                "id": 0,
                "ops": steps,
                "channels": [channels],
                "remote_buffer_refs": [
                    {
                        "access_channel_type": "memory",
                        "remote_buffer_ids": list(range(len(buffers))),
                    }
                ],
            }
        ],
        "channels": [{"channel_type": "memory", "connected_to": peers}],
        "remote_buffers": [
            {"rank": peer, "type": kind, "access_channel_types": ["memory"]}
            for peer, kind in buffers
        ],
        "semaphores": [],
    }


def _operations(
    reduces: bool, target: dict[str, Any], sources: list[dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    """Yield what writes one chunk: a copy or get, or a sum of all that is read with what is there."""
    if not reduces:
        for source in sources:
            name, remote = (
                ("copy", {}) if "type" in source else ("get", {"channel_type": "memory"})
            )
            yield {"name": name, "src_buff": [source], "dst_buff": [target], **remote}
        return
    local = [source for source in sources if "type" in source]
    away = [source for source in sources if "type" not in source]
    for name, those in (("re", local), ("rre", away)):
        if those:
            yield {
                "name": name,
                "src_buff": [target, *those],
                "dst_buff": [target],
                "channel_type": "memory" if those is away else "none",
                "reduce_op": "sum",
            }
