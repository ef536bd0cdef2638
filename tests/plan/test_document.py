"""PLAN.yaml: what it may say, and what is said about mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.documents import shipped_folder
from ccbench.errors import SuiteError, UsageError
from ccbench.plan.document import PlanKeys, load_plan, read_plan

START = "model: gpt3-175b\nmachine: hgx-h100\nglobal_batch: 64\nsequence: 2048\n"
MOE = START.replace("gpt3-175b", "mixtral-8x7b")


def test_a_plan_keeps_what_it_says() -> None:
    plan = read_plan(
        START
        + "nodes: 4\nnetwork: ib-ndr-400x8\nlayout: {tp: 8, pp: 2}\nzero: 1\ngradient_dtype: float32\n"
        "bucket: 100 MiB\noverlap: {tensor: true, pipeline: false}\nefficiency: 70%\ndevice: a100\n"
    )
    assert plan.shape is not None
    assert plan.shape.layers == 96
    assert (plan.machine, plan.nodes, plan.network) == ("hgx-h100", 4, "ib-ndr-400x8")
    strategy = plan.choices[0].strategy(32)
    assert (strategy.layout.tp, strategy.layout.pp, strategy.layout.dp) == (8, 2, 2)
    assert (strategy.zero_stage, strategy.gradient_bytes, strategy.parameter_bytes) == (1, 4, 2)
    assert strategy.bucket_bytes == 100 * 2**20
    assert strategy.overlap_tensor
    assert plan.hide_pipeline is False
    assert plan.efficiency.matrix == pytest.approx(0.7)
    assert plan.device.name == "a100"


def test_what_a_layout_says_goes_before_what_the_plan_says() -> None:
    plan = read_plan(
        START + "zero: 1\nlayouts:\n- {tp: 8, zero: 3, name: sharded}\n- tp8-pp2\n"
    )
    assert [choice.name for choice in plan.choices] == ["sharded", "tp8-pp2"]
    assert [choice.settings["zero_stage"] for choice in plan.choices] == [3, 1]
    assert plan.choices[1].strategy(16).layout.pp == 2


def test_virtual_stages_ask_for_an_interleaved_pipeline() -> None:
    plan = read_plan(START + "layout: {pp: 8}\nvirtual_stages: 3\n")
    assert plan.choices[0].strategy(8).pipeline == "interleaved"


def test_a_layout_in_one_word_fills_the_machine_as_one_of_keys_does() -> None:
    plan = read_plan(START + "layouts: [tp8-pp2, tp8-dp1-pp2]\n")
    filling, stated = plan.choices
    assert filling.strategy(64).layout.dp == 4
    assert stated.strategy(16).layout.dp == 1
    with pytest.raises(UsageError, match="is of 16 ranks, not of 64"):
        stated.strategy(64)


def test_layouts_without_a_name_are_called_by_all_that_they_say() -> None:
    plan = read_plan(
        START + "layouts:\n- {tp: 8}\n- {tp: 8, zero: 3}\n- {tp: 8, order: pp-tp}\n"
    )
    assert [choice.name for choice in plan.choices] == [
        "tp8",
        "tp8, zero 3",
        "tp8, order pp-tp",
    ]


def test_traffic_may_be_a_matrix_as_yaml_writes_it() -> None:
    plan = read_plan(MOE + "layout: {ep: 2}\ntraffic: [[1, 2], [2, 1]]\n")
    assert plan.settings["traffic"] == "[[1, 2], [2, 1]]"


def test_a_search_keeps_to_what_is_named() -> None:
    plan = read_plan(START + "layout: search\nsearch: {tp: [2, 4], recompute: full, zero: 0}\n")
    assert plan.choices == ()
    assert plan.search_values == {"tp": (2, 4), "recompute": ("full",), "zero": (0,)}
    assert read_plan(START + "search: {tp: [2, 4, 2]}\n").search_values == {"tp": (2, 4)}


GRADIENTS = (
    "gradients: {{layers: {layers}, per_layer: 1, compute: {compute}, communicate: 2 ms{more}}}"
)
MISTAKES = [
    ("# nothing", "plan: is empty; write at least model, machine, layout and global_batch"),
    ("machine: x", "plan:1: model: is missing"),
    ("model: gpt3-175b\nmachine: x\n", "plan:1: global_batch: is missing"),
    ("model: gpt5\n", "plan:1: model: 'gpt5' is not known"),
    ("model: {layers: 2, hiden: 4}\n", "plan:1: model.hiden: 'hiden' is no key"),
    (
        "model: {layers: 99999999, hidden: 8, heads: 1, vocabulary: 9}",
        "layers is 99999999; write at most 10000",
    ),
    (
        "model: {layers: 4, hidden: 8, heads: 1, vocabulary: 9, positions: -5}",
        "write 0 for none, or more",
    ),
    (GRADIENTS.format(layers=2, compute="1", more=""), "write '1 s' or '1 ms'"),
    (
        GRADIENTS.format(layers=2, compute="1 ms", more=", startup: 3 ms"),
        "plan:1: gradients: startup 3 ms is a part of communicate 2 ms; write no more than that",
    ),
    (
        GRADIENTS.format(layers=99999999999, compute="1 ms", more=""),
        "plan:1: gradients: 99999999999 layers x 1 gradients are more than 1,000,000",
    ),
    (
        GRADIENTS.format(layers=2, compute="1 ms", more="") + "\nlayout: {tp: 2}",
        "plan:2: layout: beside gradients, whose stated times need nothing else; leave it out",
    ),
]
WRONG_KEYS = [
    ("layuot: {}", "layuot: unknown key; did you mean 'layout'?"),
    ("layout: {tp: 8, qq: 3}", "layout.qq: unknown key"),
    ("layout: {tp: many}", "layout.tp: 'many' is not a whole number from 1 on"),
    ("layout: 7", "layout: 7 is not a layout"),
    (
        "layout: serch",
        "layout: 'serch' is no layout; write axes with sizes, such as tp2-dp4-pp2 or search",
    ),
    ("layouts: []", "layouts: [] is not a list"),
    ("layouts: [tp8]\nlayout: tp8", "layouts: beside layout"),
    ("layouts: [{tp: 8}, {tp: 8}]", "layouts[1]: has the name of an earlier one, 'tp8'"),
    (
        "layouts: [{tp: 8, capacity: 2}]",
        "layouts[0].capacity: is of tokens among experts, and the",
    ),
    ("traffic: zipf:1", "traffic: is of tokens among experts, and the"),
    ("traffic: zapf:2", "traffic: 'zapf:2' is none; write balanced"),
    ("zero: 4", "zero: 4 is not a whole number from 0 to 3"),
    ("bucket: 1 B", "bucket: 1 bytes are too few; write 1 MiB"),
    (
        "recompute: some",
        "recompute: 'some' is not an amount of recomputing; write one of none, selective, full",
    ),
    ("overlap: {tensors: true}", "overlap.tensors: unknown key; did you mean 'tensor'?"),
    ("reshard: 1", "reshard: 1 is neither true nor false"),
    ("search: []", "search: [] is not a mapping"),
    ("search: {tp: []}", "search.tp: is an empty list"),
    ("search: {zero: [0, 7]}", "search.zero[1]: 7 is not a whole number from 0 to 3"),
    ("device: {teraflops: fast}", "device.teraflops: 'fast' is not a number above 0"),
    ("device: {teraflops: 1.0e+300}", "device.teraflops: 1e+300 is out of range; write 1e-06"),
    ("efficiency: {matrix: 120%}", "efficiency.matrix: '120%' is not between 0 and 1"),
    ("efficiency: 1.0e-300", "efficiency.matrix: is 0; write such as 50%"),
    ("efficiency: {narrow: -1}", "efficiency.narrow: -1 is not a number from 0"),
    ("network: 7", "network: 7 is not a text"),
]


@pytest.mark.parametrize(
    ("text", "complaint"),
    MISTAKES + [(START + text, f"plan:5: {complaint}") for text, complaint in WRONG_KEYS],
)
def test_a_mistake_is_told_with_its_line(text: str, complaint: str) -> None:
    with pytest.raises(SuiteError) as error:
        read_plan(text)
    assert complaint in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(
        SuiteError, match=r"no.yaml: cannot be read .* or one that ships: .*gpt3,"
    ):
        load_plan(tmp_path / "no.yaml")


def test_a_plan_that_ships_goes_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert load_plan("gpt3").shape is not None
    monkeypatch.chdir(tmp_path)
    Path("gpt3").write_text(
        "gradients: {layers: 1, per_layer: 1, compute: 1 ms, communicate: 1 ms}"
    )
    assert load_plan("gpt3").gradients is not None


@pytest.mark.parametrize(
    "path", sorted((shipped_folder("suites") / "plans").glob("*.yaml")), ids=lambda p: p.stem
)
def test_every_plan_that_ships_is_read(path: Path) -> None:
    plan = load_plan(path)
    assert plan.name == path.stem
    assert plan.gradients is not None or plan.shape is not None


_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(
    st.dictionaries(
        st.sampled_from(sorted(PlanKeys.model_fields)), _values, min_size=1, max_size=5
    )
)
def test_whatever_stands_in_a_plan_ends_in_a_plan_or_one_line(tree: dict[str, object]) -> None:
    text = "plan"
    try:
        read_plan(json.dumps(tree))
    except SuiteError as error:
        text = str(error)
    assert "\n" not in text
    assert text.startswith("plan")


def test_what_runs_behind_computing_is_kept_in_full_and_layout_by_layout() -> None:
    plan = read_plan(
        MOE + "overlap: true\nlayouts:\n- {ep: 8}\n"
        "- {ep: 8, overlap: false, name: nothing}\n- {ep: 8, overlap: {pipeline: false}, name: waits}\n"
    )
    first, nothing, waits = (choice.strategy(8) for choice in plan.choices)
    assert first.overlap_experts
    assert first.overlap_tensor
    assert plan.hide_pipeline is True
    assert not any(
        (nothing.overlap_experts, nothing.overlap_gradients, nothing.overlap_parameters)
    )
    assert waits.overlap_experts
    assert [choice.hide_pipeline for choice in plan.choices] == [None, False, False]
