"""One rank's buffers and data in a collective, and how long each of two concurrent collectives took.

For ranks that share no memory. A case has one collective, or two that run at the same time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ccbench.backends.cpu.memory import PAGE_BYTES, STAGGER_BYTES
from ccbench.backends.faults import Fault
from ccbench.cases import Case, CaseFacts
from ccbench.dtypes import item_bytes, numpy_dtype
from ccbench.groups import format_ranks
from ccbench.machine.host import available_memory_bytes
from ccbench.verification import GROUP_SEEDS, Array, Mismatch, part_of, poison

if TYPE_CHECKING:
    from ccbench.backends.rank_endpoint import RankEndpoint

HUGE_PAGE_BYTES = 2 << 20
"""Of x86 and of Arm with pages of 4 KiB; elsewhere it is only an alignment."""

MEMORY_SHARE = 0.9
"""Of a host's available memory, what a case may take on it."""

OWN, CONCURRENT = 0, 1
"""Lanes: the case's own collective, and the one that runs at the same time, whose communicators are its own
even where the ranks are the same."""


class HostMemory:
    """Where a rank's buffers are: private memory from NumPy. A backend may have memory of another kind."""

    def __init__(self, endpoint: RankEndpoint) -> None:
        self._endpoint = endpoint

    def reserve(self, own_bytes: int) -> None:
        """See that the case's buffers will fit; OutOfMemory on every rank alike. Collective."""
        available = available_memory_bytes()
        limit = float("inf") if available is None else available * MEMORY_SHARE
        self._endpoint.refuse_beyond(own_bytes, limit, self._endpoint.exchange.hosts)

    def new_buffer(self, elements: int, dtype: np.dtype[Any], number: int, misalignment_bytes: int) -> Array:
        """Memory for buffer ``number`` of a case; those with different numbers do not alias.

        NumPy asks for huge pages from 4 MiB on, but a buffer that begins anywhere gets them for a part that
        is luck, and a library that copies between processes then takes up to half as long again in one run as
        in the next (docs/overhead.md). So large buffers begin where a huge page does, in memory of whole
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
        """What is in ``buffer``, in memory of the host."""
        return buffer

    def copy(self, target: Array, source: Array) -> None:
        """Copy one buffer into another, to the end."""
        np.copyto(target, source)

    def settle(self) -> None:
        """Return when nothing more is on its way into a buffer."""

    def facts(self) -> CaseFacts:
        """What there is to record of the case that was launched."""
        return CaseFacts()

    def begin_case(self) -> None:
        """Buffers are bound, and launches come."""

    def end_launches(self) -> None:
        """Timed launches are over."""

    def release(self) -> None:
        """The case is over: give back what the next one will hardly use."""


class RankBuffers:
    """One rank's side of one collective.

    case: as the team sees it. part: as this rank's group sees it. member: the rank's number there, -1 where
    it belongs to none. source, target: what the library is given, one array in place; of these ``input`` is
    filled and ``output`` checked. seeds: how far its data are from those of the case's own collective.
    """

    def __init__(self, case: Case, rank: int, fault: Fault | None, lane: int = OWN, seeds: int = 0) -> None:
        self.case, self.lane, self._seeds = case, lane, seeds
        self.membership = part_of(case, rank)
        self.part = self.membership.case if self.membership else case
        self.member = self.membership.group_rank if self.membership else -1
        self.fault = fault if fault and fault.matches(case, rank) else None
        self.source: Array = np.empty(0, np.uint8)
        self.target = self.input = self.output = self.source

    @property
    def _elements(self) -> tuple[int, int]:
        """Of the input and of the output."""
        if self.membership is None:
            return 0, 0
        return self.part.input_count(self.member), self.part.output_count(self.member)

    @property
    def needed_bytes(self) -> int:
        """Of this rank's buffers."""
        read, written = self._elements
        return (max(read, written) if self.case.in_place else read + written) * item_bytes(self.case.dtype)

    def take(self, memory: HostMemory) -> None:
        """Take buffers; empty ones where the rank stands by."""
        self._memory = memory
        read, written = self._elements
        dtype, off, number = numpy_dtype(self.case.dtype), self.case.misalignment_bytes, 2 * self.lane
        if not self.case.in_place:
            self.source = self.input = memory.new_buffer(read, dtype, number, off)
            self.target = self.output = memory.new_buffer(written, dtype, number + 1, off)
            return
        elements = max(read, written)
        self.source = self.target = whole = memory.new_buffer(elements, dtype, number, off)
        own = self.member * self.part.count
        # As MPI has it: a rank's block of a gathered buffer is at its place, a scattered sum at the start.
        self.input = whole[own : own + read] if read < elements and read else whole[:read]
        block_stays = self.part.collective == "scatter" and written < elements
        self.output = whole[own : own + written] if block_stays else whole[:written]

    def refill(self, seed: int, launches: int = 1) -> None:
        """Fill the input with the data of ``seed``."""
        membership = self.membership
        if membership:
            self._memory.fill(self.input, lambda data: membership.fill(data, seed + self._seeds, launches))

    def poison(self) -> None:
        """Make the output wrong everywhere."""
        self._memory.poison(self.target)

    def check(self, seed: int, launches: int) -> Mismatch | None:
        """Compare the output with what is right."""
        output = self._memory.read(self.output)
        if self.fault:
            self.fault.spoil(output)
        found = self.membership.check(output, seed + self._seeds, launches) if self.membership else None
        return found and (in_the_concurrent(found, self.case) if self.lane else found)


