"""Ranks that hang: SIGSTOP is a hang that anybody can cause."""

from __future__ import annotations

import os
import re
import signal
import time
from typing import Any

import pytest

from ccbench.cases import Case, Sampling, Status
from ccbench.runner.workers import team as teams
from ccbench.runner.workers.team import WorkerTeam
from tests.faults import traces
from tests.faults.conftest import Bench

LIMIT_SECONDS = 1.0
NAMED_WITHIN_SECONDS = LIMIT_SECONDS + 5.0
CASE = Case("s", "cpu", "all_reduce", "ring", "float32", "sum", 4096, 1024, 3)


def test_a_stopped_rank_is_named_and_the_sweep_goes_on(bench: Bench, figure: Any) -> None:
    suite = bench.suite({"collective": ["all_reduce", "broadcast"], "ranks": 3}, time_limit="1 s")
    ended = bench.run(suite, fault="stop:rank=2:collective=all_reduce")
    assert ended.code == 4
    row = ended.row("all_reduce")
    assert row["status"] == Status.TIMED_OUT.value
    assert re.fullmatch(
        r"timed out: rank 2 \(process \d+\) is stopped by a signal; the others wait for it", row["detail"]
    )
    assert ended.row("broadcast")["status"] == Status.OK.value
    figure("stopped by itself: named, exit code 4, the next case is whole")


def test_a_rank_stopped_from_outside_is_named_in_time(figure: Any) -> None:
    team = WorkerTeam("cpu", 3)
    os.kill(team.pids[1], signal.SIGSTOP)
    began = time.monotonic()
    measurement = team.run(CASE, Sampling(time_limit_seconds=LIMIT_SECONDS))
    seconds = time.monotonic() - began
    assert measurement.status is Status.TIMED_OUT
    assert f"rank 1 (process {team.pids[1]}) is stopped by a signal" in measurement.detail
    assert seconds < NAMED_WITHIN_SECONDS
    assert traces.all_gone(team.pids)
    figure(f"stopped: named {seconds:.2f} s after the case began, limit {LIMIT_SECONDS:.0f} s")


def test_a_stopped_rank_is_not_waited_for_until_a_distant_limit(figure: Any) -> None:
    team = WorkerTeam("cpu", 3)
    os.kill(team.pids[2], signal.SIGSTOP)
    began = time.monotonic()
    measurement = team.run(CASE, Sampling(time_limit_seconds=50.0))
    seconds = time.monotonic() - began
    assert measurement.status is Status.TIMED_OUT
    assert f"rank 2 (process {team.pids[2]}) is stopped by a signal" in measurement.detail
    assert seconds < 30.0
    assert traces.all_gone(team.pids)
    figure(f"stopped, limit 50 s: named {seconds:.2f} s after the case began")


def test_a_stopped_leader_is_killed_with_its_team(monkeypatch: pytest.MonkeyPatch, figure: Any) -> None:
    monkeypatch.setattr(teams, "GRACE_SECONDS", 0.5)
    team = WorkerTeam("cpu", 2)
    os.kill(traces.leader_of(os.getpid()), signal.SIGSTOP)
    began = time.monotonic()
    case = Case("s", "cpu", "barrier", "default", "int8", "sum", 0, 0, 2)
    measurement = team.run(case, Sampling(time_limit_seconds=0.2))
    seconds = time.monotonic() - began
    assert measurement.status is Status.TIMED_OUT
    assert re.fullmatch(r"the team's leader did not answer in \d+ s; the team was killed", measurement.detail)
    assert seconds < 0.2 + teams.GRACE_SECONDS + 5.0
    assert traces.all_gone(team.pids)
    figure(f"leader stopped: its team is gone {seconds:.1f} s after the case began")


def test_a_case_that_never_ends_names_who_is_behind(monkeypatch: pytest.MonkeyPatch, figure: Any) -> None:
    """Nobody is stopped here: rank 1 sleeps in every launch, and the limit comes first."""
    monkeypatch.setenv("CCBENCH_FAULT", "slow:rank=1")
    team = WorkerTeam("cpu", 2)
    case = Case("s", "cpu", "broadcast", "default", "int8", "none", 64, 64, 2, root=0)
    measurement = team.run(
        case, Sampling(rounds=1, time_limit_seconds=0.5, minimum_samples=4000, budget_seconds=60.0)
    )
    assert measurement.status is Status.TIMED_OUT
    assert re.match(r"timed out in sample \d+: furthest behind: rank ", measurement.detail)
    figure(measurement.detail)
