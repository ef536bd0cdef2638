from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.analysis.history import LONGEST_SERIES, find_levels


def find_steps(values: list[float], minimum_change: float = 0.03) -> list[tuple[int, float]]:
    """Index of the first value on each new level, and by what fraction that differs from the one before."""
    levels = pairwise(find_levels(values, minimum_change))
    return [(after.start, after.median / before.median - 1) for before, after in levels]


Noise = Callable[[np.random.Generator, int], np.ndarray]


def with_outliers(random: np.random.Generator, count: int) -> np.ndarray:
    gross = (random.random(count) < 0.05) * random.exponential(10.0, count)
    return random.standard_normal(count) + gross


NOISES: dict[str, Noise] = {
    "normal": lambda random, count: random.standard_normal(count),
    "laplace": lambda random, count: random.laplace(size=count),
    "skewed": lambda random, count: random.gamma(2.0, 1.0, count),
    "outliers": with_outliers,
}


@pytest.mark.parametrize("name", NOISES)
@pytest.mark.parametrize(("count", "series"), [(6, 400), (12, 400), (30, 150)])
def test_noise_alone_is_a_step_in_at_most_one_percent_of_the_series(
    name: str, count: int, series: int
) -> None:
    random = np.random.default_rng([count, len(name)])
    alarms = sum(
        bool(find_steps(np.exp(0.05 * NOISES[name](random, count)).tolist(), 0.0))
        for _ in range(series)
    )
    # One percent, and room for the luck of so few series: P(more) < 0.1 % (binomial).
    assert alarms <= {400: 12, 150: 7}[series]


@pytest.mark.parametrize("name", NOISES)
def test_a_step_of_ten_percent_in_noise_of_one_percent_is_found_where_it_is(name: str) -> None:
    random = np.random.default_rng(5)
    hits = 0
    for _ in range(50):
        values = 1e-3 * np.exp(0.01 * NOISES[name](random, 30))
        values[17:] *= 1.10
        steps = find_steps(values.tolist())
        hits += (
            len(steps) == 1 and abs(steps[0][0] - 17) <= 1 and abs(steps[0][1] - 0.10) < 0.03
        )
    assert hits >= 48


def test_two_new_runs_are_enough_for_a_large_step_and_one_is_not() -> None:
    random = np.random.default_rng(2)
    steady = (1 + 0.005 * random.standard_normal(20)).tolist()
    assert find_steps([*steady, 1.2]) == []
    ((index, _),) = find_steps([*steady, 1.2, 1.205])
    assert index == 20


def test_a_step_below_the_minimum_is_not_told_however_clear() -> None:
    values = [1.0] * 10 + [1.02] * 10
    assert find_steps(values) == []
    assert len(find_steps(values, 0.01)) == 1


def test_equal_values_and_short_series_have_no_steps() -> None:
    assert find_steps([1.0] * 50) == []
    assert find_steps([1.0, 1.0, 2.0, 2.0]) == []
    assert find_levels([]) == ()


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_values_that_are_no_times_are_refused(value: float) -> None:
    with pytest.raises(ValueError, match="finite and above 0"):
        find_steps([1.0, value])


def test_of_a_long_series_the_newest_values_are_looked_at() -> None:
    levels = find_levels([1.0] * 100 + [2.0] * LONGEST_SERIES)
    assert [(level.start, level.end) for level in levels] == [(100, 100 + LONGEST_SERIES)]


@given(
    st.lists(st.tuples(st.integers(4, 9), st.floats(1.0, 2.0)), min_size=1, max_size=4),
    st.floats(1e-9, 1e3),
)
def test_planted_steps_are_found_exactly_and_the_unit_does_not_matter(
    plan: list[tuple[int, float]], unit: float
) -> None:
    levels: list[tuple[int, float]] = []
    for length, factor in plan:
        level = (levels[-1][1] if levels else 1.0) * (
            1.25 + factor if len(levels) % 2 else 1 / (1.25 + factor)
        )
        levels.append((length, level))
    values = [unit * level for length, level in levels for _ in range(length)]
    steps = find_steps(values)
    if len(values) >= 6:
        borders = np.cumsum([length for length, _ in levels])[:-1].tolist()
        assert [index for index, _ in steps] == borders
        for (_, change), (before, after) in zip(
            steps, pairwise(level for _, level in levels), strict=True
        ):
            assert change == pytest.approx(after / before - 1)


@given(st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=40))
def test_levels_cover_the_series_once_and_in_order(values: list[float]) -> None:
    levels = find_levels(values)
    assert levels[0].start == 0
    assert levels[-1].end == len(values)
    assert all(left.end == right.start for left, right in pairwise(levels))
    assert all(min(values) <= level.median <= max(values) for level in levels)
