"""``ccbench plan``: the whole way from a file to a table and JSON."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Command

PLAN = """model: {layers: 8, hidden: 2048, heads: 16, vocabulary: 32000}
machine: hgx-h100
nodes: 2
network: ib-ndr-400x8
global_batch: 64
sequence: 1024
layout: {tp: 8}
"""


@pytest.fixture
def plan(tmp_path: Path) -> str:
    """A plan's file."""
    path = tmp_path / "small.yaml"
    path.write_text(PLAN)
    return str(path)


def test_options_go_before_what_the_plan_says(ccbench: Command, plan: str) -> None:
    options = ("--machine", "dgx-a100", "--nodes", "4", "--network", "ib-hdr-200x8")
    document = ccbench("plan", plan, *options, "--json").json
    assert document["machine"] == "4 x dgx-a100 on ib-hdr-200x8"
    assert document["devices"] == 32


LAYOUT = "layout: {tp: 8}"
MISTAKES = [
    (LAYOUT, "layout: {tp: 3}", (), ":7: layout: "),
    (
        LAYOUT,
        "layout: {tp: 16}\nvirtual_stages: 2",
        (),
        ":7: layout: virtual_stages of one stage",
    ),
    (LAYOUT, "layout: {tp: 8, order: tp-tp}", (), ":7: layout: order "),
    (LAYOUT, "layuot: {tp: 3}", (), ":7: layuot: unknown key; did you mean 'layout'?"),
    ("", "", ("--machine", "rtx-9090"), "rtx-9090"),
    ("", "", ("--network", "foo"), "network: 'foo' is not <kind>"),
    ("hgx-h100", "hgx-h1000", (), ":2: machine: 'hgx-h1000' is neither a file"),
    ("ib-ndr-400x8", "foo", (), ":4: network: 'foo' is not <kind>"),
    (
        "network: ib-ndr-400x8\n",
        "",
        (),
        ":2: machine: hgx-h100: 16 ranks are 2 nodes and need a",
    ),
]


@pytest.mark.parametrize(("stated", "instead", "arguments", "complaint"), MISTAKES)
def test_mistakes_end_in_one_line_and_exit_code_2(
    ccbench: Command,
    plan: str,
    stated: str,
    instead: str,
    arguments: tuple[str, ...],
    complaint: str,
) -> None:
    Path(plan).write_text(PLAN.replace(stated, instead) if stated else PLAN)
    ended = ccbench("plan", plan, *arguments).refused
    assert ("small.yaml" if complaint.startswith(":") else "") + complaint in ended.err
