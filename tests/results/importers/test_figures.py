from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.results.importers.lines import GIBI, Figure, figure, rate_factor, whole


@given(st.floats(min_value=0, max_value=1e12), st.integers(min_value=0, max_value=9))
def test_a_printed_figure_is_within_half_a_unit_of_what_was_printed(value: float, decimals: int) -> None:
    found = figure(f"{value:.{decimals}f}")
    assert found is not None
    assert abs(found.value - value) <= found.half_unit * (1 + 1e-9) + value * 1e-15


@pytest.mark.parametrize("text", ["", "-1", "nan", "inf", "1e400", "1.2.3", "0x10", "N/A", "٣", "1" * 40])
def test_what_is_no_figure_is_none(text: str) -> None:
    assert figure(text) is None


@pytest.mark.parametrize("text", ["", "-1", "1.0", "²", "9" * 19, "9" * 5000])
def test_what_is_no_size_is_none(text: str) -> None:
    assert whole(text) is None


@given(st.integers(min_value=10**7, max_value=10**11), st.floats(min_value=1e-4, max_value=10), st.booleans())
def test_the_unit_of_rates_shows_in_the_rows(size_bytes: int, seconds: float, binary: bool) -> None:
    factor = GIBI if binary else 1.0
    printed = size_bytes / seconds / 1e9 / factor
    points = [(size_bytes, Figure(seconds, 1e-9), Figure(printed, printed * 1e-3))]
    assert rate_factor(points, 2.0) == factor


def test_rows_that_leave_the_unit_open_give_the_default() -> None:
    assert rate_factor([(8, Figure(1e-3, 1e-9), Figure(0.0, 0.005))], GIBI) == GIBI
