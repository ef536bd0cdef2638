"""Whether an MPI takes addresses of GPU memory, and what it must be told for it.

One that does not reads such an address as if it were the host's, and crashes or hangs. So it is asked, once
it is initialised, and without a yes no address of a device reaches it:

- MPICH and what is made from it: ``MPIX_GPU_query_support`` (MPICH, src/binding/c/misc_api.txt, where CUDA
  has the number 0).
- Open MPI, and MPICH as well: ``MPIX_Query_cuda_support`` (Open MPI's manual page: to be called after
  MPI_Init). Of Open MPI 4 it says only how the library was built.
- A Cray MPICH or Intel MPI that has neither: by its variable. Cray MPICH does not come up with
  ``MPICH_GPU_SUPPORT_ENABLED=1`` unless its GPU transport layer is linked (its man page intro_mpi). Intel
  MPI's developer reference names NVIDIA GPUs from 2021.13 on, where ``I_MPI_OFFLOAD=1`` is set.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping
from typing import Any

from ccbench.backends.mpi.library import INTEL_MPI, OPEN_MPI, library_name

CUDA_NUMBER = 0
"""MPIX_GPU_SUPPORT_CUDA."""

CRAY = "Cray MPICH"

_SWITCHES = {
    CRAY: ("MPICH_GPU_SUPPORT_ENABLED", (0,)),
    INTEL_MPI: ("I_MPI_OFFLOAD", (2021, 13)),
}
"""The variable that lets a library take addresses of GPUs, and its first version that knows NVIDIA's."""


def device_settings(name: str) -> tuple[tuple[str, str], ...]:
    """The variables that a library called ``name`` must be started with; () where it needs none."""
    return tuple((variable, "1") for maker, (variable, _) in _SWITCHES.items() if name.startswith(maker))


def why_not_cuda_aware(mpi: Any, variables: Mapping[str, str]) -> str | None:
    """Why the initialised library of ``mpi`` (mpi4py's module) must not get addresses of GPUs, or None.

    variables: this process's environment.
    """
    name = library_name(mpi.Get_library_version())
    said = asked(ctypes.CDLL(None), ctypes.CDLL(mpi.__file__))
    if said is None:
        said = _switched_on(name, variables)
    return None if said else f"{name} takes no addresses of GPU memory: it is not CUDA-aware; {_cure(name)}"


def asked(*places: Any) -> bool | None:
    """What the library says that ``places`` (as of ctypes.CDLL) lead to; None where it has no word for it."""
    general = _found("MPIX_GPU_query_support", places)
    if general is not None:
        supported = ctypes.c_int(0)
        if general(ctypes.c_int(CUDA_NUMBER), ctypes.byref(supported)) == 0 and supported.value:
            return True
    of_cuda = _found("MPIX_Query_cuda_support", places)
    if of_cuda is not None:
        return bool(of_cuda() == 1)
    return None if general is None else False


def _found(name: str, places: tuple[Any, ...]) -> Any:
    return next((getattr(place, name) for place in places if hasattr(place, name)), None)


def _switched_on(name: str, variables: Mapping[str, str]) -> bool:
    for maker, (variable, first) in _SWITCHES.items():
        if name.startswith(maker):
            version = tuple(int(part) for part in re.findall(r"\d+", name.removeprefix(maker)))
            return variables.get(variable, "0") not in ("", "0") and version >= first
    return False


def _cure(name: str) -> str:
    if name.startswith(OPEN_MPI):
        return (
            "install one that was configured with --with-cuda (ompi_info --parsable --all shows "
            "mpi_built_with_cuda_support:value:true) and mpi4py for it, or measure buffers of the host with "
            "--backend mpi"
        )
    for maker, (variable, first) in _SWITCHES.items():
        if name.startswith(maker):
            since = f" (from version {'.'.join(map(str, first))} on)" if any(first) else ""
            return f"start it with {variable}=1{since}, or measure buffers of the host with --backend mpi"
    return (
        "install one that was built for CUDA (MPICH: configure --with-cuda) and mpi4py for it, or measure "
        "buffers of the host with --backend mpi"
    )
