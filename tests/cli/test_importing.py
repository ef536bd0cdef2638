"""``ccbench check``: any tool's output in, a run out, and nothing lost without a word."""

from __future__ import annotations

import io
import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ccbench.cli.output import PacedLines
from ccbench.results import load_run
from ccbench.topology.files import load_catalog, to_plain
from tests.cli.conftest import Command
from tests.readers.benchmarks.nccl_tests_outputs import (
    ALL_RIGHT,
    ONE_WRONG,
)


@pytest.fixture(autouse=True)
def log(tmp_path: Path) -> None:
    """A log to import."""
    (tmp_path / "log.txt").write_text(ONE_WRONG)


@pytest.fixture
def imported(ccbench: Command) -> None:
    """The run of it."""
    assert ccbench("check", "log.txt", "-o", "run").code == 1


OLD = (
    ALL_RIGHT.replace("#wrong", " error").replace("      0", "  5e-07").replace("-1  ", "    ")
)
FAILED = ("values : 0 OK", "values : 12 FAILED")


@pytest.mark.thinned(5)
@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            ALL_RIGHT.replace(*FAILED),
            "the closing line counts 12 wrong values, no row shows them: 4 of 4",
        ),
        (
            OLD.replace(*FAILED),
            "the closing line counts 12 wrong values, no row shows them: 4 of 4 cases",
        ),
        (
            ALL_RIGHT.replace("      0", "    N/A").replace(*FAILED),
            "12 wrong values, no row shows them: 4",
        ),
        (
            re.sub(r"\n +2097152 .*", "", ALL_RIGHT)
            .replace("OK", "FAILED")
            .replace(" : 0", " : 1,024"),
            "the closing line counts 1024 wrong values, no row shows them: 2 of 2 cases are in doubt",
        ),
        (
            ONE_WRONG.replace(*FAILED),
            "(at: 2 MiB out of place, 2 wrong elements); the closing line counts 12",
        ),
        (
            ALL_RIGHT.replace("      0", "    nan", 1),
            "1 of 4 cases gave wrong results (at: 1 MiB out of",
        ),
        (
            ALL_RIGHT.replace("      0", "  1,024", 1),
            "1 MiB out of place, 1024 wrong elements)",
        ),
        (
            OLD.replace("5e-07", "  nan", 1),
            "1 of 4 cases gave wrong results (at: 1 MiB out of place",
        ),
        (
            OLD.replace("5e-07", "  inf", 2),
            "2 of 4 cases gave wrong results (worst: 1 MiB out of place",
        ),
        (
            OLD.replace("5e-07", "1e+02", 1),
            "1 of 4 cases gave wrong results (at: 1 MiB out of place",
        ),
    ],
)
def test_wrong_data_are_the_first_sentence_wherever_the_log_says_so(
    ccbench: Command, tmp_path: Path, text: str, words: str
) -> None:
    (tmp_path / "log.txt").write_text(OLD)
    assert ccbench("check", "log.txt").code == 0
    (tmp_path / "log.txt").write_text(text)
    ended = ccbench("check", "log.txt", "-o", "run")
    first = ended.out.splitlines()[0]
    assert (ended.code, first.split(":")[0]) == (1, "WRONG")
    assert words in first
    ended = ccbench("report", "run", "--format", "md,nccl-tests")
    assert ended.code == 1
    assert first in ended.out.splitlines()
    tables = [file.read_text() for file in (tmp_path / "run" / "report").glob("*.txt")]
    assert len(tables) == 1
    assert "FAILED" in tables[0]


def test_a_machine_of_a_file_has_a_verdict_too(ccbench: Command, tmp_path: Path) -> None:
    mine = replace(load_catalog("hgx-h100"), name="mine")
    (tmp_path / "mine.json").write_text(json.dumps(to_plain(mine)))
    ours = ccbench("check", "log.txt", "--machine", "mine.json", "--json", "-o", "ours").json
    named = ccbench("check", "log.txt", "--machine", "hgx-h100", "--json", "-o", "named").json
    assert ours["verdicts"] == named["verdicts"]
    assert load_run(tmp_path / "ours").manifest.machine == "mine"


