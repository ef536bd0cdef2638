"""Sizes of the parallelism suites are what the shapes in their comments make of them."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from ccbench.suite.expansion import expand
from ccbench.suite.model import load_suite, shipped_suites

from .offers import context

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

_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
}


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


def computed(formula: str, shape: dict[str, int]) -> int:
    """The formula with the shape's numbers; a division must come out even."""

    def of(node: ast.AST) -> int:
        if isinstance(node, ast.BinOp):
            left, right = of(node.left), of(node.right)
            assert not isinstance(node.op, ast.Div) or left % right == 0
            return _OPERATORS[type(node.op)](left, right)
        if isinstance(node, ast.Constant):
            assert isinstance(node.value, int)
            return node.value
        assert isinstance(node, ast.Name)
        return shape[node.id]

    return of(ast.parse(formula, mode="eval").body)


@pytest.mark.parametrize("name", SUITES)
def test_every_size_is_what_its_formula_makes_of_the_shape_above_it(name: str) -> None:
    found = list(stated(name))
    for one in found:
        assert computed(one.formula, one.shape) == one.size_bytes, one
    document = yaml.safe_load(shipped_suites()[name].read_text(encoding="utf-8"))
    assert len(found) == sum(len(sweep["size"]) for sweep in document["sweep"])


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


@pytest.mark.parametrize("name", SUITES)
def test_bytes_of_a_number_are_those_of_the_dtype(name: str) -> None:
    shapes = list(stated(name))
    (small,) = {shape.shape["bytes"] for shape in shapes if shape.model == "small"}
    assert {case.dtype for case in expand(load_suite(name), context())} == {"float32"}
    assert small == 4
    large = {
        case.dtype for case in expand(load_suite(name), context(backends=("nccl",), ranks=8))
    }
    assert {shape.shape["bytes"] for shape in shapes} == {
        4 if dtype == "float32" else 2 for dtype in large
    } | {4}


@pytest.mark.parametrize("name", [*SUITES, "overlap"])
def test_it_runs_on_four_processors_in_about_a_minute_of_budgets(name: str) -> None:
    suite = load_suite(name)
    cases = expand(suite, context())
    assert len(cases) * (suite.sampling.warmup_seconds + suite.sampling.budget_seconds) < 12


@pytest.mark.parametrize("name", SUITES)
@pytest.mark.parametrize("backend", ["cpu", "nccl"])
def test_sizes_are_whole_on_the_ranks_that_a_suite_is_for(name: str, backend: str) -> None:
    ranks = 4 if backend == "cpu" else 8
    sizes = {value.size_bytes for value in stated(name)}
    cases = expand(load_suite(name), context(backends=(backend,), ranks=ranks))
    assert {case.size_bytes for case in cases} <= sizes


def test_sharing_is_measured_in_every_suite_that_has_groups() -> None:
    for name in ("dp-gradients", "tp-layer", "pp-pipeline", "long-sequence"):
        grouped = [case for case in expand(load_suite(name), context()) if case.groups]
        assert {case.active_group for case in grouped} == {-1, 0}, name


def test_experts_are_asked_evenly_and_unevenly() -> None:
    cases = expand(load_suite("ep-moe"), context())
    traffics = {
        case.traffic.split(":")[0][:2] for case in cases if case.collective == "all_to_all_v"
    }
    assert traffics == {"", "zi", "ho", "[["}
