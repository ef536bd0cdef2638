"""CUDA as these backends use it, on a CPU: memory is host memory, launches run the kernels' host builds.

What is enqueued runs when somebody waits: each stream in its order, launches of all devices at once, as on
GPUs. Compiling gives the program, so that a launch knows which kernel it is. Every address that a kernel or a
copy is handed must be one that the device may address: memory of its own, of peers where there is peer
access, or pinned memory of the host. Every launch takes the device LAUNCH_SECONDS. With ``pool``, a shared
mapping made before processes are forked, memory handles work between them.
"""

from __future__ import annotations

import ctypes
import mmap
import re
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ccbench.backends.cuda import blocking_kernel
from ccbench.backends.kernels import abi
from ccbench.backends.kernels.building import Build, built
from ccbench.backends.kernels.host_engine import ENGINES, OPTIONS, RECORD
from ccbench.backends.kernels.sources import CompilerInput, beside, entries

from .streams import Event, HeldBack, Kernel, Stream, Task, Wait, World

LANES = 4
BLOCKING, COMPARE = "blocking", "compare"
NOT_READY, LAUNCH_FAILURE = 600, 719
"""cudaErrorNotReady, cudaErrorLaunchFailure."""

LAUNCH_SECONDS = 250e-6
UNSAFE = {
    "malloc",
    "free",
    "hostAlloc",
    "freeHost",
    "hostRegister",
    "hostUnregister",
    "graphInstantiate",
    "graphUpload",
    "streamSynchronize",
    "streamQuery",
    "eventSynchronize",
    "eventQuery",
    "deviceSynchronize",
}
"""What a thread with a capture of its own may not call (cudaStreamCaptureModeThreadLocal)."""

CAPTURE_UNSUPPORTED, CAPTURE_INVALIDATED = 900, 901
ADDRESSES = ("input", "output", "fifo", "packets", "staging", "flags", "state", "errors")


@cache
def is_call(name: str) -> bool:
    """Whether an attribute is one of CUDA's functions, by its spelling."""
    return name in ("malloc", "free") or any(letter.isupper() for letter in name)


class CudaError(RuntimeError):
    """Has a status, as CuPy's errors do."""

    def __init__(self, status: int) -> None:
        super().__init__(f"cudaError {status}")
        self.status = status


