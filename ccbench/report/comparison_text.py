"""A comparison in words: for a screen, a pull request (Markdown), programs (JSON) and CI (JUnit XML).

docs/compare.md describes the JSON document.
"""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from collections.abc import Sequence
from typing import Any

from ccbench.analysis.self_check import INJECTED_THRESHOLDS, MOST_FALSE, SelfCheck
from ccbench.analysis.verdicts import (
    FINE,
    REGRESSION,
    Cause,
    Compared,
    Comparison,
    Settings,
    Verdict,
)
from ccbench.report.junit import JUnitCase, junit_text
from ccbench.report.present import Column, Table, columns, fitted_lines, markdown_table
from ccbench.report.present import markdown as markdown_text
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

_SIGNS = {FINE: "✅", REGRESSION: "❌"}
# A point without its size, or its change, says nothing.
_COLUMNS = (
    Column("point", right=False, tells=True),
    Column("size", keep=9),
    *columns("base", "new"),
    Column("time", keep=9),
    *columns("interval"),
)


def _cells(one: Comparison) -> tuple[str, ...]:
    seconds = (one.base_seconds, one.new_seconds)
    times = ["-" if each is None else format_seconds(each) for each in seconds]
    change = "" if one.change is None else format_change(one.change)
    known = one.low is not None and one.high is not None
    interval = f"[{format_change(one.low - 1)}, {format_change(one.high - 1)}]" if known else ""  # type: ignore[operator]  # known
    return (plain(one.point.name, LONGEST_TEXT), one.point.size, *times, change, interval)


def screen(compared: Compared, width: int = 80) -> str:
    """Changes, points without a verdict and why, and the verdict as the last line; ``width`` columns."""
    undecided = [one for one in compared.of(Verdict.NONE) if not one.wrong]
    blocks = {"Wrong results": [point for point in compared.points if point.wrong]}
    for verdict in (Verdict.SLOWER, Verdict.FASTER, Verdict.SAME):
        blocks[verdict.value.capitalize()] = list(compared.of(verdict))
    blocks["No verdict, interval too wide"] = [
        one for one in undecided if one.cause is Cause.TOO_WIDE
    ]
    lines = _wrapped(f"{compared.base} -> {compared.new} (time: new over base, minus one)", width)
    for title, points in blocks.items():
        if points:
            rows = fitted_lines(
                Table(_COLUMNS, [_cells(point) for point in points[:MOST_ROWS]]), width
            )
            more = len(points) - MOST_ROWS
            lines += [f"{title}: {len(points)}", *rows, *[f"and {more} more"] * (more > 0)]
    # Points without a verdict by cause, with the first reason of each.
    told = []
    open_points = [one for one in undecided if one.cause is not Cause.TOO_WIDE]
    for cause in dict.fromkeys(point.cause for point in open_points):
        alike = [point for point in open_points if point.cause is cause]
        name = cause.value if cause else ""
        told.append(
            f"No verdict, {name}: {len(alike)}, first {alike[0].point.label}: {alike[0].reason}"
        )
    # What verdicts rest on where that is unusual, each once with the number of its points.
    reasons = Counter(
        point.reason
        for point in compared.points
        if point.verdict is not Verdict.NONE and point.reason
    )
    told += [f"{count} x {reason}" for reason, count in reasons.most_common(MOST_NOTES)]
    told += [f"and {len(reasons) - MOST_NOTES} more reasons"] * (len(reasons) > MOST_NOTES)
    told += [f"note: {note}" for note in (*compared.notes[:MOST_NOTES], *compared.left_out)]
    more = len(compared.notes) - MOST_NOTES
    told += [f"note: and {more} more, all in --format json"] * (more > 0)
    lines += [line for text in (*told, compared.sentence) for line in _wrapped(text, width)]
    return "".join(f"{line}\n" for line in lines)


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(plain(text, LONGEST_TEXT), max(width, 20), subsequent_indent="  ") or [""]


def self_check_screen(check: SelfCheck, width: int = 80) -> str:
    """The findings of A=A, as text of at most ``width`` columns."""
    settings = check.settings
    lines = [f"A=A of {' and '.join(check.runs)}: {check.points} points, {check.left_out} left out"]
    shares = [
        f"false alarms: {check.false_alarms:.3%} of points in {check.splits} share-outs of the rounds, "
        f"{check.alarmed:.1%} of share-outs with any (let pass: {MOST_FALSE:.0%} of points)",
        f"planted slow-downs of {INJECTED_THRESHOLDS:g} thresholds found: {check.found:.1%} "
        f"(threshold {settings.thresholds.default:.3g}, confidence {settings.confidence:.4g})",
    ]
    # Shares of nothing would read like good news.
    lines += shares if check.points else []
    if check.direct is not None:
        alarms = check.direct_alarms
        share = "no point can be judged" if alarms is None else f"{alarms:.1%} of points differ"
        lines.append(f"the two runs as they are: {share} ({check.direct.sentence})")
    lines.append(
        "these settings can be trusted here"
        if not check.exit_code
        else f"NO VERDICT: {check.doubt}"
    )
    return "".join(f"{one}\n" for line in lines for one in _wrapped(line, width))


