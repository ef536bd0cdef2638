"""Figures across many cases: measured against predicted, and how ranks differ. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from ccbench.analysis.findings import CLEAR_RANK, slowest_rank, teams_of
from ccbench.report.figure import Axis, Figure, Kind, Row, Series, measured_series
from ccbench.report.points import footnote, labelled
from ccbench.results import Point
from ccbench.results.rows import WAITING_SHARE
from ccbench.units import MANIFOLD, format_ratio, percent, plural

MEDIANS_NOTE = (
    f"A case is decided where one rank's median is above all others' by {percent(CLEAR_RANK - 1)} or more"
)
WAITING_NOTE = (
    "Waits are those of the warm-up, over the case's median. "
    "The slowest rank is the one that waits least, because the others wait for it; "
    f"a case is decided where it does so by {percent(WAITING_SHARE)} of the launch or more"
)


def prediction_figures(points: Sequence[Point]) -> list[Figure]:
    """Measured against predicted time, one figure per backend, one colour per collective."""
    figures = []
    for backend in sorted({point.backend for point in points}):
        members = [one for one in points if one.backend == backend and not one.baseline and not one.emulated]
        priced = [point for point in members if point.prediction_error is not None]
        if priced:
            figures.append(_prediction_figure(backend, members, priced))
    return figures


def _prediction_figure(backend: str, members: Sequence[Point], priced: Sequence[Point]) -> Figure:
    collectives = sorted({point.collective for point in priced})
    series = []
    for style, collective in enumerate(collectives):
        rows: list[Row] = [
            (point.predicted_seconds, point.median_seconds, None, None, point.trusted)
            for point in priced
            if point.collective == collective and point.predicted_seconds and point.median_seconds
        ]
        if rows:
            series.append(measured_series(collective, style, rows, joined=False))
    every = [value for one in series for value in (*one.x, *one.y)]
    ends = (min(every), max(every)) if every else (1e-6, 1.0)
    series.append(Series("measured = predicted", Kind.REFERENCE, -1, ends, ends))
    error, bias = error_and_bias(priced)
    return Figure(
        key=f"prediction-{backend}",
        topic="prediction",
        title=f"{labelled(members)}{backend}: measured against predicted time",
        subtitle=f"{plural(len(priced), 'point')} · median error {percent(error)} of the measured time · "
        f"{bias_text(bias)}",
        x=Axis("predicted time", "seconds", "log10"),
        y=Axis("measured time", "seconds", "log10"),
        series=tuple(series),
        footnote=footnote(members),
    )


def error_and_bias(points: Sequence[Point]) -> tuple[float, float]:
    """Median of |predicted / measured - 1|, and median of measured / predicted - 1, as fractions.

    The bias is positive where the machine is slower than predicted. ``points`` have a prediction.
    """
    errors = [point.prediction_error for point in points if point.prediction_error is not None]
    # A prediction of zero seconds is infinitely exceeded: error -1 has no finite bias.
    biases = [1 / (1 + error) - 1 if error > -1 else math.inf for error in errors]
    return median(abs(error) for error in errors), median(biases)


def bias_text(bias: float) -> str:
    """On which side of the prediction the measured times typically lie, in words."""
    if abs(bias) <= 0.005:
        return "measured times typically lie at the prediction"
    if bias >= MANIFOLD:
        return f"measured times are typically {format_ratio(1 + bias)} the prediction"
    side = "above" if bias > 0 else "below"
    return f"measured times are typically {percent(abs(bias))} {side} the prediction"


def rank_figures(points: Sequence[Point]) -> list[Figure]:
    """How ranks differ, one figure per (backend, ranks, nodes).

    Drawn is what the slowest rank is taken from: the time each rank waits for others where that is known,
    because ranks of a collective end together and their own times hardly differ; else the ranks' medians.
    """
    own = [point for point in points if not point.baseline]
    return [_rank_figure(group) for group in teams_of(own).values()]


def _rank_figure(points: Sequence[Point]) -> Figure:
    waited = [point for point in points if len(point.rank_waiting) == point.ranks]
    shown = waited or points
    first = points[0]
    rows = [_row(point) for point in shown]
    dots: list[Row] = [
        (float(rank), value, None, None, point.trusted)
        for point, row in zip(shown, rows, strict=True)
        for rank, value in enumerate(row)
    ]
    each = tuple(median(row[rank] for row in rows) for rank in range(first.ranks))
    what = "how long each rank waits for others" if waited else "time of each rank"
    unit = Axis("waits beyond the least, over the median", "share", "linear")
    return Figure(
        key=f"ranks-{first.backend}-{first.ranks}ranks-{first.nodes}nodes",
        topic="ranks",
        title=f"{labelled(shown)}{first.backend}: {what}",
        subtitle=f"{plural(first.ranks, 'rank')} · {plural(len(shown), 'case')} · {slowest_rank(shown)[1]}",
        x=Axis("rank", "rank", "linear"),
        y=unit if waited else Axis("rank's median over the case's median", "ratio", "linear"),
        series=(
            measured_series("one case", 0, dots, joined=False),
            Series(
                "median over cases", Kind.REFERENCE, 1, tuple(float(rank) for rank in range(first.ranks)),
                each, joined=False,
            ),
        ),
        footnote=(WAITING_NOTE if waited else MEDIANS_NOTE, *footnote(shown)),
    )  # fmt: skip


def _row(point: Point) -> tuple[float, ...]:
    """What is drawn of a case, in rank order.

    Of waits, what a rank waits longer than the one that waits least: libraries that do not tell waiting from
    working give the whole call as waited, which is as long in the warm-up as launches there are slow, and
    only what differs between ranks means anything.
    """
    if len(point.rank_waiting) == point.ranks:
        least = min(point.rank_waiting)
        return tuple(share - least for share in point.rank_waiting)
    return tuple(seconds / (point.median_seconds or 1.0) for seconds in point.rank_median_seconds)
