"""What a run says about itself, on runs made for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.analysis.findings import (
    PREDICTION_ERROR_LIMIT,
    SEVERITIES,
    default_loses,
    findings_of,
    run_findings,
)
from ccbench.cases.measurement import Measurement, Status
from ccbench.findings import Finding
from ccbench.flags import Flag
from ccbench.report.wording import points_of
from ccbench.results import Point, Run
from ccbench.results.points import NO_SAMPLES
from tests.report.synthetic import MANIFEST, failed, flagged, sweep, write_run


@pytest.fixture(scope="module")
def points(tmp_path_factory: pytest.TempPathFactory) -> tuple[Point, ...]:
    """A quiet run: one algorithm, intervals of a few per cent."""
    return points_of(write_run(tmp_path_factory.mktemp("runs") / "run", sweep()))


def run_findings_of(run: Run) -> tuple[Finding, ...]:
    return run_findings(run, points_of(run))


def kinds(findings: Sequence[Finding]) -> list[str]:
    return [finding.kind for finding in findings]


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


def test_a_quiet_run_has_no_finding(points: tuple[Point, ...]) -> None:
    assert findings_of(quiet(points)) == ()


def test_wrong_results_come_first_and_count(points: tuple[Point, ...]) -> None:
    some = quiet(points)
    some[2] = replace(some[2], status=Status.WRONG, wrong_elements=9, median_seconds=None)
    some[3] = replace(some[3], flags=("throttled",))
    findings = findings_of(some)
    assert kinds(findings) == ["wrong_results", "throttled"]
    assert "9 wrong elements" in findings[0].evidence
    assert findings[0].severity == "problem"
    assert findings[1].advice == Flag.THROTTLED.advice


@pytest.mark.parametrize("status", [Status.FAILED, Status.TIMED_OUT, Status.OUT_OF_MEMORY])
def test_a_case_without_a_result_is_a_problem_with_its_reason(
    tmp_path: Path, status: Status
) -> None:
    run = write_run(
        tmp_path / "run",
        sweep(),
        {1: lambda measurement: failed(measurement, status, "rank 3 is gone")},
    )
    findings = [
        finding for finding in run_findings(run, points_of(run)) if finding.kind == status.value
    ]
    assert [finding.severity for finding in findings] == ["problem"]
    assert "rank 3 is gone" in findings[0].evidence


def test_a_wide_interval_is_unstable(points: tuple[Point, ...]) -> None:
    some = quiet(points)
    some[4] = timed(some[4], some[4].median_seconds or 0, width=0.5)
    assert kinds(findings_of(some)) == ["unstable"]


def test_a_rank_that_is_always_last_is_named(points: tuple[Point, ...]) -> None:
    some = [
        replace(point, rank_median_seconds=(1.0, 1.0, 1.2, 1.0), slowest_rank=2)
        for point in quiet(points)
    ]
    (finding,) = findings_of(some)
    assert finding.kind == "straggler"
    assert finding.evidence.startswith("rank 2 slowest")


def test_findings_of_the_machine_are_taken_from_the_manifest_whatever_else_lies_there(
    tmp_path: Path,
) -> None:
    recorded = {
        "severity": "problem",
        "kind": "narrow_link",
        "devices": ["gpu3"],
        "evidence": "x8",
        "advice": "y",
    }
    manifest = {**MANIFEST, "findings": [recorded, "text", None, {"severity": 3}]}
    findings = run_findings_of(write_run(tmp_path / "run", sweep(), manifest=manifest))
    assert findings[0].kind == "narrow_link"
    assert "gpu3" in findings[0].subject


def test_simulated_and_emulated_runs_are_told(tmp_path: Path) -> None:
    def emulate(measurement: Measurement) -> Measurement:
        return flagged(measurement, "emulation")

    simulated = run_findings_of(write_run(tmp_path / "one", sweep(), simulated=True))
    emulated = run_findings_of(
        write_run(tmp_path / "two", sweep(), dict.fromkeys(range(9), emulate))
    )
    assert "simulation" in kinds(simulated)
    assert "emulation" in kinds(emulated)
    assert "slower_than_predicted" not in kinds(emulated)


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


def test_the_cases_furthest_from_bound_and_prediction_are_named_first(near: Point) -> None:
    some = [taking(near, seconds) for seconds in (1.2e-6, 2e-6, 2.5e-6, 4e-6, 8e-6, 0.5e-6)]
    findings = {finding.kind: finding for finding in findings_of(some)}
    assert findings["beats_bound"].cases == 1
    assert "500 ns beats the bound" in findings["beats_bound"].evidence.replace(
        "0.5 us", "500 ns"
    )
    slower = findings["slower_than_predicted"]
    assert (slower.cases, slower.severity) == (2, "doubt")
    assert slower.evidence.index("4x the prediction") < slower.evidence.index(
        "2x the prediction"
    )
    assert "by the model a link costs most" in slower.evidence
    once = replace(near, samples_seconds=np.array([0.5e-6, *[2e-6] * 9]))
    (beaten,) = findings_of([once])
    assert "10 % of its samples beat the bound" in beaten.evidence


def test_simulated_points_and_single_ranks_stray_from_no_prediction(near: Point) -> None:
    slow = taking(near, 9e-6)
    elsewhere = [
        replace(slow, simulated=True),
        replace(slow, ranks=1),
        replace(slow, baseline=True),
    ]
    assert "slower_than_predicted" not in kinds(findings_of(elsewhere))


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
