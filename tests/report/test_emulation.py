"""Times of an emulated device are compared with nothing: no ranking, ratio, peak, crossover or prediction."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ccbench.report.baselines import baseline_lines, beside, comparable_points
from ccbench.report.figure import Figure
from ccbench.report.figures import figures_of
from ccbench.report.wording import footnote, meaning_of, points_of
from ccbench.results import Point, Run

from .synthetic import Edit, emulated, sweep, write_run

WHY = "times of an emulation say nothing about any device"


def emulated_run(path: Path) -> Run:
    """Two algorithms that cross, with predictions as a run of an older version might have stored them."""
    cases = sweep(algorithms=("ring", "tree"), backend="cuda-host")
    return write_run(path, cases, dict.fromkeys(range(len(cases)), emulated))


def real_run(path: Path) -> Run:
    return write_run(path, sweep())


def of_topic(run: Run, topic: str) -> list[Figure]:
    return [figure for figure in figures_of(points_of(run)) if figure.topic == topic]


@pytest.mark.parametrize(
    ("run_of", "baseline_of", "message"),
    [
        (emulated_run, real_run, WHY),
        (real_run, emulated_run, "nothing like this run's points; it has no speed"),
    ],
)
def test_neither_an_emulated_run_nor_an_emulated_baseline_has_a_ratio(
    tmp_path: Path,
    run_of: Callable[[Path], Run],
    baseline_of: Callable[[Path], Run],
    message: str,
) -> None:
    points, baseline = points_of(run_of(tmp_path / "run")), baseline_of(tmp_path / "base")
    assert comparable_points(points, baseline) == ()
    assert beside(points, points_of(baseline)) == ()
    (line,) = baseline_lines(points, baseline)
    assert message in line


def points(folder: Path, *edits: Edit | None) -> list[Point]:
    chosen = {index: edit for index, edit in enumerate(edits) if edit is not None}
    return list(points_of(write_run(folder, list(sweep())[: len(edits)], chosen)))


def test_small_print_says_that_emulated_times_mean_nothing(tmp_path: Path) -> None:
    lines = footnote(points(tmp_path / "run", emulated))
    assert any(
        line.startswith("EMULATION: cpu ran GPU kernels on a CPU: results are real")
        for line in lines
    )
    assert "say nothing about any device" in meaning_of("EMULATION")
    assert "model" in meaning_of("SIMULATED")
