"""A team of real processes: it starts, measures, says what is wrong, and leaves nothing."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ccbench.backends.base import TeamRequest
from ccbench.cases.axes import Case
from ccbench.cases.measurement import Sampling, Status
from ccbench.errors import BackendUnavailable
from ccbench.machine.host import state
from ccbench.runner.workers import team as teams
from ccbench.runner.workers.team import WorkerTeam
from tests.faults import traces

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")


SAMPLING = Sampling(
    rounds=1, budget_seconds=0.02, warmup_seconds=0.002, minimum_sample_seconds=0.0002
)
GATHER = Case("s", "cpu", "all_gather", "default", "int32", "none", 4096, 512, 2)


@pytest.fixture
def team() -> Iterator[WorkerTeam]:
    made = WorkerTeam(TeamRequest("cpu", 2))
    yield made
    made.close()


def leader() -> int:
    """The only child of this process that leads a team; 0 when there is none."""
    leaders = [pid for pid in traces.children(os.getpid()) if traces.is_leader(pid)]
    assert len(leaders) < 2
    return leaders[0] if leaders else 0


def test_a_case_that_has_no_schedule_fails_with_the_reason(team: WorkerTeam) -> None:
    measurement = team.run(
        Case("s", "cpu", "all_reduce", "ring:3", "int8", "sum", 8, 8, 2), SAMPLING
    )
    assert measurement.status is Status.FAILED
    assert measurement.detail.startswith("rank ")
    assert "ring" in measurement.detail
    assert not team.usable()


def test_closing_ends_every_process_and_may_be_done_twice() -> None:
    team = WorkerTeam(TeamRequest("cpu", 3))
    first = leader()
    assert first
    assert len(team.pids) == 3
    team.close()
    team.close()
    assert not team.usable()
    assert not leader()
    assert all(state(pid) in ("", "Z") for pid in team.pids)


def test_a_leader_that_cannot_start_is_an_error_not_a_hang(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CCBENCH_FAULT", "no such fault")
    with pytest.raises(BackendUnavailable, match="'no such fault' is not a fault"):
        WorkerTeam(TeamRequest("cpu", 2))
    assert capfd.readouterr().err == ""
    assert not leader()


def test_a_leader_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(teams, "START_LIMIT_SECONDS", 0.0)
    with pytest.raises(BackendUnavailable, match="2 ranks did not start in 0 s"):
        WorkerTeam(TeamRequest("cpu", 2))
    assert not leader()


def memory_files(pid: int) -> list[os.stat_result]:
    files = filter(os.path.exists, Path("/proc", str(pid), "fd").iterdir())
    return [os.stat(file) for file in files if "memfd:ccbench" in os.readlink(file)]


@pytest.mark.exhaustive
def test_large_buffers_are_given_back_after_the_case(
    team: WorkerTeam, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 300 << 20  # with input and output on two ranks more than the team keeps
    large = Case(
        "s", "cpu", "broadcast", "default", "float64", "none", size, size // 8, 2, root=0
    )
    short = Sampling(
        rounds=1, budget_seconds=0.01, warmup_seconds=0.0, minimum_samples=1, maximum_samples=1
    )
    assert team.run(large, short).status is Status.OK
    inherited = {file.st_ino for file in memory_files(os.getpid())}
    for pid in team.pids:
        files = [file for file in memory_files(pid) if file.st_ino not in inherited]
        assert len(files) == 4  # each rank's buffers, and its probe's operands
        assert sum(file.st_size for file in files) == 0
    assert team.run(GATHER, SAMPLING).status is Status.OK


def test_a_team_that_lost_a_rank_while_idle_is_not_used_again(team: WorkerTeam) -> None:
    assert team.usable()
    os.kill(team.pids[1], 9)
    deadline = time.monotonic() + 10
    while team.usable() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not team.usable()
