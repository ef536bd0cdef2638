"""Data for timed launches, and the check that they arrived: rank-dependent, exact, and never the poison.

Every comparison is for equality, in every dtype, but that of averages where a library multiplies by 1/ranks
(``rounding_of``). Sums and averages are of whole numbers so small that
nothing leaves the range in which a floating point type is exact; whole number types may wrap, which is exact
in any order. Floating point products are of powers of two. Averages are of numbers that differ between the
ranks and yet add up to a whole multiple of ranks.
The values repeat with a prime period, and a *seed* shifts them, so that a buffer left over from an earlier
sample is not taken for the result. One stale element can still hold the right value by chance:
how often, the tests compute; and of a stale chunk every element must do so.

In place a result is the next launch's input. Data for several launches are such that every launch has the
same result, wherever a library leaves it, so samples in place and out of place have equally many (``_kind``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ccbench.cases.axes import ALL_GROUPS, NO_ROOT, UNEVEN, Case
from ccbench.cases.capabilities import capabilities_of
from ccbench.collectives import collective, sent_elements
from ccbench.dtypes import EXACT_LIMIT, EXPONENTS, item_bytes, numpy_dtype
from ccbench.inexact import INEXACT_PERIOD, INEXACT_SEED, inexact_values

Array = NDArray[Any]

PERIOD_ELEMENTS = 65_537
"""A prime, so that no power-of-two chunk is a multiple of it."""

POISON_BYTE = 0xA5
"""In floating point types neither a whole number nor a power of two; of whole numbers, odd and 5 modulo 8."""

RANK_STEP = 7_919
SEED_STEP = 10_007
"""Distance at which ranks and seeds begin in the values."""

LARGEST_VALUE = 1024

ANY, CANCELLING, NEUTRAL = "any", "cancelling", "neutral"
"""Kinds of data (see ``_kind``)."""

PREMULTIPLIER = 2
"""Factor by which ``premulsum`` multiplies every element before it is summed: exact in every dtype, and not 1."""

GROUP_SEEDS = 4_001
"""Distance of the seeds of neighbouring groups: more than a run has rounds of one case."""


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


def _kind(case: Case, launches: int) -> str:
    """Kind of data with the same result after each of so many launches: ANY, CANCELLING or NEUTRAL.

    Minima and maxima stay as they are, and so does an exact average that all ranks get. Addends that cancel
    leave zeros on all ranks. Where the result is one rank's or a block, only the op's neutral element stays:
    reduce_scatter leaves its result in the rank's own block or, as MPI has it, over the first one, and Gloo's
    reduce leaves sums of some ranks on those that are not the root. Then a launch that does nothing is right;
    it shows in the single launches after the samples (runner.measure), whose data are of the kind ANY.
    """
    if launches == 1 or not case.in_place or not collective(case.collective).reduces:
        return ANY
    if case.collective == "all_reduce" and case.op in ("sum", "premulsum"):
        return CANCELLING
    compares = case.op in ("min", "max") and case.collective != "reduce_scatter"
    averages = (
        case.op == "avg" and case.collective == "all_reduce" and not _averages_by_parts(case)
    )
    return ANY if compares or averages else NEUTRAL


def _is_whole(dtype: str) -> bool:
    return dtype.startswith(("int", "uint"))


@dataclass(frozen=True)
class _Averaged:
    """Ranges of averaged data: rank r holds mean + d(r) - d(r + 1), so that the ranks' sum is ranks * mean.

    1 <= lowest <= abs(mean) <= highest and 0 <= d <= deviation. Where no multiple of ranks but 0 is exact
    (128 ranks of int8) the mean is 0, and stale data cannot be told.
    """

    lowest: int
    highest: int
    deviation: int


def _averaged(dtype: str, ranks: int) -> _Averaged:
    # Halved for one rank too: means up to 127 are not the poison, neither of int8 nor of uint8.
    largest = min(LARGEST_VALUE, EXACT_LIMIT[dtype] // max(2, ranks))
    if dtype.startswith("uint"):  # nothing may fall below zero: deviation <= lowest
        lowest = (largest + 1) // 2
        return _Averaged(lowest, largest, lowest)
    if _is_whole(dtype):  # sums on the way may wrap, the last one may not
        return _Averaged(
            min(1, largest), largest, min(LARGEST_VALUE, EXACT_LIMIT[dtype] - largest)
        )
    # Of some ranks alone the sum is at most ranks * highest + ranks / 2 * deviation.
    deviation = max(1, largest // 2)
    highest = max(0, (EXACT_LIMIT[dtype] - (ranks + 1) // 2 * deviation) // ranks)
    return _Averaged(min(1, highest), highest, deviation)


def _twice(values: Array, dtype: str) -> Array:
    """Two periods of values, so that any slice of up to one period is a view."""
    table = np.concatenate([values, values]).astype(numpy_dtype(dtype))
    table.setflags(write=False)
    return table


@lru_cache(maxsize=64)
def _table(dtype: str, op: str, ranks: int, neutral: bool) -> Array:
    """Values that all ranks draw from, each from another place."""
    if neutral:
        return _twice(np.full(PERIOD_ELEMENTS, op == "prod"), dtype)
    generator = np.random.default_rng(20_21)
    if op == "prod":
        # 1 or 3 modulo 8: closed under multiplication, never zero, and never the poison, which is 5 modulo 8.
        eighths = generator.integers(
            0, 1 << (8 * item_bytes(dtype) - 3), PERIOD_ELEMENTS, dtype=np.uint64
        )
        odd = generator.choice(np.array([1, 3], np.uint64), PERIOD_ELEMENTS)
        return _twice(eighths * np.uint64(8) + odd, dtype)
    largest = min(LARGEST_VALUE, EXACT_LIMIT[dtype])
    sums = op in ("sum", "premulsum")
    if sums and _is_whole(dtype):
        # Even numbers, so that no sum is the poison; a sum of them may wrap.
        positive = np.arange(2, largest + 1, 2)
    else:
        # Sums in floating point must be exact; what is copied or compared may be as large as there is.
        positive = np.arange(
            1, (max(1, min(largest, EXACT_LIMIT[dtype] // ranks)) if sums else largest) + 1
        )
    values = (
        positive if dtype.startswith("uint") else np.concatenate([-positive[::-1], positive])
    )
    if not sums and item_bytes(dtype) == 1:
        values = values[values % 256 != POISON_BYTE]
    return _twice(generator.choice(values, PERIOD_ELEMENTS), dtype)


def _at(table: Array, rank: int) -> Array:
    """One period of ``table``, from where ``rank`` begins."""
    return np.roll(table, -rank * RANK_STEP)


@lru_cache(maxsize=16)
def _split_table(dtype: str, op: str, ranks: int, rank: int) -> Array:
    """Values that ``rank`` brings to averages, to floating point products and to sums that cancel."""
    generator = np.random.default_rng(20_22)
    signs = generator.choice([-1, 1], PERIOD_ELEMENTS)
    if op != "prod":
        of = _averaged(dtype, ranks)
        means = generator.integers(of.lowest, of.highest + 1, PERIOD_ELEMENTS)
        means *= 0 if op != "avg" else 1 if dtype.startswith("uint") else signs
        deviations = generator.integers(0, of.deviation + 1, PERIOD_ELEMENTS)
        return _twice(
            means + _at(deviations, rank) - _at(deviations, (rank + 1) % ranks), dtype
        )
    lowest, highest = EXPONENTS[dtype]
    exponents = generator.integers(lowest, highest + 1, PERIOD_ELEMENTS)
    turns = generator.integers(0, ranks, PERIOD_ELEMENTS)
    # floor((x + k) / n) over k = 0..n-1 adds up to x (Hermite's identity); each part has the sign of x, so
    # that no product of some ranks leaves the range.
    share = (exponents + (turns + rank) % ranks) // ranks
    return _twice(np.ldexp(_at(signs, rank).astype(np.float64), share), dtype)


def values(case: Case, rank: int, start: int, length: int, seed: int, launches: int) -> Array:
    """Elements [start, start + length) of what ``rank`` puts in; length at most one period."""
    if seed >= INEXACT_SEED:
        return inexact_values(case, rank, start, length)
    begin = seed * SEED_STEP + start
    kind = _kind(case, launches)
    # Of averages and of floating point products a rank's values follow from what all together shall give.
    split = case.op == "avg" or (case.op == "prod" and not _is_whole(case.dtype))
    if kind == CANCELLING or (kind == ANY and split):
        table = _split_table(case.dtype, case.op, case.ranks, rank)
    else:
        table = _table(case.dtype, case.op, case.ranks, kind == NEUTRAL)
        begin += rank * RANK_STEP
    begin %= PERIOD_ELEMENTS
    part: Array = table[begin : begin + length]
    return part


def period_of(seed: int) -> int:
    """Return after how many elements the data of ``seed`` repeat."""
    return INEXACT_PERIOD if seed >= INEXACT_SEED else PERIOD_ELEMENTS


def fill(case: Case, rank: int, buffer: Array, seed: int, launches: int = 1) -> None:
    """Write rank's input for so many launches into ``buffer`` (its input buffer, in buffer order)."""
    for start in range(0, len(buffer), PERIOD_ELEMENTS):
        length = min(PERIOD_ELEMENTS, len(buffer) - start)
        buffer[start : start + length] = values(case, rank, start, length, seed, launches)


