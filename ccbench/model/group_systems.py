"""Places of groups of GPUs, and what a group is to a collective library: a system of its own.

A group's place is how many of its ranks share a node, over how many nodes, and which groups stand on the same
nodes. Of groups that are alike only that matters to a price, so 131,072 ranks are no more than a few numbers.

Links among the members of a full mesh and ways through an NVSwitch are a group's own. NICs near its GPUs are
shared with the groups that stand near them too; links of PCIe trees, cube meshes and host memory are shared
as the machine's graph says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from ccbench.errors import MachineError, UsageError
from ccbench.groups import DENSE_AXES, Groups, Layout
from ccbench.model.cluster import Cluster, without_gpus
from ccbench.model.library import Intra, LibrarySystem
from ccbench.model.library.clusters import library_system
from ccbench.model.library.shapes import FULL_MESHES
from ccbench.topology.fabrics import Fabric, Floats, Ints
from ccbench.topology.graph import Topology

GpuSet = tuple[int, ...]
"""Numbers of GPUs within their node."""


@dataclass(frozen=True)
class GroupPlacement:
    """Groups that are all alike: each has ``ranks_per_node`` ranks on each of ``nodes`` nodes.

    ranks: of one group. groups_per_node: that stand on one node when all of them run.
    gpu_sets: which GPUs of its node each of those groups has; () for runs of neighbours from GPU 0 on.
    Raises UsageError where the numbers contradict each other.
    """

    ranks: int
    ranks_per_node: int
    nodes: int
    groups_per_node: int = 1
    gpu_sets: tuple[GpuSet, ...] = ()

    def __post_init__(self) -> None:
        numbers = (self.ranks, self.ranks_per_node, self.nodes, self.groups_per_node)
        if min(numbers) < 1 or self.ranks != self.ranks_per_node * self.nodes:
            raise UsageError(
                f"placement: {self.ranks} ranks as {self.ranks_per_node} on each of {self.nodes} nodes, "
                f"{self.groups_per_node} groups a node; give numbers from 1 on, the first the product of the "
                "next two"
            )
        sets = self.gpu_sets
        if sets and (
            len(sets) != self.groups_per_node or any(len(one) != self.ranks_per_node for one in sets)
        ):
            raise UsageError(
                f"placement: GPU sets {sets} for {self.groups_per_node} groups of {self.ranks_per_node} "
                "ranks a node; give one of that size for each"
            )

    @property
    def sets(self) -> tuple[GpuSet, ...]:
        """The GPUs of every group of one node."""
        if self.gpu_sets:
            return self.gpu_sets
        size = self.ranks_per_node
        return tuple(tuple(range(one * size, (one + 1) * size)) for one in range(self.groups_per_node))


def standing(group: Sequence[int], gpus_per_node: int) -> dict[int, GpuSet]:
    """The GPUs of a group on each of its nodes; rank = node * GPUs of a node + GPU."""
    found: dict[int, list[int]] = {}
    for rank in group:
        node, gpu = divmod(rank, gpus_per_node)
        found.setdefault(node, []).append(gpu)
    return {node: tuple(sorted(gpus)) for node, gpus in found.items()}


def placement_of(groups: Groups, gpus_per_node: int) -> GroupPlacement | None:
    """The placement of ``groups``, None where they are not alike: then they are priced as they are listed."""
    of_groups = [standing(group, gpus_per_node) for group in groups]
    if not of_groups or any(len(set(stands.values())) != 1 for stands in of_groups):
        return None
    if len({(len(stands), len(next(iter(stands.values())))) for stands in of_groups}) != 1:
        return None
    on_node: dict[int, list[GpuSet]] = {}
    for stands in of_groups:
        for node, gpus in stands.items():
            on_node.setdefault(node, []).append(gpus)
    # The first group's set stays first.
    by_node = {tuple(sorted(sets)) for sets in on_node.values()}
    if len(by_node) != 1:
        return None
    own = next(iter(of_groups[0].values()))
    others = [one for one in next(iter(by_node)) if one != own]
    return GroupPlacement(len(groups[0]), len(own), len(of_groups[0]), len(others) + 1, (own, *others))


def axis_placement(layout: Layout, axis: str, gpus_per_node: int) -> GroupPlacement:
    """The placement of the groups of ``axis`` (or axes joined by ``-``), no ranks listed.

    UsageError where a node's GPUs cut an axis at a place that is not one of its steps (6 of 8 GPUs, say), for
    then groups of one axis do not stand alike: list them with ``layout.groups`` instead.
    """
    layout.size(axis)
    joined = axis.split("-")
    # Axes of the kind (dense or experts) that ``axis`` is of, the fastest varying first.
    names = {"tp": "etp", "ep": "ep", "dp": "edp", "pp": "pp"}
    if set(joined) <= set(DENSE_AXES):
        names = {name: name for name in DENSE_AXES}
    gpus = min(gpus_per_node, layout.ranks)
    # Of each axis how many steps stay within a node, and how many GPUs on one of them moves.
    ours: list[tuple[int, int]] = []
    others: list[tuple[int, int]] = []
    stride = nodes = 1
    for name in (names[name] for name in layout.order.split("-") if name in names):
        size = layout.size(name)
        within = min(size, max(1, gpus // stride))
        filled = stride * within
        if stride < gpus:
            cut = gpus % filled or size % within or (within < size and filled != gpus)
        else:
            cut = stride % gpus
        if cut:
            raise UsageError(
                f"layout: {layout} on nodes of {gpus_per_node} GPUs cuts {name} unevenly; choose sizes whose "
                f"products divide {gpus_per_node} or are multiples of it"
            )
        (ours if name in joined else others).append((within, stride))
        nodes *= size // within if name in joined else 1
        stride *= size
    offsets = _offsets(ours)
    sets = tuple(tuple(start + offset for offset in offsets) for start in _offsets(others))
    return GroupPlacement(len(offsets) * nodes, len(offsets), nodes, len(sets), sets)


def _offsets(axes: Sequence[tuple[int, int]]) -> list[int]:
    found = [0]
    for size, step in axes:
        found = [offset + number * step for number in range(size) for offset in found]
    return sorted(found)


UNSHARED = frozenset({Intra.NVSWITCH, Intra.NONE, *FULL_MESHES})
"""Where groups that have no GPU in common have no link inside a node in common."""


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


def _group_systems(cluster: Cluster, groups: Groups | GroupPlacement) -> tuple[GroupSystem, ...]:
    whole = cluster.system
    if isinstance(groups, GroupPlacement):
        one_node = groups.sets
        if groups.nodes > whole.nodes or max(gpu for one in one_node for gpu in one) >= whole.ranks_per_node:
            raise MachineError(
                f"{whole.name}: groups of {groups.ranks_per_node} GPUs on {groups.nodes} nodes, "
                f"{len(one_node)} a node, but there are {whole.nodes} nodes of {whole.ranks_per_node} GPUs"
            )
        # All nodes are alike: two of them show what is shared, inside a node and across.
        stands = [dict.fromkeys(range(min(2, groups.nodes)), one) for one in one_node]
    else:
        stands = [standing(group, whole.ranks_per_node) for group in groups]
        if not stands or max(max(one, default=0) for one in stands) >= whole.nodes:
            raise MachineError(
                f"{whole.name}: has {whole.ranks} ranks, 0 to {whole.ranks - 1}; the groups name others"
            )
    # All groups' GPUs, and the groups on each NIC, node by node.
    sets: dict[int, list[GpuSet]] = {}
    users: dict[int, Counter[int]] = {}
    for one in stands:
        for node, gpus in one.items():
            sets.setdefault(node, []).append(gpus)
            if len(one) > 1:
                users.setdefault(node, Counter()).update(_nics(gpus, whole))
    found: dict[GroupSystem, None] = {}
    for own in stands:
        ranks, nodes = sum(map(len, own.values())), len(own)
        if isinstance(groups, GroupPlacement):
            ranks, nodes = groups.ranks, groups.nodes
        nics, most = 0, 1
        if len(own) > 1:
            nics = min(len(_nics(gpus, whole)) for gpus in own.values())
            most = max(
                (users[node][nic] for node, gpus in own.items() for nic in _nics(gpus, whole)), default=1
            )
        # Each GPU set that the group has, with all sets that run on its node where these share its links.
        inside: set[tuple[GpuSet, tuple[GpuSet, ...]]] = set()
        for node, gpus in own.items():
            if len(gpus) > 1 and whole.intra not in UNSHARED:
                inside.add((gpus, tuple(sorted(one for one in sets[node] if len(one) > 1))))
            elif len(gpus) > 1 and whole.intra is not Intra.NVSWITCH:
                inside.add((gpus, (gpus,)))
        kind = ranks, max(map(len, own.values())), nodes, nics, most, tuple(sorted(inside))
        found[cluster.once(("group system", kind), partial(_group_system, cluster, *kind))] = None
    return tuple(found)


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
        whole, ranks_per_node=ranks_per_node, nodes=nodes, network=network if nodes > 1 else None
    )
    users = 1.0
    if ranks_per_node == 1:
        system = replace(
            system, intra=Intra.NONE, intra_bytes_per_second=0.0, links_per_gpu=0, multicast=False
        )
    elif inside:
        # Of several sets the one whose links are the slowest for it.
        options = []
        for own, sets in inside:
            apart = cluster.system
            if own != tuple(range(apart.ranks_per_node)):
                apart = cluster.once(("some GPUs", own), partial(_system_of, cluster.node, own))
            options.append((apart, link_users(cluster, own, sets)))
        slowest, users = min(options, key=lambda option: option[0].intra_bytes_per_second / option[1])
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
    """By how much links inside a node are slower for ``own`` because all ``sets`` run: 1 to their number.

    Every group passes on around a ring of its own, as libraries do; of the links that ``own`` uses, the one
    that takes longest for all against the one that takes longest for it alone.
    """
    if len(sets) < 2 or cluster.system.intra in UNSHARED:
        return 1.0

    def found() -> float:
        fabric = cluster.once("one node", lambda: replace(cluster, nodes=1, network=None).fabric)
        rates = np.append(fabric.link_bytes_per_second, np.inf)
        mine = _ring_loads(fabric, own)
        total = sum((_ring_loads(fabric, one) for one in sets), np.zeros_like(mine))
        shared = float((np.where(mine > 0, total, 0.0) / rates).max() / (mine / rates).max())
        return min(max(shared, 1.0), float(len(sets)))

    return cluster.once(("link users", own, tuple(sets)), found)


def _ring_loads(fabric: Fabric, gpus: GpuSet) -> Floats:
    """Flows through each link, and in the last place what the -1 of a route stands for: nothing."""
    source: Ints = np.array(gpus, dtype=np.int64)
    ids = fabric.router(source, np.roll(source, -1)).ravel()
    loads = np.bincount(ids[ids >= 0], minlength=fabric.links + 1)
    return np.asarray(loads, dtype=np.float64)
