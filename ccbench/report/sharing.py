"""Costs of sharing: groups at once against one alone, with and without company, computing meanwhile.

Ratios compare two cases of one run that differ in that alone. Their interval is from the ends of both
cases' intervals, the low end of one against the high end of the other, which is wider than it need be. In
mode overlap the parts of a sample follow each other closely, so their ratios are taken sample by sample.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

from ccbench.cases.axes import ALL_GROUPS, OVERLAP
from ccbench.report.present import ShownColumn, Table
from ccbench.report.wording import DOUBTFUL
from ccbench.results import Point
from ccbench.results.keys import POINT, grouped
from ccbench.units import format_seconds, plain

LONGEST_CASE = 130

TEXT = (
    "Time of sharing over that alone: 1 where nothing is lost. Hidden: share of the shorter of computation "
    "and collective that ran during the longer; its parts: how many times longer each took than alone."
)
COLUMNS = (
    ShownColumn("case", right=False, tells=True),
    ShownColumn("compared", right=False, keep=11),
    ShownColumn("size", keep=12),
    ShownColumn("shared", keep=10),
    ShownColumn("alone", keep=10),
    ShownColumn("ratio [interval]", keep=12),
    ShownColumn("parts", right=False, keep=10),
)


def sharing_table(points: Sequence[Point]) -> Table:
    """Costs of sharing in ``points``; those without a speed, or of an emulation, say nothing."""
    timed = [
        point for point in points if point.is_timed and not (point.emulated or point.baseline)
    ]
    rows = []
    for members in _alike([point for point in timed if point.groups], "active_group"):
        together = [member for member in members if member.active_group == ALL_GROUPS]
        rows += [
            _row(alone, "all groups, one alone", together[0], alone, together[0].slowest_group)
            for alone in (members if together else ())
            if alone.active_group != ALL_GROUPS
        ]
    for members in _alike(timed, "concurrent"):
        without = [member for member in members if not member.concurrent]
        company = [member for member in members if member.concurrent and without]
        rows += [
            _row(case, "both, the first alone", case, without[0], case.slowest_group)
            for case in company
        ]
    # Cases of mode overlap measured their parts alone themselves.
    for case in timed:
        if case.mode == OVERLAP and case.overlap_efficiency is not None:
            hidden = _interval(case.overlap_efficiency, case.overlap_low, case.overlap_high)
            parts = case.group_samples_seconds
            apart = (
                len(parts) == 4
                and len({len(each) for each in parts}) == 1
                and len(parts[0]) > 0
            )
            slowed = []
            # Times of each part alone, then of each with the other, sample by sample.
            for place, part in enumerate(("computing", "collective")):
                slowdown = "-"
                if apart and all(parts[place] > 0):
                    slowdown = f"{median((parts[place + 2] / parts[place]).tolist()):.3g}"
                slowed.append(f"{part} {slowdown}")
            mark = DOUBTFUL * (not case.trusted)
            cells = (case.size, _time(case), "-", mark + hidden, ", ".join(slowed))
            rows.append((case_name(case), "hidden", *cells))
    return Table(COLUMNS, rows, "Sharing", TEXT)


def _alike(points: Iterable[Point], name: str) -> list[list[Point]]:
    """Points that share everything asked of them but the field ``name``, where there are several."""
    alike = grouped(points, POINT.without(name).beside("run", "source", "simulated"))
    return [members for members in alike.values() if len(members) > 1]


def _row(named: Point, what: str, shared: Point, alone: Point, parts: str) -> tuple[str, ...]:
    """Return the cells of two cases; named: the one of the two that a reader recognises."""
    middle, low, high = (
        None if over is None or not under else over / under
        for over, under in (
            (shared.median_seconds, alone.median_seconds),
            (shared.low_seconds, alone.high_seconds),
            (shared.high_seconds, alone.low_seconds),
        )
    )
    mark = DOUBTFUL * (not (shared.trusted and alone.trusted))
    ratio = mark + _interval(middle or 0.0, low, high)
    return (
        case_name(named),
        what,
        shared.size,
        _time(shared),
        _time(alone),
        ratio,
        parts or "-",
    )


def _time(point: Point) -> str:
    return DOUBTFUL * (not point.trusted) + format_seconds(point.median_seconds or 0.0)


def _interval(middle: float, low: float | None, high: float | None) -> str:
    """A ratio and its interval, which an imported time has none of."""
    ends = "" if low is None or high is None else f" [{low:.3g}, {high:.3g}]"
    return f"{middle:.3g}{ends}"


def case_name(point: Point) -> str:
    """The case without its size, which has a column."""
    return plain(f"{point.run} {point.name}".strip(), LONGEST_CASE)
