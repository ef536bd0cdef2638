"""What ccbench's own schedules take on a cluster's links when groups of ranks run them at once, or one alone.

All groups take each step together, and every link carries what all of them send through it; see ``parties``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from ccbench.collectives import collective as collective_row
from ccbench.collectives import sent_elements
from ccbench.groups import Groups
from ccbench.model.cluster import Cluster
from ccbench.model.cluster_points import ClusterPoint, fabric_costs
from ccbench.model.fabric_loads import LinkTable
from ccbench.model.fabric_pricing import FabricPrices, price_loads
from ccbench.model.fabric_pricing import fabric_loads as loads_of
from ccbench.model.group_bounds import group_bounds
from ccbench.model.parties import ByIdentity, Party, flow_weights, placed, turns_of
from ccbench.model.patterns import Steps, Traffic, steps_of
from ccbench.model.prediction import Prediction
from ccbench.schedules.schedule import Phase, Schedule
from ccbench.topology.routing import Floats, Ints

QUANTA = 4096
"""Parts of a mean block in which uneven ones are counted."""


def party_points(
    cluster: Cluster, schedule: Schedule, party: Party, size_bytes: Sequence[int], algorithm: str
) -> tuple[ClusterPoint, ...]:
    """One launch of ``schedule`` by all groups of ``party``; a point for each size, which is one group's.

    Raises MachineError for ranks that the cluster does not have.
    """
    prices = party_prices(cluster, schedule, party, size_bytes)
    members = party.groups_of(schedule.ranks)
    bounds = group_bounds(cluster, members, schedule.collective, size_bytes, party.traffic)
    return tuple(
        ClusterPoint(
            schedule.collective,
            algorithm,
            "default",
            schedule.ranks,
            size,
            Prediction(
                bound_seconds=bounds[index],
                predicted_seconds=float(prices.seconds[index]),
                latency_seconds=float(prices.latency[index]),
                bandwidth_seconds=float(prices.bandwidth[index]),
                bottleneck=prices.explanation(index),
            ),
        )
        for index, size in enumerate(size_bytes)
    )


def party_prices(
    cluster: Cluster, schedule: Schedule, party: Party, size_bytes: Sequence[int]
) -> FabricPrices:
    """The price of all groups' flows together."""
    what = party_flows(schedule, party, cluster.ranks)
    return price_loads(loads_of(what, cluster.fabric, fabric_costs(cluster)), size_bytes)


def party_flows(schedule: Schedule, party: Party, ranks: int) -> Schedule | Traffic:
    """What all groups send, among ``ranks`` ranks; the same object for the same three."""
    members = party.groups_of(schedule.ranks)
    if party.traffic:
        return _uneven(ByIdentity(schedule), members, party.traffic, ranks)
    return placed(schedule, members, ranks)


@lru_cache(maxsize=64)
def _uneven(key: ByIdentity, members: Groups, traffic: str, ranks: int) -> Traffic:
    """Flows as wide as the traffic says, in parts of which the largest input has ``pieces``."""
    schedule, seats = key.schedule, np.array(members, dtype=np.int64)
    amounts = sent_elements(traffic, QUANTA, schedule.ranks).astype(np.float64)
    turns = [turn for phase in schedule.phases for turn in turns_of(phase, schedule)]
    pieces = int(amounts.sum(axis=1).max())
    patterns = tuple(_steps(turn, seats, flow_weights(turn, schedule, amounts)) for turn in turns)
    return Traffic(schedule.collective, schedule.algorithm, ranks, pieces, patterns)


def _steps(phase: Phase, seats: Ints, quanta: Floats) -> Steps:
    width = np.rint(quanta).astype(np.int64)
    moving = (width > 0) & (phase.source != phase.target)
    source, target = phase.source[moving], phase.target[moving]
    return Steps(seats[:, source].ravel(), seats[:, target].ravel(), np.tile(width[moving], len(seats)))


def link_seconds(cluster: Cluster, schedule: Schedule, party: Party, size_bytes: int) -> Floats:
    """Seconds for which each link is busy during one launch, all steps together."""
    flows = party_flows(schedule, party, cluster.ranks)
    patterns = [steps_of(phase) for phase in flows.phases] if isinstance(flows, Schedule) else flows.patterns
    table = LinkTable(cluster.fabric, fabric_costs(cluster), cluster.ranks)
    carried = np.zeros(cluster.fabric.links)
    for steps in patterns:
        assert isinstance(steps, Steps)  # ``placed`` and ``_uneven`` make nothing else
        apart = steps.source != steps.target
        source, target, width = (np.asarray(one)[apart] for one in (steps.source, steps.target, steps.width))
        for part, ids in table.routed(source.astype(np.int64), target.astype(np.int64)):
            carried += steps.turns * table.carried(ids, width[part].astype(np.int64))
    moved = size_bytes if collective_row(schedule.collective).moves_data else 0
    return np.asarray(carried * table.seconds_per_byte * (moved / flows.pieces))
