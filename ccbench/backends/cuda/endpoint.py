"""The ranks that one process drives, a context for each device."""

from __future__ import annotations

import ctypes
import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import numpy as np

from ccbench.backends.base import CannotRun
from ccbench.backends.control_block import Activity, Control
from ccbench.backends.cuda.blocking_kernel import (
    BlockingKernel,
    SharedWords,
    blocked,
    launch_sample,
    open_blocking_kernel,
    sample_launches,
    without_blocking_kernel,
)
from ccbench.backends.cuda.context import (
    NOTHING,
    WRITTEN_BY_PEERS,
    Area,
    DeviceContext,
    DeviceOutput,
    RankPlaces,
    Transfer,
    WorkMemory,
    host_areas,
    input_period,
    peer_access_of,
    views_of,
)
from ccbench.backends.cuda.runtime import TO_DEVICE, TO_HOST, DeviceFacts, Kernel, do_all
from ccbench.backends.endpoint import FIRST_OF_WARM_UP, Result, SingleProcessEndpoint
from ccbench.backends.kernels import abi
from ccbench.backends.kernels.layout import KernelBuffers, all_buffers, work_areas
from ccbench.backends.kernels.links import Links, links_of
from ccbench.backends.kernels.sources import KernelChoice, choose, plan_for, program
from ccbench.backends.kernels.traffic import blocks_for, traffic_of
from ccbench.cases.axes import ALONE, NO_OP, NO_ROOT, Case
from ccbench.cases.measurement import CaseFacts
from ccbench.collectives import collective
from ccbench.dtypes import numpy_dtype
from ccbench.errors import CcbenchError
from ccbench.flags import Flag
from ccbench.machine.telemetry import DeviceWatch
from ccbench.units import format_seconds
from ccbench.verification import POISON_BYTE, Array, Mismatch

KEEP_BYTES = 1 << 30
"""Buffers of one rank that are larger are given back after the case."""

LIMIT_SECONDS = 5.0
"""Of one wait inside a kernel; a sound launch waits for microseconds, or milliseconds where devices are
shared."""

HOST = "host"
"""The transport that stages what ranks exchange in pinned memory of the host."""

T = TypeVar("T")


class CollectiveFailed(CcbenchError):
    """A kernel gave up waiting; the message names who waited for whom."""

    exit_code = 4


