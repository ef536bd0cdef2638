"""What a run found, in a few sentences, the worst first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import median

from ccbench.cases import Status
from ccbench.report.figures_across import error_and_bias
from ccbench.report.footnotes import flag_counts
from ccbench.report.points import Point, is_loopback, points_of, provenance
from ccbench.report.text import percent, plural
from ccbench.runs import Run
from ccbench.units import format_seconds

NOTABLE_GAP = 1.5
"""A case this many times slower than predicted is named."""

IMPOSSIBLE = 0.98
"""Faster than the bound by more than rounding: the bound or the measurement is wrong."""


def verdict_lines(run: Run) -> list[str]:
    """At most a handful of sentences: what was measured, how near to model and bound, the worst findings."""
    points = points_of(run)
    lines = [_measured(points), *_wrong(points), *_not_measured(points)]
    lines += [*_against_model(points), *_doubtful(points), *_machine(run)]
    if run.problems:
        lines.append(f"{plural(len(run.problems), 'file')} could not be read, first: {run.problems[0]}")
    return lines


def _machine(run: Run) -> list[str]:
    """What the diagnosis of the machine found, problems first."""
    findings = run.manifest.get("findings")
    if not isinstance(findings, list):
        return []
    known = [finding for finding in findings if isinstance(finding, dict)]
    problems = [finding for finding in known if finding.get("severity") == "problem"]
    if not problems:
        return []
    first = problems[0]
    devices = ", ".join(map(str, first.get("devices", ())))
    text = f"{devices}: {first.get('evidence', '')}; {first.get('advice', '')}"
    return [f"The machine has {plural(len(problems), 'problem')}, first: {text} (ccbench topo lists all)."]


def _measured(points: Sequence[Point]) -> str:
    if not points:
        return "The run holds no case."
    ok = [point for point in points if point.status == Status.OK]
    label = provenance(points)
    collectives = ", ".join(sorted({point.collective for point in points}))
    backends = ", ".join(sorted({point.backend for point in points}))
    verb = "computed by a model" if label and not label.startswith("PARTLY") else "measured"
    text = f"{len(ok)} of {plural(len(points), 'case')} {verb}: {collectives} on {backends}."
    fastest = max((point for point in ok if point.busbw), key=lambda one: one.busbw or 0.0, default=None)
    if fastest is not None:
        text += f" Peak bus bandwidth {fastest.busbw:.4g} GB/s ({fastest.label})."
    return f"{label}: {text}" if label else text


def _wrong(points: Sequence[Point]) -> list[str]:
    wrong = [point for point in points if point.status == Status.WRONG]
    if not wrong:
        return []
    worst = max(wrong, key=lambda point: point.wrong_elements or 0)
    count = "" if worst.wrong_elements is None else f", {plural(worst.wrong_elements, 'wrong element')}"
    return [
        f"WRONG RESULTS in {plural(len(wrong), 'case')}, worst: {worst.label}{count}. {worst.detail}".strip()
    ]


def _not_measured(points: Sequence[Point]) -> list[str]:
    """Failures with their first reason; what is merely unsupported or skipped is counted."""
    lines = []
    words = {
        Status.TIMED_OUT: "timed out or hung",
        Status.FAILED: "failed",
        Status.OUT_OF_MEMORY: "ran out of memory",
    }
    for status, word in words.items():
        failed = [point for point in points if point.status == status]
        if failed:
            reason = f" ({failed[0].detail})" if failed[0].detail else ""
            lines.append(f"{plural(len(failed), 'case')} {word}, first: {failed[0].label}{reason}.")
    quiet = Counter(
        point.status.value for point in points if point.status in (Status.UNSUPPORTED, Status.SKIPPED)
    )
    if quiet:
        lines.append(", ".join(f"{plural(n, 'case')} {status}" for status, n in sorted(quiet.items())) + ".")
    return lines


def _against_model(points: Sequence[Point]) -> list[str]:
    lines = []
    priced = [point for point in points if point.prediction_error is not None]
    if priced:
        error, bias = error_and_bias(priced)
        side = "slower" if bias < 0 else "faster"
        text = f"Median error of the prediction {percent(error)}"
        text += f", typically {percent(abs(bias))} {side} than predicted" if abs(bias) > 0.005 else ""
        lines.append(text + f" ({plural(len(priced), 'case')}).{_biggest_gap(priced)}")
    shares = [point.bound_share for point in points if point.bound_share is not None]
    if shares:
        lines.append(f"Half of the cases reach at least {percent(median(shares))} of the bound.")
    beyond = [point for point in points if (point.bound_share or 0.0) > 1 / IMPOSSIBLE]
    if beyond:
        first = max(beyond, key=lambda point: point.bound_share or 0.0)
        lines.append(
            f"{plural(len(beyond), 'case')} faster than the bound, which cannot be: the machine's numbers or "
            f"the measurement are off; most: {first.label}, {percent(first.bound_share or 0.0)} of the bound."
        )
    return lines


def _biggest_gap(priced: Sequence[Point]) -> str:
    """The case that is slowest against its prediction, where that is worth a look; trusted ones first."""
    known = [point for point in priced if point.trusted] or list(priced)
    worst = max(known, key=_slowdown)
    if _slowdown(worst) < NOTABLE_GAP:
        return ""
    where = f"; costs most: {worst.bottleneck}" if worst.bottleneck else ""
    return (
        f" Biggest gap: {worst.label} took {format_seconds(worst.median_seconds or 0.0)}, "
        f"{_slowdown(worst):.2g} times the prediction{where}."
    )


def _slowdown(point: Point) -> float:
    if not point.predicted_seconds or point.median_seconds is None:
        return 0.0
    return point.median_seconds / point.predicted_seconds


def _doubtful(points: Sequence[Point]) -> list[str]:
    lines = []
    ok = [point for point in points if point.status == Status.OK]
    flagged = [point for point in ok if not point.trusted]
    if flagged:
        flag, count = flag_counts(points)[0]
        lines.append(
            f"{len(flagged)} of {plural(len(ok), 'case')} flagged as doubtful, most often: {flag} ({count})."
        )
    begun = [point for point in ok if not point.complete]
    if begun:
        lines.append(f"{plural(len(begun), 'case')} not visited as often as planned: the run ended early.")
    if is_loopback(points):
        lines.append("Loopback: ranks shared a device or a host's loopback; no link was measured.")
    return lines
