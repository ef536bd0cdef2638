"""Statistics of samples: medians with intervals, outliers. Times are in any one unit.

Nothing here assumes a normal distribution: run times are skewed and bounded below (T. Hoefler and
R. Belli, "Scientific Benchmarking of Parallel Computing Systems", SC 2015, rules 5 and 6).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ccbench.cases.measurement import Sampling

Samples = Sequence[float] | NDArray[np.float64]


@dataclass(frozen=True)
class Interval:
    """A median and an interval around it, in the samples' unit.

    confidence: the coverage the interval really has, at least what was asked unless samples were too few.
    """

    low: float
    median: float
    high: float
    confidence: float


def _checked(samples: Samples) -> NDArray[np.float64]:
    values = np.asarray(samples, dtype=np.float64)
    if values.ndim != 1 or not len(values):
        raise ValueError(
            f"samples have shape {values.shape}; give one dimension with at least one sample"
        )
    if not np.all(np.isfinite(values)):
        raise ValueError(
            "samples contain NaN or infinity; drop failed samples before any statistics"
        )
    return values


@lru_cache(maxsize=4096)
def median_ranks(samples: int, confidence: float) -> tuple[int, float]:
    """(j, coverage): the j-th smallest and j-th largest of ``samples`` enclose the median; j from 1.

    The number of samples below the true median is binomial(samples, 1/2), so the interval misses it with
    probability 2 * P(X <= j - 1), whatever the distribution (J.-Y. Le Boudec, "Performance Evaluation of
    Computer and Communication Systems", EPFL Press 2010, theorem 2.1). The largest j that still covers
    ``confidence`` is taken, or 1 with its real coverage when there is none.
    """
    ranks = np.arange(1, (samples + 1) // 2 + 1)
    # log P(X = k) for k = 0 .. j_max - 1, from P(k) / P(k - 1) = (samples - k + 1) / k
    ratios = np.log((samples - ranks[:-1] + 1) / ranks[:-1])
    log_mass = np.concatenate(([0.0], np.cumsum(ratios))) - samples * math.log(2)
    coverage = 1 - 2 * np.cumsum(np.exp(log_mass))
    # An odd count's middle rank would give a slightly negative number by rounding.
    coverage = np.maximum(coverage, 0.0)
    enough = int(np.count_nonzero(coverage >= confidence))
    rank = max(enough, 1)
    return rank, float(coverage[rank - 1])


def median_interval(samples: Samples, confidence: float = 0.95) -> Interval:
    """The median and a distribution-free interval between two order statistics (see ``median_ranks``).

    With too few samples (fewer than 6 at 95 %) the interval is minimum to maximum, and its ``confidence``
    says what that is worth. Raises ValueError for no samples, for NaN, and for a confidence outside (0, 1).
    """
    if not 0 < confidence < 1:
        raise ValueError(
            f"confidence is {confidence}; give a fraction between 0 and 1, such as 0.95"
        )
    values = np.sort(_checked(samples))
    rank, coverage = median_ranks(len(values), confidence)
    return Interval(
        low=float(values[rank - 1]),
        median=float(np.median(values)),
        high=float(values[len(values) - rank]),
        confidence=coverage,
    )


def rounds_interval(
    samples: Samples, round_samples: Sequence[int], confidence: float = 0.95
) -> Interval:
    """The interval of a case that was measured in several rounds: of the rounds' medians.

    Samples of one round resemble each other more than those of different rounds, so pooling them would
    promise too narrow an interval (S. Hunold and A. Carpen-Amarie, "Reproducible MPI Benchmarking Is Still
    Not as Easy as You Think", IEEE TPDS 2016: the variation between launches dominates). Each round
    therefore counts once. With fewer rounds than ``confidence`` needs (6 for 95 %) the samples are pooled.

    round_samples: how many samples each round gave, in order; they add up to all samples.
    """
    values = _checked(samples)
    lengths = [length for length in round_samples if length]
    if (
        sum(lengths) != len(values)
        or median_ranks(max(len(lengths), 1), confidence)[1] < confidence
    ):
        return median_interval(values, confidence)
    parts = np.split(values, np.cumsum(lengths)[:-1])
    return median_interval([float(np.median(part)) for part in parts], confidence)


def relative_width(interval: Interval) -> float:
    """Whole width of the interval over its median; infinite where the median is 0 and the width is not."""
    width = interval.high - interval.low
    if width == 0:
        return 0.0
    return width / abs(interval.median) if interval.median else math.inf


def intervals_overlap(first: Interval, second: Interval) -> bool:
    """True if the two intervals share at least a point."""
    return first.low <= second.high and second.low <= first.high


def tukey_outliers(samples: Samples) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Indices of (mild, severe) outliers: beyond 1.5 and beyond 3 times the interquartile range.

    No index is in both. Fewer than four samples have no outliers. J. W. Tukey, "Exploratory Data
    Analysis", Addison-Wesley 1977 (inner and outer fences); quartiles by linear interpolation.
    """
    values = _checked(samples)
    if len(values) < 4:
        return (), ()
    lower, upper = np.percentile(values, [25, 75])
    distance = np.maximum(lower - values, values - upper)
    severe = distance > 3 * (upper - lower)
    mild = (distance > 1.5 * (upper - lower)) & ~severe
    return tuple(np.flatnonzero(mild).tolist()), tuple(np.flatnonzero(severe).tolist())


CHANCE = 0.01
"""A rank is named when ranks that are all alike would give one of them as many cases no more often: of two
ranks all of eight cases, of four ranks all of five."""


def chance_of_most(times: int, tries: int, kinds: int) -> float:
    """Bound the probability that one of ``kinds`` equally likely ones has ``times`` or more of ``tries``.

    The binomial tail, by logarithms, which do not overflow, times the number of kinds.
    """
    if kinds < 2:
        return 1.0
    tail = sum(
        math.exp(
            math.lgamma(tries + 1)
            - math.lgamma(k + 1)
            - math.lgamma(tries - k + 1)
            - k * math.log(kinds)
            + (tries - k) * math.log1p(-1 / kinds)
        )
        for k in range(times, tries + 1)
    )
    return min(1.0, kinds * tail)


OVERTIME_FACTOR = 4.0
"""A case that cannot reach its minimum of samples stops after this many budgets."""


def stop_reason(rule: Sampling, samples: NDArray[np.float64], elapsed_seconds: float) -> str:
    """Return why to stop now, or '' to go on. samples: seconds per launch."""
    if len(samples) >= rule.maximum_samples:
        return "maximum of samples"
    if len(samples) < rule.minimum_samples:
        return "budget" if elapsed_seconds >= OVERTIME_FACTOR * rule.budget_seconds else ""
    # Of several rounds none ends for its interval, and looking at one takes longer than a small launch.
    if rule.target_relative_width:
        interval = median_interval(samples, rule.confidence)
        narrow = interval.high - interval.low <= rule.target_relative_width * interval.median
        if narrow and interval.confidence >= rule.confidence:
            return "interval"
    return "budget" if elapsed_seconds >= rule.budget_seconds else ""
