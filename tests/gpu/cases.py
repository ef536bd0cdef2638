"""Cases, and what the emulation makes of them: the same kernels on the CPU, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ccbench.backends.control_block import Control
from ccbench.backends.cuda.single_process import CudaEndpoint
from ccbench.backends.cuda_host import EmulatedEndpoint
from ccbench.backends.kernels.building import compiler
from ccbench.backends.kernels.sources import kernel_algorithms
from ccbench.cases.axes import Case
from ccbench.cases.measurement import Sampling
from ccbench.collectives import COLLECTIVES
from ccbench.dtypes import ITEM_BYTES
from ccbench.errors import MissingDependency
from tests.backends import measuring

SAMPLING = Sampling(rounds=1, minimum_samples=3, maximum_samples=10, budget_seconds=0.05)

POINTS = [(name, algorithm) for name in COLLECTIVES for algorithm in kernel_algorithms(name)]
REDUCING = [(name, algorithm) for name, algorithm in POINTS if COLLECTIVES[name].reduces]

KERNELS = [(collective, algorithm) for collective, algorithm in POINTS if ":" not in algorithm]
STAGED = [*KERNELS, ("all_reduce", "schedule:ring"), ("all_to_all", "schedule:pairwise")]
"""What ``transport: host`` is tried with."""

OPS = ("sum", "prod", "min", "max", "avg")
SHARE = 5


def reducing_share(dtype: str, op: str) -> list[tuple[str, str]]:
    """A fifth of REDUCING, so that compiling each for every type and op takes a minute and not ten."""
    return REDUCING[([*ITEM_BYTES].index(dtype) + OPS.index(op)) % SHARE :: SHARE]


def case_of(
    collective: str,
    algorithm: str,
    ranks: int,
    count: int = 5003,
    dtype: str = "float32",
    op: str = "sum",
    **changes: Any,
) -> Case:
    """A case of the cuda backend."""
    op = op if COLLECTIVES[collective].reduces else "none"
    return measuring.case_of(
        "cuda", collective, algorithm, ranks, count, dtype=dtype, op=op, **changes
    )


def results(
    endpoint: CudaEndpoint | EmulatedEndpoint, case: Case, seed: int
) -> list[NDArray[np.uint8]]:
    """Every rank's output, as bytes, after one launch on the data of ``seed``."""
    endpoint.prepare(case)
    endpoint.poison()
    endpoint.refill(seed)
    endpoint.launch(1)
    found = [output.view(np.uint8).copy() for _, output in sorted_outputs(endpoint)]
    endpoint.finish()
    return found


def sorted_outputs(
    endpoint: CudaEndpoint | EmulatedEndpoint,
) -> list[tuple[int, NDArray[np.generic]]]:
    """(rank, output) of every rank, each in memory of its own."""
    if isinstance(endpoint, EmulatedEndpoint):
        return [(rank, output.copy()) for rank, output in endpoint.outputs.items()]
    return [(rank, output.read().copy()) for rank, output in endpoint.outputs()]


def emulated(ranks: int) -> EmulatedEndpoint:
    """The emulation's endpoint, or a skip where there is no C++ compiler to build it with."""
    try:
        compiler()
    except MissingDependency as error:
        pytest.skip(str(error))
    return EmulatedEndpoint(Control(1, 64), ranks)
