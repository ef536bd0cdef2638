"""Dips: sizes in a row that take longer than the other sizes of the same run imply, at any speed of the machine.

A verdict against other machines passes a network that loses most of its bandwidth between two sizes, where
the rest makes up for it, and one size that is broken among many. Levels of the model are fitted to the sizes
beside a dip and imply those in it (``implied_by``); a dip must show in the figures alone as well, without a
model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import inf
from statistics import median

from ccbench.errors import MachineError
from ccbench.model.calibrated import FEWEST_TO_HOLD_OUT, implied_by
from ccbench.model.library import LibraryRequest, LibrarySystem
from ccbench.model.library.calibration import Observation
from ccbench.results import Point
from ccbench.results.keys import CURVE, grouped
from ccbench.results.observed import sized
from ccbench.units import format_ratio, format_size

COST = 1.5
"""Times what other sizes imply, above which a size belongs to a dip."""

CLEAR = 1.4
"""Times what a smaller size's bus bandwidth or a larger size's time give, at one size of a dip at least: of
published logs that are called healthy no dip in both placements has more than 1.31."""

OCTAVE, SPARSE = 2, 4
"""Last size of a dip over its first; of one size alone, the step to its neighbours."""

ALONE = 2.5
"""Times what other sizes imply, above which one size alone is a dip; TORN: in one placement alone, and at the
first size, over a larger one's time, since launches warm up there."""

TORN = 10.0

_LINES = CURVE.without("in_place").beside("source", "source_table")


@dataclass(frozen=True)
class Dip:
    """Sizes in bytes from ``first`` to ``last`` that take ``ratio`` times what other sizes imply, in the median."""

    first_bytes: int
    last_bytes: int
    ratio: float

    @property
    def text(self) -> str:
        """``2.6x slower from 16 MiB to 128 MiB than its own other sizes imply``."""
        ends = dict.fromkeys(map(format_size, (self.first_bytes, self.last_bytes)))
        where = f"{'from' if len(ends) > 1 else 'at'} {' to '.join(ends)}"
        return f"{format_ratio(self.ratio)} slower {where} than its own other sizes imply"


@dataclass(frozen=True)
class _Excess:
    """Time of one size over: what is implied, the most of 95 %, and what one other size gives by itself."""

    implied: float
    most: float
    plain: float


def dips_of(
    system: LibrarySystem, request: LibraryRequest, points: Sequence[Point]
) -> tuple[Dip, ...]:
    """Dips among ``points`` of one collective, which have predictions; in place and out of place agree."""
    usable = [point for point in points if point.trusted and point.size_bytes]
    return tuple(
        dip
        for members in grouped(usable, _LINES).values()
        for dip in _dips(system, request, members)
    )


def _dips(system: LibrarySystem, request: LibraryRequest, points: Sequence[Point]) -> list[Dip]:
    placements = list(grouped(points, lambda point: point.in_place).values())
    excesses = [_excesses(system, request, placement) for placement in placements]
    sizes = sorted({point.size_bytes for point in points})
    # What goes wrong in one placement only was a disturbance, unless it costs all.
    least: dict[int, _Excess] = {}
    for size in sizes:
        members = [own[size] for own in excesses if size in own and own[size].most > 1]
        torn = [each for each in members if min(each.implied, each.plain) > TORN]
        agree = len(members) == len(excesses) and all(each.implied > COST for each in members)
        if torn or agree:
            least[size] = min(torn or members, key=lambda each: each.plain)
    dips = [
        Dip(line[0].size_bytes, line[0].size_bytes, ratio)
        for line in (sorted(own, key=lambda point: point.size_bytes) for own in placements)
        if (ratio := _over_larger(line)) > TORN
    ][:1]
    for slow, band in groupby(sizes, key=lambda size: size in least):
        sizes_slow = list(band)
        first, last = sizes_slow[0], sizes_slow[-1]
        if not slow or max(least[size].plain for size in sizes_slow) <= CLEAR:
            continue
        # A dip has sizes on either side.
        before, after = sizes[sizes.index(first) - 1], sizes[sizes.index(last) + 1]
        sparse = first >= SPARSE * before and after >= SPARSE * last
        if last >= OCTAVE * first or sparse or least[first].implied > ALONE:
            dips.append(Dip(first, last, median(least[size].implied for size in sizes_slow)))
    return dips


def _over_larger(line: Sequence[Point]) -> float:
    """Time of the first size of ``line`` over the least of any larger one's."""
    first, *larger = (point.median_seconds or 0.0 for point in line)
    return first / min(filter(None, larger), default=inf)


def _excesses(
    system: LibrarySystem, request: LibraryRequest, points: Sequence[Point]
) -> Mapping[int, _Excess]:
    """Excess of sizes between the first and the last that are far above the level on both sides, by size."""
    line = sorted(points, key=lambda point: point.size_bytes)
    sizes = [point.size_bytes for point in line]
    seconds = [point.median_seconds or 0.0 for point in line]
    levels = [
        time / (point.predicted_seconds or time)
        for time, point in zip(seconds, line, strict=True)
    ]
    inner = range(1, len(line) - 1)
    slow = [
        place
        for place in inner
        if levels[place] > COST * max(min(levels[:place]), min(levels[place + 1 :]))
    ]
    rest = [place for place in range(len(line)) if place not in slow]
    if not slow or len(rest) < FEWEST_TO_HOLD_OUT:
        return {}
    asked = sized(request, sizes, line[0].dtype, line[0].in_place)
    try:
        implied = implied_by(Observation(system, asked, tuple(seconds)), rest, slow)
    except MachineError:
        return {}
    excesses = {}
    for place, prediction in implied.items():
        size, time = sizes[place], seconds[place]
        assert prediction.interval is not None  # every prediction of a library has one
        smaller = min(seconds[at] * size / sizes[at] for at in range(place))
        excesses[size] = _Excess(
            time / prediction.predicted_seconds,
            (line[place].low_seconds or time) / prediction.interval.high_95_seconds,
            time / min(smaller, *seconds[place + 1 :]),
        )
    return excesses
