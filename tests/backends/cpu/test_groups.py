"""Groups and pairs of ranks on real processes: every rank of a group right, nobody else disturbed."""

from __future__ import annotations

from typing import Any

import pytest

from ccbench.cases.axes import Case
from ccbench.cases.measurement import Sampling, Status
from ccbench.collectives import COLLECTIVES
from ccbench.runner.workers.team import WorkerTeam
from ccbench.suite.model import IN_PLACE_COLLECTIVES
from tests.backends import measuring

RANKS = 4
QUICK = Sampling(
    rounds=1, budget_seconds=0.01, warmup_seconds=0.002, minimum_samples=3, maximum_samples=5
)


def case_of(
    collective: str,
    count: int = 1000,
    algorithm: str = "default",
    ranks: int = RANKS,
    **changes: Any,
) -> Case:
    return measuring.case_of("cpu", collective, algorithm, ranks, count, **changes)


@pytest.mark.thinned(5)
@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize(
    "groups", ["rank // 2", "rank % 2", "[[3, 0], [1, 2]]", "rank // 1", "[[2, 1]]"]
)
def test_every_group_gets_its_own_result(
    team: WorkerTeam, collective: str, groups: str
) -> None:
    measurement = team.run(case_of(collective, groups=groups), QUICK)
    assert (measurement.status, measurement.detail) == (Status.OK, "")
    assert len(measurement.group_names) == len(measurement.case.members)
    assert all(
        len(second) == len(measurement.samples_seconds)
        for second in measurement.group_samples_seconds
    )


@pytest.mark.thinned(2)
@pytest.mark.parametrize("collective", IN_PLACE_COLLECTIVES)
def test_groups_work_in_place(team: WorkerTeam, collective: str) -> None:
    assert (
        team.run(case_of(collective, groups="rank % 2", in_place=True), QUICK).status
        is Status.OK
    )


@pytest.mark.thinned(2)
@pytest.mark.parametrize("pair", ["0>1", "3>0", "1<>2", "0<>3"])
def test_a_pair_is_timed_on_its_two_ranks_alone(team: WorkerTeam, pair: str) -> None:
    measurement = team.run(case_of("send_recv", 4096, pair=pair), QUICK)
    assert (measurement.status, measurement.detail) == (Status.OK, "")
    assert len(measurement.rank_samples_seconds) == 2
    assert (
        measurement.launches_per_sample < 1 << 16
    )  # a rank that stands by must not tell how long it takes


def test_cases_of_all_ranks_and_of_some_follow_each_other(team: WorkerTeam) -> None:
    cases = [
        case_of("all_reduce"),
        case_of("send_recv", pair="2>3"),
        case_of("all_reduce"),
        case_of("all_gather", groups="rank % 2"),
        case_of("send_recv", pair="0<>1"),
        case_of("barrier"),
    ]
    assert [team.run(case, QUICK).status for case in cases] == [Status.OK] * len(cases)
