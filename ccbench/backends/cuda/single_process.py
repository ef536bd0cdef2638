"""All ranks of a team driven by one process: what the worker of ``cuda`` measures with.

The groups of a case are worlds of their own: streams, flags, counters and slots that no other group's kernels
ever touch, so that they run at once. Ranks of several groups on one device share its multiprocessors evenly,
whether their groups run at once or one alone, so that both are measured on the same channels.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from ccbench.backends.base import OutOfMemory
from ccbench.backends.control_block import Activity, Control
from ccbench.backends.cuda.blocking_kernel import BlockingKernel, refuse_launch_blocking
from ccbench.backends.cuda.context import DeviceContext, DeviceOutput
from ccbench.backends.cuda.endpoint import LIMIT_SECONDS, CudaRanks
from ccbench.backends.cuda.runtime import Cuda, device_count, do_all, open_cuda, starting
from ccbench.backends.endpoint import SingleProcessGroup
from ccbench.backends.kernels.abi import GivenUp
from ccbench.backends.kernels.layout import device_of_rank, ranks_of_devices
from ccbench.cases.axes import ALL_GROUPS, Case
from ccbench.cases.measurement import CaseFacts
from ccbench.groups import format_ranks, parse_groups
from ccbench.machine.telemetry import DeviceWatch
from ccbench.verification import GROUP_SEEDS


class GroupRanks(CudaRanks):
    """The members of one group, who count from 0 and know only each other's memory."""

    def ready_blocking_kernel(self) -> None:
        """The endpoint of all ranks launches, and has it."""


