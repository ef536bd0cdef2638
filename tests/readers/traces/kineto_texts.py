"""Traces of the PyTorch profiler: kernels with records or operators alone, other devices, other libraries."""

from __future__ import annotations

from typing import Any

from ccbench.readers.traces.events import Communication, Trace

INFO = {
    "backend": "nccl",
    "rank": 1,
    "world_size": 4,
    "pg_count": 2,
    "pg_config": [
        {
            "pg_name": "0",
            "pg_desc": "default_pg",
            "backend_config": "cuda:nccl",
            "pg_size": 4,
            "ranks": [],
        },
        {
            "pg_name": "1",
            "pg_desc": "tp",
            "backend_config": "cuda:nccl",
            "pg_size": 2,
            "ranks": [0, 1],
        },
    ],
    "nccl_version": "2.27.5",
}
GIVEN = {
    "Collective name": "allreduce",
    "In msg nelems": 1000,
    "Out msg nelems": 1000,
    "Group size": 4,
    "dtype": "BFloat16",
    "In split size": "[]",
    "Out split size": "[]",
    "Process Group Name": "0",
    "Process Group Description": "default_pg",
    "Process Group Ranks": "[0, 1, 2, 3]",
}
NCCL_KERNEL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def event(
    category: str, name: str, start: float, duration: float, tid: object = 7, **args: Any
) -> dict[str, Any]:
    """An event of category ``category``; microseconds."""
    times = {"ts": start, "dur": duration}
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": 5,
        "tid": tid,
        **times,
        "args": args,
    }


def launched(
    calls: list[tuple[str, dict[str, Any]]],
    kernel: str,
    start: float = 100,
    duration: float = 50,
    correlation: int = 11,
    launch: tuple[str, str] = ("cuda_runtime", "cudaLaunchKernelExC"),
    **args: Any,
) -> list[dict[str, Any]]:
    """A kernel, its launch and the calls around that, the outermost first."""
    around = [
        event("cpu_op", name, start - 50 + place, 60 - 2 * place, **words)
        for place, (name, words) in enumerate(calls)
    ]
    begun = event(*launch, start - 20, 5, correlation=correlation)
    ran = event(
        "kernel",
        kernel,
        start,
        duration,
        20,
        correlation=correlation,
        device=1,
        stream=20,
        **args,
    )
    return [*around, begun, ran]


def only(trace: Trace) -> Communication:
    (call,) = trace.communications
    return call


def summary(call: Communication) -> tuple[str, str, int | None, int | None, int]:
    return call.collective, call.dtype, call.input_bytes, call.output_bytes, call.group.size


# -- other versions, devices and libraries ------------------------------------------------------------------

SHAPES = {
    "Input Dims": [[[256, 4]], [], [], [], [], []],
    "Input type": ["TensorList", "", "", "", "", ""],
}
