from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from ccbench.analysis.findings import findings_of
from ccbench.cases.measurement import Measurement, Status
from ccbench.report.wording import points_of, verdict_lines
from ccbench.results import Manifest

from .synthetic import Edit, failed, flagged, prediction, sweep, write_run


def _slow(factor: float) -> Edit:
    return lambda measurement: replace(
        measurement,
        samples_seconds=(prediction(measurement.case).predicted_seconds * factor,) * 9,
    )


def test_a_clean_run_is_summed_up_without_complaints(tmp_path: Path) -> None:
    lines = verdict_lines(write_run(tmp_path / "run", sweep()))
    assert re.fullmatch(
        r"9 of 9 cases correct; all_reduce ring over 4 ranks on cpu [\d.]+ us at 1 KiB, "
        r"[\d.]+ GB/s busbw at 64 MiB; noise [\d.]+ %\.",
        lines[0],
    )
    assert any(
        "Median error of the prediction" in line and "above the prediction" in line
        for line in lines
    )
    assert any("of the bound" in line for line in lines)
    assert len(lines) == 4
    assert lines[3].startswith(
        "Doubt: Rank 2 is slower than the others; rank 2 slowest in 9 of 9 decided cases"
    )
    assert ". Do: look at that rank's device" in lines[3]


def test_the_worst_comes_first(tmp_path: Path) -> None:
    edits: dict[int, Edit] = {
        0: lambda measurement: replace(
            measurement, status=Status.WRONG, wrong_elements=5, detail="first at 17"
        ),
        1: lambda measurement: failed(measurement, Status.TIMED_OUT, "rank 2 hung"),
        2: lambda measurement: failed(measurement, Status.UNSUPPORTED, "needs a power of two"),
        3: lambda measurement: flagged(measurement, "clock fell"),
        4: _slow(3.0),
    }
    lines = verdict_lines(write_run(tmp_path / "run", sweep(), edits))
    assert lines[0].startswith(
        "WRONG: cpu all_reduce ring, 4 ranks: 1 of 9 cases gave wrong results"
    )
    assert lines[1].startswith("1 wrong, 1 unsupported, 1 timed out; 6 of 9 cases correct; ")
    wrong, hung, doubt, more = lines[-4:]
    assert wrong.startswith("Problem: WRONG RESULTS in 1 case; worst: ")
    assert "5 wrong elements" in wrong
    assert hung.startswith("Problem: 1 case timed out or hung; ")
    assert "rank 2 hung. Do: look at the rank named first" in hung
    assert doubt.startswith("Doubt: 1 of 6 cases flagged clock fell; ")
    assert re.fullmatch(r"\.\.\. and \d more findings, in the report's page", more)


@pytest.mark.parametrize(
    ("simulated", "message"),
    [(False, "or fit its file again"), (True, "the model contradicts itself")],
)
def test_a_beaten_bound_calls_for_a_new_calibration_unless_a_model_beat_its_own(
    tmp_path: Path, simulated: bool, message: str
) -> None:
    run = write_run(tmp_path / "run", sweep(), {4: _slow(0.1)}, simulated=simulated)
    (line,) = [
        line
        for line in verdict_lines(run)
        if line.startswith("Problem: 1 case faster than the bound")
    ]
    assert message in line
    assert "256 KiB" in line


@pytest.mark.parametrize(("fast", "told"), [(1, False), (2, True)])
def test_more_than_one_sample_in_twenty_must_beat_the_bound(
    tmp_path: Path, fast: int, told: bool
) -> None:
    def some(measurement: Measurement) -> Measurement:
        ends = (prediction(measurement.case).bound_seconds * 0.5,) * fast
        return replace(
            measurement, samples_seconds=measurement.samples_seconds[: 30 - fast] + ends
        )

    run = write_run(tmp_path / "run", sweep(), {4: some})
    assert any("faster than the bound" in line for line in verdict_lines(run)) is told
    assert [
        finding.cases
        for finding in findings_of(points_of(run))
        if finding.kind == "beats_bound"
    ] == [1] * told


def test_small_cases_are_not_held_against_the_bound(tmp_path: Path) -> None:
    lines = verdict_lines(write_run(tmp_path / "run", sweep()))
    assert any(line.startswith("Median share of the bound, 64 KiB and up: ") for line in lines)
    small = verdict_lines(write_run(tmp_path / "small", sweep(last=14)))
    assert not any("of the bound" in line for line in small)


