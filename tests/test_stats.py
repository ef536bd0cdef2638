from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.stats import (
    Interval,
    chance_of_most,
    intervals_overlap,
    median_interval,
    median_ranks,
    tukey_outliers,
)

times = st.lists(st.floats(1e-9, 1e3), min_size=1, max_size=60)


def exact_coverage(samples: int, rank: int) -> Fraction:
    below = sum(math.comb(samples, k) for k in range(rank))
    return 1 - Fraction(2 * below, 2**samples)


@given(st.integers(1, 400), st.sampled_from([0.5, 0.9, 0.95, 0.99]))
def test_the_ranks_are_the_innermost_that_cover_by_exact_counting(
    samples: int, confidence: float
) -> None:
    rank, coverage = median_ranks(samples, confidence)
    assert coverage == pytest.approx(float(exact_coverage(samples, rank)), abs=1e-10)
    if exact_coverage(samples, 1) >= confidence:
        assert coverage >= confidence
        assert rank == (samples + 1) // 2 or exact_coverage(samples, rank + 1) < confidence
    else:
        assert rank == 1


# Le Boudec, "Performance Evaluation", appendix A: n, rank of the lower end, coverage at 95 %.
@pytest.mark.parametrize(
    ("samples", "rank", "coverage"),
    [(6, 1, 0.969), (9, 2, 0.961), (12, 3, 0.961), (20, 6, 0.959), (30, 10, 0.957)],
)
def test_the_ranks_agree_with_the_published_table(
    samples: int, rank: int, coverage: float
) -> None:
    found_rank, found_coverage = median_ranks(samples, 0.95)
    assert (found_rank, round(found_coverage, 3)) == (rank, coverage)


@pytest.mark.parametrize("draw", ["exponential", "lognormal"])
def test_the_interval_covers_the_true_median_as_often_as_it_says(draw: str) -> None:
    random = np.random.default_rng(20150815)
    truth, rounds, samples = (
        (math.log(2), 4000, 17) if draw == "exponential" else (1.0, 4000, 40)
    )
    rows = getattr(random, draw)(size=(rounds, samples))
    intervals = [median_interval(row) for row in rows]
    covered = sum(interval.low <= truth <= interval.high for interval in intervals) / rounds
    # Four standard errors of a share near 0.96 over 4000 rounds are 0.0125.
    assert covered == pytest.approx(intervals[0].confidence, abs=0.0125)
    assert intervals[0].confidence >= 0.95


@given(times, st.sampled_from([0.5, 0.9, 0.95]))
def test_an_interval_is_the_median_between_samples_of_its_ranks(
    samples: list[float], confidence: float
) -> None:
    rank, coverage = median_ranks(len(samples), confidence)
    ordered = sorted(samples)
    expected = Interval(ordered[rank - 1], float(np.median(samples)), ordered[-rank], coverage)
    assert median_interval(samples, confidence) == expected


@given(
    st.tuples(st.integers(0, 9), st.integers(0, 9)).map(sorted),
    st.tuples(st.integers(0, 9), st.integers(0, 9)).map(sorted),
)
def test_intervals_overlap_when_they_share_a_point(first: list[int], second: list[int]) -> None:
    one, other = (Interval(a, (a + b) / 2, b, 0.95) for a, b in (first, second))
    shared = set(range(first[0], first[1] + 1)) & set(range(second[0], second[1] + 1))
    assert intervals_overlap(one, other) == intervals_overlap(other, one) == bool(shared)


@pytest.mark.parametrize("samples", [[], [1.0, math.nan], [math.inf], [[1.0]]])
@pytest.mark.parametrize("function", [median_interval, tukey_outliers])
def test_samples_that_are_none_or_not_finite_are_refused(
    function: object, samples: list[float]
) -> None:
    with pytest.raises(ValueError, match="samples"):
        function(samples)  # type: ignore[operator]  # two functions of one argument


@pytest.mark.parametrize("confidence", [0, 1, -1, 2, math.nan])
def test_a_confidence_is_between_zero_and_one(confidence: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        median_interval([1.0], confidence)


def test_outliers_beyond_the_inner_and_outer_fences_are_told_apart() -> None:
    middle = [10.0, 11.0, 12.0, 13.0, 14.0, 12.0, 11.0, 13.0, 12.0]
    assert tukey_outliers([*middle, 18.0, 40.0]) == ((9,), (10,))
    assert tukey_outliers([6.0, -16.0, *middle]) == ((0,), (1,))
    assert tukey_outliers([1.0] * 10) == tukey_outliers([1.0, 9.0]) == ((), ())
    assert tukey_outliers([1.0] * 10 + [1.1]) == ((), (10,))


@pytest.mark.parametrize(
    ("times", "tries", "kinds", "exact"),
    [(1, 1, 4, 1.0), (2, 2, 4, 0.25), (0, 7, 2, 1.0), (9, 10, 2, 22 / 1024), (5, 5, 1, 1.0)],
)
def test_the_chance_of_most_is_the_tail_of_the_binomial_for_any_of_them(
    times: int, tries: int, kinds: int, exact: float
) -> None:
    assert chance_of_most(times, tries, kinds) == pytest.approx(exact)
    assert 0 < chance_of_most(1020, 2000, 2) < 1
