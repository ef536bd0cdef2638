"""One rank in a process of its own: its buffers, data and checks, and what each collective of a case took.

A case has one collective, or on backend cpu two concurrent ones; each is a lane. A library's endpoint adds what it
can do: the call that is timed, a barrier, and, where that is quicker than the team's own connection, a way to
bring numbers from all ranks.
"""

from __future__ import annotations

import mmap
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from ccbench.backends.base import ControlChannel, OutOfMemory
from ccbench.backends.control_block import Activity, Control, Word
from ccbench.backends.endpoint import (
    PerProcessEndpoint,
    Result,
    TeamEndpoint,
)
from ccbench.backends.faults import Fault, added_otherwise
from ccbench.cases.axes import Case
from ccbench.cases.measurement import CaseFacts
from ccbench.collectives import collective
from ccbench.dtypes import item_bytes, numpy_dtype
from ccbench.groups import format_ranks
from ccbench.machine.host import available_memory_bytes
from ccbench.verification import GROUP_SEEDS, Array, Mismatch, part_of, poison

PAGE_BYTES = mmap.PAGESIZE
STAGGER_BYTES = 1088
"""Buffers of one rank start at different offsets in their pages: 17 lines, so that loads from one and
stores to another do not alias in the low 12 address bits."""

HUGE_PAGE_BYTES = 2 << 20
"""Of x86 and of Arm with pages of 4 KiB; elsewhere it is only an alignment."""

MEMORY_SHARE = 0.9
"""Of a host's available memory, what a case may take on it."""

OWN, CONCURRENT = 0, 1
"""Lanes: the case's own collective, and the one that runs at the same time, whose communicators are its own
even where the ranks are the same."""


