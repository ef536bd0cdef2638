"""Endpoints whose CUDA is emulated."""

from __future__ import annotations

from typing import Any

import pytest

from ccbench.backends.control_block import Control
from ccbench.backends.cuda.runtime import Cuda
from ccbench.backends.cuda.single_process import CudaEndpoint

from .cases import Opened
from .emulated import EmulatedRuntime


@pytest.fixture
def opened() -> Opened:
    def make(
        ranks: int, limit_seconds: float = 5.0, **facts: Any
    ) -> tuple[CudaEndpoint, EmulatedRuntime]:
        runtime = EmulatedRuntime(**facts)
        cuda = Cuda(runtime, runtime)
        return CudaEndpoint(Control(1, 64), ranks, cuda, limit_seconds=limit_seconds), runtime

    return make
