from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ccbench.cases.axes import SETTINGS, Case, setting_labels
from ccbench.cases.measurement import Measurement
from ccbench.report.baselines import beside, comparable_points
from ccbench.report.case_table import csv_table, screen_table
from ccbench.report.figures import figures_of
from ccbench.report.nccl_tests import nccl_tests_tables
from ccbench.report.wording import points_of, series_names

from .synthetic import case, write_run

OTHER: dict[str, Any] = {
    "groups": "rank // 2",
    "active_group": 0,
    "concurrent": "all_gather",
    "traffic": "zipf:1.2",
    "overlap_with": "matmul",
    "channels": 8,
    "transport": "host",
    "registration": "symmetric",
    "aggregation": 4,
    "misalignment_bytes": 4,
    "processes": "per_gpu",
    "memory": "device",
    "cta_policy": "zero",
    "variant": "new",
}
OTHER_WORK = ("groups", "active_group", "concurrent", "traffic", "overlap_with", "aggregation")
DEFAULTS = {axis.name: axis.default for axis in SETTINGS}
SIZES = (2**12, 2**14, 2**16, 2**18, 2**20)


def cases(**changes: Any) -> list[Case]:
    return [case("all_reduce", "ring", size, backend="nccl", **changes) for size in SIZES]


def test_every_setting_that_cannot_stand_alone_is_tried() -> None:
    assert {axis.name for axis in SETTINGS} - {"pair"} == set(OTHER)


@pytest.mark.thinned(7)
@pytest.mark.parametrize("name", OTHER)
def test_cases_that_differ_in_one_setting_are_two_lines_two_names_and_two_tables(
    tmp_path: Path, name: str
) -> None:
    run = write_run(tmp_path / "run", [*cases(), *cases(**{name: OTHER[name]})])
    points = points_of(run)
    assert len(set(series_names(points).values())) == 2
    assert len({point.label for point in points}) == len(points)
    assert len({table.name for table in nccl_tests_tables(points)}) == 2
    label = setting_labels({**DEFAULTS, name: OTHER[name]})[0]
    assert label in screen_table(run, 200)
    assert label in screen_table(run, 60)
    lines = {
        one.label
        for figure in figures_of(points)
        for one in figure.series
        if figure.topic == "time"
    }
    assert any(label in line for line in lines)
    assert str(OTHER[name]) in csv_table(points)


@pytest.mark.thinned(7)
@pytest.mark.parametrize("name", OTHER)
def test_a_baseline_matches_in_every_setting(tmp_path: Path, name: str) -> None:
    plain = write_run(tmp_path / "plain", cases())
    run = write_run(tmp_path / "other", cases(**{name: OTHER[name]}))
    mine = points_of(run)
    assert beside(mine, comparable_points(mine, plain)) == ()
    assert len(beside(mine, comparable_points(mine, run))) == len(SIZES)


def test_bandwidths_of_groups_are_those_of_one_group(tmp_path: Path) -> None:
    (point, *_) = points_of(write_run(tmp_path / "run", cases(groups="rank // 2")))
    assert point.group_ranks == 2
    assert point.busbw_at(point.median_seconds) == pytest.approx(point.busbw)


@pytest.mark.thinned(5)
@pytest.mark.parametrize("name", [*OTHER_WORK, "channels", "registration", "transport"])
def test_only_settings_of_the_same_work_race(tmp_path: Path, name: str) -> None:
    run = write_run(tmp_path / "run", [*cases(), *cases(**{name: OTHER[name]})])
    races = [figure for figure in figures_of(points_of(run)) if figure.topic == "algorithms"]
    assert len(races) == (name not in OTHER_WORK)


def test_parts_show_the_slowest_and_by_how_much(tmp_path: Path) -> None:
    def parts(measurement: Measurement) -> Measurement:
        samples = (
            measurement.samples_seconds,
            tuple(1.5 * sample for sample in measurement.samples_seconds),
        )
        return replace(
            measurement, group_names=("ranks 0-1", "ranks 2-3"), group_samples_seconds=samples
        )

    run = write_run(tmp_path / "run", cases(groups="rank // 2"), dict.fromkeys(range(5), parts))
    assert points_of(run)[0].slowest_group == "ranks 2-3 +50.0%"
    assert "ranks 2-3 +50.0%" in screen_table(run, 200)


def test_what_the_library_chose_and_expected_is_shown(tmp_path: Path) -> None:
    def told(measurement: Measurement) -> Measurement:
        used = replace(
            measurement, algorithm_used="nvls", protocol_used="simple", channels_used=16
        )
        return replace(used, library_estimate_seconds=12.5e-6)

    default = [replace(case, algorithm="default") for case in cases()]
    run = write_run(tmp_path / "run", default, dict.fromkeys(range(5), told))
    table = screen_table(run, 200)
    assert "default (nvls simple 16 ch)" in table
    assert "library says" in table
    assert "12.5 us" in table
    row = csv_table(points_of(run)).splitlines()[1]
    assert "1.25e-05" in row
