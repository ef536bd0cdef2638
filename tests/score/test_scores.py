from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.score.scores import errors_of, scored
from benchmarks.score.statistics import BANDS, ErrorSummary, score, summary
from ccbench.errors import MachineError
from ccbench.model.library import LibraryRequest, LibrarySystem
from tests.score.corpora import log_points, observation, twice_as_slow


def exact(system: LibrarySystem, request: LibraryRequest) -> Sequence[float]:
    return [size * 1e-9 for size in request.size_bytes]


def none(system: LibrarySystem, request: LibraryRequest) -> Sequence[float]:
    raise MachineError("no such collective")


def test_errors_are_fractions_of_what_was_measured() -> None:
    found, reasons = errors_of([observation((1000, 2000), (1e-6, 1e-6))], exact)
    assert found.errors == pytest.approx((0.0, 1.0))
    assert reasons == ()


def test_what_a_predictor_has_no_answer_to_is_no_point_and_its_reason_is_told_once() -> None:
    found, reasons = errors_of([observation((8,), (1e-6,)), observation((16,), (1e-6,))], none)
    assert found.score.overall.points == 0
    assert reasons == ("no such collective",)


def test_a_log_that_the_model_cannot_answer_keeps_the_reason_and_no_figures() -> None:
    scores = scored([log_points("a.txt", (1000,))], none, {"rival": exact})
    (log,) = scores.not_modelled
    assert log.reason == "no such collective"
    assert log.score.overall.median_error is None
    assert not log.counted
    assert scores.comparison["rival"].overall.points == 0


def test_rivals_are_scored_on_the_same_points() -> None:
    scores = scored(
        [log_points("a.txt", (1000, 2000))], exact, {"slow": twice_as_slow, "none": none}
    )
    assert scores.total.overall.mape == pytest.approx(0.0)
    assert scores.comparison["slow"].overall.mape == pytest.approx(1.0)
    assert scores.comparison["none"].overall.points == 0


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


def test_the_four_figures_of_three_errors() -> None:
    document = summary([0.1, -0.2, 0.6])
    assert document.points == 3
    assert document.median_error == pytest.approx(0.2)
    assert document.mape == pytest.approx(0.3)
    assert document.bias == pytest.approx(0.5 / 3)


def test_nothing_has_no_figures() -> None:
    assert summary([]) == ErrorSummary(0)
    assert score([], []).overall.median_error is None


def test_sizes_at_the_borders_of_bands_belong_below() -> None:
    bands = score(
        [32 << 10, (32 << 10) + 1, 32 << 20, (32 << 20) + 1], [0.1, 0.2, 0.3, 0.4]
    ).bands
    assert [bands[name].points for name, _, _ in BANDS] == [1, 2, 1]
    assert bands["above_32MiB"].mape == pytest.approx(0.4)


def test_points_that_nobody_predicted_do_not_count() -> None:
    assert score([8, 16], [math.nan, 0.5]).overall == summary([0.5])


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
