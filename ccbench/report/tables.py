"""One table of all cases, for the screen, for Markdown and for CSV."""

from __future__ import annotations

import csv
import io
import textwrap
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

from ccbench.analysis.health import pair_matrices
from ccbench.cases import AXES, Status
from ccbench.report.footnotes import footnote
from ccbench.report.pair_figures import pair_lines
from ccbench.report.points import imported_from, meaning_of, points_of, provenance
from ccbench.report.sharing import sharing_of
from ccbench.report.sharing_tables import sharing_lines
from ccbench.report.text import csv_text, markdown, percent, plural
from ccbench.results import Point, Run
from ccbench.units import format_seconds, format_size, plain

NARROWEST = 40
DOUBTFUL = "~"
GAP = "  "
SETTING = "setting"
IDENTITY = ("run", "backend", "collective", "algorithm", SETTING, "ranks", "nodes", "dtype", "op")
"""Columns that tell rows apart: never cut nor dropped; without room they become lines above their rows."""

NEVER_SHARED = ("size", "time [interval]")
MOST_DISPENSABLE = 5
"""Columns kept no more than this go before one of IDENTITY leaves the rows."""

LONGEST_CELL = 32

FLAGS = "flags"
MOST_FLAGS = 6
"""Flags, or reasons, that lines below a narrow table spell out."""


@dataclass(frozen=True)
class Column:
    """One column of the table for people.

    keep: the larger, the longer the column stays when the screen is narrow.
    """

    header: str
    text: Callable[[Point], str]
    keep: int
    right: bool = True


def _algorithm(point: Point) -> str:
    """The algorithm asked for, and what ran where that is another or was left to the library."""
    used = [point.algorithm_used] * (point.algorithm_used not in ("", point.algorithm))
    used += [point.protocol_used] * (point.protocol_used not in ("", point.protocol))
    chosen = point.channels_used and point.channels_used != point.channels
    used += [f"{point.channels_used} ch"] * bool(chosen)
    words = [point.algorithm + (f" ({' '.join(used)})" if used else "")]
    if point.protocol != "default":
        words.append(point.protocol)
    if point.mode != "streaming":
        words.append(point.mode)
    if point.root > 0:
        words.append(f"root {point.root}")
    if point.in_place:
        words.append("in place")
    return " ".join(words)


def _time(point: Point) -> str:
    """The median and its interval, in the unit of the median; the status where there is no time."""
    if point.median_seconds is None:
        return point.status.value
    text = format_seconds(point.median_seconds)
    text = text if point.trusted else DOUBTFUL + text
    if point.low_seconds is None or point.high_seconds is None:
        return text
    unit = text.split(" ")[1]
    factor = {"us": 1e6, "ms": 1e3}.get(unit, 1.0)
    return f"{text} [{point.low_seconds * factor:.4g}, {point.high_seconds * factor:.4g}]"


def _rate(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:.2f}" if rate >= 0.1 else f"{rate:.2g}"


def _wrong(point: Point) -> str:
    return "-" if point.wrong_elements is None else str(point.wrong_elements)


def _flags(point: Point) -> str:
    """What is doubtful, or why there is no result."""
    return "; ".join(point.flags) if point.status == Status.OK else point.detail or point.status.value


def _seconds(seconds: float | None) -> str:
    return "-" if seconds is None else format_seconds(seconds)


