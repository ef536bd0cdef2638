"""Cases of the cuda backend, and a way to run one on the emulation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ccbench.backends.cuda.single_process import CudaEndpoint
from ccbench.backends.kernels.sources import kernel_algorithms
from ccbench.cases import NO_ROOT, Case, Sampling
from ccbench.collectives import COLLECTIVES
from ccbench.dtypes import ITEM_BYTES
from ccbench.runner.measure import measure

from .emulated import EmulatedRuntime

SAMPLING = Sampling(
    rounds=1, minimum_samples=2, maximum_samples=3, warmup_seconds=0.0, minimum_sample_seconds=0.0, launches=2
)
"""With as few launches as make a row of them: the emulation takes a thousand times as long as a device."""
POINTS = [(name, algorithm) for name in COLLECTIVES for algorithm in kernel_algorithms(name)]

Opened = Callable[..., tuple[CudaEndpoint, EmulatedRuntime]]


def case_of(collective: str, algorithm: str, ranks: int, count: int = 777, **changes: Any) -> Case:
    row = COLLECTIVES[collective]
    values: dict[str, Any] = {
        "suite": "s",
        "backend": "cuda",
        "collective": collective,
        "algorithm": algorithm,
        "dtype": "float32",
        "op": "sum" if row.reduces else "none",
        "count": count if row.moves_data else 0,
        "ranks": ranks,
        "root": ranks - 1 if row.rooted else NO_ROOT,
        **changes,
    }
    values["size_bytes"] = row.size_bytes(values["count"], ranks, ITEM_BYTES[values["dtype"]])
    return Case(**values)


def wrong_elements(endpoint: CudaEndpoint, case: Case) -> int:
    endpoint.prepare(case)
    result = measure(endpoint, case, SAMPLING, endpoint.next_salt())
    endpoint.finish()
    return result.mismatch.wrong_elements if result.mismatch else 0
