from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from ccbench.errors import RunFolderError, UsageError
from ccbench.report.drawing import render
from ccbench.report.figure import Figure
from ccbench.report.writing import FORMATS, ReportIncomplete, write_report
from ccbench.results import Run

from .synthetic import case, sweep, write_run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return write_run(tmp_path / "run", [case("all_reduce", "ring", 4096)])


@pytest.mark.exhaustive
def test_all_formats_are_written_at_once(run: Run) -> None:
    names = {path.name for path in write_report([run], None, FORMATS)}
    assert {"report.pdf", "report.md", "cases.csv"} <= names
    assert {"time-all_reduce-4ranks-1nodes-float32-sum.svg", "prediction-cpu.png"} <= names
    assert "cpu-all_reduce-ring-4ranks.nccl-tests.txt" in names
    page = (run.path / "report" / "report.md").read_text(encoding="utf-8")
    assert all(f"({name})" in page for name in names if name.endswith(".png"))


def test_one_document_can_be_given_a_name(run: Run, tmp_path: Path) -> None:
    assert write_report([run], tmp_path / "x.pdf", ["pdf"]) == (tmp_path / "x.pdf",)
    assert (tmp_path / "x.pdf").read_bytes().startswith(b"%PDF")


@pytest.mark.parametrize(
    ("formats", "output", "words"),
    [
        (["gif"], None, "'gif', expected one of html"),
        ([], None, "nothing, expected"),
        (["png", "csv"], "x.csv", "the format asked for is png,csv; name a folder"),
        (
            ["md"],
            "x.html",
            "ends in .html, but the format asked for is md; name a file ending in .md",
        ),
        (["png"], "x.png", "one file per figure"),
    ],
)
def test_what_cannot_be_written_is_refused_with_the_cure(
    run: Run, tmp_path: Path, formats: list[str], output: str | None, words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        write_report([run], tmp_path / output if output else None, formats)
    with pytest.raises(UsageError, match="no run"):
        write_report([])


def test_a_baseline_is_in_the_files(tmp_path: Path) -> None:
    new = write_run(tmp_path / "new", sweep(last=18))
    old = write_run(tmp_path / "old", sweep(last=18), slowdown=1.2)
    write_report([new], tmp_path / "out", ["csv"], baseline=old)
    rows = (tmp_path / "out" / "cases.csv").read_text(encoding="utf-8").splitlines()
    assert sum(row.startswith("old,true") for row in rows) == 5


def test_a_full_disk_leaves_the_old_report_whole(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    (target,) = write_report([run], None, ["csv"])
    before = target.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunFolderError, match=r"cases\.csv: cannot be written \(No space left"):
        write_report([run], None, ["csv"])
    assert target.read_bytes() == before
    assert os.listdir(target.parent) == [target.name]


def test_an_empty_run_still_has_a_report(tmp_path: Path) -> None:
    files = write_report([write_run(tmp_path / "run", [])])
    assert {path.name for path in files} == {
        "nothing-measured.png",
        "report.html",
        "report.md",
        "cases.csv",
    }


def test_a_figure_that_cannot_be_drawn_costs_only_itself(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def drawn(figure: Figure, form: str) -> bytes:
        if figure.topic == "ranks":
            raise ValueError("no such rank")
        return render(figure, form)

    monkeypatch.setattr("ccbench.report.drawing.render", drawn)
    with pytest.raises(
        ReportIncomplete, match=r"ranks-cpu.*ValueError: no such rank"
    ) as caught:
        write_report([run], None, ["png", "md", "csv"])
    names = {path.name for path in caught.value.files}
    assert {"report.md", "cases.csv", "prediction-cpu.png"} <= names
    assert not any(name.startswith("ranks") for name in names)
    assert all(path.is_file() for path in caught.value.files)
