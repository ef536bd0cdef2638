"""A rank or the leader dies, hangs or wants too much: it is named, and the rest is released or goes on."""

from __future__ import annotations

import os
import re
import signal
import threading

import pytest

from ccbench.cases.axes import Case
from ccbench.cases.measurement import Measurement, Sampling, Status
from ccbench.machine.host import available_memory_bytes
from ccbench.runner.workers import team as teams
from ccbench.runner.workers.team import WorkerTeam
from tests.faults import traces
from tests.faults.conftest import Bench
from tests.faults.traces import cpu_team

LONG = Sampling(
    rounds=1,
    budget_seconds=20.0,
    minimum_samples=4000,
    maximum_samples=4000,
    minimum_sample_seconds=0.005,
)
SHORT = Sampling(
    rounds=1, budget_seconds=0.02, warmup_seconds=0.002, minimum_sample_seconds=0.0002
)
RING = Case("s", "cpu", "all_reduce", "ring", "float32", "sum", 4096, 1024, 3)


def killed_in_a_collective(team: WorkerTeam, victim: int) -> Measurement:
    # What a first case loads is loaded then: the next one soon samples.
    assert team.run(RING, SHORT).status is Status.OK
    killer = threading.Timer(0.5, os.kill, (victim, signal.SIGKILL))
    killer.start()
    measurement = team.run(RING, LONG)
    killer.join()
    assert measurement.status is Status.FAILED
    assert not team.usable()
    assert traces.all_gone(team.pids)
    return measurement


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.exhaustive), 2])
def test_a_rank_killed_in_a_collective_is_named_and_the_others_are_released(rank: int) -> None:
    team = cpu_team()
    words = f"rank {rank} (process {team.pids[rank]}) was killed by SIGKILL while sampling"
    assert killed_in_a_collective(team, team.pids[rank]).detail == words


def test_a_leader_killed_in_a_collective_takes_its_ranks_with_it() -> None:
    team = cpu_team()
    leader = traces.leader_of(os.getpid())
    assert traces.children(leader) == list(team.pids)
    words = "the team's leader died; its ranks were ended with it"
    assert killed_in_a_collective(team, leader).detail == words


def test_a_rank_killed_between_cases_is_named_by_the_next_one() -> None:
    team = cpu_team()
    assert team.run(RING, SHORT).status is Status.OK
    os.kill(team.pids[1], signal.SIGKILL)
    measurement = team.run(RING, SHORT)
    assert measurement.status is Status.FAILED
    # The leader notices before the case comes, and goes, or when it hands the case out.
    assert measurement.detail in (
        f"rank 1 (process {team.pids[1]}) was killed by SIGKILL while idle",
        "the team's leader died; its ranks were ended with it",
    )


def test_a_sweep_whose_leader_is_killed_goes_on_with_a_fresh_team(bench: Bench) -> None:
    process = bench.start_run(bench.long_suite())
    first = traces.leader_of(process.pid)
    os.kill(first, signal.SIGKILL)
    assert traces.all_gone([first])
    os.kill(traces.leader_of(process.pid), signal.SIGKILL)
    ended = bench.end(process)
    assert ended.code == 5
    for collective in ("all_reduce", "broadcast"):
        # While it measured, or, on a busy machine, while its ranks still started.
        assert "the team's leader" in ended.row(collective)["detail"]


def test_a_stopped_leader_is_killed_with_its_team(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(teams, "GRACE_SECONDS", 0.5)
    team = cpu_team()
    os.kill(traces.leader_of(os.getpid()), signal.SIGSTOP)
    measurement = team.run(RING, Sampling(time_limit_seconds=0.2))
    assert measurement.status is Status.TIMED_OUT
    assert re.fullmatch(
        r"the team's leader did not answer in \d+ s; the team was killed", measurement.detail
    )
    assert traces.all_gone(team.pids)


def test_a_case_that_never_ends_names_who_is_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is stopped here: rank 1 sleeps in every launch, and the limit comes first."""
    monkeypatch.setenv("CCBENCH_FAULT", "slow:rank=1")
    measurement = cpu_team().run(
        RING,
        Sampling(rounds=1, time_limit_seconds=0.5, minimum_samples=4000, budget_seconds=60.0),
    )
    assert measurement.status is Status.TIMED_OUT
    assert re.match(
        r"timed out (in sample \d+|before its samples): furthest behind: rank ",
        measurement.detail,
    )


def test_a_case_too_large_says_what_it_needs_allocates_nothing_and_keeps_its_team() -> None:
    team = cpu_team()
    assert team.run(RING, SHORT).status is Status.OK
    processes = (traces.leader_of(os.getpid()), *team.pids)
    before = sum(map(_virtual_bytes, processes))
    large = Case("s", "cpu", "all_reduce", "ring", "float32", "sum", 1 << 42, 1 << 40, 3)
    measurement = team.run(large, SHORT)
    assert measurement.status is Status.OUT_OF_MEMORY
    found = re.fullmatch(r"3 ranks need (\d+) bytes, (\d+) are available", measurement.detail)
    assert found is not None
    needed, had = map(int, found.groups())
    assert needed >= 3 * 2 * large.size_bytes  # input and output
    assert had <= (available_memory_bytes() or 1 << 62) * 1.5
    assert sum(map(_virtual_bytes, processes)) - before < 1 << 26
    assert team.run(RING, SHORT).status is Status.OK
    team.close()


def _virtual_bytes(pid: int) -> int:
    words = (traces.PROC / str(pid) / "statm").read_text().split()
    return int(words[0]) * os.sysconf("SC_PAGE_SIZE")
