"""The time of one training step: computing, what of the communication shows, what hides, and the bubble.

One launch of a communication takes what is predicted for where its groups stand, or what was measured.
A micro-batch on a stage is its computing and whatever of its communication is waited for: around split layers
(tensor, context, expert parallel) and, with sharded weights, for weights that come late. The stages are a
pipeline (``pipeline``); after the last micro-batch come the gradients that its backward pass could not hide,
and the optimizer. docs/parallelism.md says what is not modelled.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ccbench.cases.axes import ALL_GROUPS, OVERLAP
from ccbench.errors import UsageError
from ccbench.groups import Groups, Layout, parse_groups
from ccbench.model.cluster import Cluster
from ccbench.model.group_placement import GroupPlacement, axis_placement, placement_of
from ccbench.model.group_points import group_points
from ccbench.model.library import LibraryRequest
from ccbench.plan.communication import BACKWARD, FORWARD, OPTIMIZER, PIPELINE, StepCommunication
from ccbench.plan.memory import FIRST, MIDDLE, ONLY, stage_order
from ccbench.plan.pipeline import (
    Pipeline,
    bubble_seconds,
    even_gradients_exposed,
    exposed_hops,
    gathered_exposed,
)
from ccbench.plan.strategy import Strategy
from ccbench.results import Run

Key = tuple[str, int, int, str]
"""Collective, ranks of one group, nodes that one group is spread over, traffic."""


@dataclass(frozen=True)
class MeasuredPoints:
    """Seconds by size for each kind of collective and group that runs hold, sizes ascending."""

    curves: Mapping[Key, tuple[tuple[int, float], ...]] = field(default_factory=dict)

    def seconds(self, key: Key, size_bytes: int) -> float | None:
        """At a size that was measured, or between two that were; None elsewhere: nothing is extrapolated.

        Between two sizes the logarithm of the time is taken to be straight over the logarithm of the size.
        """
        curve = self.curves.get(key)
        if not curve or not curve[0][0] <= size_bytes <= curve[-1][0]:
            return None
        at = bisect_left(curve, (size_bytes, 0.0))
        if curve[at][0] == size_bytes:
            return curve[at][1]
        (low, fast), (high, slow) = curve[at - 1], curve[at]
        if low <= 0:
            return None
        share = math.log(size_bytes / low) / math.log(high / low)
        return math.exp(math.log(fast) + share * (math.log(slow) - math.log(fast)))


def measured_points(runs: Sequence[Run]) -> MeasuredPoints:
    """Return the points of ``runs`` that can stand for a prediction. UsageError where runs hold nothing.

    Of several points that are alike (algorithms, backends, types) the fastest counts, since a library would
    choose it.
    """
    fastest: dict[Key, dict[int, float]] = {}
    for point in (point for run in runs for point in run.points):
        # One launch of all groups with nothing else at the same time, as a training step has them.
        measured = point.is_timed and not point.simulated and not point.emulated
        alone = (
            not point.concurrent
            and not point.pair
            and point.mode != OVERLAP
            and point.aggregation == 1
        )
        if not (measured and alone and point.active_group == ALL_GROUPS):
            continue
        spread = nodes = max(1, point.nodes)
        if point.groups and nodes > 1 and point.ranks % nodes == 0:
            # Ranks lie on nodes in blocks of equal size.
            groups = parse_groups(point.groups, point.ranks)
            spread, _ = _nodes_and_groups(groups, point.ranks // nodes)
        curve = fastest.setdefault(
            (point.collective, point.group_ranks, spread, point.traffic), {}
        )
        curve[point.size_bytes] = min(
            point.median_seconds or 0.0, curve.get(point.size_bytes, math.inf)
        )
    if not fastest:
        names = ", ".join(str(run.path) for run in runs)
        if any(point.simulated for run in runs for point in run.points):
            raise UsageError(
                f"--measured {names}: its times come from a model (backend simulated), which is what a plan "
                "takes without it; name a run that measured"
            )
        raise UsageError(
            f"--measured {names}: holds no measured collective that is OK; name a run of 'ccbench run' on "
            "the machine that the plan is for"
        )
    return MeasuredPoints({key: tuple(sorted(curve.items())) for key, curve in fastest.items()})


PREDICTED, MEASURED = "predicted", "measured"

MOST_LISTED = 4096
"""Ranks of a layout whose groups may be listed one by one where they do not stand alike."""


@dataclass(frozen=True)
class Price:
    """Seconds of one launch while all groups of the axis run at once.

    bottleneck: which link or term costs most. source: ``predicted`` or ``measured``. nodes: that one group is
    spread over. groups_on_node: that share a node's links. extrapolated: why the prediction is less sure.
    """

    seconds: float
    bottleneck: str
    source: str
    nodes: int
    groups_on_node: int
    extrapolated: str = ""


Placed = GroupPlacement | Groups
"""The places of groups: alike on all nodes, or listed."""

NOTHING = Price(0.0, "", PREDICTED, 1, 1)


class ClusterPrices:
    """Prices on one cluster; asked again for the same placement, collective and size, they cost nothing."""

    def __init__(self, cluster: Cluster, measured: MeasuredPoints | None = None) -> None:
        self.cluster = cluster
        self.measured = measured
        # Where groups stand, with a number of their own: a list of thousands of ranks is slow to look up.
        self._placements: dict[tuple[Layout, str, bool], tuple[int, Placed]] = {}
        self._numbers: dict[Placed, int] = {}
        self._prices: dict[tuple[int, str, int, str], Price] = {}
        self._gpus = cluster.system.ranks_per_node

    def price(self, layout: Layout, communication: StepCommunication) -> Price:
        """Of one launch; UsageError where a layout's groups stand on nodes in ways that are not priced."""
        if communication.ranks < 2 or communication.size_bytes <= 0:
            return NOTHING
        axis = communication.axis
        place = (layout, axis, axis == "pp" and communication.ranks == 2 and layout.pp > 2)
        if place not in self._placements:
            groups = _stands(*place, self._gpus)
            self._placements[place] = (
                self._numbers.setdefault(groups, len(self._numbers)),
                groups,
            )
        number, groups = self._placements[place]
        key = (
            number,
            communication.collective,
            communication.size_bytes,
            communication.traffic,
        )
        if key not in self._prices:
            collective, size, traffic = key[1:]
            request = LibraryRequest(collective, (size,), traffic=traffic)
            (point,) = group_points(self.cluster, groups, request)
            prediction = point.prediction
            nodes, on_node = _nodes_and_groups(groups, self._gpus)
            price = Price(
                prediction.predicted_seconds,
                prediction.bottleneck,
                PREDICTED,
                nodes,
                on_node,
                point.extrapolated,
            )
            if self.measured is not None:
                seconds = self.measured.seconds(
                    (collective, communication.ranks, nodes, traffic), size
                )
                # The bottleneck stays the prediction's: a measurement does not name one.
                if seconds is not None:
                    price = replace(price, seconds=seconds, source=MEASURED, extrapolated="")
            self._prices[key] = price
        return self._prices[key]


