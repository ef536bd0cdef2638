"""Groups and pairs of ranks on real processes: every rank of a group right, nobody else disturbed."""

from __future__ import annotations

from typing import Any

import pytest

from ccbench.cases.axes import Case
from ccbench.cases.measurement import Sampling, Status
from ccbench.collectives import COLLECTIVES
from ccbench.runner.workers.team import WorkerTeam
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
