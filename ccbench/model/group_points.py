"""What a collective takes on groups of a cluster's GPUs, all at once or one alone.

With the GPUs' library each group is a system of its own (``group_systems``); a launch is over when its
slowest group is. Nothing there lists ranks, so that groups of 131,072 cost no more than groups of 8. With
ccbench's own schedules all groups take each step together, and every link carries what all of them send
through it (see ``rank_subset``). docs/model-links.md has the formulas.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache

import numpy as np

from ccbench.collectives import collective as collective_row
from ccbench.collectives import sent_elements
from ccbench.groups import Groups
from ccbench.model.bounds import LIMITS, ROUNDING
from ccbench.model.cluster import Cluster, ClusterPoint, fabric_costs, point_of, points_of
from ccbench.model.fabric_loads import LinkTable
from ccbench.model.fabric_pricing import FabricPrices, price_loads
from ccbench.model.fabric_pricing import fabric_loads as loads_of
from ccbench.model.group_systems import GroupPlacement, GroupSystem, group_systems, placement_of
from ccbench.model.library import LibraryRequest
from ccbench.model.library.predictor import predict_library
from ccbench.model.library.shapes import uneven_loads
from ccbench.model.patterns import Steps, Traffic, steps_of
from ccbench.model.rank_subset import ByIdentity, RankSubset, flow_weights, placed, turns_of
from ccbench.schedules.schedule import Phase, Schedule
from ccbench.topology.fabrics import Floats, Ints, LevelCut

QUANTA = 4096
"""Parts of a mean block in which uneven ones are counted."""


def _groups_of_a_node(cluster: Cluster, groups: Groups | GroupPlacement) -> int:
    """How many equal groups put their bytes through one node's NICs; 1 where they do not stand alike."""
    if not isinstance(groups, GroupPlacement):
        found = placement_of(groups, cluster.system.ranks_per_node)
        return 1 if found is None else found.groups_per_node
    return groups.groups_per_node


def _bounds(
    cluster: Cluster,
    kind: GroupSystem,
    collective: str,
    size_bytes: Sequence[int],
    traffic: str,
    crossing: int,
) -> list[float]:
    """Least seconds at each size of one kind of group; crossing: groups of a node that must move as much.

    Nominal rates; latencies are left out. Links of a GPU that lead to no member count too, for others could
    relay. Of a pair one way as of one both ways: links have two directions.
    """
    system = kind.system
    if system.ranks < 2 or not collective_row(collective).moves_data:
        return [0.0] * len(size_bytes)
    gpu, node = cluster.once("entrances", lambda: _entrances(cluster))
    # Seconds for each byte of size that every cut asks for; of a group that stands unevenly, whose system
    # has more ranks than it, only the cut round a GPU is sure.
    slowness, even = [0.0], kind.ranks == system.ranks
    if traffic and even:
        loads = uneven_loads(system, traffic)
        slowness += [loads.rank / gpu] + ([loads.node * crossing / node] if system.nodes > 1 else [])
    elif not traffic:
        in_network = cluster.adds_in_network and collective == "all_reduce"
        limit = LIMITS["broadcast" if in_network else collective]
        cuts = [LevelCut("GPU", 1, gpu, kind.ranks)]
        # A ring shift inside a node need not leave it.
        if system.nodes > 1 and even and collective != "send_recv":
            cuts.append(LevelCut("node", system.ranks_per_node, node / crossing, system.nodes))
        slowness += [float(1 / Fraction(limit(cut, kind.ranks))) for cut in cuts]
    return [max(slowness) * size * (1 - ROUNDING) for size in size_bytes]


def _entrances(cluster: Cluster) -> tuple[float, float]:
    """Bytes per second into or out of the GPU that has most, and a node; of one or two nodes like all."""
    fabric = (cluster if cluster.nodes <= 2 else replace(cluster, nodes=2)).fabric
    rates = fabric.link_bytes_per_second
    most = max(
        float(np.bincount(ends, rates, fabric.vertices)[: fabric.ranks].max())
        for ends in (fabric.link_source, fabric.link_target)
    )
    levels = [level.bytes_per_second for level in fabric.levels if level.name == "node"]
    network = cluster.system.network
    return most, max([*levels, network.node_bytes_per_second if network is not None else 0.0])


def group_points(
    cluster: Cluster,
    groups: Groups | GroupPlacement,
    request: LibraryRequest,
    alone: bool = False,
) -> tuple[ClusterPoint, ...]:
    """One launch of what is asked by all groups at once, or by the first ``alone``; a point for each size.

    Sizes are of one group, in the sense of nccl-tests. Asked again for the same, it costs nothing. Raises
    MachineError and UsageError for groups that the cluster does not hold, and for what the library's model
    does not know.
    """
    asked = ("group points", groups, request, alone)
    return cluster.once(asked, lambda: _library_points(cluster, groups, request, alone))


