"""Inexact data repeat, differ between ranks and stay in range; exact results are exact, and errors are in ulp."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.cases.axes import INEXACT_SPREADS, Case, InexactData
from ccbench.dtypes import EXACT_LIMIT, EXPONENTS, numpy_dtype
from ccbench.inexact import (
    INEXACT_PERIOD,
    MOST_STRETCHES,
    Array,
    bits_of,
    errors_in_ulp,
    exact_results,
    inexact_period,
    inexact_values,
    looked_at,
)
from tests.backends.measuring import case_of

DATA = [InexactData(name, spread) for name, spread in INEXACT_SPREADS.items()]

every_type = pytest.mark.parametrize("dtype", EXPONENTS)
every_distribution = pytest.mark.parametrize("data", DATA, ids=str)


def inexact_case(data: InexactData = DATA[0], ranks: int = 3, **changes: Any) -> Case:
    return case_of(
        "cpu", changes.pop("collective", "all_reduce"), "ring", ranks, inexact=data, **changes
    )


def limits(dtype: str) -> Any:
    return ml_dtypes.finfo(numpy_dtype(dtype))  # type: ignore[no-untyped-call]  # the package has no types


def parts_of(data: InexactData, dtype: str, op: str, ranks: int) -> Array:
    """What the ranks put in, shape (ranks, INEXACT_PERIOD), in float64."""
    return np.array(
        [
            inexact_period(data, dtype, op == "prod", ranks, rank).astype(np.float64)
            for rank in range(ranks)
        ]
    )


# -- data --------------------------------------------------------------------------------------------------


@given(
    rank=st.integers(0, 2),
    start=st.integers(0, 200_000),
    length=st.integers(0, 150_000),
    op=st.sampled_from(["sum", "prod"]),
)
def test_an_element_is_the_same_whatever_is_read_with_it(
    rank: int, start: int, length: int, op: str
) -> None:
    case = inexact_case(op=op)
    period = inexact_period(DATA[0], "float32", op == "prod", 3, rank)
    values = inexact_values(case, rank, start, length)
    assert values.dtype == np.float32
    places = np.arange(start, start + length) % INEXACT_PERIOD
    np.testing.assert_array_equal(values, period[places])
    np.testing.assert_array_equal(
        values, inexact_values(replace(case, count=10**7, size_bytes=0), rank, start, length)
    )


@every_distribution
def test_ranks_seeds_and_distributions_have_other_numbers(data: InexactData) -> None:
    periods = [inexact_period(data, "float32", False, 3, rank) for rank in range(3)]
    periods += [
        inexact_period(replace(data, seed=2), "float32", False, 3, rank) for rank in (0, 2)
    ]
    periods += [
        inexact_period(another, "float32", False, 3, 2) for another in DATA if another != data
    ]
    for number, period in enumerate(periods):
        assert len(period) == INEXACT_PERIOD
        assert len(np.unique(period)) > 0.99 * INEXACT_PERIOD
        for earlier in periods[:number]:
            assert np.mean(period == earlier) < 0.01


@every_type
@every_distribution
@pytest.mark.parametrize("ranks", [2, 5, 16])
def test_sums_of_up_to_16_ranks_stay_in_range_in_any_order(
    data: InexactData, dtype: str, ranks: int
) -> None:
    parts = parts_of(data, dtype, "sum", ranks)
    largest = float(limits(dtype).max)
    # No partial sum is beyond that of all addends of one sign.
    assert np.maximum(parts, 0).sum(axis=0).max() < largest
    assert np.maximum(-parts, 0).sum(axis=0).max() < largest
    # Types of 8 bits hold half of the numbers of a spread of 1e6 as zeros.
    assert np.mean(parts != 0) > (0.45 if dtype.startswith("float8") else 0.99)


@every_type
@pytest.mark.parametrize("ranks", [2, 8, 16])
def test_products_stay_in_range(dtype: str, ranks: int) -> None:
    products = exact_results(DATA[0], dtype, "prod", ranks)
    assert np.abs(products).max() < float(limits(dtype).max)
    assert np.abs(products).min() > 2.0 ** EXPONENTS[dtype][0]


@pytest.mark.parametrize("spread", [1e2, 1e4, 1e6])
@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_cancelling_addends_are_larger_than_their_sum_by_the_spread(
    spread: float, ranks: int
) -> None:
    data = InexactData("cancelling", spread)
    magnitudes = np.abs(parts_of(data, "float64", "sum", ranks)).sum(axis=0)
    condition = np.median(magnitudes / np.abs(exact_results(data, "float64", "sum", ranks)))
    # The median of normal magnitudes, and so of the sum, is 0.67 times a standard deviation.
    assert spread < condition < 3 * spread * ranks
    plain = InexactData()
    magnitudes = np.abs(parts_of(plain, "float64", "sum", ranks)).sum(axis=0)
    assert np.median(magnitudes / np.abs(exact_results(plain, "float64", "sum", ranks))) < 8


# -- exact results -----------------------------------------------------------------------------------------


@every_type
@every_distribution
@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_sums_are_those_of_fractions_rounded_once(
    data: InexactData, dtype: str, ranks: int
) -> None:
    parts = parts_of(data, dtype, "sum", ranks)[:, :150].T.tolist()
    exact = [sum(map(Fraction, part)) for part in parts]
    sums, doubled, averages = (
        exact_results(data, dtype, op, ranks)[:150].tolist()
        for op in ("sum", "premulsum", "avg")
    )
    assert sums == [float(total) for total in exact]
    assert doubled == [float(2 * total) for total in exact]
    for average, total in zip(averages, exact, strict=True):
        assert abs(Fraction(average) - Fraction(total, ranks)) <= math.ulp(average)


# -- errors ------------------------------------------------------------------------------------------------


def in_type(number: float, dtype: str) -> Array:
    value = np.array([number]).astype(numpy_dtype(dtype))
    assert float(value[0]) == number, "the type holds it"
    return value


def error_of(number: float, exact: float, dtype: str) -> float:
    return float(errors_in_ulp(in_type(number, dtype), np.array([exact]), dtype)[0])


@given(
    dtype=st.sampled_from(list(EXPONENTS)),
    place=st.floats(0, 1),
    height=st.floats(0, 1),
    eighths=st.integers(-3, 3),
    negative=st.booleans(),
)
def test_what_is_rounded_right_is_half_a_unit_off_at_most_and_its_neighbour_more(
    dtype: str, place: float, height: float, eighths: int, negative: bool
) -> None:
    half, (lowest, highest) = EXACT_LIMIT[dtype] // 2, EXPONENTS[dtype]
    # Neither the smallest nor the largest of its power of two, so that neighbours are equally far.
    significand = half + 1 + int(place * (half - 3))
    exponent = lowest + int(height * (highest - 1 - lowest))
    unit = math.ldexp(2.0 if negative else -2.0, exponent) / EXACT_LIMIT[dtype]
    off = 0 if dtype == "float64" else eighths / 8
    exact = (significand + off) * unit
    assert error_of(significand * unit, exact, dtype) == abs(off)
    for step in (-1, 1):
        assert error_of((significand + step) * unit, exact, dtype) == abs(step - off) > 0.5


@every_type
@pytest.mark.parametrize("op", ["sum", "prod", "avg"])
def test_exact_results_rounded_once_are_rounded_right(dtype: str, op: str) -> None:
    exact = exact_results(DATA[0], dtype, op, 5)
    rounded = exact.astype(numpy_dtype(dtype))
    assert errors_in_ulp(rounded, exact, dtype).max() <= 0.5
    bits = bits_of(rounded)
    farther = (bits ^ 1).view(rounded.dtype)
    apart = errors_in_ulp(farther, exact, dtype)
    assert 0.5 <= apart.min() <= apart.max() <= 2.5


# -- what is looked at -------------------------------------------------------------------------------------


@given(elements=st.integers(0, 10 * MOST_STRETCHES * INEXACT_PERIOD))
def test_whole_results_are_looked_at_and_of_long_ones_stretches_from_end_to_end(
    elements: int,
) -> None:
    places = looked_at(elements)
    assert len(places) == min(elements, MOST_STRETCHES * INEXACT_PERIOD)
    assert (np.diff(places) > 0).all()
    if elements:
        assert (places[0], places[-1]) == (0, elements - 1)
