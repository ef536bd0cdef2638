"""A way to train a model: layout, batches, sharding, stages, recomputation; and what must divide what."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import PlainValidator

from ccbench.dtypes import ITEM_BYTES
from ccbench.errors import UsageError
from ccbench.groups import Layout, make_layout
from ccbench.plan.shape import ModelShape, whole
from ccbench.suite.model import StrictModel
from ccbench.suite.readers import MisfitError, one_word
from ccbench.units import parse_size

BUCKET_BYTES = 25 * 2**20
"""Of PyTorch's DistributedDataParallel (Li et al., VLDB 2020; ``bucket_cap_mb``)."""

LEAST_BUCKET_BYTES = 2**20

EVERY, FIRST, LAST = "every", "first", "last"
"""Pipeline stages: every one (the fullest counts), or what only the first or the last has besides."""


def _bucket(value: Any) -> int:
    size = parse_size(value)
    if size < LEAST_BUCKET_BYTES:
        raise MisfitError(f"{size} bytes are too few; write 1 MiB or more")
    return size


Whole = Annotated[int, whole(1)]
Dtype = Annotated[str, PlainValidator(one_word("dtype", tuple(ITEM_BYTES)))]


class StepSettings(StrictModel):
    """Keys of a training step.

    Not known here: shards within a node and replicas across (HSDP, ZeRO++), what is kept in the host's
    memory.

    micro_batch, global_batch: in sequences, of one data parallel rank and of the whole step.
    sequence: tokens of one.
    sequence_parallel: what tensor parallel ranks would hold alike is split among them along the sequence.
    zero: 0 replicates over data parallel ranks; 1 shards the optimizer, 2 gradients too, 3 parameters too
    (FSDP). reshard: with stage 3, parameters are let go after the forward pass and gathered again for the
    backward pass; without, they are gathered once a step.
    virtual_stages: parts that each stage holds, more than 1 in an interleaved pipeline.
    recompute: what the backward pass computes a second time: nothing; attention between its matrix products,
    which sends nothing; whole layers (Korthikanti et al. 2022).
    dtype, gradient_dtype: of weights and activations; of gradients as they are communicated.
    bucket: gradients and parameters are communicated in portions of so many bytes.
    context_kind: how attention sees the sequence that context parallel ranks split: Liu et al. 2023;
    Grattafiori et al. 2024 (Llama 3).
    """

    global_batch: Whole = 1
    sequence: Whole = 1
    micro_batch: Whole = 1
    sequence_parallel: bool = False
    zero: Literal[0, 1, 2, 3] = 0
    reshard: bool = True
    virtual_stages: Whole = 1
    recompute: Literal["none", "selective", "full"] = "none"
    dtype: Dtype = "bfloat16"
    gradient_dtype: Dtype = "bfloat16"
    bucket: Annotated[int, PlainValidator(_bucket)] = BUCKET_BYTES
    context_kind: Literal["ring", "all_gather"] = "ring"


class LayoutKeys(StrictModel):
    """Sizes of axes and their order; dp that is missing fills the machine."""

    tp: Whole = 1
    cp: Whole = 1
    ep: Whole = 1
    dp: Whole = 1
    pp: Whole = 1
    etp: Whole = 1
    order: str = ""

    def on(self, ranks: int) -> Layout:
        """Return the layout of so many ranks; UsageError where the sizes do not make them."""
        return make_layout({key: getattr(self, key) for key in self.model_fields_set}, ranks)


class LayerShare(NamedTuple):
    """Parameters of one layer on one rank.

    dense: outside the experts, replicated only over data and context parallel ranks and, of them, ``whole``
    on every tensor parallel rank. experts: those of the rank's experts.
    """

    dense: int
    whole: int
    experts: int


