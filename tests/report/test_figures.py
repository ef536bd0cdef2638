from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.cases.measurement import Measurement, Status
from ccbench.report.curves import MOST_SERIES, joinable, leads
from ccbench.report.figure import (
    MOST_TICKS,
    Figure,
    FigureAxis,
    FigureSeries,
    SeriesKind,
    limits,
    tick_text,
    tick_values,
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


def test_equal_bounds_of_some_series_are_one_line_that_names_them(tmp_path: Path) -> None:
    cases = sweep(algorithms=("ring", "tree"))
    cases += [replace(case, groups="rank // 2") for case in cases]
    points = points_of(write_run(tmp_path / "run", cases))
    points = tuple(
        replace(point, bound_seconds=1e-3 if point.groups else 1e-6) for point in points
    )
    figure = next(figure for figure in figures_of(points) if figure.topic == "time")
    assert [series.label for series in figure.series if series.kind == SeriesKind.BOUND] == [
        "ring all ranks together, tree all ranks together: bound",
        "ring groups rank // 2, tree groups rank // 2: bound",
    ]


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


def test_crossovers_are_marked_and_explained(tmp_path: Path) -> None:
    modes = [sweep(algorithms=("ring", "tree"), mode=mode) for mode in ("streaming", "graph")]
    figures = _figures(tmp_path, [*modes[0], *modes[1]])
    # A mode is no choice of how: it has a race of its own.
    assert f"algorithms-{ALL_REDUCE}-graph" in figures
    figure = figures[f"algorithms-{ALL_REDUCE}"]
    assert [span.label for span in figure.spans] == ["tree", "ring"]
    assert len(figure.marks) == 1
    assert (
        f"ring overtakes tree by {figure.marks[0].label}, the first size" in figure.footnote[0]
    )
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
    assert max(span.high for span in figure.spans) == 2**20
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


SIZE = FigureAxis("size", "bytes", "log2")
TIME = FigureAxis("time", "seconds", "log10")


def _texts(axis: FigureAxis, values: list[float]) -> list[str]:
    low, high = limits(axis, values)
    return [tick_text(axis, value) for value in tick_values(axis, low, high) or []]


def test_sizes_are_written_in_binary_units_at_powers_of_two() -> None:
    assert _texts(SIZE, [1024.0, 65536.0]) == [
        "1 KiB",
        "2 KiB",
        "4 KiB",
        "8 KiB",
        "16 KiB",
        "32 KiB",
        "64 KiB",
    ]
    assert "1 MiB" in _texts(SIZE, [8.0, 2.0**34])


def test_few_sizes_that_lie_apart_are_their_own_ticks() -> None:
    sizes = [64.0, 512.0, 4096.0, 3 * 2.0**20]
    assert tick_values(SIZE, *limits(SIZE, sizes), sizes) == sizes
    close = [64.0, 80.0, 2.0**20]
    assert tick_values(SIZE, *limits(SIZE, close), close) != close


def test_times_are_written_in_us_and_ms() -> None:
    assert _texts(TIME, [3e-6, 2e-3]) == [
        "5 us",
        "10 us",
        "20 us",
        "50 us",
        "100 us",
        "200 us",
        "500 us",
        "1 ms",
        "2 ms",
    ]


@given(st.floats(1e-9, 1e3), st.floats(1, 1e9))
def test_a_time_axis_never_lacks_ticks_and_never_crowds(low: float, factor: float) -> None:
    begin, end = limits(TIME, [low, low * factor])
    places = tick_values(TIME, begin, end)
    assert places is not None
    assert 1 <= len(places) <= MOST_TICKS
    assert begin < low
    assert end > low * factor


@given(st.integers(0, 40), st.integers(0, 30))
def test_a_size_axis_never_lacks_ticks_and_never_crowds(power: int, span: int) -> None:
    begin, end = limits(SIZE, [2.0**power, 2.0 ** (power + span)])
    places = tick_values(SIZE, begin, end)
    assert places is not None
    assert 1 <= len(places) <= MOST_TICKS + 1


def test_ranks_are_whole_numbers_thinned_when_many() -> None:
    rank = FigureAxis("rank", "rank", "linear")
    assert tick_values(rank, *limits(rank, [0.0, 3.0])) == [0.0, 1.0, 2.0, 3.0]
    many = tick_values(rank, *limits(rank, [0.0, 511.0]))
    assert many is not None
    assert len(many) <= 16


def _curve(
    alpha_seconds: float, beta: float, sizes: list[int], width: float = 0.01
) -> dict[int, Interval]:
    times = {size: alpha_seconds + beta * size for size in sizes}
    return {s: Interval(t * (1 - width), t, t * (1 + width), 0.95) for s, t in times.items()}


SIZES = [2**power for power in range(8, 25, 2)]


def test_a_crossover_is_at_the_first_measured_size_behind_the_crossing_of_two_lines() -> None:
    curves = {"tree": _curve(1e-6, 4e-10, SIZES), "ring": _curve(9e-6, 1e-10, SIZES)}
    found, (crossing,) = leads(curves)
    assert crossing.size_bytes == next(size for size in SIZES if size > 8e-6 / 3e-10)
    assert [one.name for one in found] == ["tree", "ring"]
    assert found[0].high_bytes == found[1].low_bytes == crossing.size_bytes


def test_algorithms_that_cannot_be_told_apart_do_not_take_turns() -> None:
    def wobbly(sign: float) -> dict[int, Interval]:
        times = {size: 1e-6 * (1 + sign * 0.01 * (-1) ** i) for i, size in enumerate(SIZES)}
        return {size: Interval(0.97 * t, t, 1.03 * t, 0.95) for size, t in times.items()}

    found, crossings = leads({"a": wobbly(1.0), "b": wobbly(-1.0)})
    assert crossings == ()
    assert len(found) == 1


def test_a_twin_of_the_leader_hides_no_crossover() -> None:
    ring = _curve(9e-6, 1e-10, SIZES)
    _, crossings = leads(
        {"tree": _curve(1e-6, 4e-10, SIZES), "ring": ring, "default": dict(ring)}
    )
    assert len(crossings) == 1


def test_a_leader_that_was_not_measured_further_on_is_followed_without_a_crossover() -> None:
    ring, tree = _curve(1e-6, 1e-10, SIZES[:4]), _curve(2e-6, 2e-10, SIZES)
    other = _curve(3e-6, 3e-10, SIZES)
    found, crossings = leads({"ring": ring, "tree": tree, "other": other})
    assert [one.name for one in found] == ["ring", "tree"]
    assert crossings == ()
    assert found[1].low_bytes == SIZES[4]


def test_a_lead_is_broken_where_only_one_was_measured() -> None:
    gap = [*SIZES[:3], *SIZES[5:]]
    found, crossings = leads(
        {"ring": _curve(1e-6, 1e-10, gap), "tree": _curve(2e-6, 2e-10, SIZES)}
    )
    assert [(one.name, one.low_bytes, one.high_bytes) for one in found] == [
        ("ring", SIZES[0], SIZES[2]),
        ("ring", SIZES[5], SIZES[-1]),
    ]
    assert crossings == ()


@given(
    st.dictionaries(
        st.sampled_from("abcd"),
        st.dictionaries(
            st.sampled_from(SIZES),
            st.floats(1e-7, 1.0).map(lambda t: Interval(0.98 * t, t, 1.02 * t, 0.95)),
        ),
    )
)
def test_a_lead_covers_only_sizes_that_decide_and_who_overtakes_is_faster(
    curves: dict[str, dict[int, Interval]],
) -> None:
    found, crossings = leads(curves)
    for earlier, later in pairwise(found):
        assert earlier.high_bytes <= later.low_bytes
    for lead in found:
        assert lead.low_bytes <= lead.high_bytes
        for size in {size for curve in curves.values() for size in curve}:
            if lead.low_bytes <= size <= lead.high_bytes:
                assert size in curves[lead.name]
                assert sum(size in curve for curve in curves.values()) > 1
    for crossing in crossings:
        assert (
            curves[crossing.after][crossing.size_bytes].median
            < curves[crossing.before][crossing.size_bytes].median
        )
