from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ccbench.cases import MORE_VISITS, Status
from ccbench.report import verdict_lines

from .synthetic import failed, flagged, prediction, sweep, write_run


def _slow(factor: float) -> object:
    def change(one: object) -> object:
        centre = prediction(one.case).predicted_seconds * factor  # type: ignore[attr-defined]  # a Measurement
        return replace(one, samples_seconds=(centre,) * 9)  # type: ignore[type-var]  # a Measurement

    return change


def test_a_clean_run_is_summed_up_without_complaints(tmp_path: Path) -> None:
    lines = verdict_lines(write_run(tmp_path / "run", sweep()))
    assert lines[0].startswith("9 of 9 cases measured: all_reduce on cpu. Peak bus bandwidth")
    assert any("Median error of the prediction" in line and "slower" in line for line in lines)
    assert any("of the bound" in line for line in lines)
    assert len(lines) == 3


def test_the_worst_comes_first(tmp_path: Path) -> None:
    edits = {
        0: lambda one: replace(one, status=Status.WRONG, wrong_elements=5, detail="first at 17"),
        1: lambda one: failed(one, Status.TIMED_OUT, "rank 2 hung"),
        2: lambda one: failed(one, Status.UNSUPPORTED, "needs a power of two"),
        3: lambda one: flagged(one, "clock fell"),
        4: _slow(3.0),
    }
    lines = verdict_lines(write_run(tmp_path / "run", sweep(), edits))  # type: ignore[arg-type]  # edits of any kind
    assert lines[0].startswith("6 of 9 cases")
    assert lines[1].startswith("WRONG RESULTS in 1 case")
    assert "5 wrong elements" in lines[1]
    assert "rank 2 hung" in lines[2]
    assert "1 case unsupported" in lines[3]
    gap = next(line for line in lines if "Biggest gap" in line)
    assert "256 KiB" in gap
    assert "3 times the prediction" in gap
    assert any(line.startswith("1 of 6 cases flagged") and "clock fell" in line for line in lines)


def test_a_run_that_ended_early_says_so(tmp_path: Path) -> None:
    edits = {0: lambda one: replace(one, stop_reason=MORE_VISITS)}
    lines = verdict_lines(write_run(tmp_path / "run", sweep(), edits))
    assert "1 case not visited as often as planned: the run ended early." in lines


def test_speeds_beyond_the_bound_are_called_impossible(tmp_path: Path) -> None:
    lines = verdict_lines(write_run(tmp_path / "run", sweep(), {4: _slow(0.1)}))  # type: ignore[dict-item]  # an edit
    assert any("cannot be" in line and "256 KiB" in line for line in lines)


def test_a_simulated_run_is_never_called_measured(tmp_path: Path) -> None:
    lines = verdict_lines(write_run(tmp_path / "run", sweep(), simulated=True))
    assert lines[0].startswith("SIMULATED: 9 of 9 cases computed by a model")


def test_empty_and_failed_runs_and_unreadable_files_are_told(tmp_path: Path) -> None:
    assert verdict_lines(write_run(tmp_path / "empty", [])) == ["The run holds no case."]
    edits = {number: lambda one: failed(one, Status.FAILED, "no") for number in range(9)}
    lines = verdict_lines(write_run(tmp_path / "failed", sweep(), edits))
    assert lines[0] == "0 of 9 cases measured: all_reduce on cpu."
    assert "9 cases failed" in lines[1]
    run = write_run(tmp_path / "cut", sweep())
    lines = verdict_lines(replace(run, problems=("x.parquet: cannot be read",)))
    assert "1 file could not be read, first: x.parquet" in lines[-1]


def test_a_run_without_predictions_says_nothing_about_them(tmp_path: Path) -> None:
    lines = verdict_lines(write_run(tmp_path / "run", sweep(), priced=False))
    assert len(lines) == 1


def test_a_problem_of_the_machine_is_told_and_a_note_is_not(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", sweep())
    note = {"severity": "note", "devices": ["nic0"], "evidence": "far", "advice": "leave it"}
    problem = {
        "severity": "problem",
        "devices": ["gpu3"],
        "evidence": "2 of 12 NVLinks",
        "advice": "reseat it",
    }
    assert verdict_lines(replace(run, manifest={**run.manifest, "findings": [note]})) == verdict_lines(run)
    told = verdict_lines(replace(run, manifest={**run.manifest, "findings": [note, problem]}))[-1]
    assert told.startswith("The machine has 1 problem, first: gpu3: 2 of 12 NVLinks; reseat it")
