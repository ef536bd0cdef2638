from __future__ import annotations

from pathlib import Path

import pytest

from ccbench.results import Run
from tests.cli.conftest import Command
from tests.report.synthetic import sweep, write_run


@pytest.fixture(autouse=True)
def run(tmp_path: Path) -> Run:
    return write_run(tmp_path / "run", sweep(last=12))


def test_junit_is_of_one_run_and_alone(ccbench: Command) -> None:
    for more in (("--format", "junit,html"), ("run", "--format", "junit")):
        assert "ask for it alone" in ccbench("report", "run", *more).refused.err


def test_a_report_of_which_no_case_can_be_read_is_no_verdict(
    ccbench: Command, run: Run
) -> None:
    for file in run.path.glob("cases/*.parquet"):
        file.write_bytes(b"cut")
    assert ccbench("report", "run", "--format", "md").code == 3


def test_a_file_is_replaced_as_a_whole_and_nothing_else_is_left(
    ccbench: Command, tmp_path: Path
) -> None:
    folder = tmp_path / "verdicts"
    folder.mkdir()
    (folder / "ccbench.xml").write_text("old")
    assert ccbench("report", "run", "--format", "junit", "-o", "verdicts").code == 0
    assert [file.name for file in folder.iterdir()] == ["ccbench.xml"]
    assert (folder / "ccbench.xml").read_text().startswith("<?xml")


def test_a_dash_is_stdout_for_one_file_and_refused_for_a_folder(
    ccbench: Command, tmp_path: Path
) -> None:
    ended = ccbench("report", "run", "--format", "junit", "-o", "-")
    assert ended.out == ccbench("report", "run", "--format", "junit").out
    assert (
        "-o -: stdout takes --format junit" in ccbench("report", "run", "-o", "-").refused.err
    )
    assert not (tmp_path / "-").exists()


def test_a_name_without_a_format_is_refused(ccbench: Command) -> None:
    refused = ccbench("report", "run", "-o", "summary.json").refused
    assert "summary.json ends in .json" in refused.err


def test_a_folder_that_is_no_run_is_a_mistake(ccbench: Command) -> None:
    assert "not a run folder" in ccbench("report", ".", "--format", "junit").refused.err
