"""Counts of parameters against those that the makers publish."""

from __future__ import annotations

import pytest

from ccbench.errors import UsageError
from ccbench.plan.shape import make_shape, named_shape, named_shapes

# "total_size" of model.safetensors.index.json over two bytes a number, of each model at huggingface.co.
EXACT = {
    "gpt2-xl": 1_557_611_200,
    "llama-2-7b": 6_738_415_616,
    "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "llama-3-405b": 405_853_388_800,
    "mixtral-8x7b": 46_702_792_704,
    "mixtral-8x22b": 140_620_634_112,
}

# Billions of parameters, and of those that a token meets, as the papers round them: Narayanan et al. 2021,
# table 1; Korthikanti et al. 2022, table 3; DeepSeek-AI 2024, abstract (looking up a row is no product);
# Jiang et al. 2024; mistral.ai/news/mixtral-8x22b.
ROUNDED = {
    "megatron-22b": (22, 22, 0),
    "gpt3-175b": (174.6, 174.6, 1),
    "megatron-530b": (529.6, 529.6, 1),
    "megatron-1t": (1008.0, 1008.0, 1),
    "deepseek-v3": (671, 37, 0),
    "mixtral-8x7b": (47, 13, 0),
    "mixtral-8x22b": (141, 39, 0),
}


@pytest.mark.parametrize("name", EXACT)
def test_a_shape_counts_as_many_parameters_as_its_makers_stored(name: str) -> None:
    assert named_shape(name).parameters == EXACT[name]


@pytest.mark.parametrize("name", ROUNDED)
def test_a_shape_counts_as_many_parameters_as_its_paper_rounds_to(name: str) -> None:
    billions, active, digits = ROUNDED[name]
    shape = named_shape(name)
    assert round(shape.parameters / 1e9, digits) == billions
    met = shape.active_parameters - (shape.embedding_parameters if name == "deepseek-v3" else 0)
    assert round(met / 1e9, digits) == active


def test_every_named_shape_is_checked_and_has_a_source() -> None:
    assert set(named_shapes()) == {*EXACT, *ROUNDED}
    assert all(shape.source and shape.name == name for name, shape in named_shapes().items())


@pytest.mark.parametrize("name", ["gpt3-175b", "megatron-530b", "megatron-1t"])
def test_a_gpt_has_the_parameters_of_the_papers_formula_and_a_last_norm(name: str) -> None:
    """Narayanan et al. 2021, equation 2: 12 l h^2 (1 + 13 / 12h + (V + s) / 12lh)."""
    shape = named_shape(name)
    layers, hidden = shape.layers, shape.hidden
    formula = (
        12 * layers * hidden**2 + 13 * layers * hidden + (shape.vocabulary + 2048) * hidden
    )
    assert shape.parameters == formula + 2 * hidden


def test_what_follows_from_the_rest_may_be_left_out() -> None:
    shape = make_shape({"layers": 2, "hidden": 64, "heads": 4, "vocabulary": 100})
    assert (shape.kv_heads, shape.head_size, shape.ffn_hidden) == (4, 16, 256)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layerz": 2}, "'layerz' is no key"),
        ({"layers": "two"}, "layers is 'two'; write a whole number"),
        ({"layers": True}, "layers is 'True'; write a whole number"),
        ({"gated": 1}, "gated is '1'; write true or false"),
        ({"layers": 0}, "layers is 0; write a number from 1 on"),
        ({"heads": 5}, "hidden 64 does not divide into 5 heads"),
        ({"kv_heads": 3}, "choose kv_heads that divides heads"),
        ({"norm": "batch"}, "write one of layer, rms"),
        ({"experts": 8}, "write top_k from 1 to 8"),
        ({"top_k": 2}, "without experts"),
        ({"dense_layers": 3}, "dense_layers is 3; write 0 to 2"),
        ({"kv_rank": 8}, "write all four or none"),
        ({"vocabulary": None}, "vocabulary is missing"),
    ],
)
def test_a_mistake_in_a_shape_is_told_with_its_cure(
    changes: dict[str, object], message: str
) -> None:
    values = {"layers": 2, "hidden": 64, "heads": 4, "vocabulary": 100, **changes}
    with pytest.raises(UsageError, match="shape: ") as error:
        make_shape({key: value for key, value in values.items() if value is not None})
    assert message in str(error.value)


def test_an_unknown_name_is_told_the_known_ones() -> None:
    with pytest.raises(UsageError, match="gpt3-175b"):
        named_shape("gpt-9")
