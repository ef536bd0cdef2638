"""What a training step computes: operations counted as the papers do, and the time that devices take for
them.

Counted: matrix products, 2 operations for each weight and token, backward twice as many (Narayanan et al.
2021, section 5.1 and appendix); attention between queries and keys in full, although a causal kernel
computes half. Timed: matrix products at the rate that training reaches, or as fast as memory gives their
weights, whichever is slower; attention; operations on every number once or twice, which memory limits; the
optimizer. Not timed: the launch of kernels, data loading, what other streams take of a device meanwhile.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ccbench.errors import UsageError
from ccbench.parallelism.devices import Device
from ccbench.parallelism.holding import Holding
from ccbench.parallelism.shape import ModelShape
from ccbench.parallelism.strategy import Strategy
from ccbench.traffic_matrix import shares

LOGIT_BYTES = 12
"""Moved for each logit: written in two bytes, read, and gone through twice in four, about."""


@dataclass(frozen=True)
class Efficiency:
    """How much of a device's rates a training step reaches; every number may be stated by the user.

    matrix: of what the device's best product reached (``Device.achieved``). 0.75: Korthikanti et al. 2022,
    table 5, train 175 billion parameters on 64 A100 in 13.75 s a step, 51.4% of the peak. Without pipeline
    bubble, exposed communication, attention and small operations about 11 s are left for products that
    take 8.1 s at the best rate.
    attention: of the peak: FlashAttention-2 reaches 50 to 73% on A100 (Dao 2023), FlashAttention-3 75% on
    H100 forward (Shah et al. 2024), both less backward.
    memory: of the memory's rate; copies reach 80 to 90% of it.
    causal: share of attention that a kernel computes; 1 for the full matrix.
    """

    matrix: float = 0.75
    attention: float = 0.5
    memory: float = 0.8
    causal: float = 0.5

    def __post_init__(self) -> None:
        for name in ("matrix", "attention", "memory", "causal"):
            if not 0 < getattr(self, name) <= 1:
                raise UsageError(
                    f"efficiency: {name} is {getattr(self, name):g}; write a share above 0, at most 1"
                )


@dataclass(frozen=True)
class Work:
    """What one rank computes.

    matrix_flops: of products with weights. weight_bytes: that these read. attention_flops: in full.
    moved_bytes: by operations that memory limits.
    """

    matrix_flops: float = 0.0
    weight_bytes: float = 0.0
    attention_flops: float = 0.0
    moved_bytes: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(
            self.matrix_flops + other.matrix_flops,
            self.weight_bytes + other.weight_bytes,
            self.attention_flops + other.attention_flops,
            self.moved_bytes + other.moved_bytes,
        )

    def times(self, number: float) -> Work:
        """As often as that."""
        return Work(
            self.matrix_flops * number,
            self.weight_bytes * number,
            self.attention_flops * number,
            self.moved_bytes * number,
        )

    @property
    def flops(self) -> float:
        """Operations as the papers count them."""
        return self.matrix_flops + self.attention_flops


def seconds_of(work: Work, device: Device, efficiency: Efficiency, dtype: str = "") -> float:
    """How long a device takes. dtype: of the products, the device's usual one unless said."""
    peak = device.peak(dtype or device.usual_dtype)
    memory = device.memory_bytes_per_second * efficiency.memory
    products = work.matrix_flops / (peak * device.achieved * efficiency.matrix)
    attention = work.attention_flops * efficiency.causal / (peak * efficiency.attention)
    return max(products, work.weight_bytes / memory) + attention + work.moved_bytes / memory


def model_flops(shape: ModelShape, sequences: int, sequence: int) -> int:
    """Operations of forward and backward pass without recomputation, for MFU (Chowdhery et al. 2022).

    Of a GPT: 72 B s l h^2 (1 + s / 6h + V / 12lh) (Korthikanti et al. 2022, appendix A).
    """
    head = 2 * shape.hidden * shape.vocabulary
    return 3 * sequences * sequence * (_layers_flops(shape, sequence) + head)


def step_flops(shape: ModelShape, strategy: Strategy) -> int:
    """Operations of a step on all devices together, recomputation included, for HFU.

    Of a GPT with full recomputation: 96 B s l h^2 (1 + s / 6h + V / 16lh) (Narayanan et al. 2021, equation
    3).
    """
    tokens = strategy.global_batch * strategy.sequence
    again = 0
    if strategy.recompute == "full":
        again = _layers_flops(shape, strategy.sequence)
    elif strategy.recompute == "selective":
        again = shape.layers * _attention_flops(shape, strategy.sequence)
    return model_flops(shape, strategy.global_batch, strategy.sequence) + tokens * again


def _attention_flops(shape: ModelShape, sequence: int) -> int:
    """Of one layer and token: scores, and the weighted sum of values."""
    return 2 * sequence * (shape.query_width + shape.attention_width)


def _layers_flops(shape: ModelShape, sequence: int) -> int:
    """Of all layers, forward, for one token."""
    dense = shape.ffn_matrix_parameters(shape.ffn_hidden)
    expert = shape.ffn_matrix_parameters(shape.expert_ffn_hidden)
    mixed = (shape.top_k + shape.shared_experts) * expert + shape.experts * shape.hidden
    weights = (
        shape.layers * shape.attention_matrix_parameters
        + (shape.layers - shape.moe_layers) * dense
        + shape.moe_layers * mixed
    )
    return 2 * weights + shape.layers * _attention_flops(shape, sequence)


