"""Model shapes: the numbers of a transformer that decide how much is computed, held and communicated.

A shape counts its parameters exactly, biases and norms included, so that it can be tested against the counts
that its makers publish. Shapes with a name and a source are in shapes.yaml.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from ccbench.documents import read_installed
from ccbench.errors import UsageError

NORMS = {"layer": 2, "rms": 1}
"""Vectors of a norm: LayerNorm has a weight and a bias, RMSNorm a weight."""

MOST_LAYERS = 10_000
"""Layers are followed one by one; published models have up to some hundreds."""

_AT_LEAST_ONE = (
    "layers",
    "hidden",
    "heads",
    "kv_heads",
    "head_size",
    "ffn_hidden",
    "vocabulary",
)
_AT_LEAST_NONE = ("positions", "experts", "top_k", "expert_ffn_hidden", "shared_experts")


@dataclass(frozen=True)
class ModelShape:
    """A decoder: ``layers`` blocks of attention and a feed-forward part, an embedding before, a head after.

    hidden: width of the stream between layers. heads, kv_heads: query heads, and heads of keys and values
    (fewer in grouped-query attention). head_size: width of a head. ffn_hidden: inner width of a dense
    layer's feed-forward part. gated: three matrices (SwiGLU) instead of two. vocabulary: rows of the
    embedding as the makers publish it. positions: rows of a learned position embedding, 0 where there is
    none. tied_embeddings: the head is the embedding. biases: every linear map but head and router has one.
    norm: ``layer`` or ``rms``; two for each layer and one at the end.

    experts: of each mixture-of-experts layer, 0 for a dense model; a token visits ``top_k`` of them, each
    with inner width ``expert_ffn_hidden``, and all ``shared_experts``. dense_layers: leading layers without
    experts. router_bias: one number for each expert beside the router's matrix (DeepSeek-V3).

    query_rank, kv_rank, rope_head_size, value_head_size: of multi-head latent attention (DeepSeek-V2, 2024):
    ``head_size`` is then the part of a query without position; all 0 for ordinary attention.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    ffn_hidden: int
    vocabulary: int
    gated: bool = False
    tied_embeddings: bool = False
    positions: int = 0
    biases: bool = False
    norm: str = "rms"
    experts: int = 0
    top_k: int = 0
    expert_ffn_hidden: int = 0
    dense_layers: int = 0
    shared_experts: int = 0
    router_bias: bool = False
    query_rank: int = 0
    kv_rank: int = 0
    rope_head_size: int = 0
    value_head_size: int = 0
    source: str = ""

    def __post_init__(self) -> None:
        for name in _AT_LEAST_ONE:
            if getattr(self, name) < 1:
                raise UsageError(
                    f"shape: {name} is {getattr(self, name)}; write a number from 1 on"
                )
        for name in _AT_LEAST_NONE:
            if getattr(self, name) < 0:
                raise UsageError(
                    f"shape: {name} is {getattr(self, name)}; write 0 for none, or more"
                )
        if self.layers > MOST_LAYERS:
            raise UsageError(f"shape: layers is {self.layers}; write at most {MOST_LAYERS}")
        if self.norm not in NORMS:
            raise UsageError(
                f"shape: norm {self.norm!r} is none; write one of {', '.join(NORMS)}"
            )
        if self.heads % self.kv_heads:
            raise UsageError(
                f"shape: {self.heads} heads do not divide into {self.kv_heads} heads of keys and values; "
                "choose kv_heads that divides heads"
            )
        if self.experts and not (0 < self.top_k <= self.experts and self.expert_ffn_hidden > 0):
            raise UsageError(
                f"shape: of {self.experts} experts a token visits top_k = {self.top_k}, each "
                f"{self.expert_ffn_hidden} wide; write top_k from 1 to {self.experts} and expert_ffn_hidden"
            )
        if not self.experts and (self.top_k or self.expert_ffn_hidden or self.shared_experts):
            raise UsageError(
                "shape: top_k, expert_ffn_hidden or shared_experts without experts; write experts"
            )
        if not 0 <= self.dense_layers <= self.layers:
            raise UsageError(
                f"shape: dense_layers is {self.dense_layers}; write 0 to {self.layers}"
            )
        latent = (self.query_rank, self.kv_rank, self.rope_head_size, self.value_head_size)
        if any(latent) and not all(value > 0 for value in latent):
            raise UsageError(
                "shape: latent attention needs query_rank, kv_rank, rope_head_size and value_head_size, "
                f"but has {', '.join(map(str, latent))}; write all four or none"
            )

    @property
    def latent(self) -> bool:
        """True if attention is multi-head latent attention."""
        return self.kv_rank > 0

    @property
    def moe_layers(self) -> int:
        """Layers with experts."""
        return self.layers - self.dense_layers if self.experts else 0

    @property
    def query_width(self) -> int:
        """All query heads side by side."""
        return self.heads * (self.head_size + self.rope_head_size)

    @property
    def kv_width(self) -> int:
        """Keys and values of all their heads side by side, as attention works on them."""
        if self.latent:
            return self.heads * (self.head_size + self.rope_head_size + self.value_head_size)
        return 2 * self.kv_heads * self.head_size

    @property
    def attention_width(self) -> int:
        """Width of what attention gives to its output matrix: values of all query heads."""
        return self.heads * (self.value_head_size or self.head_size)

    @property
    def ffn_matrices(self) -> int:
        """Matrices of a feed-forward part."""
        return 3 if self.gated else 2

    @property
    def norm_parameters(self) -> int:
        """Parameters of one norm over the stream."""
        return NORMS[self.norm] * self.hidden

    @cached_property
    def attention_matrix_parameters(self) -> int:
        """Weights of one layer's attention, without biases and inner norms: what its matrix products read."""
        if self.latent:
            down = self.hidden * (self.query_rank + self.kv_rank + self.rope_head_size)
            up = self.query_rank * self.query_width + self.kv_rank * self.heads * (
                self.head_size + self.value_head_size
            )
            return down + up + self.attention_width * self.hidden
        return self.hidden * (self.query_width + self.kv_width + self.attention_width)

    @property
    def attention_bias_parameters(self) -> tuple[int, int]:
        """(biases split with their matrix among tensor parallel ranks, biases that each rank holds whole)."""
        if not self.biases:
            return 0, 0
        return self.query_width + self.kv_width, self.hidden

    @property
    def inner_norm_parameters(self) -> int:
        """Norms inside latent attention."""
        return self.query_rank + self.kv_rank if self.latent else 0

    def ffn_matrix_parameters(self, inner: int) -> int:
        """Weights of a feed-forward part of inner width ``inner``, without biases."""
        return self.ffn_matrices * self.hidden * inner

    def ffn_bias_parameters(self, inner: int) -> tuple[int, int]:
        """Return the like of attention_bias_parameters for a feed-forward part."""
        return ((self.ffn_matrices - 1) * inner, self.hidden) if self.biases else (0, 0)

    @cached_property
    def attention_parameters(self) -> int:
        """Return all parameters of one layer's attention."""
        return (
            self.attention_matrix_parameters
            + sum(self.attention_bias_parameters)
            + self.inner_norm_parameters
        )

    def ffn_parameters(self, inner: int) -> int:
        """Return all parameters of a feed-forward part."""
        return self.ffn_matrix_parameters(inner) + sum(self.ffn_bias_parameters(inner))

    @property
    def expert_parameters(self) -> int:
        """Of one expert."""
        return self.ffn_parameters(self.expert_ffn_hidden) if self.experts else 0

    @property
    def router_parameters(self) -> int:
        """Of one layer's router."""
        return self.experts * (self.hidden + self.router_bias)

    @property
    def dense_layer_parameters(self) -> int:
        """Of a layer without experts."""
        return (
            self.attention_parameters
            + self.ffn_parameters(self.ffn_hidden)
            + 2 * self.norm_parameters
        )

    @property
    def moe_layer_parameters(self) -> int:
        """Of a layer with experts, all of them."""
        experts = (self.experts + self.shared_experts) * self.expert_parameters
        return (
            self.attention_parameters
            + experts
            + self.router_parameters
            + 2 * self.norm_parameters
        )

    @property
    def active_moe_layer_parameters(self) -> int:
        """Of a layer with experts, those that one token meets."""
        experts = (self.top_k + self.shared_experts) * self.expert_parameters
        return (
            self.attention_parameters
            + experts
            + self.router_parameters
            + 2 * self.norm_parameters
        )

    @property
    def embedding_parameters(self) -> int:
        """Of tokens and positions."""
        return (self.vocabulary + self.positions) * self.hidden

    @property
    def head_parameters(self) -> int:
        """Of the head, 0 where it is the embedding."""
        return 0 if self.tied_embeddings else self.vocabulary * self.hidden

    @cached_property
    def parameters(self) -> int:
        """All of them."""
        return self._around + self._dense + self.moe_layers * self.moe_layer_parameters

    @cached_property
    def active_parameters(self) -> int:
        """Those that one token meets, embedding and head included."""
        return self._around + self._dense + self.moe_layers * self.active_moe_layer_parameters

    @property
    def _around(self) -> int:
        return self.embedding_parameters + self.head_parameters + self.norm_parameters

    @property
    def _dense(self) -> int:
        return (self.layers - self.moe_layers) * self.dense_layer_parameters


