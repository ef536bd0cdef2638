"""The kernels for GPUs, run on a CPU by the engine in kernels/host: for tests, and for people without a GPU.

Results are real and checked like any other backend's. Times are of the emulation and mean nothing: every
measurement is flagged ``emulation``, and nothing follows from comparing them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ccbench.backends.base import Backend, OutOfMemory
from ccbench.backends.control_block import Activity, Control
from ccbench.backends.endpoint import (
    Result,
    SingleProcessEndpoint,
    SingleProcessGroup,
    merged_mismatch,
)
from ccbench.backends.kernels.building import Build, built, compiler
from ccbench.backends.kernels.host_engine import (
    HostCall,
    HostCommunicator,
    HostOptions,
    HostWorld,
    communicator_bytes,
)
from ccbench.backends.kernels.layout import (
    ALIGNMENT_BYTES,
    KernelBuffers,
    WorkAreas,
    all_buffers,
)
from ccbench.backends.kernels.sources import KernelChoice, choose, plan_for, unsupported
from ccbench.backends.kernels.traffic import blocks_for, traffic_of
from ccbench.cases.axes import NO_OP, NO_ROOT, Case
from ccbench.collectives import collective
from ccbench.dtypes import numpy_dtype
from ccbench.errors import MissingDependency
from ccbench.flags import Flag
from ccbench.machine.host import available_memory_bytes
from ccbench.verification import Array, Mismatch, Part, part_of, poison

CHANNELS = 2
SLOTS = 4
SLOT_BYTES = 16 << 10
PACKETS_BYTES = 1 << 20
STAGING_BYTES = 4 << 20
LANES = 8
"""Small, because every lane is a fiber; the protocols meet the same cases as on a device."""

SPARE_BYTES = 8 << 20
"""Room for plans, programs and tables of addresses."""

MEMORY_SHARE = 0.8


class EmulatedEndpoint(SingleProcessEndpoint):
    """Implements ``ccbench.backends.endpoint.TeamEndpoint`` on a HostWorld. outputs: of each rank."""

    flags = (Flag.EMULATION,)

    def __init__(self, control: Control, ranks: int) -> None:
        super().__init__(control)
        self._ranks = ranks
        self._room_bytes = 0
        self._world: HostWorld | None = None
        self._parts: dict[int, Part] = {}
        self._calls: list[HostCall] = []
        self._inputs: dict[int, Array] = {}
        self.outputs: dict[int, Array] = {}

    def prepare(self, case: Case) -> str:
        """Build the kernel, place the buffers; returns the algorithm that runs."""
        self.say(Activity.PREPARING)
        self.arm(case)
        parts = [part for rank in case.communicating_ranks if (part := part_of(case, rank))]
        self._parts = {part.members[part.group_rank]: part for part in parts}
        groups = {part.group: part for part in parts}.values()
        group_case = parts[0].case  # of every group, for they are all of one size
        choice = choose(group_case)
        self._build = Build(choice.entry.file)
        built(self._build)
        layout = all_buffers(group_case)
        needed = sum(buffers.total_bytes + ALIGNMENT_BYTES for buffers in layout)
        if (
            case.groups
        ):  # the communicator of all ranks is the world's, a group's takes room of its own
            areas = WorkAreas(
                group_case.ranks, CHANNELS, SLOTS, SLOT_BYTES, PACKETS_BYTES, STAGING_BYTES
            )
            needed += communicator_bytes(areas)
        world = self._roomy_world(len(groups) * needed)
        # ``finish`` gives back what is taken from here on; the communicator of all ranks stays.
        self._begin = world.used
        self._inputs, self.outputs = {}, {}
        # Groups have flags and counters of their own, so that what one does never counts in another.
        self._calls = [
            self._call(
                choice,
                group_case,
                world,
                world.communicator(group.members) if case.groups else None,
                layout,
            )
            for group in groups
        ]
        self._seed = 0
        return choice.algorithm

    def _call(
        self,
        choice: KernelChoice,
        case: Case,
        world: HostWorld,
        communicator: HostCommunicator | None,
        layout: tuple[KernelBuffers, ...],
    ) -> HostCall:
        """One group's launch, with its members' buffers. case: as the group sees it."""
        offsets = [
            world.allocate(max(buffers.total_bytes, ALIGNMENT_BYTES)) for buffers in layout
        ]
        members = communicator.members if communicator else tuple(range(case.ranks))
        dtype: np.dtype[np.generic] = numpy_dtype(case.dtype)
        inputs, outputs = list[int](), list[int]()
        for rank, at, buffers in zip(members, offsets, layout, strict=True):
            inputs.append(at + buffers.input_offset)
            outputs.append(at + buffers.output_offset)
            self._inputs[rank] = world.view(inputs[-1], buffers.input_bytes).view(dtype)
            self.outputs[rank] = world.view(outputs[-1], buffers.output_bytes).view(dtype)
        # As on a device small cases have one channel, so that both numbers are met.
        traffic = traffic_of(choice.algorithm, case.collective, case.ranks, case.size_bytes)
        channels = blocks_for(traffic, CHANNELS).channels
        root = 0 if case.root == NO_ROOT else case.root
        sizes = channels, root, case.size_bytes
        plan = plan_for(choice.entry.file, case.collective, case.ranks, *sizes, choice.schedule)
        return HostCall(
            entry=choice.entry.name,
            dtype=case.dtype,
            count=case.count,
            inputs=inputs,
            outputs=outputs,
            op="sum" if case.op == NO_OP else case.op,
            root=root,
            plan=plan.plan,
            program=plan.program,
            channels=channels,
            communicator=communicator,
        )

    def _roomy_world(self, needed_bytes: int) -> HostWorld:
        """The communicator, made anew where its memory is too small for the case."""
        if self._world is not None and needed_bytes <= self._room_bytes:
            return self._world
        # The old arena still counts as used; it goes before the new one is made.
        available = available_memory_bytes()
        if available is not None and needed_bytes > MEMORY_SHARE * available:
            raise OutOfMemory(
                f"needs {needed_bytes} bytes, {int(MEMORY_SHARE * available)} are available"
            )
        self._world = None
        self._room_bytes = max(needed_bytes, 1 << 20)
        self._world = HostWorld(
            self._ranks,
            CHANNELS,
            slots=SLOTS,
            slot_bytes=SLOT_BYTES,
            packets_bytes=PACKETS_BYTES,
            staging_bytes=STAGING_BYTES,
            spare_bytes=self._room_bytes + SPARE_BYTES,
        )
        return self._world

    def refill(self, seed: int, launches: int = 1) -> None:
        """Fill every rank's input with the data of ``seed``."""
        for rank, buffer in self._inputs.items():
            self._parts[rank].fill(buffer, seed, launches)

    def poison(self) -> None:
        """Make every rank's output wrong everywhere."""
        for buffer in self.outputs.values():
            poison(buffer)

    def launch(self, times: int) -> None:
        """Run the collective ``times`` times, the fibers in another order at every call."""
        assert self._world is not None
        # Lanes take turns in another order each time, so that a missing wait shows sooner or later.
        self._seed += 1
        for _, fault in self._faults:
            fault.before_launches(times)
        calls = [
            call if times == 1 else replace(call, iterations=times) for call in self._calls
        ]
        self._world.run(self._build, calls, HostOptions(lanes=LANES, seed=self._seed))

    def check(self, seed: int, launches: int) -> Mismatch | None:
        """Compare every rank's output with what is right."""
        if not collective(self._case.collective).moves_data:
            return None
        self.say(Activity.CHECKING)
        mismatches = []
        for rank, output in self.outputs.items():
            part = self._parts[rank]
            for place, fault in self._faults:
                if place == rank:
                    fault.spoil(output)
            mismatches.append(part.check(output, seed, launches))
        return merged_mismatch(mismatches)

    def results(self) -> Iterator[Result]:
        """Yield every rank's output."""
        yield from itertools.starmap(Result, self.outputs.items())

    def finish(self) -> None:
        """Give the buffers' room back; the communicator stays."""
        self._inputs, self.outputs = {}, {}
        if self._world is not None:
            self._world.free_after(self._begin)
        self.say(Activity.IDLE)


class EmulatedWorkerGroup(SingleProcessGroup):
    """Implements ``ccbench.backends.endpoint.WorkerGroup``."""

    def endpoint(self, process: int) -> EmulatedEndpoint:
        """The one endpoint."""
        return EmulatedEndpoint(self.control, self.ranks)


MOST_ELEMENTS = 1 << 24
"""Of one rank's largest buffer: an element takes tens of nanoseconds here."""


class CudaHostBackend(Backend):
    """Implements ``ccbench.backends.base.Backend``."""

    name = "cuda-host"

    def unavailable(self, elsewhere: bool = False) -> str | None:
        """Needs g++ and an x86-64 or arm64 system with fork."""
        try:
            compiler()
        except MissingDependency as error:
            return str(error).removeprefix("backend cuda-host: ")
        return None

    def version(self) -> str:
        """The compiler that the kernels are built with."""
        return f"emulation, {compiler()[1]}"

    def refused(self, case: Case) -> str | None:
        """Reason why ``case`` cannot run here."""
        if max(case.count, 1) > MOST_ELEMENTS:
            return f"a count of {case.count}: at most {MOST_ELEMENTS} elements are emulated"
        return unsupported(case)


BACKEND = CudaHostBackend()
