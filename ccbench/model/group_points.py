"""Times of a collective on groups of a cluster's GPUs, and of two collectives at the same time.

With the GPUs' library each group is a system of its own (``group_systems``); a launch is over when its
slowest group is. Nothing there lists ranks, so that groups of 131,072 cost no more than groups of 8. With
ccbench's own schedules all groups take each step together, and every link carries what all of them send
through it (see ``rank_subset``). docs/model-links.md has the formulas.

Of two concurrent collectives, what both need of the same cores, links and NICs adds up, waits do not. Neither
knows of the other, so each keeps its own algorithm. A launch is over when both are: it takes at least as long
as either alone, and as long as the busiest thing that they share has to serve both, on top of the longer wait
of the two. At worst that is one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache

import numpy as np

from ccbench.cases import Case
from ccbench.collectives import collective as collective_row
from ccbench.collectives import sent_elements
from ccbench.errors import ScheduleError
from ccbench.groups import Groups
from ccbench.model import Prediction
from ccbench.model.bounds import LIMITS, ROUNDING
from ccbench.model.cluster import Cluster, ClusterPoint, points_of, points_with_bounds
from ccbench.model.fabric_loads import LinkTable
from ccbench.model.fabric_pricing import FabricPrices, price_loads
from ccbench.model.fabric_pricing import fabric_loads as loads_of
from ccbench.model.group_systems import GroupPlacement, GroupSystem, group_systems, placement_of
from ccbench.model.library import LibraryRequest
from ccbench.model.library.predictor import busy_seconds, predict_library
from ccbench.model.library.shapes import uneven_loads
from ccbench.model.machine import Machine
from ccbench.model.patterns import Steps, Traffic, steps_of
from ccbench.model.pricing import case_prices
from ccbench.model.rank_subset import RankSubset, flow_weights, placed, schedule_of, subset_of, turns_of
from ccbench.schedules import algorithms_of
from ccbench.schedules.schedule import Schedule
from ccbench.topology.fabrics import Floats, LevelCut

QUANTA = 4096
"""Parts of a mean block in which uneven ones are counted."""


def _groups_of_a_node(cluster: Cluster, groups: Groups | GroupPlacement) -> int:
    """Equal groups that put their bytes through one node's NICs; 1 where they do not stand alike."""
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
    gpu, node = cluster.entrances
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

    def found() -> tuple[ClusterPoint, ...]:
        asked = request
        if not collective_row(request.collective).moves_data:
            asked = replace(request, size_bytes=(0,) * len(request.size_bytes))
        crossing = _groups_of_a_node(cluster, groups)
        kinds = []
        for kind in group_systems(cluster, groups):
            bounds = _bounds(cluster, kind, asked.collective, asked.size_bytes, asked.traffic, crossing)
            # Parts of a group's system that others use as well.
            shared = ""
            if kind.nic_users > 1 and kind.system.nodes > 1:
                shared += f"; {kind.nic_users} groups share a NIC"
            if kind.link_users > 1:
                shared += ", " if shared else "; "
                shared += f"links inside a node {kind.link_users:.3g} times as busy as for one group"
            points = [
                replace(point, bottleneck=point.bottleneck + shared)
                for point in predict_library(kind.system, asked)
            ]
            kinds.append(points_with_bounds(asked.collective, kind.ranks, kind.system, points, bounds))
        # The launch is over when the slowest kind of group is.
        return tuple(
            max(points, key=lambda point: point.prediction.predicted_seconds)
            for points in zip(*kinds, strict=True)
        )

    return cluster.once(("group points", groups, request), found)


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
    return price_loads(loads_of(what, cluster.fabric, cluster.costs), size_bytes)


def subset_flows(schedule: Schedule, subset: RankSubset, ranks: int) -> Schedule | Traffic:
    """The flows of all groups, among ``ranks`` ranks; the same object for the same three."""
    members = subset.groups_of(schedule.ranks)
    if subset.traffic:
        return _uneven(schedule, members, subset.traffic, ranks)
    return placed(schedule, members, ranks)


