"""The crew of ``cuda``: one process that drives all ranks."""

from __future__ import annotations

import os

from ccbench.backends.crew import WholeCrew
from ccbench.backends.cuda.runtime import open_cuda, starting
from ccbench.backends.cuda.whole import CudaEndpoint


class CudaCrew(WholeCrew):
    """Implements ``ccbench.backends.crew.Crew``."""

    def __init__(self, ranks: int, sample_capacity: int) -> None:
        super().__init__(sample_capacity)
        self._ranks = ranks

    def endpoint(self, process: int) -> CudaEndpoint:
        """The one endpoint; CUDA starts here, in the process that uses it."""
        # Kernels of several groups wait for each other on one device. Streams that share a hardware queue, as
        # all do with the 1 that Megatron's scripts export, start one kernel when the one before has ended.
        os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "32"
        with starting():
            return CudaEndpoint(self.control, self._ranks, open_cuda())
