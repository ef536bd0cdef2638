"""All GPUs of a node driven by one process: what the worker of ``cuda`` measures with."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence

import numpy as np

from ccbench.backends.base import LOOPBACK
from ccbench.backends.cpu.memory import Activity, Control
from ccbench.backends.crew import WholeEndpoint
from ccbench.backends.cuda.group import Group
from ccbench.backends.cuda.launching import (
    GRAPH_LAUNCHES,
    LIMIT_SECONDS,
    arguments_for,
    failure,
    input_period,
    moves_data,
    op_of,
    root_of,
    view_table,
    work_areas,
)
from ccbench.backends.cuda.runtime import Cuda, device_count
from ccbench.cases import Case
from ccbench.dtypes import numpy_dtype
from ccbench.kernels.layout import RankBuffers, all_buffers, channels_for, lanes_for, ranks_of_devices
from ccbench.kernels.plans import PlanRequest, plan_for, topology_orders
from ccbench.kernels.selection import choose
from ccbench.units import format_seconds
from ccbench.verification import POISON_BYTE, Array, Mismatch

KEEP_BYTES = 1 << 30
"""Buffers of one rank that are larger are given back after the case."""

ALONE = ("isolated", "cold")


class CudaRanks(WholeEndpoint):
    """The ranks that this process drives, on as many devices as there are groups.

    shares: the ranks of every device. Where one has several the measurement is flagged ``loopback``.
    processors: multiprocessors of the smallest of all ranks' devices, so that all lay out memory alike.
    """

    def __init__(
        self,
        control: Control,
        groups: Sequence[Group],
        shares: Sequence[range],
        processors: int,
        limit_seconds: float,
    ) -> None:
        super().__init__(control)
        self.groups = groups
        self._limit_seconds = limit_seconds
        most = max(map(len, shares))
        self.flags = (LOOPBACK,) if most > 1 else ()
        self.areas = work_areas(sum(map(len, shares)), most, processors)
        for group in groups:
            group.allocate_work(self.areas)
        self._orders: tuple[tuple[int, ...], ...] | None = None
        self._host_seconds: list[float] = []
        self._device_seconds = 0.0

    # -- one case --------------------------------------------------------------------------------------------

    def prepare(self, case: Case) -> str:
        """Load the kernel on every device, place the buffers, launch once with nothing to do."""
        self.say(Activity.PREPARING)
        self.arm(case)
        self._case = case
        self._host_seconds = []
        choice = choose(case)
        self._layout = all_buffers(case)
        self._reserve_buffers()
        wanted = channels_for(case.size_bytes, self.areas.channels)
        lanes = lanes_for(-(-case.size_bytes // wanted))
        kernels = [group.kernel(choice.entry, case.dtype, op_of(case), lanes) for group in self.groups]
        channels = self.least(
            min(group.channels(kernel, wanted) for group, kernel in zip(self.groups, kernels, strict=True))
        )
        request = PlanRequest(
            case.collective,
            case.ranks,
            channels,
            root_of(case),
            case.size_bytes,
            choice.schedule,
            self._ring_orders(),
        )
        plan = plan_for(choice.entry.file, request)
        views = view_table(self._work_addresses(), self._buffer_addresses(), self._layout, self.areas)
        arguments = arguments_for(case, self.areas, channels, self._limit_seconds)
        for group, kernel in zip(self.groups, kernels, strict=True):
            group.load(kernel, arguments, views, plan)
        self.barrier()  # whoever shares in the launch has the kernel loaded
        for group in self.groups:
            group.launch_empty()
        self._finish_launches()
        self._raise_errors()
        return choice.algorithm

    def least(self, value: int) -> int:
        """The least value of all processes that share in the case."""
        return value

    def _reserve_buffers(self) -> None:
        for group in self.groups:
            for rank in group.ranks:
                group.reserve_buffer(rank, self._layout[rank].total_bytes)

    def _work_addresses(self) -> dict[int, int]:
        return {rank: at for group in self.groups for rank, at in group.work.items()}

    def _buffer_addresses(self) -> dict[int, int]:
        return {rank: at for group in self.groups for rank, at in group.buffers.items()}

    def _ring_orders(self) -> tuple[tuple[int, ...], ...]:
        """Rings that the links between these GPUs suggest; looked up once."""
        if self._orders is None:
            self._orders = () if self.flags else found_orders(self.groups)
        return self._orders

    def finish(self) -> None:
        """Give large buffers back; graphs belong to the case."""
        for group in self.groups:
            group.forget_graphs()
        if max(one.total_bytes for one in self._layout) > KEEP_BYTES:
            self._release_buffers()
        self.say(Activity.IDLE)

    def _release_buffers(self) -> None:
        for group in self.groups:
            group.release_buffers()

    def close(self) -> None:
        """Give everything back."""
        for group in self.groups:
            group.close()

    # -- ccbench.measure.Endpoint ----------------------------------------------------------------------------

    def _places(self) -> Iterator[tuple[Group, int, int, RankBuffers]]:
        """(group, rank, address of its buffers, where they are in it) of every rank."""
        for group in self.groups:
            for rank in group.ranks:
                yield group, rank, group.buffers[rank], self._layout[rank]

    def refill(self, salt: int) -> None:
        """Fill every rank's input with the data of ``salt``."""
        for group, rank, at, one in self._places():
            period = input_period(self._case, rank, one.input_bytes, salt)
            group.write_repeated(at + one.input_offset, one.input_bytes, period)

    def poison(self) -> None:
        """Make every rank's output wrong everywhere."""
        for group, _, at, one in self._places():
            group.set_bytes(at + one.output_offset, POISON_BYTE, one.output_bytes)

    def launch(self, times: int) -> None:
        """Run the collective ``times`` times and wait for the end."""
        for _, fault in self._faults:
            if fault.kind == "slow":
                fault.before_sample()
        began = time.perf_counter()
        if self._case.mode in ALONE:
            self._device_seconds = sum(self._alone() for _ in range(times))
        else:
            self._device_seconds = self._in_a_row(times)
        self._host_seconds.append((time.perf_counter() - began) / times)

    def launch_and_time_waits(self, times: int) -> float:
        """As ``launch``; one process waits for nobody."""
        self.launch(times)
        self._raise_errors()
        return 0.0

    def _alone(self) -> float:
        if self._case.mode == "cold":
            for group in self.groups:
                group.flush_cache()
            self._finish_launches()
        return self._between_events(1, graph=False)

    def _in_a_row(self, times: int) -> float:
        return self._between_events(times, graph=self._case.mode == "graph")

    def _between_events(self, times: int, graph: bool) -> float:
        sizes = graph_sizes(times) if graph else ()
        for group in self.groups:
            for size in dict.fromkeys(sizes):
                group.graph(size)  # made before the clock starts
        for group in self.groups:
            group.begin()
        for size in sizes:
            for group in self.groups:
                group.launch_graph(size)
        # One launch on each device in turn: each waits for the others', so no queue may run ahead.
        for _ in range(0 if graph else times):
            for group in self.groups:
                group.launch()
        for group in self.groups:
            group.end()
        self._finish_launches()
        return max(group.elapsed_seconds() for group in self.groups)

    def _finish_launches(self) -> None:
        for group in self.groups:
            group.synchronize()

    def _raise_errors(self) -> None:
        given_up = [one for group in self.groups for one in group.errors(self.areas)]
        if given_up:
            for group in self.groups:
                group.zero_work(self.areas)
            raise failure(self._case, given_up)

    def watch(self, sample: int) -> None:
        """Tell the watchdog which sample is next; the one before must have gone well."""
        self._raise_errors()
        super().watch(sample)

    def check(self, salt: int, launches: int) -> Mismatch | None:
        """Compare every rank's output with what is right."""
        self._raise_errors()
        if not moves_data(self._case):
            return None
        return self.checked(self._case, self.outputs(), salt, launches)

    def outputs(self) -> Iterator[tuple[int, Array]]:
        """Every rank's output on the host, one at a time in the same memory."""
        dtype = numpy_dtype(self._case.dtype)
        largest = max(one.output_bytes for one in self._layout)
        memory: Array = np.empty(largest, np.uint8)
        for group, rank, at, one in self._places():
            part = memory[: one.output_bytes]
            group.read(at + one.output_offset, part)
            yield rank, part.view(dtype)