def _nodes_and_groups(groups: Placed, gpus_per_node: int) -> tuple[int, int]:
    """(nodes that one group is spread over, groups on one node)."""
    if isinstance(groups, GroupPlacement):
        return groups.nodes, groups.groups_per_node
    on_first = sum(1 for group in groups if any(rank < gpus_per_node for rank in group))
    return max(len({rank // gpus_per_node for rank in group}) for group in groups), on_first


def _stands(layout: Layout, axis: str, ends: bool, gpus_per_node: int) -> Placed:
    """The places of the groups; of ``ends``, the first and the last rank of each group are one of two."""
    try:
        placement = axis_placement(layout, axis, gpus_per_node)
    except UsageError:
        if layout.ranks > MOST_LISTED:
            raise
        groups = layout.groups(axis)
        if ends:
            groups = tuple((group[0], group[-1]) for group in groups)
        # Listed groups that stand alike after all cost as much to price as a single one.
        return placement_of(groups, gpus_per_node) or groups
    if not ends:
        return placement
    sets = tuple((gpu_set[0], gpu_set[-1]) for gpu_set in placement.gpu_sets)
    if placement.nodes == 1:
        return replace(placement, ranks=2, ranks_per_node=2, gpu_sets=sets)
    # First and last are on different nodes; each node has one of the two of each group.
    firsts = tuple((gpu_set[0],) for gpu_set in sets)
    return replace(placement, ranks=2, ranks_per_node=1, nodes=2, gpu_sets=firsts)


@dataclass(frozen=True)
class Computing:
    """Seconds that one stage computes for one micro-batch, all its virtual stages together, and the
    optimizer's of the step."""

    forward_seconds: float
    backward_seconds: float
    optimizer_seconds: float = 0.0


@dataclass(frozen=True)
class PricedLine:
    """One communication of the step with its price. exposed_seconds: of all launches together, what lengthens
    the step; the rest runs behind computing."""

    communication: StepCommunication
    price: Price
    exposed_seconds: float = 0.0

    @property
    def total_seconds(self) -> float:
        """All launches of the step."""
        return self.communication.times * self.price.seconds

    @property
    def hidden_seconds(self) -> float:
        """The part of it that runs behind computing."""
        return max(0.0, self.total_seconds - self.exposed_seconds)


@dataclass(frozen=True)
class TrainingStep:
    """One training step. seconds = computing + bubble + exposed communication of ``lines``.

    stage: the kind of stage whose lines these are, the slowest; gradients are those of the stage that ends
    last. pipeline: as it was taken, with the times of every stage. optimizer_seconds: of the computing, the
    optimizer's.
    """

    strategy: Strategy
    stage: str
    computing_seconds: float
    bubble_seconds: float
    lines: tuple[PricedLine, ...]
    pipeline: Pipeline
    optimizer_seconds: float = 0.0

    @property
    def exposed_seconds(self) -> float:
        """Communication that is waited for."""
        return sum(line.exposed_seconds for line in self.lines)

    @property
    def hidden_seconds(self) -> float:
        """Communication behind computing."""
        return sum(line.hidden_seconds for line in self.lines)

    @property
    def seconds(self) -> float:
        """From one step's start to the next one's."""
        return self.computing_seconds + self.bubble_seconds + self.exposed_seconds


@dataclass(frozen=True)
class _Stage:
    """A kind of stage: seconds of one micro-batch with what is waited for in it, and its lines.

    busy: how long messages of split layers, and what every micro-batch sends of gradients and weights, take
    in each, waited for or not, by phase and by whether they go between nodes.
    """

    kind: str
    computing: Computing
    forward_seconds: float
    backward_seconds: float
    lines: tuple[PricedLine, ...]
    busy: Mapping[tuple[str, bool], float]

    @property
    def seconds(self) -> float:
        return self.forward_seconds + self.backward_seconds

    def room(self, phase: str, lines: Sequence[PricedLine]) -> float:
        """Seconds of a pass that hide ``lines``: those in which split layers leave the same links free."""
        # Whether these are waited for or hide does not matter: counted by what is waited for alone, faster
        # computing, which leaves less to hide behind, would make a step longer.
        across = any(line.price.nodes > 1 for line in lines)
        whole = self.forward_seconds if phase == FORWARD else self.backward_seconds
        return max(0.0, whole - self.busy[phase, across])

    def every_micro_batch(
        self, lines: Sequence[PricedLine], strategy: Strategy
    ) -> list[PricedLine]:
        """Gradients that are reduced after every micro-batch and, with stage 3, weights gathered in each."""
        forward = [line for line in lines if line.communication.phase == FORWARD]
        backward = [line for line in lines if line.communication.phase == BACKWARD]
        turns = strategy.micro_batches
        forward_room, backward_room = self.room(FORWARD, lines), self.room(BACKWARD, lines)
        if strategy.zero_stage == 2:
            # Gradients run on behind the next micro-batch's passes; the last ones do not.
            one_turn = sum(line.total_seconds for line in backward) / turns
            steady = max(0.0, one_turn - forward_room - backward_room)
            shown = (turns - 1) * steady + _gradients_exposed(backward, backward_room, turns)
            hides = all(line.communication.can_hide for line in backward)
            return _spread_out(backward, shown if hides else one_turn * turns)
        gathers = turns if strategy.reshard else 1
        spread = _spread_out(forward, gathers * _pass(forward, [], forward_room, gathers))
        weights = [line for line in backward if line.communication.collective == "all_gather"]
        gradients = [line for line in backward if line.communication.collective != "all_gather"]
        spread += _spread_out(backward, turns * _pass(weights, gradients, backward_room, turns))
        return spread

    def ending(
        self, strategy: Strategy, stages: Mapping[str, _Stage], sent: Sequence[PricedLine]
    ) -> tuple[PricedLine, ...]:
        """Lines of a kind of stage after its last micro-batch, before the next step can begin."""
        at_end: list[PricedLine] = []
        lines = [line for line in sent if is_sent_once(strategy, line.communication)]
        if lines:
            # A stage that is not the first has been done before the first is, by the backward passes between
            # them; of those in the middle the nearest to it counts.
            order = stage_order(strategy.layout.pp)
            before = (
                ()
                if self.kind in (ONLY, FIRST)
                else order[:1]
                if self.kind == MIDDLE
                else order[:-1]
            )
            ahead = (
                sum(stages[kind].backward_seconds for kind in before) / strategy.virtual_stages
            )
            shown = _gradients_exposed(lines, self.room(BACKWARD, lines))
            at_end += _spread_out(lines, max(0.0, shown - ahead))
        late = [line for line in sent if line.communication.phase == OPTIMIZER]
        weights = [line for line in late if is_data(strategy, line.communication)]
        at_end += [
            replace(line, exposed_seconds=line.total_seconds)
            for line in late
            if line not in weights
        ]
        # Weights are gathered behind the first forward pass of the next step.
        at_end += _spread_out(weights, _pass(weights, [], self.room(FORWARD, weights), 1))
        return tuple(at_end)


def step_of(
    strategy: Strategy,
    priced_lines: Iterable[PricedLine],
    computing: Mapping[str, Computing],
    hide_pipeline: bool | None = None,
) -> TrainingStep:
    """The step of a strategy.

    priced_lines: communications of all kinds of stages, priced. computing: by kind of stage. hide_pipeline: whether
    messages between stages run behind computing; None: as the strategy's schedule usually has it.
    """
    listed: dict[str, list[PricedLine]] = {kind: [] for kind in computing}
    for line in priced_lines:
        listed[line.communication.stage].append(line)
    stages = {
        kind: _stage(strategy, kind, computing[kind], lines) for kind, lines in listed.items()
    }
    slowest = max(stages.values(), key=lambda stage: stage.seconds)
    hops = [line for line in listed[slowest.kind] if line.communication.phase == PIPELINE]
    order, v = stage_order(strategy.layout.pp), strategy.virtual_stages
    hides = (
        all(line.communication.can_hide for line in hops)
        if hide_pipeline is None
        else hide_pipeline
    )
    pipeline = Pipeline(
        micro_batches=strategy.micro_batches,
        chunks=v,
        forward_seconds=tuple(stages[kind].forward_seconds / v for kind in order),
        backward_seconds=tuple(stages[kind].backward_seconds / v for kind in order),
        hop_seconds=sum(line.price.seconds for line in hops) / max(len(hops), 1),
        overlapped=hides,
        all_forward_first=strategy.pipeline == "gpipe",
    )
    ends = [stage.ending(strategy, stages, listed[kind]) for kind, stage in stages.items()]
    last = max(ends, key=lambda lines: sum(line.exposed_seconds for line in lines))
    # What shows of messages between stages while the pipeline fills and drains is a part of the bubble.
    shown = exposed_hops(pipeline) * pipeline.hop_seconds
    in_bubble = max(0.0, shown - sum(line.total_seconds for line in hops))
    bubble = bubble_seconds(pipeline) + in_bubble
    computed = strategy.micro_batches * (
        slowest.computing.forward_seconds + slowest.computing.backward_seconds
    )
    optimizer = max(stage_times.optimizer_seconds for stage_times in computing.values())
    lines = (*slowest.lines, *_spread_out(hops, shown), *last)
    return TrainingStep(
        strategy, slowest.kind, computed + optimizer, bubble, lines, pipeline, optimizer
    )


def is_data(strategy: Strategy, communication: StepCommunication) -> bool:
    """True if it is of gradients or weights, over ranks that hold the same."""
    return communication.axis in (strategy.data_axis, "edp")


def is_sent_once(strategy: Strategy, communication: StepCommunication) -> bool:
    """True if it is of gradients that only the last micro-batch's backward pass sends."""
    gradients = (
        communication.phase == BACKWARD
        and communication.collective != "all_gather"
        and is_data(strategy, communication)
    )
    return gradients and (strategy.zero_stage < 2 or strategy.keep_gradients)


def is_at_the_end(strategy: Strategy, communication: StepCommunication) -> bool:
    """True if it is of the end of the step: the last micro-batch's gradients, the optimizer."""
    return communication.phase == OPTIMIZER or is_sent_once(strategy, communication)


def _stage(
    strategy: Strategy, kind: str, computing: Computing, own_lines: Sequence[PricedLine]
) -> _Stage:
    """One kind of stage with everything that a micro-batch waits for, and the lines of it."""
    turns = strategy.micro_batches
    waited_lines: list[PricedLine] = []
    busy: dict[tuple[str, bool], float] = {}
    passes = {FORWARD: computing.forward_seconds, BACKWARD: computing.backward_seconds}
    for phase, seconds in passes.items():
        inside = [line for line in own_lines if line.communication.phase == phase]
        inside = [line for line in inside if not is_data(strategy, line.communication)]
        # Between parts of a layer all is waited for, but for what may run behind the computing.
        hiding = sum(line.total_seconds for line in inside if line.communication.can_hide)
        share = max(0.0, 1 - turns * seconds / hiding) if hiding > 0 else 0.0
        for across in (False, True):
            sent = sum(
                line.total_seconds for line in inside if (line.price.nodes > 1) == across
            )
            busy[phase, across] = sent / turns
        lines = [
            replace(
                line,
                exposed_seconds=line.total_seconds
                * (share if line.communication.can_hide else 1),
            )
            for line in inside
        ]
        passes[phase] += sum(line.exposed_seconds for line in lines) / turns
        waited_lines += lines
    stage = _Stage(
        kind, computing, passes[FORWARD], passes[BACKWARD], tuple(waited_lines), busy
    )
    if strategy.zero_stage < 2:
        return stage
    data = [line for line in own_lines if is_data(strategy, line.communication)]
    data = [line for line in data if not is_at_the_end(strategy, line.communication)]
    lines = stage.every_micro_batch(data, strategy)
    for line in lines:
        phase = line.communication.phase
        busy[phase, line.price.nodes > 1] += line.total_seconds / turns
        passes[phase] += line.exposed_seconds / turns
    return _Stage(
        kind, computing, passes[FORWARD], passes[BACKWARD], (*waited_lines, *lines), busy
    )


def _pass(
    gathered: Sequence[PricedLine], sent: Sequence[PricedLine], seconds: float, turns: int
) -> float:
    """The part that shows of one pass over layers whose weights are gathered and whose gradients are sent."""
    lines = [*gathered, *sent]
    if not lines:
        return 0.0
    if not all(line.communication.can_hide for line in lines):
        return sum(line.total_seconds for line in lines) / turns
    units = (
        max(
            sum(line.communication.times for line in group)
            for group in (gathered, sent)
            if group
        )
        // turns
    )
    gather = sum(line.total_seconds for line in gathered) / turns / units
    after = sum(line.total_seconds for line in sent) / turns / units
    return gathered_exposed(units, gather, seconds / units, after)


def _spread_out(lines: Sequence[PricedLine], exposed_seconds: float) -> list[PricedLine]:
    """``exposed_seconds`` dealt out to lines by what they take."""
    total = sum(line.total_seconds for line in lines)
    share = min(1.0, exposed_seconds / total) if total > 0 else 0.0
    return [replace(line, exposed_seconds=line.total_seconds * share) for line in lines]


def _gradients_exposed(
    lines: Sequence[PricedLine], backward_seconds: float, turns: int = 1
) -> float:
    """Of buckets that become ready during one of ``turns`` backward passes, what it cannot hide."""
    total = sum(line.total_seconds for line in lines) / turns
    if not all(line.communication.can_hide for line in lines):
        return total
    count = sum(line.communication.times for line in lines) // turns
    return even_gradients_exposed(count, total / max(count, 1), backward_seconds)
