"""Many points at once: medians of rounds, whether two sides differ by more than chance, and by how much.

A case is measured in several rounds, and samples of one round resemble each other more than those of
different rounds; so what is tested is a round's median, and a round counts once however many samples it has.

Two tests must agree that two sides differ. Welch's t test of the medians' logarithms gives p-values as small
as the evidence is strong, which a correction for many points needs: the least p of an exact rank or
permutation test of 6 rounds against 6 is 2/924, so among 64 points corrected at 5 % a single changed one
could never be found. Mann-Whitney's exact test, not corrected, assumes nothing and vetoes what a few odd
rounds did to the t test; it also says how many rounds are too few. Simulations: docs/compare.md. Where
there are so many rounds that its own p, corrected, is far below the level, it finds a change alone: on
machines that others use, too, single rounds take a hundred times as long, and no t test finds anything.

Holm's correction, not Benjamini and Hochberg's: that bounds the share of findings that are false, so
where half of the points did change it lets 2 % of the others be called changed, and a gate that cries wolf
is turned off.

Intervals of ratios of medians come from a bootstrap over rounds. Their samples are not drawn anew: a round's
median already varies with its samples, and drawing at both levels counts that twice (A. C. Davison and D. V.
Hinkley, "Bootstrap Methods and their Application", Cambridge 1997, section 3.8; figures in docs/compare.md).
Nothing has to be drawn one by one: the median of V draws from V values is the value at the rank of the median
of V uniform numbers (J. S. Maritz and R. G. Jarrett, J. Amer. Statist. Assoc. 73 (1978) 194). One or two
random numbers stand for a whole resampling, and they serve every point that has as many rounds.

Variants of one run are measured in turn, and their rounds are compared in pairs: the tests are Yuen's trimmed
t of the logarithms of ratios and the one of signs, and the interval is of the median ratio. What holds up the
machine for a while then meets both sides, but not to the same per cent: such rounds are trimmed, and signs
count them once, where Student's t and Wilcoxon's ranks count them most (docs/compare.md).

B. L. Welch, Biometrika 34 (1947) 28; H. B. Mann and D. R. Whitney, Ann. Math. Statist. 18 (1947) 50;
S. Holm, Scand. J. Statist. 6 (1979) 65; Y. Benjamini and Y. Hochberg, J. R. Statist. Soc. B 57 (1995) 289;
K. K. Yuen, Biometrika 61 (1974) 165; J. W. Tukey and D. H. McLaughlin, Sankhya A 25 (1963) 331.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]
Truths = NDArray[np.bool_]

Rounds = Sequence[Floats]
"""The samples of one point, one array a round, none of them empty."""

POINTS_AT_ONCE = 1000
"""So that replicates take some ten megabytes, however many points there are."""

FEW_ROUNDS = 5
"""Below, plain percentiles cover less than they promise."""

FEWEST_ROUNDS = 3
"""On either side; with two a spread is no more than a guess."""

RANKS_SHARE = 0.2
"""Of the share of false findings that is let pass: so much comes on top for what ranks alone find."""

TRIMMED = 0.25
"""Of the ratios of rounds on either side: a quarter of the rounds may be of another state of the machine."""

MOST_EXACT = 12
"""Rounds on the larger side up to which ranks are counted exactly; beyond, the normal approximation holds."""


def round_medians(points: Sequence[Rounds]) -> Floats:
    """The median of every round, a row for each point; NaN where a point has fewer rounds than the others."""
    parts = [one_round for rounds in points for one_round in rounds]
    counts = np.array([len(rounds) for rounds in points], dtype=np.int64)
    table = np.full((len(points), int(counts.max(initial=0))), np.nan)
    if parts:
        lengths = np.array([len(part) for part in parts], dtype=np.int64)
        values = np.concatenate(parts).astype(np.float64)
        # All rounds are sorted at once: a call for each takes seconds for ten thousand points.
        ordered = values[np.lexsort((values, np.repeat(np.arange(len(parts)), lengths)))]
        starts = np.cumsum(lengths) - lengths
        place = np.arange(len(parts)) - np.repeat(np.cumsum(counts) - counts, counts)
        middles = (ordered[starts + (lengths - 1) // 2] + ordered[starts + lengths // 2]) / 2
        table[np.repeat(np.arange(len(points)), counts), place] = middles
    return table


def rounds_of(medians: Floats) -> Whole:
    """The number of rounds in each row."""
    return np.asarray(np.sum(~np.isnan(medians), axis=1), dtype=np.int64)


@dataclass(frozen=True)
class Tested:
    """Many points tested: ratio of medians, corrected and rank p, and which of them differ.

    would_differ: those that would, had each been the only point.
    """

    ratio: Floats
    p_value: Floats
    rank_p_value: Floats
    differs: Truths
    would_differ: Truths

    def beyond(self, threshold: Floats) -> Truths:
        """Points that differ, and by the threshold or more in either direction."""
        return self.differs & self._is_far(threshold)

    def kept_back(self, threshold: Floats) -> Truths:
        """Points that the correction for the number of points alone keeps from being ``beyond``."""
        return self.would_differ & ~self.differs & self._is_far(threshold)

    def _is_far(self, threshold: Floats) -> Truths:
        return np.abs(np.log(self.ratio)) >= np.log1p(threshold)


def tested(
    base: Floats,
    new: Floats,
    confidence: float,
    pairs: Truths | None = None,  # noqa: PT028 - no test function
) -> Tested:
    """base, new: medians of rounds in seconds, a row a point, NaN where a row has no further round.

    pairs: rows that hold ones and ratios of rounds (``as_pairs``): there a trimmed t test stands for Welch's,
    and signs for ranks.
    """
    alone, ranks = welch_p(np.log(base), np.log(new)), rank_p(base, new)
    if pairs is not None:
        alone[pairs], ranks[pairs] = (test(np.log(new[pairs])) for test in (trimmed_p, sign_p))
    welch, level = corrected(alone), 1 - confidence + 1e-12
    ratio = np.nanmedian(new, axis=1) / np.nanmedian(base, axis=1)
    vetoed = ranks > level
    # A few rounds that take a hundred times as long leave means without meaning, and ranks what they were.
    by_ranks, by_ranks_alone = (p <= RANKS_SHARE * level for p in (corrected(ranks), ranks))
    differs, would_differ = ((p <= level) & ~vetoed for p in (welch, alone))
    return Tested(ratio, welch, ranks, differs | by_ranks, would_differ | by_ranks_alone)


def as_pairs(base: Floats, new: Floats, confidence: float) -> tuple[Floats, Floats, Truths]:
    """Ones and ratios in the place of times, in rows whose rounds can be told in pairs, and which these are.

    For rounds that were measured in turn, one of the base right before or after one of the new side: what
    else the machine did meanwhile was the same for both, and ratios do not have it. Rows with as many rounds
    on both sides, and enough of them that signs can show a change at ``confidence`` (6 at 95 %).
    """
    rounds = rounds_of(base)
    pairs = (rounds == rounds_of(new)) & (2.0 ** (1 - rounds) <= 1 - confidence + 1e-12)
    remaining, ratios, width = base.copy(), new.copy(), min(base.shape[1], new.shape[1])
    ratios[pairs, :width] /= base[pairs, :width]
    remaining[pairs] /= base[pairs]
    return remaining, ratios, pairs


def least_rank_p(base_rounds: int, new_rounds: int) -> float:
    """The smallest two-sided p that ranks of so many rounds can give: 2 / (all ways to tell them apart)."""
    return min(1.0, 2.0 / math.comb(base_rounds + new_rounds, base_rounds))


def enough_rounds(base_rounds: int, new_rounds: int, confidence: float) -> bool:
    """True if so many rounds can show a change at all at ``confidence``."""
    few = min(base_rounds, new_rounds) < FEWEST_ROUNDS
    return not few and least_rank_p(base_rounds, new_rounds) <= 1 - confidence + 1e-12


@lru_cache(maxsize=64)
def rounds_needed(confidence: float) -> int:
    """The fewest rounds on each side that are enough: 4 at 95 %."""
    return next(n for n in range(FEWEST_ROUNDS, 1000) if enough_rounds(n, n, confidence))


def welch_p(base: Floats, new: Floats) -> Floats:
    """Two-sided p of equal means, a row a point, NaN where a row has no further round."""
    from scipy import special

    n, m = (rounds_of(side).astype(np.float64) for side in (base, new))
    a, b = np.nansum(base, axis=1) / n, np.nansum(new, axis=1) / m
    base_part = np.nansum((base - a[:, None]) ** 2, axis=1) / (n - 1) / n
    new_part = np.nansum((new - b[:, None]) ** 2, axis=1) / (m - 1) / m
    variance = base_part + new_part
    # What rounding of logarithms leaves of equal times is no spread and no difference. Where nothing varies
    # at all the answer is certain: 0 for a difference, 1 for none.
    still = variance < (1e-12 * np.maximum(1.0, np.abs(a))) ** 2
    certain = np.where(np.abs(a - b) > 1e-9, 0.0, 1.0)
    # Welch's and Satterthwaite's degrees of freedom, with 1 where the division would be by nothing.
    safe = np.where(still, 1.0, variance)
    freedom = safe**2 / np.where(still, 1.0, base_part**2 / (n - 1) + new_part**2 / (m - 1))
    p_values = 2 * special.stdtr(np.where(still, 1.0, freedom), -np.abs(a - b) / np.sqrt(safe))
    return np.asarray(np.where(still, certain, p_values), dtype=np.float64)


def rank_p(base: Floats, new: Floats) -> Floats:
    """Two-sided p of Mann-Whitney's test, a row a point, NaN where a row has no further round."""
    from scipy import special

    counts = np.stack([rounds_of(base), rounds_of(new)], axis=1)
    p_values = np.ones(len(base))
    # Points with as many rounds on either side share one distribution.
    for n, m in np.unique(counts, axis=0).tolist():
        rows = np.flatnonzero((counts == (n, m)).all(axis=1))
        left, right = (
            side[rows][~np.isnan(side[rows])].reshape(len(rows), -1) for side in (base, new)
        )
        # Pairs in which the base is the faster one; ties count half.
        wins = np.zeros(len(rows))
        for column in range(m):
            compared = right[:, column : column + 1]
            wins += (left < compared).sum(axis=1) + 0.5 * (left == compared).sum(axis=1)
        low = np.minimum(wins, n * m - wins)
        if max(n, m) <= MOST_EXACT:
            # Rounding a half up makes p larger: ties never help to find a change.
            below = rank_distribution(n, m)[np.ceil(low).astype(np.int64)]
        else:
            deviation = math.sqrt(n * m * (n + m + 1) / 12)
            below = special.ndtr((low + 0.5 - n * m / 2) / deviation)
        p_values[rows] = np.minimum(1.0, 2 * below)
    return p_values


