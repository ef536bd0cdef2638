"""The communication of a training step: each collective with its group, size and number of launches.

Volumes are those of the papers, named at each function. Sizes are exact: libraries pad portions so that they
divide among ranks, which is left out. Left out as well, because they are of a few bytes: the norm of all
gradients, losses averaged for the log, token counts before an uneven exchange. Latent attention (DeepSeek)
communicates among tensor parallel ranks like any other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ccbench.plan.memory import FIRST, LAST, ONLY, Holding, holdings
from ccbench.plan.shape import ModelShape
from ccbench.plan.strategy import Strategy, check_strategy

FORWARD, BACKWARD, OPTIMIZER, PIPELINE = PHASES = (
    "forward",
    "backward",
    "optimizer",
    "pipeline",
)
"""Phases of a step that need a launch: in a micro-batch's forward or backward pass, at the optimizer, between stages.

Recomputation is in the backward pass; so are gradients, even where only the last micro-batch sends them.
"""

LAYER, MICRO_BATCH, BUCKET, STEP = UNITS = ("layer", "micro_batch", "bucket", "step")
"""The unit that asks for one launch."""

LOSS_BYTES = 4
"""A number of the loss, float32."""


@dataclass(frozen=True)
class StepCommunication:
    """One collective as it comes again and again in a step.

    axis: of the layout, as ``Layout.groups`` takes it; the embedding that first and last stage share is
    communicated between these two of ``pp``. ranks: of one group. collective: ccbench's name.
    size_bytes: of one launch as nccl-tests counts it (the largest buffer of a rank). times: launches in a
    step on the busiest rank. purpose: for people. phase, unit: see PHASES, UNITS; stage: see memory.STAGES.
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


def communications(shape: ModelShape, strategy: Strategy) -> tuple[StepCommunication, ...]:
    """Return all communication of ranks of each kind of pipeline stage in one step.

    A rank takes part in those of its own stage. UsageError where shape and strategy do not fit together.
    """
    check_strategy(shape, strategy)
    listed: list[StepCommunication] = []
    for holding in holdings(shape, strategy):
        stage = PipelineStage(shape, strategy, holding)
        for part in PARTS:
            listed += part(stage)
    return tuple(listed)


@dataclass(frozen=True)
class PipelineStage:
    """One kind of stage; ``communication`` makes one of its communications."""

    shape: ModelShape
    strategy: Strategy
    holding: Holding

    def communication(
        self,
        axis: str,
        collective: str,
        size_bytes: int,
        times: int,
        purpose: str,
        phase: str,
        unit: str = LAYER,
        can_hide: bool = False,
        ranks: int = 0,
    ) -> StepCommunication:
        """Return a communication of this stage. ranks: 0 for those that the layout's axis has."""
        return StepCommunication(
            axis=axis,
            ranks=ranks or self.strategy.layout.size(axis),
            collective=collective,
            size_bytes=size_bytes,
            times=times,
            purpose=purpose,
            phase=phase,
            unit=unit,
            stage=self.holding.kind,
            can_hide=can_hide,
            traffic=self.strategy.traffic if collective == "all_to_all_v" else "",
        )

    @property
    def stream_bytes(self) -> int:
        """Bytes of one micro-batch between two layers, on a context parallel rank: b s h / cp."""
        return self.strategy.rank_tokens * self.shape.hidden * self.strategy.activation_bytes


