"""Answers of NCCL's RAS client: counts of collectives become progress, troubles are named."""

from __future__ import annotations

from typing import Any

FINE = {
    "init_state": 0,
    "async_error": 0,
    "finalize_called": False,
    "destroy_flag": False,
    "abort_flag": False,
}


def rank(number: int, reduced: int = 6650, **status: Any) -> dict[str, Any]:
    return {
        "rank": number,
        "host": "172.16.64.245",
        "pid": 1000 + number,
        "cuda_dev": number,
        "nvml_dev": number,
        "status": {**FINE, **status},
        "collective_counts": {"Broadcast": 3, "AllReduce": reduced},
    }
