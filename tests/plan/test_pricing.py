"""Prices of groups where they stand."""

from __future__ import annotations

import pytest

from ccbench.documents import shipped_folder
from ccbench.errors import MachineError, SuiteError
from ccbench.groups import Layout
from ccbench.model.cluster import open_cluster
from ccbench.model.group_points import group_points
from ccbench.model.library import LibraryRequest
from ccbench.plan.document import load_plan, read_plan
from ccbench.plan.pricing import PricedCommunication, price_plan

PLAN = """model: {layers: 24, hidden: 1536, heads: 24, vocabulary: 32000, tied_embeddings: true}
machine: hgx-h100
network: ib-ndr-400x8
global_batch: 6144
sequence: 1536
"""


def priced(layout: str, nodes: int) -> list[PricedCommunication]:
    plan = price_plan(read_plan(f"{PLAN}layout: {layout}\n"), nodes=nodes)
    return list(plan.communication)


@pytest.mark.parametrize(
    ("layout", "axis"),
    [
        (Layout(tp=8, dp=4), "dp"),
        (Layout(tp=2, dp=3, pp=4), "tp"),
        (Layout(tp=3, dp=8, pp=2), "pp"),
        (Layout(tp=12, dp=2), "dp"),
        (Layout(tp=3, dp=8), "tp"),
    ],
)
def test_a_line_costs_what_the_model_says_of_all_groups_at_once(
    layout: Layout, axis: str
) -> None:
    nodes = layout.ranks // 8
    cluster = open_cluster("hgx-h100", nodes, "ib-ndr-400x8")
    lines = [
        line
        for line in priced(f"{{tp: {layout.tp}, pp: {layout.pp}}}", nodes)
        if line.communication.axis == axis and not line.communication.ends
    ]
    assert lines
    for line in lines:
        sent = line.communication
        request = LibraryRequest(sent.collective, (sent.size_bytes,))
        (point,) = group_points(cluster, layout.groups(axis), request)
        assert line.seconds == pytest.approx(point.prediction.predicted_seconds)
        assert line.total_seconds == pytest.approx(sent.times * line.seconds)


def test_groups_across_nodes_share_the_nics_and_are_named_so() -> None:
    shared = [line for line in priced("{tp: 8}", 4) if line.communication.axis == "dp"]
    alone = [line for line in priced("{dp: 32}", 4) if line.communication.axis == "dp"]
    assert "network" in shared[0].bottleneck
    assert shared[0].communication.size_bytes == alone[0].communication.size_bytes
    assert alone[0].seconds < shared[0].seconds


def test_the_embedding_of_first_and_last_stage_is_summed_by_two() -> None:
    across, inside = (
        [line for line in priced(layout, nodes) if line.communication.ends]
        for layout, nodes in (("{tp: 8, pp: 4}", 4), ("{tp: 2, pp: 4}", 1))
    )
    assert {line.ranks for line in (*across, *inside)} == {2}
    assert "network" in across[0].bottleneck
    assert "network" not in inside[0].bottleneck


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
