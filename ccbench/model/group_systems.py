"""What a group of GPUs is to a collective library: a system of its own, with its share of what it shares.

Links among the members of a full mesh and ways through an NVSwitch are a group's own. NICs near its GPUs are
shared with the groups that stand near them too; links of PCIe trees, cube meshes and host memory are shared
as the machine's graph says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ccbench.errors import MachineError
from ccbench.groups import Groups
from ccbench.model.cluster import Cluster, without_gpus
from ccbench.model.group_placement import GpuSet, GroupPlacement, standing
from ccbench.model.library.clusters import library_system
from ccbench.model.library.shapes import FULL_MESHES
from ccbench.model.library.system import Intra, LibrarySystem
from ccbench.topology.fabrics import Fabric
from ccbench.topology.graph import Topology
from ccbench.topology.routing import Floats, Ints

UNSHARED = frozenset({Intra.NVSWITCH, Intra.NONE, *FULL_MESHES})
"""Where groups that have no GPU in common have no link inside a node in common."""


@dataclass(frozen=True)
class GroupSystem:
    """Some groups' own system. nic_users: groups on its busiest NIC. link_users: by how much links inside a
    node are slower for being shared, 1 where they are not. ranks: of a group; the system has more where
    the group stands unevenly on its nodes.
    """

    ranks: int
    system: LibrarySystem
    nic_users: int
    link_users: float


@dataclass(frozen=True)
class _Kind:
    """Groups that cost the same. inside: each GPU set that they have, with all sets that run on its node."""

    ranks: int
    ranks_per_node: int
    nodes: int
    nics: int
    nic_users: int
    inside: tuple[tuple[GpuSet, tuple[GpuSet, ...]], ...]


def group_systems(
    cluster: Cluster, groups: Groups | GroupPlacement, alone: bool = False
) -> tuple[GroupSystem, ...]:
    """A system for each kind of group there is; the slowest of them is what a launch waits for.

    alone: only the first group runs. Listed groups may stand anyhow: of one with more ranks on some nodes
    than on others, every node counts as its fullest. Raises MachineError for ranks that it does not have.
    """
    whole = cluster.system
    if isinstance(groups, GroupPlacement):
        kinds = _kinds_of_placement(groups, whole, alone)
    else:
        key = ("kinds of listed groups", groups, alone)
        if key not in cluster.remembered:
            cluster.remembered[key] = _kinds_of_list(groups[:1] if alone else groups, whole)
        kinds = cluster.remembered[key]
    return tuple(_system(cluster, kind) for kind in kinds)


def _kinds_of_placement(placement: GroupPlacement, whole: LibrarySystem, alone: bool) -> tuple[_Kind, ...]:
    sets = placement.sets[:1] if alone else placement.sets
    if placement.nodes > whole.nodes or max(gpu for one in sets for gpu in one) >= whole.ranks_per_node:
        raise MachineError(
            f"{whole.name}: groups of {placement.ranks_per_node} GPUs on {placement.nodes} nodes, "
            f"{len(sets)} a node, but there are {whole.nodes} nodes of {whole.ranks_per_node} GPUs"
        )
    crosses = placement.nodes > 1
    users = Counter(nic for one in sets for nic in _nics(one, whole) if crosses)
    found = {_kind((one,), placement.nodes, [users], (sets,), whole): None for one in sets}
    return tuple(found)


def _kinds_of_list(groups: Groups, whole: LibrarySystem) -> tuple[_Kind, ...]:
    stands = [standing(group, whole.ranks_per_node) for group in groups]
    if not stands or max(max(one, default=0) for one in stands) >= whole.nodes:
        raise MachineError(
            f"{whole.name}: has {whole.ranks} ranks, 0 to {whole.ranks - 1}; the groups name others"
        )
    sets: dict[int, list[GpuSet]] = {}
    users: dict[int, Counter[int]] = {}
    for one in stands:
        for node, gpus in one.items():
            sets.setdefault(node, []).append(gpus)
            if len(one) > 1:
                users.setdefault(node, Counter()).update(_nics(gpus, whole))
    found: dict[_Kind, None] = {}
    for one in stands:
        shared = [users.get(node, Counter()) for node in one]
        together = tuple(tuple(sets[node]) for node in one)
        found[_kind(tuple(one.values()), len(one), shared, together, whole)] = None
    return tuple(found)


def _kind(
    own: Sequence[GpuSet],
    nodes: int,
    users: Sequence[Counter[int]],
    together: Sequence[Sequence[GpuSet]],
    whole: LibrarySystem,
) -> _Kind:
    """own, users, together: node by node, or once for all nodes."""
    nics, most = 0, 1
    if nodes > 1:
        nics = min(len(_nics(gpus, whole)) for gpus in own)
        most = max(
            (here[nic] for gpus, here in zip(own, users, strict=True) for nic in _nics(gpus, whole)),
            default=1,
        )
    if whole.intra is Intra.NVSWITCH:
        inside: set[tuple[GpuSet, tuple[GpuSet, ...]]] = set()
    elif whole.intra in UNSHARED:
        inside = {(gpus, (gpus,)) for gpus in own if len(gpus) > 1}
    else:
        inside = {
            (gpus, tuple(sorted(one for one in sets if len(one) > 1)))
            for gpus, sets in zip(own, together, strict=True)
            if len(gpus) > 1
        }
    # One entry stands for all nodes of a placement, whose groups are even.
    ranks = sum(map(len, own)) if len(own) == nodes else len(own[0]) * nodes
    return _Kind(ranks, max(map(len, own)), nodes, nics, most, tuple(sorted(inside)))


def _nics(gpus: GpuSet, whole: LibrarySystem) -> frozenset[int]:
    """NICs near the GPUs, dealt to them evenly; neighbours share one where there are fewer."""
    nics = whole.network.per_node if whole.network is not None else 0
    held = whole.ranks_per_node
    return frozenset(
        nic
        for gpu in gpus
        for nic in range(gpu * nics // held, max(gpu * nics // held + 1, (gpu + 1) * nics // held))
        if nic < nics
    )


def _system(cluster: Cluster, kind: _Kind) -> GroupSystem:
    key = ("group system", kind)
    if key not in cluster.remembered:
        cluster.remembered[key] = _made(cluster, kind)
    found: GroupSystem = cluster.remembered[key]
    return found


def _made(cluster: Cluster, kind: _Kind) -> GroupSystem:
    whole, network = cluster.system, cluster.system.network
    if network is not None:
        network = replace(
            network,
            bytes_per_second=network.bytes_per_second / kind.nic_users,
            per_node=max(1, kind.nics),
        )
    system = replace(
        whole,
        ranks_per_node=kind.ranks_per_node,
        nodes=kind.nodes,
        network=network if kind.nodes > 1 else None,
    )
    if kind.ranks_per_node == 1:
        alone = replace(
            system, intra=Intra.NONE, intra_bytes_per_second=0.0, links_per_gpu=0, multicast=False
        )
        return GroupSystem(kind.ranks, alone, kind.nic_users, 1.0)
    if not kind.inside:
        return GroupSystem(kind.ranks, system, kind.nic_users, 1.0)
    # Of several sets the one whose links are the slowest for it.
    options = [(_alone(cluster, own), link_users(cluster, own, sets)) for own, sets in kind.inside]
    slowest, users = min(options, key=lambda option: option[0].intra_bytes_per_second / option[1])
    joined = replace(
        system,
        intra=slowest.intra,
        intra_bytes_per_second=slowest.intra_bytes_per_second / users,
        links_per_gpu=slowest.links_per_gpu,
        multicast=slowest.multicast,
    )
    return GroupSystem(kind.ranks, joined, kind.nic_users, users)


def _alone(cluster: Cluster, gpus: GpuSet) -> LibrarySystem:
    """What joins some GPUs of one node when nothing else runs there."""
    if gpus == tuple(range(cluster.system.ranks_per_node)):
        return cluster.system
    key = ("some GPUs", gpus)
    if key not in cluster.remembered:
        cluster.remembered[key] = library_system(some_gpus(cluster.node, gpus))
    found: LibrarySystem = cluster.remembered[key]
    return found


def some_gpus(node: Topology, gpus: GpuSet) -> Topology:
    """The first machine of ``node`` with those GPUs only; switches, NICs and processors stay."""
    first = min(gpu.node for gpu in node.gpus)
    there = [gpu.name for gpu in node.gpus if gpu.node == first]
    kept = {there[gpu] for gpu in gpus}
    return without_gpus(node, {gpu.name for gpu in node.gpus} - kept)


def link_users(cluster: Cluster, own: GpuSet, sets: Sequence[GpuSet]) -> float:
    """By how much links inside a node are slower for ``own`` because all ``sets`` run: 1 to their number.

    Every group passes on around a ring of its own, as libraries do; of the links that ``own`` uses, the one
    that takes longest for all against the one that takes longest for it alone.
    """
    if len(sets) < 2 or cluster.system.intra in UNSHARED:
        return 1.0
    key = ("link users", own, tuple(sets))
    if key not in cluster.remembered:
        fabric = _one_node(cluster)
        rates = np.append(fabric.link_bytes_per_second, np.inf)
        mine = _ring_loads(fabric, own)
        total = sum((_ring_loads(fabric, one) for one in sets), np.zeros_like(mine))
        shared = float((np.where(mine > 0, total, 0.0) / rates).max() / (mine / rates).max())
        cluster.remembered[key] = min(max(shared, 1.0), float(len(sets)))
    return float(cluster.remembered[key])


def _one_node(cluster: Cluster) -> Fabric:
    if "one node" not in cluster.remembered:
        cluster.remembered["one node"] = replace(cluster, nodes=1, network=None).fabric
    found: Fabric = cluster.remembered["one node"]
    return found


def _ring_loads(fabric: Fabric, gpus: GpuSet) -> Floats:
    """Flows through each link, and in the last place what the -1 of a route stands for: nothing."""
    source: Ints = np.array(gpus, dtype=np.int64)
    ids = fabric.router(source, np.roll(source, -1)).ravel()
    loads = np.bincount(ids[ids >= 0], minlength=fabric.links + 1)
    return np.asarray(loads, dtype=np.float64)
