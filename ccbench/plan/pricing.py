"""What one launch of a communication takes: predicted for where its groups stand, or taken from measured
points.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ccbench.cases import ALL_GROUPS, OVERLAP
from ccbench.errors import UsageError
from ccbench.groups import Groups, Layout
from ccbench.model.cluster import Cluster
from ccbench.model.group_points import group_points
from ccbench.model.group_systems import GroupPlacement, axis_placement, placement_of
from ccbench.model.library import LibraryRequest
from ccbench.plan.communication import Communication
from ccbench.results import Point, Run

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
        for point in filter(_can_stand, run.points):
            nodes = _group_nodes(point.groups, point.ranks, max(1, point.nodes))
            curve = fastest.setdefault((point.collective, point.group_ranks, nodes, point.traffic), {})
            curve[point.size_bytes] = min(point.median_seconds or 0.0, curve.get(point.size_bytes, math.inf))
    if not fastest:
        names = ", ".join(str(run.path) for run in runs)
        if any(point.simulated for run in runs for point in run.points):
            raise UsageError(
                f"--measured {names}: its times come from a model (backend simulated), which is what a plan "
                "takes without it; name a run that measured"
            )
        raise UsageError(
            f"--measured {names}: holds no measured collective that is OK; name a run of 'ccbench run' on "
            "the machine that the plan is for"
        )
    return MeasuredPoints({key: tuple(sorted(curve.items())) for key, curve in fastest.items()})


def _can_stand(point: Point) -> bool:
    """Whether the point was measured as one launch of all groups with nothing else at the same time."""
    measured = point.is_timed and not point.simulated and not point.emulated
    by_itself = not point.concurrent and not point.pair and point.mode != OVERLAP and point.aggregation == 1
    return measured and by_itself and point.active_group == ALL_GROUPS


def _group_nodes(groups: str, ranks: int, nodes: int) -> int:
    """Nodes that one group is spread over; ranks lie on nodes in blocks of equal size."""
    if not groups or nodes == 1 or ranks % nodes:
        return nodes
    from ccbench.groups import parse_groups

    each = ranks // nodes
    return max(len({rank // each for rank in group}) for group in parse_groups(groups, ranks))


PREDICTED, MEASURED = "predicted", "measured"

MOST_LISTED = 4096
"""Ranks of a layout whose groups may be listed one by one where they do not stand alike."""


@dataclass(frozen=True)
class Price:
    """Seconds of one launch while all groups of the axis run at once.

    bottleneck: which link or term costs most. source: ``predicted`` or ``measured``. nodes: that one group is
    spread over. groups_on_node: that share a node's links. extrapolated: why the prediction is less sure.
    """

    seconds: float
    bottleneck: str
    source: str
    nodes: int
    groups_on_node: int
    extrapolated: str = ""


Placed = GroupPlacement | Groups
"""Where groups stand: alike on all nodes, or listed."""

NOTHING = Price(0.0, "", PREDICTED, 1, 1)


class Prices:
    """Prices on one cluster; asked again for the same placement, collective and size, they cost nothing."""

    def __init__(self, cluster: Cluster, measured: MeasuredPoints | None = None) -> None:
        self.cluster = cluster
        self.measured = measured
        # Where groups stand, with a number of their own: a list of thousands of ranks is slow to look up.
        self._placements: dict[tuple[Layout, str, bool], tuple[int, Placed]] = {}
        self._numbers: dict[Placed, int] = {}
        self._prices: dict[tuple[int, str, int, str], Price] = {}
        self._gpus = cluster.system.ranks_per_node

    def price(self, layout: Layout, communication: Communication) -> Price:
        """Of one launch; UsageError where a layout's groups stand on nodes in ways that are not priced."""
        if communication.ranks < 2 or communication.size_bytes <= 0:
            return NOTHING
        axis = communication.axis
        place = (layout, axis, axis == "pp" and communication.ranks == 2 and layout.pp > 2)
        if place not in self._placements:
            groups = _stands(*place, self._gpus)
            self._placements[place] = (self._numbers.setdefault(groups, len(self._numbers)), groups)
        number, groups = self._placements[place]
        key = (number, communication.collective, communication.size_bytes, communication.traffic)
        if key not in self._prices:
            self._prices[key] = self._asked(groups, communication)
        return self._prices[key]

    def _asked(self, groups: Placed, communication: Communication) -> Price:
        size, collective = communication.size_bytes, communication.collective
        request = LibraryRequest(collective, (size,), traffic=communication.traffic)
        (point,) = group_points(self.cluster, groups, request)
        nodes, on_node = _spread(groups, self._gpus)
        if self.measured is not None:
            key = (collective, communication.ranks, nodes, communication.traffic)
            seconds = self.measured.seconds(key, size)
            if seconds is not None:
                return Price(seconds, point.prediction.bottleneck, MEASURED, nodes, on_node)
        return Price(
            point.prediction.predicted_seconds,
            point.prediction.bottleneck,
            PREDICTED,
            nodes,
            on_node,
            point.extrapolated,
        )


def _spread(groups: Placed, gpus_per_node: int) -> tuple[int, int]:
    """(nodes of one group, groups on one node)."""
    if isinstance(groups, GroupPlacement):
        return groups.nodes, groups.groups_per_node
    on_first = sum(1 for group in groups if any(rank < gpus_per_node for rank in group))
    return max(len({rank // gpus_per_node for rank in group}) for group in groups), on_first


def _stands(layout: Layout, axis: str, ends: bool, gpus_per_node: int) -> Placed:
    """Where the groups stand; of ``ends``, the first and the last rank of each group are one of two."""
    try:
        placement = axis_placement(layout, axis, gpus_per_node)
    except UsageError:
        if layout.ranks > MOST_LISTED:
            raise
        groups = layout.groups(axis)
        if ends:
            groups = tuple((group[0], group[-1]) for group in groups)
        # Listed groups that stand alike after all cost as much to price as a single one.
        return placement_of(groups, gpus_per_node) or groups
    if not ends:
        return placement
    sets = tuple((one[0], one[-1]) for one in placement.gpu_sets)
    if placement.nodes == 1:
        return replace(placement, ranks=2, ranks_per_node=2, gpu_sets=sets)
    # First and last are on different nodes; each node has one of the two of each group.
    firsts = tuple((one[0],) for one in sets)
    return replace(placement, ranks=2, ranks_per_node=1, nodes=2, gpu_sets=firsts)
