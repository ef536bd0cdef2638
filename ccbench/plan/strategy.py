"""A way to train a model: ranks, batches, sharding, pipeline, recomputation; and what must divide what."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from ccbench.collectives import read_traffic, shares
from ccbench.errors import UsageError
from ccbench.groups import Layout
from ccbench.plan.shape import ModelShape

PIPELINES = ("gpipe", "1f1b", "interleaved")
"""Huang et al. 2019; Narayanan et al. 2021 for the other two."""

RECOMPUTED = ("none", "selective", "full")
"""Nothing; attention between its matrix products; whole layers (Korthikanti et al. 2022)."""

CONTEXT_KINDS = ("ring", "all_gather", "ulysses")
"""Liu et al. 2023; Grattafiori et al. 2024 (Llama 3); Jacobs et al. 2023 (DeepSpeed-Ulysses)."""

SAME_SUM = 1e-3
"""Rows of a matrix of tokens whose sums differ by less are rounded alike."""

BUCKET_BYTES = 25 * 2**20
"""Of PyTorch's DistributedDataParallel (Li et al., VLDB 2020; ``bucket_cap_mb``)."""


@dataclass(frozen=True)
class Strategy:
    """Settings of a training step besides the model.

    Refused here is what does not go together; each setting by itself is checked where a plan is read.

    Not known here: shards within a node and replicas across (HSDP, ZeRO++), schedules without bubbles, what
    is kept in the host's memory.

    layout: sizes and order of the axes.
    micro_batch, global_batch: in sequences, of one data parallel rank and of the whole step.
    sequence: tokens of one.
    sequence_parallel: what tensor parallel ranks would hold alike is split among them along the sequence.
    zero_stage: 0 replicates over data parallel ranks; 1 shards the optimizer, 2 gradients too, 3 parameters
    too (FSDP). reshard: with stage 3, parameters are let go after the forward pass and gathered again for
    the backward pass; without, they are gathered once a step. keep_gradients: with stages 2 and 3, they are
    kept whole and reduced after the last micro-batch, not after each one (both are FSDP2's:
    pytorch/pytorch#126166).
    pipeline: schedule of micro-batches; virtual_stages: parts that each rank of an interleaved one holds.
    uneven_stages: stages may differ by one layer, those in the middle the larger.
    scatter_gather: tensor parallel ranks each send their share to the next stage, which gathers them.
    recompute: what the backward pass computes a second time. fused_attention: scores are not stored, but
    computed again inside the backward kernel (FlashAttention). dropout: its masks are kept.
    parameter_bytes, gradient_bytes, optimizer_bytes, activation_bytes: for each number; gradients as they
    are held and communicated, the optimizer's for Adam in mixed precision (Rajbhandari et al. 2020).
    bucket_bytes: gradients and parameters are communicated in portions of this size.
    overlap_*: whether communication may run behind computing: gradients behind the backward pass, parameters
    behind the forward pass, tensor parallel communication behind the products beside it, exchanges with
    experts behind another micro-batch.
    context_kind: how attention sees the sequence that context parallel ranks split.
    traffic: tokens among experts, as ``ccbench.collectives`` spells it, '' balanced. capacity: tokens of
    an expert are padded or cut to this multiple of the balanced number; 0 takes all as they come.
    """

    layout: Layout
    global_batch: int
    sequence: int
    micro_batch: int = 1
    sequence_parallel: bool = False
    zero_stage: int = 0
    reshard: bool = True
    keep_gradients: bool = False
    pipeline: str = "1f1b"
    virtual_stages: int = 1
    uneven_stages: bool = False
    scatter_gather: bool = True
    recompute: str = "none"
    fused_attention: bool = True
    dropout: bool = False
    parameter_bytes: int = 2
    gradient_bytes: int = 2
    optimizer_bytes: int = 12
    activation_bytes: int = 2
    bucket_bytes: int = BUCKET_BYTES
    overlap_gradients: bool = True
    overlap_parameters: bool = True
    overlap_tensor: bool = False
    overlap_experts: bool = False
    context_kind: str = "ring"
    traffic: str = ""
    capacity: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "traffic", read_traffic(self.traffic))
        split = self.layout.cp * (self.layout.tp if self.sequence_parallel else 1)
        a_turn = self.micro_batch * self.layout.dp
        if self.global_batch % a_turn:
            raise UsageError(
                f"strategy: a global batch of {self.global_batch} does not divide into micro-batches of "
                f"{self.micro_batch} on {self.layout.dp} data parallel ranks; choose a multiple of {a_turn}"
            )
        interleaved = self.pipeline == "interleaved"
        if interleaved != (self.virtual_stages > 1):
            raise UsageError(
                f"strategy: pipeline {self.pipeline} with {self.virtual_stages} virtual stages; write 2 or "
                "more for an interleaved one, 1 for the others"
            )
        if interleaved and self.layout.pp == 1:
            raise UsageError(
                "strategy: an interleaved pipeline of one stage; choose pp from 2 on, or 1f1b"
            )
        if interleaved and self.micro_batches % self.layout.pp:
            raise UsageError(
                f"strategy: {self.micro_batches} micro-batches do not divide by pp {self.layout.pp}, as they "
                "must in an interleaved pipeline; choose a global batch that is a multiple of "
                f"{a_turn * self.layout.pp}"
            )
        if self.sequence % split:
            raise UsageError(
                f"strategy: a sequence of {self.sequence} does not divide among cp x tp = {split} ranks; "
                f"choose a multiple of {split}"
            )
        if self.capacity and self.traffic:
            raise UsageError(
                f"strategy: traffic {self.traffic} with a capacity, which balances it; write one of them"
            )

    @cached_property
    def micro_batches(self) -> int:
        """Of each data parallel rank in one step."""
        return self.global_batch // (self.micro_batch * self.layout.dp)

    @cached_property
    def rank_tokens(self) -> int:
        """Tokens of a micro-batch that one context parallel rank has."""
        return self.micro_batch * self.sequence // self.layout.cp

    @cached_property
    def sharded_tokens(self) -> int:
        """Tokens of a micro-batch that one rank has where sequence parallelism splits them."""
        return self.rank_tokens // (self.layout.tp if self.sequence_parallel else 1)

    @cached_property
    def data_axis(self) -> str:
        """The axis over which parameters outside the experts are replicated or sharded."""
        return "dp-cp" if self.layout.cp > 1 else "dp"

    @cached_property
    def data_ranks(self) -> int:
        """Ranks of a group of data_axis."""
        return self.layout.dp * self.layout.cp

    @cached_property
    def busiest_share(self) -> float:
        """Tokens that the busiest rank of experts gets, over those of a rank where traffic is balanced."""
        return (
            float(shares(self.traffic, self.layout.ep).sum(axis=0).max())
            if self.traffic
            else 1.0
        )

    def expert_rows(self, shape: ModelShape) -> int:
        """Tokens of a micro-batch that one rank sends to experts, each as often as experts it visits."""
        rows = self.sharded_tokens * shape.top_k
        # With a capacity every expert has as many places for each rank, filled or not.
        return (
            shape.experts * math.ceil(rows * self.capacity / shape.experts)
            if self.capacity
            else rows
        )

    def stage_layers(self, shape: ModelShape) -> tuple[tuple[int, ...], ...]:
        """Layers by stage, for each of its virtual stages; UsageError where they do not divide."""
        stages, parts = self.layout.pp, self.layout.pp * self.virtual_stages
        each, left = divmod(shape.layers, parts)
        if each == 0 or (left and not self.uneven_stages):
            raise UsageError(
                f"strategy: {shape.layers} layers do not divide into {parts} stages; choose a product of pp "
                f"and virtual_stages that divides {shape.layers}, or write uneven_stages: true"
            )
        # The first part has the embedding besides and the last the head: they are the last to get one more.
        order = sorted(range(parts), key=lambda part: (part == 0, part == parts - 1, part))
        larger = set(order[:left])
        sizes = [each + (part in larger) for part in range(parts)]
        return tuple(tuple(sizes[stage::stages]) for stage in range(stages))

    def stage_moe_layers(self, shape: ModelShape) -> tuple[int, ...]:
        """Layers with experts by stage; the leading ``dense_layers`` have none."""
        counts = self.stage_layers(shape)
        if not shape.experts:
            return (0,) * len(counts)
        moe_layers = [0] * len(counts)
        before = 0
        for turn in range(self.virtual_stages):
            for stage, sizes in enumerate(counts):
                dense = min(max(shape.dense_layers - before, 0), sizes[turn])
                moe_layers[stage] += sizes[turn] - dense
                before += sizes[turn]
        return tuple(moe_layers)


