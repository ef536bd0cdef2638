"""Times of a GPU library's collective on groups of a cluster's ranks.

To a collective library a group is a system of its own (``group_systems``). A launch is over when its slowest
group is. docs/model.md says what groups share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ccbench.collectives import collective as collective_row
from ccbench.groups import Groups
from ccbench.model.bounds import ROUNDING
from ccbench.model.cluster import Cluster, ClusterPoint, cut_rate, points_with_bounds
from ccbench.model.group_systems import GroupSystem, group_systems
from ccbench.model.library import LibraryRequest
from ccbench.model.library.predictor import predict_library
from ccbench.model.library.shapes import uneven_loads


def group_bounds(
    cluster: Cluster,
    kind: GroupSystem,
    collective: str,
    size_bytes: Sequence[int],
    traffic: str = "",
) -> list[float]:
    """Least seconds at each size of one kind of group.

    Nominal rates; latencies are left out. Links of a GPU that lead to no member count too, for others could
    relay. Of a pair one way as of one both ways: links have two directions.
    """
    system = kind.system
    if kind.ranks < 2 or not collective_row(collective).moves_data:
        return [0.0] * len(size_bytes)
    # Of a group that stands unevenly, whose system has more ranks than it, only the cut round a GPU is sure.
    even = kind.ranks == system.ranks
    if not traffic:
        nodes = system.nodes if even else 1
        slowness = 1 / cut_rate(cluster, collective, kind.ranks, nodes, kind.crossing)
    elif even:
        loads, (gpu, node) = uneven_loads(system, traffic), cluster.entrances
        across = loads.node * kind.crossing / node if system.nodes > 1 else 0.0
        slowness = max(loads.rank / gpu, across)
    else:
        slowness = 0.0
    return [slowness * size * (1 - ROUNDING) for size in size_bytes]


def group_points(
    cluster: Cluster,
    groups: Groups,
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
        moved = adapted.collective, adapted.size_bytes, adapted.traffic
        kinds = []
        for kind in group_systems(cluster, groups):
            shared = f"; {kind.shared}" if kind.shared else ""
            points = [
                replace(point, bottleneck=point.bottleneck + shared)
                for point in predict_library(kind.system, adapted)
            ]
            bounds = group_bounds(cluster, kind, *moved)
            kinds.append(
                points_with_bounds(adapted.collective, kind.ranks, kind.system, points, bounds)
            )
        # The launch is over when the slowest kind of group is.
        return tuple(
            max(points, key=lambda point: point.prediction.predicted_seconds)
            for points in zip(*kinds, strict=True)
        )

    return cluster.once(("group points", groups, request), priced)
