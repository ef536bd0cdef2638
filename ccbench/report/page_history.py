"""The page of a history: that of a report, with a figure for every series and a finding for every step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from ccbench.analysis.history import CaseHistory, History, change_text, when
from ccbench.findings import Finding
from ccbench.report import figure as drawing
from ccbench.report.figure import Figure, FigureAxis, Mark, SeriesKind, measured_series
from ccbench.report.page import PageContent, RunPart, Section, render_page
from ccbench.report.present import ShownColumn, page_table
from ccbench.units import format_change, format_seconds, plain, plural

MOST_PICTURES = 400
"""Series with the newest steps come first, and how many are left out is said."""

LONGEST = 400

LEGEND = (
    "Points are medians of runs with their intervals, from the oldest run to the newest; hollow points were "
    "flagged. Lines are levels; upright lines are steps, and runs before which something recorded of the "
    "machine changed: the small print says what."
)


def history_page(history: History, title: str = "History") -> str:
    """The whole file as text. Raises MissingDependency without jinja2 or plotly."""
    drawn = history.series[:MOST_PICTURES] if history.long_enough else ()
    figures = {f"figure-{place}": _figure(one) for place, one in enumerate(drawn, start=1)}
    # A page of thousands of figures would open in no browser.
    left_out = len(history.series) - len(drawn)
    more = f" {left_out} more series without newer steps are not drawn." if left_out else ""
    # A step's kind is the name of its figure, to which the page links.
    places = {(one.label, one.machine): name for name, one in zip(figures, drawn, strict=True)}
    findings = []
    for change in history.changes:
        reasons = "; ".join(change.environment)
        nothing = "look for what runs do not record: nothing that they do changed"
        advice = f"look at what changed with it: {reasons}" if reasons else nothing
        confirmed = f"{plural(change.runs_after, 'run')} on the new level"
        evidence = ", ".join(
            (when(change.created_at), f"run {change.run}", change.machine, confirmed)
        )
        findings.append(
            Finding(
                "doubt" if change.change > 0 else "note",
                places.get((change.series, change.machine), "step"),
                (),
                plain(evidence, LONGEST),
                plain(advice, 2 * LONGEST),
                plain(f"{change_text(change)} {change.series}", LONGEST),
            )
        )
    if history.problems:
        unread = f"{plural(len(history.problems), 'file')} cannot be read"
        named = plain("; ".join(history.problems), 10 * LONGEST)
        findings.insert(
            0, Finding("problem", "unreadable", (), named, "see the files named", unread)
        )
    slower = sum(change.change > 0 for change in history.changes)
    overview = f"{plural(slower, 'step')} to slower, {len(history.changes) - slower} to faster."
    part = RunPart(
        name="",
        facts=f"{plural(history.runs, 'run')}, {len(history.series)} series",
        sentences=(
            history.too_short
            or (overview if history.changes else "No lasting change was found."),
        ),
        findings=tuple(findings),
    )
    section = Section("history", "Series", LEGEND + more, tuple(figures.items()))
    return render_page(
        PageContent(
            title=plain(title, LONGEST),
            runs=(part,),
            sections=(section,) if figures else (),
            table=_rows(history.series),
            table_text="Every median of every series; times in seconds where they are copied.",
        )
    )


def _figure(one: CaseHistory) -> Figure:
    seconds = [seen.median_seconds for seen in one.seen]
    # An interval may be far wider than the curve; beyond twice the largest median it is cut.
    top = 2 * max(seconds)
    medians = measured_series(
        "median of a run",
        0,
        [
            (
                float(number),
                seen.median_seconds,
                seen.low_seconds,
                None if seen.high_seconds is None else min(seen.high_seconds, top),
                not seen.doubts,
            )
            for number, seen in enumerate(one.seen, start=1)
        ],
    )
    levels = [
        drawing.FigureSeries(
            f"level {format_seconds(level.median)}",
            SeriesKind.REFERENCE,
            -1,
            (float(level.start + 1), float(level.end)),
            (level.median, level.median),
        )
        for level in one.levels
    ]
    steps = {
        level.start: f"{format_change(change.change)} {'slower' if change.change > 0 else 'faster'}"
        for level, change in zip(one.levels[1:], one.changes, strict=True)
    }
    marked = sorted({*steps, *one.moved})
    notes = [
        f"{one.seen[place].run}: {'; '.join(lines)}"
        for place, lines in sorted(one.moved.items())
    ]
    first, last = (when(seen.created_at)[:10] for seen in (one.seen[0], one.seen[-1]))
    return Figure(
        key=one.label,
        topic="history",
        title=plain(one.label, LONGEST),
        subtitle=plain(
            f"{one.machine} · {plural(len(seconds), 'run')} · {first} to {last}", LONGEST
        ),
        x=FigureAxis("run, the oldest first", "run", "linear"),
        y=FigureAxis("median time", "seconds", "linear"),
        series=(medians, *levels),
        footnote=tuple(plain(note, 2 * LONGEST) for note in notes)
        or ("Nothing recorded changed",),
        marks=tuple(Mark(place + 0.5, steps.get(place, "changed")) for place in marked),
    )


def _rows(series: Sequence[CaseHistory]) -> Mapping[str, Any]:
    """Every median as the page's table takes it; its rows are pairs of a series and a run's median."""
    word = partial(ShownColumn, right=False)
    shown = (
        word("series", value=lambda row: plain(row[0].label, LONGEST)),
        word("machine", value=lambda row: plain(row[0].machine)),
        word("run", value=lambda row: plain(row[1].run)),
        word("began", value=lambda row: when(row[1].created_at)),
        ShownColumn(
            "median",
            value=lambda row: row[1].median_seconds,
            form=format_seconds,
            name="median_seconds",
        ),
        word("flags", value=lambda row: "; ".join(row[1].doubts)),
    )
    return page_table(shown, [(member, median) for member in series for median in member.seen])
