"""A kernel that holds devices back until all that is timed is enqueued, so that events see the device alone.

An event is reached when the device gets there, so between two events lies whatever the host takes to ask for
what is between them, unless the device is kept from starting. A kernel of one warp in front of the first
event spins on a word in pinned memory of the host until all is enqueued; NVIDIA's nvbench does the same
(NVIDIA/nvbench, nvbench/blocking_kernel.cuh). All devices of a host watch one word, so that they start
together, whether one process launches on all of them or each has its own.

The kernel never holds a device for longer than LIMIT_SECONDS: it then notes that it gave up and ends, what is
behind it runs, and the host raises BlockingKernelTimedOut instead of keeping a time that contains its own.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ccbench.backends.base import OutOfMemory
from ccbench.backends.control_block import fence
from ccbench.backends.cuda.context import DeviceContext
from ccbench.backends.cuda.runtime import CAPTURE_THREAD, PINNED_PORTABLE_MAPPED, Cuda, Kernel
from ccbench.backends.kernels.sources import beside
from ccbench.errors import BackendUnavailable, CcbenchError

LIMIT_SECONDS = 2.0
"""Enqueueing takes microseconds for each of at most MOST_BLOCKED launches; a host that is swapped out may
take longer."""

MOST_BLOCKED, MOST_ITEMS_BLOCKED = 32, 512
"""Launches, and launches and copies together, that are enqueued behind a blocking kernel. A stream's queue is
bounded (no figure is documented), and a host that asked for more than it takes would wait for the kernel that
it must release."""

GRAPH_LAUNCHES = 32
"""Launches of one CUDA graph."""

LEAST_STREAMED, LONGEST_STREAM_SECONDS = 20, 0.02
"""Launches of a sample in mode streaming: as many as nccl-tests takes by default, so that what the host
takes for each shows. Fewer where they would last longer: a launch of milliseconds hides the next one's."""

RELEASED, TIMED_OUT, WORD_BYTES, LINE_BYTES = 0, 128, 256, 128
"""Offsets of the two words, each in a line of its own."""

TOKEN, TOKEN_BYTES = 64, 16

ARGUMENTS = np.dtype(
    [("released", "u8"), ("timed_out", "u8"), ("goal", "u8"), ("limit_nanoseconds", "u8")]
)

LANES = 32

SWITCH = "CCBENCH_BLOCKING_KERNEL"
"""Set to ``off`` under tools that make every launch wait for its end, such as Nsight Compute."""

LAUNCH_BLOCKING = "CUDA_LAUNCH_BLOCKING"
"""CUDA's own, which does the same."""


def launches_wait() -> str:
    """CUDA's setting by which every launch waits for its end; '' where it is not set."""
    value = os.environ.get(LAUNCH_BLOCKING, "0")
    return "" if value in ("", "0") else f"{LAUNCH_BLOCKING}={value}"


def refuse_launch_blocking(devices: int) -> None:
    """BackendUnavailable where launches wait for their end and one process launches on several devices.

    The first kernel waits for the second, which is not launched before the first has ended.
    """
    if devices > 1 and launches_wait():
        raise BackendUnavailable(
            f"{launches_wait()} lets every launch wait for its end, and kernels of {devices} GPUs wait for "
            "each other: one process cannot launch them all; unset it, or take `processes: per_gpu`"
        )


def without_blocking_kernel(reason: str) -> str:
    """Sentence about times that were taken without one."""
    return f"times contain the host's launches, because nothing holds devices back ({reason})"


# -- how many launches -------------------------------------------------------------------------------------