def tensor_parallel(stage: PipelineStage) -> Iterator[StepCommunication]:
    """Around each split attention and feed-forward part.

    Without sequence parallelism an all_reduce of b s h each, forward and backward: 4 for a layer and
    micro-batch, 8 b s h (t - 1) / t numbers sent (Shoeybi et al. 2019, section 3; Narayanan et al. 2021,
    section 3.2). With it an all_gather before and a reduce_scatter after, forward and backward, and one more
    all_gather of the inputs for the gradient of the weights, which hides behind the gradient of the inputs
    (Korthikanti et al. 2022, section 4.2.2).
    """
    strategy, held = stage.strategy, stage.holding
    # Routed experts take tokens as the sequence splits them; shared ones are dense.
    parts = (
        held.layers + held.dense_layers + (held.moe_layers if stage.shape.shared_experts else 0)
    )
    times = parts * strategy.micro_batches
    if strategy.layout.tp == 1 or not times:
        return
    size, split = stage.stream_bytes, strategy.sequence_parallel
    forward = [("reduce_scatter" if split else "all_reduce", "outputs")]
    backward = [("reduce_scatter" if split else "all_reduce", "gradients of inputs")]
    if split:
        forward.insert(0, ("all_gather", "inputs"))
        backward.insert(0, ("all_gather", "gradients of outputs"))
    passes = [(FORWARD, forward, ""), (BACKWARD, backward, "")]
    if strategy.recompute == "full":
        passes.insert(1, (BACKWARD, forward, ", recomputed"))
    for phase, sent, again in passes:
        for collective, name in sent:
            hide = strategy.overlap_tensor
            yield stage.communication(
                "tp", collective, size, times, f"{name}{again}", phase, LAYER, hide
            )
    if split:
        name = "inputs for gradients of weights"
        yield stage.communication("tp", "all_gather", size, times, name, BACKWARD, LAYER, True)
        # Norms and late biases see a part of the sequence each: their gradients are summed once a step
        # (Megatron-LM, megatron/core/distributed/finalize_model_grads.py).
        size, name = held.replicated * strategy.gradient_bytes, "gradients of norms and biases"
        yield stage.communication("tp", "all_reduce", size, 1, name, OPTIMIZER, STEP)


def vocabulary_parallel(stage: PipelineStage) -> Iterator[StepCommunication]:
    """Embedding, head and loss split by the vocabulary (Shoeybi et al. 2019, section 3).

    The loss needs the largest logit, the sum of exponentials and the target's logit: three all_reduces of b s
    numbers instead of an all_gather of b s v (megatron/core/tensor_parallel/cross_entropy.py).
    """
    strategy, kind = stage.strategy, stage.holding.kind
    if strategy.layout.tp == 1:
        return
    times, split, hide = (
        strategy.micro_batches,
        strategy.sequence_parallel,
        strategy.overlap_tensor,
    )
    summed = "reduce_scatter" if split else "all_reduce"
    exchanges: list[tuple[str, str, str, bool]] = []
    if kind in (ONLY, FIRST):
        exchanges.append((summed, "embedding", FORWARD, False))
        if split:
            exchanges.append(("all_gather", "gradients of embedding", BACKWARD, False))
    if kind in (ONLY, LAST):
        if split:
            exchanges.append(("all_gather", "inputs of head", FORWARD, hide))
            exchanges.append(("all_gather", "inputs of head again", BACKWARD, True))
        exchanges.append((summed, "gradients of head's inputs", BACKWARD, hide))
    for collective, name, phase, hides in exchanges:
        yield stage.communication(
            "tp", collective, stage.stream_bytes, times, name, phase, MICRO_BATCH, hides
        )
    if kind in (ONLY, LAST):
        loss = strategy.rank_tokens * LOSS_BYTES
        yield stage.communication(
            "tp", "all_reduce", loss, 3 * times, "loss", FORWARD, MICRO_BATCH
        )