COLUMNS: tuple[Column, ...] = (
    Column("run", lambda point: point.run, 9, right=False),
    Column("backend", lambda point: point.backend, 9, right=False),
    Column("collective", lambda point: point.collective, 9, right=False),
    Column("algorithm", _algorithm, 9, right=False),
    Column(SETTING, lambda point: point.setting, 9, right=False),
    Column("ranks", lambda point: str(point.ranks), 9),
    Column("nodes", lambda point: str(point.nodes), 9),
    Column("dtype", lambda point: point.dtype, 9, right=False),
    Column("op", lambda point: point.op, 9, right=False),
    Column("size", lambda point: format_size(point.size_bytes), 10),
    Column("time [interval]", _time, 10),
    Column("algbw", lambda point: _rate(point.algbw), 4),
    Column("busbw", lambda point: _rate(point.busbw if point.group_ranks > 1 else None), 9),
    Column("predicted", lambda point: _seconds(point.predicted_seconds), 5),
    Column("library says", lambda point: _seconds(point.library_estimate_seconds), 4),
    Column("of bound", lambda point: "-" if point.bound_share is None else percent(point.bound_share), 6),
    Column("slowest part", lambda point: point.slowest_group, 6, right=False),
    Column("wrong", _wrong, 7),
    Column(FLAGS, _flags, 3, right=False),
)
"""Bandwidths are in GB/s; "of bound" is the share of the speed of light that was reached, "library
says" the library's own estimate, "slowest part" that of what ran at the same time, over the fastest."""

ALWAYS = ("collective", "algorithm", "ranks", "dtype", "size", "time [interval]", "algbw", "busbw",
          "predicted", "of bound", "wrong", FLAGS)  # fmt: skip
"""Shown where there is room, even when all rows say the same."""


SHOWN_WHERE_SET = (SETTING, "slowest part", "library says")


def _useful(points: Sequence[Point]) -> list[Column]:
    """The columns of ALWAYS, and the others where rows differ or, of settings, where one is set."""
    found = []
    for column in COLUMNS:
        texts = {column.text(point) for point in points}
        if (
            column.header in ALWAYS
            or len(texts) > 1
            or (column.header in SHOWN_WHERE_SET and texts - {"", "-"})
        ):
            found.append(column)
    return found


def screen_table(run: Run, width: int) -> str:
    """The cases of ``run`` as plain text no wider than ``width`` characters (but never below 40).

    Where the screen is narrow, what every row shares moves into the heading, then the least important
    columns go (the last lines say which, and what flags there are), then what tells series apart becomes a
    line above their rows. Pairs of ranks are shown as matrices below it, and what sharing costs as tables.
    """
    points = points_of(run)
    label = provenance(points)
    title = ": ".join(part for part in (run.suite, plural(len(points), "case")) if part)
    title = f"{label} {title}" if label else title
    if not points:
        return title
    width = max(width, NARROWEST)
    maps = pair_lines(pair_matrices(run), width)
    maps += sharing_lines(sharing_of(points), width)
    points = tuple(point for point in points if not (point.pair and point.status == Status.OK))
    if not points:  # nothing but pairs, which are shown as matrices
        return "\n".join([plain(title, width), *(line for text in maps for line in _folded(text, width))])
    fit = _fitting(_useful(points), points, width)
    lines = [plain(title, width)]
    if fit.shared:
        lines += _wrapped("every row: " + ", ".join(fit.shared), width)
    lines += _rows(fit, points, width)
    lines += _wrapped("GB/s = 1e9 bytes/s; of bound: the bound's time over the measured one", width)
    if not all(point.trusted for point in points):
        lines += _wrapped(f"{DOUBTFUL} flagged as doubtful", width)
    if FLAGS in fit.dropped:
        lines += [line for text in _flag_lines(points) for line in _wrapped(text, width)]
    others = [name for name in fit.dropped if name != FLAGS]
    if others:
        lines += _wrapped(f"not shown for want of width: {', '.join(others)}", width)
    if label:
        lines += _wrapped(f"{label}: {meaning_of(label)}", width)
    if any(point.imported for point in points):
        lines += _wrapped(imported_from(points), width)
    return "\n".join([*lines, *(line for text in maps for line in _folded(text, width))])


def _folded(line: str, width: int) -> list[str]:
    """``line`` as it stands where it fits, else folded with its indentation."""
    if len(line) <= width:
        return [line]
    indent = " " * (len(line) - len(line.lstrip()))
    return textwrap.wrap(line, width, subsequent_indent=indent + "  ")


