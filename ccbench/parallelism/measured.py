"""Measured points of runs, as prices: they take a prediction's place where the same thing was measured."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ccbench.cases import ALL_GROUPS, EMULATION, Status
from ccbench.errors import UsageError
from ccbench.runs import Run, measurement_of

Key = tuple[str, int, int, str]
"""Collective, ranks of one group, nodes that one group is spread over, traffic."""


@dataclass(frozen=True)
class MeasuredPoints:
    """Seconds by size for each kind of collective and group that runs hold, sizes ascending."""

    curves: Mapping[Key, tuple[tuple[int, float], ...]] = field(default_factory=dict)

    def seconds(self, key: Key, size_bytes: int) -> float | None:
        """At a size that was measured, or between two that were; None elsewhere: nothing is extrapolated.

        Between two sizes the logarithm of the time is taken to be straight over the logarithm of the size.
        """
        curve = self.curves.get(key)
        if not curve or not curve[0][0] <= size_bytes <= curve[-1][0]:
            return None
        at = bisect_left(curve, (size_bytes, 0.0))
        if curve[at][0] == size_bytes:
            return curve[at][1]
        (low, fast), (high, slow) = curve[at - 1], curve[at]
        if low <= 0:
            return None
        share = math.log(size_bytes / low) / math.log(high / low)
        return math.exp(math.log(fast) + share * (math.log(slow) - math.log(fast)))


def measured_points(runs: Sequence[Run]) -> MeasuredPoints:
    """What of ``runs`` can stand for a prediction: cases that are OK, measured and no emulation, one after
    the other as a training step has them.

    Of several that are alike (algorithms, backends, types) the fastest counts, since a library would choose
    it. UsageError where runs hold none.
    """
    fastest: dict[Key, dict[int, float]] = {}
    for run in runs:
        for row in run.cases.to_dict("records"):
            found = _point({str(name): value for name, value in row.items()})
            if found is not None:
                key, size, seconds = found
                curve = fastest.setdefault(key, {})
                curve[size] = min(seconds, curve.get(size, math.inf))
    if not fastest:
        names = ", ".join(str(run.path) for run in runs)
        if any(bool(run.cases["simulated"].any()) for run in runs):
            raise UsageError(
                f"--measured {names}: its times come from a model (backend simulated), which is what a plan "
                "takes without it; name a run that measured"
            )
        raise UsageError(
            f"--measured {names}: holds no measured collective that is OK; name a run of 'ccbench run' on "
            "the machine that the plan is for"
        )
    return MeasuredPoints({key: tuple(sorted(curve.items())) for key, curve in fastest.items()})


def _point(row: Mapping[str, Any]) -> tuple[Key, int, float] | None:
    if row["status"] != Status.OK.value or row["simulated"] or EMULATION in list(row["flags"]):
        return None
    seconds = row["median_seconds"]
    if seconds is None or not math.isfinite(seconds) or seconds <= 0 or row["mode"] == "overlap":
        return None
    case = measurement_of(row).case
    if case.beside or case.pair or case.aggregation != 1 or case.alone != ALL_GROUPS:
        return None
    nodes = max(1, case.nodes)
    return (
        (case.collective, case.group_ranks, _group_nodes(case.groups, case.ranks, nodes), case.traffic),
        case.size_bytes,
        float(seconds),
    )


def _group_nodes(groups: str, ranks: int, nodes: int) -> int:
    """Nodes that one group is spread over; ranks lie on nodes in blocks of equal size."""
    if not groups or nodes == 1 or ranks % nodes:
        return nodes
    from ccbench.groups import parse_groups

    each = ranks // nodes
    return max(len({rank // each for rank in group}) for group in parse_groups(groups, ranks))
