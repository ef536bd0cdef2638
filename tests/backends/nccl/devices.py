"""GPUs as NCCL's double needs them: memory, streams that run in order, events, graphs, all on a CPU.

The runtime is the one that stands in for CuPy's in the tests of own kernels, with streams of its own. Several
"processes" (threads, each with a runtime) share a World. Nothing runs until somebody waits or asks; what can
never run is reported as a deadlock instead of hanging. Every stream has a clock, so that what is on different
streams takes as long together as the longest, and what is on one stream as long as all.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ccbench.backends.cuda import blocking_kernel
from ccbench.backends.kernels import abi
from ccbench.backends.kernels.sources import beside
from ccbench.backends.nccl import overlap
from ccbench.backends.overlap import MEMORY
from tests.backends.cuda.emulated import (
    BLOCKING,
    CudaError,
    EmulatedRuntime,
    Item,
    is_unblocked,
)

COMPARE = "compare"

NOT_READY = 600
"""cudaErrorNotReady."""

ILLEGAL_STATE, LAUNCH_FAILURE = 401, 719
LATENCY_SECONDS = 10e-6
BYTES_PER_SECOND = 100e9
COMPUTING_SECONDS = 20e-6
"""Of one repetition of any computation."""


class Task:
    """Something on a stream. ``attempt`` says whether it is over; until then it is asked again.

    issued: when it was enqueued. seconds: what it takes.
    """

    issued = 0.0
    stream: Stream

    def __init__(self, run: Callable[[], None], seconds: float = 0.0) -> None:
        self.run = run
        self.seconds = seconds

    def attempt(self) -> bool:
        self.run()
        self.stream.seconds += self.seconds
        return True

    def again(self) -> Task:
        """A fresh one, for another launch of the graph it was captured in."""
        return self


class Wait(Task):
    """streamWaitEvent: over when the event was recorded."""

    def __init__(self, event: Event) -> None:
        self.event = event

    def attempt(self) -> bool:
        self.stream.seconds = max(self.stream.seconds, self.event.seconds)
        return self.event.pending == 0


class HeldBack(Task):
    """A blocking kernel: over when the host has released it, later than whatever went on meanwhile."""

    def __init__(self, world: World, words: NDArray[Any]) -> None:
        self.world = world
        self.words = words

    def attempt(self) -> bool:
        if not is_unblocked(self.words):
            return False
        self.stream.seconds = max(self.stream.seconds, self.world.seconds)
        return True


@dataclass
class Event:
    seconds: float = 0.0
    pending: int = 0


@dataclass
class Stream:
    handle: int
    device: int
    queue: deque[Task] = field(default_factory=deque)
    captured: list[Task] | None = None
    seconds: float = 0.0

    def add(self, task: Task, now: float) -> None:
        task.stream, task.issued = self, now
        if self.captured is not None:
            self.captured.append(task)
        else:
            self.queue.append(task)


class World:
    """The machine: ``devices`` GPUs and the processes that use them, with NCCL ``version``.

    patience_seconds: how long a wait lasts when other processes could still do something about it. seconds:
    the time that the furthest stream has come to. stopped: devices that do not go on.
    """

    def __init__(
        self, devices: int = 4, version: int = 22809, patience_seconds: float = 2.0
    ) -> None:
        self.devices = devices
        self.version = version
        self.patience_seconds = patience_seconds
        self.changed = threading.Condition(threading.RLock())
        self.streams: dict[int, Stream] = {}
        self.events: dict[int, Event] = {}
        self.memory: dict[int, tuple[int, int]] = {}
        self.failure: Exception | None = None
        self.seconds = 0.0
        self.processes = 0
        self.stopped: set[int] = set()
        self.deadlocks: list[str] = []
        self.cliques: dict[bytes, Any] = {}
        self.handles = iter(range(0x1000, 1 << 40, 0x10))

    # -- memory --------------------------------------------------------------------------------------------

    def view(self, address: int, size_bytes: int, device: int) -> NDArray[np.uint8]:
        """The bytes there; AssertionError where they are not all of one allocation on ``device``."""
        if size_bytes == 0:
            return np.empty(0, np.uint8)
        for start, (length, owner) in self.memory.items():
            if start <= address and address + size_bytes <= start + length:
                assert owner == device, f"{address:#x} is on device {owner}, not {device}"
                return np.ctypeslib.as_array(
                    (ctypes.c_uint8 * size_bytes).from_address(address)
                )
        raise AssertionError(f"{size_bytes} bytes at {address:#x} are not allocated")

    # -- time ----------------------------------------------------------------------------------------------

    def advance(self) -> bool:
        """Let every stream go as far as it can; whether any went further."""
        with self.changed:
            moved, progress = False, True
            while progress:
                progress = False
                for stream in list(self.streams.values()):
                    if stream.device in self.stopped:
                        continue
                    while stream.queue and self._attempt(stream.queue[0]):
                        stream.queue.popleft()
                        progress = moved = True
            if moved:
                self.changed.notify_all()
            return moved

    def _attempt(self, task: Task) -> bool:
        task.stream.seconds = max(task.stream.seconds, task.issued)
        try:
            over = task.attempt()
        except AssertionError as failure:
            self.failure = self.failure or failure
            over = True
        self.seconds = max(self.seconds, task.stream.seconds)
        return over

    def wait_until(self, done: Callable[[], bool], what: str) -> bool:
        """Let everything run until ``done``; False after a deadlock, which is kept in ``deadlocks``."""
        deadline = time.monotonic() + self.patience_seconds
        with self.changed:
            while not done():
                if self.advance():
                    deadline = time.monotonic() + self.patience_seconds
                    continue
                left = deadline - time.monotonic()
                if self.processes <= 1 or left <= 0:
                    self.deadlocks.append(what)
                    return False
                self.changed.wait(left)
        return True


def cost_seconds(size_bytes: int) -> float:
    """How long the double's devices take for a collective of so many bytes."""
    return LATENCY_SECONDS + size_bytes / BYTES_PER_SECOND


