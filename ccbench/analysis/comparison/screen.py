"""A comparison on a screen: what changed, what has no verdict and why, and the verdict as the last line."""

from __future__ import annotations

import io
import textwrap
from collections import Counter
from collections.abc import Sequence

from ccbench.analysis.comparison.self_check import INJECTED_THRESHOLDS, MOST_FALSE, SelfCheck
from ccbench.analysis.comparison.values import Cause, Compared, Comparison, Verdict
from ccbench.units import format_change, format_seconds

MOST_ROWS = 40
"""Points of one verdict that are shown; JSON has all."""

MOST_NOTES = 12


def screen(compared: Compared, width: int = 80) -> str:
    """The whole comparison as text of at most ``width`` columns."""
    undecided = [one for one in compared.of(Verdict.NONE) if not one.wrong]
    blocks = [
        ("Wrong results", [one for one in compared.points if one.wrong]),
        *((verdict.value.capitalize(), list(compared.of(verdict))) for verdict in Verdict if verdict.value in
          ("slower", "faster", "same")),
        ("No verdict, interval too wide", [one for one in undecided if one.cause is Cause.TOO_WIDE]),
    ]  # fmt: skip
    lines = _wrapped(f"{compared.base} -> {compared.new} (time: new over base, minus one)", width)
    for title, points in blocks:
        if points:
            lines += _table(f"{title}: {len(points)}", points, width).splitlines()
    lines += _causes([one for one in undecided if one.cause is not Cause.TOO_WIDE], width)
    lines += _told(compared, width)
    notes = [*compared.notes[:MOST_NOTES], *compared.left_out]
    more = len(compared.notes) - MOST_NOTES
    notes += [f"and {more} more, all in --format json"] if more > 0 else []
    lines += [line for note in notes for line in _wrapped(f"note: {note}", width)]
    return "".join(f"{line}\n" for line in (*lines, *_wrapped(compared.sentence, width)))


def change_text(one: Comparison) -> str:
    """``+12.3%``, or nothing where there is no ratio."""
    return "" if one.change is None else format_change(one.change)


def interval_text(one: Comparison) -> str:
    """``[+8.1%, +15.0%]``, or nothing where there is no interval."""
    return (
        ""
        if one.low is None or one.high is None
        else f"[{format_change(one.low - 1)}, {format_change(one.high - 1)}]"
    )


def seconds_text(seconds: float | None) -> str:
    """A time, or a dash."""
    return "-" if seconds is None else format_seconds(seconds)


def printable(text: str) -> str:
    """``text`` in one line without characters that steer a terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in " ".join(text.split()))


def _table(title: str, points: Sequence[Comparison], width: int) -> str:
    """One block of rows; the work is said once for all its sizes."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    sink = io.StringIO()
    console = Console(file=sink, width=width, color_system=None, highlight=False, markup=False, emoji=False)
    table = Table(
        box=box.SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False, padding=(0, 1, 0, 0)
    )
    table.add_column("point", overflow="fold", min_width=12)
    for name in ("size", "base", "new", "time"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("interval", justify="right", overflow="fold", min_width=16)
    before = ""
    for one in points[:MOST_ROWS]:
        label = printable(one.point.name)
        times = [seconds_text(seconds) for seconds in (one.base_seconds, one.new_seconds)]
        cells = (one.point.size, *times, change_text(one), interval_text(one) or "no interval")
        table.add_row("" if label == before else label, *cells)
        before = label
    console.print(table)
    rest = len(points) - MOST_ROWS
    lines = [line.rstrip() for line in sink.getvalue().splitlines() if line.strip()]
    return "\n".join(lines + [f"and {rest} more"] * (rest > 0))


def _causes(points: Sequence[Comparison], width: int) -> list[str]:
    """Points without a verdict by cause, with the first reason of each."""
    lines = []
    for cause in dict.fromkeys(one.cause for one in points):
        alike = [one for one in points if one.cause is cause]
        name = cause.value if cause else ""
        first = f"{alike[0].point.label}: {alike[0].reason}"
        lines += _wrapped(f"No verdict, {name}: {len(alike)}, first {first}", width)
    return lines


def _told(compared: Compared, width: int) -> list[str]:
    """What is unusual about verdicts, such as what they rest on, each once with the number of its points."""
    told = Counter(one.reason for one in compared.points if one.verdict is not Verdict.NONE and one.reason)
    words = [f"{count} x {reason}" for reason, count in told.most_common(MOST_NOTES)]
    words += [f"and {len(told) - MOST_NOTES} more reasons"] * (len(told) > MOST_NOTES)
    return [line for one in words for line in _wrapped(one, width)]


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(printable(text), max(width, 20), subsequent_indent="  ") or [""]


def self_check_screen(check: SelfCheck, width: int = 80) -> str:
    """What A=A showed, as text of at most ``width`` columns."""
    settings = check.settings
    lines = [f"A=A of {' and '.join(check.runs)}: {check.points} points, {check.left_out} left out"]
    shares = [
        f"false alarms: {check.false_alarms:.3%} of points in {check.splits} share-outs of the rounds, "
        f"{check.alarmed:.1%} of share-outs with any (let pass: {MOST_FALSE:.0%} of points)",
        f"planted slow-downs of {INJECTED_THRESHOLDS:g} thresholds found: {check.found:.1%} "
        f"(threshold {settings.thresholds.default:.3g}, confidence {settings.confidence:.4g})",
    ]
    lines += shares if check.points else []  # shares of nothing would read like good news
    if check.direct is not None:
        alarms = check.direct_alarms
        share = "no point can be judged" if alarms is None else f"{alarms:.1%} of points differ"
        lines.append(f"the two runs as they are: {share} ({check.direct.sentence})")
    lines.append(
        "these settings can be trusted here" if not check.exit_code else f"NO VERDICT: {check.doubt}"
    )
    return "".join(f"{one}\n" for line in lines for one in _wrapped(line, width))
