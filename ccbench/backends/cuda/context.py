"""The ranks that one process has on one device: their memory, their stream, and launches for all of them.

Memory that ranks keep between launches, and where it lies: flags, counters, message slots, scratch.

By default all of it lies in the ranks' devices, and peers write into it by peer access. With ``transport:
host`` what peers write (flags, packets, message slots) lies in pinned memory of the host that every device
addresses, as in NCCL's shared-memory transport (NVIDIA/nccl, src/transport/shm.cc); what only the rank itself
touches stays in its device. Each transport has memory and counters of its own, so that cases may alternate.

A kernel's own input and output stay in its device unless a peer reads or writes them. With ``transport:
host`` the case's data then go through an image in pinned memory: copied there before the kernel and back
after it, in the same stream, so that the copies are part of the time. That is sound because no kernel lets a
peer touch a rank's buffers before that rank's kernel has begun or after it has ended (kernels/README.md,
"Direct messages" and "Pull").
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ccbench.backends.base import CannotRun, OutOfMemory
from ccbench.backends.cuda.runtime import (
    NON_BLOCKING,
    ON_DEVICE,
    TO_DEVICE,
    TO_HOST,
    Cuda,
    DeviceFacts,
    Kernel,
    Modules,
    do_all,
)
from ccbench.backends.kernels import abi
from ccbench.backends.kernels.layout import (
    ALIGNMENT_BYTES,
    ZEROED,
    KernelBuffers,
    WorkAreas,
    most_channels,
    rounded_up,
    tuning,
)
from ccbench.backends.kernels.sources import (
    CompilerInput,
    KernelEntry,
    LaunchPlan,
    entries,
    program,
)
from ccbench.cases.axes import Case
from ccbench.dtypes import numpy_dtype
from ccbench.errors import CcbenchError
from ccbench.verification import Array, Piece, fill, period_of

FLUSH_FACTOR = 2
"""Times the L2 cache that is written to empty it of everything else."""

BUSY_FLUSHES = 16
"""Of some tens of microseconds each on a data centre's GPU."""

COMPARED_BYTES = 64 << 10
"""Of an output for each block that compares it, up to a block for each multiprocessor."""


class NotCoResident(CannotRun):
    """Blocks that wait for each other would not run at once; the message has the arithmetic."""


class Transfer(NamedTuple):
    """One copy between a rank's buffer and its image; ``kind`` is cudaMemcpyKind."""

    target: int
    source: int
    size_bytes: int
    kind: int


@dataclass
class Area:
    """Memory that grows when it must."""

    address: int = 0
    size_bytes: int = 0


MAIN_STREAM, CONCURRENT_STREAM, COMPUTE_STREAM = 0, 1, 2
"""For the case's own collective, for the concurrent one, and for what is computed meanwhile."""


@dataclass(frozen=True)
class Stream:
    """A CUDA stream and the events around what is timed on it."""

    handle: int
    began: int
    ended: int


