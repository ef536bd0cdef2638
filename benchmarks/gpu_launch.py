"""One launch of an own all_reduce with all ranks on one GPU, for profilers that watch it.

    CCBENCH_BLOCKING_KERNEL=off ncu -k ccb_kernel -s 1 -c 1 python -m benchmarks.gpu_launch ring 8 256MiB

Prints whether the result is right. Exit code 1 where it is not.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ccbench.backends.control_block import Control
from ccbench.backends.cuda.runtime import open_cuda
from ccbench.backends.cuda.single_process import CudaEndpoint
from ccbench.cases.axes import Case
from ccbench.units import parse_size

LIMIT_SECONDS = 120.0
"""A profiler replays the launch once for every set of counters."""


def main(arguments: Sequence[str]) -> int:
    """Launch, compare with the expected result; the exit code."""
    algorithm, ranks, size_bytes = arguments[0], int(arguments[1]), parse_size(arguments[2])
    case = Case(
        "launch",
        "cuda",
        "all_reduce",
        algorithm,
        "float32",
        "sum",
        size_bytes,
        size_bytes // 4,
        ranks,
    )
    endpoint = CudaEndpoint(
        Control(1, 64), ranks, open_cuda(), devices=1, limit_seconds=LIMIT_SECONDS
    )
    try:
        endpoint.prepare(case)
        endpoint.poison()
        endpoint.refill(1)
        endpoint.launch(1)
        mismatch = endpoint.check(1, 1)
        endpoint.finish()
    finally:
        endpoint.close()
    print(f"wrong: {case.label}: {mismatch}" if mismatch else f"{case.label}: right")
    return 1 if mismatch else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
