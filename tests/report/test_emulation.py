"""Times of an emulated device are compared with nothing: no ranking, ratio, peak, crossover or prediction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ccbench.analysis.findings import LEFT_OUT, findings_of, provenance
from ccbench.cases.measurement import Measurement, Status
from ccbench.report.baselines import baseline_lines, beside, comparable_points
from ccbench.report.figure import Figure
from ccbench.report.figures import figures_of
from ccbench.report.page import page_content
from ccbench.report.run_screen import run_screen
from ccbench.report.wording import footnote, meaning_of, points_of, verdict_lines
from ccbench.report.writing import Drawn, markdown_report
from ccbench.results import Point, Run

from .synthetic import Edit, case, emulated, failed, flagged, sweep, write_run

WHY = "times of an emulation say nothing about any device"


def emulated_run(path: Path) -> Run:
    """Two algorithms that cross, with predictions as a run of an older version might have stored them."""
    cases = sweep(algorithms=("ring", "tree"), backend="cuda-host")
    return write_run(path, cases, dict.fromkeys(range(len(cases)), emulated))


def real_run(path: Path) -> Run:
    return write_run(path, sweep())


def mixed_run(path: Path) -> Run:
    """The same work measured on the CPU and emulated, emulated ten times as fast."""

    def fast(measurement: Measurement) -> Measurement:
        return emulated(
            replace(
                measurement,
                samples_seconds=tuple(0.1 * one for one in measurement.samples_seconds),
            )
        )

    cases = [
        *sweep(algorithms=("ring", "tree")),
        *sweep(algorithms=("ring",), backend="cuda-host"),
    ]
    return write_run(
        path,
        cases,
        {number: fast for number, one in enumerate(cases) if one.backend == "cuda-host"},
    )


def of_topic(run: Run, topic: str) -> list[Figure]:
    return [figure for figure in figures_of(points_of(run)) if figure.topic == topic]


def test_only_measured_algorithms_race_where_some_are_emulated(tmp_path: Path) -> None:
    (race,) = of_topic(mixed_run(tmp_path / "run"), "algorithms")
    assert {one.label for one in race.series} == {"ring", "tree"}
    assert min(value for one in race.series for value in one.y) == pytest.approx(1.0)


def test_emulated_times_are_in_no_figure_but_that_of_time(tmp_path: Path) -> None:
    assert {
        figure.topic for figure in figures_of(points_of(emulated_run(tmp_path / "run")))
    } == {"time"}
    mixed = [
        figure
        for figure in figures_of(points_of(mixed_run(tmp_path / "mixed")))
        if figure.topic != "time"
    ]
    assert {one.topic for one in mixed} == {"algorithms", "bandwidth", "prediction", "ranks"}
    for figure in mixed:
        assert "EMULATION" not in figure.title
        assert "cuda-host" not in figure.subtitle + figure.key


def test_emulated_times_are_drawn_apart_from_measured_ones_and_labelled(tmp_path: Path) -> None:
    figures = of_topic(mixed_run(tmp_path / "run"), "time")
    by_label = {"EMULATION" in figure.title: figure for figure in figures}
    assert len(figures) == len(by_label) == 2
    assert by_label[True].key == f"{by_label[False].key}-emulated"
    assert {one.kind.value for one in by_label[True].series} == {
        "measured"
    }  # neither bound nor prediction


def test_emulated_barriers_are_drawn_apart_too(tmp_path: Path) -> None:
    both = [(backend, ranks) for backend in ("cpu", "cuda-host") for ranks in (2, 4)]
    cases = [
        case("barrier", "dissemination", 0, ranks=n, backend=backend) for backend, n in both
    ]
    run = write_run(tmp_path / "run", cases, {2: emulated, 3: emulated})
    drawn = {figure.key: figure for figure in of_topic(run, "time")}
    assert set(drawn) == {"time-barrier-by-ranks", "time-barrier-by-ranks-emulated"}
    assert drawn["time-barrier-by-ranks"].subtitle == "cpu"


def test_a_run_without_any_real_time_names_no_peak_and_says_why(tmp_path: Path) -> None:
    lines = verdict_lines(emulated_run(tmp_path / "run"))
    assert lines[0].startswith("EMULATION: 18 of 18 cases emulated.")
    assert not any(
        word in line for line in lines for word in ("noise", "GB/s", "prediction;", "bound")
    )
    assert any(f"the times are {LEFT_OUT}. Do: " in line for line in lines)
    assert WHY in LEFT_OUT


def test_the_peak_is_of_a_measured_case_however_fast_an_emulated_one_looks(
    tmp_path: Path,
) -> None:
    run = mixed_run(tmp_path / "run")
    (peak,) = [line for line in verdict_lines(run) if "busbw" in line]
    assert "all_reduce ring over 4 ranks on cpu" in peak
    assert any(line.startswith("Median error of the prediction") for line in verdict_lines(run))


def test_emulated_points_have_no_share_of_a_bound_and_no_error_of_a_prediction(
    tmp_path: Path,
) -> None:
    points = points_of(emulated_run(tmp_path / "run"))
    assert all(point.bound_share is None and point.prediction_error is None for point in points)
    assert all(
        point.bound_seconds is None and point.predicted_seconds is None for point in points
    )
    assert not {"beats_bound", "slower_than_predicted"} & {
        finding.kind for finding in findings_of(points)
    }


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


def test_only_the_measured_part_of_a_run_is_laid_beside_a_baseline(tmp_path: Path) -> None:
    run, baseline = mixed_run(tmp_path / "run"), write_run(tmp_path / "real", sweep())
    pairs = beside(points_of(run), comparable_points(points_of(run), baseline))
    assert {pair.point.backend for pair in pairs} == {"cpu"}


def test_small_print_and_page_say_once_each_where_emulated_times_are_not(
    tmp_path: Path,
) -> None:
    run = emulated_run(tmp_path / "run")
    assert sum(WHY in line for line in footnote(points_of(run))) == 1
    page = markdown_report(Drawn([run], [points_of(run)], ()))
    assert page.count(WHY) == 2  # among the findings and in the small print


def test_loopback_is_ranked_by_time_alone_and_simulated_figures_stay(tmp_path: Path) -> None:
    def loopback(measurement: Measurement) -> Measurement:
        return flagged(measurement, "loopback")

    cases = sweep(algorithms=("ring", "tree"))
    run = write_run(tmp_path / "loop", cases, dict.fromkeys(range(len(cases)), loopback))
    assert len(of_topic(run, "algorithms")) == 1
    assert any("a host's loopback" in line for line in verdict_lines(run))
    assert not any("Peak" in line for line in verdict_lines(run))
    assert not of_topic(run, "bandwidth")
    page = page_content([run], [points_of(run)])
    assert not page.runs[0].rates.rows
    text = "NOT A MEASUREMENT OF LINKS: all 4 ranks share GPUs; fastest: "
    for line in (verdict_lines(run)[0], run_screen(run, 80)[0], page.runs[0].sentences[0]):
        assert line.startswith(text[:50])
    simulated = write_run(tmp_path / "simulated", cases, simulated=True)
    assert len(of_topic(simulated, "algorithms")) == 1
    assert verdict_lines(simulated)[0].startswith("SIMULATED for ")


def simulated(measurement: Measurement) -> Measurement:
    return replace(measurement, simulated=True)


def unsupported(measurement: Measurement) -> Measurement:
    return failed(measurement, Status.UNSUPPORTED, "not here")


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
def test_the_label_says_what_times_are(
    tmp_path: Path, edits: tuple[Edit | None, ...], label: str
) -> None:
    assert provenance(points(tmp_path / "run", *edits)) == label


def test_small_print_says_that_emulated_times_mean_nothing(tmp_path: Path) -> None:
    lines = footnote(points(tmp_path / "run", emulated))
    assert any(
        line.startswith("EMULATION: cpu ran GPU kernels on a CPU: results are real")
        for line in lines
    )
    assert "say nothing about any device" in meaning_of("EMULATION")
    assert "model" in meaning_of("SIMULATED")
