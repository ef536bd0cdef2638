"""PLAN.yaml: what it may say, and what is said about mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.errors import SuiteError
from ccbench.plan.document import PlanKeys, load_plan, read_plan

START = "model: gpt3-175b\nmachine: hgx-h100\nglobal_batch: 64\nsequence: 2048\n"


SHAPE = "{{layers: 2, hidden: 64, heads: 4, vocabulary: 9, {}}}"
INCOMPLETE = [
    ("# nothing", "plan: is empty; write at least model, machine, layout"),
    ("global_batch: 8\nsequence: 8\n", "plan:1: has no 'model'; add the key"),
    (START, "plan:1: has no 'layout'; add the key"),
    ("model: gpt3-175b\nlayout: {tp: 8}\n", "plan:1: has no 'global_batch'; add the key"),
]
WRONG_MODELS = [
    ("gpt5", "model: 'gpt5' is not known"),
    (SHAPE.format("hiden: 4"), "model.hiden: unknown key; did you mean 'hidden'?"),
    ("{layers: 2, hidden: 64, heads: 4}", "model: has no 'vocabulary'; add the key"),
    (SHAPE.format("positions: -5"), "model.positions: -5 is not a number; write 0 to "),
    (SHAPE.format("top_k: true"), "model.top_k: True is not a number"),
    (SHAPE.format("kv_heads: 3"), "model: kv_heads do not divide heads"),
    (SHAPE.format("norm: batch"), "model.norm: Input should be 'layer' or 'rms'"),
    (SHAPE.format("experts: 8"), "model: experts go with a top_k of at most as many"),
    (SHAPE.format("top_k: 2"), "model: experts go with a top_k of at most as many"),
    (SHAPE.format("shared_experts: 2"), "model: shared_experts without experts"),
    (SHAPE.format("dense_layers: 3"), "model: dense_layers are more than layers"),
    (SHAPE.format("kv_rank: 8"), "model: latent attention needs query_rank, kv_rank, "),
    (
        "{layers: 2, hidden: 64, heads: 5, vocabulary: 9}",
        "model: heads do not divide hidden; write head_size",
    ),
    (
        "{layers: 99999999, hidden: 8, heads: 1, vocabulary: 9}",
        "model.layers: 99999999 is not a number; write 1 to 10000",
    ),
]
LAYOUT = "\nlayout: {tp: 8}"
WRONG_KEYS = [
    ("layuot: {}", "layuot: unknown key; did you mean 'layout'?"),
    ("layout: {tp: 8, qq: 3}", "layout.qq: unknown key"),
    ("layout: {tp: many}", "layout.tp: 'many' is not a number; write a whole number such as 2"),
    ("layout: 7", "layout: 7 is not a mapping; write keys such as 'tp: ...'"),
    (f"zero: 4{LAYOUT}", "zero: Input should be 0, 1, 2 or 3"),
    (f"bucket: 1 B{LAYOUT}", "bucket: 1 bytes are too few; write 1 MiB"),
    (f"recompute: some{LAYOUT}", "recompute: Input should be 'none', 'selective' or 'full'"),
    (f"reshard: 1{LAYOUT}", "reshard: Input should be a valid boolean"),
    (f"network: 7{LAYOUT}", "network: Input should be a valid string"),
]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        *INCOMPLETE,
        *(
            (f"{START.replace('gpt3-175b', m)}{LAYOUT}", f"plan:1: {c}")
            for m, c in WRONG_MODELS
        ),
        *((START + text, f"plan:5: {complaint}") for text, complaint in WRONG_KEYS),
    ],
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
