from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.score.scores import errors_of, scored
from benchmarks.score.statistics import score, summary
from ccbench.errors import MachineError
from ccbench.model.library import LibraryRequest, LibrarySystem
from tests.score.corpora import log_points, observation, twice_as_slow


def none(system: LibrarySystem, request: LibraryRequest) -> Sequence[float]:
    raise MachineError("no such collective")


def test_what_a_predictor_has_no_answer_to_is_no_point_and_its_reason_is_told_once() -> None:
    found, reasons = errors_of([observation((8,), (1e-6,)), observation((16,), (1e-6,))], none)
    assert found.score.overall.points == 0
    assert reasons == ("no such collective",)


@given(
    st.lists(st.lists(st.integers(1, 1 << 35), min_size=1, max_size=6), min_size=1, max_size=5)
)
def test_the_total_is_of_the_points_of_all_logs(sizes: list[list[int]]) -> None:
    logs = [log_points(f"{number}.txt", tuple(found)) for number, found in enumerate(sizes)]
    scores = scored(logs, twice_as_slow, {})
    assert scores.total.overall.points == sum(map(len, sizes))
    assert scores.total.overall.bias == pytest.approx(1.0)


ERRORS = st.lists(st.floats(-1, 10), min_size=1, max_size=40)
POINTS = st.lists(st.tuples(st.integers(1, 1 << 40), st.floats(-1, 10)), max_size=40)


@given(POINTS)
def test_every_point_is_in_one_band(points: list[tuple[int, float]]) -> None:
    scores = score([size for size, _ in points], [error for _, error in points])
    assert (
        sum(band.points for band in scores.bands.values())
        == scores.overall.points
        == len(points)
    )


@given(ERRORS)
def test_the_bias_is_never_larger_than_the_mean_error(errors: list[float]) -> None:
    document = summary(errors)
    assert document.mape is not None
    assert document.bias is not None
    assert abs(document.bias) <= document.mape + 1e-12
    assert min(map(abs, errors)) - 1e-12 <= document.mape <= max(map(abs, errors)) + 1e-12


@given(ERRORS)
def test_half_of_the_points_are_within_the_median(errors: list[float]) -> None:
    median = summary(errors).median_error
    assert median is not None
    assert 2 * sum(abs(error) <= median * (1 + 1e-12) for error in errors) >= len(errors)
