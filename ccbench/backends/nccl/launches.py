"""A rank's device, and launches of a case on all of them: enqueue, wait without blocking, read the clocks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ccbench.backends.cuda.blocking_kernel import BlockingKernel, blocked, blocked_launches, graph_sizes
from ccbench.backends.cuda.context import DeviceContext
from ccbench.backends.cuda.runtime import CAPTURE_THREAD, NON_BLOCKING, Cuda
from ccbench.backends.nccl.binding import Nccl
from ccbench.cases import ALONE, Case

if TYPE_CHECKING:
    from ccbench.backends.nccl.parts import Binding

MAIN_STREAM, CONCURRENT_STREAM, COMPUTE_STREAM = 0, 1, 2
"""For the case's own collective, for the concurrent one, and for what is computed meanwhile."""

NOT_READY = 600
"""cudaErrorNotReady: what is enqueued on a stream has not ended yet."""

POLLS_BEFORE_SLEEP = 2000
SLEEP_SECONDS = 5e-5
LOOK_EVERY_POLLS = 1000
"""How often, in polls of the streams, NCCL is asked whether it has failed."""

Trouble = Callable[[float, Sequence[str]], Exception]
"""(seconds waited, who still waits) -> what to raise."""


@dataclass(frozen=True)
class Memory:
    """An allocation. of_case: NCCL made it for one case, and ``free`` is NCCL's."""

    address: int
    size_bytes: int
    free: Callable[[int], None]
    of_case: bool = False


@dataclass(frozen=True)
class Stream:
    """A CUDA stream and the events around what is timed on it."""

    handle: int
    began: int
    ended: int


class RankContext:
    """One rank's device: memory, streams for what runs at the same time, clocks, graphs.

    Everything is enqueued by calls; ``busy`` tells whether something still runs."""

    def __init__(self, cuda: Cuda, device: int, rank: int) -> None:
        self.rank = rank
        self.cuda = cuda
        self.device = DeviceContext(cuda, cuda.facts(device), range(rank, rank + 1))
        self.memory: dict[int, Memory] = {}
        self._streams: dict[int, Stream] = {}
        self._graphs: dict[int, tuple[int, int]] = {}

    @property
    def number(self) -> int:
        """The device's number in this process."""
        return self.device.facts.number

    def __str__(self) -> str:
        return f"rank {self.rank} (GPU {self.number}, {self.device.facts.bus_id})"

    def use(self) -> None:
        """Make the device current for the calls that follow."""
        self.cuda.use_for_launch(self.number)

    def stream(self, number: int) -> Stream:
        """Return a stream, made the first time."""
        if number not in self._streams:
            runtime = self.cuda.runtime
            self.cuda.use(self.number)
            own = number == MAIN_STREAM
            handle = self.device.stream if own else runtime.streamCreateWithFlags(NON_BLOCKING)
            self._streams[number] = Stream(handle, runtime.eventCreate(), runtime.eventCreate())
        return self._streams[number]

    # -- memory --------------------------------------------------------------------------------------------

    def reserve(self, stream: int, size_bytes: int, nccl: Nccl | None) -> Memory:
        """Take at least ``size_bytes``; from ``nccl`` where given, as memory to be registered must be."""
        held = self.memory.get(stream)
        if held and not (nccl or held.of_case) and held.size_bytes >= size_bytes:
            return held
        self.release(stream)
        self.cuda.use(self.number)
        source = nccl or self.cuda
        self.memory[stream] = Memory(source.allocate(size_bytes), size_bytes, source.free, nccl is not None)
        return self.memory[stream]

    def release(self, stream: int) -> None:
        """Give an allocation back."""
        held = self.memory.pop(stream, None)
        if held:
            self.cuda.use(self.number)
            held.free(held.address)

    def release_all(self) -> None:
        """Give every allocation back."""
        for stream in list(self.memory):
            self.release(stream)

    # -- running -------------------------------------------------------------------------------------------

    def begin(self, stream: int) -> None:
        """Remember the device's time before what is enqueued next."""
        one = self.stream(stream)
        self.use()
        self.cuda.runtime.eventRecord(one.began, one.handle)

    def follow(self, stream: int) -> None:
        """Let what is enqueued on ``stream`` next start when the main stream has come to its beginning."""
        main = self.stream(MAIN_STREAM)
        self.use()
        self.cuda.runtime.streamWaitEvent(self.stream(stream).handle, main.began)

    def end(self, stream: int) -> None:
        """Remember the device's time after what is enqueued by now."""
        one = self.stream(stream)
        self.use()
        self.cuda.runtime.eventRecord(one.ended, one.handle)

    def elapsed_seconds(self, stream: int, since: int | None = None) -> float:
        """Return the device's time from ``begin`` of ``since`` (else of ``stream``) to ``end`` of ``stream``.

        Once ``busy`` is False.
        """
        began = self.stream(stream if since is None else since).began
        return float(self.cuda.runtime.eventElapsedTime(began, self.stream(stream).ended)) * 1e-3

    def busy(self) -> bool:
        """Whether something enqueued has not ended; raises what CUDA says of the device."""
        self.use()
        for stream in self._streams.values():
            status = int(self.cuda.runtime.streamQuery(stream.handle))
            if status == NOT_READY:
                return True
            if status:
                raise RuntimeError(f"GPU {self.number}: cudaError {status}")
        return False

    # -- graphs --------------------------------------------------------------------------------------------

    def capture(self) -> None:
        """Put what is enqueued on the main stream from here on into a graph.

        The stream must be there already. Until every capture of this thread has ended it may only launch:
        what could wait for a device, such as cudaFree or making a graph executable, ends them all with error
        900 (CUDA Runtime API, cudaStreamCaptureModeThreadLocal).
        """
        self.use()
        self.cuda.runtime.streamBeginCapture(self._streams[MAIN_STREAM].handle, CAPTURE_THREAD)

    def end_capture(self, launches: int) -> None:
        """Keep what was captured: so many launches."""
        self.use()
        graph = int(self.cuda.runtime.streamEndCapture(self._streams[MAIN_STREAM].handle))
        self._graphs[launches] = (graph, 0)

    def instantiate(self, launches: int) -> None:
        """Have the graph of so many launches ready on the device; this thread must not be capturing."""
        runtime: Any = self.cuda.runtime
        self.use()
        graph, _ = self._graphs[launches]
        executable = runtime.graphInstantiate(graph)
        self._graphs[launches] = (graph, executable)
        runtime.graphUpload(executable, self._streams[MAIN_STREAM].handle)

    def abandon_capture(self) -> None:
        """End ``capture`` after an error; what was captured is of no use."""
        self.use()
        try:
            graph = self.cuda.runtime.streamEndCapture(self._streams[MAIN_STREAM].handle)
        except Exception:  # it has ended, or was spoilt by the error that is already on its way
            return
        if graph:
            self.cuda.runtime.graphDestroy(graph)

    def has_graph(self, launches: int) -> bool:
        """Whether a graph of so many launches is ready."""
        return self._graphs.get(launches, (0, 0))[1] != 0

    def launch_graph(self, launches: int) -> None:
        """Enqueue the graph of so many launches."""
        self.use()
        self.cuda.runtime.graphLaunch(self._graphs[launches][1], self.stream(MAIN_STREAM).handle)

    def forget_graphs(self) -> None:
        """Destroy the graphs: they hold addresses, and another case has others."""
        for graph, executable in self._graphs.values():
            if executable:
                self.cuda.runtime.graphExecDestroy(executable)
            self.cuda.runtime.graphDestroy(graph)
        self._graphs.clear()

    def close(self) -> None:
        """Give everything back."""
        self.forget_graphs()
        self.release_all()
        for number, one in self._streams.items():
            for event in (one.began, one.ended):
                self.cuda.runtime.eventDestroy(event)
            if number != MAIN_STREAM:
                self.cuda.runtime.streamDestroy(one.handle)
        self._streams.clear()
        self.device.close()