def _flag_lines(points: Sequence[Point]) -> list[str]:
    """What the column of flags would say, once for every flag and every reason, most frequent first."""
    flagged: dict[str, list[Point]] = defaultdict(list)
    missing: dict[str, list[Point]] = defaultdict(list)
    for point in points:
        if point.status != Status.OK:
            missing[_flags(point)].append(point)
        for flag in point.flags if point.status == Status.OK else ():
            flagged[flag].append(point)
    found = (("flags", flagged), ("no result", missing))
    return [f"{heading}: {_counted(groups, len(points))}" for heading, groups in found if groups]


def _counted(groups: Mapping[str, Sequence[Point]], of: int) -> str:
    ordered = sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))
    texts = [
        f"{text} ({'every case' if len(members) == of else _first(members)})"
        for text, members in ordered[:MOST_FLAGS]
    ]
    more = len(ordered) - len(texts)
    return "; ".join(texts) + (f"; and {more} more, in the report's table" if more else "")


def _first(members: Sequence[Point]) -> str:
    one = members[0]
    where = f"{_algorithm(one)} {format_size(one.size_bytes)}"
    return where if len(members) == 1 else f"{plural(len(members), 'case')}, first {where}"


def plain_end(line: str, width: int) -> str:
    """``line`` cut to ``width``, with a sign that it was."""
    return line if len(line) <= width else line[: width - 1] + "…"


@dataclass(frozen=True)
class Fit:
    """How a table fits a width.

    headings: columns that became lines above the rows they hold for.
    shared: what every row says. dropped: headers of columns left out.
    """

    columns: tuple[Column, ...]
    headings: tuple[Column, ...]
    shared: tuple[str, ...]
    dropped: tuple[str, ...]


def _fitting(columns: list[Column], points: Sequence[Point], width: int) -> Fit:
    shared: list[str] = []
    dropped: list[str] = []
    headings: list[Column] = []
    widths = {
        column.header: max(len(column.header), *(len(_cell(column, point)) for point in points))
        for column in columns
    }
    if _width(columns, widths) > width and len(points) > 1:
        for column in [one for one in columns if one.header not in NEVER_SHARED]:
            texts = {column.text(point) for point in points}
            if len(texts) == 1:
                columns.remove(column)
                (text,) = texts
                shared += [f"{column.header} {text}"] * (text not in ("", "-"))
    while _width(columns, widths) > width and len(columns) > 2:
        least = min(columns, key=lambda column: column.keep)
        telling = [column for column in columns if column.header in IDENTITY]
        if telling and least.keep > MOST_DISPENSABLE:
            headings.append(telling[0])
            columns.remove(telling[0])
        else:
            dropped.append(least.header)
            columns.remove(least)
    return Fit(tuple(columns), tuple(headings), tuple(shared), tuple(dropped))


def _rows(fit: Fit, points: Sequence[Point], width: int) -> list[str]:
    """Header and rows, with a line above each group of rows where columns became headings."""
    header, *rows = [plain_end(line, width) for line in _grid(fit.columns, points)]
    lines, last = [header], ""
    for point, row in zip(points, rows, strict=True):
        heading = " ".join(
            f"{column.header} {column.text(point)}" if column.right else column.text(point)
            for column in fit.headings
            if column.text(point)
        )
        if heading != last:
            lines += _folded(f"- {heading}", width)
            last = heading
        lines.append(row)
    return lines


def _width(columns: Sequence[Column], widths: dict[str, int]) -> int:
    return sum(widths[column.header] for column in columns) + len(GAP) * (len(columns) - 1)


def _cell(column: Column, point: Point) -> str:
    return column.text(point) if column.header in IDENTITY else plain(column.text(point), LONGEST_CELL)


