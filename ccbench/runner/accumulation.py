"""Type and order of the additions that explain the bits of a result, found by trying them.

Candidates are the orders of ccbench's own schedules, chains around the ring and back or from the owner of a block on,
and trees over neighbours or over halves, each in several types. One of them has to give every bit; where blocks of the
result have orders of their own, every bit has to come from one of a family.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ccbench.cases.axes import Case, InexactData
from ccbench.dtypes import EXACT_LIMIT, EXPONENTS, numpy_dtype
from ccbench.inexact import Array, bits_of, inexact_period
from ccbench.schedules import algorithms_of, schedule_for
from ccbench.schedules.orders import Order, bit_dependence, followed

UNKNOWN = "unknown"

FEWEST_ELEMENTS = 64
"""Fewer results fit several types by chance: of two types' sums about a third differ."""

MOST_RANKS = 64
"""Beyond, trying all orders takes longer than a round of a small case."""

MOST_SHOWN = 8
"""Ranks up to which an order is written out."""

TYPES = ("float16", "bfloat16", "float8_e4m3", "float8_e5m2")
"""Types that are tried besides that of the data and wider ones, widest first."""

TRUNCATED = "bfloat16 truncated"
"""Sums of float32 whose lower half is cut off: as oneCCL 2022.1 adds on a processor without AVX-512."""


@dataclass(frozen=True)
class Family:
    """Orders of one kind, of which blocks of a result may each have another."""

    name: str
    orders: tuple[Order, ...]


def accumulation_of(case: Case, places: NDArray[np.int64], bits: Array) -> str:
    """Return type and order of the additions that give ``bits`` at ``places`` of the period, or UNKNOWN.

    '' where there are too few to tell, and for operations that are not followed.
    """
    if len(places) < FEWEST_ELEMENTS or case.inexact is None or case.op not in ("sum", "prod"):
        return ""
    if case.group_ranks > MOST_RANKS:
        return UNKNOWN
    return _accumulation(
        case.inexact,
        (case.collective, case.dtype, case.op, case.group_ranks, max(case.root, 0)),
        places.tobytes(),
        bits.tobytes(),
    )


@lru_cache(maxsize=256)
def _accumulation(
    data: InexactData, of: tuple[str, str, str, int, int], raw_places: bytes, raw_bits: bytes
) -> str:
    """Return the text of accumulation_of; all rounds of a case ask alike, and pay once."""
    collective, dtype, op, ranks, root = of
    kind = numpy_dtype(dtype)
    places = np.frombuffer(raw_places, np.int64)
    bits = np.frombuffer(raw_bits, f"u{kind.itemsize}")
    parts = [
        inexact_period(data, dtype, op == "prod", ranks, rank)[places] for rank in range(ranks)
    ]
    families = _families(collective, ranks, root)
    fitting: list[tuple[str, str]] = []
    for name in dict.fromkeys((dtype, "float32", "float64", *TYPES, TRUNCATED)):
        order = _explanation(families, parts, bits, name, op == "prod")
        if order is not None:
            fitting.append((name, order))
    if fitting:
        return _text(fitting, dtype)
    narrower = _narrower_type(bits.view(kind), dtype)
    return f"{narrower}, order {UNKNOWN}" if narrower else UNKNOWN


def _text(fitting: Sequence[tuple[str, str]], dtype: str) -> str:
    """Return the type that fits, that of the data before others, and its order."""
    name, order = fitting[0]
    wider = any(EXACT_LIMIT.get(more, 0) > EXACT_LIMIT.get(name, 0) for more, _ in fitting[1:])
    return ", ".join(filter(None, (name + " or wider" * wider, order)))


def _explanation(
    families: Sequence[Family], parts: Sequence[Array], bits: Array, name: str, factors: bool
) -> str | None:
    """Return the order in which additions in type ``name`` give ``bits``, '' for any, None for none."""
    fitting: list[str] = []
    for family in families:
        unexplained = np.ones(len(bits), bool)
        for order in family.orders:
            agrees = bits_of(_added(order, parts, name, factors)) == bits
            if agrees.all():
                fitting.append(order_text(order))
            unexplained &= ~agrees
        if not fitting and not unexplained.any():
            return f"{family.name}, another one in each block"
    if not fitting:
        return None
    tried = sum(len(family.orders) for family in families)
    return "" if len(fitting) == tried else fitting[0]


