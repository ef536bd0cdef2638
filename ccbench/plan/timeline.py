"""Intervals in which each stage of a step works, waits and sends, for a drawing, from the same numbers as the
step.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ccbench.plan.communication import BACKWARD, FORWARD, OPTIMIZER
from ccbench.plan.memory import stage_order
from ccbench.plan.pipeline import ChunkInterval, gradients_sent, queue, simulate
from ccbench.plan.step import TrainingStep, is_at_the_end, is_data

FORWARD_WORK, BACKWARD_WORK, WAITING, DATA, ENDING, OPTIMIZER_WORK = KINDS = (
    "forward",
    "backward",
    "waiting for communication",
    "gradients and weights",
    "optimizer's communication",
    "optimizer",
)

MOST_LANES = 8
MOST_INTERVALS = 100_000
FEWEST_SHOWN, ROUNDS_SHOWN = 16, 8
"""Intervals of one drawing; micro-batches that one shortened for it keeps, and those beyond fill and drain."""

MOST_OF_A_LANE = 100
"""Pieces of a stage that can be told apart; of more, those of a phase stand together by kind."""

IN_PHASES = (
    "Drawn in phases: each stage fills, keeps steady and drains the pipeline; passes alternate within a phase, "
    "and stand together by kind here"
)

MOST_BUCKETS = 500
"""Portions of gradients that are drawn; of more, one stands for several."""


@dataclass(frozen=True)
class LanePiece:
    """One stretch of a lane; seconds from the step's start. kind: one of KINDS. text: the micro-batch."""

    lane: int
    begin_seconds: float
    end_seconds: float
    kind: str
    text: str = ""


@dataclass(frozen=True)
class Timeline:
    """Lanes with their pieces. lanes: names. left_out: what is not shown, "" where all is.

    in_phases: passes of a phase stand together. shortened: the axis ends before the step does.
    """

    lanes: tuple[str, ...]
    pieces: tuple[LanePiece, ...]
    left_out: str
    in_phases: bool = False
    shortened: bool = False


