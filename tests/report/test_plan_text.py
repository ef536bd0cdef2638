"""What a plan's lines say: what limits a communication, and one line for each."""

from __future__ import annotations

import pytest

from ccbench.plan.document import read_plan
from ccbench.plan.pricing import price_plan
from ccbench.report.plan_text import plan_document, plan_lines

PLAN = (
    "model: llama-3-8b\nmachine: hgx-h100\nglobal_batch: 8\nsequence: 4096\nsequence_parallel: true\n"
    "layout: {tp: 4}\n"
)


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