def check_strategy(shape: ModelShape, strategy: Strategy) -> None:
    """Raise UsageError where the shape cannot be split this way: what does not divide, and what would."""
    layout = strategy.layout
    strategy.stage_layers(shape)
    for what, number in (("heads", shape.heads), ("ffn_hidden", shape.ffn_hidden)):
        if number % layout.tp:
            raise UsageError(
                f"strategy: tp {layout.tp} does not divide {what} {number}; choose a tp that does"
            )
    if shape.kv_heads % layout.tp and layout.tp % shape.kv_heads:
        raise UsageError(
            f"strategy: tp {layout.tp} and {shape.kv_heads} heads of keys and values do not divide; choose "
            "a tp that divides them or a multiple of them"
        )
    if (
        layout.cp > 1
        and strategy.context_kind == "ulysses"
        and shape.heads % (layout.tp * layout.cp)
    ):
        raise UsageError(
            f"strategy: ulysses splits {shape.heads} heads among tp x cp = {layout.tp * layout.cp} ranks; "
            "choose a product that divides them, or context_kind: ring"
        )
    if layout.cp > 1 and strategy.context_kind == "ulysses" and shape.latent:
        raise UsageError(
            "strategy: ulysses with latent attention is not modelled; write context_kind: ring"
        )
    _check_experts(shape, strategy)


