"""Random data whose sums are rounded, and how far a result is from the exact one.

The data of timed launches are exact in any order (``ccbench.verification``), so they cannot show in which
order and type a library adds. These can. Element i of a rank's input is the same number whatever the
message's size, so bits can be compared between sizes; and the numbers repeat with a prime period, so they can be
compared between positions of one message.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ccbench.collectives import collective
from ccbench.dtypes import EXACT_LIMIT, EXPONENTS, numpy_dtype

if TYPE_CHECKING:
    from ccbench.cases.axes import Case, InexactData

Array = NDArray[Any]
Floats = NDArray[np.float64]

INEXACT_SEED = 1 << 40
"""From here on a seed stands for the inexact data of a case; seeds of exact data never get so far."""

INEXACT_PERIOD = 4_093
"""A prime, so that a period begins at another place of every block of a power of two."""

MOST_STRETCHES = 64
"""Stretches of one period that are looked at in a long result, at equal distances: enough to meet every
block of up to as many ranks, and 1 MiB of float32 at most."""

LOG_NORMAL_SIGMA = 2.0
"""Of the magnitudes of ``gradients``, which are near log-normal (Chmiel et al., "Neural gradients are
near-lognormal", ICLR 2021); about what makes the largest of 4,093 a thousand times the median."""

GRADIENT_SCALE = 2.0**-6
"""Median magnitude of ``gradients``: 16 ranks then sum them in float8 without overflow."""

PRODUCT_SPREAD = 1.5
"""Factors of products lie between 1 / PRODUCT_SPREAD and PRODUCT_SPREAD: hundreds of ranks stay in range."""


def is_inexact(case: Case) -> bool:
    """Return whether results of ``case`` are rounded: it adds floating point numbers of several ranks."""
    reduces = collective(case.collective).reduces and case.op not in ("min", "max")
    return reduces and case.dtype in EXPONENTS and case.group_ranks > 1 and case.count > 0


def inexact_values(case: Case, rank: int, start: int, length: int) -> Array:
    """Return elements [start, start + length) of the inexact data of ``rank``."""
    assert case.inexact is not None, "only a case with such data is filled with them"
    period = inexact_period(case.inexact, case.dtype, case.op == "prod", case.ranks, rank)
    values: Array = np.resize(np.roll(period, -(start % INEXACT_PERIOD)), length)
    return values


@lru_cache(maxsize=256)
def inexact_period(
    data: InexactData, dtype: str, factors: bool, ranks: int, rank: int
) -> Array:
    """Return one period of what ``rank`` puts in, shape (INEXACT_PERIOD,), in ``dtype``.

    factors: numbers near 1, for products.
    """
    cancels = data.distribution == "cancelling" and rank == ranks - 1 and ranks > 1
    drawn = _drawn(data, factors, rank)
    if cancels and not factors:
        addends = [inexact_period(data, dtype, factors, ranks, peer) for peer in range(rank)]
        total = np.sum([addend.astype(np.float64) for addend in addends], axis=0)
        drawn = drawn / data.spread - total
    period: Array = drawn.astype(numpy_dtype(dtype))
    return period


def _drawn(data: InexactData, factors: bool, rank: int) -> Floats:
    generator = np.random.default_rng([data.seed, rank])
    signs = generator.choice([-1.0, 1.0], INEXACT_PERIOD)
    if factors:
        near_one: Floats = PRODUCT_SPREAD ** generator.uniform(-1, 1, INEXACT_PERIOD)
        return signs * near_one
    magnitudes: Floats = np.abs(generator.standard_normal(INEXACT_PERIOD))
    if data.distribution == "gradients":
        normal = generator.standard_normal(INEXACT_PERIOD)
        magnitudes = GRADIENT_SCALE * np.exp(LOG_NORMAL_SIGMA * normal)
    if data.distribution == "log_uniform":
        magnitudes = np.ones(INEXACT_PERIOD)
    if data.distribution != "cancelling":
        magnitudes = magnitudes * data.spread ** -generator.uniform(0, 1, INEXACT_PERIOD)
    return signs * magnitudes


@lru_cache(maxsize=32)
def exact_results(data: InexactData, dtype: str, op: str, ranks: int) -> Floats:
    """Return one period of results, exact and then rounded to float64 once, shape (INEXACT_PERIOD,).

    Sums are exact (Shewchuk, "Adaptive precision floating-point arithmetic", 1997; math.fsum); products are
    in the longest type of the machine, and averages rounded twice.
    """
    parts = np.stack(
        [
            inexact_period(data, dtype, op == "prod", ranks, rank).astype(np.float64)
            for rank in range(ranks)
        ]
    )
    if op == "prod":
        products: Floats = np.prod(parts.astype(np.longdouble), axis=0).astype(np.float64)
        return products
    sums: Floats = np.array([math.fsum(column) for column in parts.T])
    # A product with PREMULTIPLIER rounds nothing.
    return sums / ranks if op == "avg" else sums * (2.0 if op == "premulsum" else 1.0)


def errors_in_ulp(values: Array, exact: Floats, dtype: str) -> Floats:
    """Return the distance of ``values`` from ``exact`` in units in the last place of the latter.

    At most 0.5 means correctly rounded. What is no finite number is infinitely far.
    """
    lowest, _ = EXPONENTS[dtype]
    wide = values.astype(np.float64)
    significands, exponents = np.frexp(exact)
    # Beside 0 all digits are wrong. Below a power of two numbers lie twice as close.
    exponents = np.where(exact == 0, np.frexp(wide)[1], exponents)
    closer = (np.abs(significands) == 0.5) & (np.abs(wide) < np.abs(exact))
    exponents = np.maximum(exponents - 1 - closer, lowest)
    units = np.ldexp(1.0, exponents - int(math.log2(EXACT_LIMIT[dtype])) + 1)
    with np.errstate(invalid="ignore"):
        errors: Floats = np.abs(wide - exact) / units
    return np.where(np.isfinite(errors), errors, np.inf)


def looked_at(elements: int) -> NDArray[np.int64]:
    """Return the places of a result of ``elements`` whose bits are recorded: all, or MOST_STRETCHES periods."""
    if elements <= MOST_STRETCHES * INEXACT_PERIOD:
        return np.arange(elements)
    begins = np.linspace(0, elements - INEXACT_PERIOD, MOST_STRETCHES).astype(np.int64)
    return (begins[:, None] + np.arange(INEXACT_PERIOD)).ravel()


def bits_of(values: Array) -> Array:
    """Return the bits of ``values`` as unsigned whole numbers of their size."""
    return values.view(f"u{values.dtype.itemsize}")
