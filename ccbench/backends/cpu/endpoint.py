"""One rank of the CPU backend: its buffers, its program, its barrier."""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray

from ccbench.algorithms import parse_algorithm, schedule_for
from ccbench.algorithms.direct import one_way_send_recv
from ccbench.algorithms.layout import Layout, Place, Space
from ccbench.algorithms.schedule import Schedule
from ccbench.backends.base import OutOfMemory
from ccbench.backends.cpu.choice import default_algorithm
from ccbench.backends.cpu.execution import Buffers, Bystander, Launcher, Pace
from ccbench.backends.cpu.memory import Activity, Arena, Control, Word, buffer_offsets, fence
from ccbench.backends.cpu.program import CompiledCase, compile_case
from ccbench.cases import NO_ROOT, Case, CaseFacts
from ccbench.collectives import collective
from ccbench.dtypes import item_bytes, numpy_dtype
from ccbench.environment import available_memory_bytes
from ccbench.faults import Fault
from ccbench.verification import Array, Mismatch, Part, part_of, poison

KEEP_BYTES = 512 << 20
"""Arenas larger than this are given back after the case; smaller ones save the next case page faults."""

PROGRAMS_KEPT = 512

MEMORY_SHARE = 0.9
"""Of the available memory, what a case may take."""

PROBE_WINDOWS = 4
PROBE_ROUND_TRIPS = 50


def concrete_schedule(case: Case) -> Schedule:
    """The proven schedule that each group of a case runs, ``default`` resolved."""
    if case.one_pair and not case.one_pair.both:
        return one_way_send_recv()
    name = case.algorithm
    ranks = case.group_ranks
    if name == "default":
        name = default_algorithm(case.collective, case.size_bytes, ranks)
    algorithm, parameter = parse_algorithm(name)
    root = 0 if case.root == NO_ROOT else case.root
    return schedule_for(
        case.collective, algorithm, ranks, root=root, parameter=parameter, size_bytes=case.size_bytes
    )


def algorithm_label(schedule: Schedule) -> str:
    """``ring`` or ``chain:8``: what a suite would write to get this schedule."""
    return f"{schedule.algorithm}:{schedule.parameter}" if schedule.parameter else schedule.algorithm


def _span(buffers: Buffers, places: list[Place]) -> Array:
    """Neighbouring places of one buffer as one view."""
    if not places:
        return np.empty(0, np.uint8)
    first, last = places[0], places[-1]
    return buffers[(first.rank, first.space)][first.offset : last.offset + last.elements]


