"""Memory of a GPU for MPI: ``memory: device``, one process for each GPU.

Rank n of a host has the host's GPU number n, of those that CUDA_VISIBLE_DEVICES shows it; where ranks
outnumber GPUs some share one, and the result is flagged ``loopback``. A CUDA-aware MPI takes an address of a
device where it takes one of the host (``device_memory``).

MPI knows nothing of CUDA's streams: it may read a buffer as soon as it is called, and what a call has
received is there when it returns. So the device has finished filling before any call, and no sample needs to
wait for it afterwards. The one exception is a broadcast out of place, where MPI_Bcast has one buffer: the
root copies on its device and waits for that, inside the sample, as it does in the host's memory.

An MPI that is not CUDA-aware reads such an address as if it were the host's, and crashes or hangs. So it is
asked, once it is initialised, and without a yes no address of a device reaches it:

- MPICH and what is made from it: ``MPIX_GPU_query_support`` (MPICH, src/binding/c/misc_api.txt, where CUDA
  has the number 0).
- Open MPI, and MPICH as well: ``MPIX_Query_cuda_support`` (Open MPI's manual page: to be called after
  MPI_Init). Of Open MPI 4 it says only how the library was built.
- A Cray MPICH or Intel MPI that has neither: by its variable. Cray MPICH does not come up with
  ``MPICH_GPU_SUPPORT_ENABLED=1`` unless its GPU transport layer is linked (its man page intro_mpi). Intel
  MPI's developer reference names NVIDIA GPUs from 2021.13 on, where ``I_MPI_OFFLOAD=1`` is set.

What ran and what did not: this is tested with two processes of Open MPI 4.1 whose "device" is memory of the
host that nothing but MPI and the copies of CUDA may touch. It was never run with a GPU, nor with an MPI that
is CUDA-aware; Intel MPI's and Cray MPICH's settings are from their manuals.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Mapping
from typing import Any

from ccbench.backends.base import ControlChannel, gathered, local_rank
from ccbench.backends.cuda.runtime import (
    Cuda,
    device_count,
    open_cuda,
    starting,
)
from ccbench.backends.mpi.library import library_name
from ccbench.cases.axes import DEVICE_MEMORY
from ccbench.errors import BackendUnavailable
from ccbench.machine.mpi import INTEL_MPI, OPEN_MPI

MEMORY_VARIABLE = "CCBENCH_MPI_MEMORY"
"""Set for teams whose cases have buffers on GPUs: MPI takes the device that is current when it starts."""

CUDA_NUMBER = 0
"""MPIX_GPU_SUPPORT_CUDA."""

CRAY = "Cray MPICH"

_SWITCHES = {
    CRAY: ("MPICH_GPU_SUPPORT_ENABLED", (0,)),
    INTEL_MPI: ("I_MPI_OFFLOAD", (2021, 13)),
}
"""The variable that lets a library take addresses of GPUs, and its first version that knows NVIDIA's."""


def device_settings(name: str) -> tuple[tuple[str, str], ...]:
    """Return the variables that a library called ``name`` must be started with; () where it needs none."""
    return tuple(
        (variable, "1") for maker, (variable, _) in _SWITCHES.items() if name.startswith(maker)
    )


def why_not_cuda_aware(mpi: Any, variables: Mapping[str, str]) -> str | None:
    """Return why the initialised library of ``mpi`` must not get addresses of GPUs, or None.

    mpi: mpi4py's module. variables: this process's environment.
    """
    name = library_name(mpi.Get_library_version())
    aware = gpu_support(ctypes.CDLL(None), ctypes.CDLL(mpi.__file__))
    switch = next(
        (switch for maker, switch in _SWITCHES.items() if name.startswith(maker)), None
    )
    if aware is None and switch:
        # Without a word of its own, its variable and its version must do.
        version = tuple(int(part) for part in re.findall(r"\d+", name))
        aware = variables.get(switch[0], "0") not in ("", "0") and version >= switch[1]
    if aware:
        return None
    cure = (
        "install one that was built for CUDA (MPICH: configure --with-cuda) and mpi4py for it, or measure "
        "buffers of the host with memory: default"
    )
    if name.startswith(OPEN_MPI):
        cure = (
            "install one that was configured with --with-cuda (ompi_info --parsable --all shows "
            "mpi_built_with_cuda_support:value:true) and mpi4py for it, or measure buffers of the host with "
            "memory: default"
        )
    elif switch:
        variable, first = switch
        since = f" (from version {'.'.join(map(str, first))} on)" if any(first) else ""
        cure = f"start it with {variable}=1{since}, or measure buffers of the host with memory: default"
    return f"{name} takes no addresses of GPU memory: it is not CUDA-aware; {cure}"


def gpu_support(*places: Any) -> bool | None:
    """Return the answer of the library that ``places`` (as of ctypes.CDLL) lead to; None if it has none."""
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


def device_of_rank(exchange: ControlChannel) -> tuple[Cuda, str] | None:
    """Return CUDA with this rank's GPU chosen, and that GPU's address; None without memory of devices.

    Collective; BackendUnavailable on every rank where only some were asked for such memory.
    """
    asked_here = os.environ.get(MEMORY_VARIABLE, "")
    everywhere = gathered(exchange, asked_here)
    differing = next(
        (rank for rank, text in enumerate(everywhere) if text != everywhere[0]), None
    )
    # Ranks with a device bring numbers that those without would never ask for: all would wait for all.
    if differing is not None:
        values = " and ".join(
            f"{everywhere[rank]!r} for rank {rank} on {exchange.hosts[rank]}"
            for rank in (0, differing)
        )
        raise BackendUnavailable(
            f"mpi: {MEMORY_VARIABLE} is {values}; start all ranks with the same (mpirun -x {MEMORY_VARIABLE})"
        )
    if asked_here != DEVICE_MEMORY:
        return None
    cuda = open_cuda()
    with starting():
        # A launcher may show each process its own GPU alone; then its number is 0 everywhere.
        number = local_rank(exchange.hosts, exchange.rank) % device_count(cuda)
        cuda.use(number)
        return cuda, cuda.facts(number).bus_id
