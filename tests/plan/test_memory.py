"""Memory against the formulas of the ZeRO paper and of Korthikanti et al. 2022."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.groups import Layout
from ccbench.plan.memory import (
    largest_memory,
    layer_activations,
    memory_of,
    named_device,
    parts_in_flight,
)
from ccbench.plan.shape import make_shape, named_shape
from ccbench.plan.strategy import Strategy

GPT = named_shape("gpt3-175b")
B, S, H, HEADS = 4, 2048, 12288, 96


def made(layout: Layout, **changed: Any) -> Strategy:
    asked = {"global_batch": B * layout.dp, "micro_batch": B, "sequence": S, **changed}
    return Strategy(layout, fused_attention=asked.pop("fused_attention", False), dropout=True, **asked)


@pytest.mark.parametrize("tp", [1, 2, 8])
class TestActivationsOfALayer:
    """Korthikanti et al. 2022, table 2, in bytes."""

    def test_tensor_parallel(self, tp: int) -> None:
        """S b h (10 + 24 / t + 5 a s / h t)."""
        formula = S * B * H * 10 + S * B * H * 24 // tp + 5 * HEADS * S * S * B // tp
        assert layer_activations(GPT, made(Layout(tp=tp))) == formula

    def test_tensor_and_sequence_parallel(self, tp: int) -> None:
        """S b h (34 + 5 a s / h) / t."""
        formula = (34 * S * B * H + 5 * HEADS * S * S * B) // tp
        assert layer_activations(GPT, made(Layout(tp=tp), sequence_parallel=True)) == formula

    def test_tensor_parallel_recomputed_selectively(self, tp: int) -> None:
        """S b h (10 + 24 / t)."""
        formula = S * B * H * 10 + S * B * H * 24 // tp
        assert layer_activations(GPT, made(Layout(tp=tp), recompute="selective")) == formula

    def test_tensor_and_sequence_parallel_recomputed_selectively(self, tp: int) -> None:
        """34 s b h / t."""
        strategy = made(Layout(tp=tp), sequence_parallel=True, recompute="selective")
        assert layer_activations(GPT, strategy) == 34 * S * B * H // tp

    def test_recomputed_fully(self, tp: int) -> None:
        """2 s b h."""
        assert layer_activations(GPT, made(Layout(tp=tp), recompute="full")) == 2 * S * B * H

    def test_fused_attention_keeps_a_number_of_a_row_instead_of_its_scores(self, tp: int) -> None:
        strategy = made(Layout(tp=tp), sequence_parallel=True, fused_attention=True)
        assert layer_activations(GPT, strategy) == (34 * S * B * H + 4 * S * B * HEADS) // tp


class TestInFlight:
    """Korthikanti et al. 2022, section 4.2.3; Huang et al. 2019 for all of them at once."""

    def test_1f1b_holds_as_many_as_stages_follow(self) -> None:
        strategy = Strategy(Layout(pp=8), 64, 8)
        assert [parts_in_flight(strategy, stage) for stage in (0, 3, 7)] == [8, 5, 1]

    def test_no_more_than_there_are(self) -> None:
        assert parts_in_flight(Strategy(Layout(pp=8), 3, 8), 0) == 3

    def test_gpipe_holds_all(self) -> None:
        assert parts_in_flight(Strategy(Layout(pp=8), 64, 8, pipeline="gpipe"), 5) == 64

    @pytest.mark.parametrize("parts", [2, 3, 6])
    def test_interleaving_holds_1_plus_p_minus_1_over_pm_times_all_layers(self, parts: int) -> None:
        strategy = Strategy(Layout(pp=8), 64, 8, pipeline="interleaved", virtual_stages=parts)
        layers_of_a_part = 96 / (8 * parts)
        held = parts_in_flight(strategy, 0) * layers_of_a_part
        assert held == pytest.approx(96 * (1 + 7 / (8 * parts)))

    def test_the_first_stage_of_1f1b_keeps_all_layers(self) -> None:
        strategy = made(Layout(tp=8, pp=8), global_batch=64 * B, sequence_parallel=True)
        first = memory_of(GPT, strategy)[0]
        of_a_layer = layer_activations(GPT, strategy)
        assert first.activation_bytes == 96 * of_a_layer + 8 * S * B * H // 8


class TestStates:
    """Rajbhandari et al. 2020, section 5 and figure 1: 2 + 2 + 12 bytes, divided by N_d ranks."""

    @pytest.mark.parametrize(
        ("stage", "gigabytes"),
        # Figure 1: a model of 7.5 billion parameters on 64 ranks.
        [(0, 120.0), (1, 31.4), (2, 16.6), (3, 1.9)],
    )
    def test_the_papers_example(self, stage: int, gigabytes: float) -> None:
        strategy = Strategy(Layout(dp=64), 64, 1024, zero_stage=stage)
        shape = named_shape("llama-2-7b")
        (memory,) = memory_of(shape, strategy)
        states = memory.parameter_bytes + memory.gradient_bytes + memory.optimizer_bytes
        assert states / shape.parameters * 7.5e9 / 1e9 == pytest.approx(gigabytes, abs=0.05)

    def test_experts_are_divided_among_ranks_that_hold_the_same(self) -> None:
        shape = named_shape("mixtral-8x7b")
        (memory,) = memory_of(shape, Strategy(Layout(dp=32, ep=8), 32, 1024, zero_stage=1))
        of_experts = 32 * shape.expert_parameters
        rest = shape.parameters - 8 * of_experts
        assert memory.parameter_bytes == 2 * (rest + of_experts)
        assert memory.optimizer_bytes == pytest.approx(12 * (rest / 32 + of_experts / 4), abs=24)

    def test_fsdp_gathers_two_layers_besides(self) -> None:
        shape = named_shape("llama-2-70b")
        (memory,) = memory_of(shape, Strategy(Layout(dp=64), 64, 1024, zero_stage=3))
        assert memory.working_bytes == 6 * shape.dense_layer_parameters


def test_stages_that_are_split_further_keep_less() -> None:
    few, many = (largest_memory(GPT, made(Layout(tp=8, pp=pp), recompute="full")) for pp in (8, 16))
    assert many.total_bytes < few.total_bytes


@pytest.mark.parametrize(
    ("name", "sequences", "micro_batch", "stages", "parts"),
    [
        ("megatron-22b", 4, 4, 1, 1),
        ("gpt3-175b", 64, 1, 8, 3),
        ("megatron-530b", 280, 1, 35, 3),
        ("megatron-1t", 512, 1, 64, 1),
    ],
)
def test_four_models_fit_80_gb_only_split_and_recomputed(
    name: str, sequences: int, micro_batch: int, stages: int, parts: int
) -> None:
    """Korthikanti et al. 2022, figure 1 and table 3; activations shrink about fivefold (abstract)."""
    shape, a100 = named_shape(name), named_device("a100")

    def cut(**settings: Any) -> Strategy:
        return made(
            Layout(tp=8, pp=stages),
            global_batch=sequences,
            micro_batch=micro_batch,
            pipeline="interleaved" if parts > 1 else "1f1b",
            virtual_stages=parts,
            **settings,
        )

    plain, saved = cut(), cut(sequence_parallel=True, recompute="selective")
    assert largest_memory(shape, saved).total_bytes <= a100.memory_bytes
    assert largest_memory(shape, plain).total_bytes > a100.memory_bytes
    shrunk = largest_memory(shape, plain).activation_bytes / largest_memory(shape, saved).activation_bytes
    assert 4.5 < shrunk < 6.5


def test_kept_gradients_are_not_split() -> None:
    (kept,) = memory_of(GPT, made(Layout(dp=64), zero_stage=3, keep_gradients=True))
    assert kept.gradient_bytes == 2 * GPT.parameters


@given(st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4]), st.integers(0, 2), st.booleans())
def test_a_higher_stage_or_more_recomputation_never_keeps_more_of_what_it_saves(
    tp: int, pp: int, stage: int, split: bool
) -> None:
    shape = make_shape({"layers": 4, "hidden": 64, "heads": 4, "vocabulary": 64})

    def most(stage: int, recompute: str) -> tuple[int, int]:
        strategy = made(
            Layout(tp=tp, pp=pp, dp=4), zero_stage=stage, recompute=recompute, sequence_parallel=split
        )
        of = memory_of(shape, strategy)[0]
        return of.parameter_bytes + of.gradient_bytes + of.optimizer_bytes, of.activation_bytes

    assert most(stage + 1, "none")[0] <= most(stage, "none")[0]
    assert most(stage, "full")[1] <= most(stage, "selective")[1] <= most(stage, "none")[1]
