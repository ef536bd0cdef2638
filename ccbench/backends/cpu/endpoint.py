"""One rank of the CPU backend: its buffers in the ranks' arenas, its programs, its barrier."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ccbench.backends.base import OutOfMemory
from ccbench.backends.control_block import Activity, Control, Word
from ccbench.backends.cpu.arena import Arena
from ccbench.backends.cpu.execution import (
    Buffers,
    ConcurrentLauncher,
    InactiveLauncher,
    Program,
    ProgramLauncher,
    Waiter,
    while_computing,
)
from ccbench.backends.cpu.price import LaunchWork, Probe, is_priced, launch_of, longest_path
from ccbench.backends.cpu.program import CompiledCase, compile_case
from ccbench.backends.endpoint import WorkerGroup, merged_mismatch
from ccbench.backends.overlap import HostComputation
from ccbench.backends.rank_endpoint import (
    MEMORY_SHARE,
    PAGE_BYTES,
    STAGGER_BYTES,
    Lane,
    LaneEndpoint,
    LaneTimes,
    group_facts,
)
from ccbench.cases.axes import DEFAULT, UNEVEN, Case
from ccbench.cases.measurement import CaseFacts
from ccbench.collectives import collective, sent_elements
from ccbench.dtypes import item_bytes, numpy_dtype
from ccbench.machine.host import available_memory_bytes, usable_cores
from ccbench.model.rank_subset import schedule_of
from ccbench.schedules.placement import Amounts, SlotLayout, SlotPlace, Space
from ccbench.verification import Array, Mismatch, poison

ONE_SHOT_LIMIT_BYTES = 32 * 1024
"""Up to here one synchronisation less is worth reading every buffer whole (docs/design.md)."""


def default_algorithm(collective: str, size_bytes: int) -> str:
    """Return what ``default`` stands for.

    In shared memory every rank reaches every other at the same cost, so direct schedules win.
    """
    if collective == "all_reduce":
        return "one_shot" if size_bytes <= ONE_SHOT_LIMIT_BYTES else "two_shot"
    return {"send_recv": "shift", "barrier": "dissemination"}.get(collective, "direct")


def amounts_of(case: Case) -> Amounts:
    """Return sizes of uneven blocks, [source][target]; () where all are of one size."""
    if case.collective != UNEVEN or not case.traffic:
        return ()
    return tuple(map(tuple, sent_elements(case.traffic, case.count, case.group_ranks).tolist()))


@dataclass(frozen=True)
class ArenaPlan:
    """Places of one rank's buffers in its arena: elements and byte offsets by space, and their end."""

    elements: tuple[int, ...]
    offsets: tuple[int, ...]
    end_bytes: int


