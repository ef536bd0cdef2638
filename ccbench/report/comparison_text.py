"""A comparison in words: for a screen, a pull request (Markdown), programs (JSON) and CI (JUnit XML).

docs/compare.md describes the JSON document.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ccbench.analysis.significance import CONFIDENCE
from ccbench.analysis.verdicts import (
    Compared,
    Comparison,
    NoVerdict,
    Verdict,
)
from ccbench.exit_codes import FINE, PROBLEM
from ccbench.report.junit import JUnitCase, junit_text
from ccbench.report.present import (
    ShownColumn,
    beyond,
    filled,
    first,
    fitted_lines,
    markdown_table,
    table_of,
    values_of,
)
from ccbench.report.present import markdown as markdown_text
from ccbench.results.keys import POINT
from ccbench.results.points import ORDER
from ccbench.units import format_change, format_seconds, plain

MOST_ROWS = 40
"""Points of one verdict that a screen shows; JSON has all."""

MOST_NOTES = 12
MOST_CHANGED = 50
MOST_FOLDED = 200
"""Rows of Markdown; a comment on GitHub holds 65,536 characters."""

LONGEST_CELL = 160
LONGEST_TEXT = 2000

_SIGNS = {FINE: "✅", PROBLEM: "❌"}


# A point without its size, or its change, says nothing.
COLUMNS = (
    ShownColumn(
        "point", right=False, tells=True, value=lambda row: plain(row.point.name, LONGEST_TEXT)
    ),
    ShownColumn("size", keep=9, value="point.size"),
    ShownColumn("base", form=format_seconds, name="base_seconds"),
    ShownColumn("new", form=format_seconds, name="new_seconds"),
    ShownColumn("time", keep=9, form=format_change, absent="", name="change"),
    ShownColumn(
        "interval",
        show=lambda row: (
            ""
            if row.low is None or row.high is None
            else f"[{format_change(row.low - 1)}, {format_change(row.high - 1)}]"
        ),
    ),
)


SOURCE_COLUMN = ShownColumn("source", right=False, tells=True, value="point.source")
ALLOWED_COLUMN = ShownColumn("allowed", keep=8, value="threshold", form=format_change)
"""Of comparisons whose threshold is another at each point."""

VERDICT_COLUMN = ShownColumn("verdict", right=False, value="words")


def screen(compared: Compared, width: int = 80) -> str:
    """Changes, points without a verdict and why, and the verdict as the last line; ``width`` columns."""
    undecided = [point for point in compared.of(Verdict.NONE) if not point.wrong]
    blocks = {"Wrong results": [point for point in compared.points if point.wrong]}
    for verdict in (Verdict.SLOWER, Verdict.FASTER, Verdict.SAME):
        title = verdict.value.capitalize()
        if verdict is Verdict.SAME and compared.settings.by_systems:
            title = "Within what healthy systems differ by"
        blocks[title] = list(compared.of(verdict))
    by_cause: dict[NoVerdict | None, list[Comparison]] = {NoVerdict.TOO_WIDE: []}
    for point in undecided:
        by_cause.setdefault(point.cause, []).append(point)
    blocks["No verdict, interval too wide"] = by_cause.pop(NoVerdict.TOO_WIDE)
    blocks["Doubtful"] = by_cause.get(NoVerdict.DOUBTFUL, [])
    shown = (
        [SOURCE_COLUMN] if len({point.point.source for point in compared.points}) > 1 else []
    )
    shown += [*COLUMNS, *([ALLOWED_COLUMN] if compared.settings.by_systems else [])]
    lines = _wrapped(
        f"{compared.base} -> {compared.new} (change of time; {compared.threshold_text})", width
    )
    for title, points in blocks.items():
        if points:
            rows = fitted_lines(filled(table_of(shown, points[:MOST_ROWS])), width)
            lines += [f"{title}: {len(points)}", *rows, *beyond(points, MOST_ROWS)]
    # Points without a verdict by cause, with the first reason of each.
    notes = [
        f"No verdict, {cause.value if cause else ''}: {len(alike)}, first {alike[0].point.label}: "
        f"{alike[0].reason}"
        for cause, alike in by_cause.items()
    ]
    # What verdicts rest on where that is unusual, each once with the number of its points.
    reasons = Counter(
        point.reason
        for point in compared.points
        if point.verdict is not Verdict.NONE and point.reason
    )
    counted = [f"{count} x {reason}" for reason, count in reasons.most_common()]
    notes += first(counted, MOST_NOTES, "and {} more reasons")
    remarks = first(compared.notes, MOST_NOTES, "and {} more, all in --format json")
    notes += [f"note: {remark}" for remark in (*remarks, *compared.left_out)]
    verdicts = [compared.sums, *(verdict.sentence for verdict in reversed(compared.own))]
    lines += [line for text in (*notes, *verdicts) for line in _wrapped(text, width)]
    return "".join(f"{line}\n" for line in lines)


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(plain(text, LONGEST_TEXT), max(width, 20), subsequent_indent="  ") or [
        ""
    ]


def markdown(compared: Compared) -> str:
    """Verdict line, table of changed points, details folded (GitHub and GitLab read ``<details>``)."""
    changed = [point for point in compared.points if _has_changed(point)]
    changed.sort(key=lambda point: (not point.wrong, -(point.ratio or 0.0)))
    rest = [point for point in compared.points if not _has_changed(point)]
    base, new = (
        plain(side, LONGEST_TEXT).replace("`", "'") for side in (compared.base, compared.new)
    )
    lines = [
        f"**{_SIGNS.get(compared.exit_code, '❔')} ccbench: {_escaped(compared.sentence)}**",
        "",
    ]
    lines += [f"`{base}` → `{new}`", "", *(_rows(changed, MOST_CHANGED) if changed else [])]
    lines += _folded("other points", len(rest), _rows(rest, MOST_FOLDED)) if rest else []
    notes = [*compared.notes, *compared.left_out]
    listed = [f"- {_escaped(note)}" for note in notes[:MOST_FOLDED]]
    lines += _folded("notes", len(notes), [*listed, ""]) if notes else []
    lines.append(
        "Time of new over base, median of the rounds' medians, minus one; intervals at "
        f"{CONFIDENCE:.4g}; {compared.threshold_text}."
    )
    return "\n".join(lines) + "\n"


def _folded(what: str, count: int, lines: Sequence[str]) -> list[str]:
    return ["<details>", f"<summary>{count} {what}</summary>", "", *lines, "</details>", ""]


def _has_changed(comparison: Comparison) -> bool:
    return comparison.wrong or comparison.verdict in (Verdict.SLOWER, Verdict.FASTER)


def _rows(points: Sequence[Comparison], most: int) -> list[str]:
    table = markdown_table(table_of((*COLUMNS, VERDICT_COLUMN), points[:most]), LONGEST_CELL)
    more = beyond(points, most)
    return [table, "", *more, *[""] * len(more)]


def _escaped(text: str) -> str:
    return markdown_text(text, LONGEST_CELL)


def document(compared: Compared) -> dict[str, Any]:
    """Return the comparison as JSON values: seconds per launch, ratios; null where there is none."""
    points = []
    for point in compared.points:
        fields = values_of(point, *(name for name in vars(point) if name != "point"))
        fields["verdict"] = point.verdict.value
        fields["cause"] = None if point.cause is None else point.cause.value
        points.append(values_of(point.point, *ORDER) | fields)
    names = (
        "exit_code",
        "base",
        "new",
        "counts",
        "causes",
        "notes",
        "left_out",
    )
    settings = compared.settings
    return {
        "verdict": compared.sentence,
        **values_of(compared, *names, "unread"),
        "settings": {
            "threshold": settings.threshold,
            "accepted_flags": sorted(settings.accepted_flags),
            "confidence": CONFIDENCE,
            **values_of(settings, "undecided", "across_machines"),
        },
        "points": points,
    }


def runs_screen(each: Sequence[Compared], width: int = 80) -> str:
    """Several runs beside one base: a row for each point, then the verdict on each run; ``width`` columns."""
    rows = {POINT(row.point): row for compared in reversed(each) for row in compared.points}
    columns = map(_column_of_run, each, _names(each))
    lines = fitted_lines(table_of((*COLUMNS[:3], *columns), list(rows.values())), width)
    first = each[0]
    legend = f"base: {first.base}; {first.threshold_text}; ?: no verdict, compare two runs for the reason"
    for text in (legend, *sentences(each)):
        lines += _wrapped(text, width)
    return "".join(f"{line}\n" for line in lines)


def _names(each: Sequence[Compared]) -> list[str]:
    """Return the folders' names, or the paths as they were given where two have one name."""
    names = [plain(Path(compared.new).name) for compared in each]
    paths = [plain(compared.new) for compared in each]
    return names if len(set(names)) == len(names) else paths


