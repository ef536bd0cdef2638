"""``ccbench run`` where not everything was measured: what it says, and the exit code."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest

from ccbench.runner.planning import RunOptions
from ccbench.runner.progress import Progress
from ccbench.runner.run import run_suite
from ccbench.suite.model import load_suite
from tests.cli.conftest import Command

QUESTION = "question: How fast?\nbackends: [simulated]\n"
ROUNDS = "sampling: {rounds: 6, minimum_samples: 6, warmup: 1 ms, minimum_sample: 100 us, budget: 6 ms}\n"


def suite_file(folder: Path, sweep: str, more: str = "") -> Path:
    path = folder / "tiny.yaml"
    path.write_text(f"{QUESTION}sweep: {sweep}\n{more}")
    return path


def passing_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every look at the clock takes the runner a second."""
    seconds = count()
    monkeypatch.setattr("ccbench.runner.run.time", SimpleNamespace(monotonic=lambda: float(next(seconds))))


def test_a_run_out_of_time_before_the_last_rounds_is_partial_and_says_how_to_go_on(
    ccbench: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = suite_file(tmp_path, "{collective: all_reduce, size: 1 KiB, ranks: 2}", ROUNDS)
    folder = tmp_path / "r"
    passing_seconds(monkeypatch)
    ended = ccbench("run", str(file), "-o", str(folder), "--no-report", "--time-limit", "3500 ms")
    assert ended.code == 5
    assert "1 case not measured in as many rounds as planned" in ended.out
    (told,) = [line for line in ended.err.splitlines() if "go on with" in line]
    assert told.startswith(
        "ccbench: not every case was measured in as many rounds as planned; go on with: ccbench run "
    )
    monkeypatch.undo()
    again = run_suite(load_suite(file), RunOptions(resume=folder), Progress())
    assert (again.exit_code, again.unfinished) == (0, 0)


def test_a_run_in_which_nothing_could_be_measured_ends_with_5_and_says_why(
    ccbench: Command, tmp_path: Path
) -> None:
    sweep = "{collective: all_reduce, algorithm: 'hierarchical:3', size: [64 B, 1 KiB], ranks: 4}"
    ended = ccbench("run", str(suite_file(tmp_path, sweep)), "-o", str(tmp_path / "r"), "--no-report", "-q")
    assert ended.code == 5
    (told,) = [line for line in ended.out.splitlines() if "Nothing could be measured; " in line]
    assert "groups of 3 do not divide 4 ranks" in told
    assert "(2 cases)" in told


def test_the_plan_of_own_kernels_works_without_a_gpu_and_says_what_is_missing(
    ccbench: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ccbench.backends.cuda.driver_missing", lambda: "no driver is here")
    ended = ccbench("run", "own-kernels", "--plan", "--machine", "hgx-h100", "--ranks", "8")
    assert ended.code == 0
    (told,) = [line for line in ended.out.splitlines() if "cannot run here" in line]
    assert told.startswith(
        "note: backend cuda cannot run here: no driver is here (planned for 8 ranks; --ranks "
    )
    asked = ccbench("run", "own-kernels", "--plan", "--machine", "hgx-h100", "--ranks", "8", "--json").json
    assert any("no driver is here" in note for note in asked["notes"])
    assert {"mesh_two_shot", "tree", "ll"} <= {case["label"].split()[1] for case in asked["cases"]}
