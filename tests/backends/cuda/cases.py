"""Cases of the cuda backend, and what a test asks of the emulation when it is through."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ccbench.backends.cuda.single_process import CudaEndpoint
from ccbench.backends.kernels.sources import kernel_algorithms
from ccbench.collectives import COLLECTIVES
from tests.backends import measuring

from .emulated import EmulatedRuntime

POINTS = [(name, algorithm) for name in COLLECTIVES for algorithm in kernel_algorithms(name)]

Opened = Callable[..., tuple[CudaEndpoint, EmulatedRuntime]]

case_of = partial(measuring.case_of, "cuda")


def close_clean(endpoint: CudaEndpoint, runtime: EmulatedRuntime) -> None:
    """Close, and see that nothing is left on the devices."""
    endpoint.close()
    assert not any((runtime.allocated, runtime.pinned, runtime.modules, runtime.graphs))
