"""One rank of an MPI whose buffers are in the memory of a GPU.

Everything but the memory is ``endpoint``'s. A CUDA-aware MPI takes an address of a device where it takes one
of the host, so a buffer is an array that *names* device memory: its address and its size are used, and nobody
looks inside. Data are computed by the host and copied there, and copied back to be checked.

MPI knows nothing of CUDA's streams: it may read a buffer as soon as it is called, and what a call has
received is there when it returns. So the device has finished filling before any call, and no sample needs to
wait for it afterwards. The one exception is a broadcast out of place, where MPI_Bcast has one buffer: the
root copies on its device and waits for that, inside the sample, as the host's backend does.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ccbench.backends.apart import MEMORY_SHARE
from ccbench.backends.base import ControlChannel, OutOfMemory, local_rank
from ccbench.backends.cuda.endpoint import KEEP_BYTES
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
from ccbench.backends.mpi.awareness import why_not_cuda_aware
from ccbench.backends.mpi.endpoint import MpiEndpoint
from ccbench.cases import Case, CaseFacts
from ccbench.errors import BackendUnavailable
from ccbench.machine.flags import Flag
from ccbench.machine.telemetry import DeviceWatch
from ccbench.verification import POISON_BYTE, Array, Mismatch

ALIGNMENT_BYTES = 64 << 10
"""Where a buffer begins: at a whole page of the GPU, which network adapters register as a whole."""


def named(address: int, size_bytes: int) -> Array:
    """Bytes of device memory as an array: for its address and size alone, what is inside cannot be read."""
    memory = memoryview((ctypes.c_uint8 * size_bytes).from_address(address))
    return np.frombuffer(memory, np.uint8)


class DeviceEndpoint(MpiEndpoint):
    """Implements ``ccbench.backends.crew.TeamEndpoint`` on buffers of a GPU."""

    def __init__(self, exchange: ControlChannel, cuda: Cuda) -> None:
        """cuda: with at least one device. BackendUnavailable where MPI takes none of its addresses."""
        self._cuda = cuda
        with starting():
            # A launcher may show each process its own GPU alone; then its number is 0 everywhere. Libraries
            # take the device that is current when they start, so it is chosen before.
            number = local_rank(exchange.hosts, exchange.rank) % device_count(cuda)
            cuda.use(number)
            bus_id = cuda.facts(number).bus_id
        super().__init__(exchange)
        refused = why_not_cuda_aware(self._mpi, os.environ)
        if refused:
            raise BackendUnavailable(f"mpi-cuda: {refused}")
        told = [text.decode() for text in exchange.all_gather(bus_id.encode())]
        self._gpus = tuple(f"GPU {gpu} of {host}" for gpu, host in zip(told, exchange.hosts, strict=True))
        self.flags = (Flag.LOOPBACK,) if len(set(self._gpus)) < self.ranks else ()
        self.devices = DeviceWatch([bus_id])
        self._memory = self._capacity_bytes = self._used_bytes = 0
        self._staged = np.empty(0, np.uint8)

    # -- memory --------------------------------------------------------------------------------------------

    def prepare(self, case: Case) -> str:
        """Take memory of the device and bind the call; returns the algorithm that runs. Collective."""
        label = super().prepare(case)
        self.devices.before()
        return label

    def _refuse_too_much(self, own_bytes: int) -> None:
        """Room for the case's buffers, or OutOfMemory on every rank alike."""
        super()._refuse_too_much(own_bytes)  # data go through as much memory of the host
        room = own_bytes + 2 * (ALIGNMENT_BYTES + self.case.misalignment_bytes)
        grows = room > self._capacity_bytes
        if grows:
            self._release()
        self._wait_for_all()  # ranks that share a device have given back what they will
        free_bytes, _ = self._cuda.runtime.memGetInfo()
        self._refuse_beyond(room if grows else 0, free_bytes * MEMORY_SHARE, self._gpus)
        self._reserve(room if grows else 0)
        self._used_bytes = 0

    def _reserve(self, size_bytes: int) -> None:
        """So many bytes of the device in one piece, on all ranks or on none. Collective; 0: as there are."""
        fits = True
        if size_bytes:
            try:
                self._memory, self._capacity_bytes = self._cuda.allocate(size_bytes), size_bytes
            except OutOfMemory:
                fits = False
        told = self.gather_numbers(np.array([float(fits), float(size_bytes)]))
        full = [rank for rank in range(self.ranks) if not told[rank, 0]]
        if full:
            self._release()
            raise OutOfMemory(f"{self._gpus[full[0]]} has no {told[full[0], 1]:.0f} bytes left in one piece")

    def _release(self) -> None:
        at, self._memory, self._capacity_bytes = self._memory, 0, 0
        self._cuda.free(at)

    def _new_buffer(self, elements: int, dtype: np.dtype[Any], number: int, misalignment_bytes: int) -> Array:
        """The next piece of what was reserved."""
        size = elements * dtype.itemsize
        aligned = -(-(self._memory + self._used_bytes) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        begin = aligned - self._memory + misalignment_bytes
        self._used_bytes = begin + size
        return named(self._memory, self._capacity_bytes)[begin : begin + size].view(dtype)

    def finish(self) -> None:
        """Drop the buffers; their memory stays for the next case unless it is large. Collective."""
        self._staged = np.empty(0, np.uint8)
        super().finish()
        if self._capacity_bytes > KEEP_BYTES:
            self._release()

    def close(self) -> None:
        """Give the memory back, then finalise the library."""
        do_all([self._release, self.devices.close, super().close])

    # -- the call ------------------------------------------------------------------------------------------

    def bind(self) -> Any:
        """The MPI call of this rank's part of the case."""
        copies = self.part.collective == "broadcast" and not self.part.in_place
        if not copies or self.member != max(self.part.root, 0):
            return super().bind()
        asked, self.part = self.part, replace(self.part, in_place=True)  # MPI_Bcast alone
        try:
            call = super().bind()
        finally:
            self.part = asked
        if self._loop is not None:
            self._loop = partial(_by_turns, partial(self._loop, 1), self._copy)
        return partial(_by_turns, call, self._copy, 1)

    def _copy(self) -> None:
        """What the root has sent is what it gets."""
        self._move(self.target.ctypes.data, self.source.ctypes.data, self.source.nbytes, ON_DEVICE)
        self._synchronize()

    def barrier(self) -> None:
        """As the library's, once this rank's device is done."""
        self._synchronize()
        super().barrier()

    # -- Endpoint ------------------------------------------------------------------------------------------

    def refill(self, salt: int, launches: int = 1) -> None:
        """Fill this rank's input with the data of ``salt``."""
        if self._seat is None:
            return
        data = self._staging(self._input)
        self._seat.fill(data, salt, launches)
        self._move(self._input.ctypes.data, data.ctypes.data, data.nbytes, TO_DEVICE)
        self._synchronize()

    def poison(self) -> None:
        """Make the output wrong everywhere."""
        if self.target.nbytes:
            self._cuda.runtime.memset(self.target.ctypes.data, POISON_BYTE, self.target.nbytes)
            self._synchronize()

    def check(self, salt: int, launches: int) -> Mismatch | None:
        """Compare a copy of this rank's output with what is right."""
        self.devices.ended()
        named_output = self._output
        data = self._staging(named_output)
        self._move(data.ctypes.data, named_output.ctypes.data, data.nbytes, TO_HOST)
        self._output = data
        try:
            return super().check(salt, launches)
        finally:
            self._output = named_output

    def facts(self) -> CaseFacts:
        """What became of the device."""
        readings, flags = self.devices.after()
        return CaseFacts(devices=readings, flags=flags)

    def _staging(self, buffer: Array) -> Array:
        """Memory of the host, as large as ``buffer``."""
        if self._staged.nbytes < buffer.nbytes:
            self._staged = np.empty(buffer.nbytes, np.uint8)
        return self._staged[: buffer.nbytes].view(buffer.dtype)

    def _move(self, target: int, source: int, size_bytes: int, kind: int) -> None:
        if size_bytes:
            self._cuda.runtime.memcpy(target, source, size_bytes, kind)

    def _synchronize(self) -> None:
        """Wait for the device: a copy from memory that is not pinned may return before it is there."""
        self._cuda.runtime.deviceSynchronize()


def _by_turns(one: Callable[[], object], other: Callable[[], object], times: int) -> None:
    for _ in range(times):
        one()
        other()


def launched_endpoint(exchange: ControlChannel) -> DeviceEndpoint:
    """The endpoint of one launched rank, on the GPU of its number among its host's ranks."""
    return DeviceEndpoint(exchange, open_cuda())
