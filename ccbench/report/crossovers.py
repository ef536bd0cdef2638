"""Where one algorithm overtakes another, told apart from noise."""

from __future__ import annotations

import math
from collections.abc import Mapping
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
    that cannot be told apart do not take turns. Sizes where fewer than two were measured decide nothing.
    """
    sizes = [size for size in _sizes(curves) if sum(size in curve for curve in curves.values()) > 1]
    found: list[Lead] = []
    crossings: list[Crossover] = []
    leader, start = "", 0.0
    for index, size in enumerate(sizes):
        fastest = _fastest(curves, size)
        if not leader:
            leader, start = fastest, float(size)
        elif not _holds(curves, leader, fastest, size):
            crossing = _crossing(curves, leader, fastest, sizes[: index + 1])
            end = crossing.size_bytes if crossing else float(size)
            found.append(Lead(leader, start, end))
            if crossing:
                crossings.append(crossing)
            leader, start = fastest, end
    if leader:
        found.append(Lead(leader, start, float(sizes[-1])))
    return tuple(found), tuple(crossings)


def _sizes(curves: Mapping[str, Curve]) -> list[int]:
    return sorted({size for curve in curves.values() for size in curve})


def _fastest(curves: Mapping[str, Curve], size: int) -> str:
    return min((name for name in curves if size in curves[name]), key=lambda name: curves[name][size].median)


def _holds(curves: Mapping[str, Curve], leader: str, fastest: str, size: int) -> bool:
    if leader == fastest:
        return True
    mine = curves[leader].get(size)
    return mine is not None and intervals_overlap(mine, curves[fastest][size])


def _crossing(curves: Mapping[str, Curve], before: str, after: str, sizes: list[int]) -> Crossover | None:
    """The last crossing of two medians up to the last of ``sizes``; None where one was not measured."""
    old, new = curves[before], curves[after]
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
