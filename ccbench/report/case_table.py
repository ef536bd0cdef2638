"""The table of all cases: for the screen, for Markdown, for CSV and for the page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from ccbench.analysis.findings import provenance
from ccbench.analysis.pair_matrix import pair_matrices
from ccbench.cases.axes import AXES
from ccbench.cases.measurement import Status
from ccbench.report.maps import pair_lines
from ccbench.report.present import (
    ShownColumn,
    Table,
    csv_of,
    documents,
    fitted,
    fitted_lines,
    folded,
    table_of,
    wrapped,
)
from ccbench.report.sharing import sharing_table
from ccbench.report.wording import (
    DOUBTFUL,
    doubts,
    imported_from,
    meaning_of,
    points_of,
    unusual,
)
from ccbench.results import Point, Run
from ccbench.units import format_seconds, percent, plain, plural

NARROWEST = 40
FLAGS = "flags"


def _algorithm(point: Point) -> str:
    """The algorithm asked for, and what ran where that is another or was left to the library."""
    used = [point.algorithm_used] if point.algorithm_used not in ("", point.algorithm) else []
    used += [point.protocol_used] if point.protocol_used not in ("", point.protocol) else []
    chosen = point.channels_used and point.channels_used != point.channels
    used += [f"{point.channels_used} ch"] if chosen else []
    words = [point.algorithm + (f" ({' '.join(used)})" if used else "")]
    words += [*unusual(point), *([f"root {point.root}"] if point.root > 0 else [])]
    return " ".join(words + (["in place"] if point.in_place else []))


def _time(point: Point) -> str:
    """The median and its interval, in the unit of the median; the status where there is no time."""
    if point.median_seconds is None:
        return point.status.value
    text = format_seconds(point.median_seconds)
    text = text if point.trusted else DOUBTFUL + text
    if point.low_seconds is None or point.high_seconds is None:
        return text
    # In the median's unit, so that the three can be compared at a glance.
    factor = {"ns": 1e9, "us": 1e6, "ms": 1e3}.get(text.split(" ")[1], 1.0)
    return f"{text} [{point.low_seconds * factor:.4g}, {point.high_seconds * factor:.4g}]"


LEAST_RATE = 0.001
"""Least rate in GB/s that is shown in digits."""


def rate_text(rate: float | None, decimals: int = 2) -> str:
    """``84.12``, two digits of what is small, ``<0.001``; '' of none."""
    if rate is None:
        return ""
    if 0 < rate < LEAST_RATE:
        return f"<{LEAST_RATE:g}"
    return f"{rate:.{decimals}f}" if rate >= 0.1 else f"{rate:.2g}"


_telling = partial(ShownColumn, right=False, keep=9, tells=True)
COLUMNS = (
    _telling("run", value=lambda point: point.run or "this run"),
    _telling("backend", value="backend"),
    _telling("collective", value="collective"),
    _telling("algorithm", value=_algorithm),
    _telling("setting", value="setting"),
    _telling("ranks", value="ranks", right=True),
    _telling("nodes", value="nodes", right=True),
    _telling("dtype", value="dtype"),
    _telling("op", value="op"),
    ShownColumn("size", keep=10, value="size"),
    ShownColumn("time [interval]", keep=10, show=_time),
    ShownColumn("algbw", keep=4, value="algbw", form=rate_text),
    ShownColumn(
        "busbw",
        keep=9,
        value=lambda point: point.busbw if point.group_ranks > 1 else None,
        form=rate_text,
    ),
    ShownColumn("predicted", keep=9, value="predicted_seconds", form=format_seconds),
    ShownColumn("library says", keep=4, value="library_estimate_seconds", form=format_seconds),
    ShownColumn("of bound", keep=6, value="bound_share", form=percent),
    ShownColumn("slowest part", right=False, keep=6, value="slowest_group"),
    ShownColumn("wrong", value="wrong_elements"),
    ShownColumn(
        FLAGS,
        right=False,
        keep=3,
        # Doubts, or the reason why there is no result.
        value=lambda point: (
            "; ".join(point.flags)
            if point.status == Status.OK
            else point.detail or point.status.value
        ),
    ),
)
"""Bandwidths are in GB/s; "of bound" is the share of the speed of light that was reached, "by other sizes"
the time that the run's other sizes imply, "library says" the library's own estimate, "slowest part" that of
what ran at the same time, over the fastest."""

SHOWN_WHERE_SET = ("setting", "slowest part", "by other sizes", "library says")
SHOWN_WHERE_DIFFERENT = ("run", "backend", "nodes", *SHOWN_WHERE_SET)


def case_table(points: Sequence[Point]) -> Table:
    """The usual columns, and the others where rows differ or, of settings, where one is set."""
    texts = {column: {column.text(point) for point in points} for column in COLUMNS}
    shown = [
        column
        for column, cells in texts.items()
        if column.title not in SHOWN_WHERE_DIFFERENT
        or len(cells) > 1
        or (column.title in SHOWN_WHERE_SET and cells - {"", "-"})
    ]
    return table_of(shown, points)


def screen_table(run: Run, width: int) -> str:
    """The cases of ``run`` as plain text no wider than ``width`` characters (but never below 40).

    The last lines say which columns had no room, and what flags there are. Pairs of ranks are shown as
    matrices below it, and what sharing costs as a table.
    """
    points = points_of(run)
    label = provenance(points)
    title = ": ".join(part for part in (run.suite, plural(len(points), "case")) if part)
    title = f"{label} {title}" if label else title
    if not points:
        return title
    width = max(width, NARROWEST)
    below = [
        line for text in pair_lines(pair_matrices(run), width) for line in folded(text, width)
    ]
    sharing = sharing_table(points)
    if sharing.rows:
        below += [
            "",
            *wrapped(f"{sharing.title}. {sharing.text}", width),
            *fitted_lines(sharing, width),
        ]
    lines = [plain(title, width)]
    # Pairs that were measured are in the matrices; a row for each would be thousands.
    points = tuple(point for point in points if not (point.pair and point.status == Status.OK))
    if not points:  # nothing but pairs, which are shown as matrices
        return "\n".join([*lines, *below])
    table = case_table(points)
    rows, dropped = fitted(table, width)
    titles = {column.title for column in table.columns} - {*dropped}
    meanings = {
        "busbw": "busbw in GB/s of 1e9 bytes/s",
        "of bound": "of bound: the bound's time over the measured one",
    }
    notes = ["; ".join(text for title, text in meanings.items() if title in titles)]
    notes += (
        [f"{DOUBTFUL} flagged as doubtful"]
        if not all(point.trusted for point in points)
        else []
    )
    notes += doubts(points) if FLAGS in dropped else []
    unshown = ", ".join(name for name in dropped if name != FLAGS)
    notes += [f"not shown for want of width: {unshown}"] if unshown else []
    notes += [f"{label}: {meaning_of(label)}"] if label else []
    notes += [imported_from(points)] if any(point.imported for point in points) else []
    return "\n".join(
        [*lines, *rows, *(line for note in notes for line in wrapped(note, width)), *below]
    )


CSV_NAMES = (
    "run",
    "baseline",
    "simulated",
    "host",
    "machine",
    *(axis.name for axis in AXES),
    "backend_version",
    "algorithm_used",
    "protocol_used",
    "channels_used",
    "status",
    "detail",
    "samples",
    "median_seconds",
    "low_seconds",
    "high_seconds",
    "interval_confidence",
    "algbw_GB_s",
    "busbw_GB_s",
    "bound_seconds",
    "predicted_seconds",
    "library_estimate_seconds",
    "slowest_group",
    "bound_share",
    "overlap_efficiency",
    "overlap_low",
    "overlap_high",
    "bottleneck",
    "slowest_rank",
    "wrong_elements",
    "flags",
    "time_statistic",
    "source",
    "tool",
)
_CSV_VALUES: Mapping[str, str | Callable[[Point], object]] = {
    "channels_used": lambda point: point.channels_used or None,
    "status": "status.value",
    "samples": lambda point: len(point.samples_seconds),
    "algbw_GB_s": "algbw",
    "busbw_GB_s": "busbw",
    "flags": lambda point: "; ".join(point.flags),
    "tool": "tool_and_version",
}
"""Of columns that are no field of a point."""


_CSV_COLUMNS = tuple(
    ShownColumn(name=name, value=_CSV_VALUES.get(name, "")) for name in CSV_NAMES
)


def csv_table(points: Sequence[Point]) -> str:
    """All cases as CSV, for spreadsheets and scripts; units are in the names."""
    return csv_of(_CSV_COLUMNS, points)


def case_documents(points: Sequence[Point]) -> list[dict[str, Any]]:
    """All cases with the columns of the CSV, for JSON; what is not known is null."""
    return documents(_CSV_COLUMNS, points)
