"""What sharing costs: groups at once against one alone, with and without company, computing meanwhile.

Ratios compare two cases of one run that differ in that alone. Their interval is from the ends of both
cases' intervals, the low end of one against the high end of the other, which is wider than it need be. In
mode overlap the parts of a sample follow each other closely, so their ratios are taken sample by sample.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ccbench.cases import ALL_GROUPS, IDENTITY, OVERLAP
from ccbench.errors import UsageError
from ccbench.groups import parse_concurrent, parse_groups
from ccbench.results import Point
from ccbench.stats import rounds_interval


@dataclass(frozen=True)
class Ratio:
    """A ratio and its interval; low and high are None where an imported time has none."""

    middle: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class GroupsAtOnce:
    """All groups at once over one of them alone: above 1 they stand in each other's way."""

    together: Point
    alone: Point
    ratio: Ratio


@dataclass(frozen=True)
class Accompanied:
    """A collective beside another one, over the same without.

    whole: until both are over. own: until the collective itself is, None where the two were not timed apart.
    """

    beside: Point
    alone: Point
    whole: Ratio
    own: float | None


@dataclass(frozen=True)
class Overlapped:
    """A collective behind a computation.

    efficiency: the share of the shorter of the two that ran beside the longer. computing, communicating: how
    many times longer each took than alone, None where parts were not timed apart.
    """

    point: Point
    efficiency: Ratio
    computing: Ratio | None
    communicating: Ratio | None


@dataclass(frozen=True)
class Sharing:
    """What a report's cases say of sharing, each in the order of the cases."""

    groups: tuple[GroupsAtOnce, ...]
    beside: tuple[Accompanied, ...]
    overlap: tuple[Overlapped, ...]

    def __bool__(self) -> bool:
        return bool(self.groups or self.beside or self.overlap)


def sharing_of(points: Sequence[Point]) -> Sharing:
    """What ``points`` say of sharing; those without a speed, or of an emulation, say nothing."""
    timed = [one for one in points if one.is_timed and not (one.emulated or one.baseline)]
    overlapped = [found for point in timed if (found := _overlapped(point)) is not None]
    return Sharing(tuple(_at_once(timed)), tuple(_accompanied(timed)), tuple(overlapped))


def _alike(points: Iterable[Point], name: str) -> list[list[Point]]:
    """Points that share everything asked of them but the field ``name``, where there are several."""
    found: dict[tuple[object, ...], list[Point]] = defaultdict(list)
    fields = ["run", "source", "simulated", *(axis.name for axis in IDENTITY if axis.name != name)]
    for point in points:
        found[tuple(getattr(point, one) for one in fields)].append(point)
    return [members for members in found.values() if len(members) > 1]


def _at_once(points: Sequence[Point]) -> Iterable[GroupsAtOnce]:
    for members in _alike([point for point in points if point.groups], "active_group"):
        together = [one for one in members if one.active_group == ALL_GROUPS]
        for alone in members if together else ():
            if alone.active_group != ALL_GROUPS:
                yield GroupsAtOnce(together[0], alone, _ratio(together[0], alone))


def _accompanied(points: Sequence[Point]) -> Iterable[Accompanied]:
    for members in _alike(points, "concurrent"):
        plain = [one for one in members if not one.concurrent]
        for one in members if plain else ():
            if one.concurrent:
                yield Accompanied(one, plain[0], _ratio(one, plain[0]), _own_share(one, plain[0]))


def _own_share(beside: Point, alone: Point) -> float | None:
    """The collective's own time, to the end of its slowest group, over that alone."""
    own = _own_parts(beside)
    if not own or not alone.median_seconds:
        return None
    return max(beside.parts[place][1] for place in range(own)) / alone.median_seconds


def _own_parts(point: Point) -> int:
    """How many of a case's parts are its own: one for each group, or one of two; 0 where it is not known."""
    try:
        asked = parse_concurrent(point.concurrent)
        own = len(parse_groups(point.groups, point.ranks))
        others = len(parse_groups(asked.groups, point.ranks)) if asked.own_groups else own
    except UsageError:  # of a stored row that no version of ccbench wrote
        return 0
    return own if len(point.parts) == own + others else int(len(point.parts) == 2)


def _ratio(upper: Point, lower: Point) -> Ratio:
    return Ratio(
        _share(upper.median_seconds, lower.median_seconds) or 0.0,
        _share(upper.low_seconds, lower.high_seconds),
        _share(upper.high_seconds, lower.low_seconds),
    )


def _share(upper: float | None, lower: float | None) -> float | None:
    return None if upper is None or not lower else upper / lower


def _overlapped(point: Point) -> Overlapped | None:
    if point.mode != OVERLAP or point.overlap_efficiency is None:
        return None
    parts = point.group_samples_seconds
    apart = len(parts) == 4 and len({len(part) for part in parts}) == 1 and len(parts[0]) > 0

    def slowed(meanwhile: int, alone: int) -> Ratio | None:
        if not apart or not all(parts[alone] > 0):
            return None
        ratios = (parts[meanwhile] / parts[alone]).tolist()
        interval = rounds_interval(ratios, point.round_samples, point.interval_confidence or 0.95)
        return Ratio(interval.median, interval.low, interval.high)

    efficiency = Ratio(point.overlap_efficiency, point.overlap_low, point.overlap_high)
    return Overlapped(point, efficiency, slowed(2, 0), slowed(3, 1))
