"""The ranks that one process drives, a context for each device."""

from __future__ import annotations

import ctypes
import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ccbench.backends.base import CannotRun
from ccbench.backends.cpu.memory import Activity, Control
from ccbench.backends.cuda.communicator import (
    NOTHING,
    WRITTEN_BY_PEERS,
    Communicator,
    RankPlaces,
    host_areas,
    peer_access_of,
    views_of,
)
from ccbench.backends.cuda.context import DeviceContext, Transfer
from ccbench.backends.cuda.gate import Gate, holding, open_gate, without_gate
from ccbench.backends.cuda.launching import (
    DeviceOutput,
    arguments_for,
    failure,
    graph_sizes,
    held_launches,
    input_period,
    moves_data,
    op_of,
    ring_orders,
    root_of,
    sample_launches,
)
from ccbench.backends.cuda.modules import Kernel
from ccbench.backends.cuda.runtime import TO_DEVICE, TO_HOST, do_all
from ccbench.backends.endpoint import FIRST_OF_WARM_UP, SingleProcessEndpoint
from ccbench.backends.kernels.abi import GivenUp
from ccbench.backends.kernels.layout import (
    RankBuffers,
    all_buffers,
    channels_for,
    lanes_for,
    work_areas,
)
from ccbench.backends.kernels.plans import PlanRequest, plan_for
from ccbench.backends.kernels.sources import KernelChoice, choose
from ccbench.cases import ALONE, Case, CaseFacts
from ccbench.dtypes import numpy_dtype
from ccbench.machine.flags import Flag
from ccbench.machine.telemetry import DeviceWatch
from ccbench.units import format_seconds
from ccbench.verification import POISON_BYTE, Array, Mismatch

KEEP_BYTES = 1 << 30
"""Buffers of one rank that are larger are given back after the case."""

HOST = "host"
"""The transport that stages what ranks exchange in pinned memory of the host."""

