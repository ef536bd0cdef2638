"""The page of a comparison: its verdict, what changed, the ratio of times against size, and every point."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ccbench.analysis.verdicts import Compared, Comparison, Verdict
from ccbench.cases.axes import NO_OP
from ccbench.findings import Finding
from ccbench.report.comparison_text import COLUMNS, LONGEST_TEXT, SIZE_COLUMN, VERDICT_COLUMN
from ccbench.report.curves import FEWEST_JOINED, MOST_SERIES, SIZE
from ccbench.report.figure import Figure, FigureAxis, FigureSeries, SeriesKind, measured_series
from ccbench.report.page import PageContent, RunPart, Section, render_page
from ccbench.report.present import page_table, stored
from ccbench.report.wording import SERIES, series_names
from ccbench.results.keys import Key, grouped
from ccbench.units import format_change, format_seconds, percent, plain, plural

RATIO = FigureAxis("time, new over base", "ratio", "linear")

ALIKE = Key(("collective", "ranks", "nodes", "dtype", "op"))
"""Fields that all points of a figure share."""

TEXT = (
    "Above 1 the new run is slower. Dots are ratios of medians with their interval; hollow ones have no verdict. "
    "The line is 1."
)


def comparison_page(compared: Compared) -> str:
    """Return the whole file as text. Raises MissingDependency without jinja2 or plotly."""
    sized = [
        row for row in compared.points if row.ratio is not None and row.point.size_bytes > 0
    ]
    groups = list(grouped(sized, lambda row: ALIKE(row.point)).values())
    # Figures of what changed come first.
    groups.sort(key=lambda rows: min(map(_gravity, rows)))
    figures = {
        f"figure-{place}": _figure(rows, place) for place, rows in enumerate(groups, start=1)
    }
    places = {id(row): name for name, rows in zip(figures, groups, strict=True) for row in rows}
    lead, *rest = figures.items() if figures else (None,)
    settings = compared.settings
    facts = (
        f"{compared.base} → {compared.new} · {plural(len(compared.points), 'point')} · "
        f"least change {percent(settings.thresholds.default)}, confidence {percent(settings.confidence)}"
    )
    remarks = [*compared.notes, *compared.left_out, *compared.unused_rules]
    part = RunPart(
        name="",
        facts=plain(facts, LONGEST_TEXT),
        sentences=(plain(f"{compared.sentence}.", LONGEST_TEXT),),
        findings=(
            *_findings(compared, places),
            *(
                Finding("note", "note", (), "", "", plain(text, LONGEST_TEXT))
                for text in remarks
            ),
        ),
    )
    return render_page(
        PageContent(
            title="Comparison",
            runs=(part,),
            lead=lead,
            sections=(
                Section(
                    "comparison",
                    "Times of the new run over those of the base",
                    TEXT,
                    tuple(rest),
                ),
            )
            if rest
            else (),
            table=_table(compared.points),
            table_text="Medians of both runs, and the new time over the base's, minus one.",
        )
    )


def _gravity(row: Comparison) -> int:
    """Rank of a point among findings, the gravest 0."""
    order = (Verdict.SLOWER, Verdict.FASTER, Verdict.NONE, Verdict.SAME)
    return 0 if row.wrong else 1 + order.index(row.verdict)


def _findings(compared: Compared, places: Mapping[int, str]) -> list[Finding]:
    """Return one for each point that changed, the gravest first, and one for each cause of no verdict."""
    changed = [
        row
        for row in compared.points
        if row.wrong or row.verdict in (Verdict.SLOWER, Verdict.FASTER)
    ]
    changed.sort(key=lambda row: (_gravity(row), -(row.ratio or 0.0)))
    findings = []
    for row in changed:
        word, severity = (
            ("wrong results", "problem") if row.wrong else (row.verdict.value, "note")
        )
        change = "" if row.change is None else f" {format_change(row.change)}"
        seconds = [value for value in (row.base_seconds, row.new_seconds) if value is not None]
        parts = [" → ".join(map(format_seconds, seconds)), row.reason]
        if row.low is not None and row.high is not None:
            parts.insert(
                1, f"between {format_change(row.low - 1)} and {format_change(row.high - 1)}"
            )
        findings.append(
            Finding(
                "problem" if row.verdict is Verdict.SLOWER else severity,
                places.get(id(row), "point"),
                (),
                plain(", ".join(filter(None, parts)), LONGEST_TEXT),
                "",
                plain(f"{word}{change}: {row.point.label}", LONGEST_TEXT),
            )
        )
    undecided = [row for row in compared.of(Verdict.NONE) if not row.wrong]
    for cause, rows in grouped(undecided, lambda row: row.cause).items():
        subject = f"no verdict on {plural(len(rows), 'point')}: {cause.value if cause else ''}"
        evidence = f"first {rows[0].point.label}: {rows[0].reason}"
        findings.append(
            Finding("doubt", "undecided", (), plain(evidence, LONGEST_TEXT), "", subject)
        )
    order = ("problem", "doubt", "note")
    return sorted(findings, key=lambda finding: order.index(finding.severity))


def _figure(rows: Sequence[Comparison], place: int) -> Figure:
    """Return ratios against size, of one kind of work; a line for each way to do it."""
    first = rows[0].point
    names = series_names([row.point for row in rows])
    series: list[FigureSeries] = []
    by_series = list(grouped(rows, lambda row: SERIES(row.point)).items())
    for style, (key, members) in enumerate(by_series[:MOST_SERIES]):
        dots = sorted(
            (
                float(row.point.size_bytes),
                row.ratio or 0.0,
                row.low,
                row.high,
                row.verdict is not Verdict.NONE,
            )
            for row in members
        )
        series.append(
            measured_series(names[key], style, dots, joined=len(dots) >= FEWEST_JOINED)
        )
    ends = [float(size(row.point.size_bytes for row in rows)) for size in (min, max)]
    series.append(FigureSeries("no change", SeriesKind.REFERENCE, -1, tuple(ends), (1.0, 1.0)))
    left_out = len(by_series) - MOST_SERIES
    nodes = f" on {plural(first.nodes, 'node')}" if first.nodes > 1 else ""
    op = "" if first.op == NO_OP else f" {first.op}"
    return Figure(
        key=f"comparison-{place}",
        topic="comparison",
        title=f"{first.collective}: new over base",
        subtitle=plain(f"{plural(first.ranks, 'rank')}{nodes} · {first.dtype}{op}"),
        x=SIZE,
        y=RATIO,
        series=tuple(series),
        footnote=(f"{plural(left_out, 'line')} more in the table",) if left_out > 0 else (),
    )


def _table(rows: Sequence[Comparison]) -> dict[str, Any]:
    """Return every point as the page's table takes it; what is slower or wrong stands out."""
    columns = [SIZE_COLUMN if column.title == "size" else column for column in COLUMNS]
    status = [
        "slower" if row.verdict is Verdict.SLOWER else "wrong" if row.wrong else "ok"
        for row in rows
    ]
    return page_table((*columns, VERDICT_COLUMN), rows) | {"status": stored(status)}
