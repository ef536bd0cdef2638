"""``ccbench.report.sharing`` in words: one form of table for screen, Markdown and page, and a CSV file."""

from __future__ import annotations

import csv
import io
import textwrap
from dataclasses import dataclass

from ccbench.report.sharing import Ratio, Sharing
from ccbench.report.text import csv_text, markdown, percent, plural
from ccbench.results import Point
from ccbench.units import format_seconds, format_size, plain

SHARING_FILE = "sharing.csv"

DOUBTFUL = "~"
GAP = "  "
LONGEST_CASE = 130


@dataclass(frozen=True)
class SharingTable:
    """One table for people. rows: as many cells as the header; the first is a case, the others are short."""

    heading: str
    text: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def sharing_tables(sharing: Sharing) -> tuple[SharingTable, ...]:
    """Those that have rows."""
    made = (_groups_table(sharing), _beside_table(sharing), _overlap_table(sharing))
    return tuple(table for table in made if table.rows)


def _groups_table(sharing: Sharing) -> SharingTable:
    return SharingTable(
        "Concurrent against isolated",
        "All groups at once over one of them alone, by time: 1 where they do not meet, 2 where they halve "
        "each other's links.",
        ("case", "size", "all at once", "active_group", "ratio [interval]", "slowest group"),
        tuple(
            (
                case_name(one.alone), format_size(one.together.size_bytes), _time(one.together),
                _time(one.alone),
                _ratio(one.ratio, one.together, one.alone), one.together.slowest_group or "-",
            )
            for one in sharing.groups
        ),
    )  # fmt: skip


def _beside_table(sharing: Sharing) -> SharingTable:
    return SharingTable(
        "Beside another collective",
        "Both: until both are over, over the first without the other. Own: until that is over, likewise. Of "
        "small sizes it is mostly the cost of driving two at once.",
        ("case", "size", "with", "without", "both [interval]", "own"),
        tuple(
            (
                case_name(one.beside), format_size(one.beside.size_bytes), _time(one.beside),
                _time(one.alone),
                _ratio(one.whole, one.beside, one.alone), "-" if one.own is None else f"{one.own:.3g}",
            )
            for one in sharing.beside
        ),
    )  # fmt: skip


def _overlap_table(sharing: Sharing) -> SharingTable:
    return SharingTable(
        "Computing meanwhile",
        "Hidden: how much of the shorter of computation and collective ran beside the longer. Slowed: time "
        "of each beside the other, over alone.",
        ("case", "size", "both together", "hidden [interval]", "computing slowed", "collective slowed"),
        tuple(
            (
                case_name(one.point), format_size(one.point.size_bytes), _time(one.point),
                _marked(_percents(one.efficiency), one.point),
                _marked(_times(one.computing), one.point), _marked(_times(one.communicating), one.point),
            )
            for one in sharing.overlap
        ),
    )  # fmt: skip


def case_name(point: Point) -> str:
    """The case without its size, which has a column."""
    words = [point.run, point.backend, point.collective, point.algorithm, point.dtype]
    words += [plural(point.ranks, "rank")] + ["in place"] * point.in_place
    words += [point.mode] if point.mode not in ("streaming", "overlap") else []
    text = " ".join(word for word in words if word)
    return plain(", ".join(part for part in (text, point.setting) if part), LONGEST_CASE)


def _time(point: Point) -> str:
    return _marked(format_seconds(point.median_seconds or 0.0), point)


def _marked(text: str, *points: Point) -> str:
    return text if text == "-" or all(point.trusted for point in points) else DOUBTFUL + text


def _ratio(ratio: Ratio, *points: Point) -> str:
    return _marked(_times(ratio), *points)


def _times(ratio: Ratio | None) -> str:
    if ratio is None:
        return "-"
    if ratio.low is None or ratio.high is None:
        return f"{ratio.middle:.3g}"
    return f"{ratio.middle:.3g} [{ratio.low:.3g}, {ratio.high:.3g}]"


def _percents(ratio: Ratio) -> str:
    if ratio.low is None or ratio.high is None:
        return percent(ratio.middle)
    return f"{percent(ratio.middle)} [{100 * ratio.low:.0f}, {100 * ratio.high:.0f}]"


