"""GPUs as NCCL's double needs them: of several processes upon one World, and computing beside collectives."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np

from ccbench.backends.kernels.sources import beside
from ccbench.backends.nccl import overlap
from ccbench.backends.overlap import MEMORY
from tests.backends.cuda.emulated import CudaError, EmulatedRuntime
from tests.backends.cuda.streams import Task

LATENCY_SECONDS = 10e-6
BYTES_PER_SECOND = 100e9
COMPUTING_SECONDS = 20e-6
"""Of one repetition of any computation."""


def cost_seconds(size_bytes: int) -> float:
    """How long the double's devices take for a collective of so many bytes."""
    return LATENCY_SECONDS + size_bytes / BYTES_PER_SECOND


@dataclass
class WorldRuntime(EmulatedRuntime):
    """``cupy.cuda.runtime`` of one process."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.devices = self.world.devices

    # -- memory --------------------------------------------------------------------------------------------

    def malloc(self, size: int) -> int:
        with self.world.changed:
            used = sum(
                length for length, owner in self.world.memory.values() if owner == self.device
            )
            if used + size > self.memory_bytes:
                raise CudaError(2)
            address = super().malloc(size)
            self.world.memory[address] = (size, self.device)
        return address

    def free(self, address: int) -> None:
        if address:
            self.world.advance()
            super().free(address)
            del self.world.memory[address]

    # -- kernels: what computes beside collectives, and what compares ------------------------------------

    def moduleLoadData(self, image: bytes) -> int:  # noqa: N802 - as CUDA spells it
        if image.decode() != beside("streaming.cu").text:
            return super().moduleLoadData(image)
        module = self.new_handle()
        self.modules[module] = MEMORY
        return module

    def launchKernel(self, function: int, *words: int) -> None:  # noqa: N802 - as CUDA spells it
        if self.modules[function] != MEMORY:
            super().launchKernel(function, *words)
            return
        blocks, _, _, lanes, _, _, _, stream, parameters, _ = words
        address = ctypes.cast(parameters, ctypes.POINTER(ctypes.c_void_p))[0]
        assert blocks * lanes == overlap.BLOCKS_PER_PROCESSOR * self.processors * overlap.LANES
        raw = ctypes.string_at(address or 0, overlap.STREAMS.itemsize)
        source, target, count = (int(word) for word in np.frombuffer(raw, overlap.STREAMS)[0])
        device, size = self.device, count * overlap.ELEMENT_BYTES
        assert self.world.streams[stream].device == device

        def run() -> None:
            values = self.world.view(source, size, device).view(np.float32) + np.float32(1)
            self.world.view(target, size, device)[...] = values.view(np.uint8)

        self._add(stream, Task(run, COMPUTING_SECONDS))
