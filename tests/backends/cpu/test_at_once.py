"""Groups alone, collectives beside each other, uneven traffic and computing meanwhile, on real processes."""

from __future__ import annotations

from dataclasses import replace
from statistics import median
from typing import Any

import pytest

from ccbench.cases.axes import OVERLAP_PARTS, Case
from ccbench.cases.measurement import Sampling, Status
from ccbench.collectives import COLLECTIVES
from ccbench.results.schema import row_of
from ccbench.runner.workers.team import WorkerTeam
from tests.backends.cpu.test_groups import QUICK, RANKS, case_of

MATRIX = "[[0, 1, 2, 3], [4, 0, 0, 0], [0, 0, 0, 0], [9, 1, 1, 5]]"


# -- one group alone ---------------------------------------------------------------------------------------


@pytest.mark.thinned(4)
@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("alone", [0, 1])
def test_a_group_alone_is_right_while_the_others_stand_by(
    team: WorkerTeam, collective: str, alone: int
) -> None:
    measurement = team.run(case_of(collective, groups="rank % 2", active_group=alone), QUICK)
    assert (measurement.status, measurement.detail) == (Status.OK, "")
    assert len(measurement.rank_samples_seconds) == len(measurement.rank_waiting_seconds) == 2
    assert (
        measurement.launches_per_sample < 1 << 16
    )  # a rank that stands by must not tell how long it takes


def test_the_slow_rank_of_a_group_alone_has_its_number_in_the_team(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CCBENCH_FAULT", "slow:rank=3")
    slowed = WorkerTeam("cpu", RANKS)
    try:
        case = case_of("all_reduce", groups="rank // 2", active_group=1)
        row = row_of(slowed.run(case, replace(QUICK, maximum_samples=10)), None, 0.95)
        unslowed = slowed.run(replace(case, active_group=0), QUICK)
    finally:
        slowed.close()
    assert row["slowest_rank"] == 3
    assert median(unslowed.samples_seconds) < 0.005  # who is slow stands by


# -- blocks of different sizes -----------------------------------------------------------------------------


@pytest.mark.thinned(5)
@pytest.mark.parametrize("traffic", ["", "zipf:1.2", "hot:0.5", "hot:1", MATRIX])
@pytest.mark.parametrize("algorithm", ["default", "direct", "pairwise"])
def test_uneven_traffic_arrives(team: WorkerTeam, traffic: str, algorithm: str) -> None:
    case = case_of("all_to_all_v", traffic=traffic, algorithm=algorithm)
    measurement = team.run(case, QUICK)
    assert (measurement.status, measurement.detail, measurement.wrong_elements) == (
        Status.OK,
        "",
        0,
    )


@pytest.mark.thinned(2)
@pytest.mark.parametrize("dtype", ["int8", "float16", "float64", "uint32"])
def test_uneven_traffic_of_any_type_arrives_in_groups(team: WorkerTeam, dtype: str) -> None:
    case = case_of(
        "all_to_all_v", 777, traffic="[[0, 5], [1, 1]]", groups="rank % 2", dtype=dtype
    )
    assert team.run(case, QUICK).status is Status.OK


# -- two collectives beside each other ---------------------------------------------------------------------


@pytest.mark.thinned(6)
@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize(
    "beside", ["all_gather on rank % 2", "reduce", "barrier on all", "all_to_all_v on all"]
)
def test_both_collectives_are_right_and_timed_apart(
    team: WorkerTeam, collective: str, beside: str
) -> None:
    case = case_of(collective, groups="rank // 2", concurrent=beside)
    measurement = team.run(case, QUICK)
    assert (measurement.status, measurement.detail) == (Status.OK, "")
    samples = len(measurement.samples_seconds)
    assert [len(second) for second in measurement.group_samples_seconds] == [samples] * len(
        measurement.group_names
    )
    assert measurement.group_names[0] == f"ranks 0-1 {collective}"
    for sample, parts in zip(
        measurement.samples_seconds,
        zip(*measurement.group_samples_seconds, strict=True),
        strict=True,
    ):
        assert 0 < max(parts) <= sample


def test_in_place_runs_beside_another_and_a_plain_case_follows(team: WorkerTeam) -> None:
    case = case_of("all_reduce", 20_000, in_place=True, concurrent="all_to_all on rank % 2")
    assert team.run(case, QUICK).status is Status.OK
    assert team.run(case_of("all_reduce"), QUICK).status is Status.OK
    assert team.run(case, QUICK).status is Status.OK


def test_what_does_not_fit_beside_another_is_out_of_memory(team: WorkerTeam) -> None:
    case = case_of("all_reduce", 1 << 40, concurrent="all_gather")
    measurement = team.run(case, QUICK)
    assert measurement.status is Status.OUT_OF_MEMORY
    assert "ranks need" in measurement.detail
    assert team.run(case_of("all_reduce", concurrent="all_gather"), QUICK).status is Status.OK


# -- computing meanwhile -----------------------------------------------------------------------------------

OVERLAPPED = Sampling(
    rounds=1, budget_seconds=0.05, warmup_seconds=0.005, minimum_samples=3, maximum_samples=5
)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("computing", ["matmul", "memory"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"in_place": True},
        {"groups": "rank // 2"},
        {"groups": "rank // 2", "active_group": 1},
        {"concurrent": "all_gather on rank % 2"},
    ],
)
def test_a_collective_is_right_while_something_is_computed(
    team: WorkerTeam, computing: str, changes: dict[str, Any]
) -> None:
    case = case_of("all_reduce", 20_000, mode="overlap", overlap_with=computing, **changes)
    measurement = team.run(case, OVERLAPPED)
    assert (measurement.status, measurement.detail) == (Status.OK, "")
    assert measurement.group_names == OVERLAP_PARTS
    computed, communicated, beside, besides = measurement.group_samples_seconds
    assert all(
        seconds > 0 for part in (computed, communicated, beside, besides) for seconds in part
    )
    for both, own, second in zip(measurement.samples_seconds, beside, besides, strict=True):
        assert both == pytest.approx(max(own, second))


