"""The ranks that one process has on one device: their memory, their stream, and launches for all of them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ccbench.backends.base import CannotRun
from ccbench.backends.cuda.runtime import (
    CAPTURE_THREAD,
    NON_BLOCKING,
    ON_DEVICE,
    TO_DEVICE,
    TO_HOST,
    Cuda,
    DeviceFacts,
)
from ccbench.kernels import abi
from ccbench.kernels.compiler import architecture_for, compile_program, nvrtc
from ccbench.kernels.layout import ALIGNMENT_BYTES, WorkAreas, blocks_fit, most_channels, rounded_up
from ccbench.kernels.plans import LaunchPlan
from ccbench.kernels.sources import GLOBAL_NAME, KernelEntry, instance, program

FLUSH_FACTOR = 2
"""Times the L2 cache that is written to empty it of everything else."""


class NotCoResident(CannotRun):
    """Blocks that wait for each other would not run at once; the message has the arithmetic."""


@dataclass(frozen=True)
class Kernel:
    """A loaded kernel and how many blocks of ``lanes`` fit on a multiprocessor."""

    function: int
    lanes: int
    blocks_per_processor: int


@dataclass
class Group:
    """See the module. ``facts`` is the device; ``ranks`` are neighbours."""

    cuda: Cuda
    facts: DeviceFacts
    ranks: range
    stream: int = 0
    work: dict[int, int] = field(default_factory=dict)
    buffers: dict[int, int] = field(default_factory=dict)
    buffer_bytes: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.cuda.use(self.facts.number)
        runtime = self.cuda.runtime
        self.stream = runtime.streamCreateWithFlags(NON_BLOCKING)
        self._began = runtime.eventCreate()
        self._ended = runtime.eventCreate()
        self._tables = 0
        self._tables_bytes = 0
        self._flush = 0
        self._kernels: dict[tuple[str, str, str, int], Kernel] = {}
        self._graphs: dict[int, tuple[int, int]] = {}
        self._arguments: NDArray[Any] = np.zeros(1, abi.ARGUMENTS)
        self._parameters: Any = None
        self._grid = 0
        self._kernel = Kernel(0, 0, 0)

    # -- memory --------------------------------------------------------------------------------------------

    def allocate_work(self, areas: WorkAreas) -> None:
        """Flags, counters, message slots and scratch of every rank here, zeroed."""
        self.cuda.use(self.facts.number)
        for rank in self.ranks:
            self.work[rank] = self.cuda.allocate(areas.total_bytes)
        self.zero_work(areas)

    def zero_work(self, areas: WorkAreas) -> None:
        """What the host must do before the first launch, and after an error."""
        self.cuda.use(self.facts.number)
        for rank in self.ranks:
            self.cuda.runtime.memsetAsync(self.work[rank], 0, areas.zeroed_bytes, self.stream)
        self.synchronize()

    def reserve_buffer(self, rank: int, size_bytes: int) -> None:
        """At least ``size_bytes`` for the rank's input and output; larger ones than before are new memory."""
        if self.buffer_bytes.get(rank, -1) >= size_bytes:
            return
        self.cuda.use(self.facts.number)
        self.cuda.free(self.buffers.pop(rank, 0))
        self.buffer_bytes.pop(rank, None)
        self.buffers[rank] = self.cuda.allocate(size_bytes)
        self.buffer_bytes[rank] = size_bytes

    def release_buffers(self) -> None:
        """Give back the ranks' inputs and outputs."""
        self.cuda.use(self.facts.number)
        for address in self.buffers.values():
            self.cuda.free(address)
        self.buffers.clear()
        self.buffer_bytes.clear()

    def write_repeated(self, address: int, size_bytes: int, period: NDArray[Any]) -> None:
        """Fill memory with ``period`` over and over: one copy to the device, then doublings on it."""
        self.cuda.use(self.facts.number)
        copy = self.cuda.runtime.memcpyAsync
        filled = min(period.nbytes, size_bytes)
        if filled:
            copy(address, period.ctypes.data, filled, TO_DEVICE, self.stream)
        while 0 < filled < size_bytes:
            more = min(filled, size_bytes - filled)
            copy(address + filled, address, more, ON_DEVICE, self.stream)
            filled += more
        self.synchronize()

    def set_bytes(self, address: int, value: int, size_bytes: int) -> None:
        """Fill memory with one byte."""
        self.cuda.use(self.facts.number)
        if size_bytes:
            self.cuda.runtime.memsetAsync(address, value, size_bytes, self.stream)
        self.synchronize()

    def read(self, address: int, into: NDArray[Any]) -> None:
        """Copy memory of the device to the host."""
        self.cuda.use(self.facts.number)
        if into.nbytes:
            self.cuda.runtime.memcpyAsync(into.ctypes.data, address, into.nbytes, TO_HOST, self.stream)
        self.synchronize()

    def errors(self, areas: WorkAreas) -> list[abi.GivenUp]:
        """Waits that were given up by ranks here."""
        words = np.zeros((len(self.ranks), areas.channels), abi.ERROR_WORD)
        for row, rank in enumerate(self.ranks):
            self.read(self.work[rank] + areas.offsets()["errors"], words[row])
        return list(abi.given_up(words))

    # -- kernels -------------------------------------------------------------------------------------------

    def kernel(self, entry: KernelEntry, dtype: str, op: str, lanes: int) -> Kernel:
        """The kernel for these, compiled and loaded the first time."""
        key = (entry.name, *instance(entry, dtype, op), lanes)
        if key not in self._kernels:
            architecture = architecture_for(self.facts.capability, nvrtc().architectures)
            cubin = compile_program(program(entry, dtype, op), architecture).cubin
            self.cuda.use(self.facts.number)
            driver = self.cuda.driver
            function = driver.moduleGetFunction(driver.moduleLoadData(cubin), GLOBAL_NAME)
            fit = driver.occupancyMaxActiveBlocksPerMultiprocessor(function, lanes, 0)
            self._kernels[key] = Kernel(function, lanes, fit)
        return self._kernels[key]

    def channels(self, kernel: Kernel, wanted: int) -> int:
        """As many channels as wanted, or as many as can run at once; NotCoResident where none can."""
        most = most_channels(len(self.ranks), kernel.blocks_per_processor, self.facts.processors, wanted)
        if most < 1:
            raise NotCoResident(
                f"{len(self.ranks)} ranks on GPU {self.facts.number} are as many blocks of {kernel.lanes} "
                f"lanes that wait for each other, and its {self.facts.processors} multiprocessors run "
                f"{kernel.blocks_per_processor * self.facts.processors} of them at once; take fewer ranks"
            )
        return most

    def refuse_too_many(self, kernel: Kernel, channels: int) -> None:
        """NotCoResident where blocks that wait for each other would not run at once."""
        if not blocks_fit(len(self.ranks), channels, kernel.blocks_per_processor, self.facts.processors):
            raise NotCoResident(
                f"{channels} channels of {len(self.ranks)} ranks do not run at once on "
                f"GPU {self.facts.number}, "
                f"which has room for {kernel.blocks_per_processor * self.facts.processors} blocks"
            )

    @property
    def loaded(self) -> Kernel:
        """The kernel that ``launch`` launches."""
        return self._kernel

    def load(self, kernel: Kernel, arguments: NDArray[Any], views: NDArray[Any], plan: LaunchPlan) -> None:
        """Everything a launch needs: tables on the device, arguments, grid.

        arguments: dtype ARGUMENTS, without addresses and without this device's share of the ranks.
        """
        channels = int(arguments["channels"][0])
        self.refuse_too_many(kernel, channels)
        given = arguments.copy()
        addresses = self._upload([views, plan.plan, plan.program])
        given["views"], given["plan"], given["program"] = addresses
        given["plan_words"] = 0 if plan.plan is None else plan.plan.shape[1]
        given["program_words"] = 0 if plan.program is None else plan.program.size
        given["first_rank"] = self.ranks.start
        given["ranks_here"] = len(self.ranks)
        self._arguments = given
        self._parameters = (ctypes.c_void_p * 1)(given.ctypes.data)
        self._grid = channels * len(self.ranks)
        self._kernel = kernel
        self.forget_graphs()

    def _upload(self, tables: Sequence[NDArray[Any] | None]) -> list[int]:
        """Addresses of copies on the device, 0 where there is no table."""
        flat = [np.ascontiguousarray(one).view(np.uint8).ravel() for one in tables if one is not None]
        needed = sum(rounded_up(len(one), ALIGNMENT_BYTES) for one in flat)
        self.cuda.use(self.facts.number)
        if needed > self._tables_bytes:
            self.cuda.free(self._tables)
            self._tables, self._tables_bytes = 0, 0
            self._tables = self.cuda.allocate(needed)
            self._tables_bytes = needed
        addresses, end = [], self._tables
        for one in tables:
            if one is None:
                addresses.append(0)
                continue
            raw = np.ascontiguousarray(one).view(np.uint8).ravel()
            if len(raw):
                self.cuda.runtime.memcpyAsync(end, raw.ctypes.data, len(raw), TO_DEVICE, self.stream)
                self.synchronize()  # before the copy on the host goes
            addresses.append(end)
            end += rounded_up(len(raw), ALIGNMENT_BYTES)
        return addresses

    def launch(self) -> None:
        """Enqueue the loaded kernel once."""
        self.cuda.use_for_launch(self.facts.number)
        lanes = self._kernel.lanes
        parameters = ctypes.addressof(self._parameters)
        self.cuda.driver.launchKernel(
            self._kernel.function, self._grid, 1, 1, lanes, 1, 1, 0, self.stream, parameters, 0
        )

    def launch_without_last_rank(self) -> None:
        """Enqueue the loaded kernel for all ranks here but the last, which the others wait for in vain.

        A fault for tests: it shows that no wait is endless.
        """
        channels = self._grid // len(self.ranks)
        self._arguments["ranks_here"] = len(self.ranks) - 1
        self._grid -= channels
        try:
            self.launch()
        finally:
            self._arguments["ranks_here"] = len(self.ranks)
            self._grid += channels

    def launch_empty(self) -> None:
        """Enqueue the loaded kernel with nothing to do, so that everything about it is loaded."""
        count = int(self._arguments["count"][0])
        self._arguments["count"] = 0
        self.launch()
        self._arguments["count"] = count

    # -- graphs, clocks, caches ----------------------------------------------------------------------------

    def graph(self, launches: int) -> int:
        """An executable graph of ``launches`` launches in a row, made the first time."""
        if launches not in self._graphs:
            runtime = self.cuda.runtime
            self.cuda.use(self.facts.number)
            runtime.streamBeginCapture(self.stream, CAPTURE_THREAD)
            try:
                for _ in range(launches):
                    self.launch()
            finally:
                graph = runtime.streamEndCapture(self.stream)
            executable = runtime.graphInstantiate(graph)
            runtime.graphUpload(executable, self.stream)
            self.synchronize()
            self._graphs[launches] = (graph, executable)
        return self._graphs[launches][1]

    def launch_graph(self, launches: int) -> None:
        """Enqueue a graph of so many launches."""
        executable = self.graph(launches)
        self.cuda.use_for_launch(self.facts.number)
        self.cuda.runtime.graphLaunch(executable, self.stream)

    def forget_graphs(self) -> None:
        """Graphs hold copies of the arguments: another case needs others."""
        for graph, executable in self._graphs.values():
            self.cuda.runtime.graphExecDestroy(executable)
            self.cuda.runtime.graphDestroy(graph)
        self._graphs.clear()

    def begin(self) -> None:
        """Remember the device's time before what is enqueued next."""
        self.cuda.use_for_launch(self.facts.number)
        self.cuda.runtime.eventRecord(self._began, self.stream)

    def end(self) -> None:
        """Remember the device's time after what is enqueued by now."""
        self.cuda.use_for_launch(self.facts.number)
        self.cuda.runtime.eventRecord(self._ended, self.stream)

    def elapsed_seconds(self) -> float:
        """From ``begin`` to ``end`` by the device's clock, after ``synchronize``."""
        return float(self.cuda.runtime.eventElapsedTime(self._began, self._ended)) * 1e-3

    def flush_cache(self) -> None:
        """Enqueue writes to other memory until the L2 cache holds nothing of ours."""
        size = max(FLUSH_FACTOR * self.facts.l2_bytes, 1)
        self.cuda.use(self.facts.number)
        if not self._flush:
            self._flush = self.cuda.allocate(size)
        self.cuda.runtime.memsetAsync(self._flush, 0, size, self.stream)

    def synchronize(self) -> None:
        """Wait for everything enqueued."""
        self.cuda.use_for_launch(self.facts.number)
        self.cuda.runtime.streamSynchronize(self.stream)

    def close(self) -> None:
        """Give everything back."""
        self.forget_graphs()
        self.release_buffers()
        for address in (*self.work.values(), self._tables, self._flush):
            self.cuda.free(address)
        self.work.clear()
        self._tables = self._tables_bytes = self._flush = 0
        for event in (self._began, self._ended):
            self.cuda.runtime.eventDestroy(event)
        self.cuda.runtime.streamDestroy(self.stream)