def order_text(order: Order) -> str:
    """Return ``chain 0+1+2+3``, or ``tree (0+1)+(2+3)``; of many ranks the kind and the height alone."""
    ranks, height = len(_leaves(order)), _height(order)
    kind = "chain" if height == ranks - 1 else "tree"
    if ranks > MOST_SHOWN:
        return f"{kind} of height {height}"
    return f"{kind} {_written(order)}"


def _written(order: Order) -> str:
    if isinstance(order, int):
        return str(order)
    left, right = order
    # Chains read from the left without parentheses.
    texts = [_written(left), _written(right)]
    if isinstance(right, tuple):
        texts[1] = f"({texts[1]})"
        if isinstance(left, tuple):
            texts[0] = f"({texts[0]})"
    return "+".join(texts)


def _leaves(order: Order) -> list[int]:
    return (
        [order]
        if isinstance(order, int)
        else [rank for part in order for rank in _leaves(part)]
    )


def _height(order: Order) -> int:
    return 0 if isinstance(order, int) else 1 + max(map(_height, order))


def _added(order: Order, parts: Sequence[Array], name: str, factors: bool) -> Array:
    """Return the parts combined in that order, each step rounded to type ``name``, in the type of the data."""
    truncates = name == TRUNCATED
    kind = numpy_dtype("bfloat16" if truncates else name)
    # As hardware has it: narrow types are added in float32 and rounded.
    wide = np.dtype(np.float32) if kind.itemsize < 4 else kind

    def combined(part: Order) -> Array:
        if isinstance(part, int):
            return parts[part].astype(kind)
        left, right = (combined(half).astype(wide) for half in part)
        result = left * right if factors else left + right
        if truncates:
            result.view(np.uint32)[:] &= 0xFFFF_0000
        return result.astype(kind)

    with np.errstate(all="ignore"):
        return combined(order).astype(parts[0].dtype)


def _narrower_type(values: Array, dtype: str) -> str:
    """Return the narrowest type that holds all ``values`` of ``dtype``, '' where none is narrower than that."""
    for name in reversed(TYPES):
        narrower = EXACT_LIMIT[name] < EXACT_LIMIT[dtype]
        if narrower and EXPONENTS[name][1] <= EXPONENTS[dtype][1]:
            with np.errstate(all="ignore"):
                held = values.astype(numpy_dtype(name)).astype(values.dtype)
            if np.array_equal(held, values):
                return name
    return ""


@lru_cache(maxsize=64)
def _families(collective: str, ranks: int, root: int) -> tuple[Family, ...]:
    """Return the orders to try, those of more libraries first."""
    own = []
    for name in algorithms_of(collective):
        schedule = schedule_for(collective, name, ranks, root, prove=False)
        if followed(schedule):
            both = [bit_dependence(schedule, own_first).orders for own_first in (False, True)]
            orders = tuple(dict.fromkeys([*both[0], *both[1]]))
            own.append(Family(f"order of {name}", orders))
    turns = [[(start + step) % ranks for step in range(ranks)] for start in range(ranks)]
    chains = Family("chain", tuple(_chain(turn) for turn in turns))
    back = Family("chain backwards", tuple(_chain(turn[::-1]) for turn in turns))
    trees = Family("tree", tuple(_trees(ranks)))
    starts = [[rank, *(peer for peer in range(ranks) if peer != rank)] for rank in range(ranks)]
    own_first = Family("chain that begins with the owner", tuple(map(_chain, starts)))
    return (trees, chains, back, own_first, *own)


def _chain(ranks: Sequence[int]) -> Order:
    order: Order = ranks[0]
    for rank in ranks[1:]:
        order = (order, rank)
    return order


def _trees(ranks: int) -> Iterator[Order]:
    """Yield trees over neighbours and over halves; ranks beyond a power of two are added to another first."""
    power = 1 << (ranks.bit_length() - 1)
    extra = ranks - power
    # MPICH and Open MPI add the first ranks in pairs, others the last ones to the first.
    paired: list[Order] = [(2 * pair, 2 * pair + 1) for pair in range(extra)]
    folded: list[Order] = [(rank, rank + power) for rank in range(extra)]
    starts = ([*paired, *range(2 * extra, ranks)], [*folded, *range(extra, power)])
    for level in starts if extra else starts[:1]:
        neighbours, halves = list(level), list(level)
        while len(neighbours) > 1:
            neighbours = list(zip(neighbours[::2], neighbours[1::2], strict=True))
            middle = len(halves) // 2
            halves = list(zip(halves[:middle], halves[middle:], strict=True))
        yield from (neighbours[0], halves[0])
