from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ccbench.cases.measurement import Status
from ccbench.report.wording import verdict_lines

from .synthetic import Edit, failed, prediction, sweep, write_run


def _slow(factor: float) -> Edit:
    return lambda measurement: replace(
        measurement,
        samples_seconds=(prediction(measurement.case).predicted_seconds * factor,) * 9,
    )


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
