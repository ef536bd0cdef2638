"""What a rank keeps in its device's memory, so that a search can leave out what does not fit.

States: 2 + 2 + 12 bytes for each parameter with Adam in mixed precision, divided by data parallel ranks as
the ZeRO stage says (Rajbhandari et al. 2020, sections 3 and 5). Activations: s b h (34 + 5 a s / h) bytes
for a layer of a GPT and its refinements (Korthikanti et al. 2022, sections 4 and 5), counted here tensor by
tensor so that it holds for other widths. Not counted: the runtime, communication buffers of the library,
fragmentation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ccbench.parallelism.devices import Device
from ccbench.parallelism.holding import FIRST, LAST, MIDDLE, ONLY, Holding, holdings
from ccbench.parallelism.shape import ModelShape
from ccbench.parallelism.strategy import Strategy, check_strategy
from ccbench.traffic_matrix import shares

LOGIT_BYTES = 4
"""A logit as it is kept for the backward pass, float32 (Korthikanti et al. 2022, section 4.3)."""

SCORE_STATISTIC_BYTES = 4
"""What fused attention keeps of a row of scores (Dao et al. 2022)."""


@dataclass(frozen=True)
class Memory:
    """Bytes on one rank of one kind of stage. working_bytes: of what is there for a moment only."""

    stage: str
    parameter_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    activation_bytes: int
    working_bytes: int

    @property
    def total_bytes(self) -> int:
        """All of them."""
        states = self.parameter_bytes + self.gradient_bytes + self.optimizer_bytes
        return states + self.activation_bytes + self.working_bytes


def memory_of(shape: ModelShape, strategy: Strategy) -> tuple[Memory, ...]:
    """What a rank of each kind of stage keeps at its fullest; UsageError where the model does not divide."""
    check_strategy(shape, strategy)
    return tuple(_stage_use(shape, strategy, holding) for holding in holdings(shape, strategy))


def largest_memory(shape: ModelShape, strategy: Strategy) -> Memory:
    """That of the fullest stage."""
    return max(memory_of(shape, strategy), key=lambda memory: memory.total_bytes)


def fits(shape: ModelShape, strategy: Strategy, device: Device) -> bool:
    """Whether every stage fits.

    A device has about 7% more than its label in decimal GB, which is left to what is not counted here.
    """
    return largest_memory(shape, strategy).total_bytes <= device.memory_bytes


def layer_activations(shape: ModelShape, strategy: Strategy, with_experts: bool = False) -> int:
    """Bytes that one layer keeps of one micro-batch for the backward pass, recomputation considered."""
    if strategy.recompute == "full":
        return strategy.sharded_tokens * shape.hidden * strategy.activation_bytes
    return _kept(shape, strategy, with_experts, scores=strategy.recompute == "none")


def _kept(shape: ModelShape, strategy: Strategy, with_experts: bool, scores: bool) -> int:
    """Everything that the operations of a layer need again.

    Inputs of the two norms and of the two parts after them, and masks of dropout, are whole without sequence
    parallelism; queries, keys, values, attention's output and what is between the matrices of a feed-forward
    part are split.
    """
    item, tokens, tp = strategy.activation_bytes, strategy.rank_tokens, strategy.layout.tp
    stream = 4 * item + 2 * strategy.dropout
    inner = shape.shared_experts * shape.expert_ffn_hidden if with_experts else shape.ffn_hidden
    widths = shape.query_width + shape.kv_width + shape.attention_width + shape.ffn_matrices * inner
    kept = strategy.sharded_tokens * shape.hidden * stream + tokens * widths * item // tp
    if strategy.fused_attention:
        kept += tokens * shape.heads * SCORE_STATISTIC_BYTES // tp
    elif scores:
        of_a_score = item + strategy.dropout * (item + 1)
        kept += tokens * strategy.sequence * shape.heads * of_a_score // tp
    return kept + (_kept_by_experts(shape, strategy) if with_experts else 0)


def _kept_by_experts(shape: ModelShape, strategy: Strategy) -> int:
    """Tokens as they arrive, between the matrices, and as they leave, on the busiest rank."""
    layout = strategy.layout
    rows = float(strategy.sharded_tokens * shape.top_k)
    if strategy.capacity:
        rows = shape.experts * math.ceil(rows * strategy.capacity / shape.experts)
    if strategy.traffic:
        rows *= float(shares(strategy.traffic, layout.ep).sum(axis=0).max())
    of_a_row = shape.hidden * (layout.expert_tp + 1) + shape.ffn_matrices * shape.expert_ffn_hidden
    return math.ceil(rows * of_a_row * strategy.activation_bytes)


def parts_in_flight(strategy: Strategy, stage: int) -> int:
    """Virtual stages of micro-batches whose activations a stage holds at most.

    All with GPipe; p - stage with 1F1B; with v virtual stages 2 (p - stage - 1) + (v - 1) p + 1, so that the
    first stage holds 1 + (p - 1) / (p v) times all layers (Korthikanti et al. 2022, section 4.2.3).
    """
    stages, parts = strategy.layout.pp, strategy.virtual_stages
    every = strategy.micro_batches * parts
    if strategy.pipeline == "gpipe":
        return every
    if parts == 1:
        return min(stages - stage, every)
    return min(2 * (stages - stage - 1) + (parts - 1) * stages + 1, every)


def _stage_use(shape: ModelShape, strategy: Strategy, holding: Holding) -> Memory:
    dense, experts = holding.dense, holding.experts
    dense_ranks, expert_ranks = strategy.data_ranks, strategy.layout.expert_dp

    def held(bytes_each: int, sharded_from: int) -> int:
        if strategy.zero_stage < sharded_from:
            return (dense + experts) * bytes_each
        return (-(-dense // dense_ranks) - (-experts // expert_ranks)) * bytes_each

    return Memory(
        holding.kind,
        held(strategy.parameter_bytes, 3),
        held(strategy.gradient_bytes, 4 if strategy.keep_gradients else 2),
        held(strategy.optimizer_bytes, 1),
        _activations(shape, strategy, holding),
        _working(shape, strategy, holding),
    )


def _activations(shape: ModelShape, strategy: Strategy, holding: Holding) -> int:
    """Of all micro-batches in flight, of the stage with most of them where stages of a kind differ."""
    stage = 1 if holding.kind == MIDDLE else holding.stage
    flying = parts_in_flight(strategy, stage)
    layers = holding.dense_layers * layer_activations(shape, strategy)
    if holding.moe_layers:
        layers += holding.moe_layers * layer_activations(shape, strategy, with_experts=True)
    kept = -(-layers * flying // strategy.virtual_stages)
    item, stream = strategy.activation_bytes, strategy.sharded_tokens * shape.hidden
    if holding.kind in (ONLY, FIRST):
        kept += strategy.dropout * stream * -(-flying // strategy.virtual_stages)
    if holding.kind in (ONLY, LAST):
        logits = strategy.rank_tokens * -(-shape.vocabulary // strategy.layout.tp) * LOGIT_BYTES
        kept += 2 * item * stream + logits
    return kept


def _working(shape: ModelShape, strategy: Strategy, holding: Holding) -> int:
    """What is there for a moment: with stage 3 two gathered layers and one's gradients; a recomputed one."""
    most = max(
        holding.layer.dense if holding.dense_layers else 0,
        holding.moe_layer.dense + holding.moe_layer.experts if holding.moe_layers else 0,
    )
    working = 0
    if strategy.zero_stage == 3 and strategy.data_ranks * strategy.layout.expert_dp > 1:
        every = (holding.dense + holding.experts) * strategy.parameter_bytes
        gathered = 2 * max(most, holding.around) * strategy.parameter_bytes
        working += (min(gathered, every) if strategy.reshard else every) + most * strategy.gradient_bytes
    elif strategy.zero_stage == 2:
        working += strategy.bucket_bytes
    if strategy.recompute == "full":
        working += _kept(shape, strategy, holding.moe_layers > 0, scores=True)
    elif strategy.recompute == "selective" and not strategy.fused_attention:
        working += _kept(shape, strategy, False, True) - _kept(shape, strategy, False, False)
    return working