@dataclass
class WorldRuntime(EmulatedRuntime):
    """``cupy.cuda.runtime`` of one process; ``devices`` and the rest as in EmulatedRuntime."""

    world: World = field(default_factory=World)

    def __post_init__(self) -> None:
        self.devices = self.world.devices
        self.world.processes += 1
        self.executables: dict[int, list[Task]] = {}

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

    def memcpyAsync(self, to: int, source: int, size: int, kind: int, stream: int) -> None:  # noqa: N802
        def copy() -> None:
            ctypes.memmove(to, source, size)

        self._add(stream, Task(copy))

    def memsetAsync(self, to: int, value: int, size: int, stream: int) -> None:  # noqa: N802
        def fill() -> None:
            ctypes.memset(to, value, size)

        self._add(stream, Task(fill))

    # -- kernels: what computes beside collectives, and what compares ------------------------------------

    def moduleLoadData(self, image: bytes) -> int:  # noqa: N802 - as CUDA spells it
        if image.decode() != beside("streaming.cu").text:
            return super().moduleLoadData(image)
        module = self.new_handle()
        self.modules[module] = MEMORY
        return module

    def launchKernel(self, function: int, *words: int) -> None:  # noqa: N802 - as CUDA spells it
        blocks, _, _, lanes, _, _, _, stream, parameters, _ = words
        address = ctypes.cast(parameters, ctypes.POINTER(ctypes.c_void_p))[0]
        if self.modules[function] == BLOCKING:
            held = np.frombuffer(
                ctypes.string_at(address or 0, blocking_kernel.ARGUMENTS.itemsize),
                blocking_kernel.ARGUMENTS,
            )
            assert self.kind_of(int(held["released"][0]), self.device, peers=False) == "pinned"
            self._add(stream, HeldBack(self.world, held.copy()))
            return
        if self.modules[function] == COMPARE:
            record = np.frombuffer(
                ctypes.string_at(address or 0, abi.ARGUMENTS.itemsize), abi.ARGUMENTS
            )
            item = Item("kernel", self.device, (COMPARE, record.copy()), stream=stream)
            self._add(stream, Task(lambda: self.launch([item])))
            return
        assert self.modules[function] == MEMORY
        assert blocks * lanes == overlap.BLOCKS_PER_PROCESSOR * self.processors * overlap.LANES
        raw = ctypes.string_at(address or 0, overlap.STREAMS.itemsize)
        source, target, count = (int(word) for word in np.frombuffer(raw, overlap.STREAMS)[0])
        device, size = self.device, count * overlap.ELEMENT_BYTES
        assert self.world.streams[stream].device == device

        def run() -> None:
            values = self.world.view(source, size, device).view(np.float32) + np.float32(1)
            self.world.view(target, size, device)[...] = values.view(np.uint8)

        self._add(stream, Task(run, COMPUTING_SECONDS))

    # -- streams and events --------------------------------------------------------------------------------

    def _add(self, stream: int, task: Task) -> None:
        with self.world.changed:
            mine = self.world.streams[stream]
            mine.add(task, self.world.seconds)
            self.world.changed.notify_all()

    def streamCreateWithFlags(self, flags: int) -> int:  # noqa: N802 - as CUDA spells it
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

    def deviceSynchronize(self) -> None:  # noqa: N802 - as CUDA spells it
        for stream in list(self.world.streams.values()):
            if stream.device == self.device:
                self.streamSynchronize(stream.handle)

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

        self._add(stream, Task(record))

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
        if captured is None:
            raise CudaError(ILLEGAL_STATE)
        self.end_capture(stream)
        graph = next(self.world.handles)
        self.executables[graph] = captured
        return graph

    def graphInstantiate(self, graph: int) -> int:  # noqa: N802 - as CUDA spells it
        executable = next(self.world.handles)
        self.executables[executable] = self.executables[graph]
        return executable

    def graphDestroy(self, graph: int) -> None:  # noqa: N802 - as CUDA spells it
        del self.executables[graph]

    graphExecDestroy = graphDestroy  # noqa: N815 - as CUDA spells it

    def graphUpload(self, graph: int, stream: int) -> None:  # noqa: N802 - as CUDA spells it
        assert graph in self.executables

    def graphLaunch(self, graph: int, stream: int) -> None:  # noqa: N802 - as CUDA spells it
        for task in self.executables[graph]:
            self._add(stream, task.again())
