"""CUDA as these backends use it, on a CPU: memory is host memory, launches run the kernels' host builds.

What is enqueued runs when somebody waits: each stream in its order, launches of all devices at once, as on
GPUs. Compiling gives the program, so that a launch knows which kernel it is. Every address that a kernel or a
copy is handed must be one that the device may address: memory of its own, of peers where there is peer
access, or pinned memory of the host. Time passes too: every call takes the host CALL_SECONDS, every launch
takes the device LAUNCH_SECONDS, and events see when the device got there. With ``pool``, a shared mapping
made before processes are forked, memory handles work between them.
"""

from __future__ import annotations

import ctypes
import mmap
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ccbench.backends.cuda import blocking_kernel
from ccbench.backends.kernels import abi
from ccbench.backends.kernels.building import Build, built
from ccbench.backends.kernels.host_engine import ENGINES, OPTIONS, RECORD
from ccbench.backends.kernels.sources import CompilerInput, beside, entries

LANES = 4
STREAM_STRIDE = 1_000_000
BLOCKING = "blocking"
CALL_SECONDS = 10e-6
LAUNCH_SECONDS = 250e-6
RUBBISH = 0xEE
TRAP = np.full(2 << 20, RUBBISH, np.uint8)
UNTOUCHED = TRAP.copy()
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
class Item:
    """One thing in a stream's queue; issued: when the host enqueued it."""

    kind: str
    device: int
    details: tuple[Any, ...]
    issued: float = 0.0
    stream: int = 0


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
    queue: list[Item] = field(default_factory=list)
    captured: dict[int, list[Item]] = field(default_factory=dict)
    capturing: dict[int, int] = field(default_factory=dict)
    spoilt: set[int] = field(default_factory=set)
    graphs: dict[int, list[Item]] = field(default_factory=dict)
    modules: dict[int, str] = field(default_factory=dict)
    loads: list[str] = field(default_factory=list)
    runs: list[int] = field(default_factory=list)
    at_once: list[int] = field(default_factory=list)
    views: list[tuple[int, str, NDArray[Any]]] = field(default_factory=list)
    handles: int = 100
    pool: NDArray[np.uint8] | None = None
    pool_used: int = 0
    threads: bool = False
    opened: int = 0
    now: float = 0.0
    stream_time: dict[int, float] = field(default_factory=dict)
    events: dict[int, float] = field(default_factory=dict)
    failing: dict[str, list[Exception]] = field(default_factory=dict)

    def __getattribute__(self, name: str) -> Any:
        """Every call takes the host time, and fails when a test has asked for it (``failing``)."""
        attribute = object.__getattribute__(self, name)
        if not is_call(name):
            return attribute
        self.pass_time()
        mine = self.captures_of_this_thread() if name in UNSAFE else ()
        self.spoilt.update(mine)
        waiting = object.__getattribute__(self, "failing").get(name)
        if not waiting and not mine:
            return attribute
        error = CudaError(CAPTURE_UNSUPPORTED) if mine else waiting.pop(0)

        def fail(*arguments: Any) -> None:
            raise error

        return fail

    def captures_of_this_thread(self) -> list[int]:
        """Streams that capture; ``spoilt`` are those of which nothing will come."""
        me = threading.get_ident()
        return [
            stream
            for stream, thread in self.__dict__.get("capturing", {}).items()
            if thread == me
        ]

    def end_capture(self, stream: int) -> None:
        """CudaError where what was captured is void."""
        del self.capturing[stream]
        if stream in self.spoilt:
            self.spoilt.discard(stream)
            raise CudaError(CAPTURE_INVALIDATED)

    def new_handle(self) -> int:
        self.handles += 1
        return self.handles

    def eventCreate(self) -> int:  # noqa: N802 - as CUDA spells it
        return self.new_handle()

    def eventDestroy(self, event: int) -> None:  # noqa: N802 - as CUDA spells it
        self.events.pop(event, None)

    def streamDestroy(self, stream: int) -> None:  # noqa: N802 - as CUDA spells it
        assert stream

    def streamCreateWithFlags(self, flags: int) -> int:  # noqa: N802 - as CUDA spells it
        assert (
            flags == 1
        )  # a stream that waits for the legacy default stream cannot be captured beside it
        return self.new_handle() + STREAM_STRIDE * self.device

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
            memory = self.pool[self.pool_used : self.pool_used + size + 256]
            self.pool_used += size + 256
        address = int(memory.ctypes.data) + -int(memory.ctypes.data) % 256
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
        if size > self.memory_bytes:
            raise CudaError(2)
        memory = np.full(size + 256, 0xA5, np.uint8)
        address = int(memory.ctypes.data) + -int(memory.ctypes.data) % 256
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
        self.enqueue("copy", (to, source, size), stream)

    def memsetAsync(self, to: int, value: int, size: int, stream: int) -> None:  # noqa: N802
        assert self.kind_of(to, self.device, peers=False) == "own"
        self.enqueue("set", (to, value, size), stream)

    # -- kernels -------------------------------------------------------------------------------------------

    def moduleLoadData(self, image: bytes) -> int:  # noqa: N802 - as CUDA spells it
        module = self.new_handle()
        entry_names = re.findall(r"CCB_GLOBAL\((\w+)\)", image.decode())
        assert entry_names or image.decode() == beside("blocking.cu").text
        self.modules[module] = entry_names[0] if entry_names else BLOCKING
        self.loads.append(self.modules[module])
        return module

    def moduleUnload(self, module: int) -> None:  # noqa: N802 - as CUDA spells it
        assert not self.queue
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
            assert stream not in self.captured
        else:
            assert grid == arguments["channels"][0] * arguments["ranks_here"][0]
            self.look_at_addresses(name, arguments)
        self.enqueue(BLOCKING if name == BLOCKING else "kernel", (name, arguments), stream)

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

    def streamBeginCapture(self, stream: int, mode: int) -> None:  # noqa: N802 - as CUDA spells it
        assert mode == 1  # of this thread: what others call must not end the capture
        assert stream not in self.captured
        self.captured[stream] = []
        self.capturing[stream] = threading.get_ident()

    def streamEndCapture(self, stream: int) -> int:  # noqa: N802 - as CUDA spells it
        captured = self.captured.pop(stream)
        self.end_capture(stream)
        graph = self.new_handle()
        self.graphs[graph] = captured
        return graph

    def graphInstantiate(self, graph: int) -> int:  # noqa: N802 - as CUDA spells it
        return graph

    def graphUpload(self, graph: int, stream: int) -> None:  # noqa: N802 - as CUDA spells it
        assert graph in self.graphs

    def graphExecDestroy(self, graph: int) -> None:  # noqa: N802 - as CUDA spells it
        assert graph in self.graphs

    def graphDestroy(self, graph: int) -> None:  # noqa: N802 - as CUDA spells it
        del self.graphs[graph]

    def graphLaunch(self, graph: int, stream: int) -> None:  # noqa: N802 - as CUDA spells it
        for item in self.graphs[graph]:
            self.enqueue(item.kind, item.details, stream)

    # -- streams and time ----------------------------------------------------------------------------------

    def pass_time(self) -> None:
        """The host has made a call; devices that it released before are free from now on."""
        self.__dict__["now"] = self.__dict__.get("now", 0.0) + CALL_SECONDS
        for item in self.__dict__.get("queue", ()):
            if (
                item.kind == BLOCKING
                and len(item.details) == 2
                and is_unblocked(item.details[1])
            ):
                item.details = (*item.details, self.__dict__["now"])

    def enqueue(self, kind: str, details: tuple[Any, ...], stream: int) -> None:
        assert stream // STREAM_STRIDE == self.device
        item = Item(kind, self.device, details, self.now, stream)
        self.captured.get(stream, self.queue).append(item)

    def eventRecord(self, event: int, stream: int) -> None:  # noqa: N802 - as CUDA spells it
        self.enqueue("event", (event,), stream)

    def streamSynchronize(self, stream: int) -> None:  # noqa: N802 - as CUDA spells it
        self.flush()

    def eventElapsedTime(self, began: int, ended: int) -> float:  # noqa: N802 - as CUDA spells it
        return 1e3 * (self.events[ended] - self.events[began])

    def flush(self) -> None:
        """Run everything enqueued, streams of all devices at once, each in its order."""
        waiting, self.queue = self.queue, []
        handles = sorted({item.stream for item in waiting})
        streams = {
            handle: [item for item in waiting if item.stream == handle] for handle in handles
        }
        while any(streams.values()):
            for items in streams.values():
                while items and items[0].kind != "kernel":
                    self.do(items.pop(0))
            runs = {
                handle: leading_kernels(items) for handle, items in streams.items() if items
            }
            together = min(map(len, runs.values()), default=0)
            batch = [run[index] for index in range(together) for run in runs.values()]
            for handle in runs:
                del streams[handle][:together]
            self.launch(batch)

    def do(self, item: Item) -> None:
        """One item that is no collective, when the stream has come to it."""
        at = max(self.stream_time.get(item.stream, 0.0), item.issued)
        if item.kind == "copy":
            ctypes.memmove(*item.details)
        elif item.kind == "set":
            ctypes.memset(*item.details)
        elif item.kind == "event":
            self.events[item.details[0]] = at
        else:
            at = max(at, self.pass_blocking_kernel(item))
        self.stream_time[item.stream] = at

    def pass_blocking_kernel(self, item: Item) -> float:
        """When the blocking kernel ended: when it was released, or its limit later."""
        arguments = item.details[1]
        if len(item.details) == 3:
            return float(item.details[2])
        if not is_unblocked(arguments):
            ctypes.c_uint64.from_address(int(arguments["timed_out"][0])).value = int(
                arguments["goal"][0]
            )
            return item.issued + 1e-9 * int(arguments["limit_nanoseconds"][0])
        return self.now

    def launch(self, batch: Sequence[Item]) -> None:
        """Collectives of all devices, run by the host engine."""
        if not batch:
            return
        records = np.zeros(len(batch), RECORD)
        handles = sorted({queued.stream for queued in batch})
        self.at_once.append(len(handles))
        for record, item in zip(records, batch, strict=True):
            entry, arguments = item.details
            record["entry"], record["arguments"] = entry.encode(), arguments[0]
            record["device"] = handles.index(item.stream)  # to the engine: what runs in order
            at = max(self.stream_time.get(item.stream, 0.0), item.issued)
            self.stream_time[item.stream] = at + LAUNCH_SECONDS
        (file,) = {entries()[item.details[0]].file for item in batch}
        options = np.zeros(1, OPTIONS)
        options["lanes"] = LANES
        options["seed"] = len(self.runs)
        options["engine"] = ENGINES["threads" if self.threads else "fibers"]
        self.runs.append(len(batch))
        with self.traps(batch):
            self.run_on_host(file, records, options)

    @contextmanager
    def traps(self, batch: Sequence[Item]) -> Iterator[None]:
        """Behind every address that is none lies memory full of rubbish, which no kernel may change.

        Whoever reads it computes something wrong, whoever writes it is found here: better than a crash.
        """
        tables = {
            (int(a["views"][0]), int(a["ranks"][0]))
            for a in (item.details[1] for item in batch)
        }
        words = [view_words(address, ranks) for address, ranks in tables]
        holes = [word == 0 for word in words]
        if not any(hole.any() for hole in holes):
            yield
            return
        for word, hole in zip(words, holes, strict=True):
            word[hole] = TRAP.ctypes.data
        try:
            yield
        finally:
            for word, hole in zip(words, holes, strict=True):
                word[hole] = 0
        if not np.array_equal(TRAP.view(np.uint64), UNTOUCHED.view(np.uint64)):
            TRAP[:] = RUBBISH
            raise AssertionError("a kernel wrote where its device was given no address")

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


def view_words(address: int, ranks: int) -> NDArray[np.uint64]:
    """The addresses in a table of RANK_VIEW, to be changed where they are."""
    size = ranks * abi.RANK_VIEW.itemsize
    raw: NDArray[np.uint8] = np.ctypeslib.as_array(
        (ctypes.c_uint8 * size).from_address(address)
    )
    return raw.view(np.uint64)


def is_unblocked(arguments: NDArray[Any]) -> bool:
    return ctypes.c_uint64.from_address(int(arguments["released"][0])).value >= int(
        arguments["goal"][0]
    )


def leading_kernels(items: Sequence[Item]) -> list[Item]:
    """The launches at the head of a stream, up to what is none."""
    end = next((index for index, item in enumerate(items) if item.kind != "kernel"), len(items))
    return list(items[:end])


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
