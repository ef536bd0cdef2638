"""Memory of a GPU for MPI: ``memory: device``, one process for each GPU.

Rank n of a host has the host's GPU number n, of those that CUDA_VISIBLE_DEVICES shows it; where ranks
outnumber GPUs some share one, and the result is flagged ``loopback``. A CUDA-aware MPI takes an address of a
device where it takes one of the host, so a buffer is an array that *names* device memory: its address and its
size are used, and nobody looks inside. Data are computed by the host and copied there, and copied back to be
checked.

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
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ccbench.backends.base import ControlChannel, OutOfMemory, local_rank
from ccbench.backends.cuda.runtime import (
    ON_DEVICE,
    TO_DEVICE,
    TO_HOST,
    Cuda,
    device_count,
    do_all,
    open_cuda,
    starting,
)
from ccbench.backends.mpi.library import INTEL_MPI, OPEN_MPI, library_name
from ccbench.backends.rank_endpoint import MEMORY_SHARE, HostMemory
from ccbench.cases import DEVICE_MEMORY, CaseFacts
from ccbench.errors import BackendUnavailable
from ccbench.machine.flags import Flag
from ccbench.machine.telemetry import DeviceWatch
from ccbench.verification import POISON_BYTE, Array

if TYPE_CHECKING:
    from ccbench.backends.rank_endpoint import RankEndpoint

MEMORY_VARIABLE = "CCBENCH_MPI_MEMORY"
"""Set for teams whose cases have buffers on GPUs: MPI takes the device that is current when it starts."""

ALIGNMENT_BYTES = 64 << 10
"""Where a buffer begins: at a whole page of the GPU, which network adapters register as a whole."""

KEEP_BYTES = 1 << 30
"""More than this is given back after a case."""

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
    return tuple((variable, "1") for maker, (variable, _) in _SWITCHES.items() if name.startswith(maker))


def why_not_cuda_aware(mpi: Any, variables: Mapping[str, str]) -> str | None:
    """Return why the initialised library of ``mpi`` must not get addresses of GPUs, or None.

    mpi: mpi4py's module. variables: this process's environment.
    """
    name = library_name(mpi.Get_library_version())
    said = asked(ctypes.CDLL(None), ctypes.CDLL(mpi.__file__))
    switch = next((switch for maker, switch in _SWITCHES.items() if name.startswith(maker)), None)
    if said is None and switch:
        # Without a word of its own, its variable and its version must do.
        version = tuple(int(part) for part in re.findall(r"\d+", name))
        said = variables.get(switch[0], "0") not in ("", "0") and version >= switch[1]
    if said:
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


def asked(*places: Any) -> bool | None:
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
    everywhere = [text.decode() for text in exchange.all_gather(asked_here.encode())]
    other = next((rank for rank, text in enumerate(everywhere) if text != everywhere[0]), None)
    # Ranks with a device bring numbers that those without would never ask for: all would wait for all.
    if other is not None:
        seen = " and ".join(
            f"{everywhere[rank]!r} for rank {rank} on {exchange.hosts[rank]}" for rank in (0, other)
        )
        raise BackendUnavailable(
            f"mpi: {MEMORY_VARIABLE} is {seen}; start all ranks with the same (mpirun -x {MEMORY_VARIABLE})"
        )
    if asked_here != DEVICE_MEMORY:
        return None
    cuda = open_cuda()
    with starting():
        # A launcher may show each process its own GPU alone; then its number is 0 everywhere.
        number = local_rank(exchange.hosts, exchange.rank) % device_count(cuda)
        cuda.use(number)
        return cuda, cuda.facts(number).bus_id


def named(address: int, size_bytes: int) -> Array:
    """Return bytes of device memory as an array, for its address and size alone: nobody can read it."""
    memory = memoryview((ctypes.c_uint8 * size_bytes).from_address(address))
    return np.frombuffer(memory, np.uint8)


class DeviceMemory(HostMemory):
    """One allocation on this rank's GPU, from which a case's buffers are cut."""

    def __init__(self, endpoint: RankEndpoint, mpi: Any, cuda: Cuda, bus_id: str) -> None:
        """BackendUnavailable where MPI takes no addresses of devices."""
        refused = why_not_cuda_aware(mpi, os.environ)
        if refused:
            raise BackendUnavailable(f"mpi with memory: device: {refused}")
        super().__init__(endpoint)
        self._cuda = cuda
        exchange = endpoint.exchange
        told = [text.decode() for text in exchange.all_gather(bus_id.encode())]
        self._gpus = tuple(f"GPU {gpu} of {host}" for gpu, host in zip(told, exchange.hosts, strict=True))
        self._flags = (Flag.LOOPBACK,) if len(set(self._gpus)) < endpoint.ranks else ()
        self._devices = DeviceWatch([bus_id])
        self._address = self._capacity_bytes = self._used_bytes = 0
        self._staged = np.empty(0, np.uint8)

    def reserve(self, own_bytes: int) -> None:
        """Room for the case's buffers, or OutOfMemory on every rank alike. Collective."""
        super().reserve(own_bytes)  # data go through as much memory of the host
        room = own_bytes + 2 * ALIGNMENT_BYTES
        grows = room > self._capacity_bytes
        if grows:
            self._free()
        self._endpoint.barrier()  # ranks that share a device have given back what they will
        free_bytes, _ = self._cuda.runtime.memGetInfo()
        more = room if grows else 0
        self._endpoint.refuse_beyond(more, free_bytes * MEMORY_SHARE, self._gpus)
        # In one piece, on all ranks or on none.
        fits = True
        if more:
            try:
                self._address, self._capacity_bytes = self._cuda.allocate(more), more
            except OutOfMemory:
                fits = False
        told = self._endpoint.gather_numbers(np.array([float(fits), float(more)]))
        full = [rank for rank, (fitted, _) in enumerate(told) if not fitted]
        if full:
            self._free()
            raise OutOfMemory(f"{self._gpus[full[0]]} has no {told[full[0], 1]:.0f} bytes left in one piece")
        self._used_bytes = 0

    def _free(self) -> None:
        at, self._address, self._capacity_bytes = self._address, 0, 0
        self._cuda.free(at)

    def new_buffer(self, elements: int, dtype: np.dtype[Any], number: int, misalignment_bytes: int) -> Array:
        """The next piece of what was reserved."""
        aligned = -(-(self._address + self._used_bytes) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        begin = aligned - self._address + misalignment_bytes
        self._used_bytes = begin + elements * dtype.itemsize
        return named(self._address, self._capacity_bytes)[begin : self._used_bytes].view(dtype)

    def fill(self, buffer: Array, write: Callable[[Array], None]) -> None:
        """Let ``write`` put data into a copy on the host, and move it to the device."""
        data = self._staging(buffer)
        write(data)
        self._move(buffer.ctypes.data, data.ctypes.data, data.nbytes, TO_DEVICE)

    def poison(self, buffer: Array) -> None:
        """Make ``buffer`` wrong everywhere."""
        if buffer.nbytes:
            self._cuda.runtime.memset(buffer.ctypes.data, POISON_BYTE, buffer.nbytes)
            self.settle()

    def read(self, buffer: Array) -> Array:
        """A copy of what is in ``buffer``."""
        data = self._staging(buffer)
        self._move(data.ctypes.data, buffer.ctypes.data, data.nbytes, TO_HOST)
        return data

    def copy(self, target: Array, source: Array) -> None:
        """Copy one buffer into another, to the end."""
        self._move(target.ctypes.data, source.ctypes.data, source.nbytes, ON_DEVICE)

    def _move(self, target: int, source: int, size_bytes: int, kind: int) -> None:
        if size_bytes:
            self._cuda.runtime.memcpy(target, source, size_bytes, kind)
            self.settle()

    def settle(self) -> None:
        """Wait for the device: a copy from memory that is not pinned may return before it is there."""
        self._cuda.runtime.deviceSynchronize()

    def _staging(self, buffer: Array) -> Array:
        """Memory of the host, as large as ``buffer``."""
        if self._staged.nbytes < buffer.nbytes:
            self._staged = np.empty(buffer.nbytes, np.uint8)
        return self._staged[: buffer.nbytes].view(buffer.dtype)

    def begin_case(self) -> None:
        """Look at the device before the launches."""
        self._devices.before()

    def end_launches(self) -> None:
        """Timed launches are over."""
        self._devices.ended()

    def facts(self) -> CaseFacts:
        """Return what became of the device."""
        readings, flags = self._devices.after()
        return CaseFacts(devices=readings, flags=(*self._flags, *flags))

    def release(self) -> None:
        """Keep the device's memory for the next case unless it is large."""
        self._staged = np.empty(0, np.uint8)
        if self._capacity_bytes > KEEP_BYTES:
            self._free()

    def close(self) -> None:
        """Give everything back."""
        do_all([self._free, self._devices.close])
