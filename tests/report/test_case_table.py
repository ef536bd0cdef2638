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
from ccbench.results import Run

from .synthetic import case, failed, flagged, sweep, write_run

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


@pytest.mark.parametrize("width", [0, 40, 60, 80, 100, 120, 160, 400])
def test_no_line_is_wider_than_the_screen_and_no_number_is_cut(run: Run, width: int) -> None:
    text = screen_table(run, width)
    assert max(map(len, text.splitlines())) <= max(width, 40)
    assert sum("KiB" in line or "MiB" in line for line in text.splitlines()) >= len(run.points)
    assert "…" not in "".join(
        line for line in text.splitlines() if "us [" in line and width >= 60
    )


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
