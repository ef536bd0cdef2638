"""From points to figures against size: bandwidth, time, and which algorithm is fastest where. Pure functions.

A crossover is told apart from noise: the leader keeps its place until its interval lies wholly above that of
the fastest, so that two algorithms that cannot be told apart do not take turns.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from ccbench.cases.axes import NO_OP, WORK
from ccbench.cases.measurement import Status
from ccbench.report.figure import (
    Figure,
    FigureAxis,
    FigureSeries,
    Row,
    SeriesKind,
    series_of,
)
from ccbench.report.wording import (
    SERIES,
    SeriesKey,
    footnote,
    imported_from,
    labelled,
    series_names,
)
from ccbench.results import Point
from ccbench.results.keys import Key, grouped
from ccbench.stats import Interval, intervals_overlap
from ccbench.units import format_size, plural

MOST_SERIES = 6
"""Lines one figure can hold and still be read; more are spread over several figures."""

MOST_BASELINES = 4
"""Lines of a baseline, which are all grey."""

FEWEST_JOINED = 4
WIDEST_GAP = 16
"""Points are joined by lines only where there are enough of them and neighbours are close in size."""

FINE = (Status.OK, Status.SKIPPED, Status.UNSUPPORTED)
"""Statuses of cases whose absence is no failure."""

SIZE = FigureAxis("size", "bytes", "log2")
TIME = FigureAxis("time per launch", "seconds", "log10")
BANDWIDTH = FigureAxis("bus bandwidth", "GB/s", "linear")
SLOWDOWN = FigureAxis("time relative to the fastest", "ratio", "log10")

Value = Callable[[Point, float | None], float | None]
"""From a case and a time in seconds to the value that is drawn; None where there is none."""

Curve = Mapping[int, Interval]
"""Size in bytes -> time in seconds."""


def has_size(point: Point) -> bool:
    """True if the case has a place on a logarithmic axis of sizes and a time."""
    return point.size_bytes > 0 and bool(point.median_seconds)


def title(points: Sequence[Point], what: str) -> str:
    """Title of a figure of one collective."""
    return f"{labelled(points)}{points[0].collective}: {what}"


def subtitle(points: Sequence[Point]) -> str:
    """Ranks, nodes, type of elements, backends and source of a figure's points."""
    first = points[0]
    parts = [plural(first.ranks, "rank")]
    parts += [plural(first.nodes, "node")] if first.nodes > 1 else []
    parts.append(first.dtype + ("" if first.op == NO_OP else f" {first.op}"))
    parts.append(", ".join(sorted({point.backend for point in points})))
    parts.append(imported_from([point for point in points if not point.baseline]))
    return " · ".join(part for part in parts if part)


def group_key(point: Point) -> str:
    """Words that name a figure's file."""
    nodes = f"-{point.nodes}nodes" if point.nodes else ""
    emulated = "-emulated" if point.emulated else ""
    return f"{point.collective}-{point.ranks}ranks{nodes}-{point.dtype or 'unknown'}-{point.op}{emulated}"


def size_figures(group: Sequence[Point]) -> list[Figure]:
    """Bandwidth and time against size of one kind of case, in parts of at most MOST_SERIES series."""
    parts = []
    keys = sorted({SERIES(point) for point in group if not point.baseline}, key=str)
    for start in range(0, max(len(keys), 1), MOST_SERIES):
        chosen = set(keys[start : start + MOST_SERIES])
        part = [member for member in group if member.baseline or SERIES(member) in chosen]
        parts += [part] if any(has_size(member) for member in part) else []
    figures = []
    for number, part in enumerate(parts, start=1):
        suffix = f" ({number} of {len(parts)})" if len(parts) > 1 else ""
        key = f"-{number}" if len(parts) > 1 else ""
        rated = [point for point in part if point.of_links]
        if any(point.busbw_at(point.median_seconds) is not None for point in rated):
            figures.append(_against_size(rated, "bandwidth", suffix, key))
        figures.append(_against_size(part, "time", suffix, key))
    return figures


