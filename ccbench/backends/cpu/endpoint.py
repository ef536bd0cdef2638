"""One rank of the CPU backend: its buffers, its program, its barrier."""

from __future__ import annotations

import time

from ccbench.backends.base import OutOfMemory
from ccbench.backends.cpu.execution import Bystander, Launcher, Pace
from ccbench.backends.cpu.memory import PAGE_BYTES, Activity, Arena, Control, Word, fence
from ccbench.backends.cpu.program import CompiledCase, compile_case
from ccbench.backends.cpu.side import Plan, Side, sides_of
from ccbench.backends.cpu.together import Together, while_computing
from ccbench.backends.endpoint import TeamEndpoint, WorkerGroup, merged_mismatch
from ccbench.backends.overlap import OnProcessors
from ccbench.backends.rank_buffers import MEMORY_SHARE, group_names, group_samples, in_the_concurrent
from ccbench.cases import Case, CaseFacts
from ccbench.machine.host import available_memory_bytes, usable_cores
from ccbench.schedules.placement import Layout
from ccbench.verification import Mismatch

KEEP_BYTES = 512 << 20
"""Arenas larger than this are given back after the case; smaller ones save the next case page faults."""

PROGRAMS_KEPT = 512

NO_SAMPLE = -1
"""What runs is no sample: it warms up, or is adversarial."""

PROBE_WINDOWS = 4
PROBE_ROUND_TRIPS = 50


