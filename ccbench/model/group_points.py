"""Times of a GPU library's collective on groups of a cluster's ranks.

To a collective library a group is a system of its own (``group_systems``). A launch is over when its slowest
group is. docs/model.md says what groups share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ccbench.collectives import collective as collective_row
from ccbench.groups import Groups
from ccbench.model.bounds import ROUNDING, least_of
from ccbench.model.cluster import Cluster, ClusterPoint, points_with_bounds
from ccbench.model.group_placement import GroupPlacement, placement_of
from ccbench.model.group_systems import GroupSystem, group_systems
from ccbench.model.library import LibraryRequest
from ccbench.model.library.predictor import predict_library
from ccbench.model.library.shapes import uneven_loads
from ccbench.topology.fabrics import LevelCut


def _groups_of_a_node(cluster: Cluster, groups: Groups | GroupPlacement) -> int:
    """Equal groups that put their bytes through one node's NICs; 1 where they do not stand alike."""
    if not isinstance(groups, GroupPlacement):
        placement = placement_of(groups, cluster.system.ranks_per_node)
        return 1 if placement is None else placement.groups_per_node
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
    gpu, node = cluster.entrances
    # Seconds for each byte of size that every cut asks for; of a group that stands unevenly, whose system
    # has more ranks than it, only the cut round a GPU is sure.
    slowness, even = [0.0], kind.ranks == system.ranks
    if traffic and even:
        loads = uneven_loads(system, traffic)
        slowness += [loads.rank / gpu] + (
            [loads.node * crossing / node] if system.nodes > 1 else []
        )
    elif not traffic:
        in_network = cluster.adds_in_network and collective == "all_reduce"
        cuts = [LevelCut("GPU", 1, gpu, kind.ranks)]
        if system.nodes > 1 and even:
            cuts.append(LevelCut("node", system.ranks_per_node, node / crossing, system.nodes))
        algbw, _ = least_of(cuts, kind.ranks, "broadcast" if in_network else collective)
        slowness.append(float(1 / algbw))
    return [max(slowness) * size * (1 - ROUNDING) for size in size_bytes]


def group_points(
    cluster: Cluster,
    groups: Groups | GroupPlacement,
    request: LibraryRequest,
) -> tuple[ClusterPoint, ...]:
    """One launch of what is asked by all ``groups`` at once; a point for each size.

    Sizes are of one group, in the sense of nccl-tests. Asked again for the same, it costs nothing. Raises
    MachineError and UsageError for groups that the cluster does not hold, and for what the library's model
    does not know.
    """

    def priced() -> tuple[ClusterPoint, ...]:
        adapted = request
        if not collective_row(request.collective).moves_data:
            adapted = replace(request, size_bytes=(0,) * len(request.size_bytes))
        crossing = _groups_of_a_node(cluster, groups)
        kinds = []
        for kind in group_systems(cluster, groups):
            bounds = _bounds(
                cluster, kind, adapted.collective, adapted.size_bytes, adapted.traffic, crossing
            )
            # Parts of a group's system that others use as well.
            shared = ""
            if kind.nic_users > 1 and kind.system.nodes > 1:
                shared += f"; {kind.nic_users} groups share a NIC"
            if kind.link_users > 1:
                shared += ", " if shared else "; "
                shared += (
                    f"links inside a node {kind.link_users:.3g} times as busy as for one group"
                )
            points = [
                replace(point, bottleneck=point.bottleneck + shared)
                for point in predict_library(kind.system, adapted)
            ]
            kinds.append(
                points_with_bounds(adapted.collective, kind.ranks, kind.system, points, bounds)
            )
        # The launch is over when the slowest kind of group is.
        return tuple(
            max(points, key=lambda point: point.prediction.predicted_seconds)
            for points in zip(*kinds, strict=True)
        )

    return cluster.once(("group points", groups, request), priced)
