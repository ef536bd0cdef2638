"""Turns, and defaults that lose to others, on curves made for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.analysis.findings import SHAPE_RULES
from ccbench.findings import Finding
from ccbench.report.wording import points_of
from ccbench.results import Point
from tests.analysis.test_findings import timed
from tests.report.synthetic import case, write_run


def shape_findings(points: Sequence[Point]) -> list[Finding]:
    return [finding for rule in SHAPE_RULES for finding in rule(points)]


SIZES = tuple(2**power for power in range(10, 20))


@pytest.fixture(scope="module")
def one_of_each(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Point]:
    run = write_run(tmp_path_factory.mktemp("runs") / "run", [case("all_reduce", "ring", 4096)])
    return {point.collective: point for point in points_of(run)}


@pytest.fixture
def curve(one_of_each: Mapping[str, Point]) -> list[Point]:
    point = one_of_each["all_reduce"]
    return [timed(replace(point, size_bytes=size), 1e-5 + size / 1e10) for size in SIZES]


def kinds(points: list[Point]) -> list[str]:
    return [finding.kind for finding in shape_findings(points)]


def test_a_smaller_size_that_takes_longer_is_found(
    curve: list[Point],
) -> None:
    curve[4] = timed(curve[4], 5 * (curve[4].median_seconds or 0))
    findings = shape_findings(curve)
    assert [finding.kind for finding in findings] == ["not_monotone"]
    assert "16 KiB" in findings[0].evidence


def test_a_dip_within_the_noise_is_none(curve: list[Point]) -> None:
    curve[4] = timed(curve[4], 1.5 * (curve[4].median_seconds or 0), width=1.9)
    assert kinds(curve) == []


def test_a_default_that_loses_is_found_and_the_winner_named(
    one_of_each: Mapping[str, Point],
) -> None:
    point = replace(one_of_each["all_reduce"], size_bytes=4096)
    default = timed(replace(point, algorithm="default"), 2e-5)
    (finding,) = shape_findings([default, timed(replace(point, algorithm="tree"), 1e-5)])
    assert finding.kind == "default_loses"
    assert "force tree" in finding.advice
    assert kinds([default, timed(replace(point, algorithm="tree"), 1.99e-5)]) == []
    assert (
        kinds([default, timed(replace(point, algorithm="tree", groups="rank // 2"), 1e-5)])
        == []
    )


def test_emulated_points_are_not_judged(curve: list[Point]) -> None:
    curve[4] = timed(curve[4], 5 * (curve[4].median_seconds or 0))
    assert kinds([replace(point, flags=("emulation",)) for point in curve]) == []


@given(alpha=st.floats(1e-7, 1e-3), rate=st.floats(1e6, 1e12), width=st.floats(0.0, 0.5))
def test_no_alpha_beta_curve_has_a_finding(
    one_of_each: Mapping[str, Point], alpha: float, rate: float, width: float
) -> None:
    point = one_of_each["all_reduce"]
    some = [
        timed(replace(point, size_bytes=size), alpha + size / rate, width) for size in SIZES
    ]
    assert kinds(some) == []
