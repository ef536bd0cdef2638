"""CUDA as these backends use it, on a CPU: memory is host memory, launches run the kernels' host builds.

What is enqueued runs when somebody waits, all devices at once, as on GPUs. Compiling gives the program,
so that a launch knows which kernel it is. With ``pool``, a shared mapping made before processes are forked,
memory handles work between them.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ccbench.kernels import abi
from ccbench.kernels.building import Build, built
from ccbench.kernels.compiler import Compiled
from ccbench.kernels.host_engine import ENGINES, OPTIONS, RECORD
from ccbench.kernels.sources import Program, entries

LANES = 8
STREAM_STRIDE = 1000


class CudaError(RuntimeError):
    """Has a status, as CuPy's errors do."""

    def __init__(self, status: int) -> None:
        super().__init__(f"cudaError {status}")
        self.status = status


@dataclass
class EmulatedRuntime:
    """Stands in for ``cupy.cuda.runtime`` and ``cupy.cuda.driver``."""

    devices: int = 1
    processors: int = 8
    blocks_per_processor: int = 1
    memory_bytes: int = 1 << 40
    peers: bool = True
    device: int = 0
    allocated: dict[int, NDArray[np.uint8]] = field(default_factory=dict)
    queue: list[tuple[int, str, NDArray[Any]]] = field(default_factory=list)
    captured: list[tuple[int, str, NDArray[Any]]] | None = None
    graphs: dict[int, list[tuple[int, str, NDArray[Any]]]] = field(default_factory=dict)
    images: list[str] = field(default_factory=list)
    runs: list[int] = field(default_factory=list)
    handles: int = 100
    pool: NDArray[np.uint8] | None = None
    pool_used: int = 0
    threads: bool = False
    opened: int = 0

    def __getattr__(self, name: str) -> Any:
        if name in ("eventRecord", "eventDestroy", "streamDestroy", "graphUpload", "graphExecDestroy"):
            return lambda *arguments: None
        raise AttributeError(name)

    def new_handle(self, *_: int) -> int:
        self.handles += 1
        return self.handles

    eventCreate = new_handle  # noqa: N815 - as CUDA spells it

    def streamCreateWithFlags(self, flags: int) -> int:  # noqa: N802 - as CUDA spells it
        return self.new_handle() + STREAM_STRIDE * self.device

    def getDeviceCount(self) -> int:  # noqa: N802 - as CUDA spells it
        return self.devices

    def getDevice(self) -> int:  # noqa: N802 - as CUDA spells it
        return self.device

    def setDevice(self, device: int) -> None:  # noqa: N802 - as CUDA spells it
        assert 0 <= device < self.devices
        self.device = device

    def deviceGetAttribute(self, attribute: int, device: int) -> int:  # noqa: N802 - as CUDA spells it
        return {75: 9, 76: 0, 16: self.processors, 38: 1 << 20}[attribute]

    def deviceGetPCIBusId(self, device: int) -> str:  # noqa: N802 - as CUDA spells it
        return f"0000:0{device}:00.0"

    def deviceCanAccessPeer(self, one: int, other: int) -> int:  # noqa: N802 - as CUDA spells it
        return int(self.peers)

    def deviceEnablePeerAccess(self, other: int) -> None:  # noqa: N802 - as CUDA spells it
        assert other != self.device
        raise CudaError(704)

    # -- memory --------------------------------------------------------------------------------------------

    def malloc(self, size: int) -> int:
        if size > self.memory_bytes:
            raise CudaError(2)
        if self.pool is None:
            memory = np.empty(size + 256, np.uint8)
        else:
            memory = self.pool[self.pool_used : self.pool_used + size + 256]
            self.pool_used += size + 256
        address = int(memory.ctypes.data) + -int(memory.ctypes.data) % 256
        self.allocated[address] = memory
        return address

    def free(self, address: int) -> None:
        if address:
            del self.allocated[address]

    def ipcGetMemHandle(self, address: int) -> bytes:  # noqa: N802 - as CUDA spells it
        assert address in self.allocated
        return address.to_bytes(64, "little")

    def ipcOpenMemHandle(self, handle: bytes) -> int:  # noqa: N802 - as CUDA spells it
        self.opened += 1
        return int.from_bytes(handle, "little")

    def ipcCloseMemHandle(self, address: int) -> None:  # noqa: N802 - as CUDA spells it
        self.opened -= 1

    def memcpyAsync(self, to: int, source: int, size: int, kind: int, stream: int) -> None:  # noqa: N802
        self.flush()
        ctypes.memmove(to, source, size)

    def memsetAsync(self, to: int, value: int, size: int, stream: int) -> None:  # noqa: N802
        self.flush()
        ctypes.memset(to, value, size)

    # -- kernels -------------------------------------------------------------------------------------------

    def moduleLoadData(self, image: bytes) -> int:  # noqa: N802 - as CUDA spells it
        self.images.append(re.findall(r"CCB_GLOBAL\((\w+)\)", image.decode())[0])
        return len(self.images)

    def moduleGetFunction(self, module: int, name: str) -> int:  # noqa: N802 - as CUDA spells it
        assert name == "ccb_kernel"
        return module

    def occupancyMaxActiveBlocksPerMultiprocessor(self, function: int, lanes: int, shared: int) -> int:  # noqa: N802
        return self.blocks_per_processor

    def launchKernel(self, function: int, *words: int) -> None:  # noqa: N802 - as CUDA spells it
        grid, _, _, lanes, _, _, shared, stream, parameters, _ = words
        assert lanes % 32 == 0
        assert shared == 0
        assert stream // STREAM_STRIDE == self.device
        address = ctypes.cast(parameters, ctypes.POINTER(ctypes.c_void_p))[0]
        raw = ctypes.string_at(address or 0, abi.ARGUMENTS.itemsize)
        arguments = np.frombuffer(raw, abi.ARGUMENTS).copy()
        assert grid == arguments["channels"][0] * arguments["ranks_here"][0]
        launch = (self.device, self.images[function - 1], arguments)
        (self.queue if self.captured is None else self.captured).append(launch)

    def streamBeginCapture(self, stream: int, mode: int) -> None:  # noqa: N802 - as CUDA spells it
        self.captured = []

    def streamEndCapture(self, stream: int) -> int:  # noqa: N802 - as CUDA spells it
        assert self.captured is not None
        graph = self.new_handle()
        self.graphs[graph], self.captured = self.captured, None
        return graph

    def graphInstantiate(self, graph: int) -> int:  # noqa: N802 - as CUDA spells it
        return graph

    def graphDestroy(self, graph: int) -> None:  # noqa: N802 - as CUDA spells it
        del self.graphs[graph]

    def graphLaunch(self, graph: int, stream: int) -> None:  # noqa: N802 - as CUDA spells it
        self.queue.extend(self.graphs[graph])

    def streamSynchronize(self, stream: int) -> None:  # noqa: N802 - as CUDA spells it
        self.flush()

    def eventElapsedTime(self, began: int, ended: int) -> float:  # noqa: N802 - as CUDA spells it
        return 0.25

    def flush(self) -> None:
        """Run everything enqueued, devices at once."""
        waiting, self.queue = self.queue, []
        if not waiting:
            return
        records = np.zeros(len(waiting), RECORD)
        for record, (device, entry, arguments) in zip(records, waiting, strict=True):
            record["entry"], record["device"], record["arguments"] = entry.encode(), device, arguments[0]
        (file,) = {entries()[entry].file for _, entry, _ in waiting}
        options = np.zeros(1, OPTIONS)
        options["lanes"] = LANES
        options["seed"] = len(self.runs)
        options["engine"] = ENGINES["threads" if self.threads else "fibers"]
        self.runs.append(len(waiting))
        report = ctypes.create_string_buffer(4096)
        result = ctypes.CDLL(str(built(Build(file)))).ccb_host_launch(
            ctypes.c_void_p(records.ctypes.data),
            ctypes.c_int(len(records)),
            ctypes.c_void_p(options.ctypes.data),
            report,
            ctypes.c_int(4096),
        )
        assert result == 0, report.value.decode()


@dataclass(frozen=True)
class FakeNvrtc:
    """Supports what it is told to."""

    architectures: Sequence[int] = (80, 90)


def compiled_to_text(program: Program, architecture: int) -> Compiled:
    """Stands in for ``compile_program``."""
    return Compiled(program.text.encode())
