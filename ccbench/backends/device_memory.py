"""Memory of a device for ranks with processes of their own: one allocation, from which buffers are cut.

Data are computed by the host and copied there, and copied back to be checked. A buffer is an array that
*names* device memory: its address and its size are used, and nobody looks inside.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ccbench.backends.base import OutOfMemory, gathered
from ccbench.backends.cuda.runtime import ON_DEVICE, TO_DEVICE, TO_HOST, do_all
from ccbench.backends.rank_endpoint import MEMORY_SHARE, HostMemory
from ccbench.cases.measurement import CaseFacts
from ccbench.flags import Flag
from ccbench.machine.telemetry import DeviceWatch
from ccbench.verification import POISON_BYTE, Array

if TYPE_CHECKING:
    from ccbench.backends.rank_endpoint import RankEndpoint

ALIGNMENT_BYTES = 64 << 10
"""Alignment of a buffer: a whole page of the GPU, which network adapters register as a whole."""

KEEP_BYTES = 1 << 30
"""More than this is given back after a case."""


def named(address: int, size_bytes: int) -> Array:
    """Return bytes of device memory as an array, for its address and size alone: nobody can read it."""
    memory = memoryview((ctypes.c_uint8 * size_bytes).from_address(address))
    return np.frombuffer(memory, np.uint8)


class DeviceMemory(HostMemory):
    """One allocation on this rank's device, from which a case's buffers are cut."""

    def __init__(self, endpoint: RankEndpoint, cuda: Any, name: str) -> None:
        """cuda: ``backends.cuda.runtime.Cuda`` or its like. name: of the device on its host, a GPU's bus id."""
        super().__init__(endpoint)
        self._cuda = cuda
        exchange = endpoint.exchange
        names = gathered(exchange, name)
        self._gpus = tuple(
            f"GPU {gpu} of {host}" for gpu, host in zip(names, exchange.hosts, strict=True)
        )
        self._flags = (Flag.LOOPBACK,) if len(set(self._gpus)) < endpoint.ranks else ()
        self._devices = DeviceWatch([name])
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
        answers = self._endpoint.gather_numbers(np.array([float(fits), float(more)]))
        full = [rank for rank, (fitted, _) in enumerate(answers) if not fitted]
        if full:
            self._free()
            raise OutOfMemory(
                f"{self._gpus[full[0]]} has no {answers[full[0], 1]:.0f} bytes left in one piece"
            )
        self._used_bytes = 0

    def _free(self) -> None:
        at, self._address, self._capacity_bytes = self._address, 0, 0
        self._cuda.free(at)

    def new_buffer(
        self, elements: int, dtype: np.dtype[Any], number: int, misalignment_bytes: int
    ) -> Array:
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
