"""Prices of a training step's communication: what one launch takes where its groups stand on a machine."""

from __future__ import annotations

from dataclasses import dataclass

from ccbench.errors import MachineError, UsageError
from ccbench.groups import Groups
from ccbench.model.cluster import Cluster, open_cluster
from ccbench.model.group_points import group_points
from ccbench.model.library import LibraryRequest
from ccbench.plan.communication import StepCommunication, communications
from ccbench.plan.document import TrainingPlan
from ccbench.plan.strategy import Strategy
from ccbench.suite.readers import MOST_RANKS


@dataclass(frozen=True)
class PricedCommunication:
    """One communication with the predicted time of one launch while all groups of the axis run at once.

    bottleneck: which link or term costs most. extrapolated: why the prediction is less sure.
    """

    communication: StepCommunication
    ranks: int
    seconds: float
    bottleneck: str
    extrapolated: str

    @property
    def total_seconds(self) -> float:
        """Return the time of all launches of the step, one after the other."""
        return self.communication.times * self.seconds


@dataclass(frozen=True)
class PricedPlan:
    """A plan on its machine."""

    cluster: Cluster
    strategy: Strategy
    communication: tuple[PricedCommunication, ...]


def price_plan(
    plan: TrainingPlan,
    machine: str | None = None,
    nodes: int | None = None,
    network: str | None = None,
) -> PricedPlan:
    """Price ``plan``; what is named here goes before what the plan names.

    SuiteError and MachineError for what cannot be.
    """
    cluster = _cluster(plan, machine, nodes, network)
    keys = plan.keys
    try:
        strategy = Strategy(keys.model, keys, keys.layout.on(cluster.ranks))
        return PricedPlan(cluster, strategy, _priced(cluster, strategy))
    except (UsageError, MachineError) as problem:
        raise plan.origin.error(("layout",), str(problem).removeprefix("layout: ")) from None


def _cluster(
    plan: TrainingPlan, machine: str | None, nodes: int | None, network: str | None
) -> Cluster:
    keys = plan.keys
    if not (machine or keys.machine):
        problem = "is missing; write 'machine: hgx-h100' into the plan, or give --machine"
        raise plan.origin.error(("machine",), problem)
    try:
        return open_cluster(
            machine or keys.machine,
            nodes or keys.nodes or None,
            network or keys.network or None,
        )
    except MachineError as problem:
        # What is wrong with the plan's own machine is reported with the line that says it.
        of_network = str(problem).startswith("network:")
        if network if of_network else machine:
            raise
        key = "network" if of_network else "machine"
        raise plan.origin.error((key,), str(problem).removeprefix("network: ")) from None


def _priced(cluster: Cluster, strategy: Strategy) -> tuple[PricedCommunication, ...]:
    if cluster.ranks > MOST_RANKS:
        raise UsageError(f"{cluster.ranks} devices are too many; take at most {MOST_RANKS}")
    groups_of: dict[tuple[str, bool], Groups] = {}
    priced = []
    for sent in communications(strategy):
        place = (sent.axis, sent.ends)
        if place not in groups_of:
            groups = strategy.layout.groups(sent.axis)
            if sent.ends:
                groups = tuple((group[0], group[-1]) for group in groups)
            groups_of[place] = groups
        request = LibraryRequest(sent.collective, (sent.size_bytes,))
        (point,) = group_points(cluster, groups_of[place], request)
        seconds, bottleneck = point.prediction.predicted_seconds, point.prediction.bottleneck
        ranks = 2 if sent.ends else strategy.layout.size(sent.axis)
        priced.append(PricedCommunication(sent, ranks, seconds, bottleneck, point.extrapolated))
    return tuple(priced)
