"""Every figure of a report: those of ``curves`` and ``maps``, and here those across many cases."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import TypeVar

from ccbench.analysis.findings import CLEAR_RANK, provenance, slowest_rank, teams_of
from ccbench.analysis.fleet import FleetVerdict
from ccbench.analysis.machine_verdict import machine_verdict
from ccbench.analysis.pair_matrix import pair_matrices
from ccbench.report.curves import (
    SIZE,
    TIME,
    group_key,
    has_size,
    race_figures,
    size_figures,
)
from ccbench.report.figure import (
    Figure,
    FigureAxis,
    FigureSeries,
    Row,
    SeriesKind,
    series_of,
)
from ccbench.report.fleet_maps import fleet_figures
from ccbench.report.maps import pair_figures
from ccbench.report.wording import (
    bias_text,
    error_and_bias,
    footnote,
    labelled,
    machines_of,
    place_of,
)
from ccbench.results import Point, Run
from ccbench.results.keys import Key, grouped
from ccbench.results.schema import WAITING_SHARE
from ccbench.units import percent, plain, plural

GROUP_FIELDS = ("collective", "ranks", "nodes", "dtype", "op", "emulated")
"""Fields that all points of a figure against size share."""

MEDIANS_NOTE = f"A case is decided where one rank's median is above all others' by {percent(CLEAR_RANK - 1)} or more"
WAITING_NOTE = (
    "Waits are those of the warm-up, over the case's median. "
    "The slowest rank is the one that waits least, because the others wait for it; "
    f"a case is decided where it does so by {percent(WAITING_SHARE)} of the launch or more"
)

V = TypeVar("V")


def every_figure(
    runs: Sequence[Run],
    points: Sequence[Sequence[Point]],
    behind: Sequence[Point],
    problems: list[str] | None,
) -> list[Figure]:
    """All figures of a report, maps last; one that says so where there is nothing to draw.

    points: of each run. behind: of the baseline. problems: as of ``figures_of``.
    """
    every = [point for own in points for point in own]
    maps: list[Figure] = []
    for run, own in zip(runs, points, strict=True):
        host, machine = run.manifest.host, machines_of(own) or run.manifest.machine
        words = (
            run.path.name * (len(runs) > 1),
            host and f"host {host}",
            machine and f"machine {machine}",
        )
        where = " · ".join(word for word in words if word)
        pairs = partial(pair_figures, pair_matrices(run), where)
        maps += made("pairs", pairs, problems) or []
        verdict = machine_verdict(run)
        if isinstance(verdict, FleetVerdict):
            label = provenance(run.points)
            fleet = partial(fleet_figures, verdict, where, label)
            maps += made("pairs of nodes", fleet, problems) or []
    figures = figures_of([*every, *behind], problems)
    return [figure for figure in figures if figure.topic != "nothing" or not maps] + maps


def figures_of(
    points: Sequence[Point], problems: list[str] | None = None
) -> tuple[Figure, ...]:
    """Every figure of ``points`` but maps; one that says so when nothing was measured.

    problems: takes one line for every kind of figure that could not be made, so that the rest is not lost;
        without it the first failure is raised.
    """
    # Pairs have figures of their own.
    groups = grouped((point for point in points if not point.pair), Key(GROUP_FIELDS))
    # Each is made apart, so that one that fails takes no other with it.
    makers: list[tuple[str, Callable[[], list[Figure]]]] = []
    for _, group in sorted(groups.items(), key=lambda item: (place_of(item[0][0]), str(item))):
        if any(has_size(one) for one in group):
            makers.append(
                (f"bandwidth and time of {group_key(group[0])}", partial(size_figures, group))
            )
            makers.append(
                (f"algorithms of {group_key(group[0])}", partial(race_figures, group))
            )
    makers.append(("measured against predicted", partial(prediction_figures, points)))
    makers.append(("ranks", partial(rank_figures, points)))
    figures = [figure for name, make in makers for figure in made(name, make, problems) or ()]
    if figures or problems:
        return tuple(figures)
    label = provenance(points)
    nothing = Figure(
        key="nothing-measured",
        topic="nothing",
        title=f"{label}: no case has a speed" if label else "No case has a speed",
        subtitle=plural(len(points), "case"),
        x=SIZE,
        y=TIME,
        footnote=footnote(points) if points else (),
        message=f"{plural(len(points), 'case')}, none of which can be drawn."
        if points
        else "The run holds no case.",
    )
    return (nothing,)


def made(name: str, make: Callable[[], V], problems: list[str] | None) -> V | None:
    """Return what ``make`` gives; a failure is a line in ``problems``, without which it is raised."""
    try:
        return make()
    except Exception as error:
        if problems is None:
            raise
        problems.append(f"{name}: {type(error).__name__}: {plain(error, 200)}")
        return None


def prediction_figures(points: Sequence[Point]) -> list[Figure]:
    """Measured against predicted time, one figure per backend, one colour per collective."""
    figures = []
    for backend in sorted({point.backend for point in points}):
        members = [
            point
            for point in points
            if point.backend == backend and not point.baseline and not point.emulated
        ]
        # An emulation's time is no device's, and a baseline's prediction is of another machine.
        priced = [point for point in members if point.prediction_error is not None]
        if not priced:
            continue
        series = []
        for style, collective in enumerate(sorted({point.collective for point in priced})):
            rows: list[Row] = [
                (point.predicted_seconds, point.median_seconds, None, None, point.trusted)
                for point in priced
                if point.collective == collective
                and point.predicted_seconds
                and point.median_seconds
            ]
            series += [series_of(collective, SeriesKind.MEASURED, style, rows)] if rows else []
        every = [value for one in series for value in (*one.x, *one.y)]
        ends = (min(every), max(every)) if every else (1e-6, 1.0)
        series.append(
            FigureSeries("measured = predicted", SeriesKind.REFERENCE, -1, ends, ends)
        )
        error, bias = error_and_bias(priced)
        figures.append(
            Figure(
                key=f"prediction-{backend}",
                topic="prediction",
                title=f"{labelled(members)}{backend}: measured against predicted time",
                subtitle=f"{plural(len(priced), 'point')} · median error {percent(error)} of the measured "
                f"time · {bias_text(bias)}",
                x=FigureAxis("predicted time", "seconds", "log10"),
                y=FigureAxis("measured time", "seconds", "log10"),
                series=tuple(series),
                footnote=footnote(members),
            )
        )
    return figures


def rank_figures(points: Sequence[Point]) -> list[Figure]:
    """Figures of how ranks differ, one per (backend, ranks, nodes).

    Drawn is what the slowest rank is taken from: the time each rank waits for others where that is known,
    because ranks of a collective end together and their own times hardly differ; else the ranks' medians.
    """
    figures = []
    for members in teams_of([point for point in points if not point.baseline]).values():
        first = members[0]
        waited = [point for point in members if len(point.rank_waiting) == point.ranks]
        shown = waited or members
        if waited:
            # How much longer a rank waits than the one that waits least: libraries that do not tell waiting
            # from working give the whole call as waited, so that only differences mean anything.
            rows = [
                [share - min(point.rank_waiting) for share in point.rank_waiting]
                for point in shown
            ]
            y = FigureAxis("waits beyond the least, over the median", "share", "linear")
        else:
            rows = [
                [second / (point.median_seconds or 1.0) for second in point.rank_median_seconds]
                for point in shown
            ]
            y = FigureAxis("rank's median over the case's median", "ratio", "linear")
        dots: list[Row] = [
            (float(rank), value, None, None, point.trusted)
            for point, row in zip(shown, rows, strict=True)
            for rank, value in enumerate(row)
        ]
        ranks = tuple(float(rank) for rank in range(first.ranks))
        middle = tuple(median(row[rank] for row in rows) for rank in range(first.ranks))
        what = "how long each rank waits for others" if waited else "time of each rank"
        slowest = slowest_rank(shown)[1]
        figures.append(
            Figure(
                key=f"ranks-{first.backend}-{first.ranks}ranks-{first.nodes}nodes",
                topic="ranks",
                title=f"{labelled(shown)}{first.backend}: {what}",
                subtitle=f"{plural(first.ranks, 'rank')} · {plural(len(shown), 'case')} · {slowest}",
                x=FigureAxis("rank", "rank", "linear"),
                y=y,
                series=(
                    series_of("one case", SeriesKind.MEASURED, 0, dots),
                    FigureSeries(
                        "median over cases",
                        SeriesKind.REFERENCE,
                        1,
                        ranks,
                        middle,
                        joined=False,
                    ),
                ),
                footnote=(WAITING_NOTE if waited else MEDIANS_NOTE, *footnote(shown)),
            )
        )
    return figures
