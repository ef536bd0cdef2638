from __future__ import annotations

from pathlib import Path

from tests.analysis.history.made import write_history
from tests.cli.conftest import Command


def test_the_newest_steps_are_told_and_a_page_is_written(
    ccbench: Command, tmp_path: Path
) -> None:
    write_history(tmp_path / "results", [1.0] * 6 + [1.3] * 3, {6: {"kernel": "6.8"}}, last=10)
    ended = ccbench("history", "results", "-o", "page.html").done
    assert "slower" in ended.out
    assert "kernel 6.1 -> 6.8" in ended.out
    assert (tmp_path / "page.html").read_text().lower().startswith("<!doctype html>")


def test_json_has_the_steps_as_fractions(ccbench: Command, tmp_path: Path) -> None:
    write_history(tmp_path / "results", [1.0] * 6 + [0.7] * 3, last=10)
    (step,) = ccbench("history", "results", "--json").json["steps"]
    assert -0.35 < step["change"] < -0.25


def test_too_few_runs_are_no_verdict(ccbench: Command, tmp_path: Path) -> None:
    write_history(tmp_path / "results", [1.0] * 2, last=10)
    ended = ccbench("history", "results")
    assert ended.code == 3
    assert "CANNOT SAY: 2 runs, 6 needed" in ended.out


def test_a_folder_without_runs_is_no_verdict_either(ccbench: Command) -> None:
    assert ccbench("history", ".").code == 3


def test_mistakes_are_one_line_with_a_cure(ccbench: Command, tmp_path: Path) -> None:
    for arguments in (("history", "absent"), ("history", ".", "--minimum-step", "big")):
        assert ccbench(*arguments).refused
