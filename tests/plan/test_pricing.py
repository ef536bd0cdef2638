"""Prices of groups where they stand, and measured points in their place."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ccbench.cases.measurement import Conditions, Status
from ccbench.errors import UsageError
from ccbench.flags import Flag
from ccbench.groups import Layout
from ccbench.model.cluster import open_cluster
from ccbench.model.group_placement import axis_placement
from ccbench.model.group_points import group_points
from ccbench.model.library import LibraryRequest
from ccbench.plan.communication import StepCommunication
from ccbench.plan.step import (
    MEASURED,
    PREDICTED,
    ClusterPrices,
    MeasuredPoints,
    measured_points,
)
from ccbench.results import RunFolder, load_run
from tests.results.samples import CASE, measured

GIB = 2**30


def test_groups_across_nodes_share_the_nics_and_are_named_so() -> None:
    cluster = open_cluster("hgx-h100", 4, "ib-ndr-400x8")
    layout = Layout(tp=8, dp=4)
    communication = StepCommunication(
        "dp", 4, "all_reduce", 2**28, 1, "test", "backward", "bucket", "only"
    )
    prices = ClusterPrices(cluster).price(layout, communication)
    assert (prices.nodes, prices.groups_on_node) == (4, 8)
    assert "network" in prices.bottleneck
    alone = ClusterPrices(cluster).price(Layout(dp=32), replace(communication, ranks=32))
    assert alone.seconds < prices.seconds


def test_the_embedding_of_first_and_last_stage_is_summed_by_two() -> None:
    cluster = open_cluster("hgx-h100", 4, "ib-ndr-400x8")
    ends = StepCommunication(
        "pp", 2, "all_reduce", 2**28, 1, "test", "optimizer", "step", "first"
    )
    prices = ClusterPrices(cluster).price(Layout(tp=8, pp=4), ends)
    assert prices.nodes == 2
    inside = ClusterPrices(open_cluster("hgx-h100")).price(Layout(tp=2, pp=4), ends)
    assert inside.nodes == 1
    assert inside.seconds < prices.seconds


def test_groups_that_stand_unevenly_are_listed_or_refused() -> None:
    cluster = open_cluster("hgx-h100", 3, "ib-ndr-400x8")
    communication = StepCommunication(
        "tp", 3, "all_reduce", 2**20, 1, "test", "forward", "layer", "only"
    )
    assert ClusterPrices(cluster).price(Layout(tp=3, dp=8), communication).nodes == 2
    large = open_cluster("hgx-h100", 768, "ib-ndr-400x8")
    with pytest.raises(UsageError, match="unevenly"):
        ClusterPrices(large).price(Layout(tp=3, dp=2048), communication)


def test_nothing_is_priced_for_one_rank_or_no_bytes() -> None:
    cluster = open_cluster("hgx-h100")
    communication = StepCommunication(
        "tp", 1, "all_reduce", 2**20, 1, "test", "forward", "layer", "only"
    )
    assert ClusterPrices(cluster).price(Layout(dp=8), communication).seconds == 0.0
    empty = replace(communication, ranks=8, size_bytes=0)
    assert ClusterPrices(cluster).price(Layout(tp=8), empty).seconds == 0.0


def run_with(folder: Path, *points: tuple[int, float], **case: object) -> Path:
    """A run folder with measured points of a case on eight ranks."""
    with RunFolder.create(folder, {"suite": "plan"}) as made:
        for size, seconds in points:
            one = measured(size, seconds, rank_samples_seconds=())
            changed = replace(one.case, ranks=8, count=size // 4, **case)  # type: ignore[arg-type]
            made.write(replace(one, case=changed), None, 0.95)
    return folder


def test_measured_points_replace_predictions_of_the_same_thing(tmp_path: Path) -> None:
    run = load_run(run_with(tmp_path / "run", (2**20, 1e-3), (2**22, 4e-3)))
    points = measured_points([run])
    prices = ClusterPrices(open_cluster("hgx-h100"), points)
    communication = StepCommunication(
        "tp", 8, "all_reduce", 2**21, 1, "test", "forward", "layer", "only"
    )
    between = prices.price(Layout(tp=8), communication)
    assert between.source == MEASURED
    assert between.seconds == pytest.approx(2e-3, rel=0.05)
    beyond = prices.price(Layout(tp=8), replace(communication, size_bytes=2**23))
    other = prices.price(Layout(tp=4, dp=2), replace(communication, ranks=4))
    gathered = prices.price(Layout(tp=8), replace(communication, collective="all_gather"))
    assert {beyond.source, other.source, gathered.source} == {PREDICTED}


def test_groups_of_a_run_stand_for_groups_of_a_layout(tmp_path: Path) -> None:
    points = measured_points(
        [load_run(run_with(tmp_path / "run", (2**20, 1e-3), groups="rank // 4"))]
    )
    assert points.seconds(("all_reduce", 4, 1, ""), 2**20) == pytest.approx(1e-3, rel=0.05)
    across = run_with(tmp_path / "across", (2**20, 1e-3), groups="rank % 2", nodes=2)
    assert list(measured_points([load_run(across)]).curves) == [("all_reduce", 4, 2, "")]


def test_of_several_measured_ways_the_fastest_counts(tmp_path: Path) -> None:
    slow = load_run(run_with(tmp_path / "slow", (2**20, 5e-3), algorithm="tree"))
    fast = load_run(run_with(tmp_path / "fast", (2**20, 1e-3)))
    assert measured_points([slow, fast]).seconds(
        ("all_reduce", 8, 1, ""), 2**20
    ) == pytest.approx(1e-3, rel=0.05)


def of_case(**asked: Any) -> dict[str, Any]:
    return {"case": replace(CASE, **asked)}


@pytest.mark.parametrize(
    "change",
    [
        {"simulated": True},
        {"status": Status.FAILED, "samples_seconds": ()},
        {"conditions": Conditions(flags=(Flag.EMULATION,))},
        # A step launches one collective of all groups, with nothing else at the same time.
        of_case(concurrent="all_gather"),
        of_case(mode="overlap", overlap_with="matmul"),
        of_case(aggregation=4),
        of_case(groups="rank // 2", active_group=0),
        of_case(collective="send_recv", op="none", pair="0>1"),
    ],
)
def test_what_was_not_measured_or_not_as_a_step_has_it_is_refused(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    with RunFolder.create(tmp_path / "run", {"suite": "plan"}) as made:
        made.write(replace(measured(rank_samples_seconds=()), **change), None, 0.95)
    complaint = (
        "its times come from a model"
        if "simulated" in change
        else "holds no measured collective"
    )
    with pytest.raises(UsageError, match=complaint):
        measured_points([load_run(tmp_path / "run")])


def test_nothing_is_extrapolated_from_measured_points() -> None:
    key = ("all_reduce", 8, 1, "")
    points = MeasuredPoints({key: ((0, 1e-6), (1024, 1e-5), (4096, 4e-5))})
    assert points.seconds(key, 8192) is None
    assert points.seconds(key, 512) is None
    assert points.seconds(key, 0) == 1e-6
    assert points.seconds(key, 2048) == pytest.approx(2e-5)


@pytest.mark.parametrize(
    ("layout", "axis"),
    [
        (Layout(tp=2, dp=3, pp=4), "tp"),
        (Layout(tp=3, dp=8, pp=2), "pp"),
        (Layout(tp=12, dp=2), "dp"),
    ],
)
def test_groups_that_stand_alike_are_priced_as_if_each_had_been_listed(
    layout: Layout, axis: str
) -> None:
    # The nodes cut other axes of these layouts, so that no rule says how the groups of this one stand.
    cluster = open_cluster("hgx-h100", layout.ranks // 8, "ib-ndr-400x8")
    with pytest.raises(UsageError, match="cuts"):
        axis_placement(layout, axis, 8)
    groups = layout.groups(axis)
    for collective in ("all_reduce", "all_to_all"):
        (listed,) = group_points(cluster, groups, LibraryRequest(collective, (GIB,)))
        communication = StepCommunication(
            axis, layout.size(axis), collective, GIB, 1, "test", "forward", "layer", "only"
        )
        prices = ClusterPrices(cluster).price(layout, communication)
        assert prices.seconds == pytest.approx(listed.prediction.predicted_seconds)
        assert prices.nodes == max(len({rank // 8 for rank in group}) for group in groups)
