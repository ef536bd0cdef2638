"""A group of ranks as a system of its own, with its share of the links that it uses together with others.

Links among the members of a full mesh and ways through an NVSwitch are a group's own. NICs near its GPUs are
shared with the groups that stand near them too; links of PCIe trees, cube meshes and host memory are shared
as the machine's graph says. docs/model.md says what is shared.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from ccbench.errors import MachineError
from ccbench.groups import Groups
from ccbench.model.cluster import Cluster, without_gpus
from ccbench.model.library import Intra, LibrarySystem
from ccbench.model.library.clusters import library_system
from ccbench.model.library.shapes import FULL_MESHES
from ccbench.topology.fabrics import Fabric, Floats, Ints

UNSHARED = frozenset({Intra.NVSWITCH, *FULL_MESHES})
"""Nodes in which groups without a common GPU have no common link."""

GpuSet = tuple[int, ...]
"""Numbers of GPUs within their node."""


@dataclass(frozen=True)
class GroupSystem:
    """Own system of some groups.

    ranks: of a group; the system has more where the group stands unevenly on its nodes. crossing: groups that
    put as many bytes through the NICs of one node, 1 where they do not stand alike. shared: what is slower for being
    used by others as well, in words.
    """

    ranks: int
    system: LibrarySystem
    crossing: int
    shared: str


def group_systems(cluster: Cluster, groups: Groups) -> tuple[GroupSystem, ...]:
    """A system for each kind of group there is; the slowest of them is what a launch waits for.

    Groups may stand anyhow: of one with more ranks on some nodes than on others, every node counts as
    its fullest. Raises MachineError for ranks that the cluster does not have.
    """
    return cluster.once(("group systems", groups), lambda: _group_systems(cluster, groups))


def _group_systems(cluster: Cluster, groups: Groups) -> tuple[GroupSystem, ...]:
    whole = cluster.system
    stands = [_standing(group, whole.ranks_per_node) for group in groups]
    if max((node for stand in stands for node in stand), default=whole.nodes) >= whole.nodes:
        raise MachineError(
            f"{whole.name}: has {whole.ranks} ranks, 0 to {whole.ranks - 1}; the groups name others"
        )
    on_node: dict[int, list[GpuSet]] = defaultdict(list)
    for stand in stands:
        for node, gpus in stand.items():
            on_node[node].append(gpus)
    spread = [stand for stand in stands if len(stand) > 1]
    near = {gpus: _nics(gpus, whole) for stand in spread for gpus in {*stand.values()}}
    users = Counter(
        (node, nic) for stand in spread for node, gpus in stand.items() for nic in near[gpus]
    )
    shapes = {(len(stand), frozenset(map(len, stand.values()))) for stand in stands}
    one_set_each = all(len({*stand.values()}) == 1 for stand in stands)
    nodes = {tuple(sorted(sets)) for sets in on_node.values()}
    alike = one_set_each and len(shapes) == len(nodes) == 1
    crossing = len(nodes.pop()) if alike else 1
    systems: dict[GroupSystem, None] = {}
    for stand in stands:
        network, shared = None, []
        if len(stand) > 1 and whole.network is not None:
            nics = min(len(near[gpus]) for gpus in stand.values())
            most = max(users[node, nic] for node, gpus in stand.items() for nic in near[gpus])
            # Groups that share a NIC get equal shares of it.
            each = whole.network.bytes_per_second / most
            network = replace(whole.network, bytes_per_second=each, per_node=nics)
            if most > 1:
                shared.append(f"{most} groups share a NIC")
        inside, busy = _links_inside(cluster, stand, on_node)
        if busy > 1:
            shared.append(f"links inside a node {busy:.3g} times as busy as for one group")
        system = replace(
            whole,
            ranks_per_node=max(map(len, stand.values())),
            nodes=len(stand),
            network=network,
            intra=inside.intra,
            intra_bytes_per_second=inside.intra_bytes_per_second / busy,
            links_per_gpu=inside.links_per_gpu,
            multicast=inside.multicast,
        )
        ranks = sum(map(len, stand.values()))
        systems[GroupSystem(ranks, system, crossing, ", ".join(shared))] = None
    return tuple(systems)


def _standing(group: Sequence[int], gpus_per_node: int) -> dict[int, GpuSet]:
    """The GPUs of a group on each of its nodes; rank = node * GPUs of a node + GPU."""
    by_node: dict[int, list[int]] = defaultdict(list)
    for rank in sorted(group):
        node, gpu = divmod(rank, gpus_per_node)
        by_node[node].append(gpu)
    return {node: tuple(gpus) for node, gpus in by_node.items()}


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
    )


def _links_inside(
    cluster: Cluster, stand: Mapping[int, GpuSet], on_node: Mapping[int, Sequence[GpuSet]]
) -> tuple[LibrarySystem, float]:
    """A node with the GPUs of a group alone, and by how much its links are slower for being shared.

    Of several GPU sets the one counts whose links are the slowest for it.
    """
    # Each GPU set that the group has, with all sets of its node that use links.
    sets = frozenset(
        (own, tuple(sorted(gpus for gpus in on_node[node] if len(gpus) > 1)))
        for node, own in stand.items()
    )

    def slowest() -> tuple[LibrarySystem, float]:
        options = [
            (_system_of(cluster, own), _slowdown(cluster, own, peers))
            for own, peers in sorted(sets)
        ]
        # One GPU alone has no links.
        return min(
            options, key=lambda option: option[0].intra_bytes_per_second / option[1] or inf
        )

    return cluster.once(("links inside", sets), slowest)


def _system_of(cluster: Cluster, gpus: GpuSet) -> LibrarySystem:
    """One node with those GPUs only, when nothing else runs there; switches, NICs and processors stay."""
    node = cluster.node
    if len(gpus) == cluster.system.ranks_per_node:
        return cluster.system
    first = min(gpu.node for gpu in node.gpus)
    there = [gpu.name for gpu in node.gpus if gpu.node == first]
    kept = {there[gpu] for gpu in gpus}
    return library_system(without_gpus(node, {gpu.name for gpu in node.gpus} - kept))


def _slowdown(cluster: Cluster, own: GpuSet, sets: Sequence[GpuSet]) -> float:
    """Factor by which links inside a node are slower for ``own`` while all ``sets`` run: 1 to their number.

    Every group passes on around a ring of its own, as libraries do; of the links that ``own`` uses, the one
    that takes longest for all against the one that takes longest for it alone.
    """
    if len(own) < 2 or len(sets) < 2 or cluster.system.intra in UNSHARED:
        return 1.0
    fabric = cluster.once("one node", lambda: replace(cluster, nodes=1, network=None).fabric)
    rates = np.append(fabric.link_bytes_per_second, np.inf)
    mine = _ring_loads(fabric, own)
    total = np.sum([_ring_loads(fabric, gpus) for gpus in sets], axis=0)
    shared = float((np.where(mine > 0, total, 0.0) / rates).max() / (mine / rates).max())
    return min(max(shared, 1.0), float(len(sets)))


def _ring_loads(fabric: Fabric, gpus: GpuSet) -> Floats:
    """Flows through each link, and in the last place what the -1 of a route stands for: nothing."""
    source: Ints = np.array(gpus, dtype=np.int64)
    ids = fabric.router(source, np.roll(source, -1)).ravel()
    loads = np.bincount(ids[ids >= 0], minlength=fabric.links + 1)
    return np.asarray(loads, dtype=np.float64)