def poison(buffer: Array) -> None:
    """Overwrite with what no element of a result equals."""
    buffer.view(np.uint8).fill(POISON_BYTE)


def _averages_by_parts(case: Case) -> bool:
    # NCCL sums every element times 1/ranks (src/enqueue.cc, hostToDevRedOp); a power of two rounds nothing.
    ranks = case.group_ranks
    multiplies = capabilities_of(case.backend).premultiplies_averages
    return multiplies and not _is_whole(case.dtype) and bool(ranks & (ranks - 1))


def rounding_of(case: Case) -> float:
    """Largest distance of a right element from the exact one: 0 but for averages of parts that are rounded.

    1/ranks, each product and each of ranks - 1 sums are rounded once, by at most half a unit in the last
    place of what cannot be larger than the largest input.
    """
    if (
        case.op != "avg"
        or not collective(case.collective).reduces
        or not _averages_by_parts(case)
    ):
        return 0.0
    of = _averaged(case.dtype, case.group_ranks)
    return (case.group_ranks + 1) * (of.highest + of.deviation) / EXACT_LIMIT[case.dtype]


def check(case: Case, rank: int, output: Array, seed: int, launches: int) -> Mismatch | None:
    """Compare ``output`` (rank's output in buffer order) after ``launches`` launches on what ``fill`` wrote.

    ``fill`` was told of as many, or of more than one where these are.
    """
    bits = np.dtype(f"u{output.dtype.itemsize}")
    rounding = rounding_of(case)
    wrong, first = 0, -1
    pieces = expected_pieces(case, rank, len(output), seed, launches)
    for start, expected in (part for piece in pieces for part in piece.parts()):
        actual = output[start : start + len(expected)]
        differs = actual.view(bits) != expected.view(bits)
        if rounding and differs.any():
            # Written so that what is no number differs.
            differs = ~(
                np.abs(actual.astype(np.float64) - expected.astype(np.float64)) <= rounding
            )
        if differs.any():
            if first < 0:
                first = start + int(np.argmax(differs))
                seen, right = output[first], expected[first - start]
            wrong += int(np.count_nonzero(differs))
    return None if first < 0 else Mismatch(rank, wrong, first, str(seen), str(right))


