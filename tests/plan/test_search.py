"""The search: complete within its bounds, only of what fits, the fastest first."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ccbench.errors import UsageError
from ccbench.model.cluster import open_cluster
from ccbench.plan.computing import Efficiency
from ccbench.plan.memory import largest_memory, named_device
from ccbench.plan.planner import Planner, layouts_of, least_seconds, name_of, search, strategies
from ccbench.plan.shape import ModelShape, make_shape, named_shape

SHAPE = make_shape({"layers": 8, "hidden": 2048, "heads": 16, "vocabulary": 32000})
SETTINGS: dict[str, Any] = {"global_batch": 32, "sequence": 1024}


def planner(shape: ModelShape = SHAPE, nodes: int = 2) -> Planner:
    """On nodes of eight H100."""
    network = "ib-ndr-400x8" if nodes > 1 else None
    cluster = open_cluster("hgx-h100", nodes, network)
    return Planner(shape, cluster, named_device("h100"), "bfloat16", Efficiency())


def test_the_best_of_a_search_are_the_best_of_all_candidates_none_shorter_than_its_bound() -> (
    None
):
    made = planner()
    plans = search(made, SETTINGS, {}, 16, 5)
    seconds = []
    for strategy in strategies(made, SETTINGS, {}, 16):
        outcome = made.outcome(name_of(strategy), strategy)
        assert outcome.step.seconds >= least_seconds(strategy, made.computing(strategy)) * (
            1 - 1e-9
        )
        if made.fits(largest_memory(made.shape, strategy)):
            seconds.append(outcome.step.seconds)
    seconds.sort()
    assert plans.fitting == len(seconds)
    assert [one.step.seconds for one in plans.best] == pytest.approx(seconds[:5])
    # Otherwise nothing was left out, and this test would not see a wrong bound.
    assert plans.priced < plans.fitting


def test_candidates_differ_and_divide() -> None:
    made = planner()
    found = list(strategies(made, SETTINGS, {}, 16))
    assert len(found) == len(set(found))
    assert {one.layout.ranks for one in found} == {16}
    assert {one.recompute for one in found} == {"none", "full"}
    assert {one.zero_stage for one in found} == {0, 1, 2, 3}
    assert max(one.virtual_stages for one in found) > 1
    unfused = list(strategies(made, {**SETTINGS, "fused_attention": False}, {}, 16))
    assert {one.recompute for one in unfused} == {"none", "selective", "full"}


def test_a_search_keeps_to_what_it_is_told() -> None:
    choices = {"tp": (2,), "zero": (1,), "recompute": ("full",), "virtual_stages": (1,)}
    plans = search(planner(), SETTINGS, choices, 16)
    for one in plans.best:
        strategy = one.strategy
        assert (strategy.layout.tp, strategy.zero_stage, strategy.recompute) == (2, 1, "full")
        assert strategy.virtual_stages == 1


def test_experts_are_split_too() -> None:
    mixtral = replace(named_shape("mixtral-8x7b"), layers=4)
    made = planner(mixtral)
    sizes = list(layouts_of(made, SETTINGS, {}, 16))
    assert {size["ep"] for size in sizes} >= {1, 2, 4, 8}
    best = search(made, SETTINGS, {"recompute": ("none",), "micro_batch": (1,)}, 16, 3).best
    assert any(one.strategy.layout.ep > 1 for one in best)


def test_long_sequences_are_split_too() -> None:
    sizes = list(layouts_of(planner(), {"global_batch": 16, "sequence": 32768}, {}, 16))
    assert {size["cp"] for size in sizes} >= {1, 2, 4}


def test_what_does_not_fit_is_left_out_and_said() -> None:
    large = planner(named_shape("gpt3-175b"), nodes=1)
    with pytest.raises(
        UsageError, match=r"none of \d+ layouts on 8 devices fits into 80 GB a device"
    ):
        search(large, {"global_batch": 8, "sequence": 2048}, {}, 8)


def test_a_batch_that_nothing_divides_is_told() -> None:
    with pytest.raises(UsageError, match="no layout of 16 devices divides"):
        search(planner(), {"global_batch": 7, "sequence": 1024}, ({"tp": (1,), "pp": (1,)}), 16)


def test_virtual_stages_that_are_stated_are_tried_though_there_are_many() -> None:
    deep = replace(SHAPE, layers=64)
    found = list(strategies(planner(deep), SETTINGS, ({"virtual_stages": (16,)}), 16))
    assert found
    assert {one.virtual_stages for one in found} == {16}


def test_a_matrix_of_traffic_says_how_many_ranks_hold_the_experts() -> None:
    mixtral = replace(named_shape("mixtral-8x7b"), layers=4)
    settings = {**SETTINGS, "traffic": "[[1, 2], [2, 1]]"}
    plans = search(planner(mixtral), settings, {"recompute": ("none",)}, 16, 3)
    assert {one.strategy.layout.ep for one in plans.best} == {2}


def test_a_slip_of_millions_of_millions_of_devices_is_searched_like_any_number() -> None:
    # Every number up to that of the devices was tried as a divisor: it never ended.
    ranks = 8 * 10**12
    sizes = list(layouts_of(planner(), {"global_batch": ranks, "sequence": 1024}, {}, ranks))
    assert {size["tp"] for size in sizes} == {1, 2, 4, 8, 16}
    assert {size["pp"] for size in sizes} == {1, 2, 4, 8}