@dataclass(frozen=True)
class Strategy:
    """A model, the settings of a training step and the layout; UsageError for what does not go together."""

    shape: ModelShape
    settings: StepSettings
    layout: Layout

    def __post_init__(self) -> None:
        shape, settings, layout = self.shape, self.settings, self.layout
        tp, turn = layout.tp, settings.micro_batch * layout.dp
        stages = layout.pp * settings.virtual_stages
        # Micro-batches of an interleaved pipeline go round in turns of as many as there are stages.
        turn *= layout.pp if settings.virtual_stages > 1 else 1
        split = layout.cp * (tp if settings.sequence_parallel else 1)
        shared, kv_and_tp = shape.shared_experts * shape.expert_ffn_hidden, (shape.kv_heads, tp)
        for what, number, by, parts in (
            (
                "global_batch",
                settings.global_batch,
                "micro_batch x dp (x pp, interleaved)",
                turn,
            ),
            ("sequence", settings.sequence, "the ranks that split it,", split),
            ("heads", shape.heads, "tp", tp),
            ("the larger of kv_heads and tp,", max(kv_and_tp), "the smaller,", min(kv_and_tp)),
            ("ffn_hidden", shape.ffn_hidden, "tp", tp),
            ("experts", shape.experts, "ep", layout.ep),
            ("expert_ffn_hidden", shape.expert_ffn_hidden, "etp", layout.expert_tp),
            ("shared experts' width", shared, "tp", tp),
        ):
            if number % parts:
                raise UsageError(
                    f"{what} {number} does not divide by {by} {parts}; choose numbers that do"
                )
        for wrong, problem in (
            (stages > shape.layers, f"{shape.layers} layers for {stages} stages; choose fewer"),
            (stages > layout.pp == 1, "virtual_stages of one stage; choose pp from 2 on"),
            (
                (layout.ep > 1 or layout.expert_tp != tp) and not shape.experts,
                "the model has no experts; leave ep and etp out",
            ),
            (
                shape.experts and tp > 1 and not settings.sequence_parallel,
                "experts with tp > 1 and without sequence parallelism would see every token tp times; write "
                "sequence_parallel: true",
            ),
        ):
            if wrong:
                raise UsageError(problem)

    @property
    def micro_batches(self) -> int:
        """Of each data parallel rank in one step."""
        return self.settings.global_batch // (self.settings.micro_batch * self.layout.dp)

    @property
    def rank_tokens(self) -> int:
        """Tokens of a micro-batch that one context parallel rank has."""
        return self.settings.micro_batch * self.settings.sequence // self.layout.cp

    @property
    def again(self) -> int:
        """1 where the backward pass computes whole layers a second time, with their communication."""
        return int(self.settings.recompute == "full")

    @property
    def item_bytes(self) -> int:
        """Bytes of a weight or an activation."""
        return ITEM_BYTES[self.settings.dtype]

    @property
    def gradient_bytes(self) -> int:
        """Bytes of a gradient."""
        return ITEM_BYTES[self.settings.gradient_dtype]

    @property
    def stream_bytes(self) -> int:
        """Bytes of one micro-batch between two layers, on a context parallel rank: b s h / cp."""
        return self.rank_tokens * self.shape.hidden * self.item_bytes

    @property
    def layers(self) -> int:
        """Layers of the fullest stage."""
        return -(-self.shape.layers // self.layout.pp)

    @property
    def dense_layers(self) -> int:
        """Layers without experts of the fullest stage; in a model with experts the first has most."""
        return min(self.layers, self.shape.dense_layers if self.shape.experts else self.layers)

    @property
    def moe_layers(self) -> int:
        """Layers with experts of the fullest stage."""
        with_experts = self.shape.layers - self.shape.dense_layers
        return min(self.layers, with_experts) if self.shape.experts else 0

    @property
    def expert_bytes(self) -> int:
        """Bytes of a micro-batch that one rank sends to experts, each token as often as experts it visits."""
        rows = self.rank_tokens * self.shape.top_k // self.layout.tp
        return rows * self.shape.hidden * self.item_bytes

    def stage(self, name: str) -> str:
        """Return the name of a stage; with one stage everything is on it."""
        return name if self.layout.pp > 1 else EVERY

    def layer_shares(self) -> tuple[LayerShare, LayerShare]:
        """(of a layer without experts, of one with) on one rank.

        Matrices are split among tensor parallel ranks as in Megatron-LM (Shoeybi et al. 2019): queries, keys,
        values and the first matrices of a feed-forward part by columns, the matrices after them by rows.
        Norms, biases added after a sum over ranks, routers and what goes down into a latent space are on every
        rank. Keys and values with fewer heads than ranks are on several.
        """
        shape, hidden, tp = self.shape, self.shape.hidden, self.layout.tp
        if shape.latent:
            down = hidden * (shape.query_rank + shape.kv_rank + shape.rope_head_size)
            up = shape.query_rank * shape.query_width + shape.attention_width * hidden
            up += shape.kv_rank * shape.heads * (shape.head_size + shape.value_head_size)
            split, whole = up // tp, down + shape.query_rank + shape.kv_rank
        else:
            kv_width = 2 * max(shape.kv_heads // tp, 1) * shape.head_size
            split = hidden * ((shape.query_width + shape.attention_width) // tp + kv_width)
            split += shape.biases * (shape.query_width // tp + kv_width)
            whole = shape.biases * hidden
        whole += 2 * shape.norm_parameters
        ffn, rest = shape.ffn_parameters(shape.ffn_hidden)
        dense = LayerShare(split + whole + ffn // tp + rest, whole + rest, 0)
        ffn, rest = shape.ffn_parameters(shape.expert_ffn_hidden)
        whole += shape.experts * (hidden + shape.router_bias) + shape.shared_experts * rest
        shared = shape.shared_experts * ffn // tp
        experts = shape.experts // self.layout.ep * (ffn // self.layout.expert_tp + rest)
        return dense, LayerShare(split + whole + shared, whole, experts)

    def portions(self) -> Iterator[tuple[str, int, int]]:
        """(stage, parameters of a rank outside experts, how many such)."""
        shape, (dense, mixed) = self.shape, self.layer_shares()
        # The vocabulary is padded to a multiple of tp.
        embedding = -(-shape.vocabulary // self.layout.tp) * shape.hidden
        yield self.stage(FIRST), embedding + shape.positions * shape.hidden, 1
        yield self.leading, dense.dense, self.dense_layers
        yield EVERY, mixed.dense, self.moe_layers
        # A head that is the embedding is held again by a last stage of its own.
        head = 0 if shape.tied_embeddings and self.layout.pp == 1 else embedding
        yield self.stage(LAST), head + shape.norm_parameters, 1

    @property
    def leading(self) -> str:
        """The stage that has most layers without experts."""
        return self.stage(FIRST) if self.shape.experts else EVERY


def parameters(shape: ModelShape) -> int:
    """Return all parameters of a model."""
    whole = Strategy(shape, StepSettings(), Layout())
    experts = whole.moe_layers * whole.layer_shares()[1].experts
    return experts + sum(size * count for _, size, count in whole.portions())
