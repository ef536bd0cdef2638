from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.analysis.slow_ranks import high_outliers, relative_spread

VALUES = st.lists(st.floats(0.0, 1000.0), max_size=30)


@pytest.mark.parametrize(
    ("values", "least", "found"),
    [
        ([1.0, 1.0, 1.0, 5.0], 0.5, (3,)),
        ([1.0, 1.0, 1.0, 1.4], 0.5, ()),
        ([1.0, 5.0], 0.5, ()),
        ([], 0.5, ()),
        ([1.0, 2.0, 3.0, 4.0, 5.0], 0.5, ()),
        ([5.0, 1.0, 1.0, 1.0, 6.0], 0.5, (0, 4)),
    ],
)
def test_an_outlier_lies_far_above_its_likes(
    values: list[float], least: float, found: tuple[int, ...]
) -> None:
    assert high_outliers(values, least) == found


@given(VALUES, st.floats(0.01, 10.0))
def test_fewer_than_half_are_outliers_and_all_lie_above_all_others(values: list[float], least: float) -> None:
    found = high_outliers(values, least)
    assert 2 * len(found) < len(values) or not values
    others = [value for place, value in enumerate(values) if place not in found]
    assert all(values[place] > max(others) for place in found)


@given(VALUES, st.floats(0.01, 10.0), st.floats(-100.0, 100.0))
def test_only_differences_count(values: list[float], least: float, shift: float) -> None:
    whole = [round(value) for value in values]
    assert high_outliers(whole, least) == high_outliers([value + round(shift) for value in whole], least)


def test_the_spread_of_equal_values_is_nothing() -> None:
    assert relative_spread([2.0] * 5) == 0.0
    assert relative_spread([2.0]) == 0.0
    assert relative_spread([0.0, 0.0, 1.0]) == 0.0


def test_the_spread_of_normal_values_is_their_deviation() -> None:
    import numpy as np

    values = 10 + np.random.default_rng(1).normal(size=20_001)
    assert relative_spread(values.tolist()) == pytest.approx(0.1, rel=0.05)
