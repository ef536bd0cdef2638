"""What a strategy derives, and what it refuses."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

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
