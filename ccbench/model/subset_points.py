"""Times of ccbench's own schedules on some of a cluster's ranks, in groups or with uneven traffic.

All groups take each step together, and every link carries what all of them send through it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from ccbench.collectives import collective as collective_row
from ccbench.collectives import sent_elements
from ccbench.groups import Groups
from ccbench.model.cluster import Cluster, ClusterPoint, points_of
from ccbench.model.fabric_pricing import (
    AlgorithmTraffic,
    FabricPrices,
    LinkTable,
    RepeatedSteps,
    fabric_loads,
    price_loads,
    steps_of,
)
from ccbench.model.group_points import _bounds, _groups_of_a_node
from ccbench.model.group_systems import QUANTA, group_systems
from ccbench.model.rank_subset import RankSubset, flow_weights, placed, turns_of
from ccbench.schedules.schedule import Schedule
from ccbench.topology.fabrics import Floats


def subset_points(
    cluster: Cluster,
    schedule: Schedule,
    subset: RankSubset,
    size_bytes: Sequence[int],
    algorithm: str,
) -> tuple[ClusterPoint, ...]:
    """One launch of ``schedule`` by all groups of ``subset``; a point for each size, which is one group's.

    Raises MachineError for ranks that the cluster does not have.
    """
    prices = subset_prices(cluster, schedule, subset, size_bytes)
    members = subset.groups_of(schedule.ranks)
    arguments = (
        schedule.collective,
        size_bytes,
        subset.traffic,
        _groups_of_a_node(cluster, members),
    )
    bounds = [_bounds(cluster, kind, *arguments) for kind in group_systems(cluster, members)]
    slowest = map(max, zip(*bounds, strict=True))
    return points_of(prices, algorithm, schedule.ranks, size_bytes, slowest)


def subset_prices(
    cluster: Cluster, schedule: Schedule, subset: RankSubset, size_bytes: Sequence[int]
) -> FabricPrices:
    """The price of all groups' flows together."""
    what = subset_flows(schedule, subset, cluster.ranks)
    return price_loads(fabric_loads(what, cluster.fabric, cluster.costs), size_bytes)


def subset_flows(
    schedule: Schedule, subset: RankSubset, ranks: int
) -> Schedule | AlgorithmTraffic:
    """The flows of all groups, among ``ranks`` ranks; the same object for the same three."""
    members = subset.groups_of(schedule.ranks)
    if subset.traffic:
        return _uneven(schedule, members, subset.traffic, ranks)
    return placed(schedule, members, ranks)


@lru_cache(maxsize=64)
def _uneven(schedule: Schedule, members: Groups, traffic: str, ranks: int) -> AlgorithmTraffic:
    """Flows as wide as the traffic says, in parts of which the largest input has ``pieces``."""
    places = np.array(members, dtype=np.int64)
    amounts = sent_elements(traffic, QUANTA, schedule.ranks).astype(np.float64)
    patterns = []
    for phase in schedule.phases:
        for turn in turns_of(phase, schedule):
            # In whole parts, so that flows that carry nothing drop out and equal widths are recognised.
            width = np.rint(flow_weights(turn, schedule, amounts)).astype(np.int64)
            moving = (width > 0) & (turn.source != turn.target)
            source, target = (
                places[:, end[moving]].ravel() for end in (turn.source, turn.target)
            )
            patterns.append(RepeatedSteps(source, target, np.tile(width[moving], len(places))))
    pieces = int(amounts.sum(axis=1).max())
    return AlgorithmTraffic(
        schedule.collective, schedule.algorithm, ranks, pieces, tuple(patterns)
    )


def link_seconds(
    cluster: Cluster, schedule: Schedule, subset: RankSubset, size_bytes: int
) -> Floats:
    """Seconds for which each link is busy during one launch, all steps together."""
    flows = subset_flows(schedule, subset, cluster.ranks)
    patterns = (
        [steps_of(phase) for phase in flows.phases]
        if isinstance(flows, Schedule)
        else flows.patterns
    )
    table = LinkTable(cluster.fabric, cluster.costs)
    carried = np.zeros(cluster.fabric.links)
    for steps in patterns:
        # What a rank copies within itself uses no link.
        apart = steps.source != steps.target
        source, target, width = (
            np.asarray(column)[apart] for column in (steps.source, steps.target, steps.width)
        )
        for part, ids in table.routed(source.astype(np.int64), target.astype(np.int64)):
            carried += steps.turns * table.carried(ids, width[part].astype(np.int64))
    moved = size_bytes if collective_row(schedule.collective).moves_data else 0
    return np.asarray(carried * table.seconds_per_byte * (moved / flows.pieces))
