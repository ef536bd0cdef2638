"""What endpoints of ranks without shared memory have in common: buffers of their own, data, check, words.

An endpoint of a launched rank adds what its library can do: the call that is timed, a barrier, and, where
that is quicker than the team's own connection, how numbers come from all ranks.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from itertools import repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ccbench.backends.base import ControlChannel, OutOfMemory, Position
from ccbench.backends.beside import Beside, PartTimes, group_names, part_samples
from ccbench.backends.cpu.memory import PAGE_BYTES, STAGGER_BYTES, Activity, Control, Word
from ccbench.backends.faults import Fault, fault_from_environment
from ccbench.cases import Case, CaseFacts
from ccbench.collectives import collective
from ccbench.dtypes import numpy_dtype
from ccbench.machine.host import available_memory_bytes
from ccbench.verification import Array, Mismatch, Part, part_of, poison

SAMPLE_CAPACITY = 4096

HUGE_PAGE_BYTES = 2 << 20
"""Of x86 and of Arm with pages of 4 KiB; elsewhere it is only an alignment."""

MEMORY_SHARE = 0.9
"""Of a host's available memory, what a case may take on it."""


def new_buffer(elements: int, dtype: np.dtype[Any], number: int, misalignment_bytes: int) -> Array:
    """Private memory from NumPy; buffers with different numbers do not alias.

    NumPy asks for huge pages from 4 MiB on, but a buffer that begins anywhere gets them for a part that
    is luck, and a library that copies between processes then takes up to half as long again in one run as
    in the next (docs/performance.md). So large buffers begin where a huge page does, in memory of whole ones.
    """
    size_bytes = elements * dtype.itemsize
    offset = number * STAGGER_BYTES + misalignment_bytes
    large = size_bytes >= HUGE_PAGE_BYTES
    align = HUGE_PAGE_BYTES if large else PAGE_BYTES
    used = -(-(offset + size_bytes) // align) * align
    room = np.empty(used + align, np.uint8)
    begin = -room.ctypes.data % align + offset
    return room[begin : begin + size_bytes].view(dtype)


class ApartEndpoint(ABC):
    """Most of ``ccbench.backends.crew.TeamEndpoint`` and of ``ccbench.backends.endpoint.Apart``.

    A subclass binds its library's call in ``bind``, and has a ``barrier``. ``part`` is the case as this
    rank's group sees it, ``member`` the rank's number there (-1: it belongs to no group and only waits).
    ``beside`` is the second collective of a case that has one; where the two can be told apart, the call adds
    what each took to ``part_times``.
    """

    flags: tuple[str, ...] = ()

    def __init__(self, exchange: ControlChannel) -> None:
        self.exchange = exchange
        self.rank, self.ranks = exchange.rank, exchange.ranks
        several = len(set(exchange.hosts)) > 1
        self.prefix = f"rank {self.rank}{f' on {exchange.hosts[self.rank]}' if several else ''}: "
        self.control = Control(self.ranks, SAMPLE_CAPACITY)
        self.stamps = self.control.stamps
        self._own = self.control.index(self.rank, Word.PROGRESS)
        self._any_fault = fault_from_environment()
        self._fault: Fault | None = None
        self._own_fault: Fault | None = None
        self._beside_fault: Fault | None = None
        self._cases = 0
        self._shared = 0
        self._seat: Part | None = None
        self.beside: Beside | None = None
        self.part_times: PartTimes | None = None
        self._call: Any = None
        self._forget()

    def _forget(self) -> None:
        nothing = np.empty(0, np.uint8)
        self.source: Array = nothing
        self.target: Array = nothing
        self._input: Array = nothing
        self._output: Array = nothing
        self.beside = self.part_times = None
        self._call = None

    def next_salt(self) -> int:
        """A number that is new in every round and the same on all ranks."""
        self._cases += 1
        return self._cases

    # -- one case ------------------------------------------------------------------------------------------

    def prepare(self, case: Case) -> str:
        """Take memory and bind the call; returns the algorithm that runs. Collective.

        Raises OutOfMemory (on every rank alike) and CannotRun.
        """
        self.say(Activity.PREPARING)
        self._seat = part_of(case, self.rank)
        self.case, self.part = case, self._seat.case if self._seat else case
        self.member = self._seat.seat if self._seat else -1
        self._shared = 0
        self.beside = Beside(case, self.rank) if case.concurrent else None
        self._own_fault = self._fault_in(case)
        self._beside_fault = self._fault_in(self.beside.case) if self.beside else None
        self._fault = self._own_fault or self._beside_fault
        self.part_times = PartTimes() if self.beside and self.tells_apart(self.beside.case) else None
        self._take_memory(case)
        self._call = self.bind() if self.takes_part else _nothing
        return self.algorithm_label()

    def _fault_in(self, case: Case) -> Fault | None:
        """What this rank is to do wrong in one of its collectives."""
        fault = self._any_fault
        return fault if fault and fault.matches(case, self.rank) else None

    def tells_apart(self, other: Case) -> bool:
        """Whether the call says when the case's own collective is over and when ``other`` is."""
        return False

    @property
    def takes_part(self) -> bool:
        """Whether this rank communicates with any other in this case."""
        return self.member >= 0 or (self.beside is not None and self.beside.member >= 0)

    def _take_memory(self, case: Case) -> None:
        dtype = numpy_dtype(case.dtype)
        read = written = 0
        if self.member >= 0:
            read, written = self.part.input_count(self.member), self.part.output_count(self.member)
        elements = max(read, written) if case.in_place else read + written
        beside_bytes = self.beside.needed_bytes if self.beside else 0
        self._refuse_too_much(elements * dtype.itemsize + beside_bytes)
        if self.beside:
            self.beside.take_memory(self._new_buffer)
        off = case.misalignment_bytes
        if not case.in_place:
            self.source = self._input = self._new_buffer(read, dtype, 0, off)
            self.target = self._output = self._new_buffer(written, dtype, 1, off)
            return
        self.source = self.target = whole = self._new_buffer(elements, dtype, 0, off)
        own = self.member * self.part.count
        # As MPI has it: a rank's block of a gathered buffer is at its place, a scattered sum at the start.
        self._input = whole[own : own + read] if read < elements and read else whole[:read]
        block_stays = self.part.collective == "scatter" and written < elements
        self._output = whole[own : own + written] if block_stays else whole[:written]

    def _new_buffer(self, elements: int, dtype: np.dtype[Any], number: int, misalignment_bytes: int) -> Array:
        """Memory for the case's buffer ``number``; of the host, unless an endpoint has other."""
        return new_buffer(elements, dtype, number, misalignment_bytes)

    def _refuse_too_much(self, own_bytes: int) -> None:
        """OutOfMemory on every rank when the ranks of one host together need more than it has."""
        available = available_memory_bytes()
        limit = float("inf") if available is None else available * MEMORY_SHARE
        self._refuse_beyond(own_bytes, limit, self.exchange.hosts)

    def _refuse_beyond(self, own_bytes: int, limit_bytes: float, places: Sequence[str]) -> None:
        """The same of any memory. places: where each rank's is; ranks of one place share it. Collective."""
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
    def bind(self) -> Any:
        """The collective of ``part`` on ``source`` and ``target``, as a function without arguments."""

    def algorithm_label(self) -> str:
        """What a suite would write to get the algorithm that runs."""
        return self.case.algorithm

    def finish(self) -> None:
        """Drop the case's buffers. Collective."""
        self._forget()
        self.barrier()
        self.say(Activity.IDLE)

    def close(self) -> None:  # noqa: B027  (a library that needs no end leaves this as it is)
        """End the library; called once, on every rank that leaves in peace."""

    # -- numbers from all ranks ----------------------------------------------------------------------------

    def gather_numbers(self, mine: NDArray[np.float64]) -> NDArray[np.float64]:
        """Every rank's array, by rank: shape (ranks, elements). Collective."""
        told = self.exchange.all_gather(mine.tobytes())
        return np.stack([np.frombuffer(one, np.float64) for one in told])

    def agree(self, value: int) -> int:
        """Rank 0's value, on every rank."""
        mine = value.to_bytes(8, "little", signed=True) if self.rank == 0 else None
        return int.from_bytes(self.exchange.broadcast(mine, 0), "little", signed=True)

    @abstractmethod
    def barrier(self) -> None:
        """Return when every rank has called it."""

    def share_stamps(self, count: int) -> None:
        """See ccbench.backends.endpoint.Apart."""
        if count == self._shared:
            return
        mine = self.stamps[self.rank, self._shared : count]
        if not self.exchange.one_clock:
            mine = np.stack([np.zeros(len(mine)), mine[:, 1] - mine[:, 0]], axis=1)
        told = self.gather_numbers(np.ascontiguousarray(mine).reshape(-1))
        self.stamps[:, self._shared : count] = told.reshape(self.ranks, -1, 2)
        self._shared = count

    def share_words(self) -> None:
        """See Apart: of processor time only what ranks of this host have used counts here."""
        mine = np.array([self.control.read(self.rank, Word.CPU_NANOSECONDS)], np.float64)
        told = self.gather_numbers(mine)[:, 0]
        here = self.exchange.hosts[self.rank]
        for rank, host in enumerate(self.exchange.hosts):
            index = self.control.index(rank, Word.CPU_NANOSECONDS)
            self.control.words[index] = int(told[rank]) if host == here else 0

    # -- Endpoint ------------------------------------------------------------------------------------------

    def refill(self, salt: int, launches: int = 1) -> None:
        """Fill this rank's input with the data of ``salt``."""
        if self._seat:
            self._seat.fill(self._input, salt, launches)
        if self.beside:
            self.beside.refill(salt)

    def poison(self) -> None:
        """Make the output wrong everywhere."""
        poison(self.target)
        if self.beside:
            self.beside.poison()

    def launch(self, times: int) -> None:
        """Run the collective ``times`` times, back to back."""
        if self.part_times:
            self.part_times.begin()
        if self._fault and self._fault.slow:
            self._launch_late(times, self._fault)
        else:
            self._entered_seconds = time.perf_counter()
            call = self._call
            for _ in repeat(None, times):
                call()
            self._left_seconds = time.perf_counter()
        if self.part_times:
            self.part_times.keep(times)

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
        if self._fault and self._fault.slow:
            return self._launch_late(times, self._fault)
        call = self._call
        return sum(_timed(call) for _ in range(times))

    def check(self, salt: int, launches: int) -> Mismatch | None:
        """Compare this rank's output with what is right."""
        self.say(Activity.CHECKING)
        found: Mismatch | None = None
        if not collective(self.case.collective).moves_data:
            found = self._check_barrier(self._seat)
        else:
            if self._own_fault:
                self._own_fault.spoil(self._output)
            found = self._seat.check(self._output, salt, launches) if self._seat else None
        beside = self._check_beside(salt, launches) if self.beside else None  # collective, so always asked
        if found and beside:
            return replace(found, wrong_elements=found.wrong_elements + beside.wrong_elements)
        return found or beside

    def _check_beside(self, salt: int, launches: int) -> Mismatch | None:
        assert self.beside is not None, "whoever calls has looked"
        if not collective(self.beside.case.collective).moves_data:
            return self._check_barrier(self.beside.seat)
        if self._beside_fault:
            self._beside_fault.spoil(self.beside.target)
        return self.beside.check(salt, launches)

    def _check_barrier(self, seat: Part | None) -> Mismatch | None:
        """Nobody may have left the barrier before the last one of its group entered. Collective."""
        times = self.gather_numbers(np.array([self._entered_seconds, self._left_seconds]))
        if not self.exchange.one_clock or seat is None:
            return None  # without a common clock nobody can tell
        late = [rank for rank in seat.members if times[rank, 0] > times[self.rank, 1]]
        if not late:
            return None
        seen = f"left {times[late[0], 0] - times[self.rank, 1]:.6f} s too early"
        return Mismatch(self.rank, len(late), late[0], seen, f"rank {late[0]} had entered")

    # -- what the leader hears -----------------------------------------------------------------------------

    def watch(self, sample: int) -> None:
        """Note which sample is next (negative: warming up), for whoever asks."""
        if sample == 0:
            self._shared = 0  # what was shared of the warm-up stood where samples come now
        self.say(Activity.SAMPLING if sample >= 0 else Activity.WARMING_UP)
        self.control.words[self._own + Word.SAMPLE] = sample
        if self.part_times:
            self.part_times.expect(sample)
        if self._fault and sample >= 0:
            self._fault.before_sample()

    def say(self, activity: Activity) -> None:
        """Tell the leader what this rank does; only a change is sent, and none falls into a launch."""
        words, own = self.control.words, self._own
        if words[own + Word.ACTIVITY] != activity:
            words[own + Word.ACTIVITY] = activity
            self.exchange.tell(self.position())

    def position(self) -> Position:
        """Where this rank is; asked from another thread while the rank works."""
        words, own = self.control.words, self._own
        return Position(words[own + Word.ACTIVITY], words[own + Word.SAMPLE], words[own + Word.BARRIER])

    def core_latency_seconds(self) -> float | None:
        """Nothing is shared that a round trip could be timed on."""
        return None

    def remark(self) -> str:
        """How samples were taken, where that is not the usual way."""
        if self.rank or self.exchange.one_clock:
            return ""
        return "hosts have clocks of their own: a sample is the longest of its ranks' times"

    def facts(self) -> CaseFacts:
        """What each of two collectives took, where they were timed apart. Collective."""
        times = self.part_times
        if not self.case.concurrent or times is None:
            return CaseFacts()
        told = self.gather_numbers(times.rows().reshape(-1)).reshape(self.ranks, -1, 2)
        return CaseFacts(parts=group_names(self.case), group_samples_seconds=part_samples(self.case, told))


def _nothing() -> None:
    """What a rank calls that belongs to no group."""


def _timed(call: Any) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began
