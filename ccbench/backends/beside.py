"""What runs beside a case's own collective, on ranks without shared memory: its buffers, data and times."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ccbench.cases import Case
from ccbench.dtypes import item_bytes, numpy_dtype
from ccbench.groups import format_ranks
from ccbench.verification import GROUP_SALTS, Array, Mismatch, part_of, poison

NewBuffer = Callable[[int, np.dtype[Any], int, int], Array]
"""(elements, dtype, number of the buffer in its case, bytes off the alignment) -> memory."""

LANE = 1
"""Its communicators are its own even where the ranks are the same: those of the case's own are of lane 0."""

FIRST_NUMBER = 2
"""Buffers 0 and 1 are the case's own."""


class Beside:
    """One rank's side of the second collective.

    case: as the team sees it. part: as this rank's group sees it. member: the rank's number there, -1 where
    it belongs to none.
    """

    def __init__(self, main: Case, rank: int) -> None:
        """main: a case with something beside it."""
        case = main.concurrent_case
        assert case is not None, "whoever asks has seen that there is one"
        self.case = case
        self.seat = part_of(case, rank)
        self.part = self.seat.case if self.seat else case
        self.member = self.seat.seat if self.seat else -1
        # Numbered after the case's own groups: what strays from one collective into the other is seen.
        self._salts = len(main.members) * GROUP_SALTS
        self.source: Array = np.empty(0, np.uint8)
        self.target: Array = np.empty(0, np.uint8)

    @property
    def needed_bytes(self) -> int:
        """Of this rank's buffers."""
        if self.seat is None:
            return 0
        elements = self.part.input_count(self.member) + self.part.output_count(self.member)
        return elements * item_bytes(self.case.dtype)

    def take_memory(self, new_buffer: NewBuffer) -> None:
        """Buffers of this rank; empty ones where it stands by."""
        dtype, off = numpy_dtype(self.case.dtype), self.case.misalignment_bytes
        read = self.part.input_count(self.member) if self.seat else 0
        written = self.part.output_count(self.member) if self.seat else 0
        self.source = new_buffer(read, dtype, FIRST_NUMBER, off)
        self.target = new_buffer(written, dtype, FIRST_NUMBER + 1, off)

    def refill(self, salt: int) -> None:
        """Fill the input with the data of ``salt``."""
        if self.seat:
            self.seat.fill(self.source, salt + self._salts)

    def poison(self) -> None:
        """Make the output wrong everywhere."""
        poison(self.target)

    def check(self, salt: int, launches: int) -> Mismatch | None:
        """Compare the output with what is right; the mismatch says that it is this collective's."""
        found = self.seat.check(self.target, salt + self._salts, launches) if self.seat else None
        return found and in_the_one_beside(found, self.case)


def in_the_one_beside(found: Mismatch, case: Case) -> Mismatch:
    """The same, saying that it is of the collective that runs beside; ``case``: that one."""
    return replace(found, expected=f"{found.expected} in the {case.collective} beside")


class PartTimes:
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
    """Every group of the case's own collective, then every one of the collective beside."""
    return tuple(name for name, _, _ in _parts(case))


def part_samples(case: Case, seconds: NDArray[np.float64]) -> tuple[tuple[float, ...], ...]:
    """What each part took in each sample: the longest of its ranks. seconds: [rank, sample, collective]."""
    return tuple(
        tuple(seconds[list(members), :, lane].max(axis=0).tolist()) for _, members, lane in _parts(case)
    )


def _parts(case: Case) -> list[tuple[str, tuple[int, ...], int]]:
    """(name, ranks, 0 for the case's own collective and 1 for the other)."""
    other = case.concurrent_case
    assert other is not None, "whoever asks has seen that there is one"
    found = []
    for lane, one in enumerate((case, other)):
        groups = one.members
        for members in groups:
            everyone = len(members) == case.ranks
            name = one.collective if everyone else f"ranks {format_ranks(members)} {one.collective}"
            found.append((name, members, lane))
    return found