def timeline(step: TrainingStep) -> Timeline:
    """The step of one pipeline, stage by stage, and below them what the stage that ends last sends at the
    end.

    In a stage's intervals what is waited for (the slowest stage's share) stands behind the computing; really
    the two alternate layer by layer.
    """
    count, every = step.pipeline.stages, step.pipeline.micro_batches
    shortened = every
    # Between filling and draining the pipeline its stages do the same again and again.
    if 2 * count * step.pipeline.chunks * every > MOST_INTERVALS:
        shortened = min(every, -(-max(FEWEST_SHOWN, count + ROUNDS_SHOWN) // count) * count)
    step = replace(step, pipeline=replace(step.pipeline, micro_batches=shortened))
    intervals = simulate(step.pipeline)
    # The first and the last stage are always shown, and of those between as many as there is room for.
    stages = list(range(count))
    if count > MOST_LANES:
        stages = sorted(
            {round(place * (count - 1) / (MOST_LANES - 1)) for place in range(MOST_LANES)}
        )
    lanes = [f"stage {stage}" if step.pipeline.stages > 1 else "computing" for stage in stages]
    pieces: list[LanePiece] = []
    waits = _waiting_shares(step)
    for interval in intervals:
        if interval.stage in stages:
            lane, waiting = stages.index(interval.stage), waits[interval.work]
            computed = interval.begin_seconds + (
                interval.end_seconds - interval.begin_seconds
            ) * (1 - waiting)
            kind = FORWARD_WORK if interval.work == "forward" else BACKWARD_WORK
            pieces.append(
                LanePiece(
                    lane, interval.begin_seconds, computed, kind, str(interval.micro_batch)
                )
            )
            if waiting > 0:
                pieces.append(LanePiece(lane, computed, interval.end_seconds, WAITING))
    pieces += _behind(step, intervals, len(lanes))
    in_phases = len(intervals) > count * MOST_OF_A_LANE
    if in_phases:
        slowest = stage_order(count).index(step.stage)
        pieces = _by_phase(pieces, [_phases(intervals, stage) for stage in (*stages, slowest)])
    pieces += _ending(step, intervals, len(lanes))
    if any(piece.lane == len(lanes) for piece in pieces):
        lanes.append("sent")
    left_out = [f"{count - len(stages)} of {count} stages are not shown"] * (
        len(stages) < count
    )
    if shortened < every:
        left_out.append(
            f"drawn with {shortened} of {every} micro-batches, for the others do the same again"
        )
    return Timeline(
        tuple(lanes), tuple(pieces), "; ".join(left_out), in_phases, shortened < every
    )


def _phases(intervals: Sequence[ChunkInterval], stage: int) -> list[float]:
    """When ``stage`` begins to fill, to keep steady and to drain the pipeline, in seconds."""
    mine = [interval for interval in intervals if interval.stage == stage]
    backward = min(interval.begin_seconds for interval in mine if interval.work == BACKWARD)
    forward = max(interval.end_seconds for interval in mine if interval.work == FORWARD)
    return sorted((min(interval.begin_seconds for interval in mine), backward, forward))


def _by_phase(
    pieces: Sequence[LanePiece], phases: Sequence[Sequence[float]]
) -> list[LanePiece]:
    """Pieces of a lane and a phase that are of one kind as one. phases: begins, of each lane."""
    sums: dict[tuple[int, int, int], float] = defaultdict(float)
    for piece in pieces:
        phase = max(1, bisect_right(phases[piece.lane], piece.begin_seconds)) - 1
        seconds = piece.end_seconds - piece.begin_seconds
        sums[piece.lane, phase, KINDS.index(piece.kind)] += seconds
    together: list[LanePiece] = []
    free = {
        (lane, phase): begin
        for lane, begins in enumerate(phases)
        for phase, begin in enumerate(begins)
    }
    for (lane, phase, kind), seconds in sorted(sums.items()):
        begin = free[lane, phase]
        free[lane, phase] = begin + seconds
        together.append(LanePiece(lane, begin, begin + seconds, KINDS[kind]))
    return together


def _waiting_shares(step: TrainingStep) -> dict[str, float]:
    """Of a forward and a backward interval of the slowest stage, the share that is waited for."""
    place = stage_order(step.pipeline.stages).index(step.stage)
    lengths = {
        FORWARD: step.pipeline.forward_seconds[place],
        BACKWARD: step.pipeline.backward_seconds[place],
    }
    turns = step.strategy.micro_batches * step.pipeline.chunks
    shares = {}
    for phase, seconds in lengths.items():
        waited = sum(
            line.exposed_seconds
            for line in step.lines
            if line.communication.phase == phase
            and not is_at_the_end(step.strategy, line.communication)
        )
        shares[phase] = min(1.0, waited / turns / seconds) if seconds > 0 else 0.0
    return shares


def _behind(
    step: TrainingStep, intervals: Sequence[ChunkInterval], lane: int
) -> list[LanePiece]:
    """Weights and gradients that every micro-batch of the slowest stage sends, from each pass's start on."""
    if step.strategy.zero_stage < 2:
        return []
    place = stage_order(step.pipeline.stages).index(step.stage)
    turns = step.strategy.micro_batches * step.pipeline.chunks
    sent = {FORWARD: 0.0, BACKWARD: 0.0}
    for line in step.lines:
        communication = line.communication
        if (
            communication.phase in sent
            and is_data(step.strategy, communication)
            and not is_at_the_end(step.strategy, communication)
        ):
            sent[communication.phase] += line.total_seconds / turns
    return [
        LanePiece(
            lane,
            interval.begin_seconds,
            min(interval.begin_seconds + sent[interval.work], interval.end_seconds),
            DATA,
        )
        for interval in intervals
        if interval.stage == place and sent[interval.work] > 0
    ]


def _ending(
    step: TrainingStep, intervals: Sequence[ChunkInterval], lane: int
) -> list[LanePiece]:
    """Pieces of the end, in ``lane`` and in those of the stages above it: buckets of gradients as the last
    backward pass lets them go, what the optimizer waits for, the optimizer, what it lets go.
    """
    pieces = _gradients(step, intervals, lane)
    free = max(
        [interval.end_seconds for interval in intervals]
        + [piece.end_seconds for piece in pieces]
    )
    late = [
        line
        for line in step.lines
        if line.communication.phase == OPTIMIZER and line.exposed_seconds > 0
    ]
    for line in (
        late_line for late_line in late if not is_data(step.strategy, late_line.communication)
    ):
        pieces.append(LanePiece(lane, free, free + line.exposed_seconds, ENDING))
        free += line.exposed_seconds
    if step.optimizer_seconds > 0:
        end = free + step.optimizer_seconds
        pieces += [LanePiece(stage, free, end, OPTIMIZER_WORK) for stage in range(lane)]
        free = end
    for line in (
        late_line for late_line in late if is_data(step.strategy, late_line.communication)
    ):
        pieces.append(LanePiece(lane, free, free + line.exposed_seconds, ENDING))
        free += line.exposed_seconds
    return pieces


def _gradients(
    step: TrainingStep, intervals: Sequence[ChunkInterval], lane: int
) -> list[LanePiece]:
    """Buckets of the last backward pass. They end when the step has it so: later than by themselves where
    split layers' messages are on the same links.
    """
    gradients = [
        line
        for line in step.lines
        if is_at_the_end(step.strategy, line.communication)
        and line.communication.phase == BACKWARD
    ]
    if not gradients:
        return []
    stage = stage_order(step.pipeline.stages).index(gradients[0].communication.stage)
    mine = [
        interval
        for interval in intervals
        if interval.stage == stage and interval.work == "backward"
    ]
    end = max(interval.end_seconds for interval in mine)
    length = step.pipeline.backward_seconds[stage] * step.pipeline.chunks
    count = min(MOST_BUCKETS, sum(line.communication.times for line in gradients))
    each = sum(line.total_seconds for line in gradients) / count
    hides = all(line.communication.can_hide for line in gradients)
    sent = gradients_sent(count, each, length) if hides else queue([(length, each)] * count)
    begin = max(0.0, end - length)
    shown = sum(line.exposed_seconds for line in gradients)
    if shown > 0:
        begin = (
            max(interval.end_seconds for interval in intervals) + shown - sent[-1].end_seconds
        )
    return [
        LanePiece(lane, begin + message.begin_seconds, begin + message.end_seconds, DATA)
        for message in sent
    ]
