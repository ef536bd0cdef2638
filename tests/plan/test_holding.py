"""What ranks hold adds up to the model, and what several hold is known."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.groups import Layout
from ccbench.plan.memory import (
    embedding_share,
    holdings,
    layer_shares,
    stage_order,
)
from ccbench.plan.shape import make_shape, named_shape, named_shapes
from ccbench.plan.strategy import Strategy


def made(layout: Layout, **changed: Any) -> Strategy:
    return Strategy(layout, **{"global_batch": 64, "sequence": 2048, "uneven_stages": True, **changed})


@pytest.mark.parametrize("name", sorted(named_shapes()))
def test_one_rank_holds_everything(name: str) -> None:
    shape = named_shape(name)
    (held,) = holdings(shape, made(Layout()))
    assert held.parameters == shape.parameters
    assert held.experts == shape.moe_layers * shape.experts * shape.expert_parameters


@given(
    st.sampled_from(["gpt3-175b", "llama-3-405b", "mixtral-8x7b", "deepseek-v3"]),
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from([1, 2, 8]),
    st.booleans(),
)
def test_tensor_and_expert_parallel_ranks_hold_the_model_and_what_each_needs_whole(
    name: str, tp: int, ep: int, whole_experts: bool
) -> None:
    shape = named_shape(name)
    etp = 1 if whole_experts else tp
    dense, mixed = layer_shares(shape, tp, ep, etp)
    assert tp * dense.dense - (tp - 1) * dense.whole == shape.dense_layer_parameters
    if shape.experts:
        assert ep * etp * mixed.experts == shape.experts * shape.expert_parameters
        rest = shape.moe_layer_parameters - shape.experts * shape.expert_parameters
        assert tp * mixed.dense - (tp - 1) * mixed.whole == rest


def test_heads_of_keys_and_values_that_are_fewer_than_ranks_are_on_several() -> None:
    shape = named_shape("llama-3-405b")
    of_a_head = 2 * shape.hidden * shape.head_size
    eight, sixteen = (layer_shares(shape, tp, 1, tp)[0].dense for tp in (8, 16))
    norms = 2 * shape.hidden
    assert 2 * (sixteen - norms) == eight - norms + of_a_head


def test_a_vocabulary_is_filled_up_until_it_divides() -> None:
    shape = named_shape("gpt2-xl")
    assert embedding_share(shape, 4) == 12565 * 1600  # 50,257 rows and 3 more


def test_the_ends_hold_embedding_and_head() -> None:
    shape = named_shape("llama-2-70b")
    first, middle, last = holdings(shape, made(Layout(pp=8)))
    assert (first.around, middle.around) == (32000 * 8192, 0)
    assert last.around == 32000 * 8192 + 8192
    assert first.tied == last.tied == 0


def test_a_tied_head_is_a_second_copy_of_the_embedding() -> None:
    shape = named_shape("gpt3-175b")
    first, _, last = holdings(shape, made(Layout(pp=8)))
    assert first.tied == last.tied == 51200 * 12288
    (only,) = holdings(shape, made(Layout()))
    assert only.tied == 0


def test_of_stages_in_the_middle_the_fullest_counts() -> None:
    shape = named_shape("deepseek-v3")
    first, middle, last = holdings(shape, made(Layout(pp=16)))
    assert [(held.layers, held.moe_layers) for held in (first, middle, last)] == [(3, 0), (4, 4), (3, 3)]


def test_kinds_of_stages_follow_from_their_number() -> None:
    assert stage_order(1) == ("only",)
    assert stage_order(2) == ("first", "last")
    assert stage_order(4) == ("first", "middle", "middle", "last")


@given(st.sampled_from([2, 4, 8]), st.booleans(), st.booleans())
def test_stages_together_hold_the_model(stages: int, tied: bool, biases: bool) -> None:
    shape = make_shape(
        {
            "layers": 8,
            "hidden": 64,
            "heads": 8,
            "vocabulary": 96,
            "tied_embeddings": tied,
            "biases": biases,
            "positions": 16,
        }
    )
    counts = {"first": 1, "middle": stages - 2, "last": 1}
    held = sum(one.parameters * counts[one.kind] for one in holdings(shape, made(Layout(pp=stages))))
    assert held == shape.parameters + (96 * 64 if tied else 0)
