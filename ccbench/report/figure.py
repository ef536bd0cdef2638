"""A figure as data: what is drawn, where, with which words. Nothing here knows how to draw."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Literal

Scale = Literal["linear", "log2", "log10"]
Topic = Literal[
    "bandwidth", "time", "algorithms", "prediction", "ranks", "pairs", "sharing", "plan", "history", "nothing"
]  # fmt: skip
Unit = Literal["bytes", "seconds", "GB/s", "ratio", "share", "rank", "ranks", "run"]


class Kind(str, Enum):
    """What a series shows; the renderer has one look for each."""

    MEASURED = "measured"
    PREDICTED = "predicted"
    BOUND = "bound"
    BASELINE = "baseline"
    REFERENCE = "reference"


@dataclass(frozen=True)
class Axis:
    """One axis; values are in ``unit``, ticks are written in words people use."""

    label: str
    unit: Unit
    scale: Scale


@dataclass(frozen=True)
class Series:
    """Points of one line.

    low, high: ends of the interval of y, empty where there is none.
    trusted: False for points whose case was flagged, drawn hollow; empty means all are.
    style: number of the colour, marker and dash; the same number is the same thing in a figure.
    joined: whether a line between neighbours means anything.
    missing: x of cases without a result: a line is broken there, and a cross on the axis says so.
    """

    label: str
    kind: Kind
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


def measured_series(
    label: str, style: int, rows: Sequence[Row], *, joined: bool = True, missing: tuple[float, ...] = ()
) -> Series:
    """Return the measured line through ``rows``; intervals are drawn where every point has one."""
    known = [(low, high) for _, _, low, high, _ in rows if low is not None and high is not None]
    ends = known if len(known) == len(rows) else []
    return Series(
        label, Kind.MEASURED, style, tuple(row[0] for row in rows), tuple(row[1] for row in rows),
        tuple(low for low, _ in ends), tuple(high for _, high in ends), tuple(row[4] for row in rows),
        joined, missing,
    )  # fmt: skip


@dataclass(frozen=True)
class Span:
    """A stretch of the x axis where one series leads."""

    low: float
    high: float
    label: str
    style: int


@dataclass(frozen=True)
class Mark:
    """One x value worth a line: a crossover."""

    x: float
    label: str


@dataclass(frozen=True)
class Grid:
    """A map of cells, rows sources and columns targets; None is an empty cell.

    values: what the colour shows. texts: what stands in a cell, lines apart by a line feed; empty where cells
    are too small for any. marked: (row, column) of cells with a frame: findings.
    large_is_good: whether large values are; bad cells are dark either way.
    legend: lines beside the map.
    """

    values: tuple[tuple[float | None, ...], ...]
    texts: tuple[tuple[str, ...], ...]
    marked: tuple[tuple[int, int], ...]
    unit: str
    large_is_good: bool
    legend: tuple[str, ...] = ()

    @property
    def limits(self) -> tuple[float, float]:
        """Ends of the colours: from nothing, or to twice the least where less is better.

        Small differences shall look small.
        """
        known = [value for row in self.values for value in row if value is not None and math.isfinite(value)]
        low, high = min(known, default=0.0), max(known, default=1.0)
        return (0.0, high or 1.0) if self.large_is_good else (low, max(high, 2 * low) or 1.0)


@dataclass(frozen=True)
class Layer:
    """One colour of stacked bars: a value for every bar, from below in the order of the layers.

    hatched: drawn with stripes, so that a grey print tells it from its neighbours.
    """

    label: str
    style: int
    values: tuple[float, ...]
    hatched: bool = False


@dataclass(frozen=True)
class Bars:
    """Bars side by side, each of the same layers. names: below them. tops: short words above them.

    beside: layers of a narrow bar at each bar's right: what is no part of the sum.
    """

    names: tuple[str, ...]
    layers: tuple[Layer, ...]
    beside: tuple[Layer, ...] = ()
    tops: tuple[str, ...] = ()


@dataclass(frozen=True)
class Piece:
    """A stretch of time in a lane. text: written into it where there is room."""

    lane: int
    begin: float
    end: float
    style: int
    text: str = ""


@dataclass(frozen=True)
class Lanes:
    """Lanes below each other, the first on top, with pieces of time in them.

    legend: a word for every style that occurs. cut_at, cut: pieces behind ``cut_at`` are moved to the left by
    ``cut``, which is not drawn; 0 where nothing is left out.
    """

    names: tuple[str, ...]
    pieces: tuple[Piece, ...]
    legend: tuple[tuple[int, str], ...]
    cut_at: float = 0.0
    cut: float = 0.0


@dataclass(frozen=True)
class Figure:
    """Everything a renderer needs.

    key: unique within a report; becomes the file's name.
    footnote: lines of small print, in order of importance.
    message: shown instead of axes where there is nothing to draw.
    """

    key: str
    topic: Topic
    title: str
    subtitle: str
    x: Axis
    y: Axis
    series: tuple[Series, ...] = ()
    footnote: tuple[str, ...] = ()
    spans: tuple[Span, ...] = ()
    marks: tuple[Mark, ...] = ()
    message: str = ""
    grid: Grid | None = None
    bars: Bars | None = None
    lanes: Lanes | None = None
