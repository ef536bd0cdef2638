"""Least times of groups of GPUs, whatever the algorithm: what must enter one GPU, and one node.

Nominal rates; latencies are left out. Links of a GPU that lead to no member count too, for others could
relay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np

from ccbench.collectives import collective as collective_row
from ccbench.groups import Groups
from ccbench.model.cluster import Cluster
from ccbench.model.graph_bounds import LIMITS, ROUNDING
from ccbench.model.group_placement import GroupPlacement, placement_of
from ccbench.model.group_systems import GroupSystem, group_systems
from ccbench.model.library.predictor import uneven_loads
from ccbench.topology.fabrics import LevelCut


def group_bounds(
    cluster: Cluster,
    groups: Groups | GroupPlacement,
    collective: str,
    size_bytes: Sequence[int],
    traffic: str = "",
) -> list[float]:
    """Least seconds at each size for the slowest of ``groups``, all of which run at once.

    Of a pair one way as of one both ways: links have two directions.
    Raises MachineError for ranks that the cluster does not have and for links without a rate.
    """
    kinds = group_systems(cluster, groups)
    crossing = groups_of_a_node(cluster, groups)
    found = [kind_bounds(cluster, kind, collective, size_bytes, traffic, crossing) for kind in kinds]
    return [max(seconds) for seconds in zip(*found, strict=True)]


def groups_of_a_node(cluster: Cluster, groups: Groups | GroupPlacement) -> int:
    """How many equal groups put their bytes through one node's NICs; 1 where they do not stand alike."""
    alike = groups
    if not isinstance(alike, GroupPlacement):
        found = placement_of(alike, cluster.system.ranks_per_node)
        if found is None:
            return 1
        alike = found
    return alike.groups_per_node


def kind_bounds(
    cluster: Cluster,
    kind: GroupSystem,
    collective: str,
    size_bytes: Sequence[int],
    traffic: str,
    crossing: int,
) -> list[float]:
    """The same for one kind of group; crossing: groups of a node that must move as much, all at once."""
    system = kind.system
    if system.ranks < 2 or not collective_row(collective).moves_data:
        return [0.0] * len(size_bytes)
    gpu, node = _entrances(cluster)
    slowness, even = [0.0], kind.ranks == system.ranks
    if traffic and even:
        loads = uneven_loads(system, traffic)
        slowness += [loads.rank / gpu] + ([loads.node * crossing / node] if system.nodes > 1 else [])
    elif not traffic:
        in_network = cluster.adds_in_network and collective == "all_reduce"
        limit = LIMITS["broadcast" if in_network else collective]
        cuts = [LevelCut("GPU", 1, gpu, kind.ranks)]
        if system.nodes > 1 and even and collective != "send_recv":
            cuts.append(LevelCut("node", system.ranks_per_node, node / crossing, system.nodes))
        slowness += [float(1 / Fraction(limit(cut, kind.ranks))) for cut in cuts]
    return [max(slowness) * size * (1 - ROUNDING) for size in size_bytes]


def _entrances(cluster: Cluster) -> tuple[float, float]:
    """Bytes per second into or out of the GPU that has most, and a node; of one or two nodes like all."""
    if "entrances" not in cluster.remembered:
        fabric = (cluster if cluster.nodes <= 2 else replace(cluster, nodes=2)).fabric
        rates = fabric.link_bytes_per_second
        most = max(
            float(np.bincount(ends, rates, fabric.vertices)[: fabric.ranks].max())
            for ends in (fabric.link_source, fabric.link_target)
        )
        levels = [level.bytes_per_second for level in fabric.levels if level.name == "node"]
        network = cluster.system.network
        ports = network.node_bytes_per_second if network is not None else 0.0
        cluster.remembered["entrances"] = most, max([*levels, ports])
    found: tuple[float, float] = cluster.remembered["entrances"]
    return found
