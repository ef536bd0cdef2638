"""One rank of a library in a process of its own: its buffers, data, checks, and what the leader hears of it.

A library's endpoint adds what it can do: the call that is timed, a barrier, and, where that is quicker than
the team's own connection, a way to bring numbers from all ranks.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import repeat

import numpy as np

from ccbench.backends.base import ControlChannel, OutOfMemory
from ccbench.backends.cpu.memory import Activity, Control
from ccbench.backends.endpoint import PerProcessEndpoint, merged_mismatch
from ccbench.backends.faults import Fault
from ccbench.backends.overlap import Background, OnProcessors, run_while_computing
from ccbench.backends.rank_buffers import HostMemory, LaneTimes, RankBuffers, group_facts, lanes_of
from ccbench.cases import Case, CaseFacts
from ccbench.collectives import collective
from ccbench.verification import Mismatch

SAMPLE_CAPACITY = 4096

Call = Callable[[], object]


class RankEndpoint(OnProcessors, PerProcessEndpoint, ABC):
    """Most of ``TeamEndpoint`` and of ``Overlapping`` in ``ccbench.backends.endpoint``.

    A subclass binds its library's call in ``bind``, and has a ``barrier``. Where two concurrent collectives
    can be told apart, the call adds what each took to ``times``. background: what a case in mode overlap
    computes behind; ``bind`` sets it, and it is None on a rank that belongs to no group. memory: that of the
    next case's buffers.
    """

    background: Background | None = None

    def __init__(self, exchange: ControlChannel) -> None:
        super().__init__(Control(exchange.ranks, SAMPLE_CAPACITY))
        self.exchange = exchange
        self.rank, self.ranks = exchange.rank, exchange.ranks
        several = len(set(exchange.hosts)) > 1
        self.prefix = f"rank {self.rank}{f' on {exchange.hosts[self.rank]}' if several else ''}: "
        self.memory = HostMemory(self)
        self._forget()

    def _forget(self) -> None:
        self._lanes: tuple[RankBuffers, ...] = ()
        self.times: LaneTimes | None = None
        self._call: Call = _nothing
        self.background = self._computation = None

    # -- one case ------------------------------------------------------------------------------------------

    def prepare(self, case: Case) -> str:
        """Take memory and bind the call; returns the algorithm that runs. Collective.

        Raises OutOfMemory (on every rank alike) and CannotRun.
        """
        self.say(Activity.PREPARING)
        self._forget()
        self._shared_stamps = 0
        self.case = case
        self._lanes = lanes_of(RankBuffers, case, self.rank, self._any_fault)
        # One fault is asked for; a rank has it once, whichever of its lanes it is for.
        self._faults = [(self.rank, lane.fault) for lane in self._lanes if lane.fault][:1]
        if self.other and self.tells_apart(self.other.case):
            self.times = LaneTimes(self.control.part_seconds[self.rank])
        self.memory.reserve(sum(lane.needed_bytes for lane in self._lanes))
        # Only when all of it fits on every rank is any of it taken.
        for lane in self._lanes:
            lane.take(self.memory)
        self._call = self.bind() if any(lane.part for lane in self._lanes) else _nothing
        self.memory.begin_case()
        return case.algorithm

    @property
    def own(self) -> RankBuffers:
        """The lane of the case's own collective."""
        return self._lanes[0]

    @property
    def other(self) -> RankBuffers | None:
        """The lane of the concurrent collective, if any."""
        return self._lanes[1] if len(self._lanes) > 1 else None

    @property
    def fault(self) -> Fault | None:
        """The fault of this rank in the case."""
        return self._faults[0][1] if self._faults else None

    def tells_apart(self, other: Case) -> bool:
        """True if the call says when the case's own collective is over and when ``other`` is."""
        return True

    def refuse_beyond(self, own_bytes: int, limit_bytes: float, places: Sequence[str]) -> None:
        """OutOfMemory on every rank when the ranks of one place together need more than it has. Collective.

        places: where each rank's memory is.
        """
        gathered = self.gather_numbers(np.array([own_bytes, limit_bytes]))
        for place in dict.fromkeys(places):
            ranks = [rank for rank in range(self.ranks) if places[rank] == place]
            needed, least = float(gathered[ranks, 0].sum()), float(gathered[ranks, 1].min())
            if needed > least:
                where = f" of {place}" if len(set(places)) > 1 else ""
                raise OutOfMemory(
                    f"needs {needed:.0f} bytes on {len(ranks)} ranks{where}, {least:.0f} are to be had"
                )

    @abstractmethod
    def bind(self) -> Call:
        """Return a function that runs one launch of the case's collectives on their buffers."""

    def finish(self) -> None:
        """Drop the case's buffers, and what was computed on. Collective."""
        self._forget()
        self.memory.release()
        self.barrier()
        self.say(Activity.IDLE)

    def agree(self, value: int) -> int:
        """Return rank 0's value, on every rank."""
        mine = value.to_bytes(8, "little", signed=True) if self.rank == 0 else None
        return int.from_bytes(self.exchange.broadcast(mine, 0), "little", signed=True)

    @abstractmethod
    def barrier(self) -> None:
        """Return when every rank has called it."""

    # -- Endpoint ------------------------------------------------------------------------------------------

    def refill(self, seed: int, launches: int = 1) -> None:
        """Fill this rank's inputs with the data of ``seed``."""
        for lane in self._lanes:
            lane.refill(seed, launches)

    def poison(self) -> None:
        """Make the outputs wrong everywhere."""
        for lane in self._lanes:
            lane.poison()

    def launch(self, times: int) -> None:
        """Run the collective ``times`` times, back to back."""
        if self.times:
            self.times.begin()
        if self.fault and self.fault.slow:
            self._launch_one_by_one(times, self.fault)
        else:
            self._entered_seconds = time.perf_counter()
            call = self._call
            for _ in repeat(None, times):
                call()
            self._left_seconds = time.perf_counter()
        if self.times:
            self.times.keep(times)

    def launch_and_time_waits(self, times: int) -> float:
        """As ``launch``; the seconds of it that the library's calls took.

        A library does not tell how long it waited for others. But the work is the same in all ranks' calls,
        so what differs between ranks is what they waited.
        """
        return self._launch_one_by_one(times, self.fault)

    def _launch_one_by_one(self, times: int, fault: Fault | None) -> float:
        """Launch; returns the seconds inside the calls, without those that a fault makes this rank late."""
        call, inside = self._call, 0.0
        for _ in range(times):
            if fault:
                fault.before_launches()
            began = time.perf_counter()
            call()
            inside += time.perf_counter() - began
        return inside

    def check(self, seed: int, launches: int) -> Mismatch | None:
        """Compare this rank's outputs with what is right. Collective."""
        self.say(Activity.CHECKING)
        self.memory.end_launches()
        return merged_mismatch(
            [
                lane.check(seed, launches)
                if collective(lane.case.collective).moves_data
                else self._check_barrier(lane)
                for lane in self._lanes
            ]
        )

    def _check_barrier(self, lane: RankBuffers) -> Mismatch | None:
        """Nobody may have left the barrier before the last one of its group entered. Collective."""
        times = self.gather_numbers(np.array([self._entered_seconds, self._left_seconds]))
        if not self.exchange.one_clock or lane.part is None:
            return None  # without a common clock nobody can tell
        late = [rank for rank in lane.part.members if times[rank, 0] > times[self.rank, 1]]
        if not late:
            return None
        seen = f"left {times[late[0], 0] - times[self.rank, 1]:.6f} s too early"
        return Mismatch(self.rank, len(late), late[0], seen, f"rank {late[0]} had entered")

    def watch(self, sample: int) -> None:
        """Tell the leader which sample is next (negative: warming up)."""
        if self.times:
            self.times.expect(sample)
        super().watch(sample)

    def remark(self) -> str:
        """Return how samples were taken, where that is not the usual way."""
        if self.rank or self.exchange.one_clock:
            return ""
        return "hosts have clocks of their own: a sample is the longest of its ranks' times"

    def facts(self) -> CaseFacts:
        """Return what became of the memory, and what each of two collectives took. Collective."""
        facts = self.memory.facts()
        if self.times is None:
            return facts
        mine = self.times.kept[: self.times.samples]
        seconds = self.gather_numbers(mine.reshape(-1)).reshape(self.ranks, -1, 2)
        groups = group_facts(self.case, seconds)
        return replace(facts, parts=groups.parts, group_samples_seconds=groups.group_samples_seconds)

    # -- Overlapping ---------------------------------------------------------------------------------------

    def launch_while_computing(self, launches: int, repetitions: int) -> tuple[float, float]:
        """Run both at once; the seconds until the computation was over, and until the collective was."""
        assert self._computation is not None, "it is prepared"
        began = self._entered_seconds = time.perf_counter()
        if self.fault:
            self.fault.before_launches(launches)
        late = time.perf_counter() - began
        computed, communicated = run_while_computing(
            self.background, self._computation.once, launches, repetitions
        )
        self._left_seconds = time.perf_counter()
        return late + computed, late + communicated if self.background else 0.0


def _nothing() -> None:
    """Launch nothing, as a rank does that belongs to no group."""
