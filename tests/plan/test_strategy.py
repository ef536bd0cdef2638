"""What a strategy derives, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.errors import UsageError
from ccbench.groups import Layout
from ccbench.plan.shape import make_shape, named_shape
from ccbench.plan.strategy import Strategy, check_strategy


def made(layout: Layout, **settings: Any) -> Strategy:
    return Strategy(layout, **{"global_batch": 64, "sequence": 2048, **settings})


def test_batches_sequences_and_gradients_are_shared_among_ranks() -> None:
    assert made(Layout(tp=2, dp=4), micro_batch=2).micro_batches == 8
    split = made(Layout(tp=2, cp=4), micro_batch=3, global_batch=3, sequence_parallel=True)
    assert (split.rank_tokens, split.sharded_tokens) == (1536, 768)
    assert (made(Layout(dp=4)).data_axis, made(Layout(dp=4)).data_ranks) == ("dp", 4)
    assert (made(Layout(dp=4, cp=2)).data_axis, made(Layout(dp=4, cp=2)).data_ranks) == (
        "dp-cp",
        8,
    )


def test_interleaved_stages_have_a_part_of_each_turn() -> None:
    strategy = made(Layout(pp=4), pipeline="interleaved", virtual_stages=3)
    assert strategy.stage_layers(named_shape("gpt3-175b")) == ((8, 8, 8),) * 4


def test_uneven_stages_leave_first_and_last_a_layer_less() -> None:
    """126 layers on 16 stages as Grattafiori et al. 2024, section 3.3.2, cut them."""
    layers = made(Layout(pp=16), uneven_stages=True).stage_layers(named_shape("llama-3-405b"))
    assert layers == ((7,), *((8,),) * 14, (7,))


def test_leading_layers_without_experts_are_on_the_first_stages() -> None:
    shape = named_shape("deepseek-v3")
    assert made(Layout(pp=16), uneven_stages=True).stage_moe_layers(shape) == (
        0,
        *((4,) * 12),
        4,
        3,
        3,
    )
    assert made(Layout(pp=16)).stage_moe_layers(named_shape("gpt2-xl")) == (0,) * 16


@given(st.integers(1, 6), st.integers(1, 3), st.integers(1, 40), st.integers(0, 40))
def test_stages_hold_every_layer_once_however_they_are_cut(
    stages: int, parts: int, layers: int, dense: int
) -> None:
    mixed = {
        "experts": 4,
        "top_k": 1,
        "expert_ffn_hidden": 8,
        "dense_layers": min(dense, layers),
    }
    shape = make_shape({"layers": layers, "hidden": 8, "heads": 1, "vocabulary": 8, **mixed})
    parts = parts if stages > 1 else 1
    pipeline = "interleaved" if parts > 1 else "1f1b"
    strategy = Strategy(
        Layout(pp=stages),
        stages,
        8,
        pipeline=pipeline,
        virtual_stages=parts,
        uneven_stages=True,
    )
    if layers < stages * parts:
        with pytest.raises(UsageError, match="choose a product of pp and virtual_stages"):
            strategy.stage_layers(shape)
        return
    held = strategy.stage_layers(shape)
    assert sum(map(sum, held)) == layers
    assert max(map(max, held)) - min(map(min, held)) <= 1
    assert sum(strategy.stage_moe_layers(shape)) == shape.moe_layers


@pytest.mark.parametrize(
    ("layout", "settings", "message"),
    [
        (Layout(dp=3), {}, "choose a multiple of 3"),
        (Layout(pp=4), {"virtual_stages": 2}, "write 2 or more for an interleaved one"),
        (Layout(pp=4), {"pipeline": "interleaved"}, "write 2 or more for an interleaved one"),
        (Layout(), {"pipeline": "interleaved", "virtual_stages": 2}, "choose pp from 2 on"),
        (
            Layout(pp=3),
            {"pipeline": "interleaved", "virtual_stages": 2},
            "choose a global batch that is a multiple of 3",
        ),
        (Layout(cp=3), {}, "choose a multiple of 3"),
        (Layout(tp=3), {"sequence_parallel": True}, "choose a multiple of 3"),
        (Layout(), {"capacity": 1.25, "traffic": "zipf:1"}, "write one of them"),
        (Layout(), {"traffic": "zip"}, "traffic: 'zip' is none"),
    ],
)
def test_what_does_not_go_together_is_told_with_its_cure(
    layout: Layout, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError) as error:
        made(layout, **settings)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("name", "layout", "settings", "message"),
    [
        ("gpt3-175b", Layout(tp=7), {}, "tp 7 does not divide heads 96"),
        ("gpt3-175b", Layout(pp=7), {}, "96 layers do not divide into 7 stages"),
        ("gpt3-175b", Layout(dp=2, ep=2), {}, "the model has none; leave ep and etp out"),
        ("llama-2-70b", Layout(tp=64), {"context_kind": "ring"}, ""),
        (
            "llama-2-70b",
            Layout(tp=8, cp=16),
            {"context_kind": "ulysses"},
            "or context_kind: ring",
        ),
        ("deepseek-v3", Layout(cp=2), {"context_kind": "ulysses"}, "write context_kind: ring"),
        ("mixtral-8x7b", Layout(dp=16, ep=16), {}, "ep 16 does not divide 8 experts"),
        (
            "mixtral-8x7b",
            Layout(dp=2, ep=2),
            {"traffic": "[[0, 0], [3, 4]]"},
            "row 0 has 0% of what row 1 has",
        ),
        ("mixtral-8x7b", Layout(tp=2), {}, "write sequence_parallel: true"),
        ("mixtral-8x7b", Layout(tp=2), {"sequence_parallel": True}, ""),
    ],
)
def test_a_shape_that_cannot_be_split_so_is_told_what_would_do(
    name: str, layout: Layout, settings: dict[str, Any], message: str
) -> None:
    strategy = made(layout, **settings)
    if not message:
        check_strategy(named_shape(name), strategy)
        return
    with pytest.raises(UsageError) as error:
        check_strategy(named_shape(name), strategy)
    assert message in str(error.value)
