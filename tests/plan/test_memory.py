"""Memory against the formulas of the ZeRO paper and of Korthikanti et al. 2022; what ranks hold; devices."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.errors import UsageError
from ccbench.groups import Layout
from ccbench.plan.memory import (
    embedding_share,
    holdings,
    largest_memory,
    layer_activations,
    layer_shares,
    memory_of,
    named_device,
    named_devices,
    parts_in_flight,
)
from ccbench.plan.shape import make_shape, named_shape, named_shapes
from ccbench.plan.strategy import Strategy
from ccbench.topology.files import catalog_names, load_catalog

GPT = named_shape("gpt3-175b")
B, S, H, HEADS = 4, 2048, 12288, 96


def made(layout: Layout, **changed: Any) -> Strategy:
    asked = {"global_batch": B * layout.dp, "micro_batch": B, "sequence": S, **changed}
    return Strategy(
        layout, fused_attention=asked.pop("fused_attention", False), dropout=True, **asked
    )


SCORES = 5 * HEADS * S * S * B
SBH = S * B * H


@pytest.mark.parametrize("tp", [1, 2, 8])
@pytest.mark.parametrize(
    ("settings", "whole", "split"),
    # Korthikanti et al. 2022, table 2, in bytes: what every tensor parallel rank keeps, and what they share.
    [
        ({}, 10 * SBH, 24 * SBH + SCORES),
        ({"sequence_parallel": True}, 0, 34 * SBH + SCORES),
        ({"recompute": "selective"}, 10 * SBH, 24 * SBH),
        ({"sequence_parallel": True, "recompute": "selective"}, 0, 34 * SBH),
        ({"recompute": "full"}, 2 * SBH, 0),
        # A number of a row instead of its scores.
        ({"sequence_parallel": True, "fused_attention": True}, 0, 34 * SBH + 4 * S * B * HEADS),
    ],
)
def test_a_layer_keeps_as_many_bytes_as_published(
    tp: int, settings: dict[str, Any], whole: int, split: int
) -> None:
    assert layer_activations(GPT, made(Layout(tp=tp), **settings)) == whole + split // tp


@pytest.mark.parametrize(
    ("sequences", "pipeline", "stage", "held"),
    # Korthikanti et al. 2022, section 4.2.3: as many as stages follow; Huang et al. 2019: all.
    [
        (64, "1f1b", 0, 8),
        (64, "1f1b", 3, 5),
        (64, "1f1b", 7, 1),
        (3, "1f1b", 0, 3),
        (64, "gpipe", 5, 64),
    ],
)
def test_stages_hold_micro_batches_in_flight(
    sequences: int, pipeline: str, stage: int, held: int
) -> None:
    assert (
        parts_in_flight(Strategy(Layout(pp=8), sequences, 8, pipeline=pipeline), stage) == held
    )


@pytest.mark.parametrize("parts", [2, 3, 6])
def test_interleaving_holds_1_plus_p_minus_1_over_pm_times_all_layers(parts: int) -> None:
    strategy = Strategy(Layout(pp=8), 64, 8, pipeline="interleaved", virtual_stages=parts)
    layers_of_a_part = 96 / (8 * parts)
    assert parts_in_flight(strategy, 0) * layers_of_a_part == pytest.approx(
        96 * (1 + 7 / (8 * parts))
    )


def test_the_first_stage_of_1f1b_keeps_all_layers() -> None:
    strategy = made(Layout(tp=8, pp=8), global_batch=64 * B, sequence_parallel=True)
    first = memory_of(GPT, strategy)[0]
    assert first.activation_bytes == 96 * layer_activations(GPT, strategy) + 8 * S * B * H // 8


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
        assert memory.optimizer_bytes == pytest.approx(
            12 * (rest / 32 + of_experts / 4), abs=24
        )

    def test_fsdp_gathers_two_layers_besides(self) -> None:
        shape = named_shape("llama-2-70b")
        (memory,) = memory_of(shape, Strategy(Layout(dp=64), 64, 1024, zero_stage=3))
        assert memory.working_bytes == 6 * shape.dense_layer_parameters


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
        pipeline = "interleaved" if parts > 1 else "1f1b"
        cut_into = {"pipeline": pipeline, "virtual_stages": parts, "micro_batch": micro_batch}
        return made(Layout(tp=8, pp=stages), global_batch=sequences, **cut_into, **settings)

    plain, saved = cut(), cut(sequence_parallel=True, recompute="selective")
    assert largest_memory(shape, saved).total_bytes <= a100.memory_bytes
    assert largest_memory(shape, plain).total_bytes > a100.memory_bytes
    shrunk = (
        largest_memory(shape, plain).activation_bytes
        / largest_memory(shape, saved).activation_bytes
    )
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
            Layout(tp=tp, pp=pp, dp=4),
            zero_stage=stage,
            recompute=recompute,
            sequence_parallel=split,
        )
        of = memory_of(shape, strategy)[0]
        return of.parameter_bytes + of.gradient_bytes + of.optimizer_bytes, of.activation_bytes

    assert most(stage + 1, "none")[0] <= most(stage, "none")[0]
    assert most(stage, "full")[1] <= most(stage, "selective")[1] <= most(stage, "none")[1]


def uneven(layout: Layout) -> Strategy:
    """A strategy whose stages need not be alike."""
    return Strategy(layout, 64, 2048, uneven_stages=True)


@pytest.mark.parametrize("name", sorted(named_shapes()))
def test_one_rank_holds_everything(name: str) -> None:
    shape = named_shape(name)
    (held,) = holdings(shape, uneven(Layout()))
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


def test_of_stages_in_the_middle_the_fullest_counts() -> None:
    shape = named_shape("deepseek-v3")
    first, middle, last = holdings(shape, uneven(Layout(pp=16)))
    assert [(held.layers, held.moe_layers) for held in (first, middle, last)] == [
        (3, 0),
        (4, 4),
        (3, 3),
    ]


@given(st.sampled_from([2, 4, 8]), st.booleans(), st.booleans())
def test_stages_together_hold_the_model(stages: int, tied: bool, biases: bool) -> None:
    sizes = {"layers": 8, "hidden": 64, "heads": 8, "vocabulary": 96, "positions": 16}
    shape = make_shape({**sizes, "tied_embeddings": tied, "biases": biases})
    counts = {"first": 1, "middle": stages - 2, "last": 1}
    held = sum(
        holding.parameters * counts[holding.kind]
        for holding in holdings(shape, uneven(Layout(pp=stages)))
    )
    assert held == shape.parameters + (96 * 64 if tied else 0)


def test_a_device_is_found_by_its_name_and_by_what_machines_call_it() -> None:
    assert named_device("H100") is named_device("NVIDIA H100 80GB HBM3")


@pytest.mark.parametrize(
    ("name", "tflops", "gigabytes"),
    # Data sheets, without sparsity.
    [
        ("v100", 125, 32),
        ("a100", 312, 80),
        ("h100", 989, 80),
        ("h200", 989, 141),
        ("mi300x", 1307, 192),
    ],
)
def test_rates_are_those_of_the_data_sheets(name: str, tflops: float, gigabytes: int) -> None:
    device = named_device(name)
    assert device.peak(device.usual_dtype) == tflops * 1e12
    assert device.memory_bytes == gigabytes * 10**9


def test_devices_are_plausible_and_have_sources() -> None:
    for name, device in named_devices().items():
        assert device.source, name
        assert device.achieved_source, name
        assert 0.4 < device.achieved < 1, name
        assert 1e9 < device.memory_bytes < 1e12, name
        assert 2e11 < device.memory_bytes_per_second < 1e13, name
        assert all(1e13 < flops < 1e16 for _, flops in device.peak_flops), name


def test_models_belong_to_one_device() -> None:
    models = [
        model for device in named_devices().values() for model in (device.name, *device.models)
    ]
    assert len(models) == len(set(models))


@pytest.mark.parametrize("name", catalog_names())
def test_every_accelerator_of_the_catalog_has_a_device(name: str) -> None:
    models = {
        str(device.attributes.get("model", "any")) for device in load_catalog(name).devices
    }
    for model in models:
        if not model.startswith("any"):
            assert named_device(model)


def test_stated_rates_replace_those_of_the_table() -> None:
    stated = named_device("h100").with_rates(tflops=500, memory_bytes=10**10)
    assert (stated.peak("bfloat16"), stated.memory_bytes) == (500e12, 10**10)
    assert named_device("h100").with_rates() == named_device("h100")


def test_an_unknown_device_is_told_the_known_ones() -> None:
    with pytest.raises(UsageError, match="mi300x"):
        named_device("abacus")


@pytest.mark.parametrize(("name", "tied"), [("llama-2-70b", 0), ("gpt3-175b", 51200 * 12288)])
def test_the_ends_hold_embedding_and_head_and_of_a_tied_one_two_copies(
    name: str, tied: int
) -> None:
    shape = named_shape(name)
    first, middle, last = holdings(shape, uneven(Layout(pp=8)))
    embedding = shape.vocabulary * shape.hidden
    assert (first.around, middle.around) == (embedding + shape.positions * shape.hidden, 0)
    assert last.around == embedding + shape.norm_parameters
    assert first.tied == last.tied == tied
    (only,) = holdings(shape, uneven(Layout()))
    assert only.tied == 0
