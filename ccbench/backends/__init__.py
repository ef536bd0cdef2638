"""Backends, found by name and imported on use."""

from __future__ import annotations

from importlib import import_module

from ccbench.backends.base import Backend
from ccbench.errors import UsageError

_MODULES = {
    "cpu": "ccbench.backends.cpu",
    "simulated": "ccbench.backends.simulated",
    "cuda": "ccbench.backends.cuda",
    "cuda-ipc": "ccbench.backends.cuda_ipc",
    "cuda-host": "ccbench.backends.cuda_host",
    "mpi": "ccbench.backends.mpi",
    "mpi-cuda": "ccbench.backends.mpi_cuda",
    "gloo": "ccbench.backends.gloo",
    "nccl": "ccbench.backends.nccl",
    "nccl-processes": "ccbench.backends.nccl_processes",
}


def backend_names() -> tuple[str, ...]:
    """Names of all backends of this version, whether they work here or not."""
    return tuple(_MODULES)


def open_backend(name: str) -> Backend:
    """The backend called ``name``; UsageError lists the names when there is none."""
    if name not in _MODULES:
        raise UsageError(f"backend: {name!r} is not known; one of {', '.join(_MODULES)}")
    backend: Backend = import_module(_MODULES[name]).BACKEND
    return backend