class CudaRanks(SingleProcessEndpoint):
    """The ranks that this process drives, a context for each device.

    shares: the ranks of every device. Where one has several the measurement is flagged ``loopback``.
    processors: multiprocessors of the smallest of all ranks' devices, so that all lay out memory alike.
    members: their numbers in the team, channels: those of the case.
    no_access: two devices of which one cannot address the other's memory, None where all can.
    """

    def __init__(
        self,
        control: Control,
        contexts: Sequence[DeviceContext],
        shares: Sequence[range],
        processors: int,
        limit_seconds: float,
        no_access: tuple[int, int] | None = None,
    ) -> None:
        super().__init__(control)
        for context in contexts:
            context.require_compiler()  # said once, not by every case
        self.contexts = contexts
        self.members = tuple(itertools.chain.from_iterable(shares))
        self._limit_seconds = limit_seconds
        self._no_access = no_access
        most = max(map(len, shares))
        self.flags = (Flag.LOOPBACK,) if most > 1 else ()
        self.areas = work_areas(sum(map(len, shares)), most, processors)
        self._communicators: dict[str, WorkMemory] = {}
        self._peer_access = NOTHING
        self._transport = ""
        self._layout: tuple[KernelBuffers, ...] = ()
        self._blocking: BlockingKernel | None = None
        self._shared_words: tuple[SharedWords, int] | None = None
        self._not_blocked = ""
        self._met = False
        self._behind, self._blocked_launches = 0, 0
        self._links: Links | None = None
        self._host_seconds: list[float] = []
        self._device_seconds = 0.0
        self.channels = 0
        self.devices = DeviceWatch([context.facts.bus_id for context in contexts])

    # -- one case --------------------------------------------------------------------------------------------

    def prepare(self, case: Case) -> str:
        """Load the kernel on every device, place the buffers, launch once with nothing to do.

        CannotRun where these devices cannot do it, OutOfMemory; on every process that shares in the case.
        """
        self.say(Activity.PREPARING)
        self.arm(case)
        self._host_seconds = []
        # Devices that cannot address each other's memory can all address the host's.
        several = len({context.facts.number for context in self.contexts}) > 1
        self._transport = HOST if self._no_access and several else case.transport
        if refused := self.refusal():
            raise CannotRun(refused)
        choice = choose(case, self._links_in_use().joined)
        self._layout = all_buffers(case)
        self._peer_access = peer_access_of(choice.entry) if self._transport == HOST else NOTHING
        self.reserve_work()
        self.reserve_buffers()
        self._load(choice)
        for context in self.contexts:
            # The first launch of a kernel may still load something, and loading can wait for the device.
            context.launch_empty()
        self._finish_launches()
        for context in self.contexts if case.mode == "cold" else ():
            context.fill_cache()  # its memory is part of what the case needs
        self._raise_errors()
        return choice.algorithm

    def refusal(self) -> str | None:
        """Reason why the devices cannot run the case, None where they can."""
        devices = [context.facts.number for context in self.contexts]
        return (
            self.contexts[0].cuda.host_memory_refused(devices)
            if self._transport == HOST
            else None
        )

    @property
    def fallen_back(self) -> bool:
        """Return whether the case goes through the host's memory though it does not ask for that."""
        return self._transport != self._case.transport

    def together(self, action: Callable[[], T]) -> T:
        """Return what ``action`` gives, if it succeeds in every process of the case; else raise its error."""
        return action()

    def least(self, value: int) -> int:
        """The least value of all processes that share in the case."""
        return value

    @property
    def launched(self) -> Sequence[DeviceContext]:
        """Contexts that take part in the case, on every device."""
        return self.contexts

    @property
    def communicator(self) -> WorkMemory:
        """The work memory of the case's transport."""
        return self._communicators[self._transport]

    def reserve_work(self) -> None:
        """Make the work memory of a transport when its first case comes: not every suite asks for both."""
        transport, on_host = self._transport, self._transport == HOST

        def open_communicator() -> None:
            if transport not in self._communicators:
                areas = host_areas(self.areas) if on_host else self.areas
                self._communicators[transport] = WorkMemory(self.contexts, areas, on_host)

        self.together(open_communicator)

    def reserve_buffers(self) -> None:
        """Make room for every rank's input and output."""
        for context in self.contexts:
            for rank in context.ranks:
                context.reserve_buffer(rank, self._layout[rank].total_bytes)
                if self._peer_access != NOTHING:
                    context.reserve_buffer(rank, self._layout[rank].total_bytes, pinned=True)

    def _load(self, choice: KernelChoice) -> None:
        """Compile, agree on the channels of which all blocks run at once everywhere, and load."""
        case, areas = self._case, self.communicator.areas
        traffic = traffic_of(choice.algorithm, case.collective, case.ranks, case.size_bytes)
        # Lanes follow from the channels wanted, and with them the room, which may leave fewer channels.
        blocks = blocks_for(traffic, areas.channels)
        root, op = (
            0 if case.root == NO_ROOT else case.root,
            "sum" if case.op == NO_OP else case.op,
        )

        def kernels_and_room() -> tuple[list[Kernel], int]:
            text = program(choice.entry, case.dtype, op)
            kernels = [context.kernel(text, blocks.lanes) for context in self.contexts]
            pairs = zip(self.contexts, kernels, strict=True)
            return kernels, min(
                context.channels(kernel, blocks.channels) for context, kernel in pairs
            )

        kernels, room = self.together(kernels_and_room)
        self.channels = self.least(room)
        sizes = self.channels, root, case.size_bytes
        orders = self._links_in_use().orders
        plan = plan_for(
            choice.entry.file, case.collective, case.ranks, *sizes, choice.schedule, orders
        )
        arguments = np.zeros(1, abi.ARGUMENTS)
        arguments["limit_nanoseconds"] = int(self._limit_seconds * 1e9)
        arguments["count"], arguments["ranks"] = case.count, case.ranks
        arguments["channels"], arguments["root"], arguments["iterations"] = (
            self.channels,
            root,
            1,
        )
        arguments["type"], arguments["op"] = abi.TYPES[case.dtype], abi.OPS[op]
        for name in ("slot_bytes", "packets_bytes", "staging_bytes", "slots"):
            arguments[name] = getattr(areas, name)
        hidden, places = (
            WRITTEN_BY_PEERS if self._transport == HOST else None,
            self.rank_places(),
        )

        def load() -> None:
            for context, kernel in zip(self.contexts, kernels, strict=True):
                views = views_of(self._peer_access, self._layout, places, context.ranks, hidden)
                context.load(kernel, arguments, views, plan, *self._transfers(context))

        self.together(load)  # whoever shares in the launch has the kernel loaded
        self.ready_blocking_kernel()

    def _links_in_use(self) -> Links:
        """Links that the case uses; what goes through the host's memory uses none between GPUs."""
        if self._transport == HOST:
            return Links(joined=False)
        if self._links is None:  # looked up once
            alone = Flag.LOOPBACK in self.flags
            seen = Links() if alone else links_between(self.device_facts)
            # A rank that sees less must not take another kernel.
            self._links = seen._replace(joined=bool(self.agree(int(seen.joined))))
        return self._links

    @property
    def device_facts(self) -> Sequence[DeviceFacts]:
        """Every rank's device, in the order of ranks, where each has its own."""
        return [context.facts for context in self.contexts]

    def rank_places(self) -> dict[int, RankPlaces]:
        """Addresses of every rank's work memory and buffers, as this process sees them."""
        places = self.communicator.places
        return {
            rank: RankPlaces(
                places(rank), held.address, context.images.get(rank, Area()).address
            )
            for context in self.contexts
            for rank, held in context.buffers.items()
        }

    def _transfers(self, context: DeviceContext) -> tuple[list[Transfer], list[Transfer]]:
        """Copies to and from the images of a device's ranks, before and after each launch.

        An image has the offsets of its buffer. Before: what peers, and the rank itself, read of it; after:
        what they wrote.
        """
        before, after = [], []
        for rank in context.ranks:
            buffer, image = (
                context.buffers[rank].address,
                context.images.get(rank, Area()).address,
            )
            own = self._layout[rank]
            if self._peer_access.inputs and own.input_bytes:
                at = own.input_offset
                before.append(Transfer(image + at, buffer + at, own.input_bytes, TO_HOST))
            if self._peer_access.outputs and own.output_bytes:
                at = own.output_offset
                after.append(Transfer(buffer + at, image + at, own.output_bytes, TO_DEVICE))
        return before, after

    def ready_blocking_kernel(self) -> None:
        """Made for the first case, where the devices can see the host's memory. Collective."""
        if self._blocking is None and not self._not_blocked:
            cuda = self.contexts[0].cuda
            opened = open_blocking_kernel(cuda, self.contexts, self._shared_words, self.least)
            self._blocking, self._not_blocked = opened

    def facts(self) -> CaseFacts:
        """Number of channels in use, and what became of the devices."""
        readings, flags = self.devices.after()
        return CaseFacts(
            protocol_used=HOST if self.fallen_back else "",
            channels_used=self.channels,
            devices=readings,
            flags=flags,
            blocked_launches=self._blocked_launches,
        )

    def remark(self) -> str:
        """The host's time of a launch: what is stored is the devices'."""
        if not self._host_seconds:
            return ""
        host = format_seconds(statistics.median(self._host_seconds))
        text = f"device time (events); launch and wait take the host {host}"
        if self.fallen_back and self._no_access:
            text += "; GPUs {} and {} have no peer access".format(*self._no_access)
            text += ", so that all goes through pinned memory of the host (transport: host)"
        return (
            f"{text}; {without_blocking_kernel(self._not_blocked)}"
            if self._not_blocked
            else text
        )

    def finish(self) -> None:
        """Give large buffers back; graphs belong to the case."""
        for context in self.contexts:
            context.forget_graphs()
        if max(buffers.total_bytes for buffers in self._layout) > KEEP_BYTES:
            self.release_buffers()
        self.say(Activity.IDLE)

    def release_buffers(self) -> None:
        """Give every rank's buffers back."""
        do_all([context.release_buffers for context in self.contexts])

    def close(self) -> None:
        """Give everything back, as far as it goes; the first error is the one that is raised."""
        communicators = [*self._communicators.values()]
        self._communicators.clear()
        blocking, self._blocking = self._blocking, None
        steps = [blocking.free] if blocking else []
        steps += [communicator.close for communicator in communicators]
        do_all([*steps, *(context.close for context in self.contexts), self.devices.close])

    # -- Endpoint ------------------------------------------------------------------------------------------

    def _places(self) -> Iterator[tuple[DeviceContext, int, int, KernelBuffers]]:
        """(context, rank, address of its buffers, where they are in it) of every rank."""
        for context in self.contexts:
            for rank in context.ranks:
                yield context, rank, context.buffers[rank].address, self._layout[rank]

    def refill(self, seed: int, launches: int = 1) -> None:
        """Fill every rank's input with the data of ``seed``."""
        for context, rank, at, buffers in self._places():
            period = input_period(self._case, rank, buffers.input_bytes, seed, launches)
            context.write_repeated(at + buffers.input_offset, buffers.input_bytes, period)

    def poison(self) -> None:
        """Make every rank's output wrong everywhere."""
        for context, rank, at, buffers in self._places():
            context.set_bytes(at + buffers.output_offset, POISON_BYTE, buffers.output_bytes)
            if self._peer_access.outputs:  # else the image would hold the last launch's result
                image = context.images[rank].address
                ctypes.memset(image + buffers.output_offset, POISON_BYTE, buffers.output_bytes)

    def launch(self, times: int) -> None:
        """Run the collective ``times`` times and wait for the end."""
        for _, fault in self._faults:
            fault.before_launches(times)
        began = time.perf_counter()
        met, self._met = self._met, False
        # That of several processes only after a barrier: elsewhere ranks must not wait for each other.
        kernel = (
            self._blocking if self._blocking and (met or not self._blocking.shared) else None
        )
        mode = self._case.mode
        if mode not in ALONE:
            self._device_seconds = self.between_events(times, mode, kernel)
        else:
            self._device_seconds = 0.0
            for _ in range(times):
                if mode == "cold":
                    for context in self.launched:
                        context.fill_cache()
                    self._finish_launches()
                self._device_seconds += self.between_events(1, mode, kernel)
        self._host_seconds.append((time.perf_counter() - began) / times)

    def launch_and_time_waits(self, times: int) -> float:
        """Launch, as ``launch`` does; one process waits for no other."""
        self.launch(times)
        self._raise_errors()
        return 0.0

    def sample_launches(self, launches: int, seconds: float) -> int:
        """Return the launches of a sample; see ``DeviceTimed``."""
        return sample_launches(self._case.mode, launches, seconds, self._items_per_launch)

    def device_seconds(self) -> float:
        """Seconds of the last ``launch`` by the devices' clocks: the longest of them."""
        self._blocked_launches = self._behind
        return self._device_seconds

    @property
    def _items_per_launch(self) -> int:
        return max(context.items_per_launch for context in self.launched)

    def between_events(self, times: int, mode: str, kernel: BlockingKernel | None) -> float:
        """Enqueue so many launches on all devices, wait, and return what the slowest device took."""

        def enqueue() -> None:
            # On each device in turn: each waits for the others', so no queue may run ahead.
            for context in self.launched:
                context.launch()

        @contextmanager
        def timed(held: int) -> Iterator[Callable[[], None]]:
            self._behind = held if kernel else 0
            with blocked(kernel, self.launched) as release:
                for context in self.launched:
                    context.begin()
                yield release
                for context in self.launched:
                    context.end()
            self._finish_launches()

        launch_sample(self.launched, mode, times, self._items_per_launch, enqueue, timed)
        if kernel:
            kernel.raise_if_timed_out()
        return max(context.elapsed_seconds() for context in self.launched)

    def _finish_launches(self) -> None:
        for context in self.launched:
            context.synchronize()

    def _raise_errors(self) -> None:
        """CollectiveFailed with all waits that were given up in one line, the first few spelt out."""
        given_up = self.given_up()
        if given_up:
            self.zero()
            # One rank that does not come makes all others give up, so the first few say enough.
            shown = "; ".join(map(str, given_up[:4]))
            more = f"; and {len(given_up) - 4} more" if len(given_up) > 4 else ""
            raise CollectiveFailed(
                f"{self._case.collective} {self._case.algorithm}: {shown}{more}"
            )

    def given_up(self) -> list[abi.GivenUp]:
        """Waits of the launches since the last error that lasted too long."""
        return self.communicator.errors()

    def zero(self) -> None:
        """Forget all launches, so that the next ones find nothing of them."""
        self.communicator.zero()

    def begin_sample(self, sample: int) -> None:
        """Tell the watchdog which sample is next; the one before must have gone well."""
        self._raise_errors()
        super().begin_sample(sample)
        if sample == FIRST_OF_WARM_UP:
            # Devices at rest lower their clocks; state and clocks are read while they work.
            steps = [
                *(context.keep_busy for context in self.contexts),
                *(context.synchronize for context in self.contexts),
            ]
            self.devices.before(lambda: do_all(steps))

    def check(self, seed: int, launches: int) -> Mismatch | None:
        """Compare every rank's output with what is right."""
        self.devices.ended()
        self._raise_errors()
        if not collective(self._case.collective).moves_data:
            return None
        return self.checked(self._case, self.outputs(), seed, launches)

    def results(self) -> Iterator[Result]:
        """Yield every rank's result."""
        self._raise_errors()
        for rank, output in self.outputs():
            yield Result(rank, output.read())

    def outputs(self) -> Iterator[tuple[int, DeviceOutput]]:
        """Every rank's output, one at a time with the same memory of the host."""
        dtype = numpy_dtype(self._case.dtype)
        largest = max(buffers.output_bytes for buffers in self._layout)
        memory: Array = np.empty(largest, np.uint8)
        for context, rank, at, buffers in self._places():
            yield (
                rank,
                DeviceOutput(
                    context,
                    at + buffers.output_offset,
                    memory[: buffers.output_bytes].view(dtype),
                ),
            )


def links_between(facts: Sequence[DeviceFacts]) -> Links:
    """Links between the devices of ranks that have one each, from what the system shows."""
    from ccbench.machine.detection import detect

    topology = detect()
    names = {gpu.bus_id.lower(): gpu.name for gpu in topology.gpus if gpu.bus_id}
    return links_of(topology, [names.get(device.bus_id.lower(), "") for device in facts])