@dataclass(frozen=True)
class Part:
    """One rank's share of a case: it is number ``group_rank`` of the ``members`` that communicate together.

    case: as these members see it, with as many ranks as they are. group: their number, from 0.
    receives: False for the source of a pair one way, which gets nothing.
    """

    case: Case
    group: int
    members: tuple[int, ...]
    group_rank: int
    receives: bool = True

    def fill(self, buffer: Array, seed: int, launches: int = 1) -> None:
        """Write the rank's input; groups have different data, so that what strays into another is seen."""
        fill(self.case, self.group_rank, buffer, self.seeded(seed), launches)

    def check(self, output: Array, seed: int, launches: int) -> Mismatch | None:
        """Check, as ``check`` does; the mismatch names the rank by its number in the team."""
        if not self.receives:
            return None
        mismatch = check(self.case, self.group_rank, output, self.seeded(seed), launches)
        return mismatch and replace(mismatch, rank=self.members[self.group_rank])

    def seeded(self, seed: int) -> int:
        """The seed of this group's data."""
        return seed + self.group * GROUP_SEEDS


def part_of(case: Case, rank: int) -> Part | None:
    """The part of ``rank`` in ``case``, None where it has none."""
    pair = case.one_pair
    if not case.groups and pair is None:
        return Part(case, 0, tuple(range(case.ranks)), rank)
    for group, members in enumerate(case.members):
        if rank in members:
            group_case = replace(
                case,
                ranks=len(members),
                groups="",
                pair="",
                active_group=ALL_GROUPS,
                concurrent="",
            )
            receives = pair is None or pair.both or rank == pair.target
            return Part(group_case, group, members, members.index(rank), receives)
    return None


