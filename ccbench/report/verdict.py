"""The verdict about a run in a few sentences: for the screen, for Markdown and for the page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import median

from ccbench.analysis.findings import EMULATION, MOST_NAMED, SIMULATED, provenance, run_findings
from ccbench.analysis.health import ADVICE, health_of, wants_health
from ccbench.cases import Status
from ccbench.report.figures_across import bias_text, error_and_bias
from ccbench.report.points import imported_from, points_of
from ccbench.results import Point, Run
from ccbench.topology.graph import Finding
from ccbench.units import format_size, percent, plural

SMALLEST_FOR_BOUND = 64 * 1024
"""Bytes; below, the bound is the time of little more than one flag, and a share of it says nothing."""


def verdict_lines(run: Run) -> list[str]:
    """Return the summary and the first findings with advice; whom health blames is in the summary."""
    found = run_findings(run, points_of(run))
    told = [one for one in found if one.severity != "note" and one.kind not in ADVICE]
    lines = [*summary_lines(run), *map(str, told[:MOST_NAMED])]
    rest = plural(len(told) - MOST_NAMED, "finding")
    return lines + [f"... and {rest} more, in the report's page"] * (len(told) > MOST_NAMED)


def summary_lines(run: Run) -> list[str]:
    """Return the verdict without the findings."""
    points = points_of(run)
    return [*health_lines(run), measured_text(points), *closeness(points)]


def health_lines(run: Run) -> list[str]:
    """Return the verdict about the machine's health, of a suite that asks for it; the blamed stand first."""
    return health_of(run).lines() if wants_health(run) else []


def sentences(points: Sequence[Point], findings: Sequence[Finding]) -> tuple[str, ...]:
    """Say what was measured, how near to model and bound, how many findings there are, the first named."""
    grave = [one for one in findings if one.severity != "note"]
    problems = sum(one.severity == "problem" for one in grave)
    counts = [plural(problems, "problem")] * bool(problems)
    counts += [plural(len(grave) - problems, "doubt")] * (len(grave) > problems)
    named = "; ".join(one.subject for one in grave[:MOST_NAMED])
    near = closeness(points)
    if not near and any(one.median_seconds and not one.emulated for one in points):
        near = [
            "There is neither a prediction nor a bound to lay beside it; name the machine with --machine."
        ]
    worst = (
        f"{' and '.join(counts)} found, first: {named}." if grave else "Nothing was found that needs a look."
    )
    return (measured_text(points), *near, worst)


def measured_text(points: Sequence[Point]) -> str:
    """Say how many cases gave a result, of what, and the most that was reached."""
    if not points:
        return "The run holds no case."
    ok = [point for point in points if point.status == Status.OK]
    label = provenance(points)
    collectives = ", ".join(sorted({point.collective for point in points}))
    backends = ", ".join(sorted({point.backend for point in points}))
    verb = {SIMULATED: "computed by a model", EMULATION: "emulated"}.get(label, "measured")
    verb = imported_from(points) or verb
    idle = Counter(one.status.value for one in points if one.status in (Status.UNSUPPORTED, Status.SKIPPED))
    rest = f" ({', '.join(f'{count} {status}' for status, count in sorted(idle.items()))})" if idle else ""
    text = f"{len(ok)} of {plural(len(points), 'case')} {verb}{rest}: {collectives} on {backends}."
    rated = [one for one in ok if one.busbw and one.group_ranks > 1 and not one.emulated]
    fastest = max(rated, key=lambda one: one.busbw or 0.0, default=None)
    if fastest is not None:
        text += f" Peak bus bandwidth {fastest.busbw:.4g} GB/s ({fastest.label})."
    return f"{label}: {text}" if label else text


def closeness(points: Sequence[Point]) -> list[str]:
    """Say how near cases come to the prediction, and large ones to the bound; a single rank has no bound."""
    lines = []
    priced = [point for point in points if point.prediction_error is not None]
    if priced:
        error, bias = error_and_bias(priced)
        text = f"Median error of the prediction {percent(error)}; {bias_text(bias)}"
        lines.append(f"{text} ({plural(len(priced), 'case')}).")
    shares = [
        one.bound_share
        for one in points
        if one.bound_share is not None and one.size_bytes >= SMALLEST_FOR_BOUND
    ]
    if shares:
        lines.append(
            f"Half of the {plural(len(shares), 'case')} of at least {format_size(SMALLEST_FOR_BOUND)} reach "
            f"{percent(median(shares))} of the bound or more (below that size it is one flag's time)."
        )
    return lines
