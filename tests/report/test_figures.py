from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure as Canvas

from ccbench.cases.measurement import Measurement, Status
from ccbench.report.curves import MOST_SERIES, crossovers, joinable
from ccbench.report.drawing import MOST_TICKS, set_ticks
from ccbench.report.figure import (
    Figure,
    FigureAxis,
    FigureSeries,
    Scale,
    SeriesKind,
    Unit,
    limits,
)
from ccbench.report.figures import figures_of
from ccbench.report.wording import points_of
from ccbench.results import Point
from ccbench.stats import Interval
from ccbench.units import percent

from .synthetic import Edit, case, failed, flagged, prediction, sweep, write_run


def _figures(path: Path, *args: object, **kwargs: object) -> dict[str, Figure]:
    run = write_run(path / "run", *args, **kwargs)  # type: ignore[arg-type]  # passed on as given
    return {figure.key: figure for figure in figures_of(points_of(run))}


ALL_REDUCE = "all_reduce-4ranks-1nodes-float32-sum"


def test_every_kind_of_figure_is_made_from_one_run(tmp_path: Path) -> None:
    figures = _figures(tmp_path, sweep(algorithms=("ring", "tree")))
    assert {figure.topic for figure in figures.values()} == {
        "bandwidth",
        "time",
        "algorithms",
        "prediction",
        "ranks",
    }


def test_bandwidth_shows_what_was_measured_predicted_and_possible(tmp_path: Path) -> None:
    figure = _figures(tmp_path, sweep())[f"bandwidth-{ALL_REDUCE}"]
    by_kind = {series.kind: series for series in figure.series}
    measured, predicted, bound = (
        by_kind[k] for k in (SeriesKind.MEASURED, SeriesKind.PREDICTED, SeriesKind.BOUND)
    )
    assert measured.x == predicted.x == bound.x
    for low, middle, high in zip(measured.low, measured.y, measured.high, strict=True):
        assert low <= middle <= high
    one = sweep()[3]
    assert predicted.y[3] == pytest.approx(
        1.5 * one.size_bytes / prediction(one).predicted_seconds / 1e9
    )
    assert all(top >= below for top, below in zip(bound.y, predicted.y, strict=True))


@pytest.mark.parametrize("topic", ["bandwidth", "time"])
def test_a_prediction_with_intervals_has_a_band_and_one_without_has_none(
    tmp_path: Path, topic: str
) -> None:
    plain = points_of(write_run(tmp_path / "run", sweep()))
    known = [
        replace(
            one,
            predicted_low_80_seconds=0.8 * (one.predicted_seconds or 0),
            predicted_high_80_seconds=1.5 * (one.predicted_seconds or 0),
        )
        for one in plain
    ]

    def predicted(points: Sequence[Point]) -> FigureSeries:
        (figure,) = (figure for figure in figures_of(points) if figure.topic == topic)
        return next(series for series in figure.series if series.kind == SeriesKind.PREDICTED)

    series = predicted(known)
    assert all(
        low < y < high for low, y, high in zip(series.low, series.y, series.high, strict=True)
    )
    assert series.y == predicted(plain).y
    # One size without an interval would leave a hole that a band cannot show.
    assert predicted(plain).low == predicted([plain[0], *known[1:]]).low == ()


def test_equal_bounds_of_several_algorithms_are_one_line(tmp_path: Path) -> None:
    figure = _figures(tmp_path, sweep(algorithms=("ring", "tree")))[f"time-{ALL_REDUCE}"]
    assert sum(series.kind == SeriesKind.BOUND for series in figure.series) == 1
    assert sum(series.kind == SeriesKind.PREDICTED for series in figure.series) == 2


def test_flagged_points_are_not_trusted_and_the_flag_is_in_the_footnote(tmp_path: Path) -> None:
    figure = _figures(
        tmp_path, sweep(), {2: lambda measurement: flagged(measurement, "clock fell")}
    )[f"time-{ALL_REDUCE}"]
    (measured,) = [series for series in figure.series if series.kind == SeriesKind.MEASURED]
    assert measured.trusted.index(False) == 2
    assert any("clock fell (1 point)" in line for line in figure.footnote)


def test_cases_without_a_result_break_the_line_and_are_listed(tmp_path: Path) -> None:
    def hang(measurement: Measurement) -> Measurement:
        return failed(measurement, Status.TIMED_OUT, "rank 2 hung")

    figure = _figures(tmp_path, sweep(), {3: hang})[f"bandwidth-{ALL_REDUCE}"]
    (measured,) = [series for series in figure.series if series.kind == SeriesKind.MEASURED]
    assert measured.missing == (65536.0,)
    assert 65536.0 not in measured.x
    assert any("ring 64 KiB timed_out (rank 2 hung)" in line for line in figure.footnote)


def test_the_footnote_tells_machine_backend_samples_and_interval(tmp_path: Path) -> None:
    first = _figures(tmp_path, sweep())[f"time-{ALL_REDUCE}"].footnote[0]
    for words in (
        "node7",
        "epyc-2x64",
        "cpu (numpy 2.1)",
        "30 samples in 6 rounds a point",
        "97 % interval",
    ):
        assert words in first


