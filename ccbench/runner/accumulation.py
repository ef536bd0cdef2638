"""Type and order of the additions that explain the bits of a result, found by trying them.

Candidates are the orders of ccbench's own schedules, chains around the ring and back or from the owner of a block on,
and trees over neighbours or over halves, each in several types. One of them has to give every bit; where blocks of the
result have orders of their own, every bit has to come from one of a family.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ccbench.cases.axes import Case, InexactData
from ccbench.cases.measurement import BY_BLOCKS
from ccbench.dtypes import EXACT_LIMIT, EXPONENTS, numpy_dtype
from ccbench.inexact import Array, bits_of, inexact_period
from ccbench.schedules import algorithms_of, schedule_for
from ccbench.schedules.orders import Order, Sum, bit_dependence, chain, followed

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


Families = Mapping[str, Sequence[Sum]]
"""Orders by kind; of those of one kind blocks of a result may each have another."""


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
        order: str | None = ""
        # Few elements rule out most candidates.
        for count in (FEWEST_ELEMENTS, len(bits)):
            if order is not None:
                few = [part[:count] for part in parts]
                order = _explanation(families, few, bits[:count], name, op == "prod")
        if order is not None:
            fitting.append((name, order))
    if not fitting:
        narrower = narrower_type(bits.view(kind), dtype)
        return f"{narrower}, order {UNKNOWN}" if narrower else UNKNOWN
    # The type of the data comes first, then the narrowest that is wider.
    name, order = fitting[0]
    wider = any(EXACT_LIMIT.get(more, 0) > EXACT_LIMIT.get(name, 0) for more, _ in fitting)
    return ", ".join(filter(None, (name + (" or wider" if wider else ""), order)))


def _explanation(
    families: Families, parts: Sequence[Array], bits: Array, name: str, factors: bool
) -> str | None:
    """Return the order in which additions in type ``name`` give ``bits``, '' for any, None for none."""
    fitting: list[str] = []
    for kind, sums in families.items():
        unexplained = np.ones(len(bits), bool)
        for total in sums:
            agrees = bits_of(_added(total.order, parts, name, factors)) == bits
            if agrees.all():
                fitting.append(order_text(total))
            unexplained &= ~agrees
        if not fitting and not unexplained.any():
            return f"{kind}, {BY_BLOCKS}"
    if not fitting:
        return None
    tried = sum(map(len, families.values()))
    return "" if len(fitting) == tried else fitting[0]


def order_text(total: Sum) -> str:
    """Return ``chain 0+1+2+3``, or ``tree (0+1)+(2+3)``; of many ranks the kind and the height alone."""
    ranks = total.ranks.bit_count()
    kind = "chain" if total.height == ranks - 1 else "tree"
    if ranks > MOST_SHOWN:
        return f"{kind} of height {total.height}"
    return f"{kind} {_written(total.order)}"


def _written(order: Order) -> str:
    if isinstance(order, int):
        return str(order)
    first, second = order
    # Chains read from the left; additions commute.
    if isinstance(first, int) and isinstance(second, tuple):
        first, second = second, first
    if isinstance(second, tuple):
        return f"({_written(first)})+({_written(second)})"
    return f"{_written(first)}+{second}"


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


def narrower_type(values: Array, dtype: str) -> str:
    """Return the narrowest type that holds all ``values`` of ``dtype``, '' where none is narrower than that."""
    for name in reversed(TYPES):
        narrower = EXACT_LIMIT[name] < EXACT_LIMIT[dtype]
        if narrower and EXPONENTS[name][1] <= EXPONENTS[dtype][1]:
            with np.errstate(all="ignore"):
                held = values.astype(numpy_dtype(name)).astype(values.dtype)
            # Sums in a wider type are hardly all such numbers by chance.
            if np.array_equal(held, values):
                return name
    return ""


@lru_cache(maxsize=64)
def _families(collective: str, ranks: int, root: int) -> Families:
    """Return the orders to try, those of more libraries first."""
    own: dict[str, Sequence[Sum]] = {}
    # Own schedules have the orders of most libraries' algorithms for one collective or another.
    for name in algorithms_of(collective):
        schedule = schedule_for(collective, name, ranks, root, prove=False)
        if followed(schedule):
            both = [bit_dependence(schedule, own_first).sums for own_first in (False, True)]
            own[f"order of {name}"] = tuple({*both[0], *both[1]})
    turns = [[(start + step) % ranks for step in range(ranks)] for start in range(ranks)]
    starts = [[rank, *(peer for peer in range(ranks) if peer != rank)] for rank in range(ranks)]
    return {
        # Of three ranks every tree is a chain.
        "tree": tuple(trees(ranks)) if ranks > 3 else (),
        "chain": [chain(turn) for turn in turns],
        "chain backwards": [chain(turn[::-1]) for turn in turns],
        "chain that begins with the owner": [chain(start) for start in starts],
        **own,
    }


def trees(ranks: int) -> Iterator[Sum]:
    """Yield trees over neighbours and over halves; ranks beyond a power of two are added to another first."""
    power = 1 << (ranks.bit_length() - 1)
    extra = ranks - power
    # MPICH and Open MPI add the first ranks in pairs, others the last ones to the first.
    paired = [[2 * rank, 2 * rank + 1] for rank in range(extra)]
    folded = [[rank, rank + power] for rank in range(extra)]
    paired += [[rank] for rank in range(2 * extra, ranks)]
    folded += [[rank] for rank in range(extra, power)]
    for leaves in (paired, folded) if extra else (paired,):
        neighbours = halves = list(map(chain, leaves))
        while len(halves) > 1:
            middle = len(halves) // 2
            neighbours = list(map(Sum.__add__, neighbours[::2], neighbours[1::2]))
            halves = list(map(Sum.__add__, halves[:middle], halves[middle:]))
        yield from (neighbours[0], halves[0])
