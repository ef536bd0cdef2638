"""Times that a run's own other sizes imply: with which levels, of which points, and what is said of them."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from ccbench.analysis.findings import findings_of, run_findings
from ccbench.analysis.other_sizes import with_other_sizes
from ccbench.cases.axes import Case
from ccbench.cases.measurement import Conditions
from ccbench.findings import Finding
from ccbench.model.library.intervals import regime_of
from ccbench.report.case_table import csv_table, screen_table
from ccbench.report.wording import points_of
from tests.analysis.test_speed_verdict import SIZES, Slower, case, only, sweep, words, write_run

KIND = "slow_for_other_sizes"
MIB = 1 << 20


def found_in(path: Path, slower: Slower) -> list[Finding]:
    run = write_run(path, sweep(), slower)
    return [finding for finding in run_findings(run, points_of(run)) if finding.kind == KIND]


@pytest.mark.thinned(2)
@pytest.mark.parametrize("level", [0.7, 1.0, 3.0])
def test_a_size_that_is_slow_alone_is_found_at_any_speed_of_the_machine(
    tmp_path: Path, level: float
) -> None:
    (finding,) = found_in(
        tmp_path / "run",
        lambda size_case: level * (2.0 if size_case.size_bytes == 4 * MIB else 1.0),
    )
    assert finding.subject == "1 size slower than the run's other sizes imply"
    assert "4 MiB took" in finding.evidence


def test_the_verdict_stays_one_against_other_machines(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", sweep(), lambda size_case: 10.0)
    assert set(words(only(run)).values()) == {"SLOW"}
    assert KIND not in {finding.kind for finding in run_findings(run, points_of(run))}, (
        "all sizes are as slow"
    )
    smallest, *between, largest = points_of(run)
    assert smallest.by_other_sizes_seconds is largest.by_other_sizes_seconds is None, (
        "no size lies beyond"
    )
    implied = [point.by_other_sizes_seconds for point in between]
    assert implied == pytest.approx([point.median_seconds for point in between], rel=0.15)


def test_latency_and_rate_of_the_machine_are_its_own(tmp_path: Path) -> None:
    levels = {"latency": 1.9, "middle": 1.6, "large": 1.25}
    assert (
        found_in(tmp_path / "run", lambda size_case: levels[regime_of(size_case.size_bytes)])
        == []
    )


def test_of_neighbours_only_the_one_that_is_most_off_counts(tmp_path: Path) -> None:
    # What is too fast makes its neighbours look slow.
    assert (
        found_in(
            tmp_path / "fast", lambda size_case: 0.2 if size_case.size_bytes == 4 * MIB else 1.0
        )
        == []
    )
    dips = {MIB: 3.0, 2 * MIB: 4.0}
    (finding,) = found_in(
        tmp_path / "slow", lambda size_case: dips.get(size_case.size_bytes, 1.0)
    )
    assert finding.subject.startswith("1 size ")
    assert "2 MiB took" in finding.evidence


def test_a_size_within_the_interval_of_its_own_noise_is_not_found(tmp_path: Path) -> None:
    run = write_run(
        tmp_path / "run",
        sweep(),
        lambda size_case: 2.0 if size_case.size_bytes == 4 * MIB else 1.0,
    )
    points = [
        replace(point, low_seconds=0.4 * (point.median_seconds or 0.0))
        for point in points_of(run)
    ]
    assert KIND not in {finding.kind for finding in findings_of(points)}


@pytest.mark.parametrize(
    "cases",
    [
        sweep(algorithm="ring"),
        sweep(backend="cuda"),
        sweep()[10:13],
        [case(size, in_place=bool(place % 2)) for place, size in enumerate(SIZES[:6])],
    ],
    ids=["forced", "own kernels", "three sizes", "three of each placement"],
)
def test_nothing_is_implied_for_other_work_and_of_few_sizes(
    tmp_path: Path, cases: list[Case]
) -> None:
    run = write_run(tmp_path / "run", cases)
    assert {point.by_other_sizes_seconds for point in points_of(run)} == {None}
    assert "by other sizes" not in screen_table(run, 200)


def test_nothing_is_implied_where_no_machine_is_named_or_points_are_flagged(
    tmp_path: Path,
) -> None:
    unnamed = write_run(tmp_path / "unnamed", sweep(), manifest={"suite": {"name": "nccl"}})
    flagged = write_run(
        tmp_path / "flagged", sweep(), conditions=Conditions(flags=("throttled",))
    )
    for run in (unnamed, flagged):
        assert with_other_sizes(run) == run.points


def test_the_table_has_it_and_says_what_it_is(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", sweep())
    text = screen_table(run, 200)
    assert "by other sizes  " in text
    assert "as the run's other sizes imply, with this machine's own levels" in text
    (_, row, *_) = csv.DictReader(csv_table(points_of(run)).splitlines())
    low, middle, high = (
        float(row[f"by_other_sizes_{name}seconds"]) for name in ("low_", "", "high_")
    )
    assert low < middle < high
