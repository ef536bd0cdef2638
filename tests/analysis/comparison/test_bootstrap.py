from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.analysis.significance import median_ranks, ratio_intervals, round_medians


@pytest.mark.parametrize("rounds", [4, 5, 6, 10])
def test_intervals_cover_the_truth_about_as_often_as_they_say(rounds: int) -> None:
    random = np.random.default_rng(rounds)
    base, new = (np.exp(random.normal(0, 0.03, (2000, rounds))) for _ in range(2))
    low, high = ratio_intervals(base, new, 0.95, 500, 1)
    assert 0.925 < float(np.mean((low <= 1) & (high >= 1))) <= 0.985


@pytest.mark.parametrize("count", [3, 4, 7])
def test_ranks_of_resampled_medians_are_distributed_as_if_rounds_were_drawn(count: int) -> None:
    low, high = median_ranks(count, 40_000, [1])
    drawn = np.sort(np.random.default_rng(1).integers(0, count, (40_000, count)), axis=1)
    for found, place in ((low, (count - 1) // 2), (high, count // 2)):
        expected = np.bincount(drawn[:, place], minlength=count) / 40_000
        np.testing.assert_allclose(np.bincount(found, minlength=count) / 40_000, expected, atol=0.012)
    both = np.mean(low == high)
    assert both == pytest.approx(np.mean(drawn[:, (count - 1) // 2] == drawn[:, count // 2]), abs=0.012)


def test_the_same_seed_gives_the_same_interval_and_points_do_not_influence_each_other() -> None:
    random = np.random.default_rng(3)
    base, new = random.gamma(9, 1, (5, 6)), random.gamma(9, 1, (5, 6))
    base[2, 3:] = np.nan
    all_of_them = ratio_intervals(base, new, 0.95, 200, 7)
    for row in range(5):
        one = slice(row, row + 1)
        alone = ratio_intervals(base[one], new[one], 0.95, 200, 7)
        assert [end[row] for end in all_of_them] == [end[0] for end in alone]


def test_times_that_do_not_vary_have_an_interval_without_width() -> None:
    low, high = ratio_intervals(np.full((1, 6), 2.0), np.full((1, 6), 3.0), 0.95, 100, 1)
    assert (low[0], high[0]) == (1.5, 1.5)


def test_rounds_of_different_length_count_once_each() -> None:
    samples = [[np.array([1.0, 9.0, 2.0]), np.array([5.0])], [np.array([4.0, 6.0])]]
    np.testing.assert_array_equal(round_medians(samples), [[2.0, 5.0], [5.0, np.nan]])


rounds = st.lists(st.floats(0, 1e3), min_size=1, max_size=9).map(np.array)


@given(st.lists(st.lists(rounds, max_size=4), max_size=5))
def test_medians_of_rounds_are_those_of_numpy(points: list[list[np.ndarray]]) -> None:
    found = round_medians(points)
    assert found.shape == (len(points), max(map(len, points), default=0))
    for row, own in zip(found, points, strict=True):
        assert row[: len(own)].tolist() == pytest.approx([np.median(one) for one in own])
        assert np.isnan(row[len(own) :]).all()
