"""Where one algorithm overtakes another, told apart from noise."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ccbench.stats import Interval, intervals_overlap

Curve = Mapping[int, Interval]
"""Size in bytes -> time in seconds."""


@dataclass(frozen=True)
class Crossover:
    """``after`` is faster than ``before`` from about ``size_bytes`` on.

    size_bytes: where the medians' straight lines cross on log-log axes, between two measured sizes.
    low_bytes, high_bytes: the neighbouring measured sizes around it.
    """

    before: str
    after: str
    size_bytes: float
    low_bytes: int
    high_bytes: int


@dataclass(frozen=True)
class Lead:
    """``name`` leads, or cannot be told from the leader, from ``low_bytes`` to ``high_bytes``."""

    name: str
    low_bytes: float
    high_bytes: float


def leads(curves: Mapping[str, Curve]) -> tuple[tuple[Lead, ...], tuple[Crossover, ...]]:
    """Who leads over which sizes, and the crossovers between.

    The leader keeps its place until its interval lies wholly above that of the fastest: two algorithms
    that cannot be told apart do not take turns. Sizes where fewer than two were measured decide nothing, so
    a lead ends before them; and it covers no size at which the leader itself was not measured.
    """
    sizes = sorted({size for curve in curves.values() for size in curve})
    found: list[Lead] = []
    crossings: list[Crossover] = []
    leader, start, last = "", math.nan, 0
    for index, size in enumerate(sizes):
        if sum(size in curve for curve in curves.values()) < 2:
            if not math.isnan(start):
                found.append(Lead(leader, start, float(last)))
            start = math.nan
            continue
        fastest = _fastest(curves, size)
        if not leader or not _holds(curves, leader, fastest, size):
            crossing = _crossing(curves, leader, fastest, sizes[: index + 1]) if leader else None
            crossings += [crossing] if crossing else []
            end, begin = _border(crossing, start, last, size, curves[fastest], sizes)
            if not math.isnan(start):
                found.append(Lead(leader, start, end))
            leader, start = fastest, begin
        elif math.isnan(start):
            start = float(size)
        last = size
    if not math.isnan(start):
        found.append(Lead(leader, start, float(last)))
    return tuple(found), tuple(crossings)


def _border(
    crossing: Crossover | None, start: float, last: int, size: int, new: Curve, sizes: Sequence[int]
) -> tuple[float, float]:
    """Where the old lead, that began at ``start``, ends and the new one begins.

    That is the crossing, unless it is unknown or a size was measured between it and ``size`` where the new
    leader was not: then the old lead ends at the ``last`` size it was seen at.
    """
    if crossing is None or math.isnan(start) or crossing.size_bytes < start:
        return float(last), float(size)
    if any(crossing.size_bytes <= one < size and one not in new for one in sizes):
        return float(last), float(size)
    return crossing.size_bytes, crossing.size_bytes


def _fastest(curves: Mapping[str, Curve], size: int) -> str:
    return min((name for name in curves if size in curves[name]), key=lambda name: curves[name][size].median)


def _holds(curves: Mapping[str, Curve], leader: str, fastest: str, size: int) -> bool:
    if leader == fastest:
        return True
    mine = curves[leader].get(size)
    return mine is not None and intervals_overlap(mine, curves[fastest][size])


def _crossing(curves: Mapping[str, Curve], before: str, after: str, sizes: Sequence[int]) -> Crossover | None:
    """The last crossing of two medians up to the last of ``sizes``; None where one was not measured."""
    old, new = curves[before], curves[after]
    if sizes[-1] not in old:
        return None
    shared = [size for size in sizes if size in old and size in new]
    for low, high in reversed(list(pairwise(shared))):
        at_low = _gap(old[low].median, new[low].median)
        at_high = _gap(old[high].median, new[high].median)
        if at_low is None or at_high is None:
            return None
        if at_low <= 0 < at_high:
            share = -at_low / (at_high - at_low)
            size = math.exp(math.log(low) + share * (math.log(high) - math.log(low)))
            return Crossover(before, after, size, low, high)
    return None


def _gap(old_seconds: float, new_seconds: float) -> float | None:
    """Logarithm of old over new: positive where the new one is faster."""
    if old_seconds <= 0 or new_seconds <= 0:
        return None
    return math.log(old_seconds / new_seconds)