def trimmed_p(differences: Floats) -> Floats:
    """Two-sided p of a mean of zero without the outer quarters, a row a point, NaN where it has no further.

    Tukey's and McLaughlin's t of one sample: the trimmed mean over the spread of what is left, with the outer
    quarters as far out as the last that are kept.
    """
    from scipy import special

    ordered = np.sort(differences, axis=1)  # NaN last
    count = rounds_of(ordered)
    cut = (TRIMMED * count).astype(np.int64)
    places = np.arange(ordered.shape[1])
    inner = np.clip(places, cut[:, None], (count - cut - 1)[:, None])
    winsorized = np.where(
        places < count[:, None], np.take_along_axis(ordered, inner, axis=1), np.nan
    )
    kept = count - 2 * cut
    mean = np.nanmean(np.where(inner == places, ordered, np.nan), axis=1)
    spread = np.nanstd(winsorized, axis=1, ddof=1) * np.sqrt((count - 1) / (kept * (kept - 1)))
    still = spread < 1e-12  # as in welch_p
    p_values = 2 * special.stdtr(kept - 1, -np.abs(mean) / np.where(still, 1.0, spread))
    return np.asarray(
        np.where(still, np.where(np.abs(mean) > 1e-9, 0.0, 1.0), p_values), dtype=np.float64
    )


