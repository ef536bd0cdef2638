"""The computing of a training step: operations as the papers count them, and the time that devices take.

Counted: matrix products, 2 operations for each weight and token, backward twice as many (Narayanan et al.
2021, section 5.1); attention between queries and keys in full, although a causal kernel computes half.
Timed: matrix products at the rate that training reaches, slower the narrower they are, or as fast as memory
gives their weights; attention; operations on every number once or twice, which memory limits; the optimizer.
Not timed: the launch of kernels, data loading, what other streams take of a device meanwhile.
"""

from __future__ import annotations

import math
import operator
from dataclasses import astuple, dataclass

from ccbench.plan.memory import Accelerator, Holding
from ccbench.plan.shape import ModelShape
from ccbench.plan.strategy import Strategy

LOGIT_BYTES = 12
"""Moved for each logit: written in two bytes, read, and gone through twice in four, about."""


@dataclass(frozen=True)
class Efficiency:
    """Shares of a device's rates that a training step reaches; every number may be stated by the user.

    matrix: of what the device's best product reached (``Device.achieved``), for products with wide matrices.
    narrow: a product takes 1 + narrow x balance / width times as long, where the balance is the device's peak
    over its memory's rate and the width the smaller side of a rank's matrix. Both are fitted on Korthikanti
    et al. 2022, table 5, models 6,144 to 25,600 wide, split among 8 A100: with pipeline bubble and exposed
    communication its eight steps come out within 4%.
    attention: of the peak: FlashAttention-2 reaches 50 to 73% on A100 (Dao 2023), FlashAttention-3 75% on
    H100 forward (Shah et al. 2024), both less backward.
    memory: of the memory's rate; copies reach 80 to 90% of it.
    causal: share of attention that a fused kernel computes; 1 for the full matrix.
    """

    matrix: float = 0.9
    attention: float = 0.5
    memory: float = 0.8
    causal: float = 0.5
    narrow: float = 2.0


@dataclass(frozen=True)
class Work:
    """The work of one rank.

    matrix_flops: of products with weights. narrow_flops: their sum, each over the width of its matrix.
    weight_bytes: that they read. attention_flops: in full; fused_flops: those of a fused kernel, which
    may leave out what is masked. moved_bytes: by operations that memory limits.
    """

    matrix_flops: float = 0.0
    narrow_flops: float = 0.0
    weight_bytes: float = 0.0
    attention_flops: float = 0.0
    fused_flops: float = 0.0
    moved_bytes: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(*map(operator.add, astuple(self), astuple(other)))

    def times(self, number: float) -> Work:
        """Return this work ``number`` times."""
        return Work(*(amount * number for amount in astuple(self)))

    @property
    def flops(self) -> float:
        """Operations as the papers count them."""
        return self.matrix_flops + self.attention_flops


def product(
    rows: float, inner: float, outer: float, bytes_each: int, width: float = math.inf
) -> Work:
    """``rows`` tokens through a matrix of ``inner`` x ``outer`` weights, no wider than ``width`` counts."""
    flops = 2 * rows * inner * outer
    narrowest = max(min(inner, outer, width), 1)
    return Work(flops, flops / narrowest, inner * outer * bytes_each)


def seconds_of(
    work: Work, device: Accelerator, efficiency: Efficiency, dtype: str = ""
) -> float:
    """Seconds that a device takes. dtype: of the products, the device's usual one unless said."""
    peak = device.peak(dtype or device.usual_dtype)
    memory = device.memory_bytes_per_second * efficiency.memory
    wide = efficiency.narrow * peak / device.memory_bytes_per_second
    products = work.matrix_flops + wide * work.narrow_flops
    products /= peak * device.achieved * efficiency.matrix
    attention = work.attention_flops - (1 - efficiency.causal) * work.fused_flops
    attention /= peak * efficiency.attention
    return max(products, work.weight_bytes / memory) + attention + work.moved_bytes / memory