def _column_of_run(compared: Compared, name: str) -> ShownColumn:
    cases = {POINT(row.point): row for row in compared.points}
    return ShownColumn(
        name,
        keep=6,  # where there is no room the oldest runs go first, and the base last
        value=lambda row: cases.get(POINT(row.point)),
        form=_time_and_change,
    )


def sentences(each: Sequence[Compared]) -> list[str]:
    """The verdict on each run, after its name."""
    return [
        f"{name}: {compared.sentence}"
        for name, compared in zip(_names(each), each, strict=True)
    ]


def _time_and_change(row: Comparison) -> str:
    """``1.2 ms +20.0% slower``, as far as it is there; ``?`` for no verdict."""
    _, _, _, new, change, _ = (column.text(row) for column in COLUMNS)
    verdict = row.words.partition(":")[0].partition(", for")[0].replace("no verdict", "?")
    return " ".join(filter(None, (new, change, verdict)))


def message_of(point: Comparison) -> str:
    """``slower: 1 ms -> 2 ms, +100 % [+90 %, +110 %], threshold 0.05``, and what is unusual about it."""
    _, _, base, new, change, interval = (column.text(point) for column in COLUMNS)
    parts = [f"{point.verdict.value}: {base} -> {new}", f"{change} {interval}".strip()]
    parts += [f"threshold {point.threshold:.3g}", point.reason]
    return plain(", ".join(filter(None, parts)), LONGEST_TEXT)