def _library_points(
    cluster: Cluster, groups: Groups | GroupPlacement, request: LibraryRequest, alone: bool
) -> tuple[ClusterPoint, ...]:
    if not collective_row(request.collective).moves_data:
        request = replace(request, size_bytes=(0,) * len(request.size_bytes))
    if alone and not isinstance(groups, GroupPlacement):
        groups = groups[:1]
    crossing = 1 if alone else _groups_of_a_node(cluster, groups)
    found = []
    for kind in group_systems(cluster, groups, alone):
        bounds = _bounds(cluster, kind, request.collective, request.size_bytes, request.traffic, crossing)
        points = (
            replace(point, bottleneck=point.bottleneck + _sharing(kind))
            for point in predict_library(kind.system, request)
        )
        pairs = zip(points, bounds, strict=True)
        found.append([point_of(request.collective, kind.ranks, *pair) for pair in pairs])
    # The launch is over when the slowest kind of group is.
    return tuple(
        max(points, key=lambda point: point.prediction.predicted_seconds)
        for points in zip(*found, strict=True)
    )


def _sharing(kind: GroupSystem) -> str:
    """What of a group's system others use as well, "" where nothing is."""
    parts = []
    if kind.nic_users > 1 and kind.system.nodes > 1:
        parts.append(f"{kind.nic_users} groups share a NIC")
    if kind.link_users > 1:
        parts.append(f"links inside a node {kind.link_users:.3g} times as busy as for one group")
    return f"; {', '.join(parts)}" if parts else ""


def subset_points(
    cluster: Cluster, schedule: Schedule, subset: RankSubset, size_bytes: Sequence[int], algorithm: str
) -> tuple[ClusterPoint, ...]:
    """One launch of ``schedule`` by all groups of ``subset``; a point for each size, which is one group's.

    Raises MachineError for ranks that the cluster does not have.
    """
    prices = subset_prices(cluster, schedule, subset, size_bytes)
    members = subset.groups_of(schedule.ranks)
    asked = schedule.collective, size_bytes, subset.traffic, _groups_of_a_node(cluster, members)
    bounds = [_bounds(cluster, kind, *asked) for kind in group_systems(cluster, members)]
    slowest = map(max, zip(*bounds, strict=True))
    return points_of(prices, algorithm, schedule.ranks, size_bytes, slowest)


def subset_prices(
    cluster: Cluster, schedule: Schedule, subset: RankSubset, size_bytes: Sequence[int]
) -> FabricPrices:
    """The price of all groups' flows together."""
    what = subset_flows(schedule, subset, cluster.ranks)
    return price_loads(loads_of(what, cluster.fabric, fabric_costs(cluster)), size_bytes)


def subset_flows(schedule: Schedule, subset: RankSubset, ranks: int) -> Schedule | Traffic:
    """What all groups send, among ``ranks`` ranks; the same object for the same three."""
    members = subset.groups_of(schedule.ranks)
    if subset.traffic:
        return _uneven(ByIdentity(schedule), members, subset.traffic, ranks)
    return placed(schedule, members, ranks)


@lru_cache(maxsize=64)
def _uneven(key: ByIdentity, members: Groups, traffic: str, ranks: int) -> Traffic:
    """Flows as wide as the traffic says, in parts of which the largest input has ``pieces``."""
    schedule, seats = key.schedule, np.array(members, dtype=np.int64)
    amounts = sent_elements(traffic, QUANTA, schedule.ranks).astype(np.float64)
    turns = [turn for phase in schedule.phases for turn in turns_of(phase, schedule)]
    pieces = int(amounts.sum(axis=1).max())
    patterns = tuple(_steps(turn, seats, flow_weights(turn, schedule, amounts)) for turn in turns)
    return Traffic(schedule.collective, schedule.algorithm, ranks, pieces, patterns)


def _steps(phase: Phase, seats: Ints, quanta: Floats) -> Steps:
    # In whole parts, so that flows that carry nothing drop out and equal widths are recognised.
    width = np.rint(quanta).astype(np.int64)
    moving = (width > 0) & (phase.source != phase.target)
    source, target = phase.source[moving], phase.target[moving]
    return Steps(seats[:, source].ravel(), seats[:, target].ravel(), np.tile(width[moving], len(seats)))


def link_seconds(cluster: Cluster, schedule: Schedule, subset: RankSubset, size_bytes: int) -> Floats:
    """Seconds for which each link is busy during one launch, all steps together."""
    flows = subset_flows(schedule, subset, cluster.ranks)
    patterns = [steps_of(phase) for phase in flows.phases] if isinstance(flows, Schedule) else flows.patterns
    table = LinkTable(cluster.fabric, fabric_costs(cluster), cluster.ranks)
    carried = np.zeros(cluster.fabric.links)
    for steps in patterns:
        assert isinstance(steps, Steps)  # ``placed`` and ``_uneven`` make nothing else
        # What a rank copies within itself uses no link.
        apart = steps.source != steps.target
        source, target, width = (np.asarray(one)[apart] for one in (steps.source, steps.target, steps.width))
        for part, ids in table.routed(source.astype(np.int64), target.astype(np.int64)):
            carried += steps.turns * table.carried(ids, width[part].astype(np.int64))
    moved = size_bytes if collective_row(schedule.collective).moves_data else 0
    return np.asarray(carried * table.seconds_per_byte * (moved / flows.pieces))