def in_the_concurrent(found: Mismatch, case: Case) -> Mismatch:
    """The same, saying that it is of the collective that runs beside; ``case``: that one."""
    return replace(found, expected=f"{found.expected} in the {case.collective} beside")


def lanes_of(case: Case, rank: int, fault: Fault | None) -> tuple[RankBuffers, ...]:
    """The case's own collective, and the one that runs at the same time where there is one."""
    own, other = RankBuffers(case, rank, fault), case.concurrent_case
    # Numbered after the case's own groups: what strays from one collective into the other is seen.
    seeds = len(case.members) * GROUP_SEEDS
    return (own, RankBuffers(other, rank, fault, CONCURRENT, seeds)) if other else (own,)


class LaneTimes:
    """How long each of two collectives took on this rank, sample by sample.

    running: seconds that the launches of the current sample have taken so far, the case's own collective
    first; whoever launches adds to it.
    """

    def __init__(self) -> None:
        self.running = [0.0, 0.0]
        self._by_sample: dict[int, tuple[float, float]] = {}
        self._sample = -1

    def expect(self, sample: int) -> None:
        """The next launches are sample number ``sample``, or none where it is negative."""
        self._sample = sample

    def begin(self) -> None:
        """Launches begin."""
        self.running[:] = 0.0, 0.0

    def keep(self, launches: int) -> None:
        """They are over; only the first ones that follow ``expect`` are a sample."""
        if self._sample >= 0:
            self._by_sample[self._sample] = self.running[0] / launches, self.running[1] / launches
        self._sample = -1

    def rows(self) -> NDArray[np.float64]:
        """Seconds per launch, [sample, collective]."""
        kept = [seconds for _, seconds in sorted(self._by_sample.items())]
        return np.array(kept, np.float64).reshape(-1, 2)


def group_names(case: Case) -> tuple[str, ...]:
    """Every group of the case's own collective, then every one of the concurrent collective."""
    return tuple(name for name, _, _ in _parts(case))


def group_samples(case: Case, seconds: NDArray[np.float64]) -> tuple[tuple[float, ...], ...]:
    """What each part took in each sample: the longest of its ranks. seconds: [rank, sample, collective]."""
    return tuple(
        tuple(seconds[list(members), :, lane].max(axis=0).tolist()) for _, members, lane in _parts(case)
    )


def _parts(case: Case) -> list[tuple[str, tuple[int, ...], int]]:
    """(name, ranks, lane)."""
    other = case.concurrent_case
    assert other is not None, "whoever asks has seen that there is one"
    return [
        (f"ranks {format_ranks(members)} " * (len(members) < case.ranks) + one.collective, members, lane)
        for lane, one in enumerate((case, other))
        for members in one.members
    ]