def model_flops(
    shape: ModelShape, sequences: int, sequence: int, causal: float = 1.0, capacity: float = 0.0
) -> int:
    """Operations of forward and backward pass without recomputation, for MFU (Chowdhery et al. 2022).

    Of a GPT: 72 B s l h^2 (1 + s / 6h + V / 12lh) (Korthikanti et al. 2022, appendix A). ``causal``: share of
    attention that counts, 0.5 for those who leave out what is masked. ``capacity``: of a Strategy; tokens
    that experts have no place for are not computed and do not count, nor does padding.
    """
    attention = round(shape.layers * _attention_flops(shape, sequence) * causal)
    head = 2 * shape.hidden * shape.vocabulary
    return 3 * sequences * sequence * (_weights_flops(shape, capacity) + attention + head)


def step_flops(shape: ModelShape, strategy: Strategy) -> int:
    """Operations of a step on all devices together, recomputation included, for HFU.

    Of a GPT with full recomputation: 96 B s l h^2 (1 + s / 6h + V / 16lh) (Narayanan et al. 2021, equation
    3).
    """
    attention = shape.layers * _attention_flops(shape, strategy.sequence)
    again = {"none": 0, "selective": attention}.get(strategy.recompute)
    if again is None:
        again = _weights_flops(shape, strategy.capacity) + attention
    counted = model_flops(
        shape, strategy.global_batch, strategy.sequence, capacity=strategy.capacity
    )
    return counted + strategy.global_batch * strategy.sequence * again


def _attention_flops(shape: ModelShape, sequence: int) -> int:
    """Of one layer and token: scores, and the weighted sum of values."""
    return 2 * sequence * (shape.query_width + shape.attention_width)


def _weights_flops(shape: ModelShape, capacity: float) -> int:
    """Of all layers, forward, for one token, without attention itself."""
    visited = shape.top_k * (min(capacity, 1.0) if capacity else 1)
    dense = shape.ffn_matrix_parameters(shape.ffn_hidden)
    expert = shape.ffn_matrix_parameters(shape.expert_ffn_hidden)
    mixed = round((visited + shape.shared_experts) * expert) + shape.experts * shape.hidden
    weights = (
        shape.layers * shape.attention_matrix_parameters
        + (shape.layers - shape.moe_layers) * dense
        + shape.moe_layers * mixed
    )
    return 2 * weights


def layer_work(shape: ModelShape, strategy: Strategy, with_experts: bool = False) -> Work:
    """One layer's forward pass over one micro-batch on one rank, the busiest where traffic is uneven."""
    tokens, tp = strategy.rank_tokens, strategy.layout.tp
    inner = shape.shared_experts * shape.expert_ffn_hidden if with_experts else shape.ffn_hidden
    # Two norms read and write the stream, two sums read it twice and write it.
    numbers = (
        10 * strategy.sharded_tokens * shape.hidden + tokens * shape.ffn_matrices * inner / tp
    )
    work = attention_work(shape, strategy) + Work(
        moved_bytes=numbers * strategy.activation_bytes
    )
    # Products before and after attention.
    each = strategy.parameter_bytes
    work = work + product(tokens, shape.attention_width / tp, shape.hidden, each)
    if shape.latent:
        # What goes down into the latent space is done by each rank for its part of the sequence.
        kv_down, kv_up = (
            shape.kv_rank + shape.rope_head_size,
            shape.head_size + shape.value_head_size,
        )
        work = work + product(
            strategy.sharded_tokens, shape.hidden, shape.query_rank + kv_down, each
        )
        work = work + product(tokens, shape.query_rank, shape.query_width / tp, each)
        work = work + product(tokens, shape.kv_rank, shape.heads * kv_up / tp, each)
    else:
        # Keys and values of fewer heads than ranks are on several ranks.
        kv_width = 2 * max(shape.kv_heads / tp, 1) * shape.head_size
        work = work + product(tokens, shape.hidden, shape.query_width / tp + kv_width, each)
    if inner:
        work = work + product(tokens, shape.hidden, inner / tp, each).times(shape.ffn_matrices)
    if not with_experts:
        return work
    # The experts of one rank, balanced or at the busiest; tensor parallel ranks gather each other's tokens
    # and have a part of each expert's width. Products with few tokens for an expert are slow like narrow
    # ones: four times the tokens count as a width.
    layout, rows = strategy.layout, strategy.expert_rows(shape) * strategy.busiest_share
    experts = shape.experts // layout.ep
    of_an_expert = rows * layout.expert_tp / experts
    part = shape.expert_ffn_hidden / layout.expert_tp
    matrix = product(of_an_expert, shape.hidden, part, each, 4 * of_an_expert)
    router = product(strategy.sharded_tokens, shape.hidden, shape.experts, each)
    # Sorted by expert and back: read and written twice; between the matrices as in a dense layer.
    numbers = rows * (4 * shape.hidden + shape.ffn_matrices * shape.expert_ffn_hidden)
    moved = Work(moved_bytes=numbers * strategy.activation_bytes)
    return work + matrix.times(experts * shape.ffn_matrices) + router + moved


