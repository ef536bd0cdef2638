"""What a strategy derives, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.errors import UsageError
from ccbench.groups import Layout
from ccbench.plan.shape import named_shape, named_shapes
from ccbench.plan.strategy import StepSettings, Strategy


def made(name: str, layout: Layout, **settings: Any) -> Strategy:
    return Strategy(
        named_shape(name),
        StepSettings(**{"global_batch": 64, "sequence": 2048, **settings}),
        layout,
    )


def test_batches_and_sequences_are_shared_among_ranks() -> None:
    assert made("gpt2-xl", Layout(dp=4), micro_batch=2).micro_batches == 8
    assert made("gpt3-175b", Layout(cp=4, tp=2), micro_batch=4).rank_tokens == 2048


@given(
    st.sampled_from(["gpt3-175b", "llama-3-405b", "mixtral-8x7b", "deepseek-v3"]),
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from([1, 2, 8]),
    st.booleans(),
)
def test_tensor_and_expert_parallel_ranks_hold_the_model_and_what_each_needs_whole(
    name: str, tp: int, ep: int, whole_experts: bool
) -> None:
    mixed = named_shape(name).experts > 0
    split = (
        Layout(tp=tp, dp=8, ep=ep, etp=1 if whole_experts else tp) if mixed else Layout(tp=tp)
    )
    all_of, shares = (
        made(name, layout, sequence_parallel=True).layer_shares()
        for layout in (Layout(), split)
    )
    for whole, share in zip(all_of, shares, strict=True):
        assert tp * share.dense - (tp - 1) * share.whole == whole.dense
        assert split.ep * split.expert_tp * share.experts == whole.experts


def test_heads_of_keys_and_values_that_are_fewer_than_ranks_are_on_several() -> None:
    shape = named_shape("llama-3-405b")
    eight, sixteen = (made(shape.name, Layout(tp=tp)).layer_shares()[0].dense for tp in (8, 16))
    norms, of_a_head = 2 * shape.hidden, 2 * shape.hidden * shape.head_size
    assert 2 * (sixteen - norms) == eight - norms + of_a_head


def test_a_vocabulary_is_filled_up_until_it_divides() -> None:
    strategy = made("gpt3-175b", Layout(tp=3))
    # 51,200 rows and one more, and 2,048 positions.
    assert next(strategy.portions()) == ("every", (17067 + 2048) * 12288, 1)


@pytest.mark.parametrize("name", sorted(named_shapes()))
def test_stages_hold_all_layers(name: str) -> None:
    strategy = made(name, Layout())
    assert strategy.dense_layers + strategy.moe_layers == strategy.layers


@pytest.mark.parametrize(
    ("name", "layout", "settings", "message"),
    [
        (
            "gpt2-xl",
            Layout(dp=3),
            {},
            "global_batch 64 does not divide by micro_batch x dp (x pp, interleaved) 3",
        ),
        ("gpt2-xl", Layout(), {"virtual_stages": 2}, "choose pp from 2 on"),
        (
            "gpt2-xl",
            Layout(pp=3),
            {"virtual_stages": 2},
            "micro_batch x dp (x pp, interleaved) 3",
        ),
        (
            "gpt2-xl",
            Layout(cp=3),
            {},
            "sequence 2048 does not divide by the ranks that split it",
        ),
        ("gpt3-175b", Layout(tp=3), {"sequence_parallel": True}, "the ranks that split it, 3"),
        ("gpt3-175b", Layout(tp=7), {}, "heads 96 does not divide by tp 7"),
        ("gpt3-175b", Layout(pp=97), {}, "96 layers for 97 stages; choose fewer"),
        ("gpt3-175b", Layout(dp=2, ep=2), {}, "no experts; leave ep and etp out"),
        ("llama-2-70b", Layout(tp=64), {}, ""),
        ("mixtral-8x7b", Layout(dp=16, ep=16), {}, "experts 8 does not divide by ep 16"),
        ("mixtral-8x7b", Layout(tp=2), {}, "write sequence_parallel: true"),
        ("mixtral-8x7b", Layout(tp=2), {"sequence_parallel": True}, ""),
    ],
)
def test_what_does_not_go_together_is_refused_with_its_cure(
    name: str, layout: Layout, settings: dict[str, Any], message: str
) -> None:
    if not message:
        made(name, layout, **settings)
        return
    with pytest.raises(UsageError) as error:
        made(name, layout, **settings)
    assert message in str(error.value)
