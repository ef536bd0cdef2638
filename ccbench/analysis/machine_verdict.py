"""The verdict about a machine or a fleet that a run's suite asks for."""

from __future__ import annotations

from dataclasses import replace

from ccbench.analysis.fleet import ADVICE, FLEET, FleetVerdict, verdict_of
from ccbench.analysis.health import ADVICE as HEALTH_ADVICE
from ccbench.analysis.health import HEALTH, health_of
from ccbench.analysis.health_verdict import HealthVerdict
from ccbench.cases.measurement import NO_TEAM, Status
from ccbench.results import Point, Run

BLAMES = frozenset((*HEALTH_ADVICE, *ADVICE)) - {"unstable"}
"""Kinds of findings that a verdict says who is to blame for; the others have rules of their own."""


def machine_verdict(run: Run) -> HealthVerdict | None:
    """Return the verdict about the machine or the fleet, where the run's suite asks for one."""
    asked = run.manifest.at("suite", "verdict")
    if asked != FLEET:
        return health_of(run) if asked == HEALTH else None
    verdict = verdict_of(run)
    ends = [point.detail for point in run.points if is_end(point)]
    return replace(verdict, doubt=f"the check could not go on: {ends[0]}") if ends else verdict


def fleet_document(run: Run) -> dict[str, object] | None:
    """Return the verdict of a fleet check as JSON has it; None of another run."""
    verdict = machine_verdict(run)
    return verdict.document if isinstance(verdict, FleetVerdict) else None


def is_end(point: Point) -> bool:
    """Return True if no rank could be had any more."""
    return point.status is Status.SKIPPED or point.stop_reason == NO_TEAM
