from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure as Canvas

from ccbench.cases.measurement import Measurement, Status
from ccbench.report.drawing import MOST_TICKS, set_ticks
from ccbench.report.figure import (
    Figure,
    FigureAxis,
    Scale,
    Unit,
    limits,
)
from ccbench.report.figures import figures_of
from ccbench.report.wording import points_of

from .synthetic import case, failed, sweep, write_run


def _figures(path: Path, *args: object, **kwargs: object) -> dict[str, Figure]:
    run = write_run(path / "run", *args, **kwargs)  # type: ignore[arg-type]  # passed on as given
    return {figure.key: figure for figure in figures_of(points_of(run))}


ALL_REDUCE = "all_reduce-4ranks-1nodes-float32-sum"


def test_a_simulated_run_says_so_in_every_title_and_footnote(tmp_path: Path) -> None:
    figures = _figures(tmp_path, sweep(algorithms=("ring", "tree")), simulated=True)
    for figure in figures.values():
        assert figure.title.startswith("SIMULATED")
        assert any(line.startswith("SIMULATED") for line in figure.footnote)


def test_crossovers_are_explained(tmp_path: Path) -> None:
    modes = [sweep(algorithms=("ring", "tree"), mode=mode) for mode in ("streaming", "graph")]
    figures = _figures(tmp_path, [*modes[0], *modes[1]])
    # A mode is no choice of how: it has a race of its own.
    assert f"algorithms-{ALL_REDUCE}-graph" in figures
    figure = figures[f"algorithms-{ALL_REDUCE}"]
    assert figure.footnote[0].count("ring overtakes tree by ") == 1
    best = [min(ys) for ys in zip(*(series.y for series in figure.series), strict=True)]
    assert best == [1.0] * len(best)


def test_a_sweep_from_zero_bytes_races_only_where_there_is_a_size(tmp_path: Path) -> None:
    cases = [
        case("all_reduce", name, size) for name in ("ring", "tree") for size in (0, 1024, 4096)
    ]
    race = _figures(tmp_path, cases)[f"algorithms-{ALL_REDUCE}"]
    assert [series.x for series in race.series] == [(1024.0, 4096.0)] * 2


def test_simulated_points_never_race_against_measured_ones(tmp_path: Path) -> None:
    cases = [
        *sweep(algorithms=("ring", "tree")),
        *sweep(algorithms=("ring", "tree"), backend="simulated"),
    ]
    edits = {
        number: lambda measurement: replace(
            measurement, simulated=True, samples_seconds=(1e-9,) * 30
        )
        for number in range(18, 36)
    }
    figures = _figures(tmp_path, cases, edits)
    measured, computed = (
        figures[f"algorithms-{ALL_REDUCE}{end}"] for end in ("", "-simulated")
    )
    assert measured.title.startswith("all_reduce")
    assert measured.subtitle.endswith(" cpu")
    assert computed.title.startswith("SIMULATED")
    assert computed.subtitle.endswith(" simulated")
    assert min(min(series.y) for series in measured.series) == 1.0


def test_one_measured_and_one_simulated_series_do_not_race(tmp_path: Path) -> None:
    cases = [*sweep(), *sweep(backend="simulated")]
    edits = {
        number: lambda measurement: replace(measurement, simulated=True)
        for number in range(9, 18)
    }
    assert not any(key.startswith("algorithms") for key in _figures(tmp_path, cases, edits))


def test_a_size_only_one_algorithm_reached_has_no_fastest(tmp_path: Path) -> None:
    race = _figures(tmp_path, [*sweep(last=20), *sweep(algorithms=["tree"])])
    figure = race[f"algorithms-{ALL_REDUCE}"]
    assert max(max(series.x) for series in figure.series) == 2**20
    assert any(
        "only one was measured there: 4 MiB, 16 MiB, 64 MiB" in line for line in figure.footnote
    )


def test_a_figure_that_cannot_be_made_costs_only_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(points: object) -> list[Figure]:
        raise KeyError("rank")

    monkeypatch.setattr("ccbench.report.figures.rank_figures", broken)
    points = points_of(write_run(tmp_path / "run", sweep()))
    problems: list[str] = []
    assert {figure.topic for figure in figures_of(points, problems)} == {
        "bandwidth",
        "time",
        "prediction",
    }
    assert problems == ["ranks: KeyError: 'rank'"]
    with pytest.raises(KeyError):
        figures_of(points)


def test_without_any_speed_one_figure_says_so(tmp_path: Path) -> None:
    nothing = _figures(tmp_path, [])
    assert nothing["nothing-measured"].message == "The run holds no case."
    edits = {
        number: lambda measurement: failed(measurement, Status.FAILED, "no peer access")
        for number in range(9)
    }
    write_run(tmp_path / "all", sweep(), edits)
    run = write_run(tmp_path / "failed", sweep(), edits)
    (figure,) = figures_of(points_of(run))
    assert "9 cases" in figure.message
    assert any("failed (no peer access)" in line for line in figure.footnote)


@pytest.mark.parametrize(
    ("unit", "scale", "values", "expected"),
    [
        ("bytes", "log2", [8.0, 9.0, 2.0**32], "32 B, 1 KiB, 32 KiB, 1 MiB, 32 MiB, 1 GiB"),
        ("seconds", "log10", [3e-6, 2e-3], "3 us, 10 us, 30 us, 100 us, 300 us, 1 ms"),
        ("ratio", "log10", [1.0, 1.1], "1x"),
        ("rank", "linear", [0.0, 3.0], "0, 1, 2, 3"),
        ("GB/s", "linear", [0.0, 88.0], "0, 20, 40, 60, 80"),
    ],
)
def test_ticks_are_written_in_words_people_use(
    unit: Unit, scale: Scale, values: list[float], expected: str
) -> None:
    assert ", ".join(_ticks(FigureAxis("", unit, scale), values)) == expected


@given(st.floats(1e-9, 1e3), st.floats(1, 1e9), st.sampled_from(("log2", "log10")))
def test_an_axis_never_lacks_ticks_and_never_crowds(
    low: float, factor: float, scale: Scale
) -> None:
    axis = FigureAxis("", "bytes" if scale == "log2" else "seconds", scale)
    low = low * 1e12 if scale == "log2" else low
    assert 1 <= len(_ticks(axis, [low, low * factor])) <= 1.5 * MOST_TICKS


def _ticks(axis: FigureAxis, values: list[float]) -> list[str]:
    part = Canvas().subplots().xaxis
    low, high = limits(axis, values)
    part.axes.set(xlim=(low, high))
    if axis.scale != "linear":
        part.axes.set_xscale("log", base=2 if axis.scale == "log2" else 10)
    set_ticks(part, axis)
    places = [place for place in part.get_majorticklocs() if low <= place <= high]
    return [text for text in part.get_major_formatter().format_ticks(places) if text]


def test_a_library_that_does_not_tell_waiting_from_working_draws_what_differs(
    tmp_path: Path,
) -> None:
    """Its whole call is what it waited, and in the warm-up that was many times what it is later."""

    def wait(measurement: Measurement) -> Measurement:
        launch = sorted(measurement.samples_seconds)[15]
        return replace(
            measurement,
            rank_waiting_seconds=tuple((share * launch,) for share in (6.5, 6.5, 6.2, 6.5)),
        )

    figure = _figures(tmp_path, sweep(), dict.fromkeys(range(9), wait))[
        "ranks-cpu-4ranks-1nodes"
    ]
    assert max(figure.series[0].y) < 0.35
    assert "rank 2 slowest in 9 of 9 decided cases" in figure.subtitle