@lru_cache(maxsize=64)
def _uneven(schedule: Schedule, members: Groups, traffic: str, ranks: int) -> Traffic:
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
            patterns.append(Steps(source, target, np.tile(width[moving], len(places))))
    pieces = int(amounts.sum(axis=1).max())
    return Traffic(schedule.collective, schedule.algorithm, ranks, pieces, tuple(patterns))


def link_seconds(cluster: Cluster, schedule: Schedule, subset: RankSubset, size_bytes: int) -> Floats:
    """Seconds for which each link is busy during one launch, all steps together."""
    flows = subset_flows(schedule, subset, cluster.ranks)
    patterns = [steps_of(phase) for phase in flows.phases] if isinstance(flows, Schedule) else flows.patterns
    table = LinkTable(cluster.fabric, cluster.costs, cluster.ranks)
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
    found: list[tuple[float, Schedule]] = []
    for name in algorithms_of(case.collective):
        try:
            schedule = schedule_of(case, name)
        except ScheduleError:
            continue  # not for this number of ranks
        if isinstance(where, Cluster):
            prices = subset_prices(where, schedule, subset_of(case), (case.size_bytes,)).seconds
        else:
            prices = case_prices(case, where, schedule).seconds
        found.append((float(prices[0]), schedule))
    if not found:
        raise ScheduleError(f"{case.label}: no algorithm exists for {case.group_ranks} ranks")
    return min(found, key=lambda one: one[0])[1]


def schedules_at_once(
    where: Machine | Cluster, one: tuple[Case, Schedule], other: tuple[Case, Schedule]
) -> Both:
    """Both as ccbench's own schedules, on one host or on a cluster's links."""
    told: list[Prediction] = []
    if isinstance(where, Cluster):
        # The seconds for which each link is busy with either add up.
        shared = np.zeros(where.fabric.links)
        for case, schedule in (one, other):
            subset = subset_of(case)
            (point,) = subset_points(where, schedule, subset, (case.size_bytes,), schedule.algorithm)
            told.append(point.prediction)
            shared = shared + link_seconds(where, schedule, subset, case.size_bytes)
        latency = max(prediction.latency_seconds for prediction in told)
        return _both(one[0], told, latency, latency + float(shared.max(initial=0.0)))
    # Ranks of a host do both by turns: work adds up, and goes on while one of the two waits.
    prices = [case_prices(case, where, schedule) for case, schedule in (one, other)]
    latency = max(float(price.flags[0]) for price in prices)
    work = sum(float(price.operations[0] + price.bandwidth[0]) for price in prices)
    told = [price.prediction(0) for price in prices]
    return _both(one[0], told, latency, latency + work)


def library_at_once(
    cluster: Cluster, one: tuple[Case, LibraryRequest], other: tuple[Case, LibraryRequest]
) -> Both:
    """Both by the collective library, on communicators of their own: GPUs' links and NICs serve both."""
    told: list[Prediction] = []
    waiting, inside, network = 0.0, 0.0, 0.0
    for case, request in (one, other):
        (point,) = group_points(cluster, case.members, request)
        told.append(point.prediction)
        kinds = [busy_seconds(kind.system, request) for kind in group_systems(cluster, case.members)]
        waits, links, nics = (max(column) for column in zip(*kinds, strict=True))
        # Neither waits for the other, but both need the same links and NICs.
        waiting, inside, network = max(waiting, waits), inside + links, network + nics
    return _both(one[0], told, waiting, waiting + max(inside, network))


def _both(case: Case, told: list[Prediction], latency: float, seconds: float) -> Both:
    # Whatever is shared, both cannot end before the longer would alone.
    longer = max(told, key=lambda prediction: prediction.predicted_seconds)
    whole = max(seconds, longer.predicted_seconds)
    latency = min(latency, whole)
    sharing = whole - longer.predicted_seconds
    main, other = (prediction.predicted_seconds + sharing for prediction in told)
    prediction = replace(
        longer,
        bound_seconds=max(prediction.bound_seconds for prediction in told),
        predicted_seconds=whole,
        latency_seconds=latency,
        bandwidth_seconds=whole - latency,
        bottleneck=f"{longer.bottleneck}; concurrent with {case.concurrent}, which shares what both use",
    )
    return Both(prediction, main, other)
