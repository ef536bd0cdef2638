"""Intervals of ratios of medians by a bootstrap over rounds, for many points at once.

Rounds are drawn with replacement, their samples are not drawn anew: a round's median already varies with its
samples, and drawing at both levels counts that twice (A. C. Davison and D. V. Hinkley, "Bootstrap Methods and
their Application", Cambridge 1997, section 3.8; figures in docs/compare.md).

Nothing has to be drawn one by one: the median of V draws from V values is the value at the rank of the median
of V uniform numbers (J. S. Maritz and R. G. Jarrett, J. Amer. Statist. Assoc. 73 (1978) 194). One or two
random numbers stand for a whole resampling, and they serve every point that has as many rounds.

Percentiles of a bootstrap are too narrow for very few values; below five rounds they are taken further out,
as if of Student's distribution, with the spread corrected by n/(n-1) (T. C. Hesterberg, Amer. Statist. 69
(2015) 371).

Whether rounds' medians of two runs differ by more than chance, for many points at once.

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

from ccbench.analysis.verdicts import Floats, Whole

POINTS_AT_ONCE = 1000
"""So that replicates take some ten megabytes, however many points there are."""

FEW_ROUNDS = 5
"""Below, plain percentiles cover less than they promise."""


def ratio_intervals(
    base: Floats, new: Floats, confidence: float, draws: int, seed: int
) -> tuple[Floats, Floats]:
    """Low and high end of new median over base median of every point.

    base, new: medians of rounds, a row for each point, NaN where a row has no further round.
    """
    low, high = np.empty(len(base)), np.empty(len(base))
    sides = [_Resampled(one, draws, [seed, side]) for side, one in enumerate((base, new))]
    tails = _tails(np.minimum(sides[0].rounds, sides[1].rounds), confidence)
    for start in range(0, len(base), POINTS_AT_ONCE):
        chunk = np.arange(start, min(start + POINTS_AT_ONCE, len(base)))
        ratios = np.sort(sides[1].medians(chunk) / sides[0].medians(chunk), axis=1)
        # Outwards to a replicate that exists: the interval is never narrower than the tails say.
        first = np.floor(tails[chunk] * (draws - 1)).astype(np.int64)[:, None]
        low[chunk] = np.take_along_axis(ratios, first, axis=1)[:, 0]
        high[chunk] = np.take_along_axis(ratios, draws - 1 - first, axis=1)[:, 0]
    return low, high


def _tails(rounds: Whole, confidence: float) -> Floats:
    """The share of replicates to leave out on each side, by the rounds of the side with fewer."""
    from scipy import special

    plain = np.full(len(rounds), (1 - confidence) / 2)
    count = np.maximum(rounds, 2).astype(np.float64)
    quantile = special.stdtrit(count - 1, (1 + confidence) / 2)
    further = special.ndtr(-np.sqrt(count / (count - 1)) * quantile)
    return np.asarray(np.where(rounds < FEW_ROUNDS, further, plain), dtype=np.float64)


class _Resampled:
    """The rounds of every point, sorted, and the ranks at which the medians of resampled ones are."""

    def __init__(self, round_medians: Floats, draws: int, seed: list[int]) -> None:
        self.rounds: Whole = np.sum(~np.isnan(round_medians), axis=1)
        self.sorted = np.sort(round_medians, axis=1)  # NaN last
        self.draws = draws
        self.ranks = {int(n): _median_ranks(int(n), draws, seed) for n in np.unique(self.rounds)}

    def medians(self, points: Whole) -> Floats:
        """Replicates of the medians of ``points``, a row for each."""
        found = np.empty((len(points), self.draws))
        for count, (low, high) in self.ranks.items():
            rows = np.flatnonzero(self.rounds[points] == count)
            values = self.sorted[points[rows]]
            found[rows] = (values[:, low] + values[:, high]) / 2
        return found


def _median_ranks(count: int, draws: int, seed: list[int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Ranks, from 0, of the two middle ones of ``count`` drawn values; the same twice for an odd count."""
    random = np.random.default_rng([*seed, count])
    lower = (count + 1) // 2
    low = random.beta(lower, count - lower + 1, draws)
    # Above the lower middle one there are count - lower more; the least of them is the upper middle one.
    high = low if count % 2 else low + (1 - low) * random.beta(1, count - lower, draws)
    found = [np.minimum((one * count).astype(np.int64), count - 1) for one in (low, high)]
    return found[0], found[1]


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
