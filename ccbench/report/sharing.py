"""Costs of sharing: groups at once against one alone, with and without company, computing meanwhile.

Ratios compare two cases of one run that differ in that alone. Their interval is from the ends of both
cases' intervals, the low end of one against the high end of the other, which is wider than it need be. In
mode overlap the parts of a sample follow each other closely, so their ratios are taken sample by sample.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ccbench.cases import ALL_GROUPS, IDENTITY, OVERLAP
from ccbench.errors import UsageError
from ccbench.groups import parse_concurrent, parse_groups
from ccbench.report.tables import Column, Table, csv_file, fitted_lines, wrapped
from ccbench.results import Point
from ccbench.stats import rounds_interval
from ccbench.units import format_seconds, format_size, percent, plain, plural

SHARING_FILE = "sharing.csv"
DOUBTFUL = "~"
LONGEST_CASE = 130


@dataclass(frozen=True)
class Ratio:
    """A ratio and its interval; low and high are None where an imported time has none."""

    middle: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Question:
    """One way of sharing. titles: of the table's columns."""

    name: str
    title: str
    text: str
    titles: tuple[str, ...]


GROUPS = Question(
    "groups",
    "All groups against one alone",
    "All groups at once over one of them alone, by time: 1 where they do not meet, 2 where they halve each "
    "other's links.",
    ("case", "size", "all at once", "alone", "ratio [interval]", "slowest group"),
)
CONCURRENT = Question(
    "concurrent",
    "With a concurrent collective",
    "Both: until both are over, over the first without the other. Own: until that is over, likewise. Of "
    "small sizes it is mostly the cost of driving two at once.",
    ("case", "size", "with", "without", "both [interval]", "own"),
)
OVERLAPPED = Question(
    "overlap",
    "Computing meanwhile",
    "Hidden: how much of the shorter of computation and collective ran during the longer. Slowed: time of "
    "each with the other, over alone.",
    ("case", "size", "both together", "hidden [interval]", "computing slowed", "collective slowed"),
)


@dataclass(frozen=True)
class Shared:
    """One case that shares, and the same case alone.

    named: the one of the two that a reader recognises. ratio: time of sharing over alone; behind a
    computation, which has no case alone, the share of the shorter of the two that ran during the longer.
    further: names of CSV columns -> how many times longer a part took than alone, where parts were timed.
    """

    question: Question
    named: Point
    sharing: Point
    alone: Point | None
    ratio: Ratio
    further: Mapping[str, Ratio | None] = field(default_factory=dict)


def sharing_of(points: Sequence[Point]) -> tuple[Shared, ...]:
    """Costs of sharing in ``points``; those without a speed, or of an emulation, say nothing."""
    timed = [one for one in points if one.is_timed and not (one.emulated or one.baseline)]
    found = []
    # All groups at once against each of them alone.
    for members in _alike([point for point in timed if point.groups], "active_group"):
        together = [one for one in members if one.active_group == ALL_GROUPS]
        found += [
            Shared(GROUPS, alone, together[0], alone, _ratio(together[0], alone))
            for alone in (members if together else ())
            if alone.active_group != ALL_GROUPS
        ]
    # A collective beside another one against the same without.
    for members in _alike(timed, "concurrent"):
        without = [one for one in members if not one.concurrent]
        for one in members if without else ():
            if one.concurrent:
                own = {"own_ratio": _own_ratio(one, without[0])}
                found.append(Shared(CONCURRENT, one, one, without[0], _ratio(one, without[0]), own))
    # Cases of mode overlap measured their parts alone themselves.
    for one in timed:
        if one.mode == OVERLAP and one.overlap_efficiency is not None:
            efficiency = Ratio(one.overlap_efficiency, one.overlap_low, one.overlap_high)
            slowed = {"computing_slowdown": _slowed(one, 0), "collective_slowdown": _slowed(one, 1)}
            found.append(Shared(OVERLAPPED, one, one, None, efficiency, slowed))
    return tuple(found)


def _alike(points: Iterable[Point], name: str) -> list[list[Point]]:
    """Points that share everything asked of them but the field ``name``, where there are several."""
    found: dict[tuple[object, ...], list[Point]] = defaultdict(list)
    fields = ["run", "source", "simulated", *(axis.name for axis in IDENTITY if axis.name != name)]
    for point in points:
        found[tuple(getattr(point, one) for one in fields)].append(point)
    return [members for members in found.values() if len(members) > 1]


def _own_ratio(both: Point, alone: Point) -> Ratio | None:
    """The collective's own time, to the end of its slowest group, over that alone; None if not known."""
    try:
        asked = parse_concurrent(both.concurrent)
        own = len(parse_groups(both.groups, both.ranks))
        others = len(parse_groups(asked.groups, both.ranks)) if asked.own_groups else own
    except UsageError:  # of a stored row that no version of ccbench wrote
        return None
    # Parts are timed one for each group of both, or one for each of the two, the case's own first.
    if len(both.parts) != own + others:
        own = int(len(both.parts) == 2)
    if not own or not alone.median_seconds:
        return None
    return Ratio(max(both.parts[place][1] for place in range(own)) / alone.median_seconds)