def sharing_lines(sharing: Sharing, width: int) -> list[str]:
    """The tables for a screen: a case to a line above its figures where both do not fit."""
    lines: list[str] = []
    for table in sharing_tables(sharing):
        lines += ["", *textwrap.wrap(f"{table.heading}. {table.text}", width)]
        lines += _aligned(table, width)
    return lines


def _aligned(table: SharingTable, width: int) -> list[str]:
    cells = [table.header, *table.rows]
    sizes = [max(len(row[place]) for row in cells) for place in range(len(table.header))]
    beside = sum(sizes) + len(GAP) * (len(sizes) - 1) <= width
    lines, last = [], ""
    for row in cells:
        figures = GAP.join(cell.rjust(size) for cell, size in zip(row[1:], sizes[1:], strict=True))
        if beside:
            lines.append(row[0].ljust(sizes[0]) + GAP + figures)
            continue
        if row[0] not in (last, table.header[0]):
            lines += textwrap.wrap(f"- {row[0]}", width, subsequent_indent="  ")
            last = row[0]
        lines.append(figures if len(figures) <= width else figures[: width - 1] + "…")
    return [line.rstrip() for line in lines]


def sharing_markdown(sharing: Sharing) -> str:
    """The tables for Markdown, each below its heading."""
    parts = []
    for table in sharing_tables(sharing):
        lines = ["| " + " | ".join(table.header) + " |", "| --- " + "| ---: " * (len(table.header) - 1) + "|"]
        lines += ["| " + " | ".join(markdown(cell) for cell in row) + " |" for row in table.rows]
        parts += [f"### {table.heading}", table.text, "\n".join(lines)]
    return "\n\n".join(parts)


_COLUMNS = (
    "question", "run", "backend", "collective", "algorithm", "protocol", "dtype", "op", "size_bytes",
    "ranks", "nodes", "mode", "groups", "active_group", "concurrent", "traffic", "overlap_with",
    "shared_seconds", "alone_seconds", "ratio", "ratio_low", "ratio_high", "own_ratio", "slowest_group",
    "overlap_efficiency", "overlap_low", "overlap_high", "computing_slowdown", "computing_slowdown_low",
    "computing_slowdown_high", "collective_slowdown", "collective_slowdown_low", "collective_slowdown_high",
    "flags",
)  # fmt: skip


def sharing_csv(sharing: Sharing) -> str:
    """A row for every comparison (RFC 4180): full precision, units in the names, empty where not known."""
    sink = io.StringIO()
    writer = csv.DictWriter(sink, _COLUMNS, restval="", lineterminator="\r\n")
    writer.writeheader()
    rows = [
        {
            **_identity("concurrent", one.alone, one.together), "shared_seconds": one.together.median_seconds,
            "alone_seconds": one.alone.median_seconds, **_three("ratio", one.ratio),
            "slowest_group": one.together.slowest_group,
        }
        for one in sharing.groups
    ]  # fmt: skip
    rows += [
        {
            **_identity("concurrent", one.beside, one.alone), "shared_seconds": one.beside.median_seconds,
            "alone_seconds": one.alone.median_seconds, **_three("ratio", one.whole), "own_ratio": one.own,
            "slowest_group": one.beside.slowest_group,
        }
        for one in sharing.beside
    ]  # fmt: skip
    rows += [
        {
            **_identity("overlap", one.point), "shared_seconds": one.point.median_seconds,
            "overlap_efficiency": one.efficiency.middle, "overlap_low": one.efficiency.low,
            "overlap_high": one.efficiency.high, **_three("computing_slowdown", one.computing),
            **_three("collective_slowdown", one.communicating),
        }
        for one in sharing.overlap
    ]  # fmt: skip
    writer.writerows({name: _cell(value) for name, value in row.items()} for row in rows)
    return sink.getvalue()


def _identity(question: str, point: Point, *others: Point) -> dict[str, object]:
    flags = dict.fromkeys(flag for one in (point, *others) for flag in one.flags)
    names = _COLUMNS[1 : _COLUMNS.index("shared_seconds")]
    return {
        "question": question,
        **{name: getattr(point, name) for name in names},
        "flags": "; ".join(flags),
    }


def _three(name: str, ratio: Ratio | None) -> dict[str, object]:
    if ratio is None:
        return {}
    return {name: ratio.middle, f"{name}_low": ratio.low, f"{name}_high": ratio.high}


def _cell(value: object) -> str:
    return "" if value is None else csv_text(value) if isinstance(value, str) else repr(value)