def markdown(compared: Compared) -> str:
    """Verdict line, table of changed points, details folded (GitHub and GitLab read ``<details>``)."""
    changed = [point for point in compared.points if _has_changed(point)]
    changed.sort(key=lambda one: (not one.wrong, -(one.ratio or 0.0)))
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
    told = [f"- {_escaped(note)}" for note in notes[:MOST_FOLDED]]
    lines += _folded("notes", len(notes), [*told, ""]) if notes else []
    lines.append(
        "Time of new over base, median of the rounds' medians, minus one; intervals at "
        f"{compared.settings.confidence:.4g}; threshold {compared.settings.thresholds.default:.3g}"
        + (" and rules." if compared.settings.thresholds.rules else ".")
    )
    return "\n".join(lines) + "\n"


def _folded(what: str, count: int, lines: Sequence[str]) -> list[str]:
    return ["<details>", f"<summary>{count} {what}</summary>", "", *lines, "</details>", ""]


def _has_changed(one: Comparison) -> bool:
    return one.wrong or one.verdict in (Verdict.SLOWER, Verdict.FASTER)


def _rows(points: Sequence[Comparison], most: int) -> list[str]:
    rows = []
    for point in points[:most]:
        verdict = "wrong results" if point.wrong else point.verdict.value
        rows.append((*_cells(point), f"{verdict}: {point.reason}" if point.reason else verdict))
    table = Table((*_COLUMNS, *columns("<verdict")), rows)
    more = len(points) - most
    return [markdown_table(table, LONGEST_CELL), "", *[f"and {more} more", ""] * (more > 0)]


def _escaped(text: str) -> str:
    return markdown_text(text, LONGEST_CELL)


def document(compared: Compared) -> dict[str, Any]:
    """Everything as JSON values: times in seconds per launch, changes as ratios; null where there is none."""
    points = []
    for point in compared.points:
        values = {name: getattr(point.point, name) for name in ORDER}
        values |= {name: value for name, value in vars(point).items() if name != "point"}
        values["verdict"] = point.verdict.value
        values["cause"] = None if point.cause is None else point.cause.value
        # JSON has no infinity: the ratio to a time of nothing is one.
        points.append(
            {
                name: None if isinstance(value, float) and not math.isfinite(value) else value
                for name, value in values.items()
            }
        )
    return {
        "verdict": compared.sentence,
        "exit_code": compared.exit_code,
        "base": compared.base,
        "new": compared.new,
        "settings": _settings(compared.settings),
        "counts": compared.counts,
        "causes": compared.causes,
        "notes": list(compared.notes),
        "unused_rules": list(compared.unused_rules),
        "left_out": list(compared.left_out),
        "unread": compared.unread,
        "points": points,
    }


def self_check_document(check: SelfCheck) -> dict[str, Any]:
    """The findings of A=A as JSON values; shares are fractions."""
    return {
        "exit_code": check.exit_code,
        "doubt": check.doubt,
        "runs": list(check.runs),
        "settings": _settings(check.settings),
        "unused_rules": list(check.unused_rules),
        "points": check.points,
        "left_out": check.left_out,
        "splits": check.splits,
        "false_alarms": check.false_alarms,
        "alarmed": check.alarmed,
        "found": check.found,
        "direct": None if check.direct is None else document(check.direct),
    }


def _settings(settings: Settings) -> dict[str, Any]:
    return {
        "threshold": settings.thresholds.default,
        "threshold_rules": len(settings.thresholds.rules),
        "confidence": settings.confidence,
        "undecided": settings.undecided,
        "accepted_flags": sorted(settings.accepted_flags),
        "across_machines": settings.across_machines,
        "draws": settings.draws,
        "seed": settings.seed,
    }


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
            kind = "skipped" if tolerant and point.cause is Cause.TOO_WIDE else "error"
        what = "wrong results" if point.wrong else (point.cause or point.verdict).value
        _, _, base, new, change, interval = _cells(point)
        parts = [f"{point.verdict.value}: {base} -> {new}", f"{change} {interval}".strip()]
        parts += [f"threshold {point.threshold:.3g}", point.reason]
        message = plain(", ".join(filter(None, parts)), LONGEST_TEXT)
        name = plain(point.point.name, LONGEST_TEXT)
        cases.append(JUnitCase(name, point.point.size, kind, what, message))
    absent = [("any point", "nothing")] * (not compared.points)
    absent += [("files", "unread")] * bool(compared.unread)
    sentence = plain(compared.sentence, LONGEST_TEXT)
    cases += [JUnitCase("ccbench compare", name, "error", what, sentence) for name, what in absent]
    return junit_text("ccbench compare", cases, "; ".join((compared.sentence, *compared.notes)))