def most_blocked(items_per_launch: int) -> int:
    """Launches of so many items each that may be enqueued behind a blocking kernel; at least one."""
    return max(1, min(MOST_BLOCKED, MOST_ITEMS_BLOCKED // items_per_launch))


def sample_launches(mode: str, launches: int, seconds: float, items: int) -> int:
    """Number of launches of a sample of a case in ``mode``, ``launches`` being enough for its length.

    seconds: of a launch. items: places of a stream's queue that it takes. Graphs are those that a warm-up has
    made, which doubles its launches, or whole ones, no more than may wait behind a blocking kernel.
    """
    if mode == "streaming":
        return max(
            launches,
            min(LEAST_STREAMED, math.ceil(LONGEST_STREAM_SECONDS / max(seconds, 1e-9))),
        )
    if mode == "graph" and launches > GRAPH_LAUNCHES:
        return GRAPH_LAUNCHES * min(
            -(-launches // GRAPH_LAUNCHES), most_blocked(GRAPH_LAUNCHES * items)
        )
    return 1 << (launches - 1).bit_length() if mode == "graph" else launches


def blocked_launches(mode: str, items: int) -> int:
    """Number of launches, or graphs of them, that are enqueued before the devices are released.

    streaming: the first, so that no stream starts late and the others are launched as applications launch.
    graph: all, so that the host has no share.
    """
    if mode == "streaming":
        return 1
    return most_blocked(GRAPH_LAUNCHES * items if mode == "graph" else items)


def graph_sizes(launches: int) -> tuple[int, ...]:
    """Number of launches in each of the graphs that together make ``launches``."""
    whole, rest = divmod(launches, GRAPH_LAUNCHES)
    return (GRAPH_LAUNCHES,) * whole + ((rest,) if rest else ())


# -- the kernel --------------------------------------------------------------------------------------------


class BlockingKernelTimedOut(CcbenchError):
    """The host did not release devices in time: what was timed contains the host's delay."""

    exit_code = 4


def shared_bytes(processes: int) -> int:
    """The size of SharedWords: whole pages, as the driver pins them."""
    return -(-(WORD_BYTES + processes * LINE_BYTES) // mmap.PAGESIZE) * mmap.PAGESIZE


class SharedWords:
    """The words of a blocking kernel that several processes of a host have in common.

    Made before they are forked, or of a ``file`` of ``shared_bytes`` that each of them has opened. Behind the
    words of every kernel comes a line for each process: the number of the last launch of the kernel for which
    it has enqueued everything. token: room for a sign by which processes know the file.
    """

    def __init__(self, processes: int, file: int = -1) -> None:
        self.size_bytes = shared_bytes(processes)
        self._memory = mmap.mmap(file, self.size_bytes)
        self.token = memoryview(self._memory)[TOKEN : TOKEN + TOKEN_BYTES]
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        lines = memoryview(self._memory)[WORD_BYTES : WORD_BYTES + processes * LINE_BYTES]
        self._reached = lines.cast("q")[:: LINE_BYTES // 8]

    def meet(self, process: int, goal: int, limit_seconds: float) -> bool:
        """Return True as soon as all processes have come to ``goal``, False where one does not come.

        Nobody sleeps: what one comes late by, all devices would stand still.
        """
        fence()
        self._reached[process] = goal
        deadline = time.monotonic() + limit_seconds
        while min(self._reached) < goal:
            if time.monotonic() > deadline:
                return False
            os.sched_yield()
        return True


class BlockingKernel:
    """One word that the streams of any number of devices wait for.

    words: where other processes wait for it too. Of ``process`` it is then this one's side.
    """

    def __init__(
        self,
        cuda: Cuda,
        limit_seconds: float = LIMIT_SECONDS,
        words: SharedWords | None = None,
        process: int = 0,
    ) -> None:
        self._cuda = cuda
        self._limit_seconds = limit_seconds
        self._words, self._process = words, process
        if words is None:
            self._address = device = cuda.allocate_pinned(WORD_BYTES)
            ctypes.memset(self._address, 0, WORD_BYTES)
        else:
            self._address = words.address
            try:
                cuda.runtime.hostRegister(
                    words.address, words.size_bytes, PINNED_PORTABLE_MAPPED
                )
            except Exception as error:
                raise BackendUnavailable(
                    f"CUDA cannot pin memory that processes share: {error}"
                ) from None
            device = int(cuda.runtime.pointerGetAttributes(words.address).devicePointer)
        self._arguments: NDArray[Any] = np.zeros(1, ARGUMENTS)
        self._arguments["released"] = device + RELEASED
        self._arguments["timed_out"] = device + TIMED_OUT
        self._arguments["limit_nanoseconds"] = max(1, int(limit_seconds * 1e9))
        self._kernels: dict[int, Kernel] = {}

    def load(self, context: DeviceContext) -> None:
        """Have the kernel ready on this device."""
        if context.facts.number not in self._kernels:
            self._kernels[context.facts.number] = context.kernel(beside("blocking.cu"), LANES)

    def block(self, contexts: Sequence[DeviceContext]) -> None:
        """Let what is enqueued on these devices' streams next wait until ``release``."""
        self._arguments["goal"] += 1
        for context in contexts:
            kernel = self._kernels[context.facts.number]
            context.launch_extra(kernel, 1, self._arguments, context.stream)

    def release(self) -> None:
        """Let everything go, once every process has come so far; the second time nothing happens."""
        goal = int(self._arguments["goal"][0])
        words = self._words if self._word(RELEASED).value < goal else None
        if words and not words.meet(self._process, goal, self._limit_seconds):
            self._word(TIMED_OUT).value = goal
        self.abandon()

    def abandon(self) -> None:
        """Let everything go whoever else comes: something went wrong here."""
        self._word(RELEASED).value = int(self._arguments["goal"][0])

    def raise_if_timed_out(self) -> None:
        """BlockingKernelTimedOut when a device gave up waiting; call it after the devices have ended."""
        if self._word(TIMED_OUT).value >= int(self._arguments["goal"][0]):
            raise BlockingKernelTimedOut(
                f"a GPU waited longer than {self._limit_seconds:g} s for "
                f"{'the processes of this host' if self._words else 'this process'} to finish launching: "
                "the time that was taken is void; look for what keeps the process from running (limits of "
                f"processor time, swapping), or set {SWITCH}=off under a tool that makes launches wait"
            )

    def _word(self, offset: int) -> ctypes.c_uint64:
        return ctypes.c_uint64.from_address(self._address + offset)

    @property
    def shared(self) -> bool:
        """Return whether other processes wait for it too: then it may hold only what all are about to launch."""
        return self._words is not None

    def free(self) -> None:
        """Give the word back; no device may be held."""
        if self._words:
            self._cuda.runtime.hostUnregister(self._address)
        else:
            self._cuda.free_pinned(self._address)
        self._address = 0


@contextmanager
def blocked(
    kernel: BlockingKernel | None, contexts: Sequence[DeviceContext]
) -> Iterator[Callable[[], None]]:
    """Hold back what is enqueued inside on ``contexts``, until what this gives is called, or to the end."""
    if kernel is None:
        yield lambda: None
        return
    try:
        kernel.block(contexts)
        yield kernel.release
    except BaseException:
        kernel.abandon()
        raise
    kernel.release()


def capture_graphs(
    contexts: Sequence[DeviceContext], launches: int, enqueue: Callable[[], None]
) -> None:
    """Have a graph of so many launches on all devices, each of what ``enqueue`` puts on its main stream.

    Until every capture of this thread has ended it may only launch: what could wait for a device, such as
    cudaFree or making a graph executable, ends them all with error 900 (CUDA Runtime API,
    cudaStreamCaptureModeThreadLocal).
    """
    if all(launches in context.graphs for context in contexts):
        return
    graphs: list[tuple[DeviceContext, int]] = []
    try:
        for context in contexts:
            context.use()
            context.cuda.runtime.streamBeginCapture(context.stream, CAPTURE_THREAD)
        for _ in range(launches):
            enqueue()
        for context in contexts:
            graphs.append((context, context.end_capture()))  # noqa: PERF401 - one may fail; keep the others
        while graphs:
            context, graph = graphs[0]
            context.use()
            executable = int(context.cuda.runtime.graphInstantiate(graph))
            context.graphs[launches] = graph, executable
            graphs.pop(0)
            # Copied to the device now, or its first launch would wait for that.
            context.cuda.runtime.graphUpload(executable, context.stream)
    except BaseException:
        for context in contexts:
            with suppress(
                Exception
            ):  # its capture has ended, or was spoilt by the error on its way
                graphs.append((context, context.end_capture()))
        for context, graph in graphs:
            with suppress(Exception):  # the first error is the one to be told
                context.cuda.runtime.graphDestroy(graph)
        for context in contexts:  # the next try captures on all, also where this one succeeded
            with suppress(Exception):
                context.forget_graphs()
        raise


def launch_sample(
    contexts: Sequence[DeviceContext],
    mode: str,
    times: int,
    items: int,
    enqueue: Callable[[], None],
    timed: Callable[[int], AbstractContextManager[Callable[[], None]]],
) -> None:
    """Launch ``times`` times on all devices as ``mode`` has it.

    items: places of a stream's queue that a launch takes. enqueue: one launch. timed: measures what is
    enqueued inside; it is told how many launches come before the devices are released, and gives what
    releases them.
    """
    graph = mode == "graph"
    sizes = graph_sizes(times) if graph else (1,) * times
    for size in dict.fromkeys(sizes) if graph else ():
        capture_graphs(contexts, size, enqueue)  # made before the clock starts
    held = blocked_launches(mode, items)
    with timed(sum(sizes[:held])) as release:
        for number, size in enumerate(sizes):
            if number == held:
                release()
            if not graph:
                enqueue()
            for context in contexts if graph else ():
                context.launch_graph(size)


def open_blocking_kernel(
    cuda: Cuda,
    contexts: Sequence[DeviceContext],
    shared: tuple[SharedWords, int] | None = None,
    least: Callable[[int], int] = int,
) -> tuple[BlockingKernel | None, str]:
    """A blocking kernel in front of all ``contexts``; None and the reason where there can be none.

    shared: words of all processes of a host, and which one this is. least: the least value of all processes,
    which have all such a kernel or none.
    """
    # A tool that makes launches wait for their end would wait for the blocking kernel's, which waits for it.
    off = f"{SWITCH}=off" if os.environ.get(SWITCH, "").lower() == "off" else launches_wait()
    reason = off or cuda.host_memory_refused(context.facts.number for context in contexts) or ""
    kernel: BlockingKernel | None = None
    if not reason:
        try:
            cuda.use(contexts[0].facts.number)
            words, process = shared or (None, 0)
            kernel = BlockingKernel(cuda, words=words, process=process)
            for context in contexts:
                cuda.use(context.facts.number)
                kernel.load(context)
        # No compiler, one that does not know the device, no memory, or what CuPy raises of the driver: times
        # without the kernel, for were it raised, other ranks' processes would wait in ``least`` for this one.
        except (CcbenchError, OutOfMemory, RuntimeError) as error:
            if kernel is not None:
                kernel.free()
            kernel, reason = None, str(error)
    if least(int(kernel is not None)) == 0 and kernel is not None:
        kernel.free()
        return None, "the process of another rank cannot have one"
    return kernel, reason