@dataclass
class EmulatedRuntime:
    """Stands in for ``cupy.cuda.runtime`` and ``cupy.cuda.driver``."""

    devices: int = 1
    capability: int = 90
    processors: int = 8
    blocks_per_processor: int = 1
    memory_bytes: int = 1 << 40
    peers: bool = True
    most_peers: int = 8
    enabled: set[tuple[int, int]] = field(default_factory=set)
    maps_host_memory: bool = True
    device: int = 0
    allocated: dict[int, NDArray[np.uint8]] = field(default_factory=dict)
    pinned: dict[int, NDArray[np.uint8]] = field(default_factory=dict)
    home: dict[int, int] = field(default_factory=dict)
    world: World = field(default_factory=World)
    capturing: dict[int, int] = field(default_factory=dict)
    graphs: dict[int, list[Task]] = field(default_factory=dict)
    modules: dict[int, str] = field(default_factory=dict)
    runs: int = 0
    views: list[tuple[int, str, NDArray[Any]]] = field(default_factory=list)
    handles: int = 100
    pool: NDArray[np.uint8] | None = None
    threads: bool = False
    opened: int = 0
    failing: dict[str, list[Exception]] = field(default_factory=dict)
    voided: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.world.processes += 1

    def __getattribute__(self, name: str) -> Any:
        """Every call fails when a test has asked for it (``failing``), or when it voids a capture."""
        attribute = object.__getattribute__(self, name)
        if not is_call(name):
            return attribute
        waiting = self.__dict__.get("failing", {}).get(name)
        if name in UNSAFE and threading.get_ident() in self.capturing.values():
            self.voided.update(self.capturing)
            error: Exception = CudaError(CAPTURE_UNSUPPORTED)
        elif waiting:
            error = waiting.pop(0)
        else:
            return attribute

        def fail(*arguments: Any) -> None:
            raise error

        return fail

    def new_handle(self) -> int:
        self.handles += 1
        return self.handles

    def getDeviceCount(self) -> int:  # noqa: N802 - as CUDA spells it
        return self.devices

    def runtimeGetVersion(self) -> int:  # noqa: N802 - as CUDA spells it
        return 12090

    def driverGetVersion(self) -> int:  # noqa: N802 - as CUDA spells it
        return 13000

    def getDevice(self) -> int:  # noqa: N802 - as CUDA spells it
        return self.device

    def setDevice(self, device: int) -> None:  # noqa: N802 - as CUDA spells it
        assert 0 <= device < self.devices
        self.device = device

    def deviceGetAttribute(self, attribute: int, device: int) -> int:  # noqa: N802 - as CUDA spells it
        mapped = int(self.maps_host_memory)
        return {
            75: self.capability // 10,
            76: self.capability % 10,
            16: self.processors,
            38: 1 << 20,
            19: mapped,
            41: mapped,
        }[attribute]

    def deviceGetPCIBusId(self, device: int) -> str:  # noqa: N802 - as CUDA spells it
        return f"0000:0{device}:00.0"

    def deviceCanAccessPeer(self, device: int, peer: int) -> int:  # noqa: N802 - as CUDA spells it
        return int(self.peers)

    def deviceEnablePeerAccess(self, peer: int) -> None:  # noqa: N802 - as CUDA spells it
        assert peer != self.device
        assert self.peers
        if (self.device, peer) in self.enabled:
            raise CudaError(704)
        if sum(device == self.device for device, _ in self.enabled) == self.most_peers:
            raise CudaError(711)
        self.enabled.add((self.device, peer))

    # -- memory --------------------------------------------------------------------------------------------

    def malloc(self, size: int) -> int:
        taken = sum(
            self.allocated[at].nbytes
            for at, device in self.home.items()
            if device == self.device
        )
        if taken + size > self.memory_bytes:
            raise CudaError(2)
        if self.pool is None:
            memory = np.empty(size + 256, np.uint8)
        else:
            memory, self.pool = self.pool[: size + 256], self.pool[size + 256 :]
        address = aligned(memory)
        self.allocated[address] = memory
        self.home[address] = self.device
        return address

    def free(self, address: int) -> None:
        if address:
            del self.allocated[address]
            del self.home[address]

    def hostAlloc(self, size: int, flags: int) -> int:  # noqa: N802 - as CUDA spells it
        assert flags == 3
        assert size > 0
        memory = np.full(size + 256, 0xA5, np.uint8)
        address = aligned(memory)
        self.pinned[address] = memory
        return address

    def hostRegister(self, address: int, size: int, flags: int) -> None:  # noqa: N802 - as CUDA spells it
        assert flags == 3
        assert address % mmap.PAGESIZE == size % mmap.PAGESIZE == 0
        assert address not in self.pinned
        self.pinned[address] = np.ctypeslib.as_array(
            (ctypes.c_uint8 * size).from_address(address)
        )

    def hostUnregister(self, address: int) -> None:  # noqa: N802 - as CUDA spells it
        del self.pinned[address]

    def pointerGetAttributes(self, address: int) -> SimpleNamespace:  # noqa: N802 - as CUDA spells it
        assert address in self.pinned
        return SimpleNamespace(devicePointer=address)

    def freeHost(self, address: int) -> None:  # noqa: N802 - as CUDA spells it
        del self.pinned[address]

    def kind_of(self, address: int, device: int, peers: bool) -> str:
        """What a device finds at ``address``: own, peer or pinned memory; AssertionError where it may not
        look."""
        for base, memory in self.pinned.items():
            if base <= address < base + memory.nbytes:
                return "pinned"
        for base, memory in self.allocated.items():
            if base <= address < base + memory.nbytes:
                home = self.home[base]
                reached = home == device or (peers and (device, home) in self.enabled)
                assert reached, f"device {device} is handed memory of device {home}"
                return "own" if home == device else "peer"
        assert self.opened, f"device {device} is handed {address:#x}, which nobody allocated"
        return "peer"  # another process's

    def ipcGetMemHandle(self, address: int) -> bytes:  # noqa: N802 - as CUDA spells it
        assert address in self.allocated
        return address.to_bytes(64, "little")

    def ipcOpenMemHandle(self, handle: bytes) -> int:  # noqa: N802 - as CUDA spells it
        self.opened += 1
        return int.from_bytes(handle, "little")

    def ipcCloseMemHandle(self, address: int) -> None:  # noqa: N802 - as CUDA spells it
        self.opened -= 1

    def memcpyAsync(self, to: int, source: int, size: int, kind: int, stream: int) -> None:  # noqa: N802
        assert kind in (1, 2, 3)
        device_side = {1: (to,), 2: (source,), 3: (to, source)}[kind]
        for address in device_side:
            assert self.kind_of(address, self.device, peers=False) == "own"
        self._add(stream, Task(lambda: void(ctypes.memmove(to, source, size)), kind="copy"))

    def memsetAsync(self, to: int, value: int, size: int, stream: int) -> None:  # noqa: N802
        assert self.kind_of(to, self.device, peers=False) == "own"
        fill = Task(lambda: void(ctypes.memset(to, value, size)), 0.0, "set", (to, size))
        self._add(stream, fill)

    # -- kernels -------------------------------------------------------------------------------------------

    def moduleLoadData(self, image: bytes) -> int:  # noqa: N802 - as CUDA spells it
        module = self.new_handle()
        entry_names = re.findall(r"CCB_GLOBAL\((\w+)\)", image.decode())
        assert entry_names or image.decode() == beside("blocking.cu").text
        self.modules[module] = entry_names[0] if entry_names else BLOCKING
        return module

    def moduleUnload(self, module: int) -> None:  # noqa: N802 - as CUDA spells it
        assert not any(stream.queue for stream in self.world.streams.values())
        del self.modules[module]

    def moduleGetFunction(self, module: int, name: str) -> int:  # noqa: N802 - as CUDA spells it
        assert name == "ccb_kernel"
        return module

    def occupancyMaxActiveBlocksPerMultiprocessor(  # noqa: N802
        self, function: int, lanes: int, shared: int
    ) -> int:
        return self.blocks_per_processor

    def launchKernel(self, function: int, *words: int) -> None:  # noqa: N802 - as CUDA spells it
        grid, _, _, lanes, _, _, shared, stream, parameters, _ = words
        assert lanes % 32 == 0
        assert shared == 0
        name = self.modules[function]
        dtype = blocking_kernel.ARGUMENTS if name == BLOCKING else abi.ARGUMENTS
        address = ctypes.cast(parameters, ctypes.POINTER(ctypes.c_void_p))[0]
        raw = ctypes.string_at(address or 0, dtype.itemsize)
        arguments = np.frombuffer(raw, dtype).copy()
        if name == BLOCKING:
            assert grid == 1
            assert (
                self.kind_of(int(arguments["released"][0]), self.device, peers=False)
                == "pinned"
            )
            assert self.world.streams[stream].captured is None
            self._add(stream, HeldBack(self.world, arguments))
        else:
            assert grid == arguments["channels"][0] * arguments["ranks_here"][0]
            self.look_at_addresses(name, arguments)
            kernel = Kernel(self.launch, name, arguments)
            alone = Task(lambda: self.launch([kernel]), kind="kernel")
            kernel.stream = self.world.streams[stream]
            self._add(stream, alone if name == COMPARE else kernel)

    def look_at_addresses(self, name: str, arguments: NDArray[Any]) -> None:
        """A kernel's tables lie in its device, and everything in them is where it may look."""
        for table in ("views", "plan", "program"):
            address = int(arguments[table][0])
            assert not address or self.kind_of(address, self.device, peers=False) == "own"
        ranks = int(arguments["ranks"][0])
        raw = ctypes.string_at(int(arguments["views"][0]), ranks * abi.RANK_VIEW.itemsize)
        views = np.frombuffer(raw, abi.RANK_VIEW).copy()
        self.views.append((self.device, name, views))
        for address in views[list(ADDRESSES)].tolist():
            for word in address:
                assert not word or self.kind_of(word, self.device, self.peers)

    # -- streams and events --------------------------------------------------------------------------------

    def _add(self, stream: int, task: Task) -> None:
        with self.world.changed:
            mine = self.world.streams[stream]
            assert mine.device == self.device
            mine.add(task, self.world.seconds)
            self.world.changed.notify_all()

    def streamCreateWithFlags(self, flags: int) -> int:  # noqa: N802 - as CUDA spells it
        assert (
            flags == 1
        )  # one that waits for the legacy default stream cannot be captured beside it
        handle = next(self.world.handles)
        self.world.streams[handle] = Stream(handle, self.device)
        return handle

    def streamDestroy(self, stream: int) -> None:  # noqa: N802 - as CUDA spells it
        self.world.streams.pop(stream)

    def streamSynchronize(self, stream: int) -> None:  # noqa: N802 - as CUDA spells it
        mine = self.world.streams[stream]
        over = self.world.wait_until(
            lambda: not mine.queue,
            f"streamSynchronize of device {mine.device}: nothing can run any more",
        )
        if self.world.failure is not None:
            raise self.world.failure
        if not over:
            raise CudaError(LAUNCH_FAILURE)

    def streamQuery(self, stream: int) -> int:  # noqa: N802 - as CUDA spells it
        self.world.advance()
        if self.world.failure is not None:
            raise self.world.failure
        return NOT_READY if self.world.streams[stream].queue else 0

    def streamWaitEvent(self, stream: int, event: int, flags: int = 0) -> None:  # noqa: N802
        self._add(stream, Wait(self.world.events[event]))

    def eventCreate(self) -> int:  # noqa: N802 - as CUDA spells it
        handle = next(self.world.handles)
        self.world.events[handle] = Event()
        return handle

    def eventDestroy(self, event: int) -> None:  # noqa: N802 - as CUDA spells it
        self.world.events.pop(event)

    def eventRecord(self, event: int, stream: int) -> None:  # noqa: N802 - as CUDA spells it
        mine = self.world.events[event]
        mine.pending += 1

        def record() -> None:
            mine.seconds = self.world.streams[stream].seconds
            mine.pending = max(mine.pending - 1, 0)

        self._add(stream, Task(record, kind="event"))

    def eventElapsedTime(self, began: int, ended: int) -> float:  # noqa: N802 - as CUDA spells it
        return 1e3 * (self.world.events[ended].seconds - self.world.events[began].seconds)

    # -- graphs --------------------------------------------------------------------------------------------

    def streamBeginCapture(self, stream: int, mode: int) -> None:  # noqa: N802 - as CUDA spells it
        assert mode == 1  # of this thread: what others call must not end the capture
        assert self.world.streams[stream].captured is None
        self.world.streams[stream].captured = []
        self.capturing[stream] = threading.get_ident()

    def streamEndCapture(self, stream: int) -> int:  # noqa: N802 - as CUDA spells it
        mine = self.world.streams[stream]
        captured, mine.captured = mine.captured, None
        assert captured is not None
        del self.capturing[stream]
        if stream in self.voided:
            self.voided.discard(stream)
            raise CudaError(CAPTURE_INVALIDATED)
        graph = next(self.world.handles)
        self.graphs[graph] = captured
        return graph

    def graphInstantiate(self, graph: int) -> int:  # noqa: N802 - as CUDA spells it
        executable = next(self.world.handles)
        self.graphs[executable] = self.graphs[graph]
        return executable

    def graphDestroy(self, graph: int) -> None:  # noqa: N802 - as CUDA spells it
        del self.graphs[graph]

    graphExecDestroy = graphDestroy  # noqa: N815 - as CUDA spells it

    def graphUpload(self, graph: int, stream: int) -> None:  # noqa: N802 - as CUDA spells it
        assert graph in self.graphs

    def graphLaunch(self, graph: int, stream: int) -> None:  # noqa: N802 - as CUDA spells it
        for task in self.graphs[graph]:
            self._add(stream, task.again())

    # -- launches ------------------------------------------------------------------------------------------

    def launch(self, batch: Sequence[Kernel]) -> None:
        """Collectives of all devices, run by the host engine."""
        records = np.zeros(len(batch), RECORD)
        handles = sorted({kernel.stream.handle for kernel in batch})
        for record, kernel in zip(records, batch, strict=True):
            record["entry"], record["arguments"] = kernel.name.encode(), kernel.arguments[0]
            # To the engine: what runs in order.
            record["device"] = handles.index(kernel.stream.handle)
            kernel.stream.seconds += LAUNCH_SECONDS
        (file,) = {entries()[kernel.name].file for kernel in batch}
        options = np.zeros(1, OPTIONS)
        options["lanes"] = LANES
        options["seed"] = self.runs
        options["engine"] = ENGINES["threads" if self.threads else "fibers"]
        self.runs += 1
        self.run_on_host(file, records, options)

    @staticmethod
    def run_on_host(file: str, records: NDArray[Any], options: NDArray[Any]) -> None:
        report = ctypes.create_string_buffer(4096)
        result = library(file).ccb_host_launch(
            ctypes.c_void_p(records.ctypes.data),
            ctypes.c_int(len(records)),
            ctypes.c_void_p(options.ctypes.data),
            report,
            ctypes.c_int(4096),
        )
        assert result == 0, report.value.decode()


@cache
def library(file: str) -> ctypes.CDLL:
    """The host build of a shipped kernel file."""
    return ctypes.CDLL(str(built(Build(file))))


def aligned(memory: NDArray[np.uint8]) -> int:
    """The first address in it where something may lie."""
    address = int(memory.ctypes.data)
    return address + -address % 256


def void(_: object) -> None:
    """Give nothing."""


@dataclass(frozen=True)
class FakeNvrtc:
    """Stands in for ``nvrtc``: compiles for the devices of these tests."""

    capability: int
    cupy: int
    driver: int
    architectures: Sequence[int] = (80, 90)


def compiled_to_text(program: CompilerInput, architecture: int, compiler: FakeNvrtc) -> bytes:
    """Stands in for ``compile_program``."""
    return program.text.encode()


def module_of(name: str, stand_in: Any) -> ModuleType:
    """``cupy.cuda.NAME``, which is imported from now on; ``stand_in`` has what is in it."""
    made = ModuleType(f"cupy.cuda.{name}")
    made.__getattr__ = lambda attribute: getattr(stand_in, attribute)  # type: ignore[method-assign]
    sys.modules[made.__name__] = made
    return made