@lru_cache(maxsize=1)
def named_shapes() -> dict[str, ModelShape]:
    """The shapes of shapes.yaml by name, each with its source."""
    plain = read_installed(Path(__file__).with_name("shapes.yaml"))
    return {name: make_shape({"name": name, **values}) for name, values in plain.items()}


def named_shape(name: str) -> ModelShape:
    """A shape by name; UsageError lists the names."""
    shape = named_shapes().get(name.strip().lower())
    if shape is None:
        raise UsageError(
            f"shape: {name[:80]!r} is not known; one of {', '.join(sorted(named_shapes()))}"
        )
    return shape


def make_shape(values: dict[str, Any]) -> ModelShape:
    """A shape from a mapping such as a file has; what follows from the rest may be left out.

    kv_heads: heads; head_size: hidden / heads; ffn_hidden: 4 x hidden. UsageError names an unknown key or a
    value of the wrong type.
    """
    kinds = {field.name: str(field.type) for field in fields(ModelShape)}
    unknown = sorted(set(values) - set(kinds))
    if unknown:
        raise UsageError(f"shape: {unknown[0]!r} is no key; one of {', '.join(kinds)}")
    for key, value in values.items():
        if type(value).__name__ != kinds[key]:
            raise UsageError(f"shape: {key} is {str(value)[:40]!r}; write {_WORDS[kinds[key]]}")
    missing = [key for key in ("layers", "hidden", "heads", "vocabulary") if key not in values]
    if missing:
        raise UsageError(
            f"shape: {missing[0]} is missing; write layers, hidden, heads and vocabulary"
        )
    hidden, heads = values["hidden"], values["heads"]
    if "head_size" not in values and heads > 0 and hidden % heads:
        raise UsageError(
            f"shape: hidden {hidden} does not divide into {heads} heads; write head_size"
        )
    follows = {
        "kv_heads": heads,
        "head_size": max(hidden // max(heads, 1), 1),
        "ffn_hidden": 4 * hidden,
        "name": "",
    }
    return ModelShape(**{**follows, **values})


_WORDS = {"int": "a whole number", "bool": "true or false", "str": "text"}
