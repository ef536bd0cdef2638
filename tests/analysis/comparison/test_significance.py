from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from ccbench.analysis import significance
from ccbench.analysis.significance import (
    ROUNDS_NEEDED,
    as_pairs,
    corrected,
    enough_rounds,
    least_rank_p,
    rank_p,
    ratio_intervals,
    round_medians,
    sign_p,
    trimmed_p,
    welch_p,
)


def test_four_rounds_against_four_are_the_fewest_at_95_per_cent() -> None:
    assert enough_rounds(ROUNDS_NEEDED, ROUNDS_NEEDED)
    assert not enough_rounds(3, 3)
    assert not enough_rounds(3, 4)
    assert enough_rounds(3, 6)
    assert not enough_rounds(2, 100)


def test_welch_and_rank_p_are_those_of_scipy() -> None:
    random = np.random.default_rng(1)
    for n, m in ((4, 4), (6, 6), (6, 9), (12, 5), (30, 20)):
        base, new = random.normal(0, 1, (20, n)), random.normal(0.5, 2, (20, m))
        expected = stats.ttest_ind(base, new, axis=1, equal_var=False).pvalue
        np.testing.assert_allclose(welch_p(base, new), expected, rtol=1e-9)
        exact = max(n, m) <= 12
        ranks = stats.mannwhitneyu(
            base, new, axis=1, method="exact" if exact else "asymptotic"
        ).pvalue
        np.testing.assert_allclose(rank_p(base, new), ranks, rtol=1e-9)


def test_of_pairs_the_tests_are_yuens_and_the_one_of_signs() -> None:
    random = np.random.default_rng(3)
    base, new = (np.exp(random.normal(0.05 * side, 0.1, (20, 12))) for side in (0, 1))
    unit, ratios, pairs = as_pairs(base, new)
    assert pairs.all()
    np.testing.assert_array_equal(unit, 1.0)
    # Of scipy's test of two samples the other one is as good as constant: it stands for zero.
    expected = []
    for row in np.log(new / base):
        nothing = np.linspace(-1e-12, 1e-12, 12)
        expected.append(stats.ttest_ind(row, nothing, equal_var=False, trim=0.25).pvalue)
    np.testing.assert_allclose(trimmed_p(np.log(ratios)), expected, rtol=1e-6)
    signs = [stats.binomtest(int(row.sum()), 12).pvalue for row in new > base]
    np.testing.assert_allclose(sign_p(np.log(ratios)), signs, rtol=1e-9)
    assert sign_p(np.zeros((1, 6)))[0] == trimmed_p(np.zeros((1, 6)))[0] == 1.0
    short = np.full((1, 15), np.nan)
    short[0, :12] = np.log(ratios[0])
    np.testing.assert_allclose(trimmed_p(short), expected[0], rtol=1e-6)


@pytest.mark.exhaustive
def test_pairs_find_what_noise_of_both_sides_hides_and_raise_as_few_false_alarms() -> None:
    """24 rounds; both sides of one may take five times as long, and 3 % more or less each by itself."""
    random = np.random.default_rng(4)
    points, far = 4, np.full(4, 0.02)
    shares = {}
    for factor in (1.0, 1.05):
        called = np.zeros(2)
        for _ in range(200):
            common = np.exp(random.exponential(0.4, (points, 24)))
            base, new = (
                common * np.exp(random.normal(0, 0.03, common.shape)) for _ in range(2)
            )
            new *= factor
            called[0] += significance.tested(base, new).beyond(far).mean()
            unit, ratios, pairs = as_pairs(base, new)
            called[1] += significance.tested(unit, ratios, pairs).beyond(far).mean()
        shares[factor] = called / 200
    assert shares[1.0][1] <= 0.01
    assert shares[1.05][0] < 0.1
    assert shares[1.05][1] > 0.9


def test_where_nothing_varies_a_difference_is_certain_and_so_is_its_lack() -> None:
    same, slower = np.full((1, 6), np.log(1e-5)), np.full((1, 6), np.log(1.1e-5))
    assert welch_p(same, same)[0] == 1.0
    assert welch_p(same, slower)[0] == 0.0
    assert rank_p(same, same)[0] == 1.0
    assert rank_p(same, slower)[0] == pytest.approx(least_rank_p(6, 6))


@given(st.lists(st.floats(0, 1), min_size=1, max_size=50))
def test_holm_never_makes_a_p_smaller_and_keeps_their_order(p_values: list[float]) -> None:
    raw = np.array(p_values)
    corrected_p = corrected(raw)
    assert np.all(corrected_p >= raw)
    order = np.argsort(raw, kind="stable")
    assert np.all(np.diff(corrected_p[order]) >= 0)
    assert corrected_p.min() == pytest.approx(min(1.0, raw.min() * len(raw)))


def test_holm_is_as_in_the_book() -> None:
    np.testing.assert_allclose(corrected(np.array([0.01, 0.04, 0.03])), [0.03, 0.06, 0.06])


@pytest.mark.thinned(2)
@pytest.mark.parametrize("rounds", [4, 5, 6, 10])
def test_intervals_cover_the_truth_about_as_often_as_they_say(rounds: int) -> None:
    random = np.random.default_rng(rounds)
    base, new = (np.exp(random.normal(0, 0.03, (2000, rounds))) for _ in range(2))
    low, high = ratio_intervals(base, new)
    assert 0.925 < float(np.mean((low <= 1) & (high >= 1))) <= 0.985


rounds = st.lists(st.floats(0, 1e3), min_size=1, max_size=9).map(np.array)


@given(st.lists(st.lists(rounds, max_size=4), max_size=5))
def test_medians_of_rounds_are_those_of_numpy(points: list[list[np.ndarray]]) -> None:
    medians = round_medians(points)
    assert medians.shape == (len(points), max(map(len, points), default=0))
    for row, own in zip(medians, points, strict=True):
        assert row[: len(own)].tolist() == pytest.approx(
            [np.median(samples) for samples in own]
        )
        assert np.isnan(row[len(own) :]).all()
