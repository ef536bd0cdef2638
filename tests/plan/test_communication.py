"""Volumes against the formulas of the papers, to the byte."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.groups import Layout
from ccbench.plan.communication import StepCommunication, communications
from ccbench.plan.shape import ModelShape, named_shape, with_defaults
from ccbench.plan.strategy import StepSettings, Strategy

RECOMPUTED = ("none", "selective", "full")
CONTEXT_KINDS = ("ring", "all_gather")
GPT = named_shape("gpt3-175b")
LLAMA = named_shape("llama-3-8b")
MIXTRAL = named_shape("mixtral-8x7b")
B, S, H, LAYERS = 4, 2048, 12288, 96
BYTES = 2


def sent(
    shape: ModelShape, layout: Layout, settings: dict[str, Any], **fields: str
) -> list[StepCommunication]:
    """Return those communications of a step that have such fields; one micro-batch unless said."""
    keys = {"global_batch": B * layout.dp, "micro_batch": B, "sequence": S, **settings}
    return [
        communication
        for communication in communications(Strategy(shape, StepSettings(**keys), layout))
        if all(getattr(communication, name) == value for name, value in fields.items())
    ]


Launch = tuple[str, int, int]
"""Collective, size in bytes of one launch, launches in a step."""


def launches(
    label: str,
    shape: ModelShape,
    layout: Layout,
    settings: dict[str, Any],
    fields: dict[str, str],
    *expected: Launch,
) -> Any:
    """Make a row: the communications of a strategy, of those that have such fields."""
    return pytest.param(shape, layout, settings, fields, list(expected), id=label)


STREAM = B * S * H * BYTES
LAYER = {"purpose": "inputs and outputs of layers, and their gradients"}
KEYS = {"axis": "cp"}
# The tokens of a micro-batch, each to two of Mixtral's eight experts.
ROUTED = B * S * 2 * 4096 * BYTES

VOLUMES = [
    # Shoeybi et al. 2019, section 3; Narayanan et al. 2021, section 3.2; Korthikanti et al. 2022.
    launches(
        "a layer has two all_reduces in each pass, embedding and head one, and the loss needs three numbers",
        GPT,
        Layout(tp=8),
        {},
        {},
        ("all_reduce", STREAM, 4 * LAYERS),
        ("all_reduce", STREAM, 1),
        ("all_reduce", STREAM, 1),
        ("all_reduce", B * S * 4, 3),
    ),
    launches(
        "recomputation of whole layers sends half as much again in every micro-batch",
        GPT,
        Layout(tp=8),
        {"recompute": "full", "global_batch": 4 * B},
        LAYER,
        ("all_reduce", STREAM, 4 * 6 * LAYERS),
    ),
    launches(
        "selective recomputation sends nothing more",
        GPT,
        Layout(tp=8),
        {"recompute": "selective"},
        LAYER,
        ("all_reduce", STREAM, 4 * LAYERS),
    ),
    # Once a step two LayerNorms of 2 h and two late biases of h for each layer, and one LayerNorm at the end.
    launches(
        "sequence parallelism gathers and scatters, and gathers inputs again for gradients of weights",
        GPT,
        Layout(tp=8),
        {"sequence_parallel": True},
        {},
        ("all_gather", STREAM, 6 * LAYERS),
        ("reduce_scatter", STREAM, 4 * LAYERS),
        ("all_reduce", (6 * LAYERS + 2) * H * BYTES, 1),
        ("all_gather", STREAM, 1),
        ("reduce_scatter", STREAM, 1),
        ("all_gather", STREAM, 2),
        ("reduce_scatter", STREAM, 1),
        ("all_reduce", B * S * 4, 3),
    ),
    launches("one rank sends nothing", GPT, Layout(), {}, {}),
    launches(
        "FSDP gathers layer by layer, forward and backward",
        GPT,
        Layout(dp=8),
        {"zero": 3},
        {"purpose": "parameters"},
        ("all_gather", (51200 + 2048) * H * BYTES, 2),
        ("all_gather", (12 * H * H + 13 * H) * BYTES, 2 * LAYERS),
        ("all_gather", 2 * H * BYTES, 2),
    ),
    # Narayanan et al. 2021, sections 2.2 and 4.1.
    launches(
        "a boundary passes activations and gradients for every micro-batch",
        GPT,
        Layout(tp=8, pp=8),
        {"global_batch": 16 * B},
        {"collective": "send_recv"},
        ("send_recv", STREAM, 2 * 16),
    ),
    launches(
        "an interleaved stage passes as often as it has parts",
        GPT,
        Layout(pp=8),
        {"global_batch": 16 * B, "virtual_stages": 3},
        {"collective": "send_recv"},
        ("send_recv", STREAM, 2 * 48),
    ),
    launches(
        "a split sequence is sent as it lies",
        GPT,
        Layout(tp=8, pp=8),
        {"global_batch": 16 * B, "sequence_parallel": True},
        {"collective": "send_recv"},
        ("send_recv", STREAM // 8, 2 * 16),
    ),
    launches(
        "an embedding that first and last stage share is summed",
        GPT,
        Layout(tp=8, pp=8),
        {},
        {"axis": "pp", "collective": "all_reduce"},
        *[("all_reduce", 51200 * H // 8 * BYTES, 1)] * 2,
    ),
    launches(
        "a head of its own is not summed",
        named_shape("llama-2-70b"),
        Layout(tp=8, pp=8),
        {},
        {"axis": "pp", "collective": "all_reduce"},
    ),
    # GShard (Lepikhin et al. 2020, section 3).
    launches(
        "a layer exchanges tokens with experts twice in each pass, and twice more if recomputed",
        MIXTRAL,
        Layout(dp=8, ep=8),
        {"recompute": "full"},
        {"axis": "ep"},
        ("all_to_all", ROUTED, 6 * 32),
    ),
    launches(
        "tensor parallel ranks send each their part of the tokens, and whole experts gather none",
        MIXTRAL,
        Layout(tp=2, dp=4, ep=8, etp=1),
        {"sequence_parallel": True},
        {"purpose": "tokens of experts and their outputs, and their gradients"},
        ("all_to_all", ROUTED // 2, 4 * 32),
    ),
    launches(
        "tensor parallel experts gather tokens and add up outputs",
        MIXTRAL,
        Layout(tp=2, dp=8, ep=8),
        {"sequence_parallel": True},
        {"axis": "etp"},
        ("all_gather", ROUTED, 2 * 32),
        ("reduce_scatter", ROUTED, 2 * 32),
    ),
    # Liu et al. 2023, section 3: blocks of c tokens and d numbers, keys and values; back their gradients too.
    launches(
        "a ring passes 4 c d bytes each time",
        GPT,
        Layout(cp=8),
        {},
        KEYS,
        ("send_recv", 4 * (B * S // 8) * H, 3 * 7 * LAYERS),
    ),
    launches(
        "fewer heads of keys and values pass less",
        LLAMA,
        Layout(cp=8),
        {},
        KEYS,
        ("send_recv", 2 * B * S // 8 * 8 * 128 * BYTES, 3 * 7 * 32),
    ),
    # Grattafiori et al. 2024, section 3.3.2: all keys and values on every rank.
    launches(
        "gathering brings all keys and values at once",
        LLAMA,
        Layout(cp=8),
        {"context_kind": "all_gather"},
        KEYS,
        ("all_gather", 2 * B * S * 8 * 128 * BYTES, 2 * 32),
        ("reduce_scatter", 2 * B * S * 8 * 128 * BYTES, 32),
    ),
]


@pytest.mark.parametrize(("shape", "layout", "settings", "fields", "expected"), VOLUMES)
def test_a_step_launches(
    shape: ModelShape,
    layout: Layout,
    settings: dict[str, Any],
    fields: dict[str, str],
    expected: list[Launch],
) -> None:
    step = sent(shape, layout, settings, **fields)
    assert [(line.collective, line.size_bytes, line.times) for line in step] == expected


@given(
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from([1, 2, 4, 8]),
    st.integers(0, 3),
    st.booleans(),
)
def test_all_ranks_together_reduce_every_parameter(
    tp: int, pp: int, zero: int, tied: bool
) -> None:
    """What tensor parallel ranks and first and last stage hold twice comes on top."""
    sizes = {"layers": 8, "hidden": 64, "heads": 8, "vocabulary": 96, "tied_embeddings": tied}
    shape = ModelShape(**with_defaults(sizes))
    stages = {"every": pp, "first": 1, "last": 1}
    reduced = sum(
        line.size_bytes * line.times * stages[line.stage] * tp
        for line in sent(shape, Layout(tp=tp, pp=pp, dp=2), {"zero": zero}, axis="dp")
        if line.collective in ("all_reduce", "reduce_scatter")
    )
    norms = (2 * shape.layers + 1) * 64
    # 4 h^2 of attention and 8 h^2 after it.
    whole = 8 * 12 * 64**2 + norms + (1 if tied else 2) * 96 * 64
    twice = 96 * 64 if tied and pp > 1 else 0
    assert reduced == (whole + (tp - 1) * norms + twice) * BYTES


def test_leading_layers_without_experts_are_on_the_first_stage() -> None:
    settings = {"sequence_parallel": True}
    shape = named_shape("deepseek-v3")
    lines = sent(shape, Layout(tp=8, pp=16), settings, collective="reduce_scatter", **LAYER)
    # Attention and shared experts of four layers; the feed-forward parts of three.
    assert [(line.stage, line.times) for line in lines] == [("every", 16), ("first", 6)]


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
    st.sampled_from(RECOMPUTED),
    st.sampled_from(CONTEXT_KINDS),
)
def test_every_communication_is_a_collective_of_a_group_of_the_layout(
    layout: Layout, name: str, zero: int, recompute: str, context: str
) -> None:
    shape = named_shape(name)
    if not shape.experts:
        layout = Layout(tp=layout.tp, cp=layout.cp, dp=layout.dp, pp=layout.pp)
    settings = {"zero": zero, "recompute": recompute, "context_kind": context}
    for line in sent(shape, layout, {**settings, "sequence_parallel": True}):
        assert layout.size(line.axis) > 1
        assert line.size_bytes > 0
        assert line.times > 0
        assert line.stage in ("every", "first", "last")
