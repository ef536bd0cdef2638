"""Times of a collective on groups of a cluster's GPUs, and of two collectives at the same time.

To a collective library a group is a system of its own. Its place is how many of its ranks share a node, over
how many nodes, and which groups stand on the same nodes. Of groups that are alike only that matters to a
price, so 131,072 ranks are no more than a few numbers.

Links among the members of a full mesh and ways through an NVSwitch are a group's own. NICs near its GPUs are
shared with the groups that stand near them too; links of PCIe trees, cube meshes and host memory are shared
as the machine's graph says. A launch is over when its slowest group is. With ccbench's own schedules all
groups take each step together, and every link carries what all of them send through it (see ``rank_subset``).
docs/model-links.md has the formulas.

Of two concurrent collectives, what both need of the same cores, links and NICs adds up, waits do not. Neither
knows of the other, so each keeps its own algorithm. A launch is over when both are: it takes at least as long
as either alone, and as long as the busiest thing that they share has to serve both, on top of the longer wait
of the two. At worst that is one after the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache, partial

import numpy as np

from ccbench.cases.axes import Case
from ccbench.collectives import collective as collective_row
from ccbench.collectives import sent_elements
from ccbench.errors import MachineError, ScheduleError, UsageError
from ccbench.groups import DENSE_AXES, Groups, Layout, offsets_of
from ccbench.model import Prediction
from ccbench.model.bounds import LIMITS, ROUNDING
from ccbench.model.cluster import Cluster, ClusterPoint, points_of, points_with_bounds, without_gpus
from ccbench.model.fabric_loads import AlgorithmTraffic, LinkTable, RepeatedSteps, steps_of
from ccbench.model.fabric_pricing import FabricPrices, price_loads
from ccbench.model.fabric_pricing import fabric_loads as loads_of
from ccbench.model.library import Intra, LibraryRequest, LibrarySystem
from ccbench.model.library.clusters import library_system
from ccbench.model.library.predictor import busy_seconds, predict_library
from ccbench.model.library.shapes import FULL_MESHES, uneven_loads
from ccbench.model.machine import Machine
from ccbench.model.pricing import case_prices
from ccbench.model.rank_subset import (
    RankSubset,
    flow_weights,
    placed,
    schedule_of,
    subset_of,
    turns_of,
)
from ccbench.schedules import algorithms_of
from ccbench.schedules.schedule import Schedule
from ccbench.topology.fabrics import Fabric, Floats, Ints, LevelCut
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
            len(sets) != self.groups_per_node
            or any(len(gpus) != self.ranks_per_node for gpus in sets)
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
        return tuple(
            tuple(range(group * size, (group + 1) * size)) for group in range(self.groups_per_node)
        )


def standing(group: Sequence[int], gpus_per_node: int) -> dict[int, GpuSet]:
    """The GPUs of a group on each of its nodes; rank = node * GPUs of a node + GPU."""
    by_node: dict[int, list[int]] = {}
    for rank in group:
        node, gpu = divmod(rank, gpus_per_node)
        by_node.setdefault(node, []).append(gpu)
    return {node: tuple(sorted(gpus)) for node, gpus in by_node.items()}


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
    other_sets = [gpu_set for gpu_set in next(iter(by_node)) if gpu_set != own]
    return GroupPlacement(
        len(groups[0]), len(own), len(of_groups[0]), len(other_sets) + 1, (own, *other_sets)
    )


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
    across: list[tuple[int, int]] = []
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
        (ours if name in joined else across).append((within, stride))
        nodes *= size // within if name in joined else 1
        stride *= size
    offsets = sorted(offsets_of(ours))
    sets = tuple(
        tuple(start + offset for offset in offsets) for start in sorted(offsets_of(across))
    )
    return GroupPlacement(len(offsets) * nodes, len(offsets), nodes, len(sets), sets)


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


def _group_systems(cluster: Cluster, groups: Groups | GroupPlacement) -> tuple[GroupSystem, ...]:
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
            dict.fromkeys(range(min(2, groups.nodes)), gpus_of_group) for gpus_of_group in one_node
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
                        tuple(sorted(peer_gpus for peer_gpus in sets[node] if len(peer_gpus) > 1)),
                    )
                )
            elif len(gpus) > 1 and whole.intra is not Intra.NVSWITCH:
                inside.add((gpus, (gpus,)))
        kind = ranks, max(map(len, own.values())), nodes, nics, most, tuple(sorted(inside))
        systems[cluster.once(("group system", kind), partial(_group_system, cluster, *kind))] = None
    return tuple(systems)


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
        fabric = cluster.once("one node", lambda: replace(cluster, nodes=1, network=None).fabric)
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
        limit = LIMITS["broadcast" if in_network else collective]
        cuts = [LevelCut("GPU", 1, gpu, kind.ranks)]
        # A ring shift inside a node need not leave it.
        if system.nodes > 1 and even and collective != "send_recv":
            cuts.append(LevelCut("node", system.ranks_per_node, node / crossing, system.nodes))
        slowness += [float(1 / Fraction(limit(cut, kind.ranks))) for cut in cuts]
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
    members = subset.groups_of(schedule.ranks)
    arguments = schedule.collective, size_bytes, subset.traffic, _groups_of_a_node(cluster, members)
    bounds = [_bounds(cluster, kind, *arguments) for kind in group_systems(cluster, members)]
    slowest = map(max, zip(*bounds, strict=True))
    return points_of(prices, algorithm, schedule.ranks, size_bytes, slowest)


def subset_prices(
    cluster: Cluster, schedule: Schedule, subset: RankSubset, size_bytes: Sequence[int]
) -> FabricPrices:
    """The price of all groups' flows together."""
    what = subset_flows(schedule, subset, cluster.ranks)
    return price_loads(loads_of(what, cluster.fabric, cluster.costs), size_bytes)