def _ratio(upper: Point, lower: Point) -> Ratio:
    def share(one: float | None, other: float | None) -> float | None:
        return None if one is None or not other else one / other

    return Ratio(
        share(upper.median_seconds, lower.median_seconds) or 0.0,
        share(upper.low_seconds, lower.high_seconds),
        share(upper.high_seconds, lower.low_seconds),
    )


def _slowed(point: Point, part: int) -> Ratio | None:
    """Of the computation (0) or the collective (1): its time with the other over that alone, by sample."""
    parts = point.group_samples_seconds
    apart = len(parts) == 4 and len({len(one) for one in parts}) == 1 and len(parts[0]) > 0
    if not apart or not all(parts[part] > 0):
        return None
    ratios = (parts[part + 2] / parts[part]).tolist()
    interval = rounds_interval(ratios, point.round_samples, point.interval_confidence or 0.95)
    return Ratio(interval.median, interval.low, interval.high)


def sharing_tables(sharing: Sequence[Shared]) -> tuple[Table, ...]:
    """One for each question that has rows."""
    rows: dict[Question, list[tuple[str, ...]]] = {GROUPS: [], CONCURRENT: [], OVERLAPPED: []}
    for one in sharing:
        overlapped = one.question is OVERLAPPED
        times = [_marked(format_seconds(point.median_seconds or 0.0), point) for point in _both(one)]
        ratio = _times(one.ratio)
        if overlapped:
            ratio = percent(one.ratio.middle)
            if one.ratio.low is not None and one.ratio.high is not None:
                ratio += f" [{100 * one.ratio.low:.0f}, {100 * one.ratio.high:.0f}]"
        further = [_times(value) for value in one.further.values()] or [one.sharing.slowest_group or "-"]
        if overlapped:
            further = [_marked(text, one.sharing) for text in further]
        cells = (*times, _marked(ratio, *_both(one)), *further)
        rows[one.question].append((case_name(one.named), format_size(one.sharing.size_bytes), *cells))
    tables = []
    for question, found in rows.items():
        # Rows of one case differ by their size first.
        titles = [Column(title, keep=12 if title == "size" else 10) for title in question.titles[1:]]
        case = Column(question.titles[0], right=False, tells=True)
        tables += [Table((case, *titles), found, question.title, question.text)] * bool(found)
    return tuple(tables)


def _both(one: Shared) -> list[Point]:
    return [one.sharing] if one.alone is None else [one.sharing, one.alone]


def case_name(point: Point) -> str:
    """The case without its size, which has a column."""
    words = [point.run, point.backend, point.collective, point.algorithm, point.dtype]
    words += [plural(point.ranks, "rank")] + ["in place"] * point.in_place
    words += [point.mode] if point.mode not in ("streaming", "overlap") else []
    text = " ".join(word for word in words if word)
    return plain(", ".join(part for part in (text, point.setting) if part), LONGEST_CASE)


def _marked(text: str, *points: Point) -> str:
    return text if text == "-" or all(point.trusted for point in points) else DOUBTFUL + text


def _times(ratio: Ratio | None) -> str:
    if ratio is None:
        return "-"
    if ratio.low is None or ratio.high is None:
        return f"{ratio.middle:.3g}"
    return f"{ratio.middle:.3g} [{ratio.low:.3g}, {ratio.high:.3g}]"


def sharing_lines(sharing: Sequence[Shared], width: int) -> list[str]:
    """The tables for a screen: a case to a line above its figures where both do not fit."""
    lines: list[str] = []
    for table in sharing_tables(sharing):
        lines += ["", *wrapped(f"{table.title}. {table.text}", width), *fitted_lines(table, width)]
    return lines


_ASKED = (
    "run", "backend", "collective", "algorithm", "protocol", "dtype", "op", "size_bytes", "ranks", "nodes",
    "mode", "groups", "active_group", "concurrent", "traffic", "overlap_with",
)  # fmt: skip
_COLUMNS = (
    "question", *_ASKED, "shared_seconds", "alone_seconds", "ratio", "ratio_low", "ratio_high", "own_ratio",
    "slowest_group", "overlap_efficiency", "overlap_low", "overlap_high", "computing_slowdown",
    "computing_slowdown_low", "computing_slowdown_high", "collective_slowdown", "collective_slowdown_low",
    "collective_slowdown_high", "flags",
)  # fmt: skip


def sharing_csv(sharing: Sequence[Shared]) -> str:
    """A row for every comparison; units are in the names."""
    rows = []
    for one in sharing:
        row = {name: getattr(one.named, name) for name in _ASKED}
        row |= {"question": one.question.name, "shared_seconds": one.sharing.median_seconds}
        row["flags"] = "; ".join(dict.fromkeys(flag for point in _both(one) for flag in point.flags))
        ratios = dict(one.further)
        if one.alone is None:
            row["overlap_efficiency"] = one.ratio.middle
            row |= {"overlap_low": one.ratio.low, "overlap_high": one.ratio.high}
        else:
            row |= {"alone_seconds": one.alone.median_seconds, "slowest_group": one.sharing.slowest_group}
            ratios = {"ratio": one.ratio, **ratios}
        for name, ratio in ratios.items():
            if ratio is not None:
                row |= {name: ratio.middle, f"{name}_low": ratio.low, f"{name}_high": ratio.high}
        rows.append({name: value for name, value in row.items() if name in _COLUMNS})
    return csv_file(_COLUMNS, rows)
