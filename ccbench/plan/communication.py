"""The communication of a training step: each collective with its group, size and number of launches.

Volumes are those of the papers, named at each function. Sizes are exact: libraries pad portions so that they
divide among ranks, which is left out. Left out as well, because they are of a few bytes: the norm of all
gradients, losses averaged for the log, token counts before an uneven exchange. Latent attention (DeepSeek)
communicates among tensor parallel ranks like any other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ccbench.plan.strategy import EVERY, FIRST, LAST, Strategy

LOSS_BYTES = 4
"""A number of the loss, float32."""


@dataclass(frozen=True)
class StepCommunication:
    """One collective as it comes again and again in a step.

    axis: of the layout, as ``Layout.groups`` takes it; the embedding that first and last stage share is
    communicated between these two of ``pp``. collective: ccbench's name. size_bytes: of one launch as
    nccl-tests counts it (the largest buffer of a rank). times: launches in a step on the busiest rank.
    purpose: for people. stage: who takes part, see strategy.EVERY. ends: between first and last of the axis
    alone. Experts' answers go back with source and target exchanged, which takes as long on links that are
    alike in both directions.
    """

    axis: str
    collective: str
    size_bytes: int
    times: int
    purpose: str
    stage: str = EVERY
    ends: bool = False


def communications(strategy: Strategy) -> tuple[StepCommunication, ...]:
    """Return all communication of one step; a rank takes part in that of its own stage."""
    return tuple(
        sent
        for part in PARTS
        for sent in part(strategy)
        if sent.times and sent.size_bytes and strategy.layout.size(sent.axis) > 1
    )


def tensor_parallel(strategy: Strategy) -> Iterator[StepCommunication]:
    """Around each split attention and feed-forward part.

    Without sequence parallelism an all_reduce of b s h each, forward and backward: 4 for a layer and
    micro-batch, 8 b s h (t - 1) / t numbers sent (Shoeybi et al. 2019, section 3; Narayanan et al. 2021,
    section 3.2). With it an all_gather before and a reduce_scatter after, forward and backward, and one more
    all_gather of the inputs for the gradient of the weights (Korthikanti et al. 2022, section 4.2.2).
    """
    size, again = strategy.stream_bytes, strategy.again
    split = strategy.settings.sequence_parallel
    # Routed experts take tokens as the sequence splits them; shared ones are dense.
    shared = strategy.moe_layers if strategy.shape.shared_experts else 0
    parts = Counter({EVERY: strategy.layers + shared})
    parts[strategy.leading] += strategy.dense_layers
    for stage, number in parts.items():
        times = number * strategy.micro_batches
        what = "inputs and outputs of layers, and their gradients"
        if split:
            yield StepCommunication("tp", "all_gather", size, (3 + again) * times, what, stage)
        summed = "reduce_scatter" if split else "all_reduce"
        yield StepCommunication("tp", summed, size, (2 + again) * times, what, stage)
    if split:
        # Norms and late biases see a part of the sequence each: their gradients are summed once a step
        # (Megatron-LM, megatron/core/distributed/finalize_model_grads.py).
        dense, mixed = strategy.layer_shares()
        whole = Counter({EVERY: mixed.whole * strategy.moe_layers})
        whole[strategy.leading] += dense.whole * strategy.dense_layers
        whole[strategy.stage(LAST)] += strategy.shape.norm_parameters
        for stage, number in whole.items():
            size = number * strategy.gradient_bytes
            what = "gradients of norms and biases"
            yield StepCommunication("tp", "all_reduce", size, 1, what, stage)


def vocabulary_parallel(strategy: Strategy) -> Iterator[StepCommunication]:
    """Embedding, head and loss split by the vocabulary (Shoeybi et al. 2019, section 3).

    The loss needs the largest logit, the sum of exponentials and the target's logit: three all_reduces of b s
    numbers instead of an all_gather of b s v (megatron/core/tensor_parallel/cross_entropy.py).
    """
    size, times = strategy.stream_bytes, strategy.micro_batches
    split = strategy.settings.sequence_parallel
    for place, what, gathers in ((FIRST, "embedding", 1), (LAST, "head", 2)):
        stage = strategy.stage(place)
        if split:
            yield StepCommunication("tp", "all_gather", size, gathers * times, what, stage)
        summed = "reduce_scatter" if split else "all_reduce"
        yield StepCommunication("tp", summed, size, times, what, stage)
    size = strategy.rank_tokens * LOSS_BYTES
    yield StepCommunication("tp", "all_reduce", size, 3 * times, "loss", strategy.stage(LAST))


def context_parallel(strategy: Strategy) -> Iterator[StepCommunication]:
    """Attention over a split sequence; where it is recomputed as a whole, it communicates again.

    ring: blocks go round in cp - 1 shifts (Liu, Zaharia and Abbeel 2023, section 3: a block of c tokens is
    4 c d bytes in two bytes a number). Backward they go round again with their gradients, which end at their
    owner. all_gather: all of them on every rank (Grattafiori et al. 2024, section 3.3.2).
    """
    shape, layout = strategy.shape, strategy.layout
    times, again = strategy.layers * strategy.micro_batches, strategy.again
    width = max(shape.kv_heads // layout.tp, 1) * (shape.kv_width // shape.kv_heads)
    size = strategy.rank_tokens * strategy.item_bytes * width
    if strategy.settings.context_kind == "ring":
        shifts, what = (layout.cp - 1) * times, "keys and values, and their gradients"
        yield StepCommunication("cp", "send_recv", size, (3 + again) * shifts, what)
        return
    size *= layout.cp
    yield StepCommunication("cp", "all_gather", size, (2 + again) * times, "keys and values")
    yield StepCommunication("cp", "reduce_scatter", size, times, "gradients of keys and values")


def expert_parallel(strategy: Strategy) -> Iterator[StepCommunication]:
    """Tokens to their experts and back, in each layer with experts: 2 exchanges forward, 2 backward.

    GShard (Lepikhin et al. 2020, section 3). Tensor parallel experts gather the tokens of their group and add
    up their outputs (Megatron-LM, megatron/core/transformer/moe/token_dispatcher.py).
    """
    size, whole = strategy.expert_bytes, strategy.expert_bytes * strategy.layout.expert_tp
    times = (2 + strategy.again) * strategy.moe_layers * strategy.micro_batches
    what = "tokens of experts and their outputs, and their gradients"
    yield StepCommunication("ep", "all_to_all", size, 2 * times, what)
    for collective in ("all_gather", "reduce_scatter"):
        yield StepCommunication("etp", collective, whole, times, what)


def pipeline_parallel(strategy: Strategy) -> Iterator[StepCommunication]:
    """Activations forward and their gradients back, b s h for each boundary of stages and micro-batch.

    Narayanan et al. 2021, sections 2.2 and 4.1: v times as often when interleaved; with sequence parallelism
    each of t ranks sends a t-th. A rank sends or receives one, or both at once, in a launch.
    """
    settings, layout, size = strategy.settings, strategy.layout, strategy.stream_bytes
    if layout.pp == 1:
        return
    times = 2 * strategy.micro_batches * settings.virtual_stages
    if settings.sequence_parallel:
        size //= layout.tp
    yield StepCommunication("pp", "send_recv", size, times, "activations and their gradients")
    if strategy.shape.tied_embeddings:
        embedding = -(-strategy.shape.vocabulary // layout.tp) * strategy.shape.hidden
        size, what = embedding * strategy.gradient_bytes, "gradients of the shared embedding"
        for stage in (FIRST, LAST):
            yield StepCommunication("pp", "all_reduce", size, 1, what, stage, ends=True)


def data_parallel(strategy: Strategy) -> Iterator[StepCommunication]:
    """Gradients and parameters over ranks that hold the same: outside the experts, and inside.

    Rajbhandari et al. 2020, section 7: 2 psi numbers up to stage 2, 3 psi with stage 3, counting an
    all_reduce as 2 psi. Buckets as in Li et al. 2020 (PyTorch DDP), units of stage 3 as in Zhao et al. 2023
    (FSDP), each a layer.
    """
    settings, turns, zero = strategy.settings, strategy.micro_batches, strategy.settings.zero
    # From stage 2 on gradients are reduced after every micro-batch.
    summed, often = "reduce_scatter" if zero else "all_reduce", turns if zero >= 2 else 1
    messages = [(summed, strategy.gradient_bytes, often, "gradients")]
    if zero:
        # Weights of stage 3 that were let go after the forward pass are gathered once more.
        gathers = 2 * turns if zero == 3 and settings.reshard else 1
        messages.append(("all_gather", strategy.item_bytes, gathers, "parameters"))
    experts = [(EVERY, strategy.layer_shares()[1].experts, strategy.moe_layers)]
    for axis, units, of in (
        ("dp-cp" if strategy.layout.cp > 1 else "dp", list(strategy.portions()), ""),
        ("edp", experts, " of experts"),
    ):
        held: Counter[str] = Counter()
        for stage, number, count in units:
            held[stage] += number * count
        for collective, item, often, name in messages:
            # Stage 3 communicates layer by layer, the others everything in buckets.
            launches = [(stage, number * item, count) for stage, number, count in units]
            if zero < 3:
                launches = []
                for stage, number in held.items():
                    full, rest = divmod(number * item, settings.bucket)
                    launches += [(stage, settings.bucket, full), (stage, rest, 1)]
            for stage, size, count in launches:
                times, what = count * often, name + of
                yield StepCommunication(axis, collective, size, times, what, stage)


PARTS: tuple[Callable[[Strategy], Iterator[StepCommunication]], ...] = (
    tensor_parallel,
    vocabulary_parallel,
    context_parallel,
    expert_parallel,
    pipeline_parallel,
    data_parallel,
)
"""Communications of a step, a function for each kind of parallelism."""
