"""Volumes against the formulas of the papers, to the byte."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ccbench.collectives import collective
from ccbench.errors import UsageError
from ccbench.groups import Layout
from ccbench.plan.communication import (
    PHASES,
    UNITS,
    Communication,
    communications,
)
from ccbench.plan.shape import ModelShape, make_shape, named_shape
from ccbench.plan.strategy import CONTEXT_KINDS, Strategy

GPT = named_shape("gpt3-175b")
MIXTRAL = named_shape("mixtral-8x7b")
B, S, H, LAYERS = 4, 2048, 12288, 96
BYTES = 2


def made(layout: Layout, **changed: Any) -> Strategy:
    return Strategy(layout, **{"global_batch": B * layout.dp, "micro_batch": B, "sequence": S, **changed})


def of(shape: ModelShape, strategy: Strategy, **wanted: str) -> list[Communication]:
    return [
        one
        for one in communications(shape, strategy)
        if all(getattr(one, name) == value for name, value in wanted.items())
    ]


def received(shape: ModelShape, strategy: Strategy, **wanted: str) -> list[Communication]:
    return [one for one in of(shape, strategy, axis="tp", **wanted) if one.purpose.startswith("received")]


def total(found: list[Communication]) -> int:
    return sum(one.total_bytes for one in found)


def sent_bytes(one: Communication) -> int:
    """Bytes that a rank sends at least in all launches, rounded up: size times nccl-tests' bus factor.

    2 (n - 1) / n of the size of an all_reduce (Patarasuk and Yuan 2009), (n - 1) / n of an all_gather,
    reduce_scatter or all_to_all, all of a send_recv.
    """
    if one.collective == "send_recv":
        return one.total_bytes
    times = 2 if one.collective == "all_reduce" else 1
    return -(-times * one.total_bytes * (one.ranks - 1) // one.ranks)


def sent(found: list[Communication]) -> int:
    return sum(sent_bytes(one) for one in found)


class TestTensorParallel:
    """Shoeybi et al. 2019, section 3; Narayanan et al. 2021, section 3.2; Korthikanti et al. 2022."""

    @pytest.mark.parametrize("tp", [2, 4, 8])
    def test_a_layer_sends_8_bsh_t_minus_1_over_t_numbers(self, tp: int) -> None:
        found = of(GPT, made(Layout(tp=tp)), axis="tp", unit="layer")
        assert {one.collective for one in found} == {"all_reduce"}
        assert sum(one.times for one in found) == 4 * LAYERS
        assert {one.size_bytes for one in found} == {B * S * H * BYTES}
        assert sent(found) == LAYERS * 8 * B * S * H * (tp - 1) // tp * BYTES

    def test_forward_and_backward_pass_have_two_all_reduces_of_a_layer_each(self) -> None:
        strategy = made(Layout(tp=8))
        for phase in ("forward", "backward"):
            (one,) = of(GPT, strategy, axis="tp", unit="layer", phase=phase)
            assert one.times == 2 * LAYERS

    def test_every_micro_batch_sends_as_much(self) -> None:
        once, four = (made(Layout(tp=8), global_batch=batch) for batch in (B, 4 * B))
        assert sent(of(GPT, four, axis="tp")) == 4 * sent(of(GPT, once, axis="tp"))

    def test_recomputation_of_whole_layers_sends_half_as_much_again(self) -> None:
        plain, full = (made(Layout(tp=8), recompute=kind) for kind in ("none", "full"))
        once = sent(of(GPT, plain, axis="tp", unit="layer"))
        assert sent(of(GPT, full, axis="tp", unit="layer")) * 2 == once * 3

    def test_selective_recomputation_sends_nothing_more(self) -> None:
        plain, selective = (made(Layout(tp=8), recompute=kind) for kind in ("none", "selective"))
        assert communications(GPT, plain) == communications(GPT, selective)

    @pytest.mark.parametrize("tp", [2, 8])
    def test_sequence_parallelism_sends_the_same_in_four_gathers_and_four_scatters(self, tp: int) -> None:
        split = of(GPT, made(Layout(tp=tp), sequence_parallel=True), axis="tp", unit="layer")
        again = [one for one in split if one.purpose == "inputs for gradients of weights"]
        counted = [one for one in split if one not in again]
        gathers = sum(one.times for one in counted if one.collective == "all_gather")
        scatters = sum(one.times for one in counted if one.collective == "reduce_scatter")
        assert (gathers, scatters) == (4 * LAYERS, 4 * LAYERS)
        assert sent(counted) == sent(of(GPT, made(Layout(tp=tp)), axis="tp", unit="layer"))

    def test_inputs_gathered_again_for_weights_hide_behind_their_inputs_gradients(self) -> None:
        split = of(GPT, made(Layout(tp=8), sequence_parallel=True), axis="tp", unit="layer")
        (again,) = [one for one in split if one.can_hide]
        assert (again.collective, again.phase, again.times) == ("all_gather", "backward", 2 * LAYERS)

    def test_norms_and_biases_are_summed_once_a_step_where_the_sequence_is_split(self) -> None:
        """Per layer two LayerNorms of 2 h and two late biases of h; one LayerNorm at the end."""
        (one,) = of(GPT, made(Layout(tp=8), sequence_parallel=True), axis="tp", unit="step")
        assert (one.collective, one.size_bytes, one.times) == ("all_reduce", (6 * LAYERS + 2) * H * BYTES, 1)
        assert not of(GPT, made(Layout(tp=8)), axis="tp", unit="step")

    def test_the_loss_needs_three_numbers_of_a_token_instead_of_its_logits(self) -> None:
        (one,) = of(GPT, made(Layout(tp=8)), purpose="loss")
        assert (one.collective, one.size_bytes, one.times) == ("all_reduce", B * S * 4, 3)

    def test_embedding_and_head_send_bsh_forward_and_bsh_backward(self) -> None:
        plain = [one for one in of(GPT, made(Layout(tp=8)), unit="micro_batch") if one.purpose != "loss"]
        assert [(one.phase, one.size_bytes) for one in plain] == [
            ("forward", B * S * H * BYTES),
            ("backward", B * S * H * BYTES),
        ]

    def test_one_rank_sends_nothing(self) -> None:
        assert communications(GPT, made(Layout())) == ()


class TestDataParallel:
    """Rajbhandari et al. 2020, section 7: psi parameters; an all_reduce counts as two."""

    @pytest.mark.parametrize(("stage", "times"), [(0, 2), (1, 2), (2, 2), (3, 3)])
    @pytest.mark.parametrize("name", ["gpt3-175b", "llama-2-70b", "gpt2-xl"])
    def test_zero_moves_2_2_2_and_3_psi(self, name: str, stage: int, times: int) -> None:
        shape = named_shape(name)
        found = of(shape, made(Layout(dp=64), zero_stage=stage), axis="dp")
        moved = sum(one.total_bytes * (2 if one.collective == "all_reduce" else 1) for one in found)
        assert moved == times * shape.parameters * BYTES

    @pytest.mark.parametrize("stage", [1, 2, 3])
    def test_gradients_are_scattered_and_parameters_gathered(self, stage: int) -> None:
        found = of(GPT, made(Layout(dp=64), zero_stage=stage), axis="dp")
        scattered = total([one for one in found if one.collective == "reduce_scatter"])
        gathered = total([one for one in found if one.collective == "all_gather"])
        assert scattered == GPT.parameters * BYTES
        assert gathered == (2 if stage == 3 else 1) * GPT.parameters * BYTES

    def test_gradients_and_parameters_have_sizes_of_their_own(self) -> None:
        found = of(GPT, made(Layout(dp=64), zero_stage=1, gradient_bytes=4), axis="dp")
        assert total(found) == (4 + 2) * GPT.parameters

    def test_buckets_are_full_but_for_the_last(self) -> None:
        """Li et al. 2020: 25 MiB by default."""
        full, rest = of(GPT, made(Layout(dp=64)), axis="dp")
        assert full.size_bytes == 25 * 2**20
        assert (full.times, rest.times) == (GPT.parameters * BYTES // 26214400, 1)
        assert 0 < rest.size_bytes < full.size_bytes

    def test_whole_gradients_wait_for_the_last_micro_batch(self) -> None:
        once, four = (made(Layout(dp=8), global_batch=8 * batch) for batch in (B, 4 * B))
        assert of(GPT, once, axis="dp") == of(GPT, four, axis="dp")

    @pytest.mark.parametrize(("stage", "gathers"), [(2, 1), (3, 8)])
    def test_split_gradients_are_reduced_after_every_micro_batch(self, stage: int, gathers: int) -> None:
        found = of(GPT, made(Layout(dp=8), zero_stage=stage, global_batch=32 * B), axis="dp")
        scattered = [one for one in found if one.collective == "reduce_scatter"]
        assert total(scattered) == 4 * GPT.parameters * BYTES
        assert total(found) - total(scattered) == gathers * GPT.parameters * BYTES

    @pytest.mark.parametrize("stage", [2, 3])
    def test_gradients_that_are_kept_are_reduced_once_a_step(self, stage: int) -> None:
        strategy = made(Layout(dp=8), zero_stage=stage, keep_gradients=True, global_batch=32 * B)
        found = of(GPT, strategy, axis="dp", collective="reduce_scatter")
        assert total(found) == GPT.parameters * BYTES

    def test_parameters_that_are_kept_are_gathered_once_a_step(self) -> None:
        strategy = made(Layout(dp=8), zero_stage=3, reshard=False, global_batch=32 * B)
        gathered = [one for one in of(GPT, strategy, axis="dp") if one.collective == "all_gather"]
        assert total(gathered) == GPT.parameters * BYTES

    def test_fsdp_gathers_layer_by_layer(self) -> None:
        found = of(GPT, made(Layout(dp=8), zero_stage=3), phase="forward", collective="all_gather")
        assert [one.times for one in found] == [1, LAYERS]
        assert found[1].size_bytes == GPT.dense_layer_parameters * BYTES

    def test_context_parallel_ranks_hold_the_same_parameters(self) -> None:
        found = of(GPT, made(Layout(dp=4, cp=2)), axis="dp-cp")
        assert total(found) == GPT.parameters * BYTES
        assert {one.ranks for one in found} == {8}

    @given(st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4, 8]), st.integers(0, 3), st.booleans())
    def test_all_ranks_together_reduce_every_parameter(
        self, tp: int, pp: int, stage: int, tied: bool
    ) -> None:
        """What tensor parallel ranks and first and last stage hold twice comes on top."""
        shape = make_shape({"layers": 8, "hidden": 64, "heads": 8, "vocabulary": 96, "tied_embeddings": tied})
        strategy = made(Layout(tp=tp, pp=pp, dp=2), zero_stage=stage, global_batch=2 * B)
        stages = {"only": 1, "first": 1, "middle": pp - 2, "last": 1}
        reduced = sum(
            one.total_bytes * stages[one.stage] * tp
            for one in of(shape, strategy, axis="dp")
            if one.collective in ("all_reduce", "reduce_scatter")
        )
        norms = (2 * shape.layers + 1) * 64
        twice = 96 * 64 if tied and pp > 1 else 0
        assert reduced == (shape.parameters + (tp - 1) * norms + twice) * BYTES


class TestPipeline:
    """Narayanan et al. 2021, sections 2.2 and 4.1."""

    @pytest.mark.parametrize("parts", [1, 2, 3])
    def test_a_boundary_passes_bsh_forward_and_back_for_every_micro_batch_and_part(self, parts: int) -> None:
        pipeline = "interleaved" if parts > 1 else "1f1b"
        strategy = made(Layout(pp=8), global_batch=16 * B, pipeline=pipeline, virtual_stages=parts)
        for stage in ("first", "middle", "last"):
            found = of(GPT, strategy, axis="pp", collective="send_recv", stage=stage)
            assert [(one.size_bytes, one.times) for one in found] == [(B * S * H * BYTES, 16 * parts)] * 2
            assert {one.phase for one in found} == {"pipeline"}

    def test_the_scatter_gather_optimisation_sends_a_t_th_and_gathers_it(self) -> None:
        strategy = made(Layout(tp=8, pp=8), global_batch=16 * B)
        found = of(GPT, strategy, axis="pp", collective="send_recv", stage="middle")
        assert {one.size_bytes for one in found} == {B * S * H * BYTES // 8}
        gathered = received(GPT, strategy, stage="middle")
        assert {one.phase for one in gathered} == {"forward", "backward"}
        assert [(one.size_bytes, one.times) for one in gathered] == [(B * S * H * BYTES, 16)] * 2

    def test_without_it_every_tensor_parallel_rank_sends_all(self) -> None:
        strategy = made(Layout(tp=8, pp=8), global_batch=16 * B, scatter_gather=False)
        found = of(GPT, strategy, phase="pipeline", stage="middle")
        assert {(one.axis, one.size_bytes) for one in found} == {("pp", B * S * H * BYTES)}
        assert not received(GPT, strategy)

    def test_a_split_sequence_is_sent_as_it_lies(self) -> None:
        strategy = made(Layout(tp=8, pp=8), sequence_parallel=True, scatter_gather=False)
        found = of(GPT, strategy, phase="pipeline", stage="middle")
        assert {(one.axis, one.size_bytes) for one in found} == {("pp", B * S * H * BYTES // 8)}
        assert not received(GPT, strategy)

    def test_the_ends_gather_only_what_they_receive(self) -> None:
        strategy = made(Layout(tp=8, pp=8), global_batch=16 * B)
        (first,) = received(GPT, strategy, stage="first")
        (last,) = received(GPT, strategy, stage="last")
        assert (first.purpose, last.purpose) == ("received gradients of activations", "received activations")

    def test_a_shared_embedding_is_summed_between_first_and_last_stage(self) -> None:
        found = of(GPT, made(Layout(tp=8, pp=8)), purpose="gradients of the shared embedding")
        assert [(one.stage, one.ranks, one.size_bytes, one.times) for one in found] == [
            (stage, 2, 51200 * H // 8 * BYTES, 1) for stage in ("first", "last")
        ]
        llama = named_shape("llama-2-70b")
        assert not of(llama, made(Layout(tp=8, pp=8)), purpose="gradients of the shared embedding")

    def test_only_the_ends_have_embedding_and_loss(self) -> None:
        strategy = made(Layout(tp=8, pp=8))
        assert {one.stage for one in of(GPT, strategy, purpose="embedding")} == {"first"}
        assert {one.stage for one in of(GPT, strategy, purpose="loss")} == {"last"}


class TestExperts:
    """GShard (Lepikhin et al. 2020, section 3); Switch (Fedus et al. 2021, section 2.2)."""

    TOKENS, WIDTH, TOP_K = B * S, 4096, 2

    def test_a_layer_has_two_exchanges_forward_and_two_backward(self) -> None:
        for phase in ("forward", "backward"):
            found = of(MIXTRAL, made(Layout(dp=8, ep=8)), axis="ep", phase=phase)
            assert [(one.collective, one.times) for one in found] == [("all_to_all", 32)] * 2

    def test_each_moves_every_token_to_top_k_experts(self) -> None:
        found = of(MIXTRAL, made(Layout(dp=8, ep=8)), axis="ep")
        assert {one.size_bytes for one in found} == {self.TOKENS * self.TOP_K * self.WIDTH * BYTES}
        assert sent(found) == 4 * 32 * self.TOKENS * self.TOP_K * self.WIDTH * BYTES * 7 // 8

    def test_recomputation_of_whole_layers_exchanges_twice_more(self) -> None:
        found = of(MIXTRAL, made(Layout(dp=8, ep=8), recompute="full"), axis="ep")
        assert sum(one.times for one in found) == 6 * 32

    def test_a_capacity_pads_every_experts_share(self) -> None:
        found = of(MIXTRAL, made(Layout(dp=8, ep=8), capacity=1.25), axis="ep")
        assert {one.size_bytes for one in found} == {self.TOKENS * self.TOP_K * 5 // 4 * self.WIDTH * BYTES}

    def test_padding_is_a_whole_number_of_places(self) -> None:
        strategy = Strategy(Layout(dp=8, ep=8), 8, 100, capacity=1.01)
        (size,) = {one.size_bytes for one in of(MIXTRAL, strategy, axis="ep")}
        assert size == 8 * 26 * self.WIDTH * BYTES  # 200 rows x 1.01 / 8 = 25.25

    def test_uneven_traffic_makes_an_all_to_all_v_of_the_same_tokens(self) -> None:
        found = of(MIXTRAL, made(Layout(dp=8, ep=8), traffic="zipf:1.20"), axis="ep")
        assert {(one.collective, one.traffic) for one in found} == {("all_to_all_v", "zipf:1.2")}
        assert {one.size_bytes for one in found} == {self.TOKENS * self.TOP_K * self.WIDTH * BYTES}

    def test_a_matrix_of_another_size_is_refused(self) -> None:
        with pytest.raises(UsageError, match="a matrix of 2 rows for 8 ranks"):
            communications(
                MIXTRAL,
                made(Layout(tp=2, dp=8, ep=8), sequence_parallel=True, traffic="[[1, 2], [2, 1]]"),
            )

    def test_tensor_parallel_ranks_send_each_their_part_of_the_tokens(self) -> None:
        strategy = made(Layout(tp=2, dp=4, ep=8, etp=1), sequence_parallel=True)
        found = of(MIXTRAL, strategy, axis="ep")
        assert {one.size_bytes for one in found} == {self.TOKENS // 2 * self.TOP_K * self.WIDTH * BYTES}
        assert not of(MIXTRAL, strategy, axis="etp")

    def test_tensor_parallel_experts_gather_tokens_and_add_up_outputs(self) -> None:
        strategy = made(Layout(tp=2, dp=8, ep=8), sequence_parallel=True)
        found = of(MIXTRAL, strategy, axis="etp")
        assert {one.size_bytes for one in found} == {self.TOKENS * self.TOP_K * self.WIDTH * BYTES}
        assert sorted(one.collective for one in found) == ["all_gather"] * 2 + ["reduce_scatter"] * 2

    def test_the_busiest_expert_gathers_more(self) -> None:
        def gathered(traffic: str) -> int:
            strategy = made(Layout(tp=2, dp=8, ep=8), sequence_parallel=True, traffic=traffic)
            return max(one.size_bytes for one in of(MIXTRAL, strategy, axis="etp"))

        assert gathered("hot:0.5") == 4 * gathered("")  # half of all tokens instead of an eighth

    def test_routed_layers_have_no_tensor_parallel_output_but_shared_experts_do(self) -> None:
        def times(shape: ModelShape) -> int:
            strategy = made(Layout(tp=2, dp=8, ep=8 if shape.experts else 1), sequence_parallel=True)
            return of(shape, strategy, axis="tp", purpose="outputs")[0].times

        values = {"layers": 4, "hidden": 64, "heads": 4, "vocabulary": 64, "dense_layers": 1}
        mixed = {**values, "experts": 8, "top_k": 2, "expert_ffn_hidden": 32}
        assert times(make_shape(values | {"dense_layers": 0})) == 8
        assert times(make_shape(mixed)) == 4 + 1
        assert times(make_shape(mixed | {"shared_experts": 1})) == 4 + 1 + 3

    def test_experts_gradients_are_reduced_over_ranks_that_hold_the_same(self) -> None:
        found = of(MIXTRAL, made(Layout(dp=32, ep=8)), axis="edp")
        assert {one.ranks for one in found} == {4}
        assert total(found) == 32 * MIXTRAL.expert_parameters * BYTES  # one of eight, in 32 layers
        rest = MIXTRAL.parameters - 32 * 8 * MIXTRAL.expert_parameters
        assert total(of(MIXTRAL, made(Layout(dp=32, ep=8)), axis="dp")) == rest * BYTES


class TestContextParallel:
    LLAMA = named_shape("llama-3-8b")

    def test_a_ring_passes_4_c_d_bytes_each_time(self) -> None:
        """Liu et al. 2023, section 3: blocks of c tokens and d numbers, keys and values."""
        (one,) = of(GPT, made(Layout(cp=8)), axis="cp", phase="forward")
        assert (one.collective, one.size_bytes) == ("send_recv", 4 * (B * S // 8) * H)
        assert one.times == 7 * LAYERS
        assert one.can_hide

    def test_back_go_keys_and_values_and_their_gradients(self) -> None:
        strategy = made(Layout(cp=8))
        assert total(of(GPT, strategy, axis="cp", phase="backward")) == 2 * total(
            of(GPT, strategy, axis="cp", phase="forward")
        )

    def test_fewer_heads_of_keys_and_values_pass_less(self) -> None:
        (one,) = of(self.LLAMA, made(Layout(cp=8)), axis="cp", phase="forward")
        assert one.size_bytes == 2 * B * S // 8 * 8 * 128 * BYTES

    def test_gathering_sends_as_much_as_the_ring(self) -> None:
        """Grattafiori et al. 2024, section 3.3.2: all keys and values on every rank."""
        (one,) = of(self.LLAMA, made(Layout(cp=8), context_kind="all_gather"), axis="cp", phase="forward")
        assert (one.collective, one.size_bytes) == ("all_gather", 2 * B * S * 8 * 128 * BYTES)
        ring = of(self.LLAMA, made(Layout(cp=8)), axis="cp", phase="forward")
        assert sent_bytes(one) == sent(ring)

    @pytest.mark.parametrize("cp", [2, 4, 8])
    def test_ulysses_sends_4_n_h_over_p_forward_and_as_much_backward(self, cp: int) -> None:
        """Jacobs et al. 2023, section 3.2: 3 N h for queries, keys and values, N h for outputs."""
        for phase in ("forward", "backward"):
            strategy = made(Layout(cp=cp), context_kind="ulysses")
            found = of(GPT, strategy, axis="cp", phase=phase)
            assert {one.collective for one in found} == {"all_to_all"}
            assert sum(one.times for one in found) == 4 * LAYERS
            assert total(found) == LAYERS * 4 * B * S * H // cp * BYTES

    def test_ulysses_repeats_heads_that_are_fewer_than_ranks(self) -> None:
        found = of(self.LLAMA, made(Layout(cp=16), context_kind="ulysses"), axis="cp", phase="forward")
        assert found[1].size_bytes == B * S // 16 * 16 * 128 * BYTES

    @pytest.mark.parametrize("kind", CONTEXT_KINDS)
    @pytest.mark.parametrize("recompute", ["selective", "full"])
    def test_what_attention_recomputes_it_communicates_again(self, kind: str, recompute: str) -> None:
        settings = {"context_kind": kind, "fused_attention": False}
        plain = of(GPT, made(Layout(cp=8), **settings), axis="cp")
        again = of(GPT, made(Layout(cp=8), recompute=recompute, **settings), axis="cp")
        forward = [one for one in plain if one.phase == "forward"]
        assert total(again) == total(plain) + total(forward)

    @pytest.mark.parametrize("kind", CONTEXT_KINDS)
    def test_fused_attention_leaves_nothing_to_recompute_selectively(self, kind: str) -> None:
        plain, selective = (
            of(GPT, made(Layout(cp=8), context_kind=kind, recompute=recompute), axis="cp")
            for recompute in ("none", "selective")
        )
        assert plain == selective


LAYOUTS = [
    Layout(tp=2, cp=2, dp=4, pp=4, ep=4),
    Layout(tp=2, dp=8, pp=2, ep=8, etp=1),
    Layout(cp=2, dp=8, ep=4),
    Layout(tp=4, dp=4, pp=8, ep=2, etp=1),
]


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from(LAYOUTS),
    st.sampled_from(["gpt3-175b", "mixtral-8x7b", "llama-3-70b"]),
    st.integers(0, 3),
    st.sampled_from(["none", "selective", "full"]),
    st.sampled_from(CONTEXT_KINDS),
    st.sampled_from(["", "zipf:1", "hot:0.5"]),
)
def test_every_communication_is_a_collective_of_a_group_of_the_layout(
    layout: Layout, name: str, stage: int, recompute: str, context: str, traffic: str
) -> None:
    shape = named_shape(name)
    if not shape.experts:
        layout = Layout(tp=layout.tp, cp=layout.cp, dp=layout.dp, pp=layout.pp)
    strategy = Strategy(
        layout, 32, 4096, zero_stage=stage, recompute=recompute, context_kind=context,
        traffic=traffic, sequence_parallel=True,
    )  # fmt: skip
    for one in communications(shape, strategy):
        shared = one.purpose == "gradients of the shared embedding"
        assert one.ranks == (2 if shared else layout.size(one.axis)) > 1
        assert one.size_bytes > 0
        assert one.times > 0
        assert one.phase in PHASES
        assert one.unit in UNITS
        assert one.stage in ("only", "first", "middle", "last")
        assert (one.collective == "all_to_all_v") == bool(one.traffic)
        factor = collective(one.collective).bus_factor(one.ranks)
        assert sent_bytes(one) == pytest.approx(one.total_bytes * factor, abs=1)