def test_nothing_to_import_is_an_error_and_leaves_no_folder(
    ccbench: Command, tmp_path: Path
) -> None:
    (tmp_path / "other.txt").write_text("nothing of the sort\n")
    ended = ccbench("check", "other.txt", "absent.txt").ends(2)
    assert ccbench("check", "other.txt").code == 3, "no mistake of who typed it"
    assert "absent.txt" in ended.out
    assert not (tmp_path / "results").exists()


def test_a_folder_gives_its_logs_and_not_its_runs_descriptions_or_binary_files(
    ccbench: Command, tmp_path: Path
) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "log.txt").write_text(ALL_RIGHT)
    (logs / "wide.txt").write_bytes(ALL_RIGHT.encode("utf-16"))
    (logs / "state.bin").write_bytes(b"NCCL INFO\0timed out")
    (logs / "manifest.yaml").write_text(
        "- file: log.txt\n  why: all_reduce_bench hung, connection timed out\n"
    )
    assert ccbench("check", "logs/log.txt", "-o", "logs/runs/one").done
    ended = ccbench("check", "logs", "-o", "both", "--json").done
    assert [Path(file["file"]).name for file in ended.json["files"]] == ["log.txt", "wide.txt"]
    assert ended.json["left_out"] == []
    notes = [line for line in ended.err.splitlines() if "passed over" in line]
    assert notes == [
        "note: 1 run folder passed over: use 'ccbench report' or 'ccbench compare'"
    ]
    assert ccbench("check", "logs/manifest.yaml", "-o", "none").code == 3
    assert "nothing there is what a tool printed" in ccbench("check", "logs/runs").refused.err


def test_a_long_import_says_how_far_it_is(
    ccbench: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ccbench.cli.output.PacedLines.SECONDS", 0.0)
    monkeypatch.setattr("ccbench.cli.checking.LONG_BYTES", 100)
    (tmp_path / "log.txt").write_text(ALL_RIGHT)
    ended = ccbench("check", "log.txt", "-o", "run").done
    assert ended.err.startswith("check: reading log.txt\n")
    lines = re.findall(r"^check: (\d+) of (\d+) cases written$", ended.err, re.MULTILINE)
    assert lines == [(str(number), str(len(lines))) for number in range(len(lines))]
    assert len(lines) > 1


def test_on_a_terminal_progress_takes_one_line_and_leaves_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setattr(PacedLines, "TERMINAL_SECONDS", 0.0)
    lines = PacedLines()
    lines.show("99 files")
    lines.show("1 file")
    lines.end()
    assert terminal.getvalue() == "\r99 files\r1 file  \r      \r"


def test_an_empty_stdin_is_named_so(ccbench: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    assert "note: stdin: is empty;" in ccbench("check", "-").ends(3).err


@pytest.mark.usefixtures("imported")
def test_published_results_lie_beside_the_points_they_are_like(
    ccbench: Command, tmp_path: Path
) -> None:
    ended = ccbench(
        "report",
        "run",
        "--baseline",
        "published:hgx-h100",
        "--format",
        "svg,csv,md",
        "-o",
        "out",
    )
    assert ended.code == 1
    assert "Compared with published:hgx-h100" in ended.out
    assert "[1] " in ended.out
    pairs = (tmp_path / "out" / "baseline-pairs.csv").read_text().splitlines()
    assert len(pairs) == 1 + 3  # the wrong case has no speed to compare
    assert "## Compared with the baseline" in (tmp_path / "out" / "report.md").read_text()
    assert "published" in next((tmp_path / "out").glob("bandwidth-*.svg")).read_text()


@pytest.mark.usefixtures("imported")
def test_what_is_published_is_listed_and_an_unknown_name_gets_the_cure(
    ccbench: Command, tmp_path: Path
) -> None:
    assert "published:hgx-h100: " in ccbench("report", "--baseline", "published:").done.out
    names = [
        entry["name"]
        for entry in ccbench("report", "--baseline", "published:", "--json").json["published"]
    ]
    assert "dgx-a100" in names
    ended = ccbench("report", "run", "--baseline", "published:hgx-h1000").refused
    assert "did you mean 'hgx-h100'" in ended.err
