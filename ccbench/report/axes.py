"""Ends, ticks and labels of axes, alike in every renderer: KiB and us, never powers of ten."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from ccbench.report.figure import Axis, Figure, Kind
from ccbench.units import format_seconds, format_size

MOST_TICKS = 9
MARGIN = 0.04
FAR_BOUND = 4.0
"""A bound this many times above everything else is left outside a linear axis, and that is written there."""

BOUND_BELOW = 30.0
"""How far below all other values a bound may stretch a logarithmic axis."""


@dataclass(frozen=True)
class Frame:
    """One axis as it is drawn. ticks: places and texts; None leaves them to the renderer."""

    label: str
    low: float
    high: float
    ticks: tuple[tuple[float, str], ...] | None


def frames(figure: Figure) -> tuple[Frame, Frame]:
    """Return the frames of x and y; ``figure`` has a series with points."""
    xs, ys = [x for series in figure.series for x in series.x], _heights(figure)
    both = xs + ys if figure.topic == "prediction" else []  # one scale, so that alike lies on the diagonal
    return _frame(figure.x, both or xs), _frame(figure.y, both or ys)


def _frame(axis: Axis, values: Sequence[float]) -> Frame:
    low, high = limits(axis, values)
    places = tick_values(axis, low, high, values)
    ticks = None if places is None else tuple((place, tick_text(axis, place)) for place in places)
    return Frame(f"{axis.label} (GB/s)" if axis.unit == "GB/s" else axis.label, low, high, ticks)


def _heights(figure: Figure) -> list[float]:
    """Values of y that the axis must hold: a far bound would flatten all else."""
    near = [y for one in figure.series if one.kind != Kind.BOUND for y in (*one.y, *one.low, *one.high)]
    bounds = [y for one in figure.series if one.kind == Kind.BOUND for y in one.y]
    if near and figure.y.scale == "linear":
        return near if far_note(figure) else near + bounds
    return near + [y for y in bounds if y * BOUND_BELOW >= min(near, default=0.0)]


def far_note(figure: Figure) -> str:
    """Words for a bound that lies above a linear axis, which it would squeeze all else to the foot of."""
    near = [y for one in figure.series if one.kind != Kind.BOUND for y in one.y]
    highest = max((y for one in figure.series if one.kind == Kind.BOUND for y in one.y), default=0.0)
    if figure.y.scale != "linear" or not near or highest <= FAR_BOUND * max(near):
        return ""
    return f"bound rises to {highest:.3g} GB/s, above this axis"


def limits(axis: Axis, values: Sequence[float]) -> tuple[float, float]:
    """Ends of an axis with a little room around ``values``; never empty, even for one value."""
    if axis.unit == "rank":
        return -0.6, max(values) + 0.6
    if axis.unit == "run":
        return min(values) - 0.6, max(values) + 0.6
    if axis.scale == "linear":
        if axis.unit == "seconds":  # levels near each other shall be told apart
            margin = 0.08 * (max(values) - min(values)) or 0.05 * max(values)
            return max(0.0, min(values) - margin), max(values) + margin
        if axis.unit == "ratio":
            low, high = min(*values, 0.99), max(*values, 1.01)
            return low - 0.06 * (high - low), high + 0.06 * (high - low)
        return 0.0, max(values) * 1.08 or 1.0
    low, high = min(values), max(values)
    if axis.unit == "ratio":
        low, high = 1.0, max(high, 1.25)
    span = math.log(high / low)
    if span < math.log(4) and axis.unit != "ratio":
        low, high = low / 2, high * 2
        span = math.log(high / low)
    factor = math.exp(MARGIN * span)
    return low / factor, high * factor


def tick_values(axis: Axis, low: float, high: float, values: Sequence[float] = ()) -> list[float] | None:
    """Places of ticks between ``low`` and ``high``; None leaves them to matplotlib.

    Few sizes that lie well apart are their own ticks; otherwise ticks are round numbers.
    """
    if axis.unit in ("rank", "run"):
        count = int(high) + 1
        step = max(1, 2 ** math.ceil(math.log2(count / 16))) if count > 16 else 1
        return [float(rank) for rank in range(0, count, step)]
    if axis.scale == "log2":
        own = sorted(set(values))
        narrowest = math.log(high / low) / (1.5 * MOST_TICKS)
        apart = all(math.log(then / now) >= narrowest for now, then in pairwise(own))
        if len(own) <= MOST_TICKS and apart and (len(own) > 2 or axis.unit == "ranks"):
            return own
        first, last = math.ceil(math.log2(low)), math.floor(math.log2(high))
        # 1 KiB is among the ticks for steps 1, 2 and 5, and so are 1 MiB and 1 GiB.
        step = next((one for one in (1, 2, 3, 5) if (last - first) // one < MOST_TICKS), 10)
        first += -first % step
        return [2.0**power for power in range(first, last + 1, step)] or [low]
    if axis.unit == "seconds" and axis.scale == "linear":
        return [low + share * (high - low) for share in (0.0, 0.25, 0.5, 0.75, 1.0)]
    if axis.scale == "log10":
        return _decimal_ticks(low, high)
    return None


def _decimal_ticks(low: float, high: float) -> list[float]:
    """1-2-5 ticks, thinned to 1-3 or 1 alone where there would be too many."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in ((1, 1.5, 2, 3, 4, 5, 6, 8), (1, 2, 3, 5), (1, 2, 5), (1, 3), (1,)):
        places = [step * 10.0**decade for decade in decades for step in steps]
        inside = [place for place in places if low <= place * (1 + 1e-9) and place <= high * (1 + 1e-9)]
        if len(inside) <= MOST_TICKS:
            return inside or [low]
    every = math.ceil(len(inside) / MOST_TICKS)
    return inside[::every]


def tick_text(axis: Axis, value: float) -> str:
    """What stands at a tick."""
    if axis.unit == "bytes":
        return format_size(round(value)) if value >= 1 else ""
    if axis.unit == "seconds":
        return format_seconds(value)
    if axis.unit == "ratio":
        return f"{value:g}x"
    return f"{value:g}"
