"""The trials of the verdict: whom a fault is planted in."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from benchmarks.health import ASLEEP, HEALTHY, LIMITED, Trial, named_in, process_of_rank
from ccbench.backends.mpi import BACKEND
from ccbench.findings import Finding
from ccbench.runner.workers.team import WorkerTeam
from tests.backends.mpi.test_teams import team as launched_team

NO_MPI = BACKEND.unavailable()


@pytest.mark.parametrize(
    "opened",
    [
        pytest.param(lambda: WorkerTeam("cpu", 2), id="forked"),
        pytest.param(
            launched_team,
            id="launched",
            marks=pytest.mark.skipif(NO_MPI is not None, reason=f"no MPI here: {NO_MPI}"),
        ),
    ],
)
def test_the_process_of_every_rank_is_found(opened: Callable[[], WorkerTeam]) -> None:
    assert process_of_rank(os.getpid(), 0, 2) == 0
    team = opened()
    try:
        assert [process_of_rank(os.getpid(), rank, 2) for rank in range(2)] == list(team.pids)
    finally:
        team.close()


@pytest.mark.parametrize(
    ("planted", "named", "right"),
    [
        (HEALTHY, (), True),
        (HEALTHY, ("ranks 0-1",), False),
        (ASLEEP, ("rank 1",), True),
        (LIMITED, ("rank 1", "rank 2"), False),
        (LIMITED, (), False),
    ],
)
def test_a_trial_is_right_when_it_names_the_planted_rank_and_no_other(
    planted: str, named: tuple[str, ...], right: bool
) -> None:
    assert Trial(planted, 1, "NOT HEALTHY", named, 1.0).right is right


def test_whom_a_verdict_accuses_is_read_off_its_lines() -> None:
    slow = Finding(
        "problem",
        "slow_rank",
        ("rank 2",),
        "late in 40 of 42 cases",
        "look at it",
        "Slow rank: rank 2",
    )
    other = Finding("problem", "device", ("GPU 1",), "thermal", "cool it", "Device: GPU 1")
    assert named_in([f"NOT HEALTHY: {slow.subject}", f"  {slow}", f"  {other}"]) == ("rank 2",)
