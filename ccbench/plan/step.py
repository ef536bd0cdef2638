"""The time of one training step: computing, what of the communication shows, what hides, and the bubble.

A micro-batch on a stage is its computing and whatever of its communication is waited for: around split layers
(tensor, context, expert parallel) and, with sharded weights, for weights that come late. The stages are a
pipeline (``pipeline``); after the last micro-batch come the gradients that its backward pass could not hide,
and the optimizer. docs/parallelism.md says what is not modelled.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ccbench.plan.communication import BACKWARD, FORWARD, OPTIMIZER, PIPELINE, Communication
from ccbench.plan.memory import FIRST, MIDDLE, ONLY, stage_order
from ccbench.plan.pipeline import Pipeline, bubble_seconds, exposed_hops
from ccbench.plan.pricing import Price
from ccbench.plan.strategy import Strategy
from ccbench.plan.textbook import even_gradients_exposed, gathered_exposed


@dataclass(frozen=True)
class Computing:
    """Seconds that one stage computes for one micro-batch, all its virtual stages together, and the
    optimizer's of the step."""

    forward_seconds: float
    backward_seconds: float
    optimizer_seconds: float = 0.0


@dataclass(frozen=True)
class Line:
    """One communication of the step with its price. exposed_seconds: of all launches together, what lengthens
    the step; the rest runs behind computing."""

    communication: Communication
    price: Price
    exposed_seconds: float = 0.0

    @property
    def total_seconds(self) -> float:
        """All launches of the step."""
        return self.communication.times * self.price.seconds

    @property
    def hidden_seconds(self) -> float:
        """What of it runs behind computing."""
        return max(0.0, self.total_seconds - self.exposed_seconds)


@dataclass(frozen=True)
class Step:
    """One training step. seconds = computing + bubble + exposed communication of ``lines``.

    stage: the kind of stage whose lines these are, the slowest; gradients are those of the stage that ends
    last. pipeline: as it was taken, with the times of every stage. optimizer_seconds: of the computing, the
    optimizer's.
    """

    strategy: Strategy
    stage: str
    computing_seconds: float
    bubble_seconds: float
    lines: tuple[Line, ...]
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
    lines: tuple[Line, ...]
    busy: Mapping[tuple[str, bool], float]

    @property
    def seconds(self) -> float:
        return self.forward_seconds + self.backward_seconds

    def room(self, phase: str, lines: Sequence[Line]) -> float:
        """Behind how much of a pass ``lines`` run: not while split layers' messages use the same links.

        Whether these are waited for or hide does not matter: counted by what is waited for alone, faster
        computing, which leaves less to hide behind, would make a step longer.
        """
        across = any(line.price.nodes > 1 for line in lines)
        whole = self.forward_seconds if phase == FORWARD else self.backward_seconds
        return max(0.0, whole - self.busy[phase, across])


def step_of(
    strategy: Strategy,
    wanted: Iterable[Line],
    computing: Mapping[str, Computing],
    hide_pipeline: bool | None = None,
) -> Step:
    """The step of a strategy.

    wanted: communications of all kinds of stages, priced. computing: by kind of stage. hide_pipeline: whether
    messages between stages run behind computing; None: as the strategy's schedule usually has it.
    """
    listed: dict[str, list[Line]] = {kind: [] for kind in computing}
    for line in wanted:
        listed[line.communication.stage].append(line)
    stages = {kind: _stage(strategy, kind, computing[kind], lines) for kind, lines in listed.items()}
    slowest = max(stages.values(), key=lambda stage: stage.seconds)
    hops = [line for line in listed[slowest.kind] if line.communication.phase == PIPELINE]
    pipeline = _pipeline(strategy, stages, hops, hide_pipeline)
    ends = [_ending(strategy, stage, stages, listed[kind]) for kind, stage in stages.items()]
    last = max(ends, key=lambda lines: sum(line.exposed_seconds for line in lines))
    # What shows of messages between stages while the pipeline fills and drains is a part of the bubble.
    shown = exposed_hops(pipeline) * pipeline.hop_seconds
    in_bubble = max(0.0, shown - sum(line.total_seconds for line in hops))
    bubble = bubble_seconds(pipeline) + in_bubble
    computed = strategy.micro_batches * (
        slowest.computing.forward_seconds + slowest.computing.backward_seconds
    )
    optimizer = max(one.optimizer_seconds for one in computing.values())
    lines = (*slowest.lines, *_spread_out(hops, shown), *last)
    return Step(strategy, slowest.kind, computed + optimizer, bubble, lines, pipeline, optimizer)