def layer_work(shape: ModelShape, strategy: Strategy, with_experts: bool = False) -> Work:
    """One layer's forward pass over one micro-batch on one rank, the busiest where traffic is uneven."""
    layout, tokens = strategy.layout, strategy.rank_tokens
    tp, item = layout.tp, strategy.activation_bytes
    weights = _attention_weights(shape, tp)
    widths = (shape.query_width + shape.kv_width + shape.attention_width) // tp
    # Two norms read and write the stream, two sums read it twice and write it.
    moved = 10 * strategy.sharded_tokens * shape.hidden + tokens * widths
    ffn = Work()
    if with_experts:
        ffn = _expert_work(shape, strategy)
        weights += shape.experts * shape.hidden // tp
        inner = shape.shared_experts * shape.expert_ffn_hidden // tp
    else:
        inner = shape.ffn_hidden // tp
    weights += shape.ffn_matrix_parameters(inner)
    moved += tokens * shape.ffn_matrices * inner
    attention = tokens * _attention_flops(shape, strategy.sequence) // tp
    own = Work(2 * tokens * weights, weights * strategy.parameter_bytes, attention, moved * item)
    return own + ffn


def _attention_weights(shape: ModelShape, tp: int) -> int:
    """Weights of attention on one rank; keys and values of fewer heads than ranks are on several."""
    whole = shape.attention_matrix_parameters
    if shape.latent or shape.kv_heads >= tp:
        return whole // tp
    return (whole - shape.hidden * shape.kv_width) // tp + 2 * shape.hidden * shape.head_size


def _expert_work(shape: ModelShape, strategy: Strategy) -> Work:
    """Of the experts of one rank, balanced or at the busiest."""
    layout = strategy.layout
    rows = float(strategy.sharded_tokens * shape.top_k)
    if strategy.capacity:
        rows = shape.experts * math.ceil(rows * strategy.capacity / shape.experts)
    if strategy.traffic:
        rows *= float(shares(strategy.traffic, layout.ep).sum(axis=0).max())
    expert = shape.ffn_matrix_parameters(shape.expert_ffn_hidden)
    weights = shape.experts // layout.ep * expert // layout.expert_tp
    # Sorted by expert and back: read and written twice; between the matrices as in a dense layer.
    numbers = rows * (4 * shape.hidden + shape.ffn_matrices * shape.expert_ffn_hidden)
    return Work(
        2 * rows * expert,
        weights * strategy.parameter_bytes,
        0.0,
        numbers * strategy.activation_bytes,
    )


def head_work(shape: ModelShape, strategy: Strategy) -> Work:
    """Logits and loss of one micro-batch, forward, on one rank of the last stage."""
    columns = -(-shape.vocabulary // strategy.layout.tp)
    weights, tokens = columns * shape.hidden, strategy.rank_tokens
    return Work(2 * tokens * weights, weights * strategy.parameter_bytes, 0.0, tokens * columns * LOGIT_BYTES)


@dataclass(frozen=True)
class StageWork:
    """What one rank of a stage computes for one micro-batch, all its virtual stages together."""

    forward: Work
    backward: Work


def stage_work(shape: ModelShape, strategy: Strategy, holding: Holding) -> StageWork:
    """Forward and backward (with what is recomputed) of one micro-batch on a rank of this kind of stage.

    Fused attention computes scores again in any case, so that selective recomputation adds nothing to it.
    """
    layers = layer_work(shape, strategy).times(holding.dense_layers)
    if holding.moe_layers:
        layers = layers + layer_work(shape, strategy, with_experts=True).times(holding.moe_layers)
    head = head_work(shape, strategy) if holding.kind in ("only", "last") else Work()
    backward = (layers + head).times(2)
    if strategy.fused_attention:
        # Five products instead of two, the first of them the scores once more.
        backward = backward + Work(attention_flops=layers.attention_flops / 2)
    if strategy.recompute == "full":
        backward = backward + layers
    elif strategy.recompute == "selective" and not strategy.fused_attention:
        backward = backward + Work(attention_flops=layers.attention_flops)
    return StageWork(layers + head, backward)


def optimizer_work(strategy: Strategy, holding: Holding) -> Work:
    """Adam: state read and written, gradients read, parameters written; a share of them when sharded."""
    each = 2 * strategy.optimizer_bytes + strategy.gradient_bytes + strategy.parameter_bytes
    dense, experts = holding.dense, holding.experts
    if strategy.zero_stage:
        dense = -(-dense // strategy.data_ranks)
        experts = -(-experts // strategy.layout.expert_dp)
    return Work(moved_bytes=float((dense + experts) * each))


def utilization(flops: float, seconds: float, ranks: int, device: Device, dtype: str = "") -> float:
    """Share of the peak of ``ranks`` devices: MFU of model_flops, HFU of step_flops."""
    return flops / (seconds * ranks * device.peak(dtype or device.usual_dtype))