class Piece(NamedTuple):
    """A stretch of a right output: ``elements`` from ``begin`` on, which are ``period`` over and over."""

    begin: int
    elements: int
    period: Array

    def parts(self) -> Iterator[tuple[int, Array]]:
        """(start, values) of one period after the other; the last one may be shorter."""
        for start in range(0, self.elements, len(self.period)):
            yield self.begin + start, self.period[: self.elements - start]


def expected_pieces(
    case: Case, rank: int, elements: int, seed: int, launches: int
) -> Iterator[Piece]:
    """Yield pieces that together are rank's right output of ``elements`` elements, in their order."""
    row = collective(case.collective)
    if not elements or not case.count or not row.moves_data:
        return
    if case.collective == UNEVEN:
        yield from _uneven_pieces(case, rank, seed)
        return
    root = 0 if case.root == NO_ROOT else case.root
    for block in range(elements // case.count):
        origins = row.origins(rank, block, case.ranks, root)
        period = min(PERIOD_ELEMENTS, case.count)
        combined = _combined(
            case, [(o, index * case.count) for o, index in origins], period, seed, launches
        )
        yield Piece(block * case.count, case.count, combined)


def _uneven_pieces(case: Case, rank: int, seed: int) -> Iterator[Piece]:
    """Blocks of different sizes, each from where it begins in its source's input."""
    sent = sent_elements(case.traffic, case.count, case.ranks)
    begins = np.cumsum(sent, axis=1) - sent
    end = 0
    for source in range(case.ranks):
        elements = int(sent[source, rank])
        if elements:
            begin = int(begins[source, rank])
            piece_values = values(
                case, source, begin, min(PERIOD_ELEMENTS, elements), seed, launches=1
            )
            yield Piece(end, elements, piece_values)
        end += elements


def _combined(
    case: Case, sources: list[tuple[int, int]], length: int, seed: int, launches: int
) -> Array:
    parts = [values(case, origin, start, length, seed, launches) for origin, start in sources]
    if not collective(case.collective).reduces:
        copied: Array = parts[0]
        return copied
    function = {"prod": np.multiply, "min": np.minimum, "max": np.maximum}.get(case.op, np.add)
    result: Array = parts[0].copy()
    for part in parts[1:]:
        function(result, part, out=result)
    if case.op == "premulsum":
        np.multiply(result, np.asarray(PREMULTIPLIER).astype(result.dtype), out=result)
    if case.op == "avg":
        result = (result.astype(np.int64) // case.ranks).astype(
            result.dtype
        )  # a multiple of ranks
    return result