def sign_p(differences: Floats) -> Floats:
    """Two-sided p of as many differences above zero as below, a row a point, NaN where it has no further."""
    from scipy import special

    # What rounding leaves of equal times is no difference.
    above, below = np.sum(differences > 1e-12, axis=1), np.sum(differences < -1e-12, axis=1)
    p_values: Floats = np.minimum(
        1.0, 2 * special.bdtr(np.minimum(above, below), above + below, 0.5)
    )
    return p_values


@lru_cache(maxsize=256)
def rank_distribution(n: int, m: int) -> Floats:
    """P(U <= u) for u = 0 .. n m, by the recurrence of Mann and Whitney over who is the largest."""
    counts = [[np.ones(1) for _ in range(m + 1)] for _ in range(n + 1)]
    for i in range(1, n + 1):
        for j in range(1, m + 1):
            both = np.zeros(i * j + 1)
            # The largest is one of the n, above all j others, or one of the m.
            both[j:] += counts[i - 1][j]
            both[: i * (j - 1) + 1] += counts[i][j - 1]
            counts[i][j] = both
    return np.asarray(np.cumsum(counts[n][m]) / math.comb(n + m, n))


def corrected(p_values: Floats) -> Floats:
    """Holm's p-values: the chance that even one of those below a level is false is that level at most."""
    count = len(p_values)
    order = np.argsort(p_values)
    corrected_p = np.empty(count)
    corrected_p[order] = np.minimum(
        1.0, np.maximum.accumulate(p_values[order] * (count - np.arange(count)))
    )
    return corrected_p


