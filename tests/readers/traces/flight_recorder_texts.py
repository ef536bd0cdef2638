"""Dumps of PyTorch's Flight Recorder: calls, groups, whose dump it is, and what Gloo's dumps lack."""

from __future__ import annotations

from typing import Any

WORLD = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}}


def entry(name: str = "nccl:all_reduce", number: int = 1, **more: Any) -> dict[str, Any]:
    return {
        "record_id": number,
        "pg_id": 0,
        "process_group": ["0", "default_pg"],
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "op_id": number,
        "profiling_name": name,
        "time_created_ns": 5_000_000_000,
        "input_sizes": [[10, 100]],
        "input_dtypes": ["BFloat16"],
        "output_sizes": [[10, 100]],
        "output_dtypes": ["BFloat16"],
        "state": "completed",
        "time_discovered_started_ns": 5_100_000_000,
        "time_discovered_completed_ns": None,
        "retired": True,
        "timeout_ms": 600000,
        "is_p2p": False,
        **more,
    }
