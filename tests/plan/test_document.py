"""PLAN.yaml: what it may say, and what is said about mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.errors import SuiteError, UsageError
from ccbench.plan.document import PlanKeys, TrainingPlan, load_plan, read_plan
from ccbench.plan.strategy import Strategy

START = "model: gpt3-175b\nmachine: hgx-h100\nglobal_batch: 64\nsequence: 2048\n"
MOE = START.replace("gpt3-175b", "mixtral-8x7b")


def strategy_of(plan: TrainingPlan, name: str, ranks: int) -> Strategy:
    _, keys = plan.layouts[name]
    return keys.on(plan.shape, ranks)


def test_a_plan_keeps_what_it_says() -> None:
    plan = read_plan(
        START
        + "nodes: 4\nnetwork: ib-ndr-400x8\nlayout: {tp: 8, pp: 2}\nzero: 1\ngradient_dtype: float32\n"
        "bucket: 100 MiB\n"
    )
    assert plan.shape.layers == 96
    assert (plan.keys.machine, plan.keys.nodes) == ("hgx-h100", 4)
    assert plan.keys.network == "ib-ndr-400x8"
    strategy = strategy_of(plan, "tp 8, pp 2", 32)
    assert (strategy.layout.tp, strategy.layout.pp, strategy.layout.dp) == (8, 2, 2)
    assert (strategy.gradient_bytes, strategy.item_bytes) == (4, 2)
    assert (strategy.settings.zero, strategy.settings.bucket) == (1, 100 * 2**20)


def test_what_a_layout_says_goes_before_what_the_plan_says() -> None:
    plan = read_plan(
        START + "zero: 1\nlayouts:\n- {tp: 8, zero: 3, name: sharded}\n- tp8-pp2\n"
    )
    assert list(plan.layouts) == ["sharded", "tp8-pp2"]
    assert [keys.zero for _, keys in plan.layouts.values()] == [3, 1]
    assert strategy_of(plan, "tp8-pp2", 16).layout.pp == 2


def test_a_layout_in_one_word_fills_the_machine_as_one_of_keys_does() -> None:
    plan = read_plan(START + "layouts: [tp8-pp2, tp8-dp1-pp2]\n")
    assert strategy_of(plan, "tp8-pp2", 64).layout.dp == 4
    assert strategy_of(plan, "tp8-dp1-pp2", 16).layout.dp == 1
    with pytest.raises(UsageError, match="is of 16 ranks, not of 64"):
        strategy_of(plan, "tp8-dp1-pp2", 64)


def test_an_order_of_axes_is_kept() -> None:
    plan = read_plan(START + "layouts: [pp2-tp8, {tp: 8, pp: 2, order: pp-tp}]\n")
    orders = {strategy_of(plan, name, 16).layout.order for name in plan.layouts}
    assert orders == {"cp-ep-dp-pp-tp"}


def test_layouts_without_a_name_are_called_by_all_that_they_say() -> None:
    plan = read_plan(START + "layouts:\n- {tp: 8}\n- {tp: 8, zero: 3}\n")
    assert list(plan.layouts) == ["tp 8", "tp 8, zero 3"]


SHAPE = "model: {{layers: 2, hidden: 64, heads: 4, vocabulary: 9, {}}}"
MISTAKES = [
    ("# nothing", "plan: is empty; write at least model, machine, layout"),
    ("machine: x", "plan:1: model: is missing"),
    ("model: gpt3-175b\nmachine: x\n", "layout: is missing; write such as"),
    (
        "model: gpt3-175b\nlayout: {tp: 8}\n",
        "plan:2: layout: has no 'global_batch'; add the key",
    ),
    ("model: gpt5\n", "plan:1: model: 'gpt5' is not known"),
    (SHAPE.format("hiden: 4"), "plan:1: model.hiden: unknown key; did you mean 'hidden'?"),
    (
        "model: {layers: 2, hidden: 64, heads: 4}",
        "plan:1: model: has no 'vocabulary'; add the key",
    ),
    (SHAPE.format("positions: -5"), "model.positions: -5 is not a number; write 0 to "),
    (SHAPE.format("top_k: true"), "model.top_k: True is not a number"),
    (SHAPE.format("kv_heads: 3"), "model: kv_heads do not divide heads"),
    (SHAPE.format("norm: batch"), "model.norm: Input should be 'layer' or 'rms'"),
    (SHAPE.format("experts: 8"), "model: experts go with a top_k of at most as many"),
    (SHAPE.format("top_k: 2"), "model: experts go with a top_k of at most as many"),
    (SHAPE.format("shared_experts: 2"), "model: shared_experts without experts"),
    (SHAPE.format("dense_layers: 3"), "model: dense_layers are more than layers"),
    (SHAPE.format("kv_rank: 8"), "write all four or none"),
    (
        "model: {layers: 2, hidden: 64, heads: 5, vocabulary: 9}",
        "heads do not divide hidden; write head_size",
    ),
    (
        "model: {layers: 99999999, hidden: 8, heads: 1, vocabulary: 9}",
        "plan:1: model.layers: 99999999 is not a number; write 1 to 10000",
    ),
]
WRONG_KEYS = [
    ("layuot: {}", "layuot: unknown key; did you mean 'layout'?"),
    ("layout: {tp: 8, qq: 3}", "layout.qq: unknown key"),
    ("layout: {tp: many}", "layout.tp: 'many' is not a number; write a whole number such as 2"),
    ("layout: 7", "layout: 7 is not a layout"),
    ("layout: serch", "layout: 'serch' is not a layout; write {tp: 8, pp: 2}"),
    ("layout: tp8-qq2", "layout.qq: unknown key"),
    ("layouts: []", "layouts: [] is not a list"),
    ("layouts: [tp8]\nlayout: tp8", "layouts: beside layout"),
    ("layouts: [{tp: 8}, {tp: 8}]", "layouts[1]: has the name of an earlier one, 'tp 8'"),
    ("zero: 4", "zero: Input should be 0, 1, 2 or 3"),
    ("bucket: 1 B", "bucket: 1 bytes are too few; write 1 MiB"),
    (
        "recompute: some",
        "recompute: Input should be 'none', 'selective' or 'full'",
    ),
    ("reshard: 1", "reshard: Input should be a valid boolean"),
    ("network: 7", "network: Input should be a valid string"),
]


@pytest.mark.parametrize(
    ("text", "complaint"),
    MISTAKES + [(START + text, f"plan:5: {complaint}") for text, complaint in WRONG_KEYS],
)
def test_a_mistake_is_reported_with_its_line(text: str, complaint: str) -> None:
    with pytest.raises(SuiteError) as error:
        read_plan(text)
    assert complaint in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_that_is_not_there_is_reported(tmp_path: Path) -> None:
    with pytest.raises(
        SuiteError, match=r"no.yaml: cannot be read .* or one that ships: .*gpt3,"
    ):
        load_plan(tmp_path / "no.yaml")


def test_a_plan_that_ships_goes_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert load_plan("gpt3").shape.name == "gpt3-175b"
    monkeypatch.chdir(tmp_path)
    Path("gpt3").write_text(MOE + "layout: {dp: 8}\n")
    assert load_plan("gpt3").shape.name == "mixtral-8x7b"


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
