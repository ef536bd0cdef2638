"""Sizes of the parallelism suites are what the shapes in their comments make of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from ccbench.suite.model import shipped_suites

SUITES = ("dp-gradients", "tp-layer", "pp-pipeline", "ep-moe", "long-sequence")
SHAPES = Path(__file__).parents[2] / "ccbench" / "plan" / "shapes.yaml"

PUBLISHED = {
    "layers",
    "hidden",
    "heads",
    "kv_heads",
    "head_size",
    "ffn_hidden",
    "vocabulary",
    "experts",
    "top_k",
}
"""Words of a shape that a model's publication states; the others are choices of a job."""


@dataclass(frozen=True)
class Stated:
    """A size of a suite: its bytes, the formula beside it, and the shape above it."""

    size_bytes: int
    formula: str
    model: str
    shape: dict[str, int]


def stated(name: str) -> Iterator[Stated]:
    model, shape = "", dict[str, int]()
    for line in shipped_suites()[name].read_text(encoding="utf-8").splitlines():
        if found := re.fullmatch(r" *# Shape ([a-z0-9-]+): (.*)", line):
            model = found.group(1)
            words = (pair.split() for pair in found.group(2).split(", "))
            shape = {word: int(number) for word, number in words}
        elif found := re.fullmatch(r" *- (\d+) B +# .*: (.*)", line):
            yield Stated(int(found.group(1)), found.group(2), model, shape)


@pytest.mark.parametrize("name", SUITES)
def test_the_shapes_are_those_of_published_models(name: str) -> None:
    known = yaml.safe_load(SHAPES.read_text(encoding="utf-8"))
    named = {value.model for value in stated(name)}
    assert "small" in named
    assert len(named) > 1
    for one in stated(name):
        published = known.get(one.model, {})
        assert published or one.model == "small"
        derived = {"head_size": published["hidden"] // published["heads"]} if published else {}
        for word in PUBLISHED & set(one.shape) if published else ():
            assert one.shape[word] == {**derived, **published}[word], (one.model, word)