def context_parallel(stage: PipelineStage) -> Iterator[StepCommunication]:
    """Attention over a split sequence; where it is recomputed as a whole, it communicates again.

    ring: blocks go round, behind the attention on the block before, in cp - 1 shifts (Liu, Zaharia and Abbeel
    2023, section 3: a block of c tokens is 4 c d bytes in two bytes a number). Backward they go round again
    with their gradients, which end at their owner. all_gather: all of them on every rank, not hidden
    (Grattafiori et al. 2024, section 3.3.2). ulysses: from split sequence to split heads and back (Jacobs et
    al. 2023, section 3.2), an all_to_all each of queries, keys, values and outputs: 3 N h and N h numbers
    over all ranks, backward as many.
    """
    shape, strategy, layout = stage.shape, stage.strategy, stage.strategy.layout
    if layout.cp == 1:
        return
    # Of one layer's attention: (collective, size in bytes, how many, purpose).
    heads, kv_heads = shape.heads // layout.tp, max(shape.kv_heads // layout.tp, 1)
    if strategy.context_kind == "ulysses":
        head = strategy.rank_tokens * shape.head_size * strategy.activation_bytes
        # Fewer heads of keys and values than ranks are repeated first.
        kv = math.lcm(kv_heads, layout.cp) * head
        forward = [
            ("all_to_all", heads * head, 1, "queries"),
            ("all_to_all", kv, 2, "keys and values"),
            ("all_to_all", heads * head, 1, "outputs of attention"),
        ]
        backward = [
            (name, size, count, f"gradients of {of}") for name, size, count, of in forward
        ]
    else:
        kv_head = shape.kv_width // shape.kv_heads * strategy.activation_bytes
        size = strategy.rank_tokens * kv_heads * kv_head
        gather, scatter, count = "send_recv", "send_recv", layout.cp - 1
        if strategy.context_kind == "all_gather":
            gather, scatter, count, size = "all_gather", "reduce_scatter", 1, size * layout.cp
        forward = [(gather, size, count, "keys and values")]
        backward = [
            (gather, size, count, "keys and values again"),
            (scatter, size, count, "gradients of keys and values"),
        ]
    passes = [(FORWARD, forward, ""), (BACKWARD, backward, "")]
    # Fused attention computes scores again inside its backward kernel, so that ``selective`` adds nothing.
    if strategy.recompute == "full" or (
        strategy.recompute == "selective" and not strategy.fused_attention
    ):
        passes.insert(1, (BACKWARD, forward, ", recomputed"))
    times, hide = stage.holding.layers * strategy.micro_batches, strategy.context_kind == "ring"
    for phase, exchanges, again in passes:
        for collective, size, count, name in exchanges:
            yield stage.communication(
                "cp", collective, size, count * times, f"{name}{again}", phase, LAYER, hide
            )


def expert_parallel(stage: PipelineStage) -> Iterator[StepCommunication]:
    """Tokens to their experts and back, in each layer with experts: 2 exchanges forward, 2 backward.

    GShard (Lepikhin et al. 2020, section 3), Switch (Fedus et al. 2021, section 2.2): with a capacity every
    expert has ceil(tokens x top_k x capacity / experts) places for each rank. Tensor parallel experts gather
    the tokens of their group and add up their outputs (Megatron-LM,
    megatron/core/transformer/moe/token_dispatcher.py).
    """
    shape, strategy, layout = stage.shape, stage.strategy, stage.strategy.layout
    times = stage.holding.moe_layers * strategy.micro_batches
    if not times:
        return
    size = strategy.expert_rows(shape) * shape.hidden * strategy.activation_bytes
    exchanges: list[tuple[str, str, int, str]] = []
    if layout.ep > 1:
        collective = "all_to_all_v" if strategy.traffic else "all_to_all"
        exchanges += [("ep", collective, size, name) for name in ("dispatch", "combine")]
    if layout.expert_tp > 1:
        # They gather what arrived, on the busiest rank more than was sent.
        whole = round(size * strategy.busiest_share) * layout.expert_tp
        exchanges.append(("etp", "all_gather", whole, "tokens of experts"))
        exchanges.append(("etp", "reduce_scatter", whole, "outputs of experts"))
    passes = [(FORWARD, ""), (BACKWARD, "gradients of ")]
    passes += [(BACKWARD, "recomputed ")] if strategy.recompute == "full" else []
    for phase, word in passes:
        for axis, collective, each, name in exchanges:
            hide = strategy.overlap_experts
            yield stage.communication(
                axis, collective, each, times, f"{word}{name}", phase, LAYER, hide
            )


