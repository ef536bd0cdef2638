"""``python -m tests.gpu.small_cases``: small launches of every kernel, for tools that watch a program.

Ends with 1 and a line per wrong case. Such tools slow kernels down by a hundred times, so waits may take
long.
"""

from __future__ import annotations

import sys

from ccbench.backends.control_block import Control
from ccbench.backends.cuda.runtime import open_cuda
from ccbench.backends.cuda.single_process import CudaEndpoint
from tests.backends.measuring import launched

from .cases import POINTS, case_of

RANKS = 3
LIMIT_SECONDS = 120.0
SCHEDULES = ("schedule:ring", "schedule:pairwise")


def main() -> None:
    endpoint = CudaEndpoint(
        Control(1, 64), RANKS, open_cuda(), devices=1, limit_seconds=LIMIT_SECONDS
    )
    wrong = []
    for collective, algorithm in POINTS:
        if ":" in algorithm and algorithm not in SCHEDULES:
            continue
        for transport in ("default", "host"):
            case = case_of(collective, algorithm, RANKS, 1003, transport=transport)
            launched(endpoint, case, 2)
            mismatch = endpoint.check(1, 2)
            wrong += [f"{case.label}: {mismatch}"] if mismatch else []
            endpoint.finish()
    endpoint.close()
    print(*wrong, sep="\n")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
