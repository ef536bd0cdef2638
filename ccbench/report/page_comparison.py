"""The page of a comparison: its verdict, what changed, the ratio of times against size, and every point."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ccbench.analysis.verdicts import Compared, Comparison, Verdict
from ccbench.findings import Finding
from ccbench.report.comparison_text import (
    COLUMNS,
    LONGEST_TEXT,
    SIZE_COLUMN,
    VERDICT_COLUMN,
    message_of,
)
from ccbench.report.curves import FEWEST_JOINED, SIZE, subtitle
from ccbench.report.figure import Figure, FigureAxis, FigureSeries, SeriesKind, measured_series
from ccbench.report.page import PageContent, RunPart, Section, render_page
from ccbench.report.present import table_of
from ccbench.report.wording import SERIES, series_names
from ccbench.results.keys import Key, grouped
from ccbench.units import plain, plural

RATIO = FigureAxis("time, new over base", "ratio", "linear")

ALIKE = Key(("collective", "ranks", "nodes", "dtype", "op"))
"""Fields that all points of a figure share."""

TEXT = (
    "Above 1 the new run is slower. Dots are ratios of medians with their interval; hollow ones have no verdict. "
    "The line is 1."
)


def comparison_page(compared: Compared) -> str:
    """Return the whole file as text. Raises MissingDependency without jinja2."""
    sized = [
        row for row in compared.points if row.ratio is not None and row.point.size_bytes > 0
    ]
    groups = list(grouped(sized, lambda row: ALIKE(row.point)).values())
    # The figure beside the verdict has what became worse.
    groups.sort(key=lambda rows: not any(map(_is_worse, rows)))
    figures = [(f"figure-{place}", _figure(rows)) for place, rows in enumerate(groups, start=1)]
    places = {
        id(row): name for (name, _), rows in zip(figures, groups, strict=True) for row in rows
    }
    notes = (*compared.notes, *compared.left_out)
    part = RunPart(
        name="",
        facts=plain(f"{compared.base} → {compared.new}", LONGEST_TEXT),
        sentences=tuple(plain(text, LONGEST_TEXT) for text in (compared.sentence, *notes)),
        findings=tuple(_findings(compared, places)),
    )
    heading = "Times of the new run over those of the base"
    columns = [SIZE_COLUMN if column.title == "size" else column for column in COLUMNS]
    return render_page(
        PageContent(
            title="Comparison",
            runs=(part,),
            lead=figures[0] if figures else None,
            sections=(Section("comparison", heading, TEXT, tuple(figures[1:])),)
            if figures[1:]
            else (),
            table=table_of((*columns, VERDICT_COLUMN), compared.points),
            table_text="Medians of both runs, and the new time over the base's, minus one.",
        )
    )


def _is_worse(row: Comparison) -> bool:
    return row.wrong or row.verdict is Verdict.SLOWER


def _findings(compared: Compared, places: Mapping[int, str]) -> Iterator[Finding]:
    """Give one for each point that is worse, for each cause of no verdict, and for each faster point.

    places: identity of a point -> name of its figure.
    """

    def change(severity: str, row: Comparison) -> Finding:
        word = "wrong results" if row.wrong else row.verdict.value
        subject = plain(f"{word}: {row.point.label}", LONGEST_TEXT)
        return Finding(severity, places.get(id(row), ""), (), message_of(row), "", subject)

    worse = filter(_is_worse, compared.points)
    for row in sorted(worse, key=lambda row: (not row.wrong, -(row.ratio or 0.0))):
        yield change("problem", row)
    undecided = [row for row in compared.of(Verdict.NONE) if not row.wrong]
    for cause, rows in grouped(undecided, lambda row: row.cause).items():
        subject = f"no verdict on {plural(len(rows), 'point')}: {cause.value if cause else ''}"
        evidence = plain(f"first {rows[0].point.label}: {rows[0].reason}", LONGEST_TEXT)
        yield Finding("doubt", "undecided", (), evidence, "", subject)
    for row in compared.of(Verdict.FASTER):
        yield change("note", row)


def _figure(rows: Sequence[Comparison]) -> Figure:
    """Return ratios against size, of one kind of work; a line for each way to do it."""
    points = [row.point for row in rows]
    names = series_names(points)
    series: list[FigureSeries] = []
    for style, (key, members) in enumerate(
        grouped(rows, lambda row: SERIES(row.point)).items()
    ):
        dots = [
            (
                float(row.point.size_bytes),
                row.ratio or 0.0,
                row.low,
                row.high,
                row.verdict is not Verdict.NONE,
            )
            for row in sorted(members, key=lambda row: row.point.size_bytes)
        ]
        joined = len(dots) >= FEWEST_JOINED
        series.append(measured_series(names[key], style, dots, joined=joined))
    sizes = [float(point.size_bytes) for point in points]
    ends = min(sizes), max(sizes)
    series.append(FigureSeries("no change", SeriesKind.REFERENCE, -1, ends, (1.0, 1.0)))
    return Figure(
        key=f"comparison-{points[0].label}",
        topic="comparison",
        title=f"{points[0].collective}: new over base",
        subtitle=subtitle(points),
        x=SIZE,
        y=RATIO,
        series=tuple(series),
    )
