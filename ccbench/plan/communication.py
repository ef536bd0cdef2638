"""What a training step communicates: each collective with its group, size and number of launches.

Volumes are those of the papers, named at each function. Sizes are exact: libraries pad portions so that they
divide among ranks, which is left out. Left out as well, because they are of a few bytes: the norm of all
gradients, losses averaged for the log, token counts before an uneven exchange. Latent attention (DeepSeek)
communicates among tensor parallel ranks like any other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from ccbench.collectives import shares
from ccbench.plan.memory import FIRST, LAST, ONLY, Holding, holdings
from ccbench.plan.shape import ModelShape
from ccbench.plan.strategy import Strategy, check_strategy

FORWARD, BACKWARD, OPTIMIZER, PIPELINE = PHASES = ("forward", "backward", "optimizer", "pipeline")
"""When a launch is wanted: in a micro-batch's forward or backward pass, at the optimizer, between stages.

Recomputation is in the backward pass; so are gradients, even where only the last micro-batch sends them.
"""

LAYER, MICRO_BATCH, BUCKET, STEP = UNITS = ("layer", "micro_batch", "bucket", "step")
"""What asks for one launch."""

SHARE_OF_RING = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1, "all_to_all_v": 1}
"""Times (ranks - 1) / ranks: what a rank sends at least, as a share of the size.

