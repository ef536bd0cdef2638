"""Plans in the forms that MSCCL and MSCCL++ publish, made here for any number of GPUs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

Step = tuple[str, str, int, str, int]
"""Type, source buffer and chunk, target buffer and chunk."""


def step(number: int, kind: Step, count: int = 1, after: tuple[int, int] = (-1, -1)) -> str:
    name, source, read, target, written = kind
    return (
        f'<step s="{number}" type="{name}" srcbuf="{source}" srcoff="{read}" dstbuf="{target}" '
        f'dstoff="{written}" cnt="{count}" depid="{after[0]}" deps="{after[1]}" hasdep="1"/>'
    )


def block(number: int, peers: tuple[int, int], steps: Sequence[str], channel: int = 0) -> str:
    inside = "\n".join(steps)
    return f'<tb id="{number}" send="{peers[0]}" recv="{peers[1]}" chan="{channel}">\n{inside}\n</tb>'


def algo(
    gpus: Sequence[Sequence[str]],
    coll: str,
    chunks: tuple[int, int, int],
    in_place: bool = True,
) -> str:
    sizes = 'i_chunks="{}" o_chunks="{}" s_chunks="{}"'.format(*chunks)
    inside = "\n".join(
        f'<gpu id="{rank}" {sizes}>\n' + "\n".join(blocks) + "\n</gpu>"
        for rank, blocks in enumerate(gpus)
    )
    return (
        f'<algo name="My {coll}" proto="Simple" nchannels="1" ngpus="{len(gpus)}" coll="{coll}" '
        f'inplace="{int(in_place)}">\n{inside}\n</algo>\n'
    )


def ring(gpus: int, target: str = "i") -> str:
    """An all-reduce on a ring, one threadblock a GPU; out of place where the target is o."""
    blocks = []
    for rank in range(gpus):
        chunks = [(rank - turn) % gpus for turn in range(gpus)]
        kinds: list[Step] = [("s", "i", rank, "i", rank)]
        kinds += [("rrs", "i", chunk, "i", chunk) for chunk in chunks[1:-1]]
        kinds += [("rrcs", "i", chunks[-1], target, chunks[-1])]
        kinds += [("rcs", "i", chunk, target, chunk) for chunk in chunks[:-2]]
        kinds += [("r", "i", chunks[-2], target, chunks[-2])]
        steps = [step(number, kind) for number, kind in enumerate(kinds)]
        blocks.append([block(0, ((rank + 1) % gpus, (rank - 1) % gpus), steps)])
    return algo(blocks, "allreduce", (gpus, gpus if target == "o" else 0, 0), target == "i")


def exchange(each: int = 2) -> str:
    """An all-to-all of two GPUs, ``each`` chunks a block, one threadblock for each way and one for its own."""
    blocks = []
    for rank in (0, 1):
        peer = 1 - rank
        own = step(0, ("cpy", "i", rank * each, "o", rank * each), each)
        send = step(0, ("s", "i", peer * each, "o", rank * each), each)
        receive = step(0, ("r", "i", rank * each, "o", peer * each), each)
        blocks.append(
            [
                block(0, (-1, -1), [own]),
                block(1, (peer, -1), [send]),
                block(2, (-1, peer), [receive]),
            ]
        )
    return algo(blocks, "alltoall", (2 * each, 2 * each, 0), in_place=False)


def through_scratch() -> str:
    """An all-reduce of two GPUs: whole buffers to scratch by one threadblock, added by another."""
    blocks = []
    for rank in (0, 1):
        peer = 1 - rank
        moves = [
            step(0, ("s", "i", 0, "s", 0), 2),
            step(1, ("r", "i", 0, "s", 0), 2),
        ]
        added = [step(0, ("re", "s", 0, "i", 0), 2, after=(0, 1))]
        blocks.append([block(0, (peer, peer), moves), block(1, (-1, -1), added)])
    return algo(blocks, "allreduce", (2, 0, 2))


def channel_step(name: str, number: int = 0) -> dict[str, Any]:
    return {"name": name, "channel_ids": [number], "channel_type": "memory"}


def local(kind: str, index: int, size: int = 1) -> dict[str, Any]:
    return {"type": kind, "index": index, "size": size}


def remote(index: int, size: int = 1, number: int = 0) -> dict[str, Any]:
    return {"buffer_id": number, "index": index, "size": size}


def meeting() -> list[dict[str, Any]]:
    return [{"name": "nop"}, channel_step("signal"), channel_step("wait"), {"name": "nop"}]


def plan(
    gpus: Sequence[Sequence[dict[str, Any]]],
    collective: str,
    chunks: tuple[int, int, int],
    buffer: str = "i",
) -> dict[str, Any]:
    """A plan of two GPUs with a threadblock and a channel each; buffer: the peer's that it reaches."""
    return {
        "name": "my plan",
        "collective": collective,
        "protocol": "Simple",
        "inplace": True,
        "gpus": [
            {
                "id": rank,
                "input_chunks": chunks[0],
                "output_chunks": chunks[1],
                "scratch_chunks": chunks[2],
                "channels": [{"channel_type": "memory", "connected_to": [1 - rank]}],
                "remote_buffers": [
                    {"rank": 1 - rank, "type": buffer, "access_channel_types": ["memory"]}
                ],
                "threadblocks": [
                    {
                        "id": 0,
                        "ops": list(operations),
                        "channels": [{"channel_type": "memory", "channel_ids": [0]}],
                        "remote_buffer_refs": [
                            {"access_channel_type": "memory", "remote_buffer_ids": [0]}
                        ],
                    }
                ],
            }
            for rank, operations in enumerate(gpus)
        ],
    }


def two_shot() -> dict[str, Any]:
    """Each GPU reads and adds its half of the other's buffer, and writes it there."""
    gpus = []
    for rank in (0, 1):
        work = {
            "name": "rres",
            "src_buff": [local("i", rank), remote(rank)],
            "dst_buff": [local("i", rank), remote(rank)],
            "channel_type": "memory",
        }
        gpus.append([*meeting(), work, *meeting()])
    return plan(gpus, "allreduce", (2, 2, 0))


def gathered() -> dict[str, Any]:
    """An all-gather in place of two GPUs that put their blocks."""
    gpus = []
    for rank in (0, 1):
        work = {
            "name": "put",
            "src_buff": [local("o", rank)],
            "dst_buff": [remote(rank)],
            **channel_step("put"),
        }
        gpus.append([*meeting(), work, *meeting()])
    return plan(gpus, "allgather", (1, 2, 0), "o")


def text(document: dict[str, Any]) -> str:
    return json.dumps(document)
