"""What the points of a run are called: measured, simulated, emulated, or some of each."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ccbench.analysis.findings import provenance
from ccbench.cases import Measurement, Status
from ccbench.report.wording import footnote, meaning_of, points_of, verdict_lines
from ccbench.results import Point

from .synthetic import Edit, emulated, failed, sweep, write_run


def simulated(one: Measurement) -> Measurement:
    return replace(one, simulated=True)


def unsupported(one: Measurement) -> Measurement:
    return failed(one, Status.UNSUPPORTED, "not here")


def points(folder: Path, *edits: Edit | None) -> list[Point]:
    chosen = {index: edit for index, edit in enumerate(edits) if edit is not None}
    return list(points_of(write_run(folder, list(sweep())[: len(edits)], chosen)))


@pytest.mark.parametrize(
    ("edits", "label"),
    [
        ((None, None), ""),
        ((simulated, simulated), "SIMULATED"),
        ((emulated, emulated), "EMULATION"),
        ((emulated, unsupported), "EMULATION"),
        ((emulated, None), "PARTLY EMULATION"),
        ((simulated, None), "PARTLY SIMULATED"),
        ((simulated, emulated), "SIMULATED AND EMULATION"),
        ((simulated, emulated, None), "PARTLY SIMULATED AND EMULATION"),
        ((unsupported,), ""),
    ],
)
def test_the_label_says_what_times_are(tmp_path: Path, edits: tuple[Edit | None, ...], label: str) -> None:
    assert provenance(points(tmp_path / "run", *edits)) == label


def test_small_print_says_that_emulated_times_mean_nothing(tmp_path: Path) -> None:
    lines = footnote(points(tmp_path / "run", emulated))
    assert any(line.startswith("EMULATION: cpu ran GPU kernels on a CPU: results are real") for line in lines)
    assert "say nothing about any device" in meaning_of("EMULATION")
    assert "model" in meaning_of("SIMULATED")


def test_the_verdict_calls_emulated_cases_emulated(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", list(sweep())[:2], {0: emulated, 1: emulated})
    assert verdict_lines(run)[0].startswith("EMULATION: 2 of 2 cases emulated: ")
