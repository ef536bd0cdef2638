"""What one launch of a communication takes: predicted for where its groups stand, or taken from measured
points.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from ccbench.errors import UsageError
from ccbench.layouts import Groups, Layout
from ccbench.model.cluster import Cluster
from ccbench.model.group_points import GroupPlacement, axis_placement, group_points, placement_of
from ccbench.parallelism.communication import Communication
from ccbench.parallelism.measured import MeasuredPoints

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


NOTHING = Price(0.0, "", PREDICTED, 1, 1)


@dataclass(frozen=True)
class _Standing:
    """Where groups stand, with a number of their own: a list of thousands of ranks is slow to look up."""

    number: int
    groups: GroupPlacement | Groups


class Priced(Protocol):
    """Whatever says what one launch takes."""

    def price(self, layout: Layout, communication: Communication) -> Price:
        """Of one launch."""


class Prices:
    """Prices on one cluster; asked again for the same placement, collective and size, they cost nothing."""

    def __init__(self, cluster: Cluster, measured: MeasuredPoints | None = None) -> None:
        self.cluster = cluster
        self.measured = measured
        self._placements: dict[tuple[Layout, str, bool], _Standing] = {}
        self._standings: dict[GroupPlacement | Groups, _Standing] = {}
        self._prices: dict[tuple[int, str, int, str], Price] = {}

    def price(self, layout: Layout, communication: Communication) -> Price:
        """Of one launch; UsageError where a layout's groups stand on nodes in ways that are not priced."""
        if communication.ranks < 2 or communication.size_bytes <= 0:
            return NOTHING
        stands = self._placement(layout, communication)
        key = (stands.number, communication.collective, communication.size_bytes, communication.traffic)
        found = self._prices.get(key)
        if found is None:
            found = self._prices[key] = self._asked(stands.groups, communication)
        return found

    def _placement(self, layout: Layout, communication: Communication) -> _Standing:
        axis = communication.axis
        ends = axis == "pp" and communication.ranks == 2 and layout.pp > 2
        key = (layout, axis, ends)
        found = self._placements.get(key)
        if found is None:
            groups = _stands(layout, axis, ends, self._gpus)
            found = self._standings.setdefault(groups, _Standing(len(self._standings), groups))
            self._placements[key] = found
        return found

    @property
    def _gpus(self) -> int:
        return self.cluster.system.ranks_per_node

    def _asked(self, groups: GroupPlacement | Groups, communication: Communication) -> Price:
        size, collective = communication.size_bytes, communication.collective
        (point,) = group_points(self.cluster, groups, collective, (size,), traffic=communication.traffic)
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


def _spread(groups: GroupPlacement | Groups, gpus_per_node: int) -> tuple[int, int]:
    """(nodes of one group, groups on one node)."""
    if isinstance(groups, GroupPlacement):
        return groups.nodes, groups.groups_per_node
    on_first = sum(1 for group in groups if any(rank < gpus_per_node for rank in group))
    return max(len({rank // gpus_per_node for rank in group}) for group in groups), on_first


def _stands(layout: Layout, axis: str, ends: bool, gpus_per_node: int) -> GroupPlacement | Groups:
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
