"""Figures as what the page's script draws: plain values, short names, no words that are not shown.

One more renderer of ``ccbench.report.figure``. Colours that depend on the theme are the words ``ink``
and ``grey``, which the script replaces.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ccbench.report.axes import bound_is_far, heights, limits, tick_text, tick_values
from ccbench.report.figure import Axis, Figure, Grid, Kind, Series
from ccbench.report.matplotlib_renderer import COLOURS

SYMBOLS = ("circle", "square", "triangle-up", "diamond", "triangle-down", "pentagon", "x", "triangle-left")
DASHES = {Kind.MEASURED: "solid", Kind.PREDICTED: "dash", Kind.BOUND: "dot", Kind.BASELINE: "solid",
          Kind.REFERENCE: "dash"}  # fmt: skip
BASELINE_DASHES = ("solid", "dashdot", "longdash", "dash")
LONE_SYMBOLS = {Kind.PREDICTED: "line-ew", Kind.BOUND: "cross-thin"}
"""Of predictions and bounds that no line joins: strokes, which no measured series has."""

SIGNIFICANT_DIGITS = 6
"""Of every number in the page; nobody reads more from a picture."""


def plot(figure: Figure) -> dict[str, Any]:
    """What the script needs to draw ``figure``."""
    drawn: dict[str, Any] = {"key": figure.key, "topic": figure.topic, "message": figure.message}
    if figure.topic == "nothing":
        return drawn
    if figure.grid is not None:
        return {**drawn, "x": _words(figure.x), "y": _words(figure.y), "grid": _grid(figure.grid)}
    xs = [x for series in figure.series for x in series.x]
    ys = heights(figure)
    if not xs or not ys:
        return {**drawn, "topic": "nothing", "message": "No case has a speed."}
    both = xs + ys if figure.topic == "prediction" else None
    return {
        **drawn,
        "x": _axis(figure.x, both or xs),
        "y": _axis(figure.y, both or _within_sight(figure, ys)),
        "series": [_series(one) for one in figure.series],
        "spans": [[_short(one.low), _short(one.high), one.label, _colour(one.style)] for one in figure.spans],
        "marks": [[_short(one.x), one.label] for one in figure.marks],
        "note": _far_note(figure),
    }


BOUND_BELOW = 30.0
"""How far below all measured times a bound may stretch a logarithmic axis of time."""


def _within_sight(figure: Figure, ys: Sequence[float]) -> list[float]:
    """Values of y that the axis must hold: bounds of a few bytes, next to nothing, would flatten the rest."""
    if figure.topic != "time":
        return list(ys)
    near = [y for one in figure.series if one.kind != Kind.BOUND for y in one.y]
    lowest = min(near, default=0.0) / BOUND_BELOW
    return [y for y in ys if y >= lowest] or list(ys)


def _far_note(figure: Figure) -> str:
    if figure.topic != "bandwidth" or not bound_is_far(figure):
        return ""
    highest = max(value for one in figure.series if one.kind == Kind.BOUND for value in one.y)
    return f"bound rises to {highest:.3g} GB/s, above this axis"


def _words(axis: Axis) -> dict[str, Any]:
    return {"label": axis.label, "unit": axis.unit, "log": axis.scale != "linear"}


def _axis(axis: Axis, values: Sequence[float]) -> dict[str, Any]:
    low, high = limits(axis, values)
    places = tick_values(axis, low, high, values)
    label = f"{axis.label} (GB/s)" if axis.unit == "GB/s" else axis.label
    found = {**_words(axis), "label": label, "range": [_short(low), _short(high)]}
    if places is not None:
        found["ticks"] = [[_short(place), tick_text(axis, place)] for place in places]
    return found


def _series(one: Series) -> dict[str, Any]:
    found: dict[str, Any] = {
        "label": one.label,
        "kind": one.kind.value,
        "colour": _series_colour(one),
        "symbol": LONE_SYMBOLS.get(one.kind, SYMBOLS[one.style % len(SYMBOLS)]),
        "dash": BASELINE_DASHES[one.style % 4] if one.kind == Kind.BASELINE else DASHES[one.kind],
        "x": [_short(value) for value in one.x],
        "y": [_short(value) for value in one.y],
        "joined": one.joined,
    }
    if one.low:
        found |= {"low": [_short(value) for value in one.low], "high": [_short(value) for value in one.high]}
    if not all(one.trusted):
        found["doubtful"] = [place for place, trusted in enumerate(one.trusted) if not trusted]
    if one.missing:
        found["missing"] = [_short(value) for value in one.missing]
    return found


def _series_colour(one: Series) -> str:
    if one.kind == Kind.BASELINE:
        return "grey"
    return _colour(one.style)


def _colour(style: int) -> str:
    return "ink" if style < 0 else COLOURS[style % len(COLOURS)]


def _grid(grid: Grid) -> dict[str, Any]:
    known = [value for row in grid.values for value in row if value is not None and math.isfinite(value)]
    low, high = (min(known), max(known)) if known else (0.0, 1.0)
    return {
        "values": [[None if value is None else _short(value) for value in row] for row in grid.values],
        "texts": [list(row) for row in grid.texts],
        "marked": [list(cell) for cell in grid.marked],
        "unit": grid.unit,
        "good": grid.large_is_good,
        "range": [0.0 if grid.large_is_good else _short(min(low, high / 2)), _short(high or 1.0)],
        "legend": list(grid.legend),
    }


def _short(value: float) -> float | int | None:
    """``value`` with SIGNIFICANT_DIGITS; None for what JSON cannot say."""
    if not math.isfinite(value):
        return None
    short = float(f"{value:.{SIGNIFICANT_DIGITS}g}")
    # Sizes are whole numbers that people compare: all their digits stay.
    if value == int(value) and abs(value) < 2**53:
        return int(value)
    return short
