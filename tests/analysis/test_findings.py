"""What a run says about itself, on runs made for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.analysis.findings import (
    PREDICTION_ERROR_LIMIT,
    SEVERITIES,
    default_loses,
    findings_of,
)
from ccbench.report.wording import points_of
from ccbench.results import Point
from ccbench.results.points import NO_SAMPLES
from tests.report.synthetic import sweep, write_run


@pytest.fixture(scope="module")
def points(tmp_path_factory: pytest.TempPathFactory) -> tuple[Point, ...]:
    """A quiet run: one algorithm, intervals of a few per cent."""
    return points_of(write_run(tmp_path_factory.mktemp("runs") / "run", sweep()))


def timed(point: Point, seconds: float, width: float = 0.02) -> Point:
    rate = point.size_bytes / seconds / 1e9
    return replace(
        point,
        median_seconds=seconds,
        low_seconds=seconds * (1 - width / 2),
        high_seconds=seconds * (1 + width / 2),
        algbw=rate,
        busbw=point.busbw_at(seconds),
        samples_seconds=NO_SAMPLES,
        predicted_seconds=seconds,
        bound_seconds=seconds / 2,
    )


def quiet(points: Sequence[Point]) -> list[Point]:
    """Alpha-beta times without noise, rank medians alike."""
    return [
        replace(
            timed(point, 1e-5 + point.size_bytes / 1e10),
            rank_median_seconds=(),
            rank_waiting_seconds=(),
        )
        for point in points
    ]


@given(times=st.lists(st.floats(1e-7, 10.0), min_size=9, max_size=9), simulated=st.booleans())
def test_findings_are_ordered_by_severity_and_complete(
    points: tuple[Point, ...], times: list[float], simulated: bool
) -> None:
    some = [timed(point, seconds) for point, seconds in zip(points, times, strict=True)]
    findings = findings_of([replace(point, simulated=simulated) for point in some])
    order = [SEVERITIES.index(finding.severity) for finding in findings]
    assert order == sorted(order)
    assert all(finding.subject and finding.evidence and finding.advice for finding in findings)


@pytest.fixture
def near(points: tuple[Point, ...]) -> Point:
    """2 us, as predicted, twice its bound."""
    return replace(
        timed(points[0], 2e-6), bottleneck="a link", samples_seconds=np.full(10, 2e-6)
    )


def taking(point: Point, seconds: float) -> Point:
    return replace(
        point,
        median_seconds=seconds,
        low_seconds=seconds,
        high_seconds=seconds,
        samples_seconds=np.full(10, seconds),
    )


# Not so near to the limit that the last digit of a division decides.
@given(
    ratios=st.lists(
        st.floats(0.1, 10.0).filter(
            lambda one: abs(abs(one - 1) - PREDICTION_ERROR_LIMIT) > 1e-9
        ),
        max_size=12,
    )
)
def test_exactly_the_far_ones_are_counted(
    points: tuple[Point, ...], ratios: list[float]
) -> None:
    some = [
        replace(taking(points[0], 2e-6 * ratio), predicted_seconds=2e-6, bound_seconds=None)
        for ratio in ratios
    ]
    expected = sum(
        point.median_seconds / 2e-6 - 1 > PREDICTION_ERROR_LIMIT
        for point in some
        if point.median_seconds
    )
    findings = [
        finding for finding in findings_of(some) if finding.kind == "slower_than_predicted"
    ]
    assert sum(finding.cases for finding in findings) == expected


def test_a_default_that_loses_is_found_and_the_winner_named(near: Point) -> None:
    default = timed(replace(near, algorithm="default"), 2e-5)
    tree = replace(near, algorithm="tree")
    (finding,) = default_loses([default, timed(tree, 1e-5)])
    assert (finding.kind, "force tree" in finding.advice) == ("default_loses", True)
    assert not [*default_loses([default, timed(tree, 1.99e-5)])]
    assert not [*default_loses([default, timed(replace(tree, groups="rank // 2"), 1e-5)])]
    noisy = timed(replace(near, algorithm="default"), 2e-5, width=1.9)
    assert not [*default_loses([noisy, timed(tree, 1e-5, width=1.9)])]
