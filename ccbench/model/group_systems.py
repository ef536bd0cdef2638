"""A group of ranks as a system of its own, with its share of the links that it uses together with others.

Links among the members of a full mesh and ways through an NVSwitch are a group's own. NICs near its GPUs are
shared with the groups that stand near them too; links of PCIe trees, cube meshes and host memory are shared
as the machine's graph says. docs/model.md says what is shared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from ccbench.errors import MachineError
from ccbench.groups import Groups
from ccbench.model.cluster import Cluster, without_gpus
from ccbench.model.group_placement import GpuSet, GroupPlacement, standing
from ccbench.model.library import Intra, LibrarySystem
from ccbench.model.library.clusters import library_system
from ccbench.model.library.shapes import FULL_MESHES
from ccbench.topology.fabrics import Fabric, Floats, Ints
from ccbench.topology.graph import Topology

UNSHARED = frozenset({Intra.NVSWITCH, Intra.NONE, *FULL_MESHES})
"""Nodes in which groups without a common GPU have no common link."""


@dataclass(frozen=True)
class GroupSystem:
    """Own system of some groups.

    ranks: of a group; the system has more where the group stands unevenly on its nodes. nic_users: groups on
    its busiest NIC. link_users: by how much links inside a node are slower for being shared, 1 where they are
    not.
    """

    ranks: int
    system: LibrarySystem
    nic_users: int
    link_users: float


def group_systems(cluster: Cluster, groups: Groups | GroupPlacement) -> tuple[GroupSystem, ...]:
    """A system for each kind of group there is; the slowest of them is what a launch waits for.

    Listed groups may stand anyhow: of one with more ranks on some nodes than on others, every node counts as
    its fullest. Raises MachineError for ranks that the cluster does not have.
    """
    return cluster.once(("group systems", groups), lambda: _group_systems(cluster, groups))


def _group_systems(
    cluster: Cluster, groups: Groups | GroupPlacement
) -> tuple[GroupSystem, ...]:
    whole = cluster.system
    if isinstance(groups, GroupPlacement):
        one_node = groups.sets
        if (
            groups.nodes > whole.nodes
            or max(gpu for gpus_of_group in one_node for gpu in gpus_of_group)
            >= whole.ranks_per_node
        ):
            raise MachineError(
                f"{whole.name}: groups of {groups.ranks_per_node} GPUs on {groups.nodes} nodes, "
                f"{len(one_node)} a node, but there are {whole.nodes} nodes of {whole.ranks_per_node} GPUs"
            )
        # All nodes are alike: two of them show what is shared, inside a node and across.
        stands = [
            dict.fromkeys(range(min(2, groups.nodes)), gpus_of_group)
            for gpus_of_group in one_node
        ]
    else:
        stands = [standing(group, whole.ranks_per_node) for group in groups]
        if not stands or max(max(stand, default=0) for stand in stands) >= whole.nodes:
            raise MachineError(
                f"{whole.name}: has {whole.ranks} ranks, 0 to {whole.ranks - 1}; the groups name others"
            )
    # All groups' GPUs, and the groups on each NIC, node by node.
    sets: dict[int, list[GpuSet]] = {}
    users: dict[int, Counter[int]] = {}
    for stand in stands:
        for node, gpus in stand.items():
            sets.setdefault(node, []).append(gpus)
            if len(stand) > 1:
                users.setdefault(node, Counter()).update(_nics(gpus, whole))
    systems: dict[GroupSystem, None] = {}
    for own in stands:
        ranks, nodes = sum(map(len, own.values())), len(own)
        if isinstance(groups, GroupPlacement):
            ranks, nodes = groups.ranks, groups.nodes
        nics, most = 0, 1
        if len(own) > 1:
            nics = min(len(_nics(gpus, whole)) for gpus in own.values())
            most = max(
                (users[node][nic] for node, gpus in own.items() for nic in _nics(gpus, whole)),
                default=1,
            )
        # Each GPU set that the group has, with all sets that run on its node where these share its links.
        inside: set[tuple[GpuSet, tuple[GpuSet, ...]]] = set()
        for node, gpus in own.items():
            if len(gpus) > 1 and whole.intra not in UNSHARED:
                inside.add(
                    (
                        gpus,
                        tuple(
                            sorted(peer_gpus for peer_gpus in sets[node] if len(peer_gpus) > 1)
                        ),
                    )
                )
            elif len(gpus) > 1 and whole.intra is not Intra.NVSWITCH:
                inside.add((gpus, (gpus,)))
        kind = ranks, max(map(len, own.values())), nodes, nics, most, tuple(sorted(inside))
        systems[
            cluster.once(("group system", kind), partial(_group_system, cluster, *kind))
        ] = None
    return tuple(systems)


def _nics(gpus: GpuSet, whole: LibrarySystem) -> frozenset[int]:
    """NICs near the GPUs, dealt to them evenly; neighbours share one where there are fewer."""
    nics = whole.network.per_node if whole.network is not None else 0
    held = whole.ranks_per_node
    return frozenset(
        nic
        for gpu in gpus
        for nic in range(
            gpu * nics // held, max(gpu * nics // held + 1, (gpu + 1) * nics // held)
        )
        if nic < nics
    )


def _group_system(
    cluster: Cluster,
    ranks: int,
    ranks_per_node: int,
    nodes: int,
    nics: int,
    nic_users: int,
    inside: tuple[tuple[GpuSet, tuple[GpuSet, ...]], ...],
) -> GroupSystem:
    """The system of groups that cost the same; inside: its GPU sets, each with all that share its links."""
    whole, network = cluster.system, cluster.system.network
    if network is not None:
        # Groups that share a NIC get equal shares of it.
        each = network.bytes_per_second / nic_users
        network = replace(network, bytes_per_second=each, per_node=max(1, nics))
    system = replace(
        whole,
        ranks_per_node=ranks_per_node,
        nodes=nodes,
        network=network if nodes > 1 else None,
    )
    users = 1.0
    if ranks_per_node == 1:
        system = replace(
            system,
            intra=Intra.NONE,
            intra_bytes_per_second=0.0,
            links_per_gpu=0,
            multicast=False,
        )
    elif inside:
        # Of several sets the one whose links are the slowest for it.
        options = []
        for own, sets in inside:
            apart = cluster.system
            if own != tuple(range(apart.ranks_per_node)):
                apart = cluster.once(("some GPUs", own), partial(_system_of, cluster.node, own))
            options.append((apart, link_users(cluster, own, sets)))
        slowest, users = min(
            options, key=lambda option: option[0].intra_bytes_per_second / option[1]
        )
        system = replace(
            system,
            intra=slowest.intra,
            intra_bytes_per_second=slowest.intra_bytes_per_second / users,
            links_per_gpu=slowest.links_per_gpu,
            multicast=slowest.multicast,
        )
    return GroupSystem(ranks, system, nic_users, users)


def _system_of(node: Topology, gpus: GpuSet) -> LibrarySystem:
    """The first machine of ``node`` with those GPUs only, when nothing else runs there."""
    # Switches, NICs and processors stay.
    first = min(gpu.node for gpu in node.gpus)
    there = [gpu.name for gpu in node.gpus if gpu.node == first]
    kept = {there[gpu] for gpu in gpus}
    return library_system(without_gpus(node, {gpu.name for gpu in node.gpus} - kept))


def link_users(cluster: Cluster, own: GpuSet, sets: Sequence[GpuSet]) -> float:
    """Factor by which links inside a node are slower for ``own`` while all ``sets`` run: 1 to their number.

    Every group passes on around a ring of its own, as libraries do; of the links that ``own`` uses, the one
    that takes longest for all against the one that takes longest for it alone.
    """
    if len(sets) < 2 or cluster.system.intra in UNSHARED:
        return 1.0

    def slowdown() -> float:
        fabric = cluster.once(
            "one node", lambda: replace(cluster, nodes=1, network=None).fabric
        )
        rates = np.append(fabric.link_bytes_per_second, np.inf)
        mine = _ring_loads(fabric, own)
        total = sum((_ring_loads(fabric, gpus) for gpus in sets), np.zeros_like(mine))
        shared = float((np.where(mine > 0, total, 0.0) / rates).max() / (mine / rates).max())
        return min(max(shared, 1.0), float(len(sets)))

    return cluster.once(("link users", own, tuple(sets)), slowdown)


def _ring_loads(fabric: Fabric, gpus: GpuSet) -> Floats:
    """Flows through each link, and in the last place what the -1 of a route stands for: nothing."""
    source: Ints = np.array(gpus, dtype=np.int64)
    ids = fabric.router(source, np.roll(source, -1)).ravel()
    loads = np.bincount(ids[ids >= 0], minlength=fabric.links + 1)
    return np.asarray(loads, dtype=np.float64)


QUANTA = 4096
"""Parts of a mean block in which uneven ones are counted."""
