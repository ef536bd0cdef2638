"""Many points at once: medians of rounds, whether two sides differ by more than chance, and by how much.

A case is measured in several rounds, and samples of one round resemble each other more than those of
different rounds; so what is tested is a round's median, and a round counts once however many samples it has.

Two tests must agree that two sides differ. Welch's t test of the medians' logarithms gives p-values as small
as the evidence is strong, which a correction for many points needs: the least p of an exact rank or
permutation test of 6 rounds against 6 is 2/924, so among 64 points corrected at 5 % a single changed one
could never be found. Mann-Whitney's exact test, not corrected, assumes nothing and vetoes what a few odd
rounds did to the t test; it also says how many rounds are too few. Simulated (60 pairs of runs of 64 points, six
rounds, one point 10 % slower, noise of rounds 1 %), rank tests find 2 % of the slow points, Yuen's 98 %, Welch's all.
Where there are so many rounds that its own p, corrected, is far below the level, it finds a change alone: on
machines that others use, too, single rounds take a hundred times as long, and no t test finds anything.

Holm's correction, not Benjamini and Hochberg's: that bounds the share of findings that are false, so
where half of the points did change (by 30 %, rounds vary by 10 %) it lets 2.2 % of the others be called changed,
Holm's 0.2 %, and a gate that cries wolf is turned off. It finds more then, 94 % of the slow ones in place of 66 %.

Intervals of ratios of medians come from a bootstrap over rounds. Their samples are not drawn anew: a round's
median already varies with its samples, and drawing at both levels counts that twice (A. C. Davison and D. V.
Hinkley, "Bootstrap Methods and their Application", Cambridge 1997, section 3.8). Simulated intervals of
95 % from rounds alone hold 94.5 to 95.6 %, from rounds and their samples 95.5 to 99.7 % and are up to 37 % wider.
Points with as many rounds share what is drawn.

Variants of one run are measured in turn, and their rounds are compared in pairs: the tests are Yuen's trimmed
t of the logarithms of ratios and the one of signs, and the interval is of the median ratio. What holds up the
machine for a while then meets both sides, but not to the same per cent: such rounds are trimmed, and signs
count them once, where Student's t and Wilcoxon's ranks count them most.

B. L. Welch, Biometrika 34 (1947) 28; H. B. Mann and D. R. Whitney, Ann. Math. Statist. 18 (1947) 50;
S. Holm, Scand. J. Statist. 6 (1979) 65; Y. Benjamini and Y. Hochberg, J. R. Statist. Soc. B 57 (1995) 289;
K. K. Yuen, Biometrika 61 (1974) 165; J. W. Tukey and D. H. McLaughlin, Sankhya A 25 (1963) 331.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]
Truths = NDArray[np.bool_]

Rounds = Sequence[Floats]
"""The samples of one point, one array a round, none of them empty."""

CONFIDENCE = 0.95
"""Of intervals, and one minus the share of false findings that is let pass."""

LEVEL = 1 - CONFIDENCE + 1e-12

DRAWS, SEED = 1000, 1
"""Of the bootstrap, and of everything that is drawn."""

DRAWN_AT_ONCE = 4_000_000
"""Values that resampling holds at a time: 32 MB."""

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

ROUNDING = 1e-12
"""What rounding of logarithms leaves of equal times."""


def round_medians(points: Sequence[Rounds]) -> Floats:
    """Return the median of every round, a row for each point; NaN where a point has fewer rounds than others."""
    import pandas as pd

    counts = np.array([len(rounds) for rounds in points], dtype=np.int64)
    table = np.full((len(points), int(counts.max(initial=0))), np.nan)
    parts = [one_round for rounds in points for one_round in rounds]
    if parts:
        owner = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
        medians = pd.Series(np.concatenate(parts)).groupby(owner).median()
        table[np.arange(table.shape[1]) < counts[:, None]] = medians.to_numpy()
    return table


def rounds_of(medians: Floats) -> Whole:
    """Return the number of rounds in each row."""
    return np.asarray(np.sum(~np.isnan(medians), axis=1), dtype=np.int64)


def by_rounds(base: Floats, new: Floats) -> Iterator[tuple[Whole, Floats, Floats]]:
    """Give the rows that have as many rounds on either side, and these rounds without NaN."""
    counts = np.stack([rounds_of(base), rounds_of(new)], axis=1)
    for count in np.unique(counts, axis=0):
        rows = np.flatnonzero((counts == count).all(axis=1))
        left, right = (
            side[rows][~np.isnan(side[rows])].reshape(len(rows), -1) for side in (base, new)
        )
        yield rows, left, right


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
    pairs: Truths | None = None,  # noqa: PT028 - no test function
) -> Tested:
    """base, new: medians of rounds in seconds, a row a point, NaN where a row has no further round.

    pairs: rows that hold ones and ratios of rounds (``as_pairs``): there a trimmed t test stands for Welch's,
    and signs for ranks.
    """
    alone, ranks = welch_p(np.log(base), np.log(new)), rank_p(base, new)
    if pairs is not None:
        alone[pairs], ranks[pairs] = (test(np.log(new[pairs])) for test in (trimmed_p, sign_p))
    welch = corrected(alone)
    ratio = np.nanmedian(new, axis=1) / np.nanmedian(base, axis=1)
    vetoed = ranks > LEVEL
    # A few rounds that take a hundred times as long leave means without meaning, and ranks what they were.
    by_ranks, by_ranks_alone = (p <= RANKS_SHARE * LEVEL for p in (corrected(ranks), ranks))
    differs, would_differ = ((p <= LEVEL) & ~vetoed for p in (welch, alone))
    return Tested(ratio, welch, ranks, differs | by_ranks, would_differ | by_ranks_alone)


def as_pairs(base: Floats, new: Floats) -> tuple[Floats, Floats, Truths]:
    """Ones and ratios in the place of times, in rows whose rounds can be told in pairs, and which these are.

    For rounds that were measured in turn, one of the base right before or after one of the new side: what
    else the machine did meanwhile was the same for both, and ratios do not have it. Rows with as many rounds
    on both sides, and enough of them that signs can show a change (6).
    """
    rounds = rounds_of(base)
    pairs = (rounds == rounds_of(new)) & (2.0 ** (1 - rounds) <= LEVEL)
    remaining, ratios, width = base.copy(), new.copy(), min(base.shape[1], new.shape[1])
    ratios[pairs, :width] /= base[pairs, :width]
    remaining[pairs] /= base[pairs]
    return remaining, ratios, pairs


def least_rank_p(base_rounds: int, new_rounds: int) -> float:
    """The smallest two-sided p that ranks of so many rounds can give: 2 / (all ways to tell them apart)."""
    return min(1.0, 2.0 / math.comb(base_rounds + new_rounds, base_rounds))


def enough_rounds(base_rounds: int, new_rounds: int) -> bool:
    """True if so many rounds can show a change at all."""
    few = min(base_rounds, new_rounds) < FEWEST_ROUNDS
    return not few and least_rank_p(base_rounds, new_rounds) <= LEVEL


ROUNDS_NEEDED = 4
"""The fewest rounds on each side that are enough."""


def welch_p(base: Floats, new: Floats, trim: float = 0.0) -> Floats:
    """Return the two-sided p of equal means, a row a point, NaN where a row has no further round.

    Where nothing varies, 1 for equal means and 0 for different ones. trim: share that is left out at either end.
    """
    from scipy import stats

    p_values = np.ones(len(base))
    for rows, left, right in by_rounds(base, new):
        means = [side.mean(axis=1) for side in (left, right)]
        widest = np.maximum(np.ptp(left, axis=1), np.ptp(right, axis=1))
        still = widest < ROUNDING * np.maximum(1.0, np.abs(means[0]))
        equal = np.abs(means[0] - means[1]) < 1e-9
        with np.errstate(all="ignore"), warnings.catch_warnings():
            # SciPy's, of precision lost in rows that hardly vary
            warnings.simplefilter("ignore")
            result = stats.ttest_ind(left, right, axis=1, equal_var=False, trim=trim)
        p_values[rows] = np.where(still, equal, np.nan_to_num(result.pvalue, nan=1.0))
    return p_values


def rank_p(base: Floats, new: Floats) -> Floats:
    """Return the two-sided p of Mann-Whitney's test; ties never help to find a change."""
    from scipy import stats

    p_values = np.ones(len(base))
    for rows, left, right in by_rounds(base, new):
        largest = max(left.shape[1], right.shape[1])
        with np.errstate(all="ignore"):
            result = stats.mannwhitneyu(
                left, right, axis=1, method="exact" if largest <= MOST_EXACT else "asymptotic"
            )
        p_values[rows] = np.nan_to_num(result.pvalue, nan=1.0)
    return p_values


