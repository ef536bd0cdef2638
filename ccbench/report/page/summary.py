"""The verdict in three sentences: what was measured, how near to prediction and bound, what is worst."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from ccbench.report.figures_across import bias_text, error_and_bias
from ccbench.report.points import LEFT_OUT, Point
from ccbench.report.run_finding import RunFinding
from ccbench.report.text import percent, plural
from ccbench.report.verdict import SMALLEST_FOR_BOUND
from ccbench.units import format_size

MOST_NAMED = 3


def three_sentences(
    measured: str, points: Sequence[Point], findings: Sequence[RunFinding]
) -> tuple[str, str, str]:
    """``measured`` is the first: what was measured; the others are made here."""
    return measured, _closeness(points), _worst(findings)


def _closeness(points: Sequence[Point]) -> str:
    own = [point for point in points if not point.baseline]
    if own and all(point.emulated for point in own if point.median_seconds):
        if any(point.emulated for point in own):
            return f"No prediction or bound is laid beside emulated times: they are {LEFT_OUT}."
        return "No time was measured that could be laid beside a prediction or a bound."
    parts = []
    priced = [point for point in own if point.prediction_error is not None]
    if priced:
        error, bias = error_and_bias(priced)
        parts.append(f"the median error of the prediction is {percent(error)} ({bias_text(bias)})")
    shares = [
        point.bound_share
        for point in own
        if point.bound_share is not None and point.size_bytes >= SMALLEST_FOR_BOUND
    ]
    if shares:
        parts.append(
            f"half of the {plural(len(shares), 'case')} of {format_size(SMALLEST_FOR_BOUND)} and more reach "
            f"{percent(median(shares))} of the bound, the best {percent(max(shares))}"
        )
    if not parts:
        return "There is neither a prediction nor a bound to lay beside it; name the machine with --machine."
    text = "; ".join(parts)
    return text[0].upper() + text[1:] + "."


def _worst(findings: Sequence[RunFinding]) -> str:
    grave = [one for one in findings if one.severity != "note"]
    if not grave:
        return "Nothing was found that needs a look."
    problems = sum(one.severity == "problem" for one in grave)
    named = "; ".join(one.subject for one in grave[:MOST_NAMED])
    counts = [plural(problems, "problem")] if problems else []
    counts += [plural(len(grave) - problems, "doubt")] if len(grave) > problems else []
    return f"{' and '.join(counts)} found, first: {named}."
