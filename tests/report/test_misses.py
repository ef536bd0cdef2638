"""What is listed first."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from ccbench.report.misses import FAR, miss_lines, misses
from ccbench.report.points import points_of
from ccbench.results import Point

from .synthetic import sweep, write_run


@pytest.fixture(scope="module")
def point(tmp_path_factory: pytest.TempPathFactory) -> Point:
    run = write_run(tmp_path_factory.mktemp("misses") / "run", sweep())
    return replace(
        points_of(run)[0],
        median_seconds=2e-6,
        predicted_seconds=2e-6,
        bound_seconds=1e-6,
        samples_seconds=np.full(10, 2e-6),
        bottleneck="a link",
    )


def test_points_near_their_prediction_are_not_listed(point: Point) -> None:
    assert misses([point, replace(point, median_seconds=2.5e-6)]) == ()
    assert miss_lines([point]) == []


def test_those_that_beat_the_bound_come_before_those_that_miss_the_prediction(point: Point) -> None:
    slow, slower = (replace(point, median_seconds=seconds) for seconds in (4e-6, 8e-6))
    impossible = replace(point, median_seconds=0.5e-6, samples_seconds=np.full(10, 0.5e-6))
    found = misses([slow, slower, impossible])
    assert [miss.point for miss in found] == [impossible, slower, slow]
    assert [miss.beats_bound for miss in found] == [True, False, False]
    assert "beats the bound" in str(found[0])
    once = replace(point, samples_seconds=np.array([0.5e-6, *[2e-6] * 9]))
    assert "10 % of its samples beat the bound" in str(*misses([once]))
    assert "4x the prediction" in str(found[1])
    assert "costs most: a link" in str(found[1])


def test_a_faster_point_than_predicted_is_listed_too(point: Point) -> None:
    (miss,) = misses([replace(point, median_seconds=1.2e-6)])
    assert "60% of the prediction" in str(miss)


def test_simulated_points_and_single_ranks_are_left_out(point: Point) -> None:
    slow = replace(point, median_seconds=9e-6)
    assert misses([replace(slow, simulated=True), replace(slow, ranks=1), replace(slow, baseline=True)]) == ()


def test_a_screen_gets_the_worst_and_the_number_of_the_rest(point: Point) -> None:
    slow = [replace(point, median_seconds=seconds * 1e-6) for seconds in range(10, 20)]
    lines = miss_lines(slow)
    assert lines[0] == "Look first at 10 cases more than 30% from the prediction:"
    assert len(lines) == 7
    assert lines[-1].endswith("5 more, all in the report's page")
    assert len(miss_lines(slow, most=None)) == 11


@given(ratios=some.lists(some.floats(0.1, 10.0), max_size=12))
def test_exactly_the_far_ones_are_listed(point: Point, ratios: list[float]) -> None:
    points = [replace(point, median_seconds=2e-6 * ratio, bound_seconds=None) for ratio in ratios]
    expected = sum(abs(one.median_seconds / 2e-6 - 1) > FAR for one in points if one.median_seconds)
    assert len(misses(points)) == expected