def _grid(columns: Sequence[Column], points: Sequence[Point]) -> list[str]:
    """Header and rows with aligned columns."""
    cells = [[column.header for column in columns]]
    cells += [[_cell(column, point) for column in columns] for point in points]
    widths = [max(len(row[index]) for row in cells) for index in range(len(columns))]
    return [
        GAP.join(
            cell.rjust(size) if column.right else cell.ljust(size)
            for cell, size, column in zip(row, widths, columns, strict=True)
        ).rstrip()
        for row in cells
    ]


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(plain(text, 2000), width)


def markdown_table(points: Sequence[Point]) -> str:
    """All cases as a Markdown table."""
    columns = _useful(points)
    lines = [
        "| " + " | ".join(column.header for column in columns) + " |",
        "| " + " | ".join("---:" if column.right else "---" for column in columns) + " |",
    ]
    for point in points:
        cells = [markdown(_cell(column, point)) or " " for column in columns]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def markdown_report(
    title: str,
    points: Sequence[Point],
    verdict: Sequence[str],
    problems: Sequence[str],
    images: Sequence[str],
    first: Sequence[str] = (),
) -> str:
    """A page: verdict, points to look at ``first``, figures, table, small print.

    images: file names beside the page. first: a headline and a line for each point.
    """
    label = provenance(points)
    parts = [f"# {markdown(' '.join(part for part in (label, title) if part))}"]
    parts += ["\n".join(f"* {markdown(line, 500)}" for line in verdict)]
    if first:
        parts += [f"## {markdown(first[0].rstrip(':'))}"]
        parts += ["\n".join(f"* {markdown(line.strip(), 500)}" for line in first[1:])]
    parts += [f"![{name.rsplit('.', 1)[0]}]({name})" for name in images]
    if points:
        parts += [
            "## Cases",
            "Bandwidths in GB/s (1e9 bytes/s); of bound: the bound's time over the measured one.",
        ]
        parts += [markdown_table(points)]
        parts += ["## Small print", "\n".join(f"* {markdown(line, 2000)}" for line in footnote(points))]
    if problems:
        parts += ["## Files that could not be read", "\n".join(f"* {markdown(one, 500)}" for one in problems)]
    return "\n\n".join(part for part in parts if part) + "\n"


_CSV_NAMES = (
    "run", "baseline", "simulated", "host", "machine", *(axis.name for axis in AXES), "backend_version",
    "algorithm_used", "protocol_used", "channels_used", "status", "detail", "samples", "median_seconds",
    "low_seconds", "high_seconds", "interval_confidence", "algbw_GB_s", "busbw_GB_s", "bound_seconds",
    "predicted_seconds", "library_estimate_seconds", "slowest_group", "bound_share", "overlap_efficiency",
    "overlap_low", "overlap_high", "bottleneck", "slowest_rank", "wrong_elements", "flags", "time_statistic",
    "source", "tool",
)  # fmt: skip
_CSV_VALUES: Mapping[str, Callable[[Point], object]] = {
    "channels_used": lambda point: point.channels_used or None,
    "status": lambda point: point.status.value,
    "samples": lambda point: len(point.samples_seconds),
    "algbw_GB_s": attrgetter("algbw"),
    "busbw_GB_s": attrgetter("busbw"),
    "flags": lambda point: "; ".join(point.flags),
    "tool": attrgetter("tool_and_version"),
}
"""Of columns that are no field of a point."""

CSV_COLUMNS = tuple((name, _CSV_VALUES.get(name, attrgetter(name))) for name in _CSV_NAMES)
"""Every column of the CSV file: full precision, units in the names, empty where there is no value."""


def csv_table(points: Sequence[Point]) -> str:
    """All cases as CSV (RFC 4180), for spreadsheets and scripts."""
    sink = io.StringIO()
    writer = csv.writer(sink, lineterminator="\r\n")
    writer.writerow([name for name, _ in CSV_COLUMNS])
    for point in points:
        writer.writerow([_csv_cell(value(point)) for _, value in CSV_COLUMNS])
    return sink.getvalue()


def _csv_cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return csv_text(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value)
