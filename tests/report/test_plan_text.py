"""What a plan's lines say: what limits a communication, and how operations were counted."""

from __future__ import annotations

import pytest

from ccbench.plan.document import read_plan
from ccbench.plan.planner import Planned, PlanOptions, plan_out
from ccbench.report.plan_text import plan_document, plan_lines, shortened

PLAN = (
    "model: llama-3-8b\nmachine: hgx-h100\nglobal_batch: 8\nsequence: {tokens}\nsequence_parallel: true\n"
    "layout: {{tp: {tp}, dp: {dp}}}\n"
)


def planned(tokens: int = 4096, tp: int = 8) -> Planned:
    """On eight devices."""
    return plan_out(read_plan(PLAN.format(tokens=tokens, tp=tp, dp=8 // tp)), PlanOptions())


@pytest.mark.parametrize(
    ("whole", "short"),
    [
        (
            "network: 76% (0.0229 GB through the NICs of a node at 42.99 GB/s); 2 groups share a NIC",
            "network: 76% (the NICs of a node at 42.99 GB/s); 2 groups share a NIC",
        ),
        (
            "latency: 72% (112 x 2.508 us inside a node, 15 x 5.322 us across, 14.2 us of base)",
            "latency: 72% (112 x 2.508 us inside a node, ...)",
        ),
        ("latency: 95% (6.692 us of base)", "latency: 95% (6.692 us of base)"),
        ("nothing to wait for", "nothing to wait for"),
    ],
)
def test_what_limits_is_told_shorter_and_never_without_who_shares_it(
    whole: str, short: str
) -> None:
    assert shortened(whole) == short


def test_attention_without_what_is_masked_is_told_where_it_counts() -> None:
    text = "attention counted without what a causal mask leaves out"
    long, short = planned(131_072), planned(1024)
    assert any(text in line for line in plan_lines(long))
    assert not any(text in line for line in plan_lines(short))
    (one,) = long.outcomes
    # Of a token 2 s (queries + attention) operations a layer against 2 for each weight: more than half here.
    assert one.tflops / 2 < one.masked_tflops < 0.75 * one.tflops
    assert plan_document(long)["layouts"][0]["masked_tflops"] == one.masked_tflops


def test_every_communication_has_a_line_of_the_table() -> None:
    found = planned()
    table = [line for line in plan_lines(found) if line.split(" ")[0] in ("tp", "dp")]
    assert len(table) == len(plan_document(found)["layouts"][0]["communication"])