class CudaEndpoint(CudaRanks):
    """All ranks of a team; also ``ccbench.backends.endpoint.DeviceTimed``.

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
        used = range(len(shares))
        refuse_launch_blocking(len(used))
        no_access = cuda.pair_without_access(used) or cuda.enable_peers(used)
        self._cuda = cuda
        self._shares = shares
        contexts = [
            DeviceContext(cuda, cuda.facts(device), share)
            for device, share in enumerate(shares)
        ]
        processors = min(context.facts.processors for context in contexts)
        super().__init__(control, contexts, shares, processors, limit_seconds, no_access)
        self._grouping = ""
        self._worlds: tuple[GroupRanks, ...] = ()
        self._active: tuple[GroupRanks, ...] = ()
        self._sample, self._times = -1, 1
        self._seconds_of_groups: list[float] = []
        self._samples: dict[int, tuple[float, ...]] = {}

    # -- groups ----------------------------------------------------------------------------------------------

    def prepare(self, case: Case) -> str:
        """Prepare every group of the case by itself.

        Without enough memory everything that earlier cases left is given back, for a second try; and so is
        what the first ranks got when that fails too.
        """
        with suppress(OutOfMemory):
            return self._prepared(case)
        self.release_buffers()
        try:
            return self._prepared(case)
        except OutOfMemory:
            self.release_buffers()
            raise

    def _prepared(self, case: Case) -> str:
        self._samples = {}
        self._active = ()
        if not case.groups:
            return super().prepare(case)
        self.say(Activity.PREPARING)
        self.arm(case)
        self._host_seconds = []
        if case.groups != self._grouping:  # worlds of one expression are kept
            self._close_worlds()
            made = [self._world(members) for members in parse_groups(case.groups, case.ranks)]
            self._grouping, self._worlds = case.groups, tuple(made)
        worlds = self._worlds
        self._active = (
            worlds if case.active_group == ALL_GROUPS else (worlds[case.active_group],)
        )
        group_case = replace(case, ranks=case.group_ranks, groups="", active_group=ALL_GROUPS)
        algorithms = [world.prepare(group_case) for world in self._active]
        self.ready_blocking_kernel()
        return algorithms[0]

    def release_buffers(self) -> None:
        """Release the buffers, those of the groups too."""
        do_all([super().release_buffers, *(world.release_buffers for world in self._worlds)])

    def _world(self, members: Sequence[int]) -> GroupRanks:
        contexts = []
        # A device's multiprocessors are shared evenly by all ranks on it, whichever groups run.
        for device, places in runs(members, self._shares):
            facts, all_here = self.contexts[device].facts, len(self._shares[device])
            share = replace(facts, processors=facts.processors * len(places) // all_here)
            contexts.append(DeviceContext(self._cuda, share, places))
        # Divided by the ranks of the fullest device again, this leaves each rank what the scarcest has.
        of_one = min(context.facts.processors // len(context.ranks) for context in contexts)
        processors = of_one * max(len(context.ranks) for context in contexts)
        shares, limit = [context.ranks for context in contexts], self._limit_seconds
        made = GroupRanks(self.control, contexts, shares, processors, limit, self._no_access)
        made.members = tuple(members)
        # All groups' slots lie in one L2 cache.
        slot_bytes = min(made.areas.slot_bytes, self.areas.slot_bytes)
        made.areas = replace(made.areas, slot_bytes=slot_bytes)
        made.devices = DeviceWatch([])  # the endpoint of all ranks looks at them
        return made

    def _close_worlds(self) -> None:
        worlds, self._worlds, self._active, self._grouping = self._worlds, (), (), ""
        do_all([world.close for world in worlds])

    # Without groups all ranks are one world, this endpoint; what each world does then stands in CudaRanks.

    @property
    def _here(self) -> Sequence[CudaRanks]:
        return self._active or (self,)

    @property
    def launched(self) -> Sequence[DeviceContext]:
        """Contexts that take part in the case, on every device and of every group."""
        return [context for world in self._here for context in world.contexts]

    def given_up(self) -> list[GivenUp]:
        """Waits that lasted too long, with ranks by their numbers in the team."""
        return [
            error.among(world.members)
            for world in self._here
            for error in CudaRanks.given_up(world)
        ]

    def zero(self) -> None:
        """Forget all launches of all groups."""
        for world in self._here:
            CudaRanks.zero(world)

    def refill(self, seed: int, launches: int = 1) -> None:
        """Fill every rank's input; groups have different data, so that what strays is seen."""
        for number, world in enumerate(self._here):
            CudaRanks.refill(world, seed + number * GROUP_SEEDS, launches)

    def poison(self) -> None:
        """Make every rank's output wrong everywhere."""
        for world in self._here:
            CudaRanks.poison(world)

    def outputs(self) -> Iterator[tuple[int, DeviceOutput]]:
        """Every rank's output, by its number in the team."""
        for world in self._here:
            for place, output in CudaRanks.outputs(world):
                yield world.members[place], output

    def finish(self) -> None:
        """Give large buffers back; graphs belong to the case."""
        for world in self._here:
            CudaRanks.finish(world)

    # -- time ------------------------------------------------------------------------------------------------

    def begin_sample(self, sample: int) -> None:
        """Tell the watchdog which sample is next; the one before must have gone well."""
        self._sample = sample
        super().begin_sample(sample)

    def launch(self, times: int) -> None:
        """Run the collective ``times`` times, in all groups at once, and wait for the end."""
        self._times = times
        self._seconds_of_groups = [0.0] * len(self._active)
        super().launch(times)

    def between_events(self, times: int, mode: str, kernel: BlockingKernel | None) -> float:
        """Launch between events, and keep each group's time."""
        seconds = super().between_events(times, mode, kernel)
        for number, world in enumerate(self._active):
            self._seconds_of_groups[number] += max(
                context.elapsed_seconds() for context in world.contexts
            )
        return seconds

    def device_seconds(self) -> float:
        """Return the devices' time, and keep each group's in the sample."""
        if self._sample >= 0:
            self._samples[self._sample] = tuple(
                group / self._times for group in self._seconds_of_groups
            )
        return super().device_seconds()

    @property
    def fallen_back(self) -> bool:
        """Return whether any of the groups goes through the host's memory unasked."""
        return (
            any(world.fallen_back for world in self._active)
            if self._active
            else super().fallen_back
        )

    def facts(self) -> CaseFacts:
        """Return the facts of the case; of several groups, the time of each."""
        several = len(self._active) > 1
        rows = [self._samples[sample] for sample in sorted(self._samples)]
        return replace(
            super().facts(),
            channels_used=min(world.channels for world in self._here),
            parts=tuple(f"ranks {format_ranks(world.members)}" for world in self._active)
            if several
            else (),
            group_samples_seconds=tuple(zip(*rows, strict=True)) if several else (),
        )

    def close(self) -> None:
        """Give everything back, the groups too."""
        do_all([self._close_worlds, super().close])


def runs(members: Sequence[int], shares: Sequence[range]) -> list[tuple[int, range]]:
    """(device, places) of a group's members: neighbours in the group that are on one device, together.

    shares: the ranks of every device.
    """
    devices = [device_of_rank(shares, rank) for rank in members]
    places = itertools.groupby(range(len(members)), key=lambda place: devices[place])
    listed = [(device, list(group)) for device, group in places]
    return [(device, range(group[0], group[-1] + 1)) for device, group in listed]


class CudaWorkerGroup(SingleProcessGroup):
    """Implements ``ccbench.backends.endpoint.WorkerGroup``."""

    def endpoint(self, process: int) -> CudaEndpoint:
        """The one endpoint; CUDA starts here, in the process that uses it."""
        # Kernels of several groups wait for each other on one device. Streams that share a hardware queue, as
        # all do with the 1 that Megatron's scripts export, start one kernel when the one before has ended.
        os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "32"
        with starting():
            return CudaEndpoint(self.control, self.ranks, open_cuda())
