"""Pipeline schedules: which stage computes which micro-batch when, and how long all of it takes.

1F1B is PipeDream-Flush (D. Narayanan et al., "Memory-Efficient Pipeline-Parallel DNN Training", 2021);
with ``chunks`` > 1 it is the interleaved schedule of D. Narayanan et al., "Efficient Large-Scale Language
Model Training on GPU Clusters Using Megatron-LM", SC 2021, section 2.2: every device holds ``chunks`` parts
of the model, and the bubble, (p - 1) / m of the computing, shrinks to (p - 1) / (m v). The orders are those
of megatron/core/pipeline_parallel/schedules.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Work = Literal["forward", "backward"]


@dataclass(frozen=True)
class Pipeline:
    """A pipeline and what each stage takes for one chunk of one micro-batch.

    micro_batches: m. chunks: v, virtual stages that a device has. forward_seconds, backward_seconds: of one
    chunk of each of the p stages, everything that is waited for inside it included. hop_seconds: from the end
    of a chunk until the next stage has what it needs. overlapped: whether a stage goes on while it sends;
    else it waits. all_forward_first: GPipe's order (Huang et al. 2019) instead of 1F1B's. An interleaved
    schedule has whole rounds: m is a multiple of p, as Megatron asks and Strategy checks.
    """

    micro_batches: int
    chunks: int
    forward_seconds: tuple[float, ...]
    backward_seconds: tuple[float, ...]
    hop_seconds: float = 0.0
    overlapped: bool = True
    all_forward_first: bool = False

    @property
    def stages(self) -> int:
        """p."""
        return len(self.forward_seconds)

    @property
    def chunk_seconds(self) -> tuple[float, ...]:
        """Forward and backward of one chunk of each stage."""
        return tuple(f + b for f, b in zip(self.forward_seconds, self.backward_seconds, strict=True))


@dataclass(frozen=True)
class Interval:
    """One chunk of one stage at work on one micro-batch; seconds from the step's start."""

    stage: int
    chunk: int
    micro_batch: int
    work: Work
    begin_seconds: float
    end_seconds: float


def pipeline_seconds(pipeline: Pipeline) -> float:
    """Until the last stage has done its last backward: computing, bubble and the hops that show.

    m v (f + b) of the slowest stage, the bubble, and ``exposed_hops``.
    """
    slowest = pipeline.micro_batches * pipeline.chunks * max(pipeline.chunk_seconds)
    return slowest + bubble_seconds(pipeline) + exposed_hops(pipeline) * pipeline.hop_seconds


def bubble_seconds(pipeline: Pipeline) -> float:
    """What the slowest stage idles for want of micro-batches: one chunk there and back on every other stage.

    (p - 1)(f + b) where all are alike.
    """
    return sum(pipeline.chunk_seconds) - max(pipeline.chunk_seconds)


def exposed_hops(pipeline: Pipeline) -> float:
    """How many hops between stages lengthen the step; those shorter than a chunk's computing are meant.

    Stages that wait for their messages: two for every chunk of every micro-batch and of the bubble (at the
    most; the ends of the pipeline have one neighbour only). Stages that go on meanwhile: an interleaved
    schedule has enough under way to hide all but those of the first micro-batch's way down and the last one's
    way up; 1F1B has just as many micro-batches under way as stages, so of every round of p of them the way
    down and up shows. Read off ``simulate``, which the tests hold these against.
    """
    p, m, v = pipeline.stages, pipeline.micro_batches, pipeline.chunks
    if p == 1:
        return 0.0
    if not pipeline.overlapped:
        return 2.0 * (m * v + p - 1)
    if pipeline.all_forward_first:
        return 2.0 * (p - 1)
    return 2.0 * (p * v - 1) if v > 1 else 2.0 * (p - 1) * m / p + 2.0 * (p - 2)


def order_of(pipeline: Pipeline, stage: int) -> list[tuple[Work, int, int]]:
    """(forward or backward, chunk, micro-batch) of a stage, one after the other."""
    p, m, v = pipeline.stages, pipeline.micro_batches, pipeline.chunks
    total = m * v
    ahead = p - stage - 1 if v == 1 else 2 * (p - stage - 1) + (v - 1) * p
    ahead = total if pipeline.all_forward_first else min(ahead, total)
    forward: list[tuple[Work, int, int]] = [("forward", *_place(k, pipeline)) for k in range(total)]
    backward: list[tuple[Work, int, int]] = []
    for k in range(total):
        chunk, micro_batch = _place(k, pipeline)
        backward.append(("backward", v - 1 - chunk, micro_batch))
    order = forward[:ahead]
    for one, other in zip(forward[ahead:], backward, strict=False):
        order += [one, other]
    return order + backward[total - ahead :]


def _place(k: int, pipeline: Pipeline) -> tuple[int, int]:
    """Chunk and micro-batch of the ``k``-th forward: p micro-batches through a chunk, then the next chunk."""
    p, v = pipeline.stages, pipeline.chunks
    if v == 1:
        return 0, k
    return k % (p * v) // p, k // (p * v) * p + k % p


def simulate(pipeline: Pipeline) -> tuple[Interval, ...]:
    """Every interval of every stage, each as early as its stage and what it needs allow."""
    p = pipeline.stages
    orders = [order_of(pipeline, stage) for stage in range(p)]
    done: dict[tuple[Work, int, int, int], float] = {}
    free = [0.0] * p
    at = [0] * p
    found: list[Interval] = []
    moved = True
    while moved:
        moved = False
        for stage, order in enumerate(orders):
            while at[stage] < len(order):
                work, chunk, micro_batch = order[at[stage]]
                ready = _ready(pipeline, done, (work, stage, chunk, micro_batch))
                if ready is None:
                    break
                begin = max(free[stage], ready)
                lengths = pipeline.forward_seconds if work == "forward" else pipeline.backward_seconds
                length = lengths[stage]
                done[work, stage, chunk, micro_batch] = begin + length
                found.append(Interval(stage, chunk, micro_batch, work, begin, begin + length))
                free[stage] = begin + length + _waits(pipeline, work, stage, chunk)
                at[stage] += 1
                moved = True
    return tuple(sorted(found, key=lambda one: (one.begin_seconds, one.stage)))


def _waits(pipeline: Pipeline, work: Work, stage: int, chunk: int) -> float:
    """What a stage that does not overlap waits for after a chunk: its message to the next stage."""
    last = pipeline.stages * pipeline.chunks - 1
    place = chunk * pipeline.stages + stage
    sends = place < last if work == "forward" else place > 0
    return pipeline.hop_seconds if sends and not pipeline.overlapped else 0.0


def _ready(
    pipeline: Pipeline, done: dict[tuple[Work, int, int, int], float], one: tuple[Work, int, int, int]
) -> float | None:
    """When what ``one`` needs is there; None where it has not been computed yet."""
    work, stage, chunk, micro_batch = one
    p, last = pipeline.stages, pipeline.stages * pipeline.chunks - 1
    place = chunk * p + stage
    if work == "forward" and place == 0:
        return 0.0
    if work == "backward" and place == last:
        return done.get(("forward", stage, chunk, micro_batch))
    before = place - 1 if work == "forward" else place + 1
    end = done.get((work, before % p, before // p, micro_batch))
    return None if end is None else end + pipeline.hop_seconds
