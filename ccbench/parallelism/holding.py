"""What one rank holds: its share of the parameters of its pipeline stage, by who else holds the same.

Matrices are split among tensor parallel ranks as in Megatron-LM (Shoeybi et al. 2019): queries, keys, values
and the first matrices of a feed-forward part by columns, the matrices after them by rows, embedding and head
by the vocabulary. Norms, biases added after a sum over ranks, routers, position embeddings and what goes
down into a latent space are on every rank. Keys and values with fewer heads than ranks are on several.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from ccbench.parallelism.shape import ModelShape
from ccbench.parallelism.strategy import Strategy

ONLY, FIRST, MIDDLE, LAST = STAGES = ("only", "first", "middle", "last")
"""Which pipeline stage: the only one, or the first, one in the middle, the last."""


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
        return self.around + self.dense_layers * self.layer.dense + self.moe_layers * self.moe_layer.dense

    @property
    def experts(self) -> int:
        """Parameters of experts."""
        return self.moe_layers * self.moe_layer.experts

    @property
    def replicated(self) -> int:
        """Parameters that every tensor parallel rank holds and has gradients of for its tokens alone."""
        return self.whole + self.dense_layers * self.layer.whole + self.moe_layers * self.moe_layer.whole

    @property
    def parameters(self) -> int:
        """All parameters of the rank."""
        return self.dense + self.experts


def stage_kinds(strategy: Strategy) -> tuple[str, ...]:
    """The kinds of stages that the pipeline has."""
    return (ONLY,) if strategy.layout.pp == 1 else (FIRST, LAST) if strategy.layout.pp == 2 else STAGES[1:]


def kind_of(strategy: Strategy, stage: int) -> str:
    """The kind of a stage by number."""
    if strategy.layout.pp == 1:
        return ONLY
    return FIRST if stage == 0 else LAST if stage == strategy.layout.pp - 1 else MIDDLE


@lru_cache(maxsize=4096)
def layer_shares(shape: ModelShape, tp: int, ep: int, etp: int) -> tuple[LayerShare, LayerShare]:
    """(of a layer without experts, of one with) on one rank."""
    split, whole = _attention(shape, tp)
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


def _attention(shape: ModelShape, tp: int) -> tuple[int, int]:
    """Parameters of attention on one rank: (split, whole)."""
    bias_split, bias_whole = shape.attention_bias_parameters
    if shape.latent:
        down = shape.hidden * (shape.query_rank + shape.kv_rank + shape.rope_head_size)
        return (shape.attention_matrix_parameters - down) // tp, down + shape.inner_norm_parameters
    out = shape.hidden * (shape.query_width + shape.attention_width) // tp
    kv_width = 2 * max(shape.kv_heads // tp, 1) * shape.head_size
    biases = shape.query_width // tp + kv_width if bias_split else 0
    return out + shape.hidden * kv_width + biases, bias_whole


def embedding_share(shape: ModelShape, tp: int) -> int:
    """Parameters of token embedding or head on one rank; the vocabulary is padded to a multiple of tp."""
    return -(-shape.vocabulary // tp) * shape.hidden


def holdings(shape: ModelShape, strategy: Strategy) -> tuple[Holding, ...]:
    """What a rank of each kind of stage holds; of stages in the middle, one that holds most."""
    layout = strategy.layout
    layer, moe_layer = layer_shares(shape, layout.tp, layout.ep, layout.expert_tp)
    layers = [sum(parts) for parts in strategy.stage_layers(shape)]
    moe_layers = strategy.stage_moe_layers(shape)
    embedding = embedding_share(shape, layout.tp)
    found = []
    for kind in stage_kinds(strategy):
        stage = _stage(kind, layers, moe_layers)
        starts, ends = kind in (ONLY, FIRST), kind in (ONLY, LAST)
        shared = shape.tied_embeddings and kind in (FIRST, LAST)
        heads = ends and (shared or not shape.tied_embeddings)
        around = (starts + heads) * embedding
        around += starts * shape.positions * shape.hidden + ends * shape.norm_parameters
        found.append(
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
    return tuple(found)


def _stage(kind: str, layers: list[int], moe_layers: tuple[int, ...]) -> int:
    if kind in (ONLY, FIRST):
        return 0
    if kind == LAST:
        return len(layers) - 1
    return max(range(1, len(layers) - 1), key=lambda stage: (moe_layers[stage], layers[stage]))