class CpuEndpoint(OnProcessors, TeamEndpoint):
    """Implements ``ccbench.backends.endpoint.TeamEndpoint`` on shared memory."""

    def __init__(self, rank: int, control: Control, arenas: list[Arena], cores: int) -> None:
        """cores: how many there are; ranks take them by turns, so that rank ``cores`` shares rank 0's."""
        super().__init__(control)
        self.rank, self.ranks = rank, control.ranks
        self.prefix = f"rank {rank}: "
        self._arenas = arenas
        # The second one's counters are those of what runs beside.
        self._cores = cores
        self._oversubscribed = self.ranks > cores
        self._paces = tuple(
            Pace(control, self._oversubscribed, word) for word in (Word.PROGRESS, Word.PROGRESS_BESIDE)
        )
        self._pace = self._paces[0]
        self._barriers = 0
        self._pings = 0
        self._held_bytes = 0
        self._programs: dict[tuple[Layout, int | None], CompiledCase] = {}
        self._sides: tuple[Side, ...] = ()
        self._program: Launcher | Bystander | None = None
        self._together: Together | None = None
        self._samples, self._sample = 0, NO_SAMPLE

    # -- one case ------------------------------------------------------------------------------------

    def prepare(self, case: Case) -> str:
        """Compile, reserve and map memory; returns the algorithm that runs. Collective.

        Raises OutOfMemory (on every rank alike) and ScheduleError.
        """
        self.say(Activity.PREPARING)
        self._case = case
        self._sides = sides_of(case, self.rank, self._any_fault)
        self._faults = [(self.rank, side.fault) for side in self._sides if side.fault][:1]
        self._pace.stands_by = all(side.part is None for side in self._sides)
        # Of few ranks that communicate while the others sleep, each may well have a core of its own.
        at_work = case.communicating_ranks
        for pace in self._paces:
            pace.crowded(len({rank % self._cores for rank in at_work}) < len(at_work))
        self._map([self._compiled(side) for side in self._sides])
        launchers = [side.launcher for side in self._sides if side.launcher]
        self._program = launchers[0]
        self._together = Together(launchers, self._pace) if len(launchers) > 1 else None
        self._samples, self._sample = 0, NO_SAMPLE
        if not case.overlap_with:
            self._computation = None
        return self._sides[0].label

    def _compiled(self, side: Side) -> CompiledCase:
        """This rank's program; a case is visited again and again, and compiled once."""
        key = side.layout, side.group_rank
        if key not in self._programs:
            if len(self._programs) >= PROGRAMS_KEPT:
                self._programs.clear()
            self._programs[key] = compile_case(
                side.layout, [] if side.group_rank is None else [side.group_rank]
            )
        return self._programs[key]

    def _map(self, compiled: list[CompiledCase]) -> None:
        """Reserve this rank's buffers and map those of its groups; what runs beside has its own behind."""
        plans: list[list[Plan]] = []
        needed = begin = 0
        for side, program in zip(self._sides, compiled, strict=True):
            plans.append(side.plans(program, begin))
            needed += sum(plan.end_bytes - begin for plan in plans[-1]) * len(side.case.members)
            begin = -(-max(plan.end_bytes for plan in plans[-1]) // PAGE_BYTES) * PAGE_BYTES
        self._refuse_too_much(needed)
        for side, planned in zip(self._sides, plans, strict=True):
            if side.group_rank is not None:
                self._arenas[self.rank].reserve(planned[side.group_rank].end_bytes)
        self.barrier()
        for side, program, planned, pace in zip(self._sides, compiled, plans, self._paces, strict=False):
            side.bind(program, planned, self._arenas, self.control, pace)

    def _refuse_too_much(self, needed_bytes: int) -> None:
        if needed_bytes <= self._held_bytes:
            return  # files of the kernel take longer to read than a small case takes
        available = available_memory_bytes()
        limit = 1 << 62 if available is None else int(available * MEMORY_SHARE) + self._held_bytes
        limit = self.agree(limit)
        if needed_bytes > limit:
            raise OutOfMemory(f"needs {needed_bytes} bytes on {self.ranks} ranks, {limit} are to be had")
        self._held_bytes = max(self._held_bytes, needed_bytes)

    def finish(self) -> None:
        """Drop the case's views; give large arenas back. Collective."""
        # Views must go before the mapping does.
        self._sides = ()
        self._program = self._together = None
        if self._held_bytes > KEEP_BYTES:
            for arena in self._arenas:
                arena.release()
            self.barrier()
            self._arenas[self.rank].shrink()
            self._held_bytes = 0
        self.barrier()
        self.say(Activity.IDLE)

    # -- Endpoint ------------------------------------------------------------------------------------------

    def refill(self, seed: int, launches: int = 1) -> None:
        """Fill this rank's input with the data of ``seed``."""
        for side in self._sides:
            side.refill(seed, launches)
        self.control.words[self.control.index(self.rank, Word.ARRIVED)] = seed

    def poison(self) -> None:
        """Make the output wrong everywhere."""
        for side in self._sides:
            side.poison()

    def launch(self, times: int) -> None:
        """Run the collective ``times`` times, back to back."""
        self._launch(times, time_waits=False)

    def launch_and_time_waits(self, times: int) -> float:
        """As ``launch``; the seconds of it that this rank waited for others."""
        for pace in self._paces:
            pace.waited_seconds = 0.0
        self._launch(times, time_waits=True)
        return self._pace.waited_seconds

    def _launch(self, times: int, time_waits: bool) -> None:
        launcher = self._together or self._program
        assert launcher is not None, "a case is prepared"
        if any(fault.slow for _, fault in self._faults):
            for _ in range(times):
                self._be_late()
                launcher.launch(1, time_waits)
        else:
            launcher.launch(times, time_waits)
        if self._together:
            self._keep_parts(self._together, times)

    def _be_late(self, launches: int = 1) -> None:
        for _, fault in self._faults:
            fault.before_launches(launches)

    def _keep_parts(self, together: Together, launches: int) -> None:
        """Only what follows ``watch`` is a sample."""
        taken = together.taken(launches)
        if self._sample >= 0:
            self.control.part_seconds[self.rank, self._sample] = taken
        self._sample = NO_SAMPLE

    # -- Overlapping ---------------------------------------------------------------------------------------

    def launch_while_computing(self, launches: int, repetitions: int) -> tuple[float, float]:
        """Both at once; between repetitions what can go on of the collective goes on."""
        assert self._computation is not None, "it is prepared"
        program = self._together or self._program
        assert program is not None, "a case is prepared"
        began = time.perf_counter()
        self._be_late(launches)
        late = time.perf_counter() - began
        computed, communicated = while_computing(
            program, self._computation.once, launches, repetitions, self._pace
        )
        return late + computed, late + communicated

    def barrier(self) -> None:
        """All ranks' barrier counters reach the same number."""
        self._barriers += 1
        control, goal = self.control, self._barriers
        fence()
        control.words[control.index(self.rank, Word.BARRIER)] = goal
        for step in range(1, self.ranks):
            peer = (self.rank + step) % self.ranks
            self._pace.until(control.index(peer, Word.BARRIER), goal)

    def agree(self, value: int) -> int:
        """Rank 0's value, on every rank."""
        control = self.control
        if self.rank == 0:
            control.words[control.index(0, Word.DECISION)] = value
        self.barrier()
        agreed = control.read(0, Word.DECISION)
        self.barrier()
        return agreed

    def check(self, seed: int, launches: int) -> Mismatch | None:
        """Compare this rank's outputs with what is right."""
        self.say(Activity.CHECKING)
        found = [side.check(seed, launches, self.control) for side in self._sides]
        if len(found) > 1 and found[1]:
            found[1] = in_the_concurrent(found[1], self._sides[1].case)
        return merged_mismatch(found)

    def watch(self, sample: int) -> None:
        """Tell the watchdog which sample is next (negative: warming up)."""
        self._sample = sample
        self._samples = max(self._samples, sample + 1)
        super().watch(sample)

    # -- around a case ---------------------------------------------------------------------------------

    def facts(self) -> CaseFacts:
        """What each of two collectives took, for the rank that speaks for all; else samples say it all."""
        if self.rank or not self._case.concurrent:
            return CaseFacts()
        seconds = self.control.part_seconds[:, : self._samples]
        return CaseFacts(
            parts=group_names(self._case), group_samples_seconds=group_samples(self._case, seconds)
        )

    def core_latency_seconds(self) -> float | None:
        """Half a flag's best round trip between ranks 0 and 1, None where they share a core. Collective."""
        if self.ranks < 2 or self._oversubscribed:
            return None
        self.barrier()
        best = float("inf")
        if self.rank < 2:
            words, until = self.control.words, self._pace.until
            mine, other = (self.control.index(r, Word.PING) for r in (self.rank, 1 - self.rank))
            for _ in range(PROBE_WINDOWS):
                began = time.perf_counter()
                for _ in range(PROBE_ROUND_TRIPS):
                    self._pings += 1
                    if self.rank == 0:
                        words[mine] = self._pings
                        until(other, self._pings)
                    else:
                        until(other, self._pings)
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

    def endpoint(self, process: int) -> CpuEndpoint:
        """The endpoint of rank ``process``."""
        return CpuEndpoint(process, self.control, self._arenas, self._cores)
