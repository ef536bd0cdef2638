"""Groups alone, collectives beside each other, uneven traffic and computing meanwhile, on real processes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ccbench.backends.base import TeamRequest
from ccbench.cases.axes import OVERLAP_PARTS, Case
from ccbench.cases.measurement import Sampling, Status
from ccbench.collectives import COLLECTIVES
from ccbench.runner.workers.team import WorkerTeam
from tests.backends.cpu.test_groups import QUICK, RANKS, case_of

MATRIX = "[[0, 1, 2, 3], [4, 0, 0, 0], [0, 0, 0, 0], [9, 1, 1, 5]]"


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


# -- ranks that misbehave ----------------------------------------------------------------------------------

AT_ONCE = [
    case_of("all_reduce", groups="rank // 2", active_group=1),
    case_of("all_to_all_v", traffic=MATRIX),
    case_of("all_reduce", groups="rank // 2", concurrent="all_gather on rank % 2"),
    case_of("all_reduce", mode="overlap", overlap_with="matmul"),
]


def run_with(fault: str, case: Case, monkeypatch: pytest.MonkeyPatch) -> tuple[Status, str]:
    monkeypatch.setenv("CCBENCH_FAULT", fault)
    opened = WorkerTeam(TeamRequest("cpu", RANKS))
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


@pytest.mark.thinned(1)
@pytest.mark.parametrize("case", AT_ONCE[2:], ids=lambda case: case.label)
def test_ranks_that_do_not_wait_are_caught(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    larger = replace(case, count=60_000, size_bytes=240_000, algorithm="ring")
    assert run_with("unsynchronised:rank=all", larger, monkeypatch)[0] is Status.WRONG