class CudaEndpoint(CudaRanks):
    """All ranks of a team; also ``ccbench.measure.DeviceTimed``.

    Ranks are spread over the devices that the process sees, or the first ``devices`` of them, neighbours
    together.
    """

    def __init__(
        self,
        control: Control,
        ranks: int,
        cuda: Cuda,
        *,
        devices: int | None = None,
        limit_seconds: float = LIMIT_SECONDS,
    ) -> None:
        shares = ranks_of_devices(ranks, min(device_count(cuda), devices or ranks))
        cuda.enable_peers(range(len(shares)))
        groups = [Group(cuda, cuda.facts(device), share) for device, share in enumerate(shares)]
        processors = min(group.facts.processors for group in groups)
        super().__init__(control, groups, shares, processors, limit_seconds)

    def device_seconds(self) -> float:
        """What the last ``launch`` took by the devices' clocks: the longest of them."""
        return self._device_seconds

    def remark(self) -> str:
        """The host's time of a launch: what is stored is the devices'."""
        if not self._host_seconds:
            return ""
        host = format_seconds(statistics.median(self._host_seconds))
        return f"device time (events); launch and wait take the host {host}"


def graph_sizes(launches: int) -> tuple[int, ...]:
    """How many launches each of the graphs has that together make ``launches``."""
    whole, rest = divmod(launches, GRAPH_LAUNCHES)
    return (GRAPH_LAUNCHES,) * whole + ((rest,) if rest else ())


def found_orders(groups: Sequence[Group]) -> tuple[tuple[int, ...], ...]:
    """Rings for one rank per device, from what the system shows of the links between them."""
    from ccbench.topology.detection import detect

    topology = detect()
    names = {gpu.bus_id.lower(): gpu.name for gpu in topology.gpus if gpu.bus_id}
    devices = [names.get(group.facts.bus_id.lower(), "") for group in groups]
    return topology_orders(topology, devices) if all(devices) and len(devices) > 1 else ()
