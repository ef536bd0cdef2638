"""Model shapes: the numbers of a transformer that decide what its ranks communicate.

A shape counts its parameters exactly, biases and norms included, so that it can be tested against the counts
that its makers publish. Shapes with a name and a source are in shapes.yaml.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import PlainValidator, model_validator

from ccbench.documents import read_installed
from ccbench.errors import UsageError
from ccbench.suite.model import StrictModel
from ccbench.suite.readers import MisfitError, whole_number

NORMS = {"layer": 2, "rms": 1}
"""Vectors of a norm: LayerNorm has a weight and a bias, RMSNorm a weight."""

MOST_LAYERS = 10_000
"""Published models have up to some hundreds."""


def whole(least: int, most: int = 2**30) -> PlainValidator:
    """Read a whole number of a file."""
    return PlainValidator(lambda value: whole_number(value, least, most, "number"))


Width = Annotated[int, whole(1)]
Some = Annotated[int, whole(0)]


class ModelShape(StrictModel):
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

    name: str = "a model"
    layers: Annotated[int, whole(1, MOST_LAYERS)]
    hidden: Width
    heads: Width
    kv_heads: Width = 0
    head_size: Width = 0
    ffn_hidden: Width = 0
    vocabulary: Width
    gated: bool = False
    tied_embeddings: bool = False
    positions: Some = 0
    biases: bool = False
    norm: Literal["layer", "rms"] = "rms"
    experts: Some = 0
    top_k: Some = 0
    expert_ffn_hidden: Some = 0
    dense_layers: Some = 0
    shared_experts: Some = 0
    router_bias: bool = False
    query_rank: Some = 0
    kv_rank: Some = 0
    rope_head_size: Some = 0
    value_head_size: Some = 0
    source: str = ""

    @model_validator(mode="after")
    def _goes_together(self) -> ModelShape:
        experts, top_k, width = self.experts, self.top_k, self.expert_ffn_hidden
        latent = (self.query_rank, self.kv_rank, self.rope_head_size, self.value_head_size)
        for wrong, problem in (
            (not self.head_size, "heads do not divide hidden; write head_size"),
            (self.heads % self.kv_heads, "kv_heads do not divide heads; choose some that do"),
            (
                bool(experts or top_k or width) != (0 < top_k <= experts and width > 0),
                "experts go with a top_k of at most as many, and with expert_ffn_hidden",
            ),
            (self.shared_experts and not experts, "shared_experts without experts; write both"),
            (self.dense_layers > self.layers, "dense_layers are more than layers; write fewer"),
            (
                any(latent) and not all(latent),
                "latent attention needs query_rank, kv_rank, rope_head_size and value_head_size; write all "
                "four or none",
            ),
        ):
            if wrong:
                raise MisfitError(problem)
        return self

    @property
    def latent(self) -> bool:
        """True if attention is multi-head latent attention."""
        return self.kv_rank > 0

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
    def norm_parameters(self) -> int:
        """Parameters of one norm over the stream."""
        return NORMS[self.norm] * self.hidden

    def ffn_parameters(self, inner: int) -> tuple[int, int]:
        """(split among tensor parallel ranks, on each of them) of a feed-forward part of such inner width."""
        matrices = 3 if self.gated else 2
        split = matrices * self.hidden * inner
        return (split + (matrices - 1) * inner, self.hidden) if self.biases else (split, 0)


def with_defaults(values: Mapping[str, Any]) -> dict[str, Any]:
    """Add what follows from the rest: kv_heads are heads, head_size hidden / heads, ffn_hidden 4 x hidden."""
    hidden, heads = values.get("hidden"), values.get("heads")
    if not (isinstance(hidden, int) and isinstance(heads, int) and heads > 0):
        return dict(values)
    size = {} if hidden % heads else {"head_size": hidden // heads}
    return {"kv_heads": heads, "ffn_hidden": 4 * hidden, **size, **values}


@lru_cache(maxsize=1)
def named_shapes() -> dict[str, ModelShape]:
    """The shapes of shapes.yaml by name, each with its source."""
    plain = read_installed(Path(__file__).with_name("shapes.yaml"))
    return {
        name: ModelShape(**with_defaults({"name": name, **values}))
        for name, values in plain.items()
    }


def named_shape(name: str) -> ModelShape:
    """Return a shape by name; UsageError lists the names."""
    shape = named_shapes().get(name.strip().lower())
    if shape is None:
        raise UsageError(
            f"{name[:80]!r} is not known; one of {', '.join(sorted(named_shapes()))}"
        )
    return shape
