"""Streams of doubles of GPUs: tasks that run in order, events, and clocks, all on a CPU.

Several "processes" (threads, each with a runtime) may share a World. Nothing runs until somebody waits or asks;
what can never run is reported as a deadlock instead of hanging. Every stream has a clock, so that what is on
different streams takes as long together as the longest, and what is on one stream as long as all.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Task:
    """Something on a stream. ``attempt`` says whether it is over; until then it is asked again.

    issued: when it was enqueued. seconds: what it takes. kind, details: for a test to look at.
    """

    kind = ""
    details: tuple[int, ...] = ()
    issued = 0.0
    stream: Stream

    def __init__(
        self,
        run: Callable[[], None],
        seconds: float = 0.0,
        kind: str = "",
        details: tuple[int, ...] = (),
    ) -> None:
        self.run, self.seconds = run, seconds
        self.kind, self.details = kind, details

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

    kind = "blocking"

    def __init__(self, world: World, words: NDArray[Any]) -> None:
        self.world = world
        self.words = words

    def attempt(self) -> bool:
        if not is_unblocked(self.words):
            return False
        self.stream.seconds = max(self.stream.seconds, self.world.seconds)
        return True


Launch = Callable[[Sequence["Kernel"]], None]


class Kernel(Task):
    """Of collectives between devices: those that all streams have come to run together."""

    kind = "kernel"

    def __init__(self, launch: Launch, name: str, arguments: NDArray[Any]) -> None:
        self.launch, self.name, self.arguments = launch, name, arguments

    def attempt(self) -> bool:
        return False


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
                progress = progress or self._run_together()
                moved = moved or progress
            if moved:
                self.changed.notify_all()
            return moved

    def _run_together(self) -> bool:
        """Launch what kernels all streams have come to, each stream's in order."""
        queues = [stream.queue for stream in list(self.streams.values()) if stream.queue]
        runs = [[*takewhile(lambda task: isinstance(task, Kernel), queue)] for queue in queues]
        together = min(map(len, runs), default=0)
        batch = [run[index] for index in range(together) for run in runs]
        for queue in queues:
            for _ in range(together):
                queue.popleft()
        kernels = [task for task in batch if isinstance(task, Kernel)]
        if kernels:
            kernels[0].launch(kernels)
        return bool(kernels)

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


def is_unblocked(arguments: NDArray[Any]) -> bool:
    return ctypes.c_uint64.from_address(int(arguments["released"][0])).value >= int(
        arguments["goal"][0]
    )