def pipeline_parallel(stage: PipelineStage) -> Iterator[StepCommunication]:
    """Activations forward and their gradients back, b s h for each boundary of stages and micro-batch.

    Narayanan et al. 2021, sections 2.2 and 4.1: v times as often when interleaved; with the scatter/gather
    optimisation, and with sequence parallelism, each of t ranks sends a t-th; without the latter the
    receivers gather them. A rank sends or receives one, or both at once, in a launch.
    """
    strategy, layout = stage.strategy, stage.strategy.layout
    if layout.pp == 1:
        return
    times, whole = strategy.micro_batches * strategy.virtual_stages, stage.stream_bytes
    split = layout.tp > 1 and (strategy.sequence_parallel or strategy.scatter_gather)
    size = -(-whole // layout.tp) if split else whole
    hide = strategy.pipeline == "interleaved"
    # The very first part receives nothing forward, the very last nothing backward.
    for name, phase, end in (
        ("activations", FORWARD, FIRST),
        ("gradients of activations", BACKWARD, LAST),
    ):
        yield stage.communication(
            "pp", "send_recv", size, times, name, PIPELINE, MICRO_BATCH, hide
        )
        received = times - (strategy.micro_batches if stage.holding.kind == end else 0)
        if split and not strategy.sequence_parallel and received:
            yield stage.communication(
                "tp", "all_gather", whole, received, f"received {name}", phase, MICRO_BATCH
            )
    if stage.holding.tied:
        size, name = (
            stage.holding.tied * strategy.gradient_bytes,
            "gradients of the shared embedding",
        )
        yield stage.communication("pp", "all_reduce", size, 1, name, OPTIMIZER, STEP, ranks=2)


def data_parallel(stage: PipelineStage) -> Iterator[StepCommunication]:
    """Gradients and parameters over ranks that hold the same: outside the experts, and inside.

    Rajbhandari et al. 2020, section 7: 2 psi numbers up to stage 2, 3 psi with stage 3, counting an
    all_reduce as 2 psi. Buckets as in Li et al. 2020 (PyTorch DDP), units of stage 3 as in Zhao et al. 2023
    (FSDP), each a layer.
    """
    strategy, held = stage.strategy, stage.holding
    # (parameters, how many such)
    dense = [
        (held.around, 1),
        (held.layer.dense, held.dense_layers),
        (held.moe_layer.dense, held.moe_layers),
    ]
    experts = [(held.moe_layer.experts, held.moe_layers)]
    turns, zero = strategy.micro_batches, strategy.zero_stage
    # From stage 2 on gradients are reduced after every micro-batch unless they are kept.
    often = turns if zero >= 2 and not strategy.keep_gradients else 1
    hides, hides_weights = strategy.overlap_gradients, strategy.overlap_parameters
    summed = "reduce_scatter" if zero else "all_reduce"
    gradients = (summed, strategy.gradient_bytes, often, "gradients{}", BACKWARD, hides)
    weights = ("all_gather", strategy.parameter_bytes)
    if zero == 3:
        gathers = turns if strategy.reshard else 1
        messages = [(*weights, gathers, "parameters{}", FORWARD, hides_weights)]
        # Weights that were let go after the forward pass are gathered once more.
        if strategy.reshard:
            messages.append((*weights, gathers, "parameters{} again", BACKWARD, hides_weights))
        messages.append(gradients)
    else:
        messages = [gradients]
        messages += [(*weights, 1, "parameters{}", OPTIMIZER, hides_weights)] if zero else []
    for axis, portions, of in (
        (strategy.data_axis, dense, ""),
        ("edp", experts, " of experts"),
    ):
        if strategy.layout.size(axis) == 1:
            continue
        units = [(size, count) for size, count in portions if size * count]
        every = sum(size * count for size, count in units)
        for collective, item, times, name, phase, hide in messages if zero < 3 else ():
            full, rest = divmod(every * item, strategy.bucket_bytes)
            for size, count in ((strategy.bucket_bytes, full), (rest, 1)):
                if size and count:
                    purpose, launches = name.format(of), count * times
                    yield stage.communication(
                        axis, collective, size, launches, purpose, phase, BUCKET, hide
                    )
        for parameters, count in units if zero == 3 else ():
            for collective, item, times, name, phase, hide in messages:
                purpose, launches = name.format(of), count * times
                yield stage.communication(
                    axis, collective, parameters * item, launches, purpose, phase, LAYER, hide
                )


PARTS: tuple[Callable[[PipelineStage], Iterator[StepCommunication]], ...] = (
    tensor_parallel,
    vocabulary_parallel,
    context_parallel,
    expert_parallel,
    pipeline_parallel,
    data_parallel,
)
"""Communications of a step, a function for each kind of parallelism."""
