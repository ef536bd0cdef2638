"""A figure as data: what is drawn, where, with which words. Nothing here knows how to draw.

Ends, ticks and labels of axes are alike in every renderer: KiB and us, never powers of ten.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Literal

from ccbench.units import format_seconds, format_size

Scale = Literal["linear", "log2", "log10"]
Topic = Literal[
    "bandwidth",
    "time",
    "algorithms",
    "prediction",
    "ranks",
    "pairs",
    "nothing",
]
Unit = Literal["bytes", "seconds", "GB/s", "ratio", "share", "rank"]


class SeriesKind(str, Enum):
    """Meaning of a series; the renderer has one look for each."""

    MEASURED = "measured"
    PREDICTED = "predicted"
    BOUND = "bound"
    BASELINE = "baseline"
    REFERENCE = "reference"


@dataclass(frozen=True)
class FigureAxis:
    """One axis; values are in ``unit``, ticks are written in words people use."""

    label: str
    unit: Unit
    scale: Scale


@dataclass(frozen=True)
class FigureSeries:
    """Points of one line.

    low, high: ends of the interval of y, empty where there is none.
    trusted: False for points whose case was flagged, drawn hollow; empty means all are.
    style: number of the colour, marker and dash; the same number is the same thing in a figure.
    joined: whether a line between neighbours means anything.
    missing: x of cases without a result: a line is broken there, and a cross on the axis says so.
    """

    label: str
    kind: SeriesKind
    style: int
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    trusted: tuple[bool, ...] = ()
    joined: bool = True
    missing: tuple[float, ...] = ()


Row = tuple[float, float, float | None, float | None, bool]
"""x, y, the ends of the interval of y, and whether the point is trusted."""


def series_of(
    label: str,
    kind: SeriesKind,
    style: int,
    rows: Sequence[Row],
    *,
    joined: bool = False,
    missing: Iterable[float] = (),
) -> FigureSeries:
    """Return the line through ``rows``; intervals are drawn where every point has one."""
    x, y, low, high, trusted = zip(*rows, strict=True) if rows else ((),) * 5
    if None in (*low, *high):
        low, high = (), ()
    if kind != SeriesKind.MEASURED:
        trusted = ()
    return FigureSeries(
        label, kind, style, x, y, low, high, trusted, joined, tuple(sorted(missing))
    )


@dataclass(frozen=True)
class Grid:
    """A map of cells, rows sources and columns targets; None is an empty cell.

    values: what the colour shows. texts: what stands in a cell, lines apart by a line feed; empty where cells
    are too small for any. marked: (row, column) of cells with a frame: findings.
    large_is_good: whether large values are; bad cells are dark either way.
    legend: lines beside the map. names: of rows and columns alike; empty where these are numbers.
    """

    values: tuple[tuple[float | None, ...], ...]
    texts: tuple[tuple[str, ...], ...]
    marked: tuple[tuple[int, int], ...]
    unit: str
    large_is_good: bool
    legend: tuple[str, ...] = ()
    names: tuple[str, ...] = ()

    @property
    def limits(self) -> tuple[float, float]:
        """Ends of the colours: from nothing, or to twice the least where less is better.

        Small differences shall look small.
        """
        known = [
            value
            for row in self.values
            for value in row
            if value is not None and math.isfinite(value)
        ]
        low, high = min(known, default=0.0), max(known, default=1.0)
        return (0.0, high or 1.0) if self.large_is_good else (low, max(high, 2 * low) or 1.0)


@dataclass(frozen=True)
class Figure:
    """Data of a figure, all that a renderer needs.

    key: unique within a report; becomes the file's name.
    footnote: lines of small print, in order of importance.
    message: shown instead of axes where there is nothing to draw.
    """

    key: str
    topic: Topic
    title: str
    subtitle: str
    x: FigureAxis
    y: FigureAxis
    series: tuple[FigureSeries, ...] = ()
    footnote: tuple[str, ...] = ()
    message: str = ""
    grid: Grid | None = None


MARGIN = 0.04
FAR_BOUND = 4.0
"""A bound this many times above everything else is left outside a linear axis, and that is written there."""

BOUND_BELOW = 30.0
"""Factor below all other values by which a bound may stretch a logarithmic axis."""


def ends_of(figure: Figure) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return the ends of x and of y; ``figure`` has a series with points."""
    xs = [x for series in figure.series for x in series.x]
    ys = [
        y
        for one in figure.series
        if one.kind != SeriesKind.BOUND
        for y in (*one.y, *one.low, *one.high)
    ]
    bounds = [y for one in figure.series if one.kind == SeriesKind.BOUND for y in one.y]
    # A far bound would flatten all else.
    if ys and figure.y.scale == "linear":
        ys += [] if far_note(figure) else bounds
    else:
        ys += [y for y in bounds if y * BOUND_BELOW >= min(ys, default=0.0)]
    if figure.topic == "prediction":
        xs = ys = xs + ys  # one scale, so that alike lies on the diagonal
    return limits(figure.x, xs), limits(figure.y, ys)


def far_note(figure: Figure) -> str:
    """Words for a bound that lies above a linear axis, which it would squeeze all else to the foot of."""
    near = [y for one in figure.series if one.kind != SeriesKind.BOUND for y in one.y]
    highest = max(
        (y for one in figure.series if one.kind == SeriesKind.BOUND for y in one.y), default=0.0
    )
    if figure.y.scale != "linear" or not near or highest <= FAR_BOUND * max(near):
        return ""
    return f"bound rises to {highest:.3g} GB/s, above this axis"


def limits(axis: FigureAxis, values: Sequence[float]) -> tuple[float, float]:
    """Ends of an axis with a little room around ``values``; never empty, even for one value."""
    if axis.unit == "rank":
        return -0.6, max(values) + 0.6
    if axis.scale == "linear":
        if axis.unit == "ratio":
            low, high = min(*values, 0.99), max(*values, 1.01)
            return low - 0.06 * (high - low), high + 0.06 * (high - low)
        return 0.0, max(values) * 1.08 or 1.0
    low, high = min(values), max(values)
    if axis.unit == "ratio":
        low, high = 1.0, max(high, 1.25)
    # A logarithmic axis shows at least a factor of four: less would make noise look like a trend.
    span = math.log(high / low)
    if span < math.log(4) and axis.unit != "ratio":
        low, high = low / 2, high * 2
        span = math.log(high / low)
    factor = math.exp(MARGIN * span)
    return low / factor, high * factor


def value_text(axis: FigureAxis, value: float) -> str:
    """A value with its unit, as the title of a point says it."""
    rounded = value if axis.unit == "bytes" else float(f"{value:.4g}")
    return tick_text(axis, rounded) + (" GB/s" if axis.unit == "GB/s" else "")


def tick_text(axis: FigureAxis, value: float) -> str:
    """Text at a tick; a size below one byte has none."""
    if axis.unit == "bytes":
        return format_size(round(value)) if value >= 1 else ""
    if axis.unit == "seconds":
        return format_seconds(value)
    if axis.unit == "ratio":
        return f"{value:g}x"
    return f"{value:g}"