def test_a_simulated_run_says_so_in_every_title_and_footnote(tmp_path: Path) -> None:
    figures = _figures(
        tmp_path, [*sweep(algorithms=("ring", "tree")), *_barriers()], simulated=True
    )
    for figure in figures.values():
        assert figure.title.startswith("SIMULATED")
        assert any(line.startswith("SIMULATED") for line in figure.footnote)


def test_a_run_that_is_simulated_in_part_says_which_part(tmp_path: Path) -> None:
    cases = [*sweep(), *sweep(backend="simulated")]
    edits = {
        number: lambda measurement: replace(measurement, simulated=True)
        for number in range(9, 18)
    }
    figure = _figures(tmp_path, cases, edits)[f"time-{ALL_REDUCE}"]
    assert figure.title.startswith("PARTLY SIMULATED")
    assert any("times of simulated come from a model" in line for line in figure.footnote)
    assert {series.label for series in figure.series if series.kind == SeriesKind.MEASURED} == {
        "cpu ring",
        "simulated ring",
    }


def test_loopback_is_named_in_the_footnote(tmp_path: Path) -> None:
    edits = {0: lambda measurement: flagged(measurement, "loopback")}
    figure = _figures(tmp_path, sweep(), edits)[f"time-{ALL_REDUCE}"]
    assert any(line.startswith("Loopback") for line in figure.footnote)


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


def test_many_series_are_spread_over_figures_and_none_is_lost(tmp_path: Path) -> None:
    algorithms = ("ring", "tree", "halving_doubling", "default")
    cases = [
        measurement
        for b in ("cpu", "mpi", "gloo")
        for measurement in sweep(algorithms=algorithms, backend=b)
    ]
    figures = _figures(tmp_path, cases)
    parts = [figure for key, figure in figures.items() if key.startswith("bandwidth")]
    labels = [
        f"{figure.subtitle} {series.label}"
        for figure in parts
        for series in figure.series
        if series.kind == SeriesKind.MEASURED
    ]
    assert len(parts) == 2
    assert len(set(labels)) == 12
    race = figures[f"algorithms-{ALL_REDUCE}"]
    assert len(race.series) == MOST_SERIES
    assert any(line.startswith("Not drawn for want of room") for line in race.footnote)


def test_few_or_far_sizes_are_not_joined() -> None:
    assert not joinable([1024.0, 4096.0, 16384.0])
    assert not joinable([8.0, 1024.0, 2**20, 2**30])
    assert joinable([1024.0, 4096.0, 16384.0, 65536.0])
    assert not joinable([])


def test_one_point_makes_figures_without_lines(tmp_path: Path) -> None:
    figures = _figures(tmp_path, [case("all_reduce", "ring", 4096)])
    assert {figure.topic for figure in figures.values()} == {
        "bandwidth",
        "time",
        "prediction",
        "ranks",
    }
    assert not any(series.joined for series in figures[f"time-{ALL_REDUCE}"].series)


def _barriers() -> list[object]:
    return [case("barrier", "dissemination", 0, ranks=ranks) for ranks in (2, 4, 8, 16)]


def test_barriers_are_drawn_against_ranks_and_have_no_bandwidth(tmp_path: Path) -> None:
    figures = _figures(tmp_path, _barriers())
    figure = figures["time-barrier-by-ranks"]
    assert figure.series[0].x == (2.0, 4.0, 8.0, 16.0)
    assert figure.x.unit == "ranks"
    assert not any(figure.topic == "bandwidth" for figure in figures.values())


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


def test_the_slowest_rank_is_named(tmp_path: Path) -> None:
    figure = _figures(tmp_path, sweep())["ranks-cpu-4ranks-1nodes"]
    assert "rank 2 slowest in 9 of 9 decided cases" in figure.subtitle
    assert max(figure.series[0].y) == pytest.approx(1.0, rel=0.02)


def test_ranks_that_take_turns_do_not_stand_out(tmp_path: Path) -> None:
    def turn(number: int) -> Edit:
        def change(measurement: Measurement) -> Measurement:
            shares = [1.1 if rank == number % 4 else 1.0 for rank in range(4)]
            rows = tuple(
                tuple(share * s for s in measurement.samples_seconds) for share in shares
            )
            return replace(measurement, rank_samples_seconds=rows)

        return change

    figures = _figures(tmp_path, sweep(), {number: turn(number) for number in range(9)})
    assert (
        "no rank stands out (9 of 9 cases decided)"
        in figures["ranks-cpu-4ranks-1nodes"].subtitle
    )


def test_ranks_that_tie_decide_no_case(tmp_path: Path) -> None:
    def tie(measurement: Measurement) -> Measurement:
        shares = (1.004, 1.0, 1.003, 1.001)
        return replace(
            measurement,
            rank_samples_seconds=tuple(
                tuple(x * s for s in measurement.samples_seconds) for x in shares
            ),
        )

    figures = _figures(tmp_path, sweep(), dict.fromkeys(range(9), tie))
    assert (
        "no rank stands out (0 of 9 cases decided)"
        in figures["ranks-cpu-4ranks-1nodes"].subtitle
    )


