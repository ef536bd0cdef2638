"""Operations against the papers' formulas, and times that follow from them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.collectives import collective
from ccbench.errors import UsageError
from ccbench.groups import Layout
from ccbench.plan.communication import communications
from ccbench.plan.computing import (
    Efficiency,
    Work,
    attention_work,
    layer_work,
    model_flops,
    optimizer_work,
    product,
    seconds_of,
    stage_work,
    step_flops,
    utilization,
)
from ccbench.plan.memory import holdings, named_device
from ccbench.plan.shape import named_shape
from ccbench.plan.strategy import Strategy

A100 = named_device("a100")
GPTS = ["megatron-22b", "gpt3-175b", "megatron-530b", "megatron-1t"]


def made(layout: Layout, **changed: Any) -> Strategy:
    return Strategy(layout, **{"global_batch": 64, "sequence": 2048, **changed})


@pytest.mark.parametrize("name", GPTS)
def test_a_step_computes_what_the_papers_say(name: str) -> None:
    """72 B s l h^2 (1 + s / 6h + V / 12lh) of the model itself (Korthikanti et al. 2022, appendix A).

    With full recomputation 96 B s l h^2 (1 + s / 6h + V / 16lh) (Narayanan et al. 2021, equation 3).
    """
    shape, tokens, sequence = named_shape(name), 64 * 2048, 2048
    layers, hidden, rows = shape.layers, shape.hidden, shape.vocabulary
    forward = 24 * tokens * layers * hidden**2 + 4 * tokens * sequence * layers * hidden
    head = 6 * tokens * hidden * rows
    assert model_flops(shape, 64, sequence) == 3 * forward + head
    assert step_flops(shape, made(Layout())) == 3 * forward + head
    assert step_flops(shape, made(Layout(), recompute="full")) == 4 * forward + head


def test_attention_may_be_counted_without_what_is_masked() -> None:
    shape = named_shape("gpt3-175b")
    layers, hidden = shape.layers, shape.hidden
    masked = 6 * 64 * 2048 * 2048 * layers * hidden
    assert model_flops(shape, 64, 2048) - model_flops(shape, 64, 2048, causal=0.5) == masked


@pytest.mark.parametrize(
    ("name", "tokens_per_second", "tflops"),
    # Performance summary of NVIDIA's Megatron Bridge, NeMo 25.09, DGX GB200: tokens/s and TFLOP/s of a GPU.
    [("llama-3-8b", 31_357, 1614), ("llama-3-70b", 3546, 1593)],
)
def test_what_nvidia_publishes_now_counts_attention_without_what_is_masked(
    name: str, tokens_per_second: int, tflops: int
) -> None:
    published = tflops * 1e12 / tokens_per_second
    assert model_flops(named_shape(name), 1, 8192, causal=0.5) / 8192 == pytest.approx(
        published, rel=1e-3
    )
    assert model_flops(named_shape(name), 1, 8192) / 8192 > 1.05 * published


PUBLISHED = [
    # Korthikanti et al. 2022, table 5: percent of the peak; seconds with sequence parallelism and selective
    # recomputation, and with full recomputation instead of both. Tensor parallel 8.
    ("megatron-22b", 4, Layout(tp=8), 1, 41.5, 1.10, 1.42),
    ("gpt3-175b", 64, Layout(tp=8, pp=8), 3, 51.4, 13.75, 18.13),
    ("megatron-530b", 280, Layout(tp=8, pp=35), 3, 56.0, 37.83, 49.05),
    ("megatron-1t", 512, Layout(tp=8, pp=64), 1, 56.3, 71.49, 94.42),
]


def step_seconds(
    name: str, sequences: int, layout: Layout, parts: int, **settings: Any
) -> float:
    """With bubble and exposed communication: 235 GB/s is what NCCL reaches over NVLink 3 (DGX A100)."""
    shape = named_shape(name)
    strategy = made(
        layout,
        global_batch=sequences,
        micro_batch=4 if name == "megatron-22b" else 1,
        pipeline="interleaved" if parts > 1 else "1f1b",
        virtual_stages=parts,
        fused_attention=False,
        dropout=True,
        **settings,
    )
    turns = []
    for holding in holdings(shape, strategy):
        computing = sum(
            seconds_of(part, A100, Efficiency())
            for part in stage_work(shape, strategy, holding)
        )
        exposed = sum(
            communication.total_bytes
            * collective(communication.collective).bus_factor(communication.ranks)
            / strategy.micro_batches
            for communication in communications(shape, strategy)
            if communication.axis == "tp"
            and communication.stage == holding.kind
            and not communication.can_hide
        )
        turns.append(computing + exposed / 235e9)
    # All stages wait for the slowest; the bubble is p - 1 turns, of a part each.
    return (
        max(turns) * strategy.micro_batches + turns[len(turns) // 2] * (layout.pp - 1) / parts
    )


@pytest.mark.parametrize(
    ("name", "sequences", "layout", "parts", "percent", "selective", "recomputed"), PUBLISHED
)
def test_published_steps_come_out_with_bubble_and_exposed_communication(
    name: str,
    sequences: int,
    layout: Layout,
    parts: int,
    percent: float,
    selective: float,
    recomputed: float,
) -> None:
    flops = model_flops(named_shape(name), sequences, 2048)
    assert 100 * utilization(flops, selective, layout.ranks, A100) == pytest.approx(
        percent, abs=0.2
    )
    saved = step_seconds(
        name, sequences, layout, parts, sequence_parallel=True, recompute="selective"
    )
    assert saved == pytest.approx(selective, rel=0.045)
    full = step_seconds(name, sequences, layout, parts, recompute="full")
    assert full == pytest.approx(recomputed, rel=0.045)


@given(
    st.sampled_from([*GPTS, "mixtral-8x7b", "llama-3-70b"]),
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from([1, 8]),
    st.sampled_from(["none", "selective", "full"]),
)
def test_ranks_together_compute_what_the_step_computes(
    name: str, tp: int, pp: int, recompute: str
) -> None:
    shape = named_shape(name)
    pp = pp if shape.layers % pp == 0 else 1
    dense = {"sequence_parallel": True, "fused_attention": False, "recompute": recompute}
    strategy = made(Layout(tp=tp, pp=pp), **dense)
    counts = {"only": 1, "first": 1, "middle": pp - 2, "last": 1}
    of_a_rank = sum(
        counts[holding.kind] * work.flops
        for holding in holdings(shape, strategy)
        for work in stage_work(shape, strategy, holding)
    )
    assert tp * of_a_rank * 64 == pytest.approx(step_flops(shape, strategy), rel=1e-9)


def test_fused_attention_computes_five_products_backward_instead_of_four() -> None:
    shape = named_shape("gpt3-175b")
    (holding,) = holdings(shape, made(Layout()))
    fused, plain = (
        stage_work(shape, made(Layout(), fused_attention=fused), holding)
        for fused in (True, False)
    )
    assert fused[0].flops == plain[0].flops
    assert fused[1].attention_flops * 4 == plain[1].attention_flops * 5


def test_attention_that_is_not_fused_moves_its_scores_and_computes_all_of_them() -> None:
    shape = named_shape("gpt3-175b")
    fused, plain, dropped = (
        attention_work(shape, made(Layout(tp=8), **settings))
        for settings in (
            {},
            {"fused_attention": False},
            {"fused_attention": False, "dropout": True},
        )
    )
    assert fused.fused_flops == fused.attention_flops == plain.attention_flops
    assert plain.fused_flops == 0
    scores = 2048 * 2048 * 96 // 8
    assert plain.moved_bytes - fused.moved_bytes == 8 * scores
    assert dropped.moved_bytes - plain.moved_bytes == 5 * scores


def test_fused_attention_leaves_nothing_to_recompute_selectively() -> None:
    shape = named_shape("gpt3-175b")
    (holding,) = holdings(shape, made(Layout()))
    assert stage_work(shape, made(Layout(), recompute="selective"), holding) == stage_work(
        shape, made(Layout()), holding
    )


def test_the_busiest_experts_compute_more() -> None:
    shape = named_shape("mixtral-8x7b")
    even, uneven, padded = (
        layer_work(shape, made(Layout(dp=8, ep=8), **settings), with_experts=True)
        for settings in ({}, {"traffic": "hot:0.5"}, {"capacity": 1.25})
    )
    experts = 2 * 2048 * 2 * shape.expert_parameters
    assert uneven.matrix_flops - even.matrix_flops == pytest.approx(3 * experts)
    assert padded.matrix_flops - even.matrix_flops == pytest.approx(experts / 4)


def test_few_tokens_take_as_long_as_their_weights_are_read() -> None:
    work = Work(matrix_flops=1e6, weight_bytes=2e9)
    assert seconds_of(work, A100, Efficiency(memory=1.0)) == pytest.approx(2e9 / 2039e9)


def test_times_add_up_from_stated_rates() -> None:
    work = Work(
        matrix_flops=312e12, attention_flops=312e12, fused_flops=312e12, moved_bytes=2039e9
    )
    seconds = seconds_of(
        work, A100, Efficiency(matrix=1.0, attention=0.5, memory=0.5, causal=0.5)
    )
    assert seconds == pytest.approx(1 / A100.achieved + 1 + 2)


def test_a_product_as_narrow_as_the_efficiency_says_takes_twice_as_long() -> None:
    balance = A100.peak("bfloat16") / A100.memory_bytes_per_second
    wide, narrow = (
        seconds_of(
            product(2048, 8192, width, 2),
            A100,
            Efficiency(narrow=4000 / balance * (width == 4000)),
        )
        for width in (4000.0, 4001.0)
    )
    assert wide == pytest.approx(2 * narrow, rel=1e-3)


def test_a_sharded_optimizer_updates_its_share() -> None:
    shape = named_shape("gpt2-xl")
    whole, shared = (made(Layout(dp=64), zero_stage=stage) for stage in (0, 1))
    (holding,) = holdings(shape, whole)
    assert optimizer_work(whole, holding).moved_bytes == shape.parameters * 28
    assert optimizer_work(shared, holding).moved_bytes == -(-shape.parameters // 64) * 28


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_narrower_parts_take_longer_than_their_share(tp: int) -> None:
    shape = named_shape("gpt3-175b")
    whole, half = (
        seconds_of(
            layer_work(shape, made(Layout(tp=ranks), sequence_parallel=True)),
            A100,
            Efficiency(),
        )
        for ranks in (tp, 2 * tp)
    )
    assert whole / 2 < half < whole


def test_an_unknown_dtype_is_told_the_known_ones() -> None:
    with pytest.raises(UsageError, match="one of bfloat16, float16, float32"):
        seconds_of(Work(1.0), A100, Efficiency(), "float8_e4m3")


def test_tokens_that_experts_have_no_place_for_count_for_nothing() -> None:
    mixtral = named_shape("mixtral-8x7b")
    half = model_flops(mixtral, 8, 2048, capacity=0.5)
    assert half == model_flops(replace(mixtral, top_k=1), 8, 2048)
    # Padding is no work that anybody asked for.
    assert model_flops(mixtral, 8, 2048, capacity=1.25) == model_flops(mixtral, 8, 2048)
    strategy = made(Layout(dp=8, ep=8), capacity=0.125)
    ((forward, backward),) = (
        stage_work(mixtral, strategy, holding) for holding in holdings(mixtral, strategy)
    )
    computed = 8 * strategy.micro_batches * (forward.flops + backward.matrix_flops)
    computed += 8 * strategy.micro_batches * 2 * forward.attention_flops
    assert step_flops(mixtral, strategy) == pytest.approx(computed, rel=1e-3)
