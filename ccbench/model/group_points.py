"""What a collective takes on groups of a cluster's GPUs, all at once or one alone, with the GPUs' library.

Each group is a library system of its own (``group_systems``); a launch is over when its slowest group is.
Nothing here lists ranks, so that groups of 131,072 cost no more than groups of 8. docs/model.md has the
formulas.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ccbench.collectives import collective as collective_row
from ccbench.groups import Groups
from ccbench.model.cluster import Cluster
from ccbench.model.cluster_points import ClusterPoint
from ccbench.model.group_bounds import groups_of_a_node, kind_bounds
from ccbench.model.group_placement import GroupPlacement, axis_placement, placement_of
from ccbench.model.group_systems import GroupSystem, group_systems
from ccbench.model.library.predictor import predict_library
from ccbench.model.library.system import LibraryPoint, LibraryRequest
from ccbench.model.prediction import Prediction

__all__ = ["GroupPlacement", "axis_placement", "group_points", "placement_of", "requested_points"]

MOST_KEPT = 16_384
"""Answers that a cluster remembers; then it begins anew."""


def group_points(
    cluster: Cluster,
    groups: Groups | GroupPlacement,
    collective: str,
    size_bytes: Sequence[int],
    alone: bool = False,
    algorithm: str = "default",
    traffic: str = "",
) -> tuple[ClusterPoint, ...]:
    """One launch of ``collective`` by all groups at once, or by the first ``alone``; a point for each size.

    size_bytes: of one group, in the sense of nccl-tests. traffic: of an all_to_all_v, as
    ``ccbench.collectives`` has it. Remembered: asked again for the same, it costs nothing. Raises
    MachineError and UsageError for groups that the cluster does not hold, and for what the library's model
    does not know.
    """
    key = ("group points", groups, collective, tuple(size_bytes), alone, algorithm, traffic)
    if key not in cluster.remembered:
        if len(cluster.remembered) > MOST_KEPT:
            cluster.remembered.clear()
        request = LibraryRequest(collective, tuple(size_bytes), algorithm=algorithm, traffic=traffic)
        cluster.remembered[key] = requested_points(cluster, groups, request, alone)
    found: tuple[ClusterPoint, ...] = cluster.remembered[key]
    return found


def requested_points(
    cluster: Cluster, groups: Groups | GroupPlacement, request: LibraryRequest, alone: bool = False
) -> tuple[ClusterPoint, ...]:
    """The same for everything that a request says; not remembered."""
    if not collective_row(request.collective).moves_data:
        request = replace(request, size_bytes=(0,) * len(request.size_bytes))
    if alone and not isinstance(groups, GroupPlacement):
        groups = groups[:1]
    crossing = 1 if alone else groups_of_a_node(cluster, groups)
    found = []
    for kind in group_systems(cluster, groups, alone):
        bounds = kind_bounds(cluster, kind, request.collective, request.size_bytes, request.traffic, crossing)
        priced = predict_library(kind.system, request)
        found.append([_point(request, kind, *one) for one in zip(priced, bounds, strict=True)])
    return tuple(
        max(points, key=lambda point: point.prediction.predicted_seconds)
        for points in zip(*found, strict=True)
    )


def _point(request: LibraryRequest, kind: GroupSystem, point: LibraryPoint, bound: float) -> ClusterPoint:
    latency = point.latency_seconds + point.fill_seconds
    seconds = latency + point.bandwidth_seconds
    told = Prediction(bound, seconds, latency, point.bandwidth_seconds, point.bottleneck + _sharing(kind))
    return ClusterPoint(
        request.collective,
        point.algorithm,
        point.protocol,
        kind.ranks,
        point.size_bytes,
        told,
        point.extrapolated,
    )


def _sharing(kind: GroupSystem) -> str:
    """What of a group's system others use as well, "" where nothing is."""
    parts = []
    if kind.nic_users > 1 and kind.system.nodes > 1:
        parts.append(f"{kind.nic_users} groups share a NIC")
    if kind.link_users > 1:
        parts.append(f"links inside a node {kind.link_users:.3g} times as busy as for one group")
    return f"; {', '.join(parts)}" if parts else ""
