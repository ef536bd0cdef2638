"""One rank's part in the collectives of a case: its data, its buffers, and what each collective took.

A case has one collective, or two concurrent ones; each is a lane.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

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
    """Memory of a rank's buffers: private, from NumPy. A backend may have memory of another kind."""

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


class Lane:
    """One rank's part in one collective of a case.

    case: as the team sees it. part: this rank's number and case in its group, None where it belongs to none.
    fault: what the rank does wrong. number: OWN or CONCURRENT. input, output: what is filled and checked.
    """

    def __init__(
        self, case: Case, rank: int, fault: Fault | None, number: int = OWN, seed_offset: int = 0
    ) -> None:
        """seed_offset: distance of the lane's data from those of the case's own collective."""
        self.case, self.rank, self.number = case, rank, number
        self.part = part_of(case, rank)
        self.fault = fault if fault and fault.matches(case, rank) else None
        self.input: Array = np.empty(0, np.uint8)
        self.output = self.input
        self.seed_offset = seed_offset

    def mismatch(self, output: Array, seed: int, launches: int) -> Mismatch | None:
        """Compare ``output`` with what is right, once it is damaged where a fault asks for that."""
        if self.fault:
            self.fault.spoil(output)
        found = self.part.check(output, seed + self.seed_offset, launches) if self.part else None
        if found is None or self.number == OWN:
            return found
        return replace(found, expected=f"{found.expected} in the concurrent {self.case.collective}")


AnyLane = TypeVar("AnyLane", bound=Lane)


def lanes_of(
    make: Callable[[Case, int, Fault | None, int, int], AnyLane], case: Case, rank: int, fault: Fault | None
) -> tuple[AnyLane, ...]:
    """Return the lane of the case's own collective, and that of the concurrent one where there is one."""
    own, other = make(case, rank, fault, OWN, 0), case.concurrent_case
    if other is None:
        return (own,)
    # Numbered after the case's own groups: what strays from one collective into the other is seen.
    return own, make(other, rank, fault, CONCURRENT, len(case.members) * GROUP_SEEDS)


class RankBuffers(Lane):
    """A lane with buffers in memory of the rank's own.

    source, target: what the library is given, one array in place.
    """

    def __init__(
        self, case: Case, rank: int, fault: Fault | None, number: int = OWN, seed_offset: int = 0
    ) -> None:
        super().__init__(case, rank, fault, number, seed_offset)
        self.source = self.target = self.input
        # Elements of the input and of the output; empty ones where the rank belongs to no group.
        self._read = self._written = 0
        if self.part:
            self._read = self.part.case.input_count(self.part.group_rank)
            self._written = self.part.case.output_count(self.part.group_rank)

    @property
    def needed_bytes(self) -> int:
        """Size of this rank's buffers."""
        both = max(self._read, self._written) if self.case.in_place else self._read + self._written
        return both * item_bytes(self.case.dtype)

    def take(self, memory: HostMemory) -> None:
        """Take buffers."""
        self._memory = memory
        read, written = self._read, self._written
        dtype, off, number = numpy_dtype(self.case.dtype), self.case.misalignment_bytes, 2 * self.number
        if not self.case.in_place or not self.part:
            self.source = self.input = memory.new_buffer(read, dtype, number, off)
            self.target = self.output = memory.new_buffer(written, dtype, number + 1, off)
            return
        elements = max(read, written)
        self.source = self.target = whole = memory.new_buffer(elements, dtype, number, off)
        own = self.part.group_rank * self.part.case.count
        # As MPI has it: a rank's block of a gathered buffer is at its place, a scattered sum at the start.
        self.input = whole[own : own + read] if read < elements and read else whole[:read]
        block_stays = self.case.collective == "scatter" and written < elements
        self.output = whole[own : own + written] if block_stays else whole[:written]

    def refill(self, seed: int, launches: int = 1) -> None:
        """Fill the input with the data of ``seed``."""
        part = self.part
        if part:
            self._memory.fill(self.input, lambda data: part.fill(data, seed + self.seed_offset, launches))

    def poison(self) -> None:
        """Make the output wrong everywhere."""
        self._memory.poison(self.target)

    def check(self, seed: int, launches: int) -> Mismatch | None:
        """Compare the output with what is right."""
        return self.mismatch(self._memory.read(self.output), seed, launches)


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


def group_names(case: Case) -> tuple[str, ...]:
    """Return names of every group of the case's own collective, then of the concurrent collective."""
    return tuple(name for name, _, _ in _group_parts(case))


def group_facts(case: Case, seconds: NDArray[np.float64]) -> CaseFacts:
    """Return what each group took in each sample: the longest of its ranks' times.

    seconds: [rank, sample, lane].
    """
    return CaseFacts(
        parts=group_names(case),
        group_samples_seconds=tuple(
            tuple(seconds[list(members), :, lane].max(axis=0).tolist())
            for _, members, lane in _group_parts(case)
        ),
    )


def _group_parts(case: Case) -> list[tuple[str, tuple[int, ...], int]]:
    """Return (name, ranks, lane) of each."""
    other = case.concurrent_case
    assert other is not None, "whoever asks has seen that there is one"
    return [
        (f"ranks {format_ranks(members)} " * (len(members) < case.ranks) + one.collective, members, lane)
        for lane, one in enumerate((case, other))
        for members in one.members
    ]