def _against_size(points: Sequence[Point], topic: str, suffix: str, key: str) -> Figure:
    bandwidth = topic == "bandwidth"
    value: Value = Point.busbw_at if bandwidth else positive_seconds
    names = series_names(points)
    own = grouped((point for point in points if not point.baseline), SERIES)
    series: list[FigureSeries] = []
    for style, line in enumerate(sorted(own, key=str)):
        series += lines(own[line], names[line], style, value)
    # Of a baseline the lines with the most points, as many as can be read.
    drawn = [point for point in points if point.baseline and has_size(point)]
    behind = grouped(drawn, SERIES)
    ranked = sorted(behind, key=lambda line: (-len(behind[line]), str(line)))
    for style, line in enumerate(sorted(ranked[:MOST_BASELINES], key=str)):
        label = (
            names[line] if names[line].startswith("published") else f"baseline {names[line]}"
        )
        series.append(_line(behind[line], label, SeriesKind.BASELINE, style, value))
    notes = list(footnote(points))
    left_out = len(ranked[MOST_BASELINES:])
    if left_out:
        notes.append(
            f"Not drawn for want of room: {plural(left_out, 'line')} of the baseline with fewer points"
        )
    if any(point.size_bytes == 0 and point.median_seconds for point in points):
        notes.append("Not drawn: 0 bytes, which has no place on a logarithmic axis")
    return Figure(
        key=f"{topic}-{group_key(points[0])}{key}",
        topic="bandwidth" if bandwidth else "time",
        title=title(points, f"{'bus bandwidth' if bandwidth else 'time'} against size{suffix}"),
        subtitle=subtitle(points),
        x=SIZE,
        y=BANDWIDTH if bandwidth else TIME,
        series=tuple(shared_bounds(series)),
        footnote=tuple(notes),
    )


def positive_seconds(point: Point, seconds: float | None) -> float | None:
    """A time as it is drawn on a logarithmic axis, which has no place for none."""
    return seconds if seconds and seconds > 0 else None


def lines(points: Sequence[Point], name: str, style: int, value: Value) -> list[FigureSeries]:
    """Measured, predicted and bound lines of one series, those that have points."""
    series = [
        _line(points, name, SeriesKind.MEASURED, style, value),
        _line(points, f"{name}: predicted", SeriesKind.PREDICTED, style, value),
        _line(points, f"{name}: bound", SeriesKind.BOUND, style, value),
    ]
    return [line for line in series if line.x or line.missing]


FIELDS = {
    SeriesKind.MEASURED: ("median_seconds", "low_seconds", "high_seconds"),
    SeriesKind.PREDICTED: (
        "predicted_seconds",
        "predicted_low_80_seconds",
        "predicted_high_80_seconds",
    ),
    SeriesKind.BOUND: ("bound_seconds",),
    SeriesKind.BASELINE: ("median_seconds",),
}
"""Of a point: the time that is drawn, and the ends of its interval."""


def _line(
    points: Sequence[Point], label: str, kind: SeriesKind, style: int, value: Value
) -> FigureSeries:
    """Return one line by size; low and high are ends of y, whichever way y runs."""
    rows: list[Row] = []
    missing = set()
    for point in sorted(points, key=lambda point: point.size_bytes):
        middle, *ends = (value(point, getattr(point, field)) for field in FIELDS[kind])
        if point.size_bytes > 0 and middle is not None:
            known = [end for end in ends if end is not None]
            low, high = (min(*known, middle), max(*known, middle)) if known else (None, None)
            rows.append((float(point.size_bytes), middle, low, high, point.trusted))
        if point.size_bytes > 0 and kind == SeriesKind.MEASURED and point.status not in FINE:
            missing.add(float(point.size_bytes))
    joined = joinable([row[0] for row in rows])
    return series_of(label, kind, style, rows, joined=joined, missing=missing)


def joinable(sizes: Sequence[float]) -> bool:
    """True if lines between neighbouring sizes say something that was nearly measured."""
    gaps = [high / low for low, high in pairwise(sizes)]
    return len(sizes) >= FEWEST_JOINED and max(gaps) <= WIDEST_GAP


def shared_bounds(series: Sequence[FigureSeries]) -> list[FigureSeries]:
    """Join the bounds of all series where all are equal: a bound depends on groups, not on algorithms."""
    bounds = [line for line in series if line.kind == SeriesKind.BOUND]
    pairs = sorted(pair for line in bounds for pair in zip(line.x, line.y, strict=True))
    heights = dict(pairs)
    if not bounds or not all(math.isclose(heights[x], y, rel_tol=1e-6) for x, y in pairs):
        return [*series]
    sizes, values = tuple(heights), tuple(heights.values())
    shared = FigureSeries("bound", SeriesKind.BOUND, -1, sizes, values, joined=joinable(sizes))
    return [*(line for line in series if line.kind != SeriesKind.BOUND), shared]