def is_data(strategy: Strategy, one: Communication) -> bool:
    """Whether it is of gradients or weights, over ranks that hold the same."""
    return one.axis in (strategy.data_axis, "edp")


def is_sent_once(strategy: Strategy, one: Communication) -> bool:
    """Whether it is of gradients that only the last micro-batch's backward pass sends."""
    gradients = one.phase == BACKWARD and one.collective != "all_gather" and is_data(strategy, one)
    return gradients and (strategy.zero_stage < 2 or strategy.keep_gradients)


def is_at_the_end(strategy: Strategy, one: Communication) -> bool:
    """Whether it is of the end of the step: the last micro-batch's gradients, the optimizer."""
    return one.phase == OPTIMIZER or is_sent_once(strategy, one)


def _stage(strategy: Strategy, kind: str, computing: Computing, wanted: Sequence[Line]) -> _Stage:
    """What one micro-batch waits for, and the lines of it."""
    found: list[Line] = []
    busy: dict[tuple[str, bool], float] = {}
    passes = {FORWARD: computing.forward_seconds, BACKWARD: computing.backward_seconds}
    for phase, seconds in passes.items():
        inside = [line for line in wanted if line.communication.phase == phase]
        inside = [line for line in inside if not is_data(strategy, line.communication)]
        lines = _inside(inside, strategy.micro_batches * seconds)
        for across in (False, True):
            sent = sum(line.total_seconds for line in lines if (line.price.nodes > 1) == across)
            busy[phase, across] = sent / strategy.micro_batches
        passes[phase] += sum(line.exposed_seconds for line in lines) / strategy.micro_batches
        found += lines
    stage = _Stage(kind, computing, passes[FORWARD], passes[BACKWARD], tuple(found), busy)
    if strategy.zero_stage < 2:
        return stage
    data = [line for line in wanted if is_data(strategy, line.communication)]
    data = [line for line in data if not is_at_the_end(strategy, line.communication)]
    lines = _every_micro_batch(data, stage, strategy)
    for line in lines:
        phase = line.communication.phase
        busy[phase, line.price.nodes > 1] += line.total_seconds / strategy.micro_batches
        passes[phase] += line.exposed_seconds / strategy.micro_batches
    return _Stage(kind, computing, passes[FORWARD], passes[BACKWARD], (*found, *lines), busy)


def _inside(lines: Sequence[Line], room_seconds: float) -> list[Line]:
    """Communication between parts of a layer: waited for, but for what may run behind the computing."""
    hiding = sum(line.total_seconds for line in lines if line.communication.can_hide)
    share = max(0.0, 1 - room_seconds / hiding) if hiding > 0 else 0.0
    return [
        replace(line, exposed_seconds=line.total_seconds * (share if line.communication.can_hide else 1.0))
        for line in lines
    ]


def _every_micro_batch(lines: Sequence[Line], stage: _Stage, strategy: Strategy) -> list[Line]:
    """Gradients that are reduced after every micro-batch and, with stage 3, weights gathered in each."""
    forward = [line for line in lines if line.communication.phase == FORWARD]
    backward = [line for line in lines if line.communication.phase == BACKWARD]
    turns = strategy.micro_batches
    forward_room, backward_room = stage.room(FORWARD, lines), stage.room(BACKWARD, lines)
    if strategy.zero_stage == 2:
        return _spread_out(backward, _steady_gradients(backward, forward_room, backward_room, turns))
    gathers = turns if strategy.reshard else 1
    found = _spread_out(forward, gathers * _pass(forward, [], forward_room, gathers))
    weights = [line for line in backward if line.communication.collective == "all_gather"]
    gradients = [line for line in backward if line.communication.collective != "all_gather"]
    found += _spread_out(backward, turns * _pass(weights, gradients, backward_room, turns))
    return found