@pytest.mark.thinned(6)
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_every_collective_can_be_overlapped(team: WorkerTeam, collective: str) -> None:
    case = case_of(collective, mode="overlap", overlap_with="matmul")
    row = row_of(team.run(case, OVERLAPPED), None, 0.95)
    assert (row["status"], row["detail"]) == ("ok", "")
    assert row["overlap_low"] <= row["overlap_efficiency"] <= row["overlap_high"]


# -- ranks that misbehave ----------------------------------------------------------------------------------

AT_ONCE = [
    case_of("all_reduce", groups="rank // 2", active_group=1),
    case_of("all_to_all_v", traffic=MATRIX),
    case_of("all_reduce", groups="rank // 2", concurrent="all_gather on rank % 2"),
    case_of("all_reduce", mode="overlap", overlap_with="matmul"),
]


def run_with(fault: str, case: Case, monkeypatch: pytest.MonkeyPatch) -> tuple[Status, str]:
    monkeypatch.setenv("CCBENCH_FAULT", fault)
    opened = WorkerTeam("cpu", RANKS)
    try:
        measurement = opened.run(case, QUICK)
    finally:
        opened.close()
    return measurement.status, measurement.detail


@pytest.mark.thinned(2)
@pytest.mark.parametrize("case", AT_ONCE, ids=lambda case: case.label)
@pytest.mark.parametrize(
    ("kind", "status", "sentence"),
    [
        ("kill", Status.FAILED, "rank 3"),
        ("raise", Status.FAILED, "rank 3: InjectedError"),
        ("element", Status.WRONG, "rank 3: "),
        ("stale", Status.WRONG, "rank 3: "),
    ],
)
def test_a_rank_that_misbehaves_is_named(
    case: Case, kind: str, status: Status, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome, detail = run_with(f"{kind}:rank=3", case, monkeypatch)
    assert outcome is status
    assert sentence in detail


def test_damage_to_the_collective_beside_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome, detail = run_with("element:rank=2:collective=all_gather", AT_ONCE[2], monkeypatch)
    assert outcome is Status.WRONG
    assert "rank 2: 1 wrong" in detail


@pytest.mark.thinned(1)
@pytest.mark.parametrize("case", AT_ONCE[2:], ids=lambda case: case.label)
def test_ranks_that_do_not_wait_are_caught(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    larger = replace(case, count=60_000, size_bytes=240_000, algorithm="ring")
    assert run_with("unsynchronised:rank=all", larger, monkeypatch)[0] is Status.WRONG