def trimmed_p(differences: Floats) -> Floats:
    """Return the two-sided p of a mean of zero without the outer quarters, a row a point.

    Yuen's test against zeros, which is Tukey's and McLaughlin's t of one sample.
    """
    return welch_p(differences, differences * 0, TRIMMED)


def sign_p(differences: Floats) -> Floats:
    """Return the two-sided p of as many differences above zero as below, a row a point."""
    from scipy import stats

    above, below = (np.sum(sign * differences > ROUNDING, axis=1) for sign in (1, -1))
    tail = stats.binom.cdf(np.minimum(above, below), above + below, 0.5)
    return np.asarray(np.minimum(1.0, 2 * tail), dtype=np.float64)


def corrected(p_values: Floats) -> Floats:
    """Holm's p-values: the chance that even one of those below a level is false is that level at most."""
    count = len(p_values)
    order = np.argsort(p_values)
    corrected_p = np.empty(count)
    corrected_p[order] = np.minimum(
        1.0, np.maximum.accumulate(p_values[order] * (count - np.arange(count)))
    )
    return corrected_p


def ratio_intervals(base: Floats, new: Floats) -> tuple[Floats, Floats]:
    """Low and high end of new median over base median of every point.

    base, new: medians of rounds, a row for each point, NaN where a row has no further round.
    """
    from scipy import stats

    low, high = np.empty(len(base)), np.empty(len(base))
    for rows, *sides in by_rounds(base, new):
        # Percentiles of a bootstrap are too narrow for very few values; below five rounds they are taken further
        # out, as if of Student's distribution, with the spread corrected by n/(n-1) (T. C. Hesterberg, Amer.
        # Statist. 69 (2015) 371).
        count = max(min(side.shape[1] for side in sides), 2)
        tail = (1 - CONFIDENCE) / 2
        if count < FEW_ROUNDS:
            quantile = stats.t.ppf(1 - tail, count - 1)
            tail = stats.norm.cdf(-math.sqrt(count / (count - 1)) * quantile)
        # Outwards to a replicate that exists: the interval is never narrower than the tails say.
        place = math.floor(tail * (DRAWS - 1))
        picks = [
            np.random.default_rng([SEED, number, side.shape[1]]).integers(
                side.shape[1], size=(DRAWS, side.shape[1])
            )
            for number, side in enumerate(sides)
        ]
        at_once = max(1, DRAWN_AT_ONCE // picks[0].size)
        for start in range(0, len(rows), at_once):
            part = slice(start, start + at_once)
            old, now = (
                np.median(side[part][:, pick], axis=2)
                for side, pick in zip(sides, picks, strict=True)
            )
            ratios = np.sort(now / old, axis=1)
            low[rows[part]], high[rows[part]] = ratios[:, place], ratios[:, -1 - place]
    return low, high
