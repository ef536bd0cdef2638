"""What a plan's lines say: what limits a communication, and one line for each."""

from __future__ import annotations

import pytest

from ccbench.plan.document import read_plan
from ccbench.plan.pricing import price_plan
from ccbench.report.plan_text import plan_document, plan_lines, shortened

PLAN = (
    "model: llama-3-8b\nmachine: hgx-h100\nglobal_batch: 8\nsequence: 4096\nsequence_parallel: true\n"
    "layout: {tp: 4}\n"
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


def test_every_communication_has_a_line() -> None:
    priced = price_plan(read_plan(PLAN))
    text = list(plan_lines(priced))
    rows = [line for line in text if line.split(" ")[0] in ("tp", "dp")]
    document = plan_document(priced)
    assert text[1].startswith(
        f"{document['layout']}, {document['micro_batches']} micro-batches"
    )
    assert len(rows) == len(document["communication"])
    for line in document["communication"]:
        assert line["total_seconds"] == pytest.approx(line["times"] * line["seconds"])
        assert line["bottleneck"]