def subset_flows(schedule: Schedule, subset: RankSubset, ranks: int) -> Schedule | AlgorithmTraffic:
    """The flows of all groups, among ``ranks`` ranks; the same object for the same three."""
    members = subset.groups_of(schedule.ranks)
    if subset.traffic:
        return _uneven(schedule, members, subset.traffic, ranks)
    return placed(schedule, members, ranks)


@lru_cache(maxsize=64)
def _uneven(schedule: Schedule, members: Groups, traffic: str, ranks: int) -> AlgorithmTraffic:
    """Flows as wide as the traffic says, in parts of which the largest input has ``pieces``."""
    places = np.array(members, dtype=np.int64)
    amounts = sent_elements(traffic, QUANTA, schedule.ranks).astype(np.float64)
    patterns = []
    for phase in schedule.phases:
        for turn in turns_of(phase, schedule):
            # In whole parts, so that flows that carry nothing drop out and equal widths are recognised.
            width = np.rint(flow_weights(turn, schedule, amounts)).astype(np.int64)
            moving = (width > 0) & (turn.source != turn.target)
            source, target = (places[:, end[moving]].ravel() for end in (turn.source, turn.target))
            patterns.append(RepeatedSteps(source, target, np.tile(width[moving], len(places))))
    pieces = int(amounts.sum(axis=1).max())
    return AlgorithmTraffic(schedule.collective, schedule.algorithm, ranks, pieces, tuple(patterns))


def link_seconds(
    cluster: Cluster, schedule: Schedule, subset: RankSubset, size_bytes: int
) -> Floats:
    """Seconds for which each link is busy during one launch, all steps together."""
    flows = subset_flows(schedule, subset, cluster.ranks)
    patterns = (
        [steps_of(phase) for phase in flows.phases]
        if isinstance(flows, Schedule)
        else flows.patterns
    )
    table = LinkTable(cluster.fabric, cluster.costs, cluster.ranks)
    carried = np.zeros(cluster.fabric.links)
    for steps in patterns:
        assert isinstance(steps, RepeatedSteps)  # ``placed`` and ``_uneven`` make nothing else
        # What a rank copies within itself uses no link.
        apart = steps.source != steps.target
        source, target, width = (
            np.asarray(column)[apart] for column in (steps.source, steps.target, steps.width)
        )
        for part, ids in table.routed(source.astype(np.int64), target.astype(np.int64)):
            carried += steps.turns * table.carried(ids, width[part].astype(np.int64))
    moved = size_bytes if collective_row(schedule.collective).moves_data else 0
    return np.asarray(carried * table.seconds_per_byte * (moved / flows.pieces))