class HostMemory:
    """Memory of a rank's buffers: private, from NumPy. A backend may have memory of another kind."""

    def __init__(self, endpoint: RankEndpoint) -> None:
        self._endpoint = endpoint

    def reserve(self, own_bytes: int) -> None:
        """See that the case's buffers will fit; OutOfMemory on every rank alike. Collective."""
        available = available_memory_bytes()
        limit = float("inf") if available is None else available * MEMORY_SHARE
        self._endpoint.refuse_beyond(own_bytes, limit, self._endpoint.exchange.hosts)

    def new_buffer(
        self, elements: int, dtype: np.dtype[Any], number: int, misalignment_bytes: int
    ) -> Array:
        """Memory for buffer ``number`` of a case; those with different numbers do not alias.

        NumPy asks for huge pages from 4 MiB on, but a buffer that begins anywhere gets them for a part that
        is luck, and a library that copies between processes then takes up to half as long again in one run as
        in the next (docs/design.md). So large buffers begin where a huge page does, in memory of whole
        ones.
        """
        size_bytes = elements * dtype.itemsize
        offset = number * STAGGER_BYTES + misalignment_bytes
        align = HUGE_PAGE_BYTES if size_bytes >= HUGE_PAGE_BYTES else PAGE_BYTES
        used = -(-(offset + size_bytes) // align) * align
        room = np.empty(used + align, np.uint8)
        begin = -room.ctypes.data % align + offset
        return room[begin : begin + size_bytes].view(dtype)

    def fill(self, buffer: Array, write: Callable[[Array], None]) -> None:
        """Let ``write`` put data into ``buffer``."""
        write(buffer)

    def poison(self, buffer: Array) -> None:
        """Make ``buffer`` wrong everywhere."""
        poison(buffer)

    def read(self, buffer: Array) -> Array:
        """Return the contents of ``buffer``, in memory of the host."""
        return buffer

    def copy(self, target: Array, source: Array) -> None:
        """Copy one buffer into another, to the end."""
        np.copyto(target, source)

    def settle(self) -> None:
        """Return when nothing more is on its way into a buffer."""

    def facts(self) -> CaseFacts:
        """Return what there is to record of the case that was launched."""
        return CaseFacts()

    def begin_case(self) -> None:
        """Buffers are bound, and launches come."""

    def end_launches(self) -> None:
        """Timed launches are over."""

    def release(self) -> None:
        """The case is over: give back what the next one will hardly use."""


@dataclass(eq=False)
class Lane(ABC):
    """One rank's part in one collective of a case.

    case: as the team sees it. part: this rank's number and case in its group, None where it belongs to none.
    fault: what the rank does wrong. number: OWN or CONCURRENT. seed_offset: distance of the lane's data from
    those of the case's own collective. input, output: what is filled and checked.
    """

    case: Case
    rank: int
    fault: Fault | None
    number: int = OWN
    seed_offset: int = 0

    def __post_init__(self) -> None:
        self.part = part_of(self.case, self.rank)
        # A rank that belongs to no group does nothing that could go wrong.
        if self.fault and not (self.part and self.fault.matches(self.case, self.rank)):
            self.fault = None
        self.input: Array = np.empty(0, np.uint8)
        self.output = self.input

    @abstractmethod
    def refill(self, seed: int, launches: int = 1) -> None:
        """Fill the input with the data of ``seed``."""

    @abstractmethod
    def poison(self) -> None:
        """Make the output wrong everywhere."""

    def results(self) -> Iterator[Result]:
        """Yield the output, damaged where a fault asks for that; nothing of a rank that gets none."""
        if self.part and self.part.receives and len(self.output):
            output = self.read()
            if self.fault:
                output = added_otherwise(
                    self.fault, output, self.part.case, self.part.group_rank
                )
            yield Result(self.rank, output)

    def read(self) -> Array:
        """Return the output, in memory of the host."""
        return self.output

    def mismatch(self, output: Array, seed: int, launches: int) -> Mismatch | None:
        """Compare ``output`` with what is right, once it is damaged where a fault asks for that."""
        if self.fault:
            self.fault.spoil(output)
        wrong = (
            self.part.check(output, seed + self.seed_offset, launches) if self.part else None
        )
        if wrong is None or self.number == OWN:
            return wrong
        return replace(
            wrong, expected=f"{wrong.expected} in the concurrent {self.case.collective}"
        )


AnyLane = TypeVar("AnyLane", bound=Lane)


def lanes_of(
    make: type[AnyLane], case: Case, rank: int, fault: Fault | None
) -> tuple[AnyLane, ...]:
    """Return the lane of the case's own collective, and that of the concurrent one where there is one."""
    own, concurrent = make(case, rank, fault, OWN, 0), case.concurrent_case
    if concurrent is None:
        return (own,)
    # Numbered after the case's own groups: what strays from one collective into the other is seen.
    return own, make(concurrent, rank, fault, CONCURRENT, len(case.members) * GROUP_SEEDS)


class RankBuffers(Lane):
    """A lane with buffers in memory of the rank's own.

    source, target: what the library is given, one array in place. blocks_stay: collectives of which a rank's
    block is at its place in the whole; elsewhere it is at the start, as MPI has it.
    """

    blocks_stay: tuple[str, ...] = ("scatter",)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.source = self.target = self.input
        # Elements of the input and of the output; empty ones where the rank belongs to no group.
        self._read = self._written = 0
        if self.part:
            self._read = self.part.case.input_count(self.part.group_rank)
            self._written = self.part.case.output_count(self.part.group_rank)

    @property
    def needed_bytes(self) -> int:
        """Size of this rank's buffers."""
        both = (
            max(self._read, self._written) if self.case.in_place else self._read + self._written
        )
        return both * item_bytes(self.case.dtype)

    def take(self, memory: HostMemory) -> None:
        """Take buffers."""
        self._memory = memory
        read, written = self._read, self._written
        dtype, off, number = (
            numpy_dtype(self.case.dtype),
            self.case.misalignment_bytes,
            2 * self.number,
        )
        if not self.case.in_place or not self.part:
            self.source = self.input = memory.new_buffer(read, dtype, number, off)
            self.target = self.output = memory.new_buffer(written, dtype, number + 1, off)
            return
        elements = max(read, written)
        self.source = self.target = whole = memory.new_buffer(elements, dtype, number, off)
        own = self.part.group_rank * self.part.case.count
        # As MPI has it: a rank's block of a gathered buffer is at its place, a scattered sum at the start.
        self.input = whole[own : own + read] if read < elements and read else whole[:read]
        block_stays = self.case.collective in self.blocks_stay and written < elements
        self.output = whole[own : own + written] if block_stays else whole[:written]

    def refill(self, seed: int, launches: int = 1) -> None:
        """Fill the input with the data of ``seed``."""
        part = self.part
        if part:
            self._memory.fill(
                self.input, lambda data: part.fill(data, seed + self.seed_offset, launches)
            )

    def poison(self) -> None:
        """Make the output wrong everywhere."""
        self._memory.poison(self.target)

    def check(self, seed: int, launches: int) -> Mismatch | None:
        """Compare the output with what is right."""
        return self.mismatch(self.read(), seed, launches)

    def read(self) -> Array:
        """Return the output, in memory of the host."""
        return self._memory.read(self.output)


class LaneTimes:
    """Time that each of two concurrent collectives took on this rank, sample by sample.

    running: seconds that the launches of the current sample have taken so far, the case's own collective
    first; whoever launches adds to it. kept: shape (capacity, 2), seconds per launch of each sample; the
    first ``samples`` are there.
    """

    def __init__(self, kept: NDArray[np.float64]) -> None:
        self.running = [0.0, 0.0]
        self.kept, self.samples = kept, 0
        self._sample = -1

    def expect(self, sample: int) -> None:
        """Take the next launches for sample number ``sample``, or for none where it is negative."""
        self._sample = sample
        self.samples = max(self.samples, sample + 1)

    def begin(self) -> None:
        """Begin launches."""
        self.running[:] = 0.0, 0.0

    def keep(self, launches: int) -> None:
        """End launches; only the first ones that follow ``expect`` are a sample."""
        if self._sample >= 0:
            self.kept[self._sample] = self.running[0] / launches, self.running[1] / launches
        self._sample = -1


def group_facts(case: Case, seconds: NDArray[np.float64]) -> CaseFacts:
    """Return what each group took in each sample: the longest of its ranks' times.

    seconds: [rank, sample, lane].
    """
    names, members, lanes = zip(*group_parts(case), strict=True)
    longest = [
        seconds[list(some), :, lane].max(axis=0)
        for some, lane in zip(members, lanes, strict=True)
    ]
    return CaseFacts(
        parts=names, group_samples_seconds=tuple(tuple(row.tolist()) for row in longest)
    )


def group_parts(case: Case) -> list[tuple[str, tuple[int, ...], int]]:
    """Return (name, ranks, lane) of every group of the case's own collective, then of the concurrent one."""
    concurrent = case.concurrent_case
    assert concurrent is not None, "whoever asks has seen that there is one"
    return [
        (
            (f"ranks {format_ranks(members)} " if len(members) < case.ranks else "")
            + lane_case.collective,
            members,
            lane,
        )
        for lane, lane_case in enumerate((case, concurrent))
        for members in lane_case.members
    ]


SAMPLE_CAPACITY = 4096

Call = Callable[[], object]


class LaneEndpoint(TeamEndpoint, Generic[AnyLane]):
    """One rank whose case has a lane for each of its collectives.

    times: what each of two collectives took; None of a single one, and where nobody can tell them apart.
    """

    times: LaneTimes | None = None
    _lanes: tuple[AnyLane, ...] = ()

    def open_lanes(self, make: type[AnyLane], case: Case) -> None:
        """Begin ``case``: make its lanes."""
        self.say(Activity.PREPARING)
        self.case, self._lanes = case, lanes_of(make, case, self.rank, self._any_fault)
        # One fault is asked for; a rank has it once, whichever of its lanes it is for.
        self._faults = [(self.rank, lane.fault) for lane in self._lanes if lane.fault][:1]

    def refill(self, seed: int, launches: int = 1) -> None:
        """Fill this rank's inputs with the data of ``seed``."""
        for lane in self._lanes:
            lane.refill(seed, launches)

    def results(self) -> Iterable[Result]:
        """Return this rank's result in the case's own collective, if it has one."""
        return self._lanes[OWN].results()

    def poison(self) -> None:
        """Make the outputs wrong everywhere."""
        for lane in self._lanes:
            lane.poison()

    def begin_sample(self, sample: int) -> None:
        """Tell the watchdog which sample is next (negative: warming up)."""
        if self.times:
            self.times.expect(sample)
        super().begin_sample(sample)


class RankEndpoint(LaneEndpoint[RankBuffers], PerProcessEndpoint, ABC):
    """Most of ``TeamEndpoint`` in ``ccbench.backends.endpoint``.

    A subclass binds its library's call in ``bind``, and has a ``barrier``. memory: that of the next case's
    buffers. buffers: how they lie.
    """

    buffers: type[RankBuffers] = RankBuffers

    def __init__(self, exchange: ControlChannel) -> None:
        super().__init__(Control(exchange.ranks, SAMPLE_CAPACITY))
        self.exchange = exchange
        self.rank, self.ranks = exchange.rank, exchange.ranks
        several = len(set(exchange.hosts)) > 1
        self.prefix = (
            f"rank {self.rank}{f' on {exchange.hosts[self.rank]}' if several else ''}: "
        )
        self.memory = HostMemory(self)
        self._forget()

    def _forget(self) -> None:
        self._lanes = ()
        self._call: Call = nothing

    # -- one case ------------------------------------------------------------------------------------------

    def prepare(self, case: Case) -> str:
        """Take memory and bind the call; returns the algorithm that runs. Collective.

        Raises OutOfMemory (on every rank alike) and CannotRun.
        """
        self._forget()
        self._shared_stamps = 0
        self.open_lanes(self.buffers, case)
        self.memory.reserve(self.own.needed_bytes)
        # Only when all of it fits on every rank is any of it taken.
        self.own.take(self.memory)
        self._call = self.bind() if self.own.part else nothing
        self.memory.begin_case()
        return case.algorithm

    @property
    def own(self) -> RankBuffers:
        """The lane of the case's own collective."""
        return self._lanes[0]

    @property
    def fault(self) -> Fault | None:
        """The fault of this rank in the case."""
        return self._faults[0][1] if self._faults else None

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
                    f"{len(ranks)} ranks{where} need {needed:.0f} bytes, {least:.0f} are available"
                )

    @abstractmethod
    def bind(self) -> Call:
        """Return a function that runs one launch of the case's collectives on their buffers."""

    def finish(self) -> None:
        """Drop the case's buffers. Collective."""
        self._forget()
        self.memory.release()
        self.barrier()
        self.say(Activity.IDLE)

    @abstractmethod
    def barrier(self) -> None:
        """Return when every rank has called it."""

    def count(self) -> None:
        """Count that the rank has come to where all wait: who waits for a group that hangs is further on."""
        self.control.words[self.control.index(self.rank, Word.BARRIER)] += 1

    # -- Endpoint ------------------------------------------------------------------------------------------

    def launch(self, times: int) -> None:
        """Run the collective ``times`` times, back to back."""
        if self.fault and self.fault.slow:
            self.launch_and_time_waits(times)
            return
        self._entered_seconds = time.perf_counter()
        call = self._call
        for _ in repeat(None, times):
            call()
        self._left_seconds = time.perf_counter()

    def launch_and_time_waits(self, times: int) -> float:
        """Launch; return the seconds of it that the library's calls took.

        A library does not tell how long it waited for others. But the work is the same in all ranks' calls,
        so what differs between ranks is what they waited. What a fault makes this rank late does not count.
        """
        call, inside = self._call, 0.0
        for _ in range(times):
            if self.fault:
                self.fault.before_launches()
            began = time.perf_counter()
            call()
            inside += time.perf_counter() - began
        return inside

    def check(self, seed: int, launches: int) -> Mismatch | None:
        """Compare this rank's outputs with what is right. Collective."""
        self.say(Activity.CHECKING)
        self.memory.end_launches()
        if not collective(self.case.collective).moves_data:
            return self._check_barrier(self.own)
        return self.own.check(seed, launches)

    def _check_barrier(self, lane: RankBuffers) -> Mismatch | None:
        """Check that no rank left the barrier before the last one of its group entered. Collective."""
        times = self.gather_numbers(np.array([self._entered_seconds, self._left_seconds]))
        if not self.exchange.one_clock or lane.part is None:
            return None  # without a common clock nobody can tell
        late = [rank for rank in lane.part.members if times[rank, 0] > times[self.rank, 1]]
        if not late:
            return None
        early = f"left {times[late[0], 0] - times[self.rank, 1]:.6f} s too early"
        return Mismatch(self.rank, len(late), late[0], early, f"rank {late[0]} had entered")

    def remark(self) -> str:
        """Return how samples were taken, where that is not the usual way."""
        if self.rank or self.exchange.one_clock:
            return ""
        return "hosts have clocks of their own: a sample is the longest of its ranks' times"

    def facts(self) -> CaseFacts:
        """Return what became of the memory. Collective."""
        return self.memory.facts()


def nothing() -> None:
    """Launch nothing, as a rank does that belongs to no group."""