T = TypeVar("T")


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
        self._communicators: dict[str, Communicator] = {}
        self._peer_access = NOTHING
        self._transport = ""
        self._layout: tuple[RankBuffers, ...] = ()
        self._gate: Gate | None = None
        self._no_gate = ""
        self._met = False
        self._behind, self._gated_launches = 0, 0
        self._orders: tuple[tuple[int, ...], ...] | None = None
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
        refused = self._refused()
        if refused:
            raise CannotRun(refused)
        choice = choose(case)
        self._layout = all_buffers(case)
        self._peer_access = peer_access_of(choice.entry) if self._transport == HOST else NOTHING
        self._reserve_work()
        self._reserve_buffers()
        self._load(choice)
        for context in self.contexts:
            context.launch_empty()
            if case.mode == "cold":
                context.flush_cache()  # its memory is part of what the case needs
        self._finish_launches()
        self._raise_errors()
        return choice.algorithm

    def _refused(self) -> str | None:
        """Why these devices cannot run the case, or None."""
        devices = [context.facts.number for context in self.contexts]
        return self.contexts[0].cuda.host_memory_refused(devices) if self._transport == HOST else None

    @property
    def fallen_back(self) -> bool:
        """Whether the case goes through the host's memory though nobody asked for that."""
        return self._transport != self._case.transport

    def together(self, action: Callable[[], T]) -> T:
        """What ``action`` gives, if it succeeds in every process that shares in the case; else its error."""
        return action()

    def least(self, value: int) -> int:
        """The least value of all processes that share in the case."""
        return value

    @property
    def launched(self) -> Sequence[DeviceContext]:
        """What takes part in the case, on every device."""
        return self.contexts

    @property
    def communicator(self) -> Communicator:
        """The work memory of the case's transport."""
        return self._communicators[self._transport]

    def _reserve_work(self) -> None:
        self.together(self._open_communicator)

    def _open_communicator(self) -> None:
        """Made for the first case of a transport: a suite that asks for one only need not hold both."""
        transport = self._transport
        if transport not in self._communicators:
            on_host = transport == HOST
            areas = host_areas(self.areas) if on_host else self.areas
            self._communicators[transport] = Communicator(self.contexts, areas, on_host)

    def _reserve_buffers(self) -> None:
        for context in self.contexts:
            for rank in context.ranks:
                context.reserve_buffer(rank, self._layout[rank].total_bytes)
                if self._peer_access != NOTHING:
                    context.reserve_image(rank, self._layout[rank].total_bytes)

    def _load(self, choice: KernelChoice) -> None:
        case, areas = self._case, self.communicator.areas
        wanted = channels_for(case.size_bytes, areas.channels)
        lanes = lanes_for(-(-case.size_bytes // wanted))

        def kernels_and_room() -> tuple[list[Kernel], int]:
            kernels = [
                context.kernel(choice.entry, case.dtype, op_of(case), lanes) for context in self.contexts
            ]
            pairs = zip(self.contexts, kernels, strict=True)
            return kernels, min(context.channels(kernel, wanted) for context, kernel in pairs)

        kernels, room = self.together(kernels_and_room)
        self.channels = self.least(room)
        plan = plan_for(choice.entry.file, self._request(choice))
        arguments = arguments_for(case, areas, self.channels, self._limit_seconds)

        def load() -> None:
            for context, kernel in zip(self.contexts, kernels, strict=True):
                before, after = self._transfers(context)
                context.load(kernel, arguments, self._views(context.ranks), plan, before, after)

        self.together(load)  # whoever shares in the launch has the kernel loaded
        self._ready_gate()

    def _request(self, choice: KernelChoice) -> PlanRequest:
        case = self._case
        return PlanRequest(
            case.collective,
            case.ranks,
            self.channels,
            root_of(case),
            case.size_bytes,
            choice.schedule,
            self._ring_orders(),
        )

    def _views(self, here: range) -> NDArray[Any]:
        """What the device of the ranks ``here`` is told of every rank's memory."""
        hidden = WRITTEN_BY_PEERS if self._transport == HOST else None
        return views_of(self._peer_access, self._layout, self._rank_places(), here, hidden)

    def _rank_places(self) -> dict[int, RankPlaces]:
        places = self.communicator.places
        return {
            rank: RankPlaces(places(rank), at, context.images.addresses.get(rank, 0))
            for context in self.contexts
            for rank, at in context.buffers.addresses.items()
        }

    def _transfers(self, context: DeviceContext) -> tuple[list[Transfer], list[Transfer]]:
        """Copies to and from the images of a device's ranks, before and after each launch.

        An image has the offsets of its buffer. Before: what peers, and the rank itself, read of it; after:
        what they wrote.
        """
        before, after = [], []
        for rank in context.ranks:
            buffer, image = context.buffers.addresses[rank], context.images.addresses.get(rank, 0)
            one = self._layout[rank]
            if self._peer_access.inputs and one.input_bytes:
                at = one.input_offset
                before.append(Transfer(image + at, buffer + at, one.input_bytes, TO_HOST))
            if self._peer_access.outputs and one.output_bytes:
                at = one.output_offset
                after.append(Transfer(buffer + at, image + at, one.output_bytes, TO_DEVICE))
        return before, after

    def _ready_gate(self) -> None:
        """Made for the first case, where the devices can see the host's memory. Collective."""
        if self._gate is None and not self._no_gate:
            self._gate, self._no_gate = self._opened_gate()

    def _opened_gate(self) -> tuple[Gate | None, str]:
        return open_gate(self.contexts[0].cuda, self.contexts)

    def _ring_orders(self) -> tuple[tuple[int, ...], ...]:
        """Rings that the links between these GPUs suggest; looked up once."""
        if self._transport == HOST:
            return ()
        if self._orders is None:
            self._orders = () if Flag.LOOPBACK in self.flags else ring_orders(self.contexts)
        return self._orders

    def facts(self) -> CaseFacts:
        """How many channels were in use, and what became of the devices."""
        readings, flags = self.devices.after()
        return CaseFacts(
            protocol_used=HOST if self.fallen_back else "",
            channels_used=self.channels,
            devices=readings,
            flags=flags,
            gated_launches=self._gated_launches,
        )

    def remark(self) -> str:
        """The host's time of a launch: what is stored is the devices'."""
        if not self._host_seconds:
            return ""
        host = format_seconds(statistics.median(self._host_seconds))
        said = f"device time (events); launch and wait take the host {host}"
        if self.fallen_back:
            said += "; no peer access, so that all goes through pinned memory of the host (transport: host)"
        return f"{said}; {without_gate(self._no_gate)}" if self._no_gate else said

    def finish(self) -> None:
        """Give large buffers back; graphs belong to the case."""
        for context in self.contexts:
            context.forget_graphs()
        if max(one.total_bytes for one in self._layout) > KEEP_BYTES:
            self._release_buffers()
        self.say(Activity.IDLE)

    def _release_buffers(self) -> None:
        do_all([context.release_buffers for context in self.contexts])

    def close(self) -> None:
        """Give everything back, as far as it goes; the first error is the one that is raised."""
        communicators = [*self._communicators.values()]
        self._communicators.clear()
        gate, self._gate = self._gate, None
        do_all(
            [
                *([gate.free] if gate else []),
                *(one.close for one in communicators),
                *(context.close for context in self.contexts),
                self.devices.close,
            ]
        )

    # -- Endpoint ------------------------------------------------------------------------------------------

    def _places(self) -> Iterator[tuple[DeviceContext, int, int, RankBuffers]]:
        """(context, rank, address of its buffers, where they are in it) of every rank."""
        for context in self.contexts:
            for rank in context.ranks:
                yield context, rank, context.buffers.addresses[rank], self._layout[rank]

    def refill(self, seed: int, launches: int = 1) -> None:
        """Fill every rank's input with the data of ``seed``."""
        for context, rank, at, one in self._places():
            period = input_period(self._case, rank, one.input_bytes, seed, launches)
            context.write_repeated(at + one.input_offset, one.input_bytes, period)

    def poison(self) -> None:
        """Make every rank's output wrong everywhere."""
        for context, rank, at, one in self._places():
            context.set_bytes(at + one.output_offset, POISON_BYTE, one.output_bytes)
            if self._peer_access.outputs:  # else the image would hold the last launch's result
                image = context.images.addresses[rank]
                ctypes.memset(image + one.output_offset, POISON_BYTE, one.output_bytes)

    def launch(self, times: int) -> None:
        """Run the collective ``times`` times and wait for the end."""
        for _, fault in self._faults:
            fault.before_launches(times)
        began = time.perf_counter()
        met, self._met = self._met, False
        # That of several processes only after a barrier: elsewhere ranks must not wait for each other.
        gate = self._gate if self._gate and (met or not self._gate.shared) else None
        if self._case.mode in ALONE:
            self._device_seconds = sum(self._alone(gate) for _ in range(times))
        else:
            self._device_seconds = self._between_events(times, self._case.mode, gate)
        self._host_seconds.append((time.perf_counter() - began) / times)

    def launch_and_time_waits(self, times: int) -> float:
        """As ``launch``; one process waits for nobody."""
        self.launch(times)
        self._raise_errors()
        return 0.0

    def sample_launches(self, wanted: int, seconds: float) -> int:
        """How many launches of so many seconds a sample has, ``wanted`` being enough for its length."""
        return sample_launches(self._case.mode, wanted, seconds, self._items_per_launch)

    def device_seconds(self) -> float:
        """What the last ``launch`` took by the devices' clocks: the longest of them."""
        self._gated_launches = self._behind
        return self._device_seconds

    @property
    def _items_per_launch(self) -> int:
        return max(context.items_per_launch for context in self.launched)

    def _alone(self, gate: Gate | None) -> float:
        if self._case.mode == "cold":
            for context in self.launched:
                context.flush_cache()
            self._finish_launches()
        return self._between_events(1, self._case.mode, gate)

    def _between_events(self, times: int, mode: str, gate: Gate | None) -> float:
        graph = mode == "graph"
        sizes = graph_sizes(times) if graph else (1,) * times
        if graph:
            for context in self.launched:
                for size in dict.fromkeys(sizes):
                    context.graph(size)  # made before the clock starts
        held = held_launches(mode, self._items_per_launch)
        self._behind = sum(sizes[:held]) if gate else 0
        with holding(gate, self.launched) as let_go:
            for context in self.launched:
                context.begin()
            # One launch on each device in turn: each waits for the others', so no queue may run ahead.
            for number, size in enumerate(sizes):
                if number == held:
                    let_go()
                for context in self.launched:
                    if graph:
                        context.launch_graph(size)
                    else:
                        context.launch()
            for context in self.launched:
                context.end()
        self._finish_launches()
        if gate:
            gate.raise_if_missed()
        return max(context.elapsed_seconds() for context in self.launched)

    def _finish_launches(self) -> None:
        for context in self.launched:
            context.synchronize()

    def _raise_errors(self) -> None:
        given_up = self.given_up()
        if given_up:
            self.zero()
            raise failure(self._case, given_up)

    def given_up(self) -> list[GivenUp]:
        """Waits of the launches since the last error that lasted too long."""
        return self.communicator.errors()

    def zero(self) -> None:
        """Forget all launches, so that the next ones find nothing of them."""
        self.communicator.zero()

    def watch(self, sample: int) -> None:
        """Tell the watchdog which sample is next; the one before must have gone well."""
        self._raise_errors()
        super().watch(sample)
        if sample == FIRST_OF_WARM_UP:
            steps = [*(one.keep_busy for one in self.contexts), *(one.synchronize for one in self.contexts)]
            self.devices.before(lambda: do_all(steps))

    def check(self, seed: int, launches: int) -> Mismatch | None:
        """Compare every rank's output with what is right."""
        self.devices.ended()
        self._raise_errors()
        if not moves_data(self._case):
            return None
        return self.checked(self._case, self.outputs(), seed, launches)

    def outputs(self) -> Iterator[tuple[int, DeviceOutput]]:
        """Every rank's output, one at a time with the same memory of the host."""
        dtype = numpy_dtype(self._case.dtype)
        largest = max(one.output_bytes for one in self._layout)
        memory: Array = np.empty(largest, np.uint8)
        for context, rank, at, one in self._places():
            yield rank, DeviceOutput(context, at + one.output_offset, memory[: one.output_bytes].view(dtype))
