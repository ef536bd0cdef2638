"""Points to look at first: faster than the bound allows, or far from the prediction."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ccbench.cases import Status
from ccbench.report.points import points_of
from ccbench.report.text import percent, plural
from ccbench.results import Point, Run
from ccbench.units import format_ratio, format_seconds

FAR = 0.30
"""A time this far from the prediction, as a share of it, is listed."""

MOST_SHOWN = 5
"""Lines on a screen; files list all."""


@dataclass(frozen=True)
class Miss:
    """One point and what is wrong with it; ``ratio``: measured time over the predicted, or the bound's."""

    point: Point
    beats_bound: bool
    ratio: float

    def __str__(self) -> str:
        point = self.point
        measured = format_seconds(point.median_seconds or 0.0)
        if self.beats_bound:
            bound = format_seconds(point.bound_seconds or 0.0)
            share = percent(point.beaten_share or 0.0)
            what = f"{measured} beats" if self.ratio <= 1 else f"{share} of its samples beat"
            return f"{point.label}: {what} the bound of {bound}"
        text = f"{point.label}: {measured}, {_share(self.ratio)} the prediction"
        if not point.trusted:
            text += f" (flagged: {point.flags[0]})"
        return text + (f"; costs most: {point.bottleneck}" if point.bottleneck else "")


def _share(ratio: float) -> str:
    return format_ratio(ratio) if ratio >= 1 else f"{ratio:.0%} of"


def misses(points: Sequence[Point]) -> tuple[Miss, ...]:
    """Those that beat their bound, the most first, then those far from their prediction, the worst first.

    One rank has no bound, simulated points stray from no prediction, and emulated ones have no time.
    """
    ok = [point for point in points if point.status == Status.OK and not (point.emulated or point.baseline)]
    beating = [Miss(point, True, 1.0 / (point.bound_share or 1.0)) for point in ok if point.beats_bound]
    far = [
        Miss(point, False, point.median_seconds / point.predicted_seconds)
        for point in ok
        if not (point.beats_bound or point.simulated)
        and point.median_seconds
        and point.predicted_seconds
        and point.group_ranks > 1
        and abs(point.median_seconds / point.predicted_seconds - 1) > FAR
    ]
    beating.sort(key=lambda miss: miss.ratio)
    far.sort(key=lambda miss: -abs(math.log(miss.ratio)))
    return (*beating, *far)


def first_lines(run: Run) -> list[str]:
    """``miss_lines`` of a run's cases, for a screen."""
    return miss_lines(points_of(run))


def miss_lines(points: Sequence[Point], most: int | None = MOST_SHOWN) -> list[str]:
    """A headline and the first ``most`` misses (None: all of them); nothing where there is none."""
    found = misses(points)
    if not found:
        return []
    beating = sum(miss.beats_bound for miss in found)
    parts = [f"{plural(beating, 'case')} faster than the bound"] if beating else []
    if len(found) > beating:
        parts.append(f"{plural(len(found) - beating, 'case')} more than {FAR:.0%} from the prediction")
    shown = found if most is None else found[:most]
    rest = len(found) - len(shown)
    lines = [f"Look first at {' and '.join(parts)}:"]
    lines += [f"  {miss}" for miss in shown]
    return lines + ([f"  ... and {rest} more, all in the report's page"] if rest else [])
