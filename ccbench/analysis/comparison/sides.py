"""One side of a comparison: what a run has of a case; of logs imported together, from several points."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ccbench.analysis.comparison.rounds import Rounds
from ccbench.analysis.comparison.values import Cause, Settings
from ccbench.cases import Status
from ccbench.machine.flags import Flag
from ccbench.results import Point, Run

ARRANGEMENTS = frozenset(flag for flag in Flag if flag.arrangement)


@dataclass(frozen=True)
class Side:
    """What one run has for a point.

    rounds: samples by round; each printed average of an imported log is a round of its own. seconds: the
    run's median, the median of several. averages: no samples are known. bound, prediction: as in the run.
    """

    status: Status
    detail: str
    rounds: Rounds
    seconds: float | None
    averages: bool
    imported: bool
    simulated: bool
    flags: frozenset[str]
    bound_seconds: float | None = None
    predicted_seconds: float | None = None
    bottleneck: str = ""


def by_identity(run: Run) -> dict[tuple[object, ...], list[Point]]:
    """What ``run`` has of every case, in the run's order."""
    found: dict[tuple[object, ...], list[Point]] = defaultdict(list)
    for point in run.points:
        found[point.identity].append(point)
    return found


def side_of(points: Sequence[Point]) -> Side:
    """What ``points``, all of one case, add up to: wrong results outrank a speed, a speed any other end."""
    chosen: Sequence[Point] = points
    for status in (Status.OK, Status.WRONG):
        chosen = [point for point in points if point.status is status] or chosen
    first = chosen[0]
    timed = [point for point in chosen if first.status is Status.OK and point.median_seconds is not None]
    return Side(
        status=first.status,
        detail=first.detail,
        rounds=[
            one_round for point in timed for one_round in point.rounds or [np.array([point.median_seconds])]
        ],
        seconds=float(np.median([point.median_seconds for point in timed])) if timed else None,
        averages=any(not len(point.samples_seconds) for point in timed),
        imported=any(point.imported for point in chosen),
        simulated=any(point.simulated for point in chosen),
        flags=frozenset(flag for point in chosen for flag in point.flags),
        bound_seconds=first.bound_seconds,
        predicted_seconds=first.predicted_seconds,
        bottleneck=first.bottleneck,
    )


Obstacle = tuple[Cause, str]
"""Why there is no verdict, for programs and in words."""


def obstacle_of(side: Side, name: str, settings: Settings) -> Obstacle | None:
    """What keeps one side from being compared with anything; ``name`` is base or new."""
    if side.status is Status.WRONG:
        return Cause.WRONG, f"{name} gave wrong results" + (f": {side.detail}" if side.detail else "")
    if side.status is not Status.OK:
        return Cause.NOT_OK, f"{name} is {side.status.value}" + (f": {side.detail}" if side.detail else "")
    if Flag.EMULATION in side.flags:
        return Cause.EMULATED, f"{name} was emulated: its times say nothing about any device"
    doubtful = sorted(side.flags - ARRANGEMENTS - settings.accepted_flags)
    if doubtful:
        # An imported table may carry a word that this version does not know, which nobody can accept.
        accept = f", or let that count: --accept-flags {','.join(doubtful)}" if {*doubtful} <= {*Flag} else ""
        return Cause.DOUBTFUL, f"{name} is flagged {', '.join(doubtful)}; measure it again{accept}"
    if (
        side.seconds is None
        or not side.seconds > 0
        or not all(_timed(one_round) for one_round in side.rounds)
    ):
        return Cause.NO_TIME, f"{name} has no time above zero, or rounds without one"
    return None


def _timed(one_round: NDArray[np.float64]) -> bool:
    """Whether the round's median is a time above zero; its least sample mostly tells at once."""
    if not np.isfinite(one_round).all():
        return False
    return bool(one_round.min() > 0) or float(np.median(one_round)) > 0


def obstacle_between(base: Side, new: Side, settings: Settings) -> Obstacle | None:
    """What keeps two sides from being compared with each other."""
    for side, name in ((new, "new"), (base, "base")):  # wrong results of the new run come first
        found = obstacle_of(side, name, settings)
        if found:
            return found
    if base.simulated != new.simulated:
        return (
            Cause.SIMULATED,
            f"{'base' if base.simulated else 'new'} was computed from a model, the other measured",
        )
    odd = sorted((base.flags ^ new.flags) - settings.accepted_flags)
    if odd:
        only = "base" if odd[0] in base.flags else "new"
        return Cause.ARRANGEMENT, f"only {only} is flagged {odd[0]}"
    return None
