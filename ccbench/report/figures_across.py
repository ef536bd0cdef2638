"""Figures across many cases: measured against predicted, and how ranks differ. Pure functions."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from statistics import median

from ccbench.report.figure import Axis, Figure, Kind, Series
from ccbench.report.footnotes import footnote
from ccbench.report.points import Point, provenance
from ccbench.report.text import percent, plural


def prediction_figures(points: Sequence[Point]) -> list[Figure]:
    """Measured against predicted time, one figure per backend, one colour per collective."""
    figures = []
    for backend in sorted({point.backend for point in points}):
        members = [point for point in points if point.backend == backend and not point.baseline]
        priced = [point for point in members if point.prediction_error is not None]
        if priced:
            figures.append(_prediction_figure(backend, members, priced))
    return figures


def _prediction_figure(backend: str, members: Sequence[Point], priced: Sequence[Point]) -> Figure:
    collectives = sorted({point.collective for point in priced})
    series = []
    for style, collective in enumerate(collectives):
        rows = [
            (point.predicted_seconds, point.median_seconds, point.trusted)
            for point in priced
            if point.collective == collective and point.predicted_seconds and point.median_seconds
        ]
        x, y = tuple(row[0] for row in rows), tuple(row[1] for row in rows)
        flags = tuple(row[2] for row in rows)
        if x:
            series.append(Series(collective, Kind.MEASURED, style, x, y, trusted=flags, joined=False))
    every = [value for one in series for value in (*one.x, *one.y)]
    ends = (min(every), max(every)) if every else (1e-6, 1.0)
    series.append(Series("measured = predicted", Kind.REFERENCE, -1, ends, ends))
    error, bias = error_and_bias(priced)
    side = "slower" if bias < 0 else "faster"
    label = provenance(members)
    return Figure(
        key=f"prediction-{backend}",
        topic="prediction",
        title=f"{label + ' ' if label else ''}{backend}: measured against predicted time",
        subtitle=f"{plural(len(priced), 'point')} · median error {percent(error)} of the measured time · "
        f"typically {percent(abs(bias))} {side} than predicted",
        x=Axis("predicted time", "seconds", "log10"),
        y=Axis("measured time", "seconds", "log10"),
        series=tuple(series),
        footnote=footnote(members),
    )


def error_and_bias(points: Sequence[Point]) -> tuple[float, float]:
    """Median of |predicted / measured - 1|, and median of predicted / measured - 1, as fractions.

    The bias is negative where the machine is slower than predicted. ``points`` have a prediction.
    """
    errors = [point.prediction_error for point in points if point.prediction_error is not None]
    return median(abs(error) for error in errors), median(errors)


def rank_figures(points: Sequence[Point]) -> list[Figure]:
    """How ranks differ, one figure per (backend, ranks, nodes): rank medians over the case's median."""
    groups: dict[tuple[str, int, int], list[Point]] = defaultdict(list)
    for point in points:
        timed = point.ranks > 1 and len(point.rank_medians) == point.ranks
        if timed and point.median_seconds and not point.baseline:
            groups[point.backend, point.ranks, point.nodes].append(point)
    return [_rank_figure(group) for _, group in sorted(groups.items())]


def _rank_figure(points: Sequence[Point]) -> Figure:
    first = points[0]
    x, y, trusted = [], [], []
    for point in points:
        for rank, seconds in enumerate(point.rank_medians):
            x.append(float(rank))
            y.append(seconds / (point.median_seconds or 1.0))
            trusted.append(point.trusted)
    columns = [
        [one.rank_medians[rank] / (one.median_seconds or 1.0) for one in points]
        for rank in range(first.ranks)
    ]
    ranks = tuple(float(rank) for rank in range(first.ranks))
    each = tuple(median(column) for column in columns)
    label = provenance(points)
    return Figure(
        key=f"ranks-{first.backend}-{first.ranks}ranks-{first.nodes}nodes",
        topic="ranks",
        title=f"{label + ' ' if label else ''}{first.backend}: time of each rank",
        subtitle=f"{plural(first.ranks, 'rank')} · {plural(len(points), 'case')} · {slowest_text(points)}",
        x=Axis("rank", "rank", "linear"),
        y=Axis("rank's median over the case's median", "ratio", "linear"),
        series=(
            Series("one case", Kind.MEASURED, 0, tuple(x), tuple(y), trusted=tuple(trusted), joined=False),
            Series("median over cases", Kind.REFERENCE, 1, ranks, each, joined=False),
        ),
        footnote=footnote(points),
    )


def slowest_text(points: Sequence[Point]) -> str:
    """Which rank is slowest most often, in words."""
    counts = Counter(point.slowest_rank for point in points if point.slowest_rank is not None)
    if not counts:
        return "no rank is slower than the others"
    rank, times = min(counts.items(), key=lambda item: (-item[1], item[0]))
    return f"rank {rank} slowest in {times} of {len(points)}"
