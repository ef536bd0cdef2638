"""One rank's place on its device: memory, streams for what runs at the same time, clocks, graphs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ccbench.backends.cuda.group import Group
from ccbench.backends.cuda.runtime import CAPTURE_THREAD, NON_BLOCKING, Cuda
from ccbench.backends.nccl.parts import OWN_LANE

NOT_READY = 600
"""cudaErrorNotReady: what is enqueued on a stream has not ended yet."""


@dataclass
class Memory:
    """An allocation. by_library: NCCL made it and must free it."""

    address: int
    size_bytes: int
    by_library: bool = False


@dataclass(frozen=True)
class Lane:
    """A stream and the events around what is timed on it."""

    stream: int
    began: int
    ended: int


class Seat:
    """See the module. Everything is enqueued by calls; ``busy`` tells whether something still runs."""

    def __init__(self, cuda: Cuda, device: int, rank: int) -> None:
        self.rank = rank
        self.cuda = cuda
        self.device = Group(cuda, cuda.facts(device), range(rank, rank + 1))
        self.memory: dict[int, Memory] = {}
        self._lanes: dict[int, Lane] = {}
        self._graphs: dict[int, tuple[int, int]] = {}

    @property
    def number(self) -> int:
        """The device's number in this process."""
        return self.device.facts.number

    def use(self) -> None:
        """Make the device current for the calls that follow."""
        self.cuda.use_for_launch(self.number)

    def lane(self, number: int) -> Lane:
        """A lane, made the first time."""
        if number not in self._lanes:
            runtime = self.cuda.runtime
            self.cuda.use(self.number)
            stream = self.device.stream if number == OWN_LANE else runtime.streamCreateWithFlags(NON_BLOCKING)
            self._lanes[number] = Lane(stream, runtime.eventCreate(), runtime.eventCreate())
        return self._lanes[number]

    # -- memory --------------------------------------------------------------------------------------------

    def reserve(self, lane: int, size_bytes: int, allocate: Callable[[int], int] | None) -> Memory:
        """At least ``size_bytes``; by ``allocate`` where given, which memory for registration asks for."""
        held = self.memory.get(lane)
        if held and not held.by_library and allocate is None and held.size_bytes >= size_bytes:
            return held
        assert held is None or not held.by_library, "registered memory is given back with its case"
        self.release(lane, None)
        self.cuda.use(self.number)
        if allocate is None:
            self.memory[lane] = Memory(self.cuda.allocate(size_bytes), size_bytes)
        else:
            self.memory[lane] = Memory(allocate(size_bytes), size_bytes, by_library=True)
        return self.memory[lane]

    def release(self, lane: int, free: Callable[[int], None] | None) -> None:
        """Give an allocation back; ``free`` for what NCCL allocated."""
        held = self.memory.pop(lane, None)
        if held is None:
            return
        self.cuda.use(self.number)
        if held.by_library and free is not None:
            free(held.address)
        else:
            self.cuda.free(held.address)

    def release_all(self, free: Callable[[int], None]) -> None:
        """Give every allocation back."""
        for lane in list(self.memory):
            self.release(lane, free)

    # -- running -------------------------------------------------------------------------------------------

    def begin(self, lane: int) -> None:
        """Remember the device's time before what is enqueued next."""
        one = self.lane(lane)
        self.use()
        self.cuda.runtime.eventRecord(one.began, one.stream)

    def follow(self, lane: int) -> None:
        """What is enqueued on ``lane`` next starts when the own lane has come to its beginning."""
        own = self.lane(OWN_LANE)
        self.use()
        self.cuda.runtime.streamWaitEvent(self.lane(lane).stream, own.began)

    def end(self, lane: int) -> None:
        """Remember the device's time after what is enqueued by now."""
        one = self.lane(lane)
        self.use()
        self.cuda.runtime.eventRecord(one.ended, one.stream)

    def elapsed_seconds(self, lane: int) -> float:
        """From ``begin`` to ``end`` by the device's clock, once ``busy`` is False."""
        one = self.lane(lane)
        return float(self.cuda.runtime.eventElapsedTime(one.began, one.ended)) * 1e-3

    def seconds_since_start(self, lane: int) -> float:
        """From ``begin`` of the own lane to ``end`` of ``lane``, once ``busy`` is False."""
        began, ended = self.lane(OWN_LANE).began, self.lane(lane).ended
        return float(self.cuda.runtime.eventElapsedTime(began, ended)) * 1e-3

    def busy(self) -> bool:
        """Whether something enqueued has not ended; raises what CUDA says of the device."""
        self.use()
        for lane in self._lanes.values():
            status = int(self.cuda.runtime.streamQuery(lane.stream))
            if status == NOT_READY:
                return True
            if status:
                raise RuntimeError(f"GPU {self.number}: cudaError {status}")
        return False

    def capture(self) -> None:
        """What is enqueued on the own lane from here on goes into a graph.

        The lane must be there already. Until every capture of this thread has ended it may only launch: what
        could wait for a device, such as cudaFree or making a graph executable, ends them all with error 900
        (CUDA Runtime API, cudaStreamCaptureModeThreadLocal).
        """
        self.use()
        self.cuda.runtime.streamBeginCapture(self._lanes[OWN_LANE].stream, CAPTURE_THREAD)

    def end_capture(self, launches: int) -> None:
        """Keep what was captured: so many launches."""
        self.use()
        self._graphs[launches] = (int(self.cuda.runtime.streamEndCapture(self._lanes[OWN_LANE].stream)), 0)

    def instantiate(self, launches: int) -> None:
        """Have the graph of so many launches ready on the device; this thread must not be capturing."""
        runtime: Any = self.cuda.runtime
        self.use()
        graph, _ = self._graphs[launches]
        executable = runtime.graphInstantiate(graph)
        self._graphs[launches] = (graph, executable)
        runtime.graphUpload(executable, self._lanes[OWN_LANE].stream)

    def abandon_capture(self) -> None:
        """End ``capture`` after an error; what was captured is of no use."""
        self.use()
        try:
            graph = self.cuda.runtime.streamEndCapture(self._lanes[OWN_LANE].stream)
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
        self.cuda.runtime.graphLaunch(self._graphs[launches][1], self.lane(OWN_LANE).stream)

    def forget_graphs(self) -> None:
        """Graphs hold addresses: another case needs others."""
        for graph, executable in self._graphs.values():
            if executable:
                self.cuda.runtime.graphExecDestroy(executable)
            self.cuda.runtime.graphDestroy(graph)
        self._graphs.clear()

    def close(self) -> None:
        """Give everything back but what NCCL allocated, which goes with its case."""
        self.forget_graphs()
        for lane in list(self.memory):
            self.release(lane, None)
        for number, one in self._lanes.items():
            for event in (one.began, one.ended):
                self.cuda.runtime.eventDestroy(event)
            if number != OWN_LANE:
                self.cuda.runtime.streamDestroy(one.stream)
        self._lanes.clear()
        self.device.close()
