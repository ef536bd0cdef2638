"""One side of a point: what a run has for it, from one row or, of logs imported together, from several."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ccbench.cases import Status
from ccbench.comparison.values import KEY_FIELDS, Cause, Point, Settings
from ccbench.comparison.visits import Visits, visits_of
from ccbench.machine.flags import Flag
from ccbench.runs import Run
from ccbench.runs.rows import is_null

ARRANGEMENTS = frozenset(flag for flag in Flag if flag.arrangement)

Row = Mapping[Any, Any]


@dataclass(frozen=True)
class Side:
    """What one run has for a point.

    visits: samples by visit; each printed average of an imported log is a visit of its own. seconds: the
    run's median, the median of several. averages: no samples are known. bound, prediction: as in the run.
    """

    status: Status
    detail: str
    visits: Visits
    seconds: float | None
    averages: bool
    imported: bool
    simulated: bool
    flags: frozenset[str]
    bound_seconds: float | None = None
    predicted_seconds: float | None = None
    bottleneck: str = ""


def rows_by_point(run: Run) -> dict[Point, list[Row]]:
    """The rows of every point, in the run's order."""
    key = itemgetter(*KEY_FIELDS)
    found: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in run.cases.to_dict("records"):
        found[key(row)].append(row)
    return {Point(**dict(zip(KEY_FIELDS, values, strict=True))): rows for values, rows in found.items()}


def side_of(rows: Sequence[Row]) -> Side:
    """What ``rows``, all of one point, add up to: wrong results outrank a speed, a speed any other end."""
    statuses = [Status(row["status"]) for row in rows]
    if Status.WRONG in statuses:
        chosen = [row for row, status in zip(rows, statuses, strict=True) if status is Status.WRONG]
    else:
        chosen = [row for row, status in zip(rows, statuses, strict=True) if status is Status.OK] or list(
            rows
        )
    first = chosen[0]
    status = Status(first["status"])
    timed = [row for row in chosen if status is Status.OK and not is_null(row["median_seconds"])]
    visits = [visit for row in timed for visit in _visits(row)]
    flags = {str(flag) for row in chosen for flag in row["flags"]}
    if any(row["oversubscribed"] for row in chosen):
        flags.add(Flag.OVERSUBSCRIBED)
    return Side(
        status=status,
        detail=str(first["detail"]),
        visits=visits,
        seconds=float(np.median([row["median_seconds"] for row in timed])) if timed else None,
        averages=any(is_null(row["samples_seconds"]) for row in timed),
        imported=any(row["source"] for row in chosen),
        simulated=any(row["simulated"] for row in chosen),
        flags=frozenset(flags),
        bound_seconds=_number(first["bound_seconds"]),
        predicted_seconds=_number(first["predicted_seconds"]),
        bottleneck="" if is_null(first["bottleneck"]) else str(first["bottleneck"]),
    )


def _visits(row: Row) -> Visits:
    if is_null(row["samples_seconds"]):
        return [np.array([row["median_seconds"]], dtype=np.float64)]
    lengths = row["visit_samples"]
    samples = np.asarray(row["samples_seconds"], dtype=np.float64)
    return visits_of(samples, None if is_null(lengths) else lengths)


def _number(value: Any) -> float | None:
    return None if is_null(value) else float(value)


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
        cure = f"measure it again, or let that count: --accept-flags {','.join(doubtful)}"
        return Cause.DOUBTFUL, f"{name} is flagged {', '.join(doubtful)}; {cure}"
    if side.seconds is None or not side.seconds > 0 or not all(_timed(visit) for visit in side.visits):
        return Cause.NO_TIME, f"{name} has no time above zero, or visits without one"
    return None


def _timed(visit: NDArray[np.float64]) -> bool:
    """Whether the visit's median is a time above zero; its least sample mostly tells at once."""
    if not np.isfinite(visit).all():
        return False
    return bool(visit.min() > 0) or float(np.median(visit)) > 0


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