def _check_experts(shape: ModelShape, strategy: Strategy) -> None:
    layout = strategy.layout
    if not shape.experts:
        if layout.ep > 1 or layout.expert_tp != layout.tp:
            raise UsageError(
                f"strategy: {layout} splits experts, and the model has none; leave ep and etp out"
            )
        return
    if strategy.traffic:
        # Every rank has as many tokens in a step, so every row of a matrix has the same sum.
        routed = shares(strategy.traffic, strategy.layout.ep).sum(axis=1)
        if routed.min() < (1 - SAME_SUM) * routed.max():
            share = f"{routed.min() / routed.max():.0%}"
            raise UsageError(
                f"strategy: traffic {strategy.traffic}: row {routed.argmin()} has {share} of what row "
                f"{routed.argmax()} has, but every rank has as many tokens; give rows of one sum"
            )
    if shape.experts % layout.ep:
        raise UsageError(
            f"strategy: ep {layout.ep} does not divide {shape.experts} experts; choose one that does"
        )
    if shape.expert_ffn_hidden % layout.expert_tp:
        raise UsageError(
            f"strategy: etp {layout.expert_tp} does not divide expert_ffn_hidden {shape.expert_ffn_hidden}; "
            "choose one that does"
        )
    if shape.shared_experts and shape.shared_experts * shape.expert_ffn_hidden % layout.tp:
        raise UsageError(
            f"strategy: tp {layout.tp} does not divide {shape.shared_experts} shared experts of width "
            f"{shape.expert_ffn_hidden}; choose one that does"
        )
    if layout.tp > 1 and not strategy.sequence_parallel:
        raise UsageError(
            "strategy: experts with tp > 1 and without sequence parallelism would see every token tp times; "
            "write sequence_parallel: true"
        )
