"""Times of ccbench's own schedules on some of a cluster's ranks, in groups or with uneven traffic.

All groups take each step together, and every link carries what all of them send through it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ccbench.collectives import collective as collective_row
from ccbench.model.cluster import Cluster, ClusterPoint, points_of
from ccbench.model.fabric_pricing import FabricPrices, LinkTable, fabric_loads, price_loads
from ccbench.model.group_points import group_bounds
from ccbench.model.group_systems import group_systems
from ccbench.model.rank_subset import RankSubset, subset_flows
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
    what = schedule.collective, size_bytes, subset.traffic
    kinds = group_systems(cluster, subset.members)
    bounds = [group_bounds(cluster, kind, *what) for kind in kinds]
    slowest = map(max, zip(*bounds, strict=True))
    return points_of(prices, algorithm, schedule.ranks, size_bytes, slowest)


def subset_prices(
    cluster: Cluster, schedule: Schedule, subset: RankSubset, size_bytes: Sequence[int]
) -> FabricPrices:
    """The price of all groups' flows together."""
    what = subset_flows(schedule, subset, cluster.ranks)
    return price_loads(fabric_loads(what, cluster.fabric, cluster.costs), size_bytes)


def link_seconds(
    cluster: Cluster, schedule: Schedule, subset: RankSubset, size_bytes: int
) -> Floats:
    """Seconds for which each link is busy during one launch, all steps together."""
    flows = subset_flows(schedule, subset, cluster.ranks)
    table = LinkTable(cluster.fabric, cluster.costs)
    carried = np.zeros(cluster.fabric.links)
    for steps in flows.patterns:
        # What a rank copies within itself uses no link.
        apart = steps.source != steps.target
        source, target, width = (
            np.asarray(column)[apart] for column in (steps.source, steps.target, steps.width)
        )
        for part, ids in table.routed(source.astype(np.int64), target.astype(np.int64)):
            carried += steps.turns * table.carried(ids, width[part].astype(np.int64))
    moved = size_bytes if collective_row(schedule.collective).moves_data else 0
    return np.asarray(carried * table.seconds_per_byte * (moved / flows.pieces))