def test_ranks_are_drawn_by_what_the_slowest_is_taken_from(tmp_path: Path) -> None:
    def wait(measurement: Measurement) -> Measurement:
        launch = sorted(measurement.samples_seconds)[15]
        return replace(
            measurement,
            rank_waiting_seconds=tuple((share * launch,) for share in (0.5, 0.1, 0.6, 0.4)),
        )

    figure = _figures(tmp_path, sweep(), dict.fromkeys(range(9), wait))[
        "ranks-cpu-4ranks-1nodes"
    ]
    assert "rank 1 slowest in 9 of 9 decided cases" in figure.subtitle
    assert figure.y.unit == "share"
    assert figure.series[1].y == pytest.approx((0.4, 0.0, 0.5, 0.3), rel=0.05)
    assert any(
        "waits least" in line and "10 % of the launch" in line for line in figure.footnote
    )


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


def test_one_rank_has_no_bandwidth(tmp_path: Path) -> None:
    figures = _figures(tmp_path, sweep("broadcast", ["binomial_tree"], ranks=1))
    assert not any(key.startswith("bandwidth") for key in figures)
    assert any(figure.subtitle.startswith("1 rank ·") for figure in figures.values())


def test_a_collective_without_a_bus_factor_has_a_time_and_no_bandwidth(
    tmp_path: Path,
) -> None:
    points = points_of(write_run(tmp_path / "run", sweep(algorithms=("ring",))))
    nameless = [replace(point, collective="unknown") for point in points]
    assert all(point.busbw is not None for point in nameless)
    topics = {figure.topic for figure in figures_of(nameless)}
    assert "time" in topics
    assert "bandwidth" not in topics


def test_the_median_error_of_the_prediction_is_in_the_subtitle(tmp_path: Path) -> None:
    points = points_of(write_run(tmp_path / "run", sweep()))
    errors = sorted(
        abs((point.predicted_seconds or 0.0) / (point.median_seconds or 1.0) - 1)
        for point in points
    )
    figure = next(figure for figure in figures_of(points) if figure.topic == "prediction")
    assert f"median error {100 * errors[len(errors) // 2]:.0f} %" in figure.subtitle
    above = sorted(
        (point.median_seconds or 0.0) / (point.predicted_seconds or 1.0) - 1 for point in points
    )
    text = (
        f"measured times are typically {percent(above[len(above) // 2])} above the prediction"
    )
    assert text in figure.subtitle


def test_a_baseline_is_drawn_but_not_raced(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", sweep(algorithms=("ring", "tree")))
    old = write_run(tmp_path / "old", sweep(), slowdown=1.3)
    points = [*points_of(run), *points_of(old, name="old", baseline=True)]
    figures = {figure.key: figure for figure in figures_of(points)}
    (baseline,) = [
        s for s in figures[f"time-{ALL_REDUCE}"].series if s.kind == SeriesKind.BASELINE
    ]
    assert baseline.label == "baseline old ring"
    assert len(figures[f"algorithms-{ALL_REDUCE}"].series) == 2


@pytest.mark.parametrize(
    ("unit", "scale", "values", "expected"),
    [
        ("bytes", "log2", [64.0, 512.0, 3 * 2.0**20], "64 B, 512 B, 3 MiB"),
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
    set_ticks(part, axis, values)
    places = [place for place in part.get_majorticklocs() if low <= place <= high]
    return [text for text in part.get_major_formatter().format_ticks(places) if text]


def _curve(
    alpha_seconds: float, beta: float, sizes: list[int], width: float = 0.01
) -> dict[int, Interval]:
    times = {size: alpha_seconds + beta * size for size in sizes}
    return {s: Interval(t * (1 - width), t, t * (1 + width), 0.95) for s, t in times.items()}


SIZES = [2**power for power in range(8, 25, 2)]


def test_a_crossover_is_at_the_first_measured_size_behind_the_crossing_of_two_lines() -> None:
    ring = _curve(9e-6, 1e-10, SIZES)
    # A twin of the leader hides no crossover.
    (crossing,) = crossovers(
        {"tree": _curve(1e-6, 4e-10, SIZES), "ring": ring, "default": dict(ring)}
    )
    assert crossing.size_bytes == next(size for size in SIZES if size > 8e-6 / 3e-10)


def test_algorithms_that_cannot_be_told_apart_do_not_take_turns() -> None:
    def wobbly(sign: float) -> dict[int, Interval]:
        times = {size: 1e-6 * (1 + sign * 0.01 * (-1) ** i) for i, size in enumerate(SIZES)}
        return {size: Interval(0.97 * t, t, 1.03 * t, 0.95) for size, t in times.items()}

    assert crossovers({"a": wobbly(1.0), "b": wobbly(-1.0)}) == []


def test_a_leader_that_was_not_measured_further_on_is_followed_without_a_crossover() -> None:
    ring, tree = _curve(1e-6, 1e-10, SIZES[:4]), _curve(2e-6, 2e-10, SIZES)
    assert crossovers({"ring": ring, "tree": tree, "c": _curve(3e-6, 3e-10, SIZES)}) == []
