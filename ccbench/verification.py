"""Data for timed launches, and the check that they arrived: rank-dependent, never zero, exact.

Every value is a small whole number, so small that no sum, product or repeated in-place sum leaves the
range in which the element type is exact; whole numbers may also wrap, which is exact in any order. Every
comparison is therefore for equality, in every dtype.
The values repeat with a prime period, so two chunks of a buffer never hold the same data by chance, and
a *salt* shifts them, so that a buffer left over from an earlier sample is not taken for the result.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ccbench.cases import NO_ROOT, Case
from ccbench.collectives import collective
from ccbench.dtypes import EXACT_LIMIT, numpy_dtype

Array = NDArray[Any]

PERIOD_ELEMENTS = 65_537
"""A prime, so that no power-of-two chunk is a multiple of it."""

POISON_BYTE = 0xA5
LARGEST_VALUE = 1024
UNLIMITED_LAUNCHES = 1 << 30


@dataclass(frozen=True)
class Mismatch:
    """Wrong elements of one rank's output; ``offset`` is the first one's index, ``seen`` what it held."""

    rank: int
    wrong_elements: int
    offset: int
    seen: str
    expected: str

    def __str__(self) -> str:
        return (
            f"rank {self.rank}: {self.wrong_elements} wrong, first at element {self.offset}: "
            f"{self.seen} instead of {self.expected}"
        )


def launches_between_refills(case: Case) -> int:
    """How often ``case`` may run on the same buffers until they must be filled again.

    Out of place the input stays as it is. In place the result becomes the next input: that changes
    nothing for collectives that copy to where the data came from and for min, max and the average of
    equal values; sums grow with ranks**launches; for the rest every launch needs fresh data.
    """
    row = collective(case.collective)
    if not case.in_place or not row.moves_data:
        return UNLIMITED_LAUNCHES
    if not row.reduces:
        moves_within = case.collective in ("all_to_all", "send_recv")
        return 1 if moves_within else UNLIMITED_LAUNCHES
    if case.op in ("min", "max") or (case.op == "avg" and case.collective == "all_reduce"):
        return UNLIMITED_LAUNCHES
    if case.op != "sum" or case.collective != "all_reduce":
        return 1
    if case.ranks == 1:
        return UNLIMITED_LAUNCHES
    launches = 1
    limit = EXACT_LIMIT[case.dtype]
    magnitude = _magnitude(case.dtype, case.op, case.ranks, shared=False)
    while magnitude * case.ranks ** (launches + 1) <= limit:
        launches += 1
    return launches


def _averages_shared(case: Case) -> bool:
    """True when the average of these ranks' own data could not be exact: then all bring the same.

    Only whole multiples of ranks have an exact average whatever they are added up to, and many ranks' sum
    of those leaves a small type's range (int8 with 12 ranks).
    """
    return case.op == "avg" and EXACT_LIMIT[case.dtype] < case.ranks**2


def _magnitude(dtype: str, op: str, ranks: int, shared: bool) -> int:
    """The largest value: sums of ``ranks`` of them must be exact, everything else has the type's range."""
    limit = EXACT_LIMIT[dtype]
    if op == "sum" and dtype.startswith("uint"):
        # Sums of many ranks may wrap (exactly, in any order), but a buffer of nothing but 1 proves little.
        return max(4, min(LARGEST_VALUE, limit // ranks**2))
    if op == "avg" and shared:
        limit //= ranks
    elif op in ("sum", "avg"):
        limit //= ranks**2
    return max(1, min(LARGEST_VALUE, limit))


@lru_cache(maxsize=64)
def _table(dtype: str, op: str, ranks: int, shared: bool) -> Array:
    """Two periods of values, so that any slice of up to one period is a view."""
    generator = np.random.default_rng(20_21)
    whole = dtype.startswith(("int", "uint"))
    if op == "prod" and whole:
        values = generator.choice([1, 3], PERIOD_ELEMENTS)  # odd products wrap, but never to zero
    elif op == "prod":
        # Powers of two multiply exactly; few ranks can afford a 2 without leaving float16's range.
        values = generator.integers(1, 3 if ranks <= 8 else 2, PERIOD_ELEMENTS)
    else:
        values = generator.integers(1, _magnitude(dtype, op, ranks, shared) + 1, PERIOD_ELEMENTS)
    if op == "avg" and not shared:
        values *= ranks  # the average of whole multiples is whole, so that averaging again changes nothing
    if not dtype.startswith("uint"):
        values *= generator.choice([-1, 1], PERIOD_ELEMENTS)
    table = np.concatenate([values, values]).astype(numpy_dtype(dtype))
    table.setflags(write=False)
    return table


def _shift(rank: int, salt: int) -> int:
    return (rank * 7_919 + salt * 10_007) % PERIOD_ELEMENTS


def values(case: Case, rank: int, start: int, length: int, salt: int) -> Array:
    """Elements [start, start + length) of what ``rank`` puts in; length at most one period."""
    shared = _averages_shared(case)
    table = _table(case.dtype, case.op, case.ranks, shared)
    begin = (_shift(0 if shared else rank, salt) + start) % PERIOD_ELEMENTS
    part: Array = table[begin : begin + length]
    return part


def fill(case: Case, rank: int, buffer: Array, salt: int) -> None:
    """Write rank's input into ``buffer`` (its input buffer, in buffer order)."""
    for start in range(0, len(buffer), PERIOD_ELEMENTS):
        length = min(PERIOD_ELEMENTS, len(buffer) - start)
        buffer[start : start + length] = values(case, rank, start, length, salt)


def poison(buffer: Array) -> None:
    """Overwrite with bytes that no result contains."""
    buffer.view(np.uint8).fill(POISON_BYTE)


def check(case: Case, rank: int, output: Array, salt: int, launches: int) -> Mismatch | None:
    """Compare ``output`` (rank's output in buffer order) after ``launches`` launches on inputs of ``salt``.

    launches counts from the last refill and matters only in place (see launches_between_refills).
    """
    bits = np.dtype(f"u{output.dtype.itemsize}")
    wrong, first = 0, -1
    for start, expected in expected_parts(case, rank, len(output), salt, launches):
        differs = output[start : start + len(expected)].view(bits) != expected.view(bits)
        if differs.any():
            if first < 0:
                first = start + int(np.argmax(differs))
                seen, right = output[first], expected[first - start]
            wrong += int(np.count_nonzero(differs))
    return None if first < 0 else Mismatch(rank, wrong, first, str(seen), str(right))


def expected_parts(
    case: Case, rank: int, elements: int, salt: int, launches: int
) -> Iterator[tuple[int, Array]]:
    """(start, values) parts that together are rank's right output of ``elements`` elements."""
    row = collective(case.collective)
    if not elements or not case.count or not row.moves_data:
        return
    root = 0 if case.root == NO_ROOT else case.root
    for block in range(elements // case.count):
        origins = row.origins(rank, block, case.ranks, root)
        period = min(PERIOD_ELEMENTS, case.count)
        one = _combined(case, [(o, index * case.count) for o, index in origins], period, salt, launches)
        for start in range(0, case.count, period):
            length = min(period, case.count - start)
            yield block * case.count + start, one[:length]


def _combined(case: Case, sources: list[tuple[int, int]], length: int, salt: int, launches: int) -> Array:
    parts = [values(case, origin, start, length, salt) for origin, start in sources]
    if not collective(case.collective).reduces:
        copied: Array = parts[0]
        return copied
    function = {"sum": np.add, "avg": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}
    result: Array = parts[0].copy()
    for part in parts[1:]:
        function[case.op](result, part, out=result)
    if case.op == "avg":
        # The sum is a whole multiple of ranks (or wrapped: then whole numbers are cut towards zero, as in C).
        total = result.astype(np.int64)
        result = (np.sign(total) * (np.abs(total) // case.ranks)).astype(result.dtype)
    if case.in_place and case.op == "sum" and case.collective == "all_reduce" and launches > 1:
        scale = np.asarray(case.ranks ** (launches - 1)).astype(result.dtype)
        np.multiply(result, scale, out=result)
    return result
