"""What a run found, in a few sentences, the worst first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import median

from ccbench.cases import Status
from ccbench.health import health_of, wants_health
from ccbench.report.figures_across import bias_text, error_and_bias
from ccbench.report.footnotes import flag_counts
from ccbench.report.points import (
    EMULATION,
    LEFT_OUT,
    SIMULATED,
    Point,
    imported_from,
    is_loopback,
    points_of,
    provenance,
)
from ccbench.report.text import percent, plural
from ccbench.runs import Run
from ccbench.units import format_seconds, format_size

NOTABLE_GAP = 1.5
"""A case this many times slower than predicted is named."""

BEATEN = 0.05
"""A case beats its bound when more than this share of its samples does: fewer may be the clock's doing."""

SMALLEST_FOR_BOUND = 64 * 1024
"""Bytes; below, the bound is the time of little more than one flag, and a share of it says nothing."""

MOST_FILES_NAMED = 5

MOST_REASONS = 3
"""Reasons why nothing could be measured that are told."""


def verdict_lines(run: Run) -> list[str]:
    """At most a handful of sentences: what was measured, how near to model and bound, the worst findings.

    Of a suite that asks for it the verdict about the machine's health comes first.
    """
    points = points_of(run)
    health = health_of(run).lines() if wants_health(run) else []
    lines = [*health, _measured(points), *_wrong(points), *_not_measured(points)]
    lines += [*_against_model(points), *_doubtful(points), *_machine(run)]
    return lines + _unreadable(run.problems)


def _unreadable(problems: Sequence[str]) -> list[str]:
    lines = [f"Problem with a file: {problem}" for problem in problems[:MOST_FILES_NAMED]]
    if len(problems) > MOST_FILES_NAMED:
        lines.append(f"{len(problems) - MOST_FILES_NAMED} more files have problems, {len(problems)} in all.")
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
    verb = {SIMULATED: "computed by a model", EMULATION: "emulated"}.get(label, "measured")
    verb = imported_from(points) or verb
    text = f"{len(ok)} of {plural(len(points), 'case')} {verb}: {collectives} on {backends}."
    fastest = max(
        (one for one in ok if one.busbw and one.group_ranks > 1 and not one.emulated),
        key=lambda one: one.busbw or 0.0,
        default=None,
    )
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
    """Failures with their first reason; what is merely unsupported or skipped is counted.

    Where nothing ran at all, reasons are told instead.
    """
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
    if points and sum(quiet.values()) == len(points):
        return [*lines, nothing_measured(points)]
    if quiet:
        counted = ", ".join(f"{plural(n, 'case')} {status}" for status, n in sorted(quiet.items()))
        lines.append(f"{counted}.")
    return lines


def nothing_measured(points: Sequence[Point]) -> str:
    """Why not one case could be measured, the most frequent reason first; empty where one was begun."""
    if not points or any(one.status not in (Status.UNSUPPORTED, Status.SKIPPED) for one in points):
        return ""
    reasons = Counter(point.detail.rstrip(".") or point.status.value for point in points)
    ordered = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
    told = [f"{reason} ({plural(count, 'case')})" for reason, count in ordered[:MOST_REASONS]]
    more = len(ordered) - len(told)
    rest = f"; and {more} more, in the table" if more else ""
    return f"Nothing could be measured: {'; '.join(told)}{rest}."


def _against_model(points: Sequence[Point]) -> list[str]:
    lines = []
    priced = [point for point in points if point.prediction_error is not None]
    if priced:
        error, bias = error_and_bias(priced)
        text = f"Median error of the prediction {percent(error)}; {bias_text(bias)}"
        lines.append(text + f" ({plural(len(priced), 'case')}).{_biggest_gap(priced)}")
    return [*lines, *_against_bound(points)]


def _against_bound(points: Sequence[Point]) -> list[str]:
    """How near large cases come to the bound, and which beat it; a single rank has no bound to speak of."""
    lines = []
    bounded = [point for point in points if point.bound_share is not None]
    shares = [point.bound_share or 0.0 for point in bounded if point.size_bytes >= SMALLEST_FOR_BOUND]
    if shares:
        lines.append(
            f"Half of the {plural(len(shares), 'case')} of at least {format_size(SMALLEST_FOR_BOUND)} reach "
            f"{percent(median(shares))} of the bound or more (below that size it is one flag's time)."
        )
    beaten = [point for point in bounded if (point.beaten_share or 0.0) > BEATEN]
    if beaten:
        most = max(beaten, key=lambda point: point.bound_share or 0.0)
        cause = (
            "the bound or the model is wrong"
            if all(point.simulated for point in beaten)
            else "the machine was busy when it was measured; calibrate again"
        )
        lines.append(
            f"Bound beaten in {plural(len(beaten), 'case')} (by more than {percent(BEATEN)} of the samples): "
            f"{cause}. Most: {most.label}, {percent(most.bound_share or 0.0)} of the bound."
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
    if any(point.emulated for point in ok):
        lines.append(f"Emulated times are {LEFT_OUT}.")
    if is_loopback(points):
        lines.append("Loopback: ranks shared a device or a host's loopback; no link was measured.")
    return lines
