from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from ccbench.analysis.significance import (
    corrected,
    enough_rounds,
    least_rank_p,
    rank_p,
    rounds_needed,
    welch_p,
)


def test_four_rounds_against_four_are_the_fewest_at_95_per_cent() -> None:
    assert rounds_needed(0.95) == 4
    assert not enough_rounds(3, 4, 0.95)
    assert enough_rounds(3, 6, 0.95)
    assert not enough_rounds(2, 100, 0.95)
    assert rounds_needed(0.99) == 5


def test_welch_and_rank_p_are_those_of_scipy() -> None:
    random = np.random.default_rng(1)
    for n, m in ((4, 4), (6, 6), (6, 9), (12, 5), (30, 20)):
        base, new = random.normal(0, 1, (20, n)), random.normal(0.5, 2, (20, m))
        expected = stats.ttest_ind(base, new, axis=1, equal_var=False).pvalue
        np.testing.assert_allclose(welch_p(base, new), expected, rtol=1e-9)
        exact = max(n, m) <= 12
        ranks = stats.mannwhitneyu(base, new, axis=1, method="exact" if exact else "asymptotic").pvalue
        np.testing.assert_allclose(rank_p(base, new), ranks, rtol=1e-9)


def test_rows_with_fewer_rounds_are_as_if_alone() -> None:
    random = np.random.default_rng(2)
    base, new = random.normal(size=(3, 6)), random.normal(size=(3, 6))
    base[1, 4:] = np.nan
    for test in (welch_p, rank_p):
        alone = test(base[1:2, :4], new[1:2])
        np.testing.assert_allclose(test(base, new)[1], alone[0], rtol=1e-12)


def test_where_nothing_varies_a_difference_is_certain_and_so_is_its_lack() -> None:
    same, other = np.full((1, 6), np.log(1e-5)), np.full((1, 6), np.log(1.1e-5))
    assert welch_p(same, same)[0] == 1.0
    assert welch_p(same, other)[0] == 0.0
    assert rank_p(same, same)[0] == 1.0
    assert rank_p(same, other)[0] == pytest.approx(least_rank_p(6, 6))


@given(st.lists(st.floats(0, 1), min_size=1, max_size=50))
def test_holm_never_makes_a_p_smaller_and_keeps_their_order(p_values: list[float]) -> None:
    raw = np.array(p_values)
    found = corrected(raw)
    assert np.all(found >= raw)
    assert np.all(found <= np.minimum(1.0, raw * len(raw)) + 1e-12) or len(raw) > 1
    order = np.argsort(raw, kind="stable")
    assert np.all(np.diff(found[order]) >= 0)
    assert found.min() == pytest.approx(min(1.0, raw.min() * len(raw)))


def test_holm_is_as_in_the_book() -> None:
    np.testing.assert_allclose(corrected(np.array([0.01, 0.04, 0.03])), [0.03, 0.06, 0.06])
