from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ccbench.cases.measurement import Status
from ccbench.report.case_table import CSV_NAMES, case_table, csv_table, screen_table
from ccbench.report.present import markdown_table
from ccbench.report.wording import points_of
from ccbench.report.writing import Drawn, markdown_report
from ccbench.results import Run

from .synthetic import Edit, case, failed, flagged, sweep, write_run

EDITS = {
    1: lambda measurement: flagged(measurement, "clock fell"),
    2: lambda measurement: failed(measurement, Status.TIMED_OUT, "rank 2 hung"),
    3: lambda one: replace(
        one, status=Status.WRONG, wrong_elements=5, detail="5 elements differ"
    ),
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    cases = [*sweep(algorithms=("ring", "tree")), *sweep("all_gather")]
    return write_run(tmp_path_factory.mktemp("runs") / "run", cases, EDITS)


def test_a_wide_screen_shows_every_column(run: Run) -> None:
    text = screen_table(run, 200)
    for header in (
        "collective",
        "algorithm",
        "ranks",
        "dtype",
        "size",
        "time [interval]",
        "algbw",
        "busbw",
        "predicted",
        "of bound",
        "wrong",
        "flags",
    ):
        assert header in text
    assert "allreduce: 27 cases" in text


def _row(text: str, *words: str) -> str:
    (row,) = [line for line in text.splitlines() if all(word in line for word in words)]
    return row


def test_rows_tell_failures_wrong_results_and_doubts(run: Run) -> None:
    text = screen_table(run, 200)
    assert "clock fell" in text
    hung = _row(text, "timed_out")
    assert "rank 2 hung" in hung
    assert "GB/s" not in hung
    assert " 5  5 elements differ" in _row(text, "5 elements differ")
    assert "~ flagged as doubtful" in text


def test_a_median_stands_with_its_interval_in_one_unit(run: Run) -> None:
    point = next(point for point in points_of(run) if point.median_seconds)
    assert point.median_seconds
    assert point.low_seconds
    row = _row(screen_table(run, 200), point.collective, "1 KiB")
    assert f"{point.median_seconds * 1e6:.4g} us [{point.low_seconds * 1e6:.4g}, " in row


@pytest.mark.parametrize("width", [0, 40, 60, 80, 100, 120, 160, 400])
def test_no_line_is_wider_than_the_screen_and_no_number_is_cut(run: Run, width: int) -> None:
    text = screen_table(run, width)
    assert max(map(len, text.splitlines())) <= max(width, 40)
    assert sum("KiB" in line or "MiB" in line for line in text.splitlines()) >= len(run.points)
    assert "…" not in "".join(
        line for line in text.splitlines() if "us [" in line and width >= 60
    )


def test_a_narrow_screen_says_what_it_leaves_out_and_keeps_series_apart(run: Run) -> None:
    text = screen_table(run, 60)
    assert "every row: ranks 4, dtype float32" in text
    assert "not shown for want of width" in text
    for heading in ("- all_gather ring", "- all_reduce ring", "- all_reduce tree"):
        assert heading in text


@pytest.mark.parametrize("width", [40, 60, 80, 120])
@pytest.mark.parametrize(
    ("field", "values", "shown"),
    [
        ("dtype", ("float16", "float32"), ("float16", "float32")),
        ("op", ("sum", "max"), ("sum", "max")),
        ("root", (2, 3), ("root 2", "root 3")),
        ("in_place", (False, True), ("in place",)),
        ("groups", ("rank // 2", "rank % 2"), ("groups rank // 2", "groups rank % 2")),
    ],
)
def test_what_tells_two_rows_apart_is_shown_at_every_width(
    tmp_path: Path, field: str, values: tuple[Any, ...], shown: tuple[str, ...], width: int
) -> None:
    cases = [
        replace(
            case("all_reduce", name, 4096, protocol="low_latency", mode="isolated"),
            **{field: value},
        )
        for name in ("recursive_halving_doubling", "ring")
        for value in values
    ]
    edits = {0: lambda one: replace(one, status=Status.WRONG, wrong_elements=5)}
    text = " ".join(screen_table(write_run(tmp_path / "run", cases, edits), width).split())
    for words in shown:
        assert text.count(words) >= 2, words


@pytest.mark.parametrize("width", [40, 60, 80])
def test_flags_and_reasons_stand_below_a_table_that_has_no_room_for_their_column(
    run: Run, width: int
) -> None:
    text = " ".join(screen_table(run, width).split())
    assert "Flagged as doubtful: clock fell (1 point)" in text
    assert (
        "No result: ring 64 KiB wrong (5 elements differ); ring 16 KiB timed_out (rank 2 hung)"
        in text
    )
    assert (
        "not shown" not in text or "flags" not in text.split("not shown for want of width: ")[1]
    )
    wide = screen_table(run, 200)
    assert "Flagged as doubtful: " not in wide
    assert "clock fell" in wide


def test_reasons_that_begin_alike_are_told_apart(tmp_path: Path) -> None:
    def ended(detail: str) -> Edit:
        return lambda measurement: failed(
            measurement, Status.FAILED, f"no memory could be mapped by rank 1: {detail}"
        )

    cases = [case("all_reduce", "ring", size) for size in (4096, 8192)]
    edits = dict(enumerate(map(ended, ("Permission denied", "No space left"))))
    text = " ".join(screen_table(write_run(tmp_path / "run", cases, edits), 60).split())
    assert "flags no memory" not in text
    assert "ring 8 KiB failed (no memory could be mapped by rank 1: No space left)" in text
    assert "ring 4 KiB failed (no memory could be mapped by rank 1: Permission denied)" in text


def test_many_flags_take_one_line(tmp_path: Path) -> None:
    def all_flagged(number: int) -> Edit:
        return lambda measurement: flagged(measurement, "emulation", f"flag {number}")

    edits = {number: all_flagged(number) for number in range(9)}
    text = " ".join(screen_table(write_run(tmp_path / "run", sweep(), edits), 60).split())
    assert "Flagged as doubtful: emulation (9 points); flag 0 (1 point); " in text


def test_simulated_runs_say_so_on_the_screen_and_in_markdown(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", sweep(), simulated=True)
    text = screen_table(run, 100)
    assert text.startswith("SIMULATED")
    assert "SIMULATED: times come from a model" in text
    page = markdown_report(Drawn([run], [points_of(run)], ()))
    assert page.startswith("# SIMULATED allreduce")
    assert "* SIMULATED: times come from a model" in page


def test_empty_all_failed_and_mixed_runs_have_tables(tmp_path: Path) -> None:
    assert screen_table(write_run(tmp_path / "empty", []), 80) == "allreduce: 0 cases"
    edits = {
        number: lambda measurement: failed(measurement, Status.FAILED, "no")
        for number in range(9)
    }
    text = screen_table(write_run(tmp_path / "failed", sweep(), edits), 120)
    assert sum("failed" in line for line in text.splitlines()) == 9
    mixed = [case("all_reduce", "ring", 4096, backend=name) for name in ("cpu", "mpi")]
    text = screen_table(write_run(tmp_path / "mixed", mixed), 160)
    assert "backend" in text
    assert "mpi" in text


@settings(max_examples=20)
@given(
    text=st.sampled_from(["a|b", "<script>", "x\ny", "`", "$", "=1+1"]) | st.text(max_size=20)
)
def test_no_name_breaks_markdown_or_csv(
    text: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    text = text.encode("utf-8", "replace").decode()
    cases = [replace(case("all_reduce", "ring", 4096), algorithm=text, backend=text)]
    edits = {0: lambda measurement: failed(measurement, Status.FAILED, text)}
    points = points_of(write_run(tmp_path_factory.mktemp("odd") / "run", cases, edits))
    lines = markdown_table(case_table(points)).splitlines()
    assert len(lines) == 3
    assert lines[2].count("|") == lines[1].count("|")
    assert "<" not in lines[2]
    header, row = csv.reader(io.StringIO(csv_table(points), newline=""))
    assert len(header) == len(row)
    assert not any(cell[:1] in "=+@" for cell in row if cell)


def test_csv_keeps_full_precision_and_leaves_missing_values_empty(run: Run) -> None:
    rows = list(csv.DictReader(io.StringIO(csv_table(points_of(run)), newline="")))
    assert list(rows[0]) == list(CSV_NAMES)
    for row, expected in zip(rows, run.table.to_pylist(), strict=True):
        assert row["status"] == expected["status"]
        if row["status"] == "ok":
            assert float(row["median_seconds"]) == expected["median_seconds"]
            assert row["root"] == "-1"
        else:
            assert row["median_seconds"] == row["busbw_GB_s"] == ""


def test_one_rank_has_no_bus_bandwidth_and_no_bound(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [case("broadcast", "binomial_tree", 4096, ranks=1)])
    columns = [
        name.strip()
        for name in markdown_table(case_table(points_of(run))).splitlines()[0].split("|")
    ]
    values = [
        name.strip()
        for name in markdown_table(case_table(points_of(run))).splitlines()[2].split("|")
    ]
    told = dict(zip(columns, values, strict=True))
    assert told["busbw"] == told["of bound"] == "-"
    assert told["algbw"] != "-"