@dataclass(frozen=True)
class Both:
    """Two collectives at once: the prediction of the launch, and when in it each of them is over.

    What sharing costs the longer one, it costs the shorter one too.
    """

    prediction: Prediction
    main_seconds: float
    other_seconds: float


def cheapest(case: Case, where: Machine | Cluster) -> Schedule:
    """The schedule that takes least time for a group of ``case`` with nothing else at the same time.

    Raises ScheduleError where there is none for that number of ranks.
    """
    candidates: list[tuple[float, Schedule]] = []
    for name in algorithms_of(case.collective):
        try:
            schedule = schedule_of(case, name)
        except ScheduleError:
            continue  # not for this number of ranks
        if isinstance(where, Cluster):
            prices = subset_prices(where, schedule, subset_of(case), (case.size_bytes,)).seconds
        else:
            prices = case_prices(case, where, schedule).seconds
        candidates.append((float(prices[0]), schedule))
    if not candidates:
        raise ScheduleError(f"{case.label}: no algorithm exists for {case.group_ranks} ranks")
    return min(candidates, key=lambda candidate: candidate[0])[1]


def schedules_at_once(
    where: Machine | Cluster, first: tuple[Case, Schedule], second: tuple[Case, Schedule]
) -> Both:
    """Both as ccbench's own schedules, on one host or on a cluster's links."""
    predictions: list[Prediction] = []
    if isinstance(where, Cluster):
        # The seconds for which each link is busy with either add up.
        shared = np.zeros(where.fabric.links)
        for case, schedule in (first, second):
            subset = subset_of(case)
            (point,) = subset_points(
                where, schedule, subset, (case.size_bytes,), schedule.algorithm
            )
            predictions.append(point.prediction)
            shared = shared + link_seconds(where, schedule, subset, case.size_bytes)
        latency = max(prediction.latency_seconds for prediction in predictions)
        return _both(first[0], predictions, latency, latency + float(shared.max(initial=0.0)))
    # Ranks of a host do both by turns: work adds up, and goes on while one of the two waits.
    prices = [case_prices(case, where, schedule) for case, schedule in (first, second)]
    latency = max(float(price.flags[0]) for price in prices)
    work = sum(float(price.operations[0] + price.bandwidth[0]) for price in prices)
    predictions = [price.prediction(0) for price in prices]
    return _both(first[0], predictions, latency, latency + work)


def library_at_once(
    cluster: Cluster, first: tuple[Case, LibraryRequest], second: tuple[Case, LibraryRequest]
) -> Both:
    """Both by the collective library, on communicators of their own: GPUs' links and NICs serve both."""
    predictions: list[Prediction] = []
    waiting, inside, network = 0.0, 0.0, 0.0
    for case, request in (first, second):
        (point,) = group_points(cluster, case.members, request)
        predictions.append(point.prediction)
        kinds = [
            busy_seconds(kind.system, request) for kind in group_systems(cluster, case.members)
        ]
        waits, links, nics = (max(column) for column in zip(*kinds, strict=True))
        # Neither waits for the other, but both need the same links and NICs.
        waiting, inside, network = max(waiting, waits), inside + links, network + nics
    return _both(first[0], predictions, waiting, waiting + max(inside, network))


def _both(case: Case, predictions: list[Prediction], latency: float, seconds: float) -> Both:
    # Whatever is shared, both cannot end before the longer would alone.
    longer = max(predictions, key=lambda prediction: prediction.predicted_seconds)
    whole = max(seconds, longer.predicted_seconds)
    latency = min(latency, whole)
    sharing = whole - longer.predicted_seconds
    main, second = (prediction.predicted_seconds + sharing for prediction in predictions)
    prediction = replace(
        longer,
        bound_seconds=max(prediction.bound_seconds for prediction in predictions),
        predicted_seconds=whole,
        latency_seconds=latency,
        bandwidth_seconds=whole - latency,
        bottleneck=f"{longer.bottleneck}; concurrent with {case.concurrent}, which shares what both use",
    )
    return Both(prediction, main, second)