def _steady_gradients(
    lines: Sequence[Line], forward_seconds: float, backward_seconds: float, turns: int
) -> float:
    """Of gradients reduced in each micro-batch: they run on behind the next one's passes, the last ones do
    not.
    """
    one_turn = sum(line.total_seconds for line in lines) / turns
    if not all(line.communication.can_hide for line in lines):
        return one_turn * turns
    steady = max(0.0, one_turn - forward_seconds - backward_seconds)
    count = sum(line.communication.times for line in lines) // turns
    return (turns - 1) * steady + even_gradients_exposed(count, one_turn / max(count, 1), backward_seconds)


def _pass(gathered: Sequence[Line], sent: Sequence[Line], seconds: float, turns: int) -> float:
    """What shows in one pass over layers whose weights are gathered and whose gradients are sent."""
    lines = [*gathered, *sent]
    if not lines:
        return 0.0
    if not all(line.communication.can_hide for line in lines):
        return sum(line.total_seconds for line in lines) / turns
    units = (
        max(sum(line.communication.times for line in group) for group in (gathered, sent) if group) // turns
    )
    gather = sum(line.total_seconds for line in gathered) / turns / units
    after = sum(line.total_seconds for line in sent) / turns / units
    return gathered_exposed(units, gather, seconds / units, after)


def _spread_out(lines: Sequence[Line], exposed_seconds: float) -> list[Line]:
    """``exposed_seconds`` dealt out to lines by what they take."""
    total = sum(line.total_seconds for line in lines)
    share = min(1.0, exposed_seconds / total) if total > 0 else 0.0
    return [replace(line, exposed_seconds=line.total_seconds * share) for line in lines]


def _pipeline(
    strategy: Strategy, stages: Mapping[str, _Stage], hops: Sequence[Line], hide: bool | None
) -> Pipeline:
    v = strategy.virtual_stages
    order = stage_order(strategy.layout.pp)
    hidden = all(line.communication.can_hide for line in hops) if hide is None else hide
    return Pipeline(
        micro_batches=strategy.micro_batches,
        chunks=v,
        forward_seconds=tuple(stages[kind].forward_seconds / v for kind in order),
        backward_seconds=tuple(stages[kind].backward_seconds / v for kind in order),
        hop_seconds=sum(line.price.seconds for line in hops) / max(len(hops), 1),
        overlapped=hidden,
        all_forward_first=strategy.pipeline == "gpipe",
    )


def _ending(
    strategy: Strategy, stage: _Stage, stages: Mapping[str, _Stage], wanted: Sequence[Line]
) -> tuple[Line, ...]:
    """What a kind of stage does after its last micro-batch, before the next step can begin.

    A stage that is not the first has been done before the first is, by the backward passes between them.
    """
    found: list[Line] = []
    lines = [line for line in wanted if is_sent_once(strategy, line.communication)]
    if lines:
        shown = _gradients_exposed(lines, stage.room(BACKWARD, lines))
        found += _spread_out(lines, max(0.0, shown - _ahead_seconds(strategy, stage.kind, stages)))
    late = [line for line in wanted if line.communication.phase == OPTIMIZER]
    weights = [line for line in late if is_data(strategy, line.communication)]
    found += [replace(line, exposed_seconds=line.total_seconds) for line in late if line not in weights]
    found += _spread_out(weights, _pass(weights, [], stage.room(FORWARD, weights), 1))
    return tuple(found)


def _gradients_exposed(lines: Sequence[Line], backward_seconds: float) -> float:
    """Of buckets that become ready during the last backward pass, what it cannot hide."""
    total = sum(line.total_seconds for line in lines)
    if not all(line.communication.can_hide for line in lines):
        return total
    count = sum(line.communication.times for line in lines)
    return even_gradients_exposed(count, total / max(count, 1), backward_seconds)


def _ahead_seconds(strategy: Strategy, kind: str, stages: Mapping[str, _Stage]) -> float:
    """How long before the first stage a kind of stage is done: of those in the middle, the nearest to it."""
    if kind in (ONLY, FIRST):
        return 0.0
    order = stage_order(strategy.layout.pp)
    before = order[:1] if kind == MIDDLE else order[:-1]
    return sum(stages[one].backward_seconds for one in before) / strategy.virtual_stages
