"""Counts of parameters against those that the makers publish."""

from __future__ import annotations

import pytest

from ccbench.errors import UsageError
from ccbench.plan.shape import named_shape, named_shapes
from ccbench.plan.strategy import parameters

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

# Billions of parameters as the papers round them: Narayanan et al. 2021, table 1; Korthikanti et al. 2022,
# table 3; DeepSeek-AI 2024, abstract.
ROUNDED = {
    "megatron-22b": (22, 0),
    "gpt3-175b": (174.6, 1),
    "megatron-530b": (529.6, 1),
    "megatron-1t": (1008.0, 1),
    "deepseek-v3": (671, 0),
}


@pytest.mark.parametrize("name", EXACT)
def test_a_shape_counts_as_many_parameters_as_its_makers_stored(name: str) -> None:
    assert parameters(named_shape(name)) == EXACT[name]


def test_every_named_shape_is_checked_and_has_a_source() -> None:
    assert set(named_shapes()) == {*EXACT, *ROUNDED}
    assert all(shape.source and shape.name == name for name, shape in named_shapes().items())


def test_an_unknown_name_is_refused_with_those_that_exist() -> None:
    with pytest.raises(UsageError, match="gpt3-175b"):
        named_shape("gpt-9")


@pytest.mark.parametrize("name", ROUNDED)
def test_a_shape_counts_as_many_parameters_as_its_paper_rounds_to(name: str) -> None:
    billions, digits = ROUNDED[name]
    assert round(parameters(named_shape(name)) / 1e9, digits) == billions
