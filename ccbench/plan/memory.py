"""Memory of a rank's device that training fills, so that a search can leave out what does not fit.

States: 2 + 2 + 12 bytes for each parameter with Adam in mixed precision, divided by data parallel ranks as
the ZeRO stage says (Rajbhandari et al. 2020, sections 3 and 5). Activations: s b h (34 + 5 a s / h) bytes
for a layer of a GPT and its refinements (Korthikanti et al. 2022, sections 4 and 5), counted here tensor by
tensor so that it holds for other widths. Not counted: the runtime, communication buffers of the library,
fragmentation.

One rank holds its share of the parameters of its pipeline stage, by who else holds the same.

Matrices are split among tensor parallel ranks as in Megatron-LM (Shoeybi et al. 2019): queries, keys, values
and the first matrices of a feed-forward part by columns, the matrices after them by rows, embedding and head
by the vocabulary. Norms, biases added after a sum over ranks, routers, position embeddings and what goes
down into a latent space are on every rank. Keys and values with fewer heads than ranks are on several.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from ccbench.documents import read_installed
from ccbench.errors import UsageError
from ccbench.plan.shape import ModelShape
from ccbench.plan.strategy import Strategy, check_strategy
from ccbench.units import parse_size

ML_ENGINEERING = "stas00/ml-engineering, compute/accelerator/README.md"


@dataclass(frozen=True)
class Accelerator:
    """One accelerator as a rank sees it: a die where a package holds several.

    memory_bytes, memory_bytes_per_second: of its own memory. peak_flops: multiplications and additions a
    second by dtype, without sparsity. achieved: share of the peak that the best of many large matrix
    products reached. models: how machines call it.
    """

    name: str
    memory_bytes: int
    memory_bytes_per_second: float
    peak_flops: tuple[tuple[str, float], ...]
    achieved: float
    source: str = ""
    achieved_source: str = ML_ENGINEERING
    models: tuple[str, ...] = ()

    def peak(self, dtype: str) -> float:
        """Floating-point operations a second; UsageError lists what the device computes with."""
        for name, flops in self.peak_flops:
            if name == dtype:
                return flops
        dtypes = ", ".join(name for name, _ in self.peak_flops)
        raise UsageError(f"device {self.name}: no rate for dtype {dtype!r}; one of {dtypes}")

    @property
    def usual_dtype(self) -> str:
        """The dtype that it trains in unless said: bfloat16, or float16 on devices without it."""
        return self.peak_flops[0][0]

    def with_rates(
        self, tflops: float | None = None, memory_bytes: int | None = None
    ) -> Accelerator:
        """Return the device with a peak (of every dtype) or a memory that the user states."""
        peaks = self.peak_flops
        if tflops is not None:
            peaks = tuple((name, tflops * 1e12) for name, _ in peaks)
        return replace(self, peak_flops=peaks, memory_bytes=memory_bytes or self.memory_bytes)


@lru_cache(maxsize=1)
def named_devices() -> dict[str, Accelerator]:
    """The devices of devices.yaml by name."""
    devices = {}
    for name, values in read_installed(Path(__file__).with_name("devices.yaml")).items():
        rate = values["memory_rate"].removesuffix("/s")
        devices[name] = Accelerator(
            name,
            parse_size(values["memory"]),
            float(parse_size(rate)),
            tuple((dtype, float(peak) * 1e12) for dtype, peak in values["tflops"].items()),
            float(values["achieved"]),
            values["source"],
            values.get("achieved_source", ML_ENGINEERING),
            tuple(values["models"]),
        )
    return devices


def named_device(name: str) -> Accelerator:
    """A device by its name here or as machines call it; UsageError lists the names."""
    lowered = name.strip().lower()
    for device in named_devices().values():
        if lowered == device.name or lowered in (model.lower() for model in device.models):
            return device
    raise UsageError(
        f"device: {name[:80]!r} is not known; one of {', '.join(sorted(named_devices()))}"
    )


ONLY, FIRST, MIDDLE, LAST = STAGES = ("only", "first", "middle", "last")
"""Kinds of pipeline stages: the only one, or the first, one in the middle, the last."""


@dataclass(frozen=True)
class LayerShare:
    """Parameters of one layer on one rank.

    dense: outside the experts, replicated only over data and context parallel ranks and, of them, ``whole``
    on every tensor parallel rank. experts: those of the rank's experts.
    """

    dense: int
    whole: int
    experts: int


@dataclass(frozen=True)
class Holding:
    """Parameters of one stage on one rank.

    layers: of the stage, ``moe_layers`` of them with experts. layer, moe_layer: what each holds. around:
    embedding, head and last norm, as far as the stage has them; ``tied`` of these are embedding that the
    last stage (or the first) holds as well. whole: those of ``around`` that every tensor parallel rank holds
    and computes on its own part of the sequence.
    """

    kind: str
    stage: int
    layers: int
    moe_layers: int
    layer: LayerShare
    moe_layer: LayerShare
    around: int
    tied: int
    whole: int

    @property
    def dense_layers(self) -> int:
        """Layers without experts."""
        return self.layers - self.moe_layers

    @property
    def dense(self) -> int:
        """Parameters outside experts."""
        return (
            self.around
            + self.dense_layers * self.layer.dense
            + self.moe_layers * self.moe_layer.dense
        )

    @property
    def experts(self) -> int:
        """Parameters of experts."""
        return self.moe_layers * self.moe_layer.experts

    @property
    def replicated(self) -> int:
        """Parameters that every tensor parallel rank holds and has gradients of for its tokens alone."""
        return (
            self.whole
            + self.dense_layers * self.layer.whole
            + self.moe_layers * self.moe_layer.whole
        )

    @property
    def parameters(self) -> int:
        """All parameters of the rank."""
        return self.dense + self.experts


def stage_order(stages: int) -> tuple[str, ...]:
    """The kind of every stage of a pipeline."""
    return (ONLY,) if stages == 1 else (FIRST, *(MIDDLE,) * (stages - 2), LAST)


@lru_cache(maxsize=4096)
def layer_shares(
    shape: ModelShape, tp: int, ep: int, etp: int
) -> tuple[LayerShare, LayerShare]:
    """(of a layer without experts, of one with) on one rank."""
    bias_split, whole = shape.attention_bias_parameters
    if shape.latent:
        # What goes down into the latent space is on every rank.
        down = shape.hidden * (shape.query_rank + shape.kv_rank + shape.rope_head_size)
        split = (shape.attention_matrix_parameters - down) // tp
        whole = down + shape.inner_norm_parameters
    else:
        # Keys and values of fewer heads than ranks are on several.
        kv_width = 2 * max(shape.kv_heads // tp, 1) * shape.head_size
        split = (
            shape.hidden * (shape.query_width + shape.attention_width) // tp
            + shape.hidden * kv_width
        )
        split += shape.query_width // tp + kv_width if bias_split else 0
    whole += 2 * shape.norm_parameters
    bias_split, bias_whole = shape.ffn_bias_parameters(shape.ffn_hidden)
    ffn = (shape.ffn_matrix_parameters(shape.ffn_hidden) + bias_split) // tp
    dense = LayerShare(split + whole + ffn + bias_whole, whole + bias_whole, 0)
    if not shape.experts:
        return dense, LayerShare(0, 0, 0)
    inner = shape.expert_ffn_hidden
    bias_split, bias_whole = shape.ffn_bias_parameters(inner)
    matrices = shape.ffn_matrix_parameters(inner) + bias_split
    shared = shape.shared_experts * matrices // tp
    whole += shape.router_parameters + shape.shared_experts * bias_whole
    experts = shape.experts // ep * (matrices // etp + bias_whole)
    return dense, LayerShare(split + whole + shared, whole, experts)


def embedding_share(shape: ModelShape, tp: int) -> int:
    """Parameters of token embedding or head on one rank; the vocabulary is padded to a multiple of tp."""
    return -(-shape.vocabulary // tp) * shape.hidden


def holdings(shape: ModelShape, strategy: Strategy) -> tuple[Holding, ...]:
    """Parameters of a rank of each kind of stage; of stages in the middle, one that holds most."""
    layout = strategy.layout
    layer, moe_layer = layer_shares(shape, layout.tp, layout.ep, layout.expert_tp)
    layers = [sum(parts) for parts in strategy.stage_layers(shape)]
    moe_layers = strategy.stage_moe_layers(shape)
    embedding = embedding_share(shape, layout.tp)
    kinds = []
    for kind in dict.fromkeys(stage_order(layout.pp)):
        stage = {ONLY: 0, FIRST: 0, LAST: len(layers) - 1}.get(kind, -1)
        if kind == MIDDLE:
            stage = max(
                range(1, len(layers) - 1),
                key=lambda middle: (moe_layers[middle], layers[middle]),
            )
        starts, ends = kind in (ONLY, FIRST), kind in (ONLY, LAST)
        shared = shape.tied_embeddings and kind in (FIRST, LAST)
        heads = ends and (shared or not shape.tied_embeddings)
        around = (starts + heads) * embedding
        around += starts * shape.positions * shape.hidden + ends * shape.norm_parameters
        kinds.append(
            Holding(
                kind,
                stage,
                layers[stage],
                moe_layers[stage],
                layer,
                moe_layer,
                around,
                embedding if shared else 0,
                ends * shape.norm_parameters,
            )
        )
    return tuple(kinds)


LOGIT_BYTES = 4
"""A logit as it is kept for the backward pass, float32 (Korthikanti et al. 2022, section 4.3)."""

SCORE_STATISTIC_BYTES = 4
"""Bytes that fused attention keeps of a row of scores (Dao et al. 2022)."""


@dataclass(frozen=True)
class StageMemory:
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


def memory_of(shape: ModelShape, strategy: Strategy) -> tuple[StageMemory, ...]:
    """Memory of a rank of each kind of stage at its fullest; UsageError where the model does not divide."""
    check_strategy(shape, strategy)
    memories = []
    for holding in holdings(shape, strategy):
        # Each stage of ZeRO shards one state more: the optimizer, gradients, parameters.
        dense = -(-holding.dense // strategy.data_ranks)
        sharded = dense - (-holding.experts // strategy.layout.expert_dp)
        whole, zero = holding.parameters, strategy.zero_stage
        held = [sharded if zero >= stage else whole for stage in (3, 2, 1)]
        held[1] = whole if strategy.keep_gradients else held[1]
        each = (strategy.parameter_bytes, strategy.gradient_bytes, strategy.optimizer_bytes)
        states = [number * size for number, size in zip(held, each, strict=True)]
        # Activations are those of all micro-batches in flight; stages in the middle differ, the first of
        # them has most.
        stage = 1 if holding.kind == MIDDLE else holding.stage
        flying = parts_in_flight(strategy, stage)
        layers = holding.dense_layers * layer_activations(shape, strategy)
        if holding.moe_layers:
            layers += holding.moe_layers * layer_activations(shape, strategy, with_experts=True)
        kept = -(-layers * flying // strategy.virtual_stages)
        stream = strategy.sharded_tokens * shape.hidden
        if holding.kind in (ONLY, FIRST):
            kept += strategy.dropout * stream * -(-flying // strategy.virtual_stages)
        if holding.kind in (ONLY, LAST):
            logits = (
                strategy.rank_tokens * -(-shape.vocabulary // strategy.layout.tp) * LOGIT_BYTES
            )
            kept += 2 * strategy.activation_bytes * stream + logits
        # There for a moment: with stage 3 two gathered layers and one's gradients; a recomputed layer.
        most = max(
            holding.layer.dense if holding.dense_layers else 0,
            holding.moe_layer.dense + holding.moe_layer.experts if holding.moe_layers else 0,
        )
        working = 0
        if strategy.zero_stage == 3 and strategy.data_ranks * strategy.layout.expert_dp > 1:
            every = (holding.dense + holding.experts) * strategy.parameter_bytes
            gathered = 2 * max(most, holding.around) * strategy.parameter_bytes
            working += (
                min(gathered, every) if strategy.reshard else every
            ) + most * strategy.gradient_bytes
        elif strategy.zero_stage == 2:
            working += strategy.bucket_bytes
        if strategy.recompute == "full":
            working += _kept(shape, strategy, holding.moe_layers > 0, scores=True)
        elif strategy.recompute == "selective" and not strategy.fused_attention:
            working += _kept(shape, strategy, False, True) - _kept(
                shape, strategy, False, False
            )
        memories.append(
            StageMemory(holding.kind, states[0], states[1], states[2], kept, working)
        )
    return tuple(memories)


def largest_memory(shape: ModelShape, strategy: Strategy) -> StageMemory:
    """That of the fullest stage."""
    return max(memory_of(shape, strategy), key=lambda memory: memory.total_bytes)


def layer_activations(shape: ModelShape, strategy: Strategy, with_experts: bool = False) -> int:
    """Bytes that one layer keeps of one micro-batch for the backward pass, recomputation considered."""
    if strategy.recompute == "full":
        return strategy.sharded_tokens * shape.hidden * strategy.activation_bytes
    return _kept(shape, strategy, with_experts, scores=strategy.recompute == "none")


def _kept(shape: ModelShape, strategy: Strategy, with_experts: bool, scores: bool) -> int:
    """Bytes that the operations of a layer need again in the backward pass.

    Inputs of the two norms and of the two parts after them, and masks of dropout, are whole without sequence
    parallelism; queries, keys, values, attention's output and what is between the matrices of a feed-forward
    part are split.
    """
    item, tokens, tp = strategy.activation_bytes, strategy.rank_tokens, strategy.layout.tp
    stream = 4 * item + 2 * strategy.dropout
    inner = shape.shared_experts * shape.expert_ffn_hidden if with_experts else shape.ffn_hidden
    widths = (
        shape.query_width + shape.kv_width + shape.attention_width + shape.ffn_matrices * inner
    )
    kept = strategy.sharded_tokens * shape.hidden * stream + tokens * widths * item // tp
    if strategy.fused_attention:
        kept += tokens * shape.heads * SCORE_STATISTIC_BYTES // tp
    elif scores:
        of_a_score = item + strategy.dropout * (item + 1)
        kept += tokens * strategy.sequence * shape.heads * of_a_score // tp
    if with_experts:
        # Tokens as they arrive, between the matrices, and as they leave, on the busiest rank.
        rows = strategy.expert_rows(shape) * strategy.busiest_share
        of_a_row = shape.hidden * (strategy.layout.expert_tp + 1)
        of_a_row += shape.ffn_matrices * shape.expert_ffn_hidden
        kept += math.ceil(rows * of_a_row * item)
    return kept


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
