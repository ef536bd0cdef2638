"""Card at the top of a run's page: a row per collective, its verdict, and three sizes that show it."""

from __future__ import annotations

from collections import Counter
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
from ccbench.flags import Flag
from ccbench.model.library.intervals import regime_of
from ccbench.report.wording import DOUBTFUL, meaning_of, place_of
from ccbench.results import Point
from ccbench.results.keys import Key, grouped
from ccbench.units import plain, plural

MOST_ROWS = 16
"""Collectives of the card, the gravest; the table of cases has all."""

LONGEST_REASON = 300

_WORK = Key(("source", "backend", "collective", "ranks", "nodes"))


@dataclass(frozen=True)
class CardRow:
    """One collective.

    word: None where no healthy system of its kind is known.
    cells: (size, what was measured, what was expected or "") of up to three sizes.
    reason: of the word, "" where the figures say it.
    largest: its case of the largest size, None where none has a time.
    in_seconds: the gravest sizes are judged by time, not by bandwidth.
    """

    subject: str
    word: SpeedWord | None
    cells: tuple[tuple[str, str, str], ...]
    reason: str = ""
    collective: str = ""
    largest: Point | None = None
    in_seconds: bool = False


def card_rows(
    points: Sequence[Point], verdicts: Sequence[SpeedVerdict], forced: bool = False
) -> tuple[CardRow, ...]:
    """Return a row for each plain collective among ``points``, the gravest first, then all_reduce.

    Forced algorithms have rows only where the library's own choice was not run; with ``forced`` all have.
    Pairs of ranks, computing beside a collective and the like have figures of their own.
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
        _WORK(point) for point in plain_points if point.algorithm == DEFAULT and point.is_timed
    }
    rows = [
        _row(subject, members, verdicts)
        for subject, members in groups.items()
        if forced or members[0].algorithm == DEFAULT or _WORK(members[0]) not in free
    ]
    order = [*SpeedWord, None]
    return tuple(
        sorted(
            rows,
            key=lambda row: (
                order.index(row.word),
                place_of(row.collective),
                -(row.largest.size_bytes if row.largest else -1),
            ),
        )
    )


def _row(subject: str, members: Sequence[Point], verdicts: Sequence[SpeedVerdict]) -> CardRow:
    timed = grouped(
        (point for point in members if point.is_timed), lambda point: point.size_bytes
    )
    # Of several cases of a size the usual buffers, then the fastest.
    shown = [
        min(timed[size], key=lambda point: (bool(point.in_place), point.median_seconds))
        for size in representative_sizes(timed)
    ]
    reason, label = "" if shown else "no case has a time", provenance(members)
    if shown and label:
        reason = meaning_of(label)
    elif shown and all(Flag.CPU_CONTENTION in point.flags for point in shown):
        reason = "other programs took the processors while it was measured"
    own = next((each for each in verdicts if subject in (each.subject, *each.subjects)), None)
    verdict = own or SpeedVerdict(subject, reason=reason)
    reasons = (
        *(dip.text for dip in verdict.dips),
        verdict.reason,
        verdict.left_out,
        *(each.reason for each in verdict.regimes),
    )
    cells = []
    for point in shown:
        regime = RegimeVerdict(
            regime_of(point.size_bytes), verdict.word, point, 1.0, 1.0, frozenset()
        )
        expected = regime.expected
        if point.predicted_seconds and not expected:
            expected = f"predicted {regime.figure(point.predicted_seconds)}"
        figure = regime.figure(point.median_seconds or 0.0)
        cells.append((point.size, DOUBTFUL * (not point.trusted) + figure, expected))
    return CardRow(
        plain(subject),
        own.word if own else None,
        tuple(cells),
        plain("; ".join(dict.fromkeys(filter(None, reasons))), LONGEST_REASON),
        plain(members[0].collective),
        shown[-1] if shown else None,
        next((each.in_seconds for each in verdict.regimes if each.word is verdict.word), False),
    )


def headline(rows: Sequence[CardRow], verdicts: Sequence[SpeedVerdict]) -> str:
    """Return the verdict in one sentence; "" where there is nothing to judge."""
    if len(rows) == 1 and len(verdicts) == 1:
        return verdicts[0].sentence
    # A collective has a row for each backend, algorithm and number of ranks.
    rows = [row for row in rows if row.word is not None]
    counts = Counter(
        word for word, _ in dict.fromkeys((row.word, row.collective) for row in rows) if word
    )
    if not counts:
        return ""
    # The first word is the gravest: rows are in that order.
    (word, count), *rest = counts.items()
    alike = {row.reason for row in rows if row.word is word}
    text = f"{word.value}: {count} of {plural(len({row.collective for row in rows}), 'collective')}"
    if word not in (SpeedWord.NORMAL, SpeedWord.CANNOT_SAY):
        several = sum(row.word is word for row in rows) > 1
        text += f": {rows[0].subject}{', ...' if several else ''}"
    elif len(alike) == 1:
        text += "".join(f": {reason}" for reason in alike if reason)
    return "; ".join((text, *(f"{number} {other.value}" for other, number in rest)))
