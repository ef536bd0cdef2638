"""One rank of a library in a process of its own: its buffers, data, checks, and what the leader hears of it.

A library's endpoint adds what it can do: the call that is timed, a barrier, and, where that is quicker than
the team's own connection, how numbers come from all ranks.
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
from ccbench.backends.rank_buffers import (
    HostMemory,
    LaneTimes,
    RankBuffers,
    group_names,
    group_samples,
    lanes_of,
)
from ccbench.cases import Case, CaseFacts
from ccbench.collectives import collective
from ccbench.verification import Mismatch

SAMPLE_CAPACITY = 4096

Call = Callable[[], object]


class RankEndpoint(OnProcessors, PerProcessEndpoint, ABC):
    """Most of ``endpoint.TeamEndpoint`` and of ``endpoint.Overlapping`` in ``ccbench.backends``.

    A subclass binds its library's call in ``bind``, and has a ``barrier``. Where two collectives run at the
    same time and can be told apart, the call adds what each took to ``times``. background: what a case in
    mode overlap computes behind; ``bind`` sets it, and it is None on a rank that stands by. memory: where the
    next case's buffers are.
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
        self._lanes = lanes_of(case, self.rank, self._any_fault)
        self._faults = [(self.rank, lane.fault) for lane in self._lanes if lane.fault][:1]
        self.times = LaneTimes() if self.other and self.tells_apart(self.other.case) else None
        self.memory.reserve(sum(lane.needed_bytes for lane in self._lanes))
        for lane in self._lanes:
            lane.take(self.memory)
        self._call = self.bind() if self.takes_part else _nothing
        self.memory.begin_case()
        return case.algorithm

    @property
    def own(self) -> RankBuffers:
        """The case's own collective."""
        return self._lanes[0]

    @property
    def other(self) -> RankBuffers | None:
        """The collective that runs at the same time, if any."""
        return self._lanes[1] if len(self._lanes) > 1 else None

    @property
    def fault(self) -> Fault | None:
        """What this rank is to do wrong in the case."""
        return self._faults[0][1] if self._faults else None

    @property
    def takes_part(self) -> bool:
        """Whether this rank communicates with any other in this case."""
        return any(lane.member >= 0 for lane in self._lanes)

    def tells_apart(self, other: Case) -> bool:
        """Whether the call says when the case's own collective is over and when ``other`` is."""
        return True

    def refuse_beyond(self, own_bytes: int, limit_bytes: float, places: Sequence[str]) -> None:
        """OutOfMemory on every rank when the ranks of one place together need more than it has. Collective.

        places: where each rank's memory is.
        """
        told = self.gather_numbers(np.array([own_bytes, limit_bytes]))
        for place in dict.fromkeys(places):
            ranks = [rank for rank in range(self.ranks) if places[rank] == place]
            needed, least = float(told[ranks, 0].sum()), float(told[ranks, 1].min())
            if needed > least:
                where = f" of {place}" if len(set(places)) > 1 else ""
                raise OutOfMemory(
                    f"needs {needed:.0f} bytes on {len(ranks)} ranks{where}, {least:.0f} are to be had"
                )

    @abstractmethod
    def bind(self) -> Call:
        """The collectives of the case on their buffers, as a function that runs one launch of them."""

    def finish(self) -> None:
        """Drop the case's buffers, and what was computed on. Collective."""
        self._forget()
        self.memory.release()
        self.barrier()
        self.say(Activity.IDLE)

    def agree(self, value: int) -> int:
        """Rank 0's value, on every rank."""
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
            self._launch_late(times, self.fault)
        else:
            self._entered_seconds = time.perf_counter()
            call = self._call
            for _ in repeat(None, times):
                call()
            self._left_seconds = time.perf_counter()
        if self.times:
            self.times.keep(times)

    def _launch_late(self, times: int, fault: Fault) -> float:
        inside = 0.0
        for _ in range(times):
            fault.before_launches()
            inside += _timed(self._call)
        return inside

    def launch_and_time_waits(self, times: int) -> float:
        """As ``launch``; the seconds of it that the library's calls took.

        A library does not tell how long it waited for others. But the work is the same in all ranks' calls,
        so what differs between ranks is what they waited.
        """
        if self.fault and self.fault.slow:
            return self._launch_late(times, self.fault)
        call = self._call
        return sum(_timed(call) for _ in range(times))

    def check(self, seed: int, launches: int) -> Mismatch | None:
        """Compare this rank's outputs with what is right. Collective."""
        self.say(Activity.CHECKING)
        self.memory.end_launches()
        return merged_mismatch([self._checked(lane, seed, launches) for lane in self._lanes])

    def _checked(self, lane: RankBuffers, seed: int, launches: int) -> Mismatch | None:
        if collective(lane.case.collective).moves_data:
            return lane.check(seed, launches)
        return self._check_barrier(lane)

    def _check_barrier(self, lane: RankBuffers) -> Mismatch | None:
        """Nobody may have left the barrier before the last one of its group entered. Collective."""
        times = self.gather_numbers(np.array([self._entered_seconds, self._left_seconds]))
        if not self.exchange.one_clock or lane.membership is None:
            return None  # without a common clock nobody can tell
        late = [rank for rank in lane.membership.members if times[rank, 0] > times[self.rank, 1]]
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
        """How samples were taken, where that is not the usual way."""
        if self.rank or self.exchange.one_clock:
            return ""
        return "hosts have clocks of their own: a sample is the longest of its ranks' times"

    def facts(self) -> CaseFacts:
        """What became of the memory, and what each of two collectives took. Collective."""
        facts = self.memory.facts()
        if self.times is None:
            return facts
        told = self.gather_numbers(self.times.rows().reshape(-1)).reshape(self.ranks, -1, 2)
        return replace(
            facts, parts=group_names(self.case), group_samples_seconds=group_samples(self.case, told)
        )

    # -- Overlapping ---------------------------------------------------------------------------------------

    def launch_while_computing(self, launches: int, repetitions: int) -> tuple[float, float]:
        """Both at once; the seconds until the computation was over, and until the collective was."""
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
    """What a rank calls that belongs to no group."""


def _timed(call: Call) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began