def attention_work(shape: ModelShape, strategy: Strategy) -> Work:
    """Between queries, keys and values of one layer, forward.

    A fused kernel moves these and its output alone. Otherwise scores are written, go through the softmax and
    are read again; a dropout goes through them once more, with a mask of a byte.
    """
    tokens, tp, item = strategy.rank_tokens, strategy.layout.tp, strategy.activation_bytes
    flops = tokens * _attention_flops(shape, strategy.sequence) / tp
    moved = tokens * (shape.query_width + shape.kv_width + shape.attention_width) / tp * item
    if strategy.fused_attention:
        return Work(attention_flops=flops, fused_flops=flops, moved_bytes=moved)
    of_a_score = 4 * item + strategy.dropout * (2 * item + 1)
    scores = tokens * strategy.sequence * shape.heads / tp
    return Work(attention_flops=flops, moved_bytes=moved + scores * of_a_score)


def stage_work(shape: ModelShape, strategy: Strategy, holding: Holding) -> tuple[Work, Work]:
    """Forward and backward (with what is recomputed) of one micro-batch on a rank of this kind of stage."""
    layers = layer_work(shape, strategy).times(holding.dense_layers)
    if holding.moe_layers:
        layers = layers + layer_work(shape, strategy, with_experts=True).times(
            holding.moe_layers
        )
    head = Work()
    if holding.kind in ("only", "last"):
        columns, tokens = -(-shape.vocabulary // strategy.layout.tp), strategy.rank_tokens
        head = product(tokens, shape.hidden, columns, strategy.parameter_bytes)
        head = head + Work(moved_bytes=tokens * columns * LOGIT_BYTES)
    backward = (layers + head).times(2)
    if strategy.fused_attention:
        # Five products instead of two, the first of them the scores once more.
        half = layers.attention_flops / 2
        backward = backward + Work(attention_flops=half, fused_flops=half)
    # Fused attention computes scores again in any case: selective recomputation adds nothing to it.
    if strategy.recompute == "full":
        backward = backward + layers
    elif strategy.recompute == "selective" and not strategy.fused_attention:
        backward = backward + attention_work(shape, strategy).times(holding.layers)
    return layers + head, backward


def optimizer_work(strategy: Strategy, holding: Holding) -> Work:
    """Adam: state read and written, gradients read, parameters written; a share of them when sharded."""
    each = 2 * strategy.optimizer_bytes + strategy.gradient_bytes + strategy.parameter_bytes
    dense, experts = holding.dense, holding.experts
    if strategy.zero_stage:
        dense = -(-dense // strategy.data_ranks)
        experts = -(-experts // strategy.layout.expert_dp)
    return Work(moved_bytes=float((dense + experts) * each))


def utilization(
    flops: float, seconds: float, ranks: int, device: Accelerator, dtype: str = ""
) -> float:
    """Share of the peak of ``ranks`` devices: MFU of model_flops, HFU of step_flops."""
    return flops / (seconds * ranks * device.peak(dtype or device.usual_dtype))
