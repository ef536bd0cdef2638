"""Volumes against the formulas of the papers, to the byte."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.errors import UsageError
from ccbench.groups import Layout
from ccbench.plan.communication import PHASES, UNITS, StepCommunication, communications
from ccbench.plan.shape import ModelShape, make_shape, named_shape
from ccbench.plan.strategy import CONTEXT_KINDS, Strategy

GPT = named_shape("gpt3-175b")
LLAMA = named_shape("llama-3-8b")
MIXTRAL = named_shape("mixtral-8x7b")
B, S, H, LAYERS = 4, 2048, 12288, 96
BYTES = 2


def made(layout: Layout, **changed: Any) -> Strategy:
    return Strategy(
        layout, **{"global_batch": B * layout.dp, "micro_batch": B, "sequence": S, **changed}
    )


def of(shape: ModelShape, strategy: Strategy, **fields: str) -> list[StepCommunication]:
    return [
        communication
        for communication in communications(shape, strategy)
        if all(getattr(communication, name) == value for name, value in fields.items())
    ]


Launch = tuple[str, str, int, int]
"""Phase, collective, size in bytes of one launch, launches in a step."""

STREAM = B * S * H * BYTES
BOTH_WAYS = [("pipeline", "send_recv", STREAM // 8, 16)] * 2
# The tokens of a micro-batch, each to two of Mixtral's eight experts.
ROUTED = B * S * 2 * 4096 * BYTES
IN_STAGES = made(Layout(tp=8, pp=8), global_batch=16 * B)


def launches(
    label: str, shape: ModelShape, strategy: Strategy, *expected: Launch, **wanted: str
) -> Any:
    """A row: the communications of a strategy, of those that are ``wanted``."""
    return pytest.param(shape, strategy, wanted, list(expected), id=label)


VOLUMES = [
    # Shoeybi et al. 2019, section 3; Narayanan et al. 2021, section 3.2; Korthikanti et al. 2022.
    launches(
        "a layer has two all_reduces in each pass, embedding and head one, and the loss needs three numbers",
        GPT,
        made(Layout(tp=8)),
        ("forward", "all_reduce", STREAM, 2 * LAYERS),
        ("backward", "all_reduce", STREAM, 2 * LAYERS),
        ("forward", "all_reduce", STREAM, 1),
        ("backward", "all_reduce", STREAM, 1),
        ("forward", "all_reduce", B * S * 4, 3),
    ),
    launches(
        "recomputation of whole layers sends half as much again in every micro-batch",
        GPT,
        made(Layout(tp=8), recompute="full", global_batch=4 * B),
        ("forward", "all_reduce", STREAM, 8 * LAYERS),
        ("backward", "all_reduce", STREAM, 8 * LAYERS),
        ("backward", "all_reduce", STREAM, 8 * LAYERS),
        unit="layer",
    ),
    launches(
        "selective recomputation sends nothing more",
        GPT,
        made(Layout(tp=8), recompute="selective"),
        ("forward", "all_reduce", STREAM, 2 * LAYERS),
        ("backward", "all_reduce", STREAM, 2 * LAYERS),
        unit="layer",
    ),
    # Once a step two LayerNorms of 2 h and two late biases of h for each layer, and one LayerNorm at the end.
    launches(
        "sequence parallelism gathers and scatters, and gathers inputs again for gradients of weights",
        GPT,
        made(Layout(tp=8), sequence_parallel=True),
        ("forward", "all_gather", STREAM, 2 * LAYERS),
        ("forward", "reduce_scatter", STREAM, 2 * LAYERS),
        ("backward", "all_gather", STREAM, 2 * LAYERS),
        ("backward", "reduce_scatter", STREAM, 2 * LAYERS),
        ("backward", "all_gather", STREAM, 2 * LAYERS),
        ("optimizer", "all_reduce", (6 * LAYERS + 2) * H * BYTES, 1),
        ("forward", "reduce_scatter", STREAM, 1),
        ("backward", "all_gather", STREAM, 1),
        ("forward", "all_gather", STREAM, 1),
        ("backward", "all_gather", STREAM, 1),
        ("backward", "reduce_scatter", STREAM, 1),
        ("forward", "all_reduce", B * S * 4, 3),
    ),
    launches("one rank sends nothing", GPT, made(Layout())),
    launches(
        "FSDP gathers layer by layer",
        GPT,
        made(Layout(dp=8), zero_stage=3),
        ("forward", "all_gather", ((51200 + 2048) * H + 2 * H) * BYTES, 1),
        ("forward", "all_gather", GPT.dense_layer_parameters * BYTES, LAYERS),
        phase="forward",
    ),
    # Narayanan et al. 2021, sections 2.2 and 4.1.
    launches(
        "a boundary passes a t-th forward and back for every micro-batch",
        GPT,
        IN_STAGES,
        *BOTH_WAYS,
        stage="middle",
        phase="pipeline",
    ),
    launches(
        "an interleaved stage passes as often as it has parts",
        GPT,
        made(Layout(pp=8), global_batch=16 * B, pipeline="interleaved", virtual_stages=3),
        *[("pipeline", "send_recv", STREAM, 48)] * 2,
        stage="first",
        phase="pipeline",
    ),
    launches(
        "without scatter and gather every tensor parallel rank sends all",
        GPT,
        replace(IN_STAGES, scatter_gather=False),
        *[("pipeline", "send_recv", STREAM, 16)] * 2,
        stage="middle",
        phase="pipeline",
    ),
    launches(
        "a split sequence is sent as it lies",
        GPT,
        replace(IN_STAGES, sequence_parallel=True, scatter_gather=False),
        *BOTH_WAYS,
        stage="middle",
        phase="pipeline",
    ),
    launches(
        "an embedding that first and last stage share is summed",
        GPT,
        IN_STAGES,
        *[("optimizer", "all_reduce", 51200 * H // 8 * BYTES, 1)] * 2,
        phase="optimizer",
    ),
    launches(
        "a head of its own is not summed",
        named_shape("llama-2-70b"),
        IN_STAGES,
        phase="optimizer",
    ),
    # GShard (Lepikhin et al. 2020, section 3); Switch (Fedus et al. 2021, section 2.2).
    launches(
        "a layer exchanges tokens with experts twice in each pass, and twice more if recomputed",
        MIXTRAL,
        made(Layout(dp=8, ep=8), recompute="full"),
        *[("forward", "all_to_all", ROUTED, 32)] * 2,
        *[("backward", "all_to_all", ROUTED, 32)] * 4,
        axis="ep",
    ),
    launches(
        "a capacity pads every expert's share",
        MIXTRAL,
        made(Layout(dp=8, ep=8), capacity=1.25),
        *[("forward", "all_to_all", ROUTED * 5 // 4, 32)] * 2,
        axis="ep",
        phase="forward",
    ),
    launches(
        # 200 rows x 1.01 / 8 = 25.25
        "padding is a whole number of places",
        MIXTRAL,
        Strategy(Layout(dp=8, ep=8), 8, 100, capacity=1.01),
        *[("forward", "all_to_all", 8 * 26 * 4096 * BYTES, 32)] * 2,
        axis="ep",
        phase="forward",
    ),
    launches(
        "uneven traffic is of the same tokens",
        MIXTRAL,
        made(Layout(dp=8, ep=8), traffic="zipf:1.20"),
        *[("forward", "all_to_all_v", ROUTED, 32)] * 2,
        traffic="zipf:1.2",
        phase="forward",
    ),
    launches(
        "tensor parallel ranks send each their part of the tokens, and whole experts gather none",
        MIXTRAL,
        made(Layout(tp=2, dp=4, ep=8, etp=1), sequence_parallel=True),
        *[("forward", "all_to_all", ROUTED // 2, 32)] * 2,
        phase="forward",
        stage="only",
        axis="ep",
    ),
    # The busiest gathers half of all tokens instead of an eighth.
    *[
        launches(
            f"tensor parallel experts gather tokens and add up outputs, traffic {traffic!r}",
            MIXTRAL,
            made(Layout(tp=2, dp=8, ep=8), sequence_parallel=True, traffic=traffic),
            ("forward", "all_gather", busiest * ROUTED, 32),
            ("forward", "reduce_scatter", busiest * ROUTED, 32),
            axis="etp",
            phase="forward",
        )
        for traffic, busiest in (("", 1), ("hot:0.5", 4))
    ],
    # Liu et al. 2023, section 3: blocks of c tokens and d numbers, keys and values; back their gradients too.
    launches(
        "a ring passes 4 c d bytes each time",
        GPT,
        made(Layout(cp=8)),
        ("forward", "send_recv", 4 * (B * S // 8) * H, 7 * LAYERS),
        *[("backward", "send_recv", 4 * (B * S // 8) * H, 7 * LAYERS)] * 2,
        axis="cp",
    ),
    launches(
        "fewer heads of keys and values pass less",
        LLAMA,
        made(Layout(cp=8)),
        ("forward", "send_recv", 2 * B * S // 8 * 8 * 128 * BYTES, 7 * 32),
        axis="cp",
        phase="forward",
    ),
    # Grattafiori et al. 2024, section 3.3.2: all keys and values on every rank.
    launches(
        "gathering brings all keys and values at once",
        LLAMA,
        made(Layout(cp=8), context_kind="all_gather"),
        ("forward", "all_gather", 2 * B * S * 8 * 128 * BYTES, 32),
        axis="cp",
        phase="forward",
    ),
    # Jacobs et al. 2023, section 3.2: 3 N h for queries, keys and values, N h for outputs.
    launches(
        "ulysses sends 4 N h / p in each pass",
        GPT,
        made(Layout(cp=8), context_kind="ulysses"),
        *[("forward", "all_to_all", STREAM // 8, times * LAYERS) for times in (1, 2, 1)],
        *[("backward", "all_to_all", STREAM // 8, times * LAYERS) for times in (1, 2, 1)],
        axis="cp",
    ),
    launches(
        "ulysses repeats heads that are fewer than ranks",
        LLAMA,
        made(Layout(cp=16), context_kind="ulysses"),
        ("forward", "all_to_all", B * S // 16 * 16 * 128 * BYTES, 2 * 32),
        purpose="keys and values",
    ),
]


@pytest.mark.parametrize(("shape", "strategy", "wanted", "expected"), VOLUMES)
def test_a_step_launches(
    shape: ModelShape, strategy: Strategy, wanted: dict[str, str], expected: list[Launch]
) -> None:
    found = of(shape, strategy, **wanted)
    assert [(one.phase, one.collective, one.size_bytes, one.times) for one in found] == expected


def test_only_inputs_gathered_again_hide_behind_computing_unless_it_is_asked_for() -> None:
    split = made(Layout(tp=8), sequence_parallel=True)
    assert {one.purpose for one in of(GPT, split, axis="tp") if one.can_hide} == {
        "inputs for gradients of weights",
        "inputs of head again",
    }
    assert all(one.can_hide for one in of(GPT, made(Layout(cp=8)), axis="cp"))


# Rajbhandari et al. 2020, section 7: psi parameters; an all_reduce counts as two.
@pytest.mark.parametrize(("name", "cp"), [("gpt3-175b", 1), ("llama-2-70b", 2), ("gpt2-xl", 1)])
@pytest.mark.parametrize(
    ("changed", "psi"),
    [
        ({}, {"all_reduce": 1}),
        ({"zero_stage": 1}, {"reduce_scatter": 1, "all_gather": 1}),
        ({"zero_stage": 1, "gradient_bytes": 4}, {"reduce_scatter": 2, "all_gather": 1}),
        # Whole gradients wait for the last of four micro-batches, split ones are reduced after each.
        ({"zero_stage": 2}, {"reduce_scatter": 4, "all_gather": 1}),
        ({"zero_stage": 2, "keep_gradients": True}, {"reduce_scatter": 1, "all_gather": 1}),
        ({"zero_stage": 3}, {"reduce_scatter": 4, "all_gather": 8}),
        ({"zero_stage": 3, "keep_gradients": True}, {"reduce_scatter": 1, "all_gather": 8}),
        ({"zero_stage": 3, "reshard": False}, {"reduce_scatter": 4, "all_gather": 1}),
        ({"zero_stage": 3, "global_batch": 8 * B}, {"reduce_scatter": 1, "all_gather": 2}),
    ],
)
def test_gradients_are_reduced_and_parameters_gathered(
    name: str, cp: int, changed: dict[str, Any], psi: dict[str, int]
) -> None:
    shape, layout = named_shape(name), Layout(dp=8, cp=cp)
    moved: Counter[str] = Counter()
    # Context parallel ranks hold the same parameters.
    axis = "dp-cp" if cp > 1 else "dp"
    for one in of(shape, made(layout, **{"global_batch": 32 * B, **changed}), axis=axis):
        assert one.ranks == 8 * cp
        moved[one.collective] += one.total_bytes
    assert moved == {name: times * shape.parameters * BYTES for name, times in psi.items()}


def test_buckets_are_full_but_for_the_last() -> None:
    """Li et al. 2020: 25 MiB by default."""
    full, rest = of(GPT, made(Layout(dp=64)), axis="dp")
    assert full.size_bytes == 25 * 2**20
    assert (full.times, rest.times) == (GPT.parameters * BYTES // 26214400, 1)
    assert 0 < rest.size_bytes < full.size_bytes


@given(
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from([1, 2, 4, 8]),
    st.integers(0, 3),
    st.booleans(),
)
def test_all_ranks_together_reduce_every_parameter(
    tp: int, pp: int, stage: int, tied: bool
) -> None:
    """What tensor parallel ranks and first and last stage hold twice comes on top."""
    shape = make_shape(
        {"layers": 8, "hidden": 64, "heads": 8, "vocabulary": 96, "tied_embeddings": tied}
    )
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


def test_what_a_stage_receives_is_gathered_and_the_ends_receive_from_one_side() -> None:
    received = [
        (one.stage, one.purpose, one.phase, one.size_bytes, one.times)
        for one in of(GPT, IN_STAGES, axis="tp", collective="all_gather")
    ]
    down = ("received activations", "forward", STREAM, 16)
    up = ("received gradients of activations", "backward", STREAM, 16)
    assert received == [("first", *up), ("middle", *down), ("middle", *up), ("last", *down)]
    for changed in ({"scatter_gather": False}, {"sequence_parallel": True}):
        found = of(GPT, made(Layout(tp=8, pp=8), **changed))
        assert not any(one.purpose.startswith("received") for one in found)


def test_only_the_ends_have_embedding_and_loss() -> None:
    assert {one.stage for one in of(GPT, IN_STAGES, purpose="embedding")} == {"first"}
    assert {one.stage for one in of(GPT, IN_STAGES, purpose="loss")} == {"last"}
    shared = of(GPT, IN_STAGES, purpose="gradients of the shared embedding")
    assert [one.stage for one in shared] == ["first", "last"]


def test_a_matrix_of_another_size_is_refused() -> None:
    strategy = made(
        Layout(tp=2, dp=8, ep=8), sequence_parallel=True, traffic="[[1, 2], [2, 1]]"
    )
    with pytest.raises(UsageError, match="a matrix of 2 rows for 8 ranks"):
        communications(MIXTRAL, strategy)


@pytest.mark.parametrize(
    ("mixed", "times"),
    [
        ({}, 8),
        ({"experts": 8, "dense_layers": 1}, 4 + 1),
        ({"experts": 8, "dense_layers": 1, "shared_experts": 1}, 4 + 1 + 3),
    ],
)
def test_routed_layers_have_no_tensor_parallel_output_but_shared_experts_do(
    mixed: dict[str, int], times: int
) -> None:
    routed = {"top_k": 2, "expert_ffn_hidden": 32} if mixed else {}
    shape = make_shape(
        {"layers": 4, "hidden": 64, "heads": 4, "vocabulary": 64, **routed, **mixed}
    )
    strategy = made(Layout(tp=2, dp=8, ep=8 if mixed else 1), sequence_parallel=True)
    (outputs,) = of(shape, strategy, axis="tp", purpose="outputs")
    assert outputs.times == times


def test_experts_gradients_are_reduced_over_ranks_that_hold_the_same() -> None:
    found = of(MIXTRAL, made(Layout(dp=32, ep=8)), axis="edp")
    assert {one.ranks for one in found} == {4}
    # One of eight, in 32 layers.
    assert sum(one.total_bytes for one in found) == 32 * MIXTRAL.expert_parameters * BYTES
    rest = MIXTRAL.parameters - 32 * 8 * MIXTRAL.expert_parameters
    dense = of(MIXTRAL, made(Layout(dp=32, ep=8)), axis="dp")
    assert sum(one.total_bytes for one in dense) == rest * BYTES


@pytest.mark.parametrize("kind", CONTEXT_KINDS)
@pytest.mark.parametrize(
    ("recompute", "fused", "again"),
    [("selective", False, 1), ("full", False, 1), ("selective", True, 0)],
)
def test_what_attention_recomputes_it_communicates_again(
    kind: str, recompute: str, fused: bool, again: int
) -> None:
    def sent(recompute: str, **phase: str) -> int:
        strategy = made(
            Layout(cp=8), context_kind=kind, fused_attention=fused, recompute=recompute
        )
        return sum(one.total_bytes for one in of(GPT, strategy, axis="cp", **phase))

    assert sent(recompute) == sent("none") + again * sent("none", phase="forward")


LAYOUTS = [
    Layout(tp=2, cp=2, dp=4, pp=4, ep=4),
    Layout(tp=2, dp=8, pp=2, ep=8, etp=1),
    Layout(cp=2, dp=8, ep=4),
    Layout(tp=4, dp=4, pp=8, ep=2, etp=1),
]


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
        layout,
        32,
        4096,
        zero_stage=stage,
        recompute=recompute,
        context_kind=context,
        traffic=traffic,
        sequence_parallel=True,
    )
    for communication in communications(shape, strategy):
        shared = communication.purpose == "gradients of the shared embedding"
        assert communication.ranks == (2 if shared else layout.size(communication.axis)) > 1
        assert communication.size_bytes > 0
        assert communication.times > 0
        assert communication.phase in PHASES
        assert communication.unit in UNITS
        assert communication.stage in ("only", "first", "middle", "last")
        assert (communication.collective == "all_to_all_v") == bool(communication.traffic)
