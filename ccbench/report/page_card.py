"""Card at the top of a run's page: a row per collective, its verdict, and three sizes that show it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ccbench.analysis.findings import provenance
from ccbench.analysis.representative import representative_sizes
from ccbench.analysis.speed_verdict import (
    RegimeVerdict,
    SpeedVerdict,
    SpeedWord,
    subject_of,
)
from ccbench.cases.axes import DEFAULT, WORK
from ccbench.model.library.intervals import regime_of
from ccbench.report.wording import meaning_of
from ccbench.results import Point
from ccbench.results.keys import grouped
from ccbench.units import plain, plural

MOST_ROWS = 16
"""Collectives of the card, the gravest; the table of cases has all."""

LONGEST_REASON = 300


@dataclass(frozen=True)
class CardCell:
    """One size of a row: figures with their units. expected: "" where nothing is known."""

    size: str
    measured: str
    expected: str


@dataclass(frozen=True)
class CardRow:
    """One collective. largest: its case of the largest size; None where none has a time.

    in_seconds: the gravest sizes are judged by time, not by bandwidth. reason: of the word, "" where the
    figures say it.
    """

    subject: str
    word: SpeedWord
    cells: tuple[CardCell, ...]
    reason: str = ""
    largest: Point | None = None
    in_seconds: bool = False

    @property
    def style(self) -> str:
        """Class of the word in the style sheet."""
        return self.word.value.lower().replace(" ", "-")


def card_rows(points: Sequence[Point], verdicts: Sequence[SpeedVerdict]) -> tuple[CardRow, ...]:
    """Return a row for each plain collective among ``points``, the gravest first, then the largest sizes.

    Forced algorithms have rows only where the library's own choice was not run. Pairs of ranks, computing
    beside a collective and the like have figures of their own.
    """
    plain_points = [
        point
        for point in points
        if not (point.baseline or point.pair)
        and point.mode == "streaming"
        and all(getattr(point, axis.name) == axis.default for axis in WORK)
    ]
    with_source = len({point.source for point in plain_points}) > 1
    groups = grouped(plain_points, lambda point: subject_of(point, with_source=with_source))
    free = {
        (point.source, point.backend, point.collective, point.ranks, point.nodes)
        for point in plain_points
        if point.algorithm == DEFAULT and point.is_timed
    }
    rows = []
    for subject, members in groups.items():
        first = members[0]
        work = (first.source, first.backend, first.collective, first.ranks, first.nodes)
        if first.algorithm == DEFAULT or work not in free:
            rows.append(_row(subject, members, verdicts))
    order = list(SpeedWord)
    rows.sort(key=lambda row: (order.index(row.word), -_size_bytes(row)))
    return tuple(rows)


def _size_bytes(row: CardRow) -> int:
    return -1 if row.largest is None else row.largest.size_bytes


def _row(subject: str, members: Sequence[Point], verdicts: Sequence[SpeedVerdict]) -> CardRow:
    timed = grouped([point for point in members if point.is_timed], lambda p: p.size_bytes)
    # Of several cases of a size the usual buffers, then the fastest.
    shown = [
        min(timed[size], key=lambda point: (bool(point.in_place), point.median_seconds))
        for size in representative_sizes(timed)
    ]
    verdict = next(
        (each for each in verdicts if subject in (each.subject, *each.subjects)), None
    )
    word = SpeedWord.CANNOT_SAY if verdict is None else verdict.word
    cells = []
    for point in shown:
        regime = RegimeVerdict(regime_of(point.size_bytes), word, point, 1.0, 1.0, frozenset())
        expected = regime.expected
        if point.predicted_seconds and not expected:
            expected = f"predicted {regime.figure(point.predicted_seconds)}"
        cells.append(CardCell(point.size, regime.figure(point.median_seconds or 0.0), expected))
    label = provenance(members)
    if verdict is not None:
        reasons = (verdict.reason, verdict.left_out, *(each.reason for each in verdict.regimes))
    elif label:
        reasons = (meaning_of(label),)
    elif not shown:
        reasons = ("no case has a time",)
    else:
        reasons = (
            f"no times of healthy systems are known for {members[0].backend}; look at the predictions beside",
        )
    worst = (
        next((each for each in verdict.regimes if each.word is word), None) if verdict else None
    )
    return CardRow(
        plain(subject),
        word,
        tuple(cells),
        plain("; ".join(dict.fromkeys(filter(None, reasons))), LONGEST_REASON),
        shown[-1] if shown else None,
        worst is not None and worst.in_seconds,
    )


def headline(rows: Sequence[CardRow], verdicts: Sequence[SpeedVerdict]) -> str:
    """Return the verdict in one sentence; "" where there is nothing to judge."""
    if not rows:
        return ""
    word = rows[0].word
    alike = [row for row in rows if row.word is word]
    sentences = [each.sentence for each in verdicts if each.regimes]
    if len(rows) == 1:
        return next(iter(sentences), f"{word.value}: {rows[0].subject}: {rows[0].reason}")
    parts = [f"{word.value}: {len(alike)} of {plural(len(rows), 'collective')}"]
    if word not in (SpeedWord.NORMAL, SpeedWord.CANNOT_SAY):
        parts.append(alike[0].subject + ", ..." * (len(alike) > 1))
    elif len({row.reason for row in alike}) == 1 and alike[0].reason:
        parts.append(alike[0].reason)
    text = ": ".join(parts)
    for other in SpeedWord:
        count = sum(row.word is other for row in rows)
        if count and other is not word:
            text += f"; {count} {other.value}"
    return text
