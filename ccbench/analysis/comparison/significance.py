"""Whether rounds' medians of two runs differ by more than chance, for many points at once.

Two tests must agree. Welch's t test of the medians' logarithms gives p-values as small as the evidence is
strong, which a correction for many points needs: the least p of an exact rank or permutation test of 6
rounds against 6 is 2/924, so among 64 points corrected at 5 % a single changed one could never be found.
Mann-Whitney's exact test, not corrected, assumes nothing and vetoes what a few odd rounds did to the t test;
it also says how many rounds are too few. Simulations: docs/compare.md.

Holm's correction, not Benjamini and Hochberg's: that bounds the share of findings that are false, so
where half of the points did change it lets 2 % of the others be called changed, and a gate that cries wolf
is turned off.

B. L. Welch, Biometrika 34 (1947) 28; H. B. Mann and D. R. Whitney, Ann. Math. Statist. 18 (1947) 50;
S. Holm, Scand. J. Statist. 6 (1979) 65; Y. Benjamini and Y. Hochberg, J. R. Statist. Soc. B 57 (1995) 289.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ccbench.analysis.comparison.rounds import Floats

FEWEST_ROUNDS = 3
"""On either side; with two a spread is no more than a guess."""

MOST_EXACT = 12
"""Rounds on the larger side up to which ranks are counted exactly; beyond, the normal approximation holds."""


def least_rank_p(base_rounds: int, new_rounds: int) -> float:
    """The smallest two-sided p that ranks of so many rounds can give: 2 / (all ways to tell them apart)."""
    return min(1.0, 2.0 / math.comb(base_rounds + new_rounds, base_rounds))


def enough_rounds(base_rounds: int, new_rounds: int, confidence: float) -> bool:
    """Whether so many rounds can show a change at all at ``confidence``."""
    few = min(base_rounds, new_rounds) < FEWEST_ROUNDS
    return not few and least_rank_p(base_rounds, new_rounds) <= 1 - confidence + 1e-12


@lru_cache(maxsize=64)
def rounds_needed(confidence: float) -> int:
    """The fewest rounds on each side that are enough: 4 at 95 %."""
    return next(n for n in range(FEWEST_ROUNDS, 1000) if enough_rounds(n, n, confidence))


def welch_p(base: Floats, new: Floats) -> Floats:
    """Two-sided p of equal means, a row a point, NaN where a row has no further round.

    Where nothing varies at all the answer is certain: 0 for a difference, 1 for none.
    """
    from scipy import special

    n, m = (np.sum(~np.isnan(one), axis=1).astype(np.float64) for one in (base, new))
    a, b = np.nansum(base, axis=1) / n, np.nansum(new, axis=1) / m
    base_part = np.nansum((base - a[:, None]) ** 2, axis=1) / (n - 1) / n
    new_part = np.nansum((new - b[:, None]) ** 2, axis=1) / (m - 1) / m
    variance = base_part + new_part
    # What rounding of logarithms leaves of equal times is no spread and no difference.
    still = variance < (1e-12 * np.maximum(1.0, np.abs(a))) ** 2
    safe = np.where(still, 1.0, variance)
    freedom = safe**2 / np.where(still, 1.0, base_part**2 / (n - 1) + new_part**2 / (m - 1))
    found = 2 * special.stdtr(np.where(still, 1.0, freedom), -np.abs(a - b) / np.sqrt(safe))
    certain = np.where(np.abs(a - b) > 1e-9, 0.0, 1.0)
    return np.asarray(np.where(still, certain, found), dtype=np.float64)


def rank_p(base: Floats, new: Floats) -> Floats:
    """Two-sided p of Mann-Whitney's test, a row a point, NaN where a row has no further round."""
    n, m = (np.sum(~np.isnan(one), axis=1) for one in (base, new))
    found = np.ones(len(base))
    for pair in np.unique(np.stack([n, m], axis=1), axis=0) if len(base) else ():
        rows = np.flatnonzero((n == pair[0]) & (m == pair[1]))
        found[rows] = _rank_p(_packed(base[rows], pair[0]), _packed(new[rows], pair[1]))
    return found


def _packed(values: Floats, count: int) -> Floats:
    """The ``count`` values of each row that are not NaN."""
    packed: Floats = values[~np.isnan(values)].reshape(len(values), count)
    return packed


def _rank_p(base: Floats, new: Floats) -> Floats:
    n, m = base.shape[1], new.shape[1]
    # Pairs in which the base is the faster one; ties count half.
    wins = np.zeros(len(base))
    for column in range(m):
        other = new[:, column : column + 1]
        wins += (base < other).sum(axis=1) + 0.5 * (base == other).sum(axis=1)
    low = np.minimum(wins, n * m - wins)
    if max(n, m) <= MOST_EXACT:
        # Rounding a half up makes p larger: ties never help to find a change.
        below = _rank_distribution(n, m)[np.ceil(low).astype(np.int64)]
    else:
        from scipy import special

        deviation = math.sqrt(n * m * (n + m + 1) / 12)
        below = np.asarray(special.ndtr((low + 0.5 - n * m / 2) / deviation), dtype=np.float64)
    return np.asarray(np.minimum(1.0, 2 * below), dtype=np.float64)


@lru_cache(maxsize=256)
def _rank_distribution(n: int, m: int) -> NDArray[np.float64]:
    """P(U <= u) for u = 0 .. n m, by the recurrence of Mann and Whitney over who is the largest."""
    counts = [[np.ones(1) for _ in range(m + 1)] for _ in range(n + 1)]
    for i in range(1, n + 1):
        for j in range(1, m + 1):
            both = np.zeros(i * j + 1)
            both[j:] += counts[i - 1][j]  # the largest is one of the n: above all j others
            both[: i * (j - 1) + 1] += counts[i][j - 1]
            counts[i][j] = both
    return np.asarray(np.cumsum(counts[n][m]) / math.comb(n + m, n))


def corrected(p_values: Floats) -> Floats:
    """Holm's p-values: the chance that even one of those below a level is false is that level at most."""
    count = len(p_values)
    order = np.argsort(p_values)
    found = np.empty(count)
    found[order] = np.minimum(1.0, np.maximum.accumulate(p_values[order] * (count - np.arange(count))))
    return found


def differ(welch: Floats, ranks: Floats, confidence: float) -> NDArray[np.bool_]:
    """Which points changed: ``welch`` corrected, ``ranks`` not."""
    level = 1 - confidence + 1e-12
    return (welch <= level) & (ranks <= level)
