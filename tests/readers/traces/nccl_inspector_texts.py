"""Records of NCCL's Inspector: sizes, times, ranks of the job from its largest communicator."""

from __future__ import annotations

from typing import Any

PERF = {
    "coll_sn": 7,
    "coll_msg_size_bytes": 1024,
    "coll_exec_time_us": 50,
    "coll_timing_source": "kernel_gpu",
}


def record(coll: str = "AllReduce", **more: Any) -> dict[str, Any]:
    header = {"id": "0xabc", "rank": 2, "n_ranks": 8, "nnodes": 1}
    metadata = {"inspector_output_format_version": "v4.0", "hostname": "node7", "pid": 99}
    return {
        "header": {**header, **more.pop("header", {})},
        "metadata": {**metadata, **more.pop("metadata", {})},
        "coll_perf": {"coll": coll, **PERF, **more},
    }
