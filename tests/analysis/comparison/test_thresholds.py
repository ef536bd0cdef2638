from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ccbench.analysis.verdicts import ThresholdRule, Thresholds

THRESHOLDS = Thresholds(
    0.04,
    (
        ThresholdRule(0.15, to_bytes=32 * 1024),
        ThresholdRule(
            0.03, frozenset({"all_reduce", "all_gather"}), frozenset({"nccl"}), 2**20, 2**30
        ),
    ),
)


def test_the_last_rule_that_fits_a_point_rules() -> None:
    assert THRESHOLDS.of("all_reduce", "nccl", 2**20) == 0.03
    assert THRESHOLDS.of("all_reduce", "cpu", 2**20) == 0.04
    assert THRESHOLDS.of("broadcast", "nccl", 2**20) == 0.04
    assert THRESHOLDS.of("all_reduce", "nccl", 32 * 1024) == 0.15
    assert THRESHOLDS.of("all_reduce", "nccl", 2**30 + 1) == 0.04


@given(st.integers(0, 2**40), st.integers(0, 2**40), st.integers(0, 2**40))
def test_the_ends_of_a_band_belong_to_it(low: int, high: int, size: int) -> None:
    rule = ThresholdRule(0.1, from_bytes=low, to_bytes=high)
    assert rule.fits("all_reduce", "cpu", size) == (low <= size <= high)
