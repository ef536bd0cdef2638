"""What a strategy derives, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.errors import UsageError
from ccbench.groups import Layout
from ccbench.plan.shape import named_shape
from ccbench.plan.strategy import StepSettings, Strategy


def made(name: str, layout: Layout, **settings: Any) -> Strategy:
    return Strategy(
        named_shape(name),
        StepSettings(**{"global_batch": 64, "sequence": 2048, **settings}),
        layout,
    )


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
