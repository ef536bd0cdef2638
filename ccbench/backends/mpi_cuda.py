"""``mpi-cuda``: a CUDA-aware MPI's collectives on buffers in the memory of GPUs, one process for each GPU.

Collectives, modes (but overlap), algorithms and launchers are those of ``mpi``. Rank n of a host has the
host's GPU number n, of those that CUDA_VISIBLE_DEVICES shows it; where ranks outnumber GPUs some share one,
and the result is flagged ``loopback``. A library that does not say that it is CUDA-aware is refused when its
team starts (``ccbench.backends.mpi.awareness``).

What ran and what did not: the endpoint is tested with two processes of Open MPI 4.1 whose "device" is memory
of the host that nothing but MPI and the copies of CUDA may touch. It was never run with a GPU, nor with an
MPI that is CUDA-aware; Intel MPI's and Cray MPICH's settings are from their manuals.
"""

from __future__ import annotations

import os

from ccbench.backends.cuda import cupy_missing, driver_missing
from ccbench.backends.mpi import MpiBackend
from ccbench.backends.mpi.awareness import device_settings
from ccbench.cases import Case


class MpiCudaBackend(MpiBackend):
    """Implements ``ccbench.backends.base.Backend``."""

    name = "mpi-cuda"
    pinned = False
    """A rank's number says nothing about which processors are near its GPU."""

    def unavailable(self, elsewhere: bool = False) -> str | None:
        """Needs a driver, CuPy, and what ``mpi`` needs. Whether MPI is CUDA-aware shows when it starts."""
        missing = None if elsewhere else driver_missing()
        if missing:
            return f"{missing.partition(';')[0]}; --backend mpi measures the same with buffers of the host"
        return (None if elsewhere else cupy_missing()) or super().unavailable()

    def team_settings(self, case: Case) -> tuple[tuple[str, str], ...]:
        """What lets the library take addresses of GPUs, unless it is set, and what forces the algorithm.

        What is set already is not asked for: a library that a launcher has started can be given nothing more.
        """
        needed = device_settings(self._library().name)
        missing = [(name, value) for name, value in needed if os.environ.get(name) != value]
        return (*missing, *super().team_settings(case))


BACKEND = MpiCudaBackend()