def ratio_intervals(
    base: Floats, new: Floats, confidence: float, draws: int, seed: int
) -> tuple[Floats, Floats]:
    """Low and high end of new median over base median of every point.

    base, new: medians of rounds, a row for each point, NaN where a row has no further round.
    """
    from scipy import special

    # Percentiles of a bootstrap are too narrow for very few values; below five rounds they are taken further
    # out, as if of Student's distribution, with the spread corrected by n/(n-1) (T. C. Hesterberg, Amer.
    # Statist. 69 (2015) 371).
    rounds = np.minimum(rounds_of(base), rounds_of(new))
    count = np.maximum(rounds, 2).astype(np.float64)
    quantile = special.stdtrit(count - 1, (1 + confidence) / 2)
    further = special.ndtr(-np.sqrt(count / (count - 1)) * quantile)
    tails = np.where(rounds < FEW_ROUNDS, further, (1 - confidence) / 2)
    low, high = np.empty(len(base)), np.empty(len(base))
    for start in range(0, len(base), POINTS_AT_ONCE):
        chunk = slice(start, start + POINTS_AT_ONCE)
        old, now = (
            resampled_medians(medians[chunk], draws, [seed, side])
            for side, medians in enumerate((base, new))
        )
        ratios = np.sort(now / old, axis=1)
        # Outwards to a replicate that exists: the interval is never narrower than the tails say.
        first = np.floor(tails[chunk] * (draws - 1)).astype(np.int64)[:, None]
        low[chunk] = np.take_along_axis(ratios, first, axis=1)[:, 0]
        high[chunk] = np.take_along_axis(ratios, draws - 1 - first, axis=1)[:, 0]
    return low, high


def resampled_medians(medians: Floats, draws: int, seed: Sequence[int]) -> Floats:
    """``draws`` replicates of the median of every row, from its rounds drawn with replacement."""
    resampled = np.empty((len(medians), draws))
    counts = rounds_of(medians)
    ordered = np.sort(medians, axis=1)  # NaN last
    for count in np.unique(counts).tolist():
        rows = np.flatnonzero(counts == count)
        low, high = median_ranks(count, draws, seed)
        resampled[rows] = (ordered[rows][:, low] + ordered[rows][:, high]) / 2
    return resampled


def median_ranks(count: int, draws: int, seed: Sequence[int]) -> tuple[Whole, Whole]:
    """Ranks, from 0, of the two middle ones of ``count`` drawn values; equal ones for an odd count."""
    random = np.random.default_rng([*seed, count])
    lower = (count + 1) // 2
    low = random.beta(lower, count - lower + 1, draws)
    # Above the lower middle one there are count - lower more; the least of them is the upper middle one.
    high = low if count % 2 else low + (1 - low) * random.beta(1, count - lower, draws)
    first, second = (
        np.minimum((quantile * count).astype(np.int64), count - 1) for quantile in (low, high)
    )
    return first, second