@dataclass
class DeviceContext:
    """See the module. ``facts`` is the device; ``ranks`` are neighbours. stream: the main one's handle.

    buffers: of each rank, its input and output in the device. images: the same in pinned memory, for peers.
    compared: what an output is compared with. loaded: the kernel that ``launch`` launches.
    """

    cuda: Cuda
    facts: DeviceFacts
    ranks: range
    buffers: dict[int, Area] = field(default_factory=dict)
    images: dict[int, Area] = field(default_factory=dict)
    compared: Area = field(default_factory=Area)

    def __post_init__(self) -> None:
        self._streams: dict[int, Stream] = {}
        self.stream = self.on(MAIN_STREAM).handle
        self._tables = Area()
        self._flush = 0
        self._modules = Modules(self.cuda, self.facts)
        self._before: tuple[Transfer, ...] = ()
        self._after: tuple[Transfer, ...] = ()
        # By the number of launches: the graph, and what runs it; ``forget_graphs`` gives both back.
        self.graphs: dict[int, tuple[int, int]] = {}
        self._arguments: NDArray[Any] = np.zeros(1, abi.ARGUMENTS)
        self._parameters: Any = None
        self._grid = 0
        self.loaded = Kernel(0, 0, 0)

    def use(self) -> None:
        """Make the device, which has its context, current for the calls that follow."""
        self.cuda.use_for_launch(self.facts.number)

    def on(self, stream: int) -> Stream:
        """Return a stream by its number, made the first time."""
        if stream not in self._streams:
            self.cuda.use(self.facts.number)
            runtime = self.cuda.runtime
            handle = runtime.streamCreateWithFlags(NON_BLOCKING)
            self._streams[stream] = Stream(handle, runtime.eventCreate(), runtime.eventCreate())
        return self._streams[stream]

    # -- memory --------------------------------------------------------------------------------------------

    def reserve_buffer(self, rank: int, size_bytes: int, pinned: bool = False) -> None:
        """At least ``size_bytes`` for the rank's input and output; larger ones than before are new memory.

        pinned: for their image in memory of the host.
        """
        self.cuda.use(self.facts.number)
        held, cuda = self.images if pinned else self.buffers, self.cuda
        if rank in held and held[rank].size_bytes >= size_bytes:
            return
        # The smaller memory goes first: both at a time may be more than there is.
        (cuda.free_pinned if pinned else cuda.free)(held.pop(rank, Area()).address)
        address = (cuda.allocate_pinned if pinned else cuda.allocate)(size_bytes)
        held[rank] = Area(address, size_bytes)

    def release_buffers(self) -> None:
        """Give back the ranks' inputs and outputs, and their images."""
        self.cuda.use(self.facts.number)
        steps = [partial(self.cuda.free, buffer.address) for buffer in self.buffers.values()]
        steps += [
            partial(self.cuda.free_pinned, image.address) for image in self.images.values()
        ]
        self.buffers.clear()
        self.images.clear()
        do_all(steps)

    def write_repeated(self, address: int, size_bytes: int, period: NDArray[Any]) -> None:
        """Fill memory with ``period`` over and over: one copy to the device, then doublings on it."""
        self.cuda.use(self.facts.number)
        copy = self.cuda.runtime.memcpyAsync
        filled = min(period.nbytes, size_bytes)
        if filled:
            copy(address, period.ctypes.data, filled, TO_DEVICE, self.stream)
        # The host's share is one period however large the buffer is; the rest runs at the device's speed.
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
            self.cuda.runtime.memcpyAsync(
                into.ctypes.data, address, into.nbytes, TO_HOST, self.stream
            )
        self.synchronize()

    def upload(self, area: Area, tables: Sequence[NDArray[Any] | None]) -> list[int]:
        """Addresses of copies in ``area``, 0 where there is no table."""
        flat = [
            None if table is None else np.ascontiguousarray(table).view(np.uint8).ravel()
            for table in tables
        ]
        # One allocation for all tables: cudaMalloc may wait for the device, so it happens where it must grow.
        needed = sum(
            rounded_up(len(array), ALIGNMENT_BYTES) for array in flat if array is not None
        )
        self.cuda.use(self.facts.number)
        if needed > area.size_bytes:
            self.cuda.free(area.address)
            area.address, area.size_bytes = 0, 0
            area.address = self.cuda.allocate(needed)
            area.size_bytes = needed
        addresses, end = [], area.address
        for raw in flat:
            if raw is None:
                addresses.append(0)
                continue
            if len(raw):
                self.cuda.runtime.memcpyAsync(
                    end, raw.ctypes.data, len(raw), TO_DEVICE, self.stream
                )
            addresses.append(end)
            end += rounded_up(len(raw), ALIGNMENT_BYTES)
        self.synchronize()  # before the copies on the host go
        return addresses

    # -- kernels -------------------------------------------------------------------------------------------

    def require_compiler(self) -> None:
        """MissingDependency or CompilationFailed, with the cure, where nothing compiles for the device."""
        _ = self._modules.compiler

    def kernel(self, text: CompilerInput, lanes: int) -> Kernel:
        """The kernel of a program, compiled and loaded the first time."""
        return self._modules.kernel(text, lanes)

    def channels(self, kernel: Kernel, requested: int) -> int:
        """Return the channels requested, or as many as can run at once; NotCoResident where none can."""
        most = most_channels(
            len(self.ranks), kernel.blocks_per_processor, self.facts.processors, requested
        )
        if most < 1:
            raise NotCoResident(
                f"{len(self.ranks)} ranks on GPU {self.facts.number} are as many blocks of {kernel.lanes} "
                f"lanes that wait for each other, and its {self.facts.processors} multiprocessors run "
                f"{kernel.blocks_per_processor * self.facts.processors} of them at once; take fewer ranks"
            )
        return most

    def load(
        self,
        kernel: Kernel,
        arguments: NDArray[Any],
        views: NDArray[Any],
        plan: LaunchPlan,
        before: Sequence[Transfer] = (),
        after: Sequence[Transfer] = (),
    ) -> None:
        """Take everything that a launch needs: tables, arguments, grid, copies before and after it.

        arguments: dtype ARGUMENTS, without addresses and without this device's share of the ranks.
        """
        record = arguments.copy()
        addresses = self.upload(self._tables, [views, plan.plan, plan.program])
        record["views"], record["plan"], record["program"] = addresses
        record["plan_words"] = 0 if plan.plan is None else plan.plan.shape[1]
        record["program_words"] = 0 if plan.program is None else plan.program.size
        # Only this differs between devices of one launch, besides addresses.
        record["first_rank"] = self.ranks.start
        record["ranks_here"] = len(self.ranks)
        self._arguments = record
        # The driver reads arguments at each launch from here, so that they can change without a new table.
        self._parameters = (ctypes.c_void_p * 1)(record.ctypes.data)
        self._grid = int(arguments["channels"][0]) * len(self.ranks)
        self.loaded = kernel
        self._before, self._after = tuple(before), tuple(after)
        self.forget_graphs()

    def launch(self) -> None:
        """Enqueue the loaded kernel once, between its copies."""
        self.use()
        for transfer in self._before:
            self.cuda.runtime.memcpyAsync(*transfer, self.stream)
        self._enqueue(self.loaded, self._grid, self._parameters, self.stream)
        for transfer in self._after:
            self.cuda.runtime.memcpyAsync(*transfer, self.stream)

    def launch_empty(self) -> None:
        """Enqueue the loaded kernel with nothing to do, so that everything about it is loaded."""
        count = int(self._arguments["count"][0])
        self._arguments["count"] = 0
        self.launch()
        self._arguments["count"] = count

    def launch_extra(
        self, kernel: Kernel, blocks: int, arguments: NDArray[Any], stream: int
    ) -> None:
        """Enqueue an extra kernel on any stream of this device; what it is handed is copied at once."""
        self.use()
        self._enqueue(kernel, blocks, (ctypes.c_void_p * 1)(arguments.ctypes.data), stream)

    def _enqueue(self, kernel: Kernel, grid: int, parameters: Any, stream: int) -> None:
        self.cuda.driver.launchKernel(
            kernel.function,
            grid,
            1,
            1,
            kernel.lanes,
            1,
            1,
            0,
            stream,
            ctypes.addressof(parameters),
            0,
        )

    @property
    def items_per_launch(self) -> int:
        """Places of the stream's queue that a launch takes."""
        return 1 + len(self._before) + len(self._after)

    # -- graphs, clocks, caches ----------------------------------------------------------------------------

    def end_capture(self) -> int:
        """Return the graph of what was captured."""
        self.use()
        return int(self.cuda.runtime.streamEndCapture(self.stream))

    def launch_graph(self, launches: int) -> None:
        """Enqueue a graph of so many launches."""
        self.use()
        self.cuda.runtime.graphLaunch(self.graphs[launches][1], self.stream)

    def forget_graphs(self) -> None:
        """Destroy graphs: they hold copies of the arguments, and another case needs others."""
        runtime = self.cuda.runtime
        graphs = [*self.graphs.values()]
        self.graphs.clear()
        steps = [partial(runtime.graphExecDestroy, executable) for _, executable in graphs]
        do_all([*steps, *(partial(runtime.graphDestroy, graph) for graph, _ in graphs)])

    def begin(self, stream: int = MAIN_STREAM) -> None:
        """Remember the device's time before what is enqueued next."""
        self._record(self.on(stream).began, stream)

    def end(self, stream: int = MAIN_STREAM) -> None:
        """Remember the device's time after what is enqueued by now."""
        self._record(self.on(stream).ended, stream)

    def _record(self, event: int, stream: int) -> None:
        self.use()
        self.cuda.runtime.eventRecord(event, self.on(stream).handle)

    def elapsed_seconds(self, stream: int = MAIN_STREAM, since: int | None = None) -> float:
        """From ``begin`` of ``since`` (else of ``stream``) to ``end`` of ``stream``, by the device's clock.

        Once what was enqueued between them is over.
        """
        began = self.on(stream if since is None else since).began
        return float(self.cuda.runtime.eventElapsedTime(began, self.on(stream).ended)) * 1e-3

    def flush_cache(self) -> None:
        """Enqueue writes to other memory until the L2 cache holds nothing of ours."""
        size = max(FLUSH_FACTOR * self.facts.l2_bytes, 1)
        self.cuda.use(self.facts.number)
        if not self._flush:
            self._flush = self.cuda.allocate(size)
        self.cuda.runtime.memsetAsync(self._flush, 0, size, self.stream)

    def fill_cache(self) -> None:
        """Fill the L2 cache with other memory and nothing that is to be written back; wait for that.

        What was only written, a launch writes back: 17 us of 50 MB at 3 TB/s. Without a compiler it does.
        """
        self.flush_cache()
        words = np.empty(
            max(FLUSH_FACTOR * self.facts.l2_bytes // 8, 1), np.uint64
        )  # its size alone is used
        with suppress(CcbenchError):
            DeviceOutput(self, self._flush, words).differing(
                [Piece(0, len(words), np.zeros(1, np.uint64))]
            )

    def keep_busy(self) -> None:
        """Enqueue work for about a millisecond, for clocks that rise under load only."""
        with suppress(OutOfMemory):  # a device that is full to the brim is measured as it is
            for _ in range(BUSY_FLUSHES):
                self.flush_cache()

    def synchronize(self) -> None:
        """Wait for everything enqueued."""
        self.use()
        self.cuda.runtime.streamSynchronize(self.stream)

    def close(self) -> None:
        """Give everything back, as far as it goes; the first error is the one that is raised."""
        runtime, cuda = self.cuda.runtime, self.cuda
        streams = [*self._streams.values()]
        do_all(
            [
                partial(cuda.use, self.facts.number),
                self.forget_graphs,
                self.release_buffers,
                partial(cuda.free, self._tables.address),
                partial(cuda.free, self.compared.address),
                partial(cuda.free, self._flush),
                self._modules.unload,
                *(partial(runtime.eventDestroy, stream.began) for stream in streams),
                *(partial(runtime.eventDestroy, stream.ended) for stream in streams),
                *(partial(runtime.streamDestroy, stream.handle) for stream in streams),
            ]
        )
        self._tables, self.compared, self._flush = Area(), Area(), 0


# -- data --------------------------------------------------------------------------------------------------


def input_period(
    case: Case, rank: int, size_bytes: int, seed: int, launches: int
) -> NDArray[np.generic]:
    """The first elements of a rank's input, of which all others are repetitions."""
    dtype = numpy_dtype(case.dtype)
    period: NDArray[np.generic] = np.empty(
        min(period_of(seed), size_bytes // dtype.itemsize), dtype
    )
    fill(case, rank, period, seed, launches)
    return period


@dataclass(frozen=True)
class DeviceOutput:
    """Implements ``endpoint.Output``: a result at ``address``; memory: room for it here."""

    context: DeviceContext
    address: int
    memory: Array

    @property
    def elements(self) -> int:
        """Number of elements."""
        return len(self.memory)

    def read(self) -> Array:
        """The result, on the host."""
        self.context.read(self.address, self.memory)
        return self.memory

    def differing(self, pieces: Sequence[Piece]) -> tuple[int, int]:
        """Compare by the kernel ``compare`` on the device."""
        context, dtype = self.context, abi.COPY_TYPES[self.memory.itemsize]
        kernel = context.kernel(program(entries()["compare"], dtype, "sum"), abi.MAX_LANES)
        blocks = max(1, min(context.facts.processors, self.memory.nbytes // COMPARED_BYTES))
        lanes, views = np.zeros(blocks * kernel.lanes, abi.COMPARED), np.zeros(1, abi.RANK_VIEW)
        table, periods = abi.compare_tables(pieces)
        tables = [views, table, periods, lanes, np.zeros(blocks, abi.ERROR_WORD)]
        at = context.upload(context.compared, tables)
        # The view holds addresses that are known only now that everything has its place.
        views["input"], views["output"], views["staging"], views["errors"] = (
            at[2],
            self.address,
            at[3],
            at[4],
        )
        context.write_repeated(at[0], views.nbytes, views)
        arguments = np.zeros(1, abi.ARGUMENTS)
        arguments["views"], arguments["program"], arguments["program_words"] = (
            at[0],
            at[1],
            table.nbytes // 4,
        )
        arguments["ranks"] = arguments["ranks_here"] = arguments["iterations"] = 1
        arguments["channels"], arguments["type"] = blocks, abi.TYPES[dtype]
        context.launch_extra(kernel, blocks, arguments, context.stream)
        context.read(at[3], lanes)
        return abi.compared(lanes)


class PeerAccess(NamedTuple):
    """inputs: peers read a rank's input; outputs: peers write a rank's output."""

    inputs: bool
    outputs: bool


NOTHING = PeerAccess(inputs=False, outputs=False)
INPUTS = PeerAccess(inputs=True, outputs=False)
OUTPUTS = PeerAccess(inputs=False, outputs=True)
BOTH = PeerAccess(inputs=True, outputs=True)

PEER_ACCESS: dict[str, PeerAccess] = {
    **dict.fromkeys(
        ("barrier", "ring_reduce_scatter", "ring_reduce", "ring_send_recv"), NOTHING
    ),
    **dict.fromkeys(("tree_reduce", "mesh_one_shot_all_reduce", "schedule"), NOTHING),
    **dict.fromkeys(("mesh_scatter", "mesh_reduce_scatter", "mesh_pull_all_reduce"), INPUTS),
    **dict.fromkeys(("ring_all_reduce", "ring_all_gather", "ring_broadcast"), OUTPUTS),
    **dict.fromkeys(
        (
            "tree_all_reduce",
            "tree_broadcast",
            "mesh_all_gather",
            "mesh_gather",
            "put_send_recv",
        ),
        OUTPUTS,
    ),
    # In place it would exchange with peers' inputs; with the outputs staged no rank works in place.
    "mesh_all_to_all": OUTPUTS,
    **dict.fromkeys(("mesh_two_shot_all_reduce", "mesh_broadcast", "mesh_reduce"), BOTH),
}
"""Read from the sources, and proven by tests in which what a kernel may not reach is no address at all."""

WRITTEN_BY_PEERS = ("flags", "packets", "fifo")
"""Areas of ``abi.RANK_VIEW`` that other ranks' blocks write."""

MOST_HOST_CHANNELS = 8
"""Of ``transport: host``: a link of 64 GB/s with 2 us of latency is busy with 128 KiB under way (Little's
law), and every channel takes its slots from memory that is pinned. CCBENCH_KERNEL_CHANNELS goes before it."""

MOST_HOST_SLOT_BYTES = 128 << 10
"""Of ``transport: host``: 2 us of such a link. A pair of ranks pins 4 MiB for 8 channels of four slots."""


def peer_access_of(entry: KernelEntry) -> PeerAccess:
    """Buffers that peers touch; of a kernel that nobody has looked at: all. ``ll`` is packets only."""
    return PEER_ACCESS.get(entry.name, NOTHING if entry.file == "ll.cu" else BOTH)


@dataclass(frozen=True)
class RankPlaces:
    """Addresses of one rank: its work areas by name, and bases of its buffers (0: not to be addressed).

    image: base of the buffers' image in pinned memory, 0 where there is none.
    """

    work: Mapping[str, int]
    buffers: int
    image: int = 0


def views_of(
    access: PeerAccess,
    layout: Sequence[KernelBuffers],
    places: Mapping[int, RankPlaces],
    here: range,
    written_by_peers: Sequence[str] | None,
) -> NDArray[Any]:
    """The table of RANK_VIEW, shape (ranks,), that the device of the ranks ``here`` is handed.

    written_by_peers: areas in pinned memory, which is all that it sees of other ranks; None where devices
    address each other's memory.
    """
    views: NDArray[Any] = np.zeros(len(layout), abi.RANK_VIEW)
    touched = [
        name for name, is_so in (("input", access.inputs), ("output", access.outputs)) if is_so
    ]
    for rank, buffers in enumerate(layout):
        at, view = places[rank], views[rank]
        view["input"] = (
            at.image if at.image and access.inputs else at.buffers
        ) + buffers.input_offset
        view["output"] = (
            at.image if at.image and access.outputs else at.buffers
        ) + buffers.output_offset
        for name, address in at.work.items():
            view[name] = address
        if written_by_peers is not None and rank not in here:
            # An address that the device cannot reach is none: a kernel that uses it faults at once.
            for name in set(abi.RANK_VIEW.names or ()) - {*written_by_peers, *touched}:
                view[name] = 0
    return views


@dataclass(frozen=True)
class Allocation:
    """Areas of one rank that lie in one allocation; what must be zeroed comes first."""

    offsets: Mapping[str, int]
    zeroed_bytes: int
    total_bytes: int


def allocation(areas: WorkAreas, names: Sequence[str]) -> Allocation:
    """One allocation for the areas called ``names``."""
    sizes = areas.sizes()
    offsets, end, zeroed = {}, 0, 0
    # What is zeroed lies in one piece at the start, so that one memset does it.
    for name in sorted(names, key=lambda name: name not in ZEROED):
        offsets[name] = end
        end = rounded_up(end + max(sizes[name], ALIGNMENT_BYTES), ALIGNMENT_BYTES)
        zeroed = end if name in ZEROED else zeroed
    return Allocation(offsets, zeroed, end)


def host_areas(areas: WorkAreas) -> WorkAreas:
    """The sizes that ``transport: host`` takes where the devices' own memory would have ``areas``."""
    tuned = tuning()
    return replace(
        areas,
        channels=areas.channels if tuned.channels else min(areas.channels, MOST_HOST_CHANNELS),
        slot_bytes=areas.slot_bytes
        if tuned.slot_bytes
        else min(areas.slot_bytes, MOST_HOST_SLOT_BYTES),
    )


@dataclass
class WorkMemory:
    """The work memory of all ranks that this process drives; OutOfMemory leaves nothing behind."""

    contexts: Sequence[DeviceContext]
    areas: WorkAreas
    on_host: bool = False
    device: dict[int, int] = field(default_factory=dict)
    pinned: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        on_host = WRITTEN_BY_PEERS if self.on_host else ()
        self.own = allocation(
            self.areas, [name for name in self.areas.sizes() if name not in on_host]
        )
        self.shared = allocation(self.areas, on_host)
        try:
            for context in self.contexts:
                context.cuda.use(context.facts.number)
                for rank in context.ranks:
                    self.device[rank] = context.cuda.allocate(self.own.total_bytes)
                    if self.on_host:
                        self.pinned[rank] = context.cuda.allocate_pinned(
                            self.shared.total_bytes
                        )
        except BaseException:
            self.close()
            raise
        self.zero()

    def zero(self) -> None:
        """Zero all that outlives a launch: before the first one and after an error, with none under way."""
        for context in self.contexts:
            for rank in context.ranks:
                context.set_bytes(self.device[rank], 0, self.own.zeroed_bytes)
        for address in self.pinned.values():
            ctypes.memset(address, 0, self.shared.zeroed_bytes)

    def places(self, rank: int, base: int = 0) -> dict[str, int]:
        """Address of every area of a rank.

        base: where this process sees the device memory of another's.
        """
        device = base or self.device[rank]
        addresses = {name: device + offset for name, offset in self.own.offsets.items()}
        addresses.update(
            {name: self.pinned[rank] + offset for name, offset in self.shared.offsets.items()}
        )
        return addresses

    def errors(self) -> list[abi.GivenUp]:
        """Waits that were given up by ranks here."""
        waits: list[abi.GivenUp] = []
        for context in self.contexts:
            for rank in context.ranks:
                words = np.zeros(self.areas.channels, abi.ERROR_WORD)
                context.read(self.device[rank] + self.own.offsets["errors"], words)
                waits += abi.given_up(words)
        return waits

    def close(self) -> None:
        """Give everything back."""
        steps = []
        for context in self.contexts:
            for rank in context.ranks:
                steps += [
                    partial(context.cuda.use, context.facts.number),
                    partial(context.cuda.free, self.device.pop(rank, 0)),
                    partial(context.cuda.free_pinned, self.pinned.pop(rank, 0)),
                ]
        do_all(steps)