class CpuEndpoint:
    """Implements ``ccbench.backends.crew.TeamEndpoint`` on shared memory."""

    flags: tuple[str, ...] = ()

    def __init__(
        self, rank: int, control: Control, arenas: list[Arena], oversubscribed: bool, fault: Fault | None
    ) -> None:
        self.rank = rank
        self.ranks = control.ranks
        self.prefix = f"rank {rank}: "
        self.stamps: NDArray[np.float64] = control.stamps
        self.control = control
        self._arenas = arenas
        self._pace = Pace(control, oversubscribed)
        self._oversubscribed = oversubscribed
        self._any_fault = fault
        self._fault: Fault | None = None
        self._barriers = 0
        self._pings = 0
        self._held_bytes = 0
        self._cases = 0
        self._programs: dict[tuple[Layout, int | None], CompiledCase] = {}
        self._part: Part | None = None

    def next_salt(self) -> int:
        """A number that is new in every visit and the same on all ranks."""
        self._cases += 1
        return self._cases

    # -- one case ------------------------------------------------------------------------------------

    def prepare(self, case: Case) -> str:
        """Compile, reserve and map memory; returns the algorithm that runs. Collective.

        Raises OutOfMemory (on every rank alike) and ScheduleError.
        """
        self._say(Activity.PREPARING)
        self._case = case
        self._fault = (
            self._any_fault if self._any_fault and self._any_fault.matches(case, self.rank) else None
        )
        schedule = concrete_schedule(case)
        layout = Layout(schedule, case.count, case.in_place)
        self._part = part_of(case, self.rank)
        seat = self._part.seat if self._part else None
        compiled = self._compiled(layout, seat)
        buffers = self._map(compiled, case)
        self._pace.stands_by = seat is None
        self._input = self._output = self._whole_output = np.empty(0, np.uint8)
        if self._part is None or seat is None:
            self._launcher: Launcher | Bystander = Bystander(
                self.rank, compiled.stride, self.control, self._pace
            )
            return algorithm_label(schedule)
        self._whole_output = buffers[(seat, Space.OUTPUT)]
        self._input = _span(buffers, layout.input_places(seat))
        self._output = _span(buffers, layout.output_places(seat))
        waits = self._fault is None or self._fault.kind != "unsynchronised"
        self._launcher = Launcher(
            compiled, seat, buffers, case.op, self.control, self._pace, self._part.members, waits=waits
        )
        return algorithm_label(schedule)

    def _compiled(self, layout: Layout, seat: int | None) -> CompiledCase:
        """This rank's program; a case is visited again and again, and compiled once."""
        key = layout, seat
        if key not in self._programs:
            if len(self._programs) >= PROGRAMS_KEPT:
                self._programs.clear()
            self._programs[key] = compile_case(layout, [] if seat is None else [seat])
        return self._programs[key]

    def _map(self, compiled: CompiledCase, case: Case) -> Buffers:
        """Buffers of this rank's group, by the ranks' numbers in it; groups need equally much."""
        dtype = numpy_dtype(case.dtype)
        size = item_bytes(case.dtype)
        plans = []
        for rank in range(case.group_ranks):
            elements = [compiled.layout.buffer_elements(rank, space) for space in (Space.INPUT, Space.OUTPUT)]
            elements.append(compiled.work_elements[rank])
            offsets, end = buffer_offsets([count * size for count in elements])
            plans.append((elements, offsets, end))
        self._refuse_too_much(sum(end for _, _, end in plans) * len(case.members))
        if self._part:
            self._arenas[self.rank].reserve(plans[self._part.seat][2])
        self.barrier()
        if self._part is None:
            return {}
        return {
            (seat, space): self._arenas[rank].view(offsets[space], elements[space], dtype)
            for seat, (rank, (elements, offsets, _)) in enumerate(zip(self._part.members, plans, strict=True))
            for space in Space
        }

    def _refuse_too_much(self, needed_bytes: int) -> None:
        available = available_memory_bytes()
        limit = 1 << 62 if available is None else int(available * MEMORY_SHARE) + self._held_bytes
        limit = self.agree(limit)
        if needed_bytes > limit:
            raise OutOfMemory(f"needs {needed_bytes} bytes on {self.ranks} ranks, {limit} are to be had")
        self._held_bytes = max(self._held_bytes, needed_bytes)

    def finish(self) -> None:
        """Drop the case's views; give large arenas back. Collective."""
        self._launcher = None  # type: ignore[assignment]  # views must go before the mapping does
        self._input = self._output = self._whole_output = np.empty(0, np.uint8)
        if self._held_bytes > KEEP_BYTES:
            for arena in self._arenas:
                arena.release()
            self.barrier()
            self._arenas[self.rank].shrink()
            self._held_bytes = 0
        self.barrier()
        self._say(Activity.IDLE)

    # -- ccbench.measure.Endpoint ----------------------------------------------------------------------

    def refill(self, salt: int) -> None:
        """Fill this rank's input with the data of ``salt``."""
        if self._part:
            self._part.fill(self._input, salt)
        self.control.words[self.control.index(self.rank, Word.ARRIVED)] = salt

    def poison(self) -> None:
        """Make the output wrong everywhere."""
        poison(self._whole_output)

    def launch(self, times: int) -> None:
        """Run the collective ``times`` times, back to back."""
        self._launch(times, time_waits=False)

    def launch_and_time_waits(self, times: int) -> float:
        """As ``launch``; the seconds of it that this rank waited for others."""
        self._pace.waited_seconds = 0.0
        self._launch(times, time_waits=True)
        return self._pace.waited_seconds

    def _launch(self, times: int, time_waits: bool) -> None:
        if self._fault and self._fault.kind == "slow":
            for _ in range(times):
                self._fault.before_sample()
                self._launcher.launch(1, time_waits)
            return
        self._launcher.launch(times, time_waits)

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

    def check(self, salt: int, launches: int) -> Mismatch | None:
        """Compare this rank's output with what is right."""
        self._say(Activity.CHECKING)
        if self._fault:
            self._fault.spoil(self._output)
        if not collective(self._case.collective).moves_data:
            return self._check_arrivals(salt)
        return self._part.check(self._output, salt, launches) if self._part else None

    def _check_arrivals(self, salt: int) -> Mismatch | None:
        """After a barrier every rank must have come as far as this one: each wrote its salt before."""
        members = self._part.members if self._part else ()
        arrived = {rank: self.control.read(rank, Word.ARRIVED) for rank in members}
        late = [rank for rank, seen in arrived.items() if seen < salt]
        if not late:
            return None
        return Mismatch(self.rank, len(late), late[0], f"{arrived[late[0]]} (rank had not come)", str(salt))

    def watch(self, sample: int) -> None:
        """Tell the watchdog which sample is next (negative: warming up)."""
        self._say(Activity.WARMING_UP if sample < 0 else Activity.SAMPLING)
        self.control.words[self.control.index(self.rank, Word.SAMPLE)] = sample
        if self._fault and sample >= 0 and self._fault.kind != "slow":
            self._fault.before_sample()

    # -- around a case ---------------------------------------------------------------------------------

    def remark(self) -> str:
        """Samples say it all."""
        return ""

    def facts(self) -> CaseFacts:
        """Samples say it all."""
        return CaseFacts()

    def _say(self, activity: Activity) -> None:
        self.control.words[self.control.index(self.rank, Word.ACTIVITY)] = activity

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
