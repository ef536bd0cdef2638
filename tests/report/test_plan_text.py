"""What a plan's lines say: what limits a communication, and one line for each."""

from __future__ import annotations

import pytest

from ccbench.plan.document import read_plan
from ccbench.plan.pricing import price_plan
from ccbench.report.plan_text import plan_document, plan_lines, shortened

PLAN = (
    "model: llama-3-8b\nmachine: hgx-h100\nglobal_batch: 8\nsequence: 4096\nsequence_parallel: true\n"
    "layouts: [{tp: 8}, {tp: 4, dp: 2, name: halves}, {dp: 8, name: replicas}]\n"
)


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
def test_what_limits_is_shortened_and_never_without_who_shares_it(
    whole: str, short: str
) -> None:
    assert shortened(whole) == short


def test_every_communication_has_a_line_of_its_layout() -> None:
    priced = price_plan(read_plan(PLAN))
    text = list(plan_lines(priced))
    starts = [line for line in text if ": tp" in line]
    assert [line.split(":")[0] for line in starts] == ["tp 8", "halves", "replicas"]
    rows = [line for line in text if line.split(" ")[0] in ("tp", "dp") and line not in starts]
    document = plan_document(priced)["layouts"]
    assert len(rows) == sum(len(layout["communication"]) for layout in document)
    for layout in document:
        for line in layout["communication"]:
            assert line["total_seconds"] == pytest.approx(line["times"] * line["seconds"])
            assert line["bottleneck"]