Patarasuk and Yuan 2009; doc/PERFORMANCE.md of nccl-tests.
"""

LOSS_BYTES = 4
"""A number of the loss, float32."""


@dataclass(frozen=True)
class Communication:
    """One collective as it comes again and again in a step.

    axis: of the layout, as ``Layout.groups`` takes it; the embedding that first and last stage share is
    communicated between these two of ``pp``. ranks: of one group. collective: ccbench's name.
    size_bytes: of one launch as nccl-tests counts it (the largest buffer of a rank). times: launches in a
    step on the busiest rank. purpose: for people. phase, unit: see PHASES, UNITS; stage: see holding.STAGES.
    can_hide: whether the strategy lets it run behind computing. traffic: of an all_to_all_v; experts' answers
    go back with source and target exchanged, which takes as long on links that are alike in both directions.
    """

    axis: str
    ranks: int
    collective: str
    size_bytes: int
    times: int
    purpose: str
    phase: str
    unit: str
    stage: str
    can_hide: bool = False
    traffic: str = ""

    @property
    def total_bytes(self) -> int:
        """Sizes of all launches together."""
        return self.size_bytes * self.times


def sent_bytes(one: Communication) -> int:
    """Bytes that a rank sends at least in all launches, whatever the algorithm; rounded up.

    2 (n - 1) / n of the size of an all_reduce, (n - 1) / n of an all_gather, reduce_scatter or all_to_all,
    all of a send_recv: size times nccl-tests' bus factor.
    """
    if one.collective == "send_recv":
        return one.total_bytes
    return -(-SHARE_OF_RING[one.collective] * one.total_bytes * (one.ranks - 1) // one.ranks)


def communications(shape: ModelShape, strategy: Strategy) -> tuple[Communication, ...]:
    """Everything that ranks of each kind of pipeline stage communicate in one step.

    A rank takes part in those of its own stage. UsageError where shape and strategy do not fit together.
    """
    check_strategy(shape, strategy)
    found: list[Communication] = []
    for holding in holdings(shape, strategy):
        stage = _Stage(shape, strategy, holding)
        found += _tensor(stage)
        found += _vocabulary(stage)
        found += _context(stage)
        found += _experts(stage)
        found += _pipeline(stage)
        found += _data(stage)
    return tuple(found)


@dataclass(frozen=True)
class _Stage:
    """One kind of stage; ``one`` makes a communication of it."""

    shape: ModelShape
    strategy: Strategy
    holding: Holding

    def one(
        self,
        axis: str,
        ranks: int,
        collective: str,
        size_bytes: int,
        times: int,
        purpose: str,
        phase: str,
        unit: str = LAYER,
        can_hide: bool = False,
        traffic: str = "",
    ) -> Communication:
        kind = self.holding.kind
        return Communication(
            axis, ranks, collective, size_bytes, times, purpose, phase, unit, kind, can_hide, traffic
        )

    @property
    def stream_bytes(self) -> int:
        """What one micro-batch is between two layers, on a context parallel rank: b s h / cp."""
        return self.strategy.rank_tokens * self.shape.hidden * self.strategy.activation_bytes


def _tensor(stage: _Stage) -> Iterator[Communication]:
    """Around each split attention and feed-forward part.

    Without sequence parallelism an all_reduce of b s h each, forward and backward: 4 for a layer and
    micro-batch, 8 b s h (t - 1) / t numbers sent (Shoeybi et al. 2019, section 3; Narayanan et al. 2021,
    section 3.2). With it an all_gather before and a reduce_scatter after, forward and backward, and one more
    all_gather of the inputs for the gradient of the weights, which hides behind the gradient of the inputs
    (Korthikanti et al. 2022, section 4.2.2). Routed experts take tokens as the sequence splits them; shared
    ones are dense.
    """
    strategy, held, tp = stage.strategy, stage.holding, stage.strategy.layout.tp
    parts = held.layers + held.dense_layers + (held.moe_layers if stage.shape.shared_experts else 0)
    times = parts * strategy.micro_batches
    if tp == 1 or not times:
        return
    size, hide = stage.stream_bytes, strategy.overlap_tensor
    again = [(BACKWARD, ", recomputed")] if strategy.recompute == "full" else []
    if not strategy.sequence_parallel:
        for phase, word in [(FORWARD, ""), *again]:
            yield stage.one("tp", tp, "all_reduce", size, times, f"outputs{word}", phase, LAYER, hide)
        yield stage.one("tp", tp, "all_reduce", size, times, "gradients of inputs", BACKWARD, LAYER, hide)
        yield from _whole_gradients(stage)
        return
    for phase, word in [(FORWARD, ""), *again]:
        yield stage.one("tp", tp, "all_gather", size, times, f"inputs{word}", phase, LAYER, hide)
        yield stage.one("tp", tp, "reduce_scatter", size, times, f"outputs{word}", phase, LAYER, hide)
    yield stage.one("tp", tp, "all_gather", size, times, "gradients of outputs", BACKWARD, LAYER, hide)
    yield stage.one("tp", tp, "reduce_scatter", size, times, "gradients of inputs", BACKWARD, LAYER, hide)
    yield stage.one(
        "tp", tp, "all_gather", size, times, "inputs for gradients of weights", BACKWARD, LAYER, True
    )
    yield from _whole_gradients(stage)


def _whole_gradients(stage: _Stage) -> Iterator[Communication]:
    """Norms and late biases see a part of the sequence each: their gradients are summed once a step.

    Megatron-LM, megatron/core/distributed/finalize_model_grads.py.
    """
    strategy = stage.strategy
    if strategy.sequence_parallel:
        size = stage.holding.replicated * strategy.gradient_bytes
        tp = strategy.layout.tp
        yield stage.one("tp", tp, "all_reduce", size, 1, "gradients of norms and biases", OPTIMIZER, STEP)


def _vocabulary(stage: _Stage) -> Iterator[Communication]:
    """Embedding, head and loss split by the vocabulary (Shoeybi et al. 2019, section 3).

    The loss needs the largest logit, the sum of exponentials and the target's logit: three all_reduces of b s
    numbers instead of an all_gather of b s v (megatron/core/tensor_parallel/cross_entropy.py).
    """
    strategy, tp, kind = stage.strategy, stage.strategy.layout.tp, stage.holding.kind
    if tp == 1:
        return
    size, times, split = stage.stream_bytes, strategy.micro_batches, strategy.sequence_parallel
    hide = strategy.overlap_tensor
    if kind in (ONLY, FIRST):
        collective = "reduce_scatter" if split else "all_reduce"
        yield stage.one("tp", tp, collective, size, times, "embedding", FORWARD, MICRO_BATCH)
        if split:
            yield stage.one(
                "tp", tp, "all_gather", size, times, "gradients of embedding", BACKWARD, MICRO_BATCH
            )
    if kind in (ONLY, LAST):
        if split:
            yield stage.one("tp", tp, "all_gather", size, times, "inputs of head", FORWARD, MICRO_BATCH, hide)
            yield stage.one(
                "tp", tp, "all_gather", size, times, "inputs of head again", BACKWARD, MICRO_BATCH, True
            )
        collective = "reduce_scatter" if split else "all_reduce"
        yield stage.one(
            "tp", tp, collective, size, times, "gradients of head's inputs", BACKWARD, MICRO_BATCH, hide
        )
        loss = strategy.rank_tokens * LOSS_BYTES
        yield stage.one("tp", tp, "all_reduce", loss, 3 * times, "loss", FORWARD, MICRO_BATCH)


def _context(stage: _Stage) -> Iterator[Communication]:
    """Attention over a split sequence; where it is recomputed as a whole, it communicates again.

    Fused attention computes scores again inside its backward kernel, so that ``selective`` adds nothing.
    """
    strategy, held = stage.strategy, stage.holding
    if strategy.layout.cp == 1:
        return
    kinds = {"ring": _ring, "all_gather": _gathered, "ulysses": _ulysses}
    times = held.layers * strategy.micro_batches
    yield from kinds[strategy.context_kind](stage, times, FORWARD, "")
    if strategy.recompute == "full" or (strategy.recompute == "selective" and not strategy.fused_attention):
        yield from kinds[strategy.context_kind](stage, times, BACKWARD, ", recomputed")
    yield from kinds[strategy.context_kind](stage, times, BACKWARD, "gradients")


def _local_kv_bytes(stage: _Stage) -> int:
    """Keys and values of a rank's own part of the sequence, on one tensor parallel rank."""
    shape, strategy = stage.shape, stage.strategy
    heads = max(shape.kv_heads // strategy.layout.tp, 1)
    return strategy.rank_tokens * heads * (shape.kv_width // shape.kv_heads) * strategy.activation_bytes


def _ring(stage: _Stage, times: int, phase: str, what: str) -> Iterator[Communication]:
    """Blocks of keys and values go round, behind the attention on the block before: cp - 1 shifts.

    Liu, Zaharia and Abbeel 2023, section 3: a block of c tokens is 4 c d bytes in two bytes a number.
    Backward they go round again with their gradients, which end at their owner.
    """
    cp = stage.strategy.layout.cp
    size, shifts = _local_kv_bytes(stage), times * (cp - 1)
    if what == "gradients":
        yield stage.one("cp", cp, "send_recv", size, shifts, "keys and values again", phase, LAYER, True)
        yield stage.one(
            "cp", cp, "send_recv", size, shifts, "gradients of keys and values", phase, LAYER, True
        )
    else:
        yield stage.one("cp", cp, "send_recv", size, shifts, f"keys and values{what}", phase, LAYER, True)


def _gathered(stage: _Stage, times: int, phase: str, what: str) -> Iterator[Communication]:
    """All keys and values on every rank (Grattafiori et al. 2024, section 3.3.2), not hidden."""
    cp = stage.strategy.layout.cp
    size = _local_kv_bytes(stage) * cp
    if what == "gradients":
        yield stage.one("cp", cp, "all_gather", size, times, "keys and values again", phase)
        yield stage.one("cp", cp, "reduce_scatter", size, times, "gradients of keys and values", phase)
    else:
        yield stage.one("cp", cp, "all_gather", size, times, f"keys and values{what}", phase)


def _ulysses(stage: _Stage, times: int, phase: str, what: str) -> Iterator[Communication]:
    """From split sequence to split heads and back (Jacobs et al. 2023, section 3.2).

    An all_to_all each of queries, keys, values and outputs: 3 N h and N h numbers over all ranks, backward as
    many. Fewer heads of keys and values than ranks are repeated first.
    """
    shape, strategy, cp = stage.shape, stage.strategy, stage.strategy.layout.cp
    head = strategy.rank_tokens * shape.head_size * strategy.activation_bytes
    heads = shape.heads // strategy.layout.tp
    kv_heads = max(shape.kv_heads // strategy.layout.tp, 1)
    word = "gradients of " if what == "gradients" else ""
    again = what if not word else ""
    for size, count, name in (
        (heads * head, 1, "queries"),
        (math.lcm(kv_heads, cp) * head, 2, "keys and values"),
        (heads * head, 1, "outputs of attention"),
    ):
        yield stage.one("cp", cp, "all_to_all", size, count * times, f"{word}{name}{again}", phase)


def _experts(stage: _Stage) -> Iterator[Communication]:
    """Tokens to their experts and back, in each layer with experts: 2 exchanges forward, 2 backward.

    GShard (Lepikhin et al. 2020, section 3), Switch (Fedus et al. 2021, section 2.2): with a capacity every
    expert has ceil(tokens x top_k x capacity / experts) places for each rank. Tensor parallel experts gather
    the tokens of their group and add up their outputs (Megatron-LM,
    megatron/core/transformer/moe/token_dispatcher.py).
    """
    strategy, held, layout = stage.strategy, stage.holding, stage.strategy.layout
    times = held.moe_layers * strategy.micro_batches
    if not times:
        return
    size, hide = _routed_bytes(stage), strategy.overlap_experts
    collective = "all_to_all_v" if strategy.traffic else "all_to_all"
    passes = [(FORWARD, ""), (BACKWARD, "gradients of ")]
    passes += [(BACKWARD, "recomputed ")] if strategy.recompute == "full" else []
    for phase, word in passes:
        if layout.ep > 1:
            for name in ("dispatch", "combine"):
                yield stage.one(
                    "ep",
                    layout.ep,
                    collective,
                    size,
                    times,
                    f"{word}{name}",
                    phase,
                    LAYER,
                    hide,
                    strategy.traffic,
                )
        if layout.expert_tp > 1:
            whole = round(size * _busiest_share(strategy)) * layout.expert_tp
            etp = layout.expert_tp
            yield stage.one(
                "etp", etp, "all_gather", whole, times, f"{word}tokens of experts", phase, LAYER, hide
            )
            yield stage.one(
                "etp", etp, "reduce_scatter", whole, times, f"{word}outputs of experts", phase, LAYER, hide
            )


def _routed_bytes(stage: _Stage) -> int:
    """What a rank sends to all experts together."""
    shape, strategy = stage.shape, stage.strategy
    rows = strategy.sharded_tokens * shape.top_k
    if strategy.capacity:
        rows = shape.experts * math.ceil(rows * strategy.capacity / shape.experts)
    return rows * shape.hidden * strategy.activation_bytes


def _busiest_share(strategy: Strategy) -> float:
    """Tokens at the busiest rank of an expert parallel group, as a multiple of the balanced number."""
    if not strategy.traffic:
        return 1.0
    return float(shares(strategy.traffic, strategy.layout.ep).sum(axis=0).max())


def _pipeline(stage: _Stage) -> Iterator[Communication]:
    """Activations forward and their gradients back, b s h for each boundary of stages and micro-batch.

    Narayanan et al. 2021, sections 2.2 and 4.1: v times as often when interleaved; with the scatter/gather
    optimisation, and with sequence parallelism, each of t ranks sends a t-th; without the latter the
    receivers gather them. A rank sends or receives one, or both at once, in a launch.
    """
    strategy, layout = stage.strategy, stage.strategy.layout
    if layout.pp == 1:
        return
    times = strategy.micro_batches * strategy.virtual_stages
    split = layout.tp > 1 and (strategy.sequence_parallel or strategy.scatter_gather)
    size = -(-stage.stream_bytes // layout.tp) if split else stage.stream_bytes
    hide = strategy.pipeline == "interleaved"
    for name, phase in (("activations", FORWARD), ("gradients of activations", BACKWARD)):
        yield stage.one("pp", layout.pp, "send_recv", size, times, name, PIPELINE, MICRO_BATCH, hide)
        if split and not strategy.sequence_parallel:
            received = times if _receives(stage, phase) else times - strategy.micro_batches
            if received:
                yield stage.one(
                    "tp",
                    layout.tp,
                    "all_gather",
                    stage.stream_bytes,
                    received,
                    f"received {name}",
                    phase,
                    MICRO_BATCH,
                )
    if stage.holding.tied:
        size = stage.holding.tied * strategy.gradient_bytes
        yield stage.one("pp", 2, "all_reduce", size, 1, "gradients of the shared embedding", OPTIMIZER, STEP)


def _receives(stage: _Stage, phase: str) -> bool:
    """Whether each of its parts receives: not the very first one forward, nor the very last backward."""
    return stage.holding.kind != (FIRST if phase == FORWARD else LAST)


def _data(stage: _Stage) -> Iterator[Communication]:
    """Gradients and parameters over ranks that hold the same: outside the experts, and inside."""
    strategy, held, layout = stage.strategy, stage.holding, stage.strategy.layout
    dense = [(held.around, 1), (held.layer.dense, held.dense_layers), (held.moe_layer.dense, held.moe_layers)]
    yield from _sharded(stage, strategy.data_axis, strategy.data_ranks, dense, "")
    yield from _sharded(
        stage, "edp", layout.expert_dp, [(held.moe_layer.experts, held.moe_layers)], " of experts"
    )


def _sharded(
    stage: _Stage, axis: str, ranks: int, portions: list[tuple[int, int]], of: str
) -> Iterator[Communication]:
    """``portions``: (parameters, how many such): the layers, which stage 3 communicates one by one.

    Rajbhandari et al. 2020, section 7: 2 psi numbers up to stage 2, 3 psi with stage 3, counting an
    all_reduce as 2 psi. From stage 2 on gradients are reduced after every micro-batch unless they are kept.
    """
    if ranks == 1 or not any(size * count for size, count in portions):
        return
    if stage.strategy.zero_stage == 3:
        for size, count in portions:
            if size * count:
                yield from _gathered_unit(stage, axis, ranks, size, count, of)
        return
    strategy, name = stage.strategy, f"gradients{of}"
    parameters = sum(size * count for size, count in portions)
    collective = "reduce_scatter" if strategy.zero_stage else "all_reduce"
    often = strategy.micro_batches if strategy.zero_stage == 2 and not strategy.keep_gradients else 1
    hide = strategy.overlap_gradients
    # Buckets as in Li et al. 2020 (PyTorch DDP).
    for size, count in _buckets(parameters * strategy.gradient_bytes, strategy.bucket_bytes):
        yield stage.one(axis, ranks, collective, size, count * often, name, BACKWARD, BUCKET, hide)
    if strategy.zero_stage:
        name, hide = f"parameters{of}", strategy.overlap_parameters
        for size, count in _buckets(parameters * strategy.parameter_bytes, strategy.bucket_bytes):
            yield stage.one(axis, ranks, "all_gather", size, count, name, OPTIMIZER, BUCKET, hide)


def _gathered_unit(
    stage: _Stage, axis: str, ranks: int, parameters: int, count: int, of: str
) -> Iterator[Communication]:
    """``count`` units of FSDP, each a layer (Zhao et al. 2023)."""
    strategy, turns = stage.strategy, stage.strategy.micro_batches
    size, hide = parameters * strategy.parameter_bytes, strategy.overlap_parameters
    gathers = count * (turns if strategy.reshard else 1)
    yield stage.one(axis, ranks, "all_gather", size, gathers, f"parameters{of}", FORWARD, LAYER, hide)
    if strategy.reshard:
        name = f"parameters{of} again"
        yield stage.one(axis, ranks, "all_gather", size, gathers, name, BACKWARD, LAYER, hide)
    size, hide = parameters * strategy.gradient_bytes, strategy.overlap_gradients
    scatters = count * (1 if strategy.keep_gradients else turns)
    yield stage.one(axis, ranks, "reduce_scatter", size, scatters, f"gradients{of}", BACKWARD, LAYER, hide)


def _buckets(total_bytes: int, bucket_bytes: int) -> list[tuple[int, int]]:
    """(size, how many): full buckets and what is left."""
    full, rest = divmod(total_bytes, bucket_bytes)
    return [(size, count) for size, count in ((bucket_bytes, full), (rest, 1)) if size and count]
