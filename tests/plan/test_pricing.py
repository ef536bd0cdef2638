"""Prices of groups where they stand."""

from __future__ import annotations

import pytest

from ccbench.documents import shipped_folder
from ccbench.errors import MachineError, SuiteError
from ccbench.plan.document import load_plan, read_plan
from ccbench.plan.pricing import price_plan

PLAN = """model: {layers: 24, hidden: 1536, heads: 24, vocabulary: 32000, tied_embeddings: true}
machine: hgx-h100
network: ib-ndr-400x8
global_batch: 6144
sequence: 1536
"""


def test_more_devices_than_can_be_listed_are_refused() -> None:
    plan = read_plan(PLAN.replace("6144", "1000000") + "layout: {tp: 8}\n")
    with pytest.raises(SuiteError, match=r"plan:6: layout: 8000000 devices are too many"):
        price_plan(plan, nodes=1_000_000)


def test_a_machine_of_the_command_line_keeps_its_own_error() -> None:
    plan = read_plan(f"{PLAN}layout: {{tp: 8}}\n")
    with pytest.raises(MachineError, match="rtx-9090"):
        price_plan(plan, "rtx-9090")


@pytest.mark.parametrize(
    "path", sorted((shipped_folder("suites") / "plans").glob("*.yaml")), ids=lambda p: p.stem
)
def test_every_plan_that_ships_is_priced(path: object) -> None:
    assert price_plan(load_plan(str(path))).communication
