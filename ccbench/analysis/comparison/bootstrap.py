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
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ccbench.analysis.comparison.rounds import Floats, Whole

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
