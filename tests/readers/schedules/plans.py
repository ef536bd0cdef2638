"""Plans in the form that MSCCL++ publishes, made here for two GPUs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any


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
