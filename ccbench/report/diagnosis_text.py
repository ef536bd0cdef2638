"""A diagnosis as text, plain values and a page: the answer, the findings with their evidence, what was read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ccbench.analysis.codes import code_of
from ccbench.analysis.diagnose import Answer
from ccbench.analysis.diagnosis import Diagnosis
from ccbench.readers.evidence import TextPart
from ccbench.report.present import first, two_lines, values_of, wrapped
from ccbench.report.run_screen import verdict_rows
from ccbench.report.wording import MOST_VERDICTS, measured_text, points_of, speed_lines
from ccbench.units import plain, plural

MOST_FINDINGS = 8
"""That the screen shows; --json has all."""

MOST_PARTS = 12
"""Ranges of lines that the screen shows."""

SENTENCES = 1000
"""Characters of the longest sentence that is shown."""


def diagnosis_lines(answer: Answer, width: int, whole: bool = False) -> Iterator[str]:
    """Yield the answer, what was measured, the findings, what was read and what was not.

    whole: findings with their lines, what they mean and what would prove them.
    """
    yield from wrapped(plain(answer.sentence, SENTENCES), width)
    yield from _measured_lines(answer, width)
    if answer.diagnoses:
        yield ""
    most = len(answer.diagnoses) if whole else MOST_FINDINGS
    for diagnosis in answer.diagnoses[:most]:
        head = f"{diagnosis.severity.capitalize()} {code_of(diagnosis.kind)}".rstrip()
        # The first sentence of all is not read twice.
        if diagnosis.subject not in answer.sentence:
            head += f": {plain(diagnosis.subject, SENTENCES)}"
        elif diagnosis.kind == "slow" and diagnosis.meaning:
            # Its causes: what is slow is in the first sentence.
            head += f", {plain(diagnosis.meaning, SENTENCES)}" if not whole else ""
        if whole:
            yield from wrapped(head, width)
            yield from _evidence_lines(diagnosis, width)
        else:
            yield from two_lines(head, plain(diagnosis.advice, SENTENCES), width)
    if answer.diagnoses and not whole:
        more = len(answer.diagnoses) - most
        counted = f"and {plural(more, 'more finding')}; " if more > 0 else ""
        told = (
            f"{counted}lines and proof: ccbench check -v; a code: ccbench check --explain CODE"
        )
        yield from wrapped(told, width)
    yield ""
    yield from _part_lines("Read", answer.evidence.parts, width)
    yield from _part_lines(
        "Not read (no reader knows these lines)", answer.evidence.unread, width
    )


def _evidence_lines(diagnosis: Diagnosis, width: int) -> Iterator[str]:
    """Yield the lines that show it, what it means, what to do and what would prove it."""
    for quote in diagnosis.quotes:
        yield f"  {quote.place}: {plain(quote.quote, 160)}".rstrip(": ")
    if diagnosis.count > len(diagnosis.quotes) > 0:
        yield f"  ({plural(diagnosis.count, 'line')} in all)"
    labels = (
        ("Means", diagnosis.meaning),
        ("Do", diagnosis.advice),
        ("Prove it", diagnosis.command),
    )
    for label, text in labels:
        if text:
            lines = wrapped(f"{label}: {plain(text, SENTENCES)}", width - 2)
            yield from (f"  {line}" for line in lines)


def _measured_lines(answer: Answer, width: int) -> Iterator[str]:
    """Yield verdicts besides the answer's, many as a table; without one what was measured."""
    run, verdicts = answer.measured.run, answer.verdicts
    if len(verdicts) > MOST_VERDICTS:
        yield from verdict_rows(verdicts, width)
        return
    # What the program died of is the answer then.
    lines = speed_lines([each for each in verdicts if not each.crashed])
    if run is not None and not verdicts:
        lines = [measured_text(points_of(run))]
    for line in lines:
        if line not in answer.sentence:
            yield from wrapped(line, width)


def _part_lines(label: str, parts: Sequence[TextPart], width: int) -> Iterator[str]:
    if not parts:
        return
    by_form: dict[tuple[str, str], list[str]] = {}
    for part in parts:
        ends = dict.fromkeys((part.first, part.last))
        ranges = by_form.setdefault((part.file, part.form), [])
        ranges.append("-".join(str(end) for end in ends if end))
    texts = []
    for (file, form), ranges in by_form.items():
        listed = ", ".join(first(ranges, MOST_PARTS, "and {} more"))
        word = "line" if ranges[0].isdigit() and len(ranges) == 1 else "lines"
        lines = f": {word} {listed}" if any(ranges) else ""
        texts.append(f"{plain(file, 100)}{f' as {form}' if form else ''}{lines}")
    for text in first(texts, MOST_PARTS):
        yield from wrapped(f"{label}: {text}", width)


def diagnosis_document(answer: Answer) -> dict[str, Any]:
    """Return the answer for programs; lines are 1-based."""
    return {
        "outcome": answer.outcome.name.lower(),
        "sentence": answer.sentence,
        "findings": [
            {
                **values_of(
                    diagnosis,
                    "severity",
                    "kind",
                    "subject",
                    "meaning",
                    "advice",
                    "command",
                    "count",
                ),
                "code": code_of(diagnosis.kind),
                "evidence": [
                    values_of(quote, "file", "line", "quote") for quote in diagnosis.quotes
                ],
            }
            for diagnosis in answer.diagnoses
        ],
        "verdicts": [verdict.document for verdict in answer.verdicts],
        "read": [
            values_of(part, "file", "form", "first", "last") for part in answer.evidence.parts
        ],
        "not_read": [
            values_of(part, "file", "first", "last") for part in answer.evidence.unread
        ],
        "remarks": list(answer.remarks),
    }