class CpuLane(Lane):
    """A lane whose buffers other ranks map too; launcher: runs its program, once memory is bound."""

    def __post_init__(self) -> None:
        super().__post_init__()
        case = self.case
        default = default_algorithm(case.collective, case.size_bytes)
        schedule = schedule_of(case, default if case.algorithm == DEFAULT else case.algorithm)
        self.layout = SlotLayout(schedule, case.count, case.in_place, amounts_of(case))
        self.launcher: ProgramLauncher | InactiveLauncher | None = None
        self._whole_output = self.output

    @property
    def label(self) -> str:
        """Name of the algorithm that runs, as a suite would write it."""
        schedule = self.layout.schedule
        return (
            f"{schedule.algorithm}:{schedule.parameter}"
            if schedule.parameter
            else schedule.algorithm
        )

    def plans(self, compiled: CompiledCase, begin_bytes: int) -> list[ArenaPlan]:
        """Return the buffers of every rank of a group, from ``begin_bytes`` of their ranks' arenas on."""
        size = item_bytes(self.case.dtype)
        plans = []
        for group_rank, work in enumerate(compiled.work_elements):
            own = [
                self.layout.buffer_elements(group_rank, space)
                for space in (Space.INPUT, Space.OUTPUT)
            ]
            offsets, end = list[int](), begin_bytes
            # Each buffer begins at a page of its own, and staggered in it.
            for number, count in enumerate((*own, work)):
                offsets.append(-(-end // PAGE_BYTES) * PAGE_BYTES + number * STAGGER_BYTES)
                end = offsets[-1] + count * size
            plans.append(ArenaPlan((*own, work), tuple(offsets), end))
        return plans

    def bind(
        self,
        compiled: CompiledCase,
        plans: list[ArenaPlan],
        arenas: list[Arena],
        control: Control,
        waiter: Waiter,
    ) -> None:
        """Map the buffers of this rank's group, and bind its program to them."""
        if self.part is None:
            self.launcher = InactiveLauncher(self.rank, compiled.stride, control, waiter)
            return
        dtype = numpy_dtype(self.case.dtype)
        buffers: Buffers = {
            (group_rank, space): arenas[rank].view(
                plan.offsets[space], plan.elements[space], dtype
            )
            for group_rank, (rank, plan) in enumerate(
                zip(self.part.members, plans, strict=True)
            )
            for space in Space
        }
        group_rank = self.part.group_rank
        self._whole_output = buffers[(group_rank, Space.OUTPUT)]
        self.input = _span(buffers, self.layout.input_places(group_rank))
        self.output = _span(buffers, self.layout.output_places(group_rank))
        waits = self.fault is None or self.fault.kind != "unsynchronised"
        self.launcher = ProgramLauncher(
            compiled,
            group_rank,
            buffers,
            self.case.op,
            control,
            waiter,
            self.part.members,
            waits=waits,
        )

    def refill(self, seed: int, launches: int = 1) -> None:
        """Fill the input with the data of ``seed``."""
        if self.part:
            self.part.fill(self.input, seed + self.seed_offset, launches)

    def poison(self) -> None:
        """Make the output wrong everywhere."""
        poison(self._whole_output)

    def check(self, seed: int, launches: int, control: Control) -> Mismatch | None:
        """Compare the output with what is right."""
        if collective(self.case.collective).moves_data:
            return self.mismatch(self.output, seed, launches)
        # After a barrier every rank must have come as far as this one: each wrote its seed before.
        members = self.part.members if self.part else ()
        arrived = {rank: control.read(rank, Word.ARRIVED) for rank in members}
        late = [rank for rank, latest in arrived.items() if latest < seed]
        if not late:
            return None
        return Mismatch(
            self.rank, len(late), late[0], f"{arrived[late[0]]} (rank had not come)", str(seed)
        )


def _span(buffers: Buffers, places: list[SlotPlace]) -> Array:
    """Return neighbouring places of one buffer as one view."""
    if not places:
        return np.empty(0, np.uint8)
    first, last = places[0], places[-1]
    return buffers[(first.rank, first.space)][first.offset : last.offset + last.elements]


KEEP_BYTES = 512 << 20
"""Arenas larger than this are given back after the case; smaller ones save the next case page faults."""

PROGRAMS_KEPT = 512

PROBE_WINDOWS = 4
PROBE_ROUND_TRIPS = 50


class CpuEndpoint(LaneEndpoint[CpuLane]):
    """One rank on shared memory."""

    def __init__(
        self, rank: int, control: Control, arenas: list[Arena], cores: int, probe: Probe
    ) -> None:
        """cores: how many there are; ranks take them by turns, so that rank ``cores`` shares rank 0's."""
        super().__init__(control)
        self.rank, self.ranks = rank, control.ranks
        self.prefix = f"rank {rank}: "
        self._arenas = arenas
        self._cores = cores
        self._oversubscribed = self.ranks > cores
        # The second one's counters are those of the concurrent collective.
        self._waiters = tuple(
            Waiter(control, self._oversubscribed, word)
            for word in (Word.PROGRESS, Word.PROGRESS_CONCURRENT)
        )
        self._waiter = self._waiters[0]
        self._barriers = 0
        self._pings = 0
        self._held_bytes = 0
        self._probe, probe.rank = probe, rank
        self._computation: HostComputation | None = None
        self._compile = lru_cache(maxsize=PROGRAMS_KEPT)(compile_case)
        self._forget()

    def _forget(self) -> None:
        self._lanes, self.times = (), None
        self._priced: LaunchWork | None = None
        self._launcher: Program | ConcurrentLauncher | None = None

    # -- one case ------------------------------------------------------------------------------------

    def prepare(self, case: Case) -> str:
        """Compile, reserve and map memory; returns the algorithm that runs. Collective.

        Raises OutOfMemory (on every rank alike) and ScheduleError.
        """
        self.open_lanes(CpuLane, case)
        self._waiter.stands_by = all(lane.part is None for lane in self._lanes)
        # Of few ranks that communicate while the others sleep, each may well have a core of its own.
        at_work = case.communicating_ranks
        for waiter in self._waiters:
            waiter.crowded(len({rank % self._cores for rank in at_work}) < len(at_work))
        # A case comes in every round, and is compiled once.
        compiled = [self._compile(lane.layout) for lane in self._lanes]
        self._map(compiled)
        self._priced = launch_of(compiled[0], case) if is_priced(case) else None
        launchers = [lane.launcher for lane in self._lanes if lane.launcher]
        self._launcher, self.times = launchers[0], None
        if len(launchers) > 1:
            self.times = LaneTimes(self.control.part_seconds[self.rank])
            self._launcher = ConcurrentLauncher(launchers, self._waiter, self.times.running)
        if not case.overlap_with:
            self._computation = None
        return self._lanes[0].label

    def _map(self, compiled: list[CompiledCase]) -> None:
        """Reserve this rank's buffers and map those of its groups; a concurrent collective's lie behind."""
        plans: list[list[ArenaPlan]] = []
        needed = begin = 0
        for lane, program in zip(self._lanes, compiled, strict=True):
            plans.append(lane.plans(program, begin))
            needed += sum(plan.end_bytes - begin for plan in plans[-1]) * len(lane.case.members)
            begin = -(-max(plan.end_bytes for plan in plans[-1]) // PAGE_BYTES) * PAGE_BYTES
        self.refuse_too_much(needed)
        for lane, planned in zip(self._lanes, plans, strict=True):
            if lane.part:
                self._arenas[self.rank].reserve(planned[lane.part.group_rank].end_bytes)
        # Nobody maps an arena before its owner has made it large enough.
        self.barrier()
        for lane, program, planned, waiter in zip(
            self._lanes, compiled, plans, self._waiters, strict=False
        ):
            lane.bind(program, planned, self._arenas, self.control, waiter)

    def refuse_too_much(self, needed_bytes: int) -> None:
        """OutOfMemory on every rank alike where all ranks together need more than there is. Collective."""
        if needed_bytes <= self._held_bytes:
            return  # files of the kernel take longer to read than a small case takes
        available = available_memory_bytes()
        limit = (
            1 << 62 if available is None else int(available * MEMORY_SHARE) + self._held_bytes
        )
        limit = self.agree(limit)
        if needed_bytes > limit:
            raise OutOfMemory(
                f"{self.ranks} ranks need {needed_bytes} bytes, {limit} are available"
            )
        self._held_bytes = needed_bytes

    def finish(self) -> None:
        """Drop the case's views; give large arenas back. Collective."""
        # Views must go before the mapping does.
        self._forget()
        if self._held_bytes > KEEP_BYTES:
            for arena in self._arenas:
                arena.release()
            self._probe.release()
            self.barrier()
            self._arenas[self.rank].shrink()
            self._probe.shrink()
            self._held_bytes = 0
        self.barrier()
        self.say(Activity.IDLE)

    # -- Endpoint ------------------------------------------------------------------------------------------

    def refill(self, seed: int, launches: int = 1) -> None:
        """Fill this rank's input with the data of ``seed``."""
        super().refill(seed, launches)
        self.control.words[self.control.index(self.rank, Word.ARRIVED)] = seed

    def launch(self, times: int) -> None:
        """Run the collective ``times`` times, back to back."""
        self._launch(times, time_waits=False)

    def launch_and_time_waits(self, times: int) -> float:
        """Launch; return the seconds of it that this rank waited for its peers."""
        for waiter in self._waiters:
            waiter.waited_seconds = 0.0
        self._launch(times, time_waits=True)
        return self._waiter.waited_seconds

    def _launch(self, times: int, time_waits: bool) -> None:
        launcher = self._launcher
        assert launcher is not None, "a case is prepared"
        if self.times:
            self.times.begin()
        if any(fault.slow for _, fault in self._faults):
            for _ in range(times):
                self._be_late()
                launcher.launch(1, time_waits)
        else:
            launcher.launch(times, time_waits)
        if self.times:
            self.times.keep(times)

    def _be_late(self, launches: int = 1) -> None:
        for _, fault in self._faults:
            fault.before_launches(launches)

    # -- Overlapping ---------------------------------------------------------------------------------------

    def prepare_computing(self, kind: str) -> None:
        """Get ready for ``matmul`` or ``memory``."""
        self._computation = HostComputation(kind)

    def compute(self, repetitions: int) -> None:
        """Run the computation alone, to its end."""
        assert self._computation is not None, "it is prepared"
        self._computation.run(repetitions)

    def launch_while_computing(self, launches: int, repetitions: int) -> tuple[float, float]:
        """Run both at once; between repetitions what can go on of the collective goes on."""
        assert self._computation is not None, "it is prepared"
        assert self._launcher is not None, "a case is prepared"
        began = time.perf_counter()
        self._be_late(launches)
        late = time.perf_counter() - began
        computed, communicated = while_computing(
            self._launcher, self._computation.once, launches, repetitions, self._waiter
        )
        return late + computed, late + communicated

    def barrier(self) -> None:
        """Return when all ranks' barrier counters have reached the same number."""
        self._barriers += 1
        self._waiter.meet(self.rank, self._barriers)

    def agree(self, value: int) -> int:
        """Return rank 0's value, on every rank."""
        control = self.control
        if self.rank == 0:
            control.words[control.index(0, Word.DECISION)] = value
        self.barrier()
        agreed = control.read(0, Word.DECISION)
        # Rank 0 may not decide anew before all have read.
        self.barrier()
        return agreed

    def check(self, seed: int, launches: int) -> Mismatch | None:
        """Compare this rank's outputs with what is right."""
        self.say(Activity.CHECKING)
        return merged_mismatch(
            [lane.check(seed, launches, self.control) for lane in self._lanes]
        )

    # -- around a case ---------------------------------------------------------------------------------

    def facts(self) -> CaseFacts:
        """Return what each of two collectives took, for the rank that speaks for all."""
        if self.rank or not self.times:
            return CaseFacts()
        return group_facts(self.case, self.control.part_seconds[:, : self.times.samples])

    def costs(self) -> tuple[float, ...]:
        """Return what the parts of a launch cost now, () where no price is made of them. Collective."""
        if self._priced is None:
            return ()
        case = self._lanes[0].case
        return self._probe.costs(case, self._priced, self._oversubscribed)

    def path(self, windows: Sequence[Sequence[float]]) -> tuple[float, ...]:
        """Return how often a launch pays each of the costs, along the way that is longest by ``windows``."""
        if self._priced is None:
            return ()
        costs = np.min(np.array(windows), axis=0)
        return tuple(longest_path(self._priced, costs).tolist())

    def core_latency_seconds(self) -> float | None:
        """Return half a flag's best round trip between ranks 0 and 1. Collective.

        None where they share a core.
        """
        if self.ranks < 2 or self._oversubscribed:
            return None
        self.barrier()
        best = float("inf")
        if self.rank < 2:
            words, until = self.control.words, self._waiter.until
            mine, theirs = (
                self.control.index(r, Word.PING) for r in (self.rank, 1 - self.rank)
            )
            # The best of some windows: whatever else runs can only lengthen a round trip.
            for _ in range(PROBE_WINDOWS):
                began = time.perf_counter()
                for _ in range(PROBE_ROUND_TRIPS):
                    self._pings += 1
                    if self.rank == 0:
                        words[mine] = self._pings
                        until(theirs, self._pings)
                    else:
                        until(theirs, self._pings)
                        words[mine] = self._pings
                best = min(best, (time.perf_counter() - began) / PROBE_ROUND_TRIPS / 2)
        self.barrier()
        return best if self.rank == 0 else None


class CpuWorkerGroup(WorkerGroup):
    """A process for each rank, arenas and control words shared."""

    pinned = True

    def __init__(self, ranks: int, sample_capacity: int) -> None:
        super().__init__(ranks, sample_capacity)
        self._cores = usable_cores()
        self.oversubscribed = ranks > self._cores
        self._arenas = [Arena() for _ in range(ranks)]
        self._probe = Probe(ranks)

    def endpoint(self, process: int) -> CpuEndpoint:
        """Return the endpoint of rank ``process``."""
        return CpuEndpoint(process, self.control, self._arenas, self._cores, self._probe)
