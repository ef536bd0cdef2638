from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ccbench.cases.axes import OVERLAP, OVERLAP_PARTS
from ccbench.cases.measurement import Measurement
from ccbench.report.case_table import screen_table
from ccbench.report.writing import write_report
from ccbench.results import Run

from .synthetic import case, write_run

GROUPS = "tp of tp2-cp1-ep1-dp2-pp1"


def taking(seconds: float, parts: dict[str, float] | None = None) -> Any:
    """Edits a measurement: thirty samples around ``seconds``, and of its parts."""

    def edit(measurement: Measurement) -> Measurement:
        spread = [1 + 0.001 * number for number in range(30)]
        return replace(
            measurement,
            samples_seconds=tuple(seconds * factor for factor in spread),
            group_names=tuple(parts or ()),
            group_samples_seconds=tuple(
                tuple(each * factor for factor in spread) for each in (parts or {}).values()
            ),
        )

    return edit


def groups_run(path: Path, **edits: Any) -> Run:
    """All groups in 2 ms, the first alone in 1 ms, and an unrelated case."""
    cases = [
        case("all_reduce", "ring", 2**20, groups=GROUPS),
        case("all_reduce", "ring", 2**20, groups=GROUPS, active_group=0),
        case("all_reduce", "ring", 2**20, groups="rank % 2", active_group=0),
    ]
    both = {"ranks 0-1": 1.5e-3, "ranks 2-3": 2e-3}
    made = {
        0: taking(2e-3, both),
        1: taking(1e-3),
        **{int(key[1:]): edit for key, edit in edits.items()},
    }
    return write_run(path / "run", cases, made)


def beside_run(path: Path, parts: dict[str, float]) -> Run:
    cases = [
        case("all_reduce", "ring", 2**20, groups=GROUPS),
        case("all_reduce", "ring", 2**20, groups=GROUPS, concurrent="all_gather on rank % 2"),
    ]
    return write_run(path / "run", cases, {0: taking(1e-3), 1: taking(3e-3, parts)})


def overlap_run(path: Path) -> Run:
    """1 ms each alone, 1.25 ms both together, in which one takes 1.5 ms and the other 1.25 ms."""
    seconds = dict(zip(OVERLAP_PARTS, (1e-3, 1e-3, 1.5e-3, 1.25e-3), strict=True))
    measurement = case("all_reduce", "ring", 2**20, mode=OVERLAP, overlap_with="matmul")
    return write_run(path / "run", [measurement], {0: taking(1.25e-3, seconds)})


def test_the_screen_the_page_and_files_say_the_same(tmp_path: Path) -> None:
    run = overlap_run(tmp_path)
    assert "collective 1.25" in screen_table(run, 100)
    files = {
        file.name: file
        for file in write_report([run], tmp_path / "report", ("html", "md", "csv"))
    }
    assert "0.75 " in files["report.md"].read_text(encoding="utf-8")
    page = files["report.html"].read_text(encoding="utf-8")
    assert "0.75 [" in page[page.index('<section id="sharing">') :]
    (row,) = csv.DictReader(io.StringIO(files["cases.csv"].read_text(encoding="utf-8")))
    assert float(row["overlap_efficiency"]) == pytest.approx(0.75)


@pytest.mark.parametrize("width", [40, 80, 200])
def test_no_line_is_wider_than_the_screen(tmp_path: Path, width: int) -> None:
    for run in (groups_run(tmp_path / "a"), beside_run(tmp_path / "b", {})):
        lines = screen_table(run, width).splitlines()
        assert any(line.startswith("Sharing.") for line in lines)
        assert max(map(len, lines)) <= width
