from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.score.statistics import BANDS, ErrorSummary, score, summary

ERRORS = st.lists(st.floats(-1, 10), min_size=1, max_size=40)
POINTS = st.lists(st.tuples(st.integers(1, 1 << 40), st.floats(-1, 10)), max_size=40)


def test_the_four_figures_of_three_errors() -> None:
    found = summary([0.1, -0.2, 0.6])
    assert found.points == 3
    assert found.median_error == pytest.approx(0.2)
    assert found.mape == pytest.approx(0.3)
    assert found.bias == pytest.approx(0.5 / 3)


def test_nothing_has_no_figures() -> None:
    assert summary([]) == ErrorSummary(0)
    assert score([], []).overall.median_error is None


def test_sizes_at_the_borders_of_bands_belong_below() -> None:
    bands = score([32 << 10, (32 << 10) + 1, 32 << 20, (32 << 20) + 1], [0.1, 0.2, 0.3, 0.4]).bands
    assert [bands[name].points for name, _, _ in BANDS] == [1, 2, 1]
    assert bands["above_32MiB"].mape == pytest.approx(0.4)


def test_points_that_nobody_predicted_do_not_count() -> None:
    assert score([8, 16], [math.nan, 0.5]).overall == summary([0.5])


@given(POINTS)
def test_every_point_is_in_one_band(points: list[tuple[int, float]]) -> None:
    found = score([size for size, _ in points], [error for _, error in points])
    assert sum(band.points for band in found.bands.values()) == found.overall.points == len(points)


@given(ERRORS)
def test_the_bias_is_never_larger_than_the_mean_error(errors: list[float]) -> None:
    found = summary(errors)
    assert found.mape is not None
    assert found.bias is not None
    assert abs(found.bias) <= found.mape + 1e-12
    assert min(map(abs, errors)) - 1e-12 <= found.mape <= max(map(abs, errors)) + 1e-12


@given(ERRORS)
def test_the_order_of_points_does_not_matter(errors: list[float]) -> None:
    one, other = summary(errors), summary(sorted(errors))
    assert one.median_error == other.median_error
    assert one.mape == pytest.approx(other.mape)


@given(ERRORS)
def test_half_of_the_points_are_within_the_median(errors: list[float]) -> None:
    median = summary(errors).median_error
    assert median is not None
    assert 2 * sum(abs(error) <= median * (1 + 1e-12) for error in errors) >= len(errors)
