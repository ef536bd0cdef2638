"""What a run found, in a few sentences, the worst first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import median

from ccbench.analysis.health import health_of, wants_health
from ccbench.cases import Status
from ccbench.report.figures_across import bias_text, error_and_bias
from ccbench.report.findings import BLAMED, run_findings
from ccbench.report.points import EMULATION, SIMULATED, imported_from, points_of, provenance
from ccbench.report.run_finding import RunFinding
from ccbench.report.text import percent, plural
from ccbench.results import Point, Run
from ccbench.units import format_size

SMALLEST_FOR_BOUND = 64 * 1024
"""Bytes; below, the bound is the time of little more than one flag, and a share of it says nothing."""

MOST_FINDINGS = 3
"""Findings told on a screen; the page has all."""


def verdict_lines(run: Run) -> list[str]:
    """Who is to blame, what was measured, how near to model and bound, the first findings with advice."""
    points = points_of(run)
    told = [one for one in run_findings(run, points) if one.severity != "note" and one.kind != BLAMED]
    lines = [*health_lines(run), measured_text(points), *closeness(points), *map(str, told[:MOST_FINDINGS])]
    rest = plural(len(told) - MOST_FINDINGS, "finding")
    return lines + [f"... and {rest} more, in the report's page"] * (len(told) > MOST_FINDINGS)


def health_lines(run: Run) -> list[str]:
    """The verdict about the machine's health, of a suite that asks for it; who is to blame stands first."""
    return health_of(run).lines() if wants_health(run) else []


def sentences(points: Sequence[Point], findings: Sequence[RunFinding]) -> tuple[str, ...]:
    """What was measured, how near to model and bound, how many findings there are and which come first."""
    grave = [one for one in findings if one.severity != "note"]
    problems = sum(one.severity == "problem" for one in grave)
    counts = [plural(problems, "problem")] * bool(problems)
    counts += [plural(len(grave) - problems, "doubt")] * (len(grave) > problems)
    named = "; ".join(one.subject for one in grave[:MOST_FINDINGS])
    worst = (
        f"{' and '.join(counts)} found, first: {named}." if grave else "Nothing was found that needs a look."
    )
    near = closeness(points)
    if not near and any(one.median_seconds and not one.emulated for one in points):
        near = [
            "There is neither a prediction nor a bound to lay beside it; name the machine with --machine."
        ]
    return (measured_text(points), *near, worst)


def measured_text(points: Sequence[Point]) -> str:
    """How many cases gave a result, of what, and the most that was reached."""
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
    fastest = max(
        (one for one in ok if one.busbw and one.group_ranks > 1 and not one.emulated),
        key=lambda one: one.busbw or 0.0,
        default=None,
    )
    if fastest is not None:
        text += f" Peak bus bandwidth {fastest.busbw:.4g} GB/s ({fastest.label})."
    return f"{label}: {text}" if label else text


def closeness(points: Sequence[Point]) -> list[str]:
    """How near cases come to the prediction, and large ones to the bound; a single rank has no bound."""
    lines = []
    priced = [point for point in points if point.prediction_error is not None]
    if priced:
        error, bias = error_and_bias(priced)
        text = f"Median error of the prediction {percent(error)}; {bias_text(bias)}"
        lines.append(f"{text} ({plural(len(priced), 'case')}).")
    shares = [
        point.bound_share
        for point in points
        if point.bound_share is not None and point.size_bytes >= SMALLEST_FOR_BOUND
    ]
    if shares:
        lines.append(
            f"Half of the {plural(len(shares), 'case')} of at least {format_size(SMALLEST_FOR_BOUND)} reach "
            f"{percent(median(shares))} of the bound or more (below that size it is one flag's time)."
        )
    return lines