def race_figures(group: Sequence[Point]) -> list[Figure]:
    """Figures of who is fastest: among measured points, and among simulated ones, which never race measured.

    Modes measure different things, so that each has a figure. Emulated ones race against nobody, not even
    each other; other groups do other work, and pairs have a figure of their own.
    """
    racing = [point for point in group if not (point.baseline or point.emulated or point.pair)]
    races = grouped(racing, Key(("simulated", "mode", *(axis.name for axis in WORK))))
    several = len({key[0] for key in races}) > 1
    figures = []
    for key, members in sorted(races.items(), key=str):
        figure = _race(members)
        if figure is not None:
            is_plain = all(getattr(members[0], axis.name) == axis.default for axis in WORK)
            work = [] if is_plain else [str(value) for value in key[2:]]
            mode = members[0].mode if members[0].mode != "streaming" else ""
            words = [figure.key, mode, *work, "simulated" if several and key[0] else ""]
            figures.append(replace(figure, key="-".join(word for word in words if word)))
    return figures


def _race(points: Sequence[Point]) -> Figure | None:
    """All series relative to the fastest at each size that two or more reached, with the crossovers.

    None where no size has two.
    """
    names = series_names(points)
    curves = _curves(points)
    counts = Counter(size for curve in curves.values() for size in curve)
    best = {
        size: min(curve[size].median for curve in curves.values() if size in curve)
        for size, count in counts.items()
        if count > 1
    }
    if not best:
        return None
    curves = {key: curve for key, curve in curves.items() if best.keys() & curve.keys()}
    crossings = crossovers({names[key]: curve for key, curve in curves.items()})

    def rank(key: SeriesKey) -> tuple[float, float]:
        # Who comes nearest to the fastest anywhere is drawn, then in the middle.
        curve = curves[key]
        ratios = sorted(
            interval.median / best[size] for size, interval in curve.items() if size in best
        )
        return ratios[0], ratios[len(ratios) // 2]

    drawn = sorted(sorted(curves, key=rank)[:MOST_SERIES], key=str)
    series = [
        _line(
            [p for p in points if SERIES(p) == key],
            names[key],
            SeriesKind.MEASURED,
            style,
            lambda p, seconds: (
                seconds / best[p.size_bytes] if seconds and p.size_bytes in best else None
            ),
        )
        for style, key in enumerate(drawn)
    ]
    notes = ["No crossover: nowhere does the leader's interval lie wholly above another's"]
    if crossings:
        below = "the first size measured at which its interval lies below"
        notes = [f"{'; '.join(crossings)}, {below}"]
    left_out = sorted(names[key] for key in curves if key not in drawn)
    notes += [f"Not drawn for want of room: {', '.join(left_out)}"] if left_out else []
    alone = sorted({size for curve in curves.values() for size in curve} - best.keys())
    if alone:
        notes.append(
            f"Not drawn, because only one was measured there: {', '.join(map(format_size, alone))}"
        )
    return Figure(
        key=f"algorithms-{group_key(points[0])}",
        topic="algorithms",
        title=title(points, f"which is fastest at which size, {points[0].mode}"),
        subtitle=subtitle(points),
        x=SIZE,
        y=SLOWDOWN,
        series=tuple(series),
        footnote=(*notes, *footnote(points)),
    )


def _curves(points: Sequence[Point]) -> dict[SeriesKey, dict[int, Interval]]:
    """Times of each series at each size, in the order of the series' keys; without those that have none."""
    curves: dict[SeriesKey, dict[int, Interval]] = defaultdict(dict)
    for point in sorted(points, key=lambda point: str(SERIES(point))):
        low, high = point.low_seconds, point.high_seconds
        # Imported points have no interval, so that nobody knows who leads.
        if has_size(point) and point.median_seconds and low is not None and high is not None:
            curves[SERIES(point)][point.size_bytes] = Interval(
                low, point.median_seconds, high, 0.0
            )
    return curves


def crossovers(curves: Mapping[str, Curve]) -> list[str]:
    """Return where one surely overtakes another; a size at which fewer than two were measured decides nothing."""
    crossings = []
    leader = ""
    for size in sorted({size for curve in curves.values() for size in curve}):
        there = {name: curve[size] for name, curve in curves.items() if size in curve}
        if len(there) < 2:
            continue
        fastest = min(there, key=lambda name: there[name].median)
        if leader not in there or not intervals_overlap(there[leader], there[fastest]):
            if leader in there:
                crossings.append(f"{fastest} overtakes {leader} by {format_size(size)}")
            leader = fastest
    return crossings