def test_one_rank_is_not_held_against_a_bound(tmp_path: Path) -> None:
    lines = verdict_lines(
        write_run(tmp_path / "run", sweep("broadcast", ["binomial_tree"], ranks=1))
    )
    assert not any("bound" in line.lower() and "of the bound" in line for line in lines)
    assert "busbw" not in lines[0]


def test_a_run_in_which_nothing_ran_says_why_the_most_frequent_reason_first(
    tmp_path: Path,
) -> None:
    reasons = [
        "no graphs here",
        *["needs 2 GPUs, this host has 0"] * 6,
        "too large.",
        "too many ranks",
    ]

    def refused(reason: str) -> Edit:
        return lambda measurement: failed(measurement, Status.UNSUPPORTED, reason)

    edits = {number: refused(reason) for number, reason in enumerate(reasons)}
    lines = verdict_lines(write_run(tmp_path / "run", sweep(), edits))
    assert lines[1:] == [
        "Problem: Nothing could be measured; needs 2 GPUs, this host has 0 (6 cases); "
        "no graphs here (1 case); too large (1 case); too many ranks (1 case). "
        "Do: 'ccbench doctor' tells what is missing"
    ]


def test_where_a_case_was_begun_what_is_unsupported_is_only_counted(tmp_path: Path) -> None:
    edits: dict[int, Edit] = {
        n: lambda measurement: failed(measurement, Status.UNSUPPORTED, "not here")
        for n in range(8)
    }
    lines = verdict_lines(write_run(tmp_path / "run", sweep(), edits))
    assert lines[0].startswith("8 unsupported; 1 of 9 cases correct; ")
    edits[8] = lambda measurement: failed(measurement, Status.FAILED, "rank 1 died")
    lines = verdict_lines(write_run(tmp_path / "failed", sweep(), edits))
    assert lines[0].startswith("8 unsupported, 1 failed; 0 of 9 cases correct.")
    assert any("1 case failed; first: " in line and "rank 1 died" in line for line in lines)


def test_unreadable_files_are_counted_and_named(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [])
    lines = verdict_lines(replace(run, problems=tuple(f"{n}.parquet: cut" for n in range(7))))
    assert lines[-1].startswith(
        "Problem: 7 files of the run cannot be read or were changed; 0.parquet: cut; 1.parquet: cut; "
    )


def test_empty_and_failed_runs_and_unreadable_files_are_told(tmp_path: Path) -> None:
    assert verdict_lines(write_run(tmp_path / "empty", []))[0] == "The run holds no case."
    edits = {
        number: lambda measurement: failed(measurement, Status.FAILED, "no")
        for number in range(9)
    }
    lines = verdict_lines(write_run(tmp_path / "failed", sweep(), edits))
    assert lines[0] == "9 failed; 0 of 9 cases correct."
    assert lines[1].startswith("Problem: 9 cases failed; ")
    empty = replace(write_run(tmp_path / "unread", []), problems=("x.parquet: cannot be read",))
    assert not any("no case's file" in line for line in verdict_lines(empty))


def test_a_run_without_predictions_says_nothing_about_them(tmp_path: Path) -> None:
    lines = verdict_lines(write_run(tmp_path / "run", sweep(), priced=False))
    assert not any("predict" in line or "of the bound" in line for line in lines)


def test_a_prediction_that_load_does_not_keep_from_being_made_is_not_missed(
    tmp_path: Path,
) -> None:
    loaded: dict[int, Edit] = {
        0: lambda measurement: flagged(measurement, "other_load", "cpu_contention")
    }
    priced = write_run(tmp_path / "priced", sweep(), loaded)
    of_messages = write_run(tmp_path / "mpi", sweep(backend="mpi"), loaded, priced=False)
    assert "No prediction" not in str([verdict_lines(priced), verdict_lines(of_messages)])


def test_a_problem_of_the_machine_is_told_and_a_note_is_not(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", sweep())
    note = {"severity": "note", "devices": ["nic0"], "evidence": "far", "advice": "reseat it"}
    problem = {
        **note,
        "severity": "problem",
        "devices": ["gpu3"],
        "evidence": "2 of 12 NVLinks",
    }

    def found(*findings: object) -> list[str]:
        return verdict_lines(
            replace(run, manifest=Manifest({**run.manifest.document, "findings": [*findings]}))
        )

    assert found(note) == verdict_lines(run)
    told = found(note, problem)
    assert "Problem: The machine has machine (gpu3); 2 of 12 NVLinks. Do: reseat it" in told