def junit(compared: Compared) -> str:
    """JUnit XML, one test case a point: slower and wrong ones fail, those without a verdict are errors.

    Nothing to compare is an error of its own, and so are files that could not be read.
    """
    tolerant = compared.exit_code == FINE
    cases = []
    for point in compared.points:
        if point.wrong or point.verdict is Verdict.SLOWER:
            kind = "failure"
        elif point.verdict is not Verdict.NONE:
            kind = ""
        else:
            # An error and not a skip, since CI systems let skips pass; only points whose interval is too
            # wide are skipped, and only where the settings let them pass.
            kind = "skipped" if tolerant and point.cause is NoVerdict.TOO_WIDE else "error"
        what = "wrong results" if point.wrong else (point.cause or point.verdict).value
        name, size, *_ = (column.text(point) for column in COLUMNS)
        cases.append(JUnitCase(name, size, kind, what, message_of(point)))
    absent = [("any point", "nothing")] if not compared.points else []
    absent += [("files", "unread")] if compared.unread else []
    sentence = plain(compared.sentence, LONGEST_TEXT)
    cases += [
        JUnitCase("ccbench compare", name, "error", what, sentence) for name, what in absent
    ]
    return junit_text("ccbench compare", cases, "; ".join((compared.sentence, *compared.notes)))