class Launches:
    """What is enqueued on all devices. failures: what NCCL says of communicators; trouble: makes an error.

    gate: None where kernels cannot be compiled; then times of few launches contain what the host takes to
    enqueue them.
    """

    def __init__(
        self,
        nccl: Nccl,
        contexts: Sequence[RankContext],
        blocking: BlockingKernel | None,
        failures: Callable[[], list[str]],
        trouble: Trouble,
    ) -> None:
        self._nccl = nccl
        self._contexts = contexts
        self._blocking = blocking
        self._failures = failures
        self._trouble = trouble
        self.streams: list[list[Binding]] = []
        self.blocked_launches = 0

    def bind(self, streams: list[list[Binding]]) -> None:
        """Set what ``run`` runs from here on, by streams; graphs of what was before are forgotten."""
        for context in self._contexts:
            context.forget_graphs()
        self.streams = streams

    # -- enqueueing ------------------------------------------------------------------------------------------

    def enqueue(self) -> None:
        """Enqueue everything once. What one thread asks of several ranks, or at once, must be in one group.

        Streams come in the same order on every rank, as NCCL's guide asks where communicators share a device
        ("Using multiple NCCL communicators concurrently").
        """
        for bindings in self.streams:
            calls = [call for one in bindings for call in one.calls]
            if len(calls) == 1:
                bindings[0].context.use()
                calls[0]()
                continue
            with self._nccl.group():
                for call in calls:
                    call()

    def _graph(self, launches: int) -> None:
        """Capture ``launches`` on all devices at once, where that was not done before."""
        contexts = self._on_main_stream()
        if all(context.has_graph(launches) for context in contexts):
            return
        for context in contexts:
            context.stream(MAIN_STREAM)  # nothing may be made any more once the first of them captures
        try:
            for context in contexts:
                context.capture()
            for _ in range(launches):
                self.enqueue()
            for context in contexts:
                context.end_capture(launches)
            for context in contexts:
                context.instantiate(launches)
        except BaseException:
            for context in contexts:
                context.abandon_capture()
            raise

    def _on_main_stream(self) -> list[RankContext]:
        return [one.context for one in self.streams[0]] if self.streams else []

    def run_case(self, case: Case, times: int, limit_seconds: float, may_block: bool) -> dict[int, float]:
        """Run ``case`` so often, as its mode has it; return what each part took."""
        if case.mode not in ALONE:
            self.run(times, case.mode, limit_seconds, may_block)
            return self.part_seconds()
        taken: dict[int, float] = {}
        for _ in range(times):
            if case.mode == "cold":
                self.on_devices(DeviceContext.flush_cache, limit_seconds)
            self.run(1, case.mode, limit_seconds, may_block)
            for number, seconds in self.part_seconds().items():
                taken[number] = taken.get(number, 0.0) + seconds
        return taken

    def run(self, times: int, mode: str, limit_seconds: float, may_block: bool = True) -> None:
        """Run everything ``times`` times, between events; returns when all devices have ended.

        blocked: False where NCCL may still connect, register or load a kernel. Any of these can wait for what
        runs on the device, and takes longer than a gate may be closed.
        """
        graph = mode == "graph"
        sizes = graph_sizes(times) if graph else (1,) * times
        for size in dict.fromkeys(sizes) if graph else ():
            self._graph(size)  # made before the clock starts
        held = blocked_launches(mode, self.items_per_launch)
        self.count_blocked(sum(sizes[:held]), may_block)
        with self.timed(limit_seconds, may_block) as let_go:
            for number, size in enumerate(sizes):
                if number == held:
                    let_go()
                if graph:
                    for context in self._on_main_stream():
                        context.launch_graph(size)
                else:
                    self.enqueue()

    def count_blocked(self, launches: int, may_block: bool) -> None:
        """Remember how many launches were enqueued before the devices were let go."""
        self.blocked_launches = launches if may_block and self._blocking else 0

    @contextmanager
    def timed(self, limit_seconds: float, may_block: bool = True) -> Iterator[Callable[[], None]]:
        """Run what is enqueued inside between events, behind the gate; then wait until all has ended.

        Gives what lets the devices go, for whoever enqueues more than a device's queue takes.
        """
        kernel = self._blocking if may_block else None
        with blocked(kernel, [context.device for context in self._contexts]) as let_go:
            self._begin()
            yield let_go
            for one in self._bindings():
                one.context.end(one.part.stream)
        self.wait(limit_seconds)
        if kernel:
            kernel.raise_if_timed_out()

    @property
    def items_per_launch(self) -> int:
        """Places of NCCL's or of a stream's queue that a launch takes at most."""
        return max((len(one.calls) * transfers(one.part.case) for one in self._bindings()), default=1)

    def _bindings(self) -> list[Binding]:
        return [one for bindings in self.streams for one in bindings]

    def _begin(self) -> None:
        """Record events where the clock starts: on all streams of a device at once, behind its gate.

        On every device, for a rank may be in the concurrent collective only.
        """
        for context in self._contexts:
            context.begin(MAIN_STREAM)
        for one in self._bindings():
            if one.part.stream != MAIN_STREAM:
                one.context.follow(one.part.stream)
                one.context.begin(one.part.stream)

    def on_devices(self, enqueue: Callable[[DeviceContext], None], limit_seconds: float) -> None:
        """Enqueue something on every device, such as ``DeviceContext.keep_busy``, and wait for its end."""
        for context in self._contexts:
            enqueue(context.device)
        self.wait(limit_seconds)

    # -- waiting ---------------------------------------------------------------------------------------------

    def wait(self, limit_seconds: float) -> None:
        """Return when no device is busy; raise what ``trouble`` makes of a failure or of the limit."""
        began = time.monotonic()
        polls = 0
        while busy := [context for context in self._contexts if context.busy()]:
            polls += 1
            waited = time.monotonic() - began
            if waited > limit_seconds or (polls % LOOK_EVERY_POLLS == 0 and self._failures()):
                raise self._trouble(waited, [str(context) for context in busy])
            if polls > POLLS_BEFORE_SLEEP:
                time.sleep(SLEEP_SECONDS)

    # -- clocks ----------------------------------------------------------------------------------------------

    def part_seconds(self) -> dict[int, float]:
        """Return, by the number of a part, what the last ``run`` took on the slowest of its devices here."""
        found: dict[int, list[float]] = {}
        for one in self._bindings():
            found.setdefault(one.part.number, []).append(one.context.elapsed_seconds(one.part.stream))
        return {number: max(seconds) for number, seconds in found.items()}


def transfers(case: Case) -> int:
    """Return what one call of ``case`` is to NCCL: one piece of work, or one for every peer.

    NCCL too queues what the device has not begun, and waits where there is no room (NCCL_WORK_FIFO_BYTES).
    """
    several = ("all_to_all", "all_to_all_v", "gather", "scatter")
    return case.ranks if case.collective in several else 1
