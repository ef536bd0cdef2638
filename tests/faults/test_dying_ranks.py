"""A rank or the leader is killed, or raises: it is named, the rest is released, the sweep goes on."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from ccbench.cases import Case, Sampling, Status
from ccbench.runner.workers.team import WorkerTeam
from tests.faults import traces
from tests.faults.conftest import Bench

DETECTED_WITHIN_SECONDS = 5.0
RELEASED_WITHIN_SECONDS = 10.0

LONG = Sampling(
    rounds=1, budget_seconds=20.0, minimum_samples=4000, maximum_samples=4000, minimum_sample_seconds=0.005
)
SHORT = Sampling(rounds=1, budget_seconds=0.02, warmup_seconds=0.002, minimum_sample_seconds=0.0002)
RING = Case("s", "cpu", "all_reduce", "ring", "float32", "sum", 4096, 1024, 3)


@contextmanager
def killed_during(pid: int, after_seconds: float = 0.5) -> Iterator[list[float]]:
    """Kill ``pid`` after a while; when that was."""
    when: list[float] = []

    def kill() -> None:
        when.append(time.monotonic())
        os.kill(pid, signal.SIGKILL)

    timer = threading.Timer(after_seconds, kill)
    timer.start()
    yield when
    timer.join()


@pytest.mark.thinned(1)
@pytest.mark.parametrize("rank", [0, 2])
def test_a_rank_killed_in_a_collective_is_named_at_once(rank: int, figure: Any) -> None:
    team = WorkerTeam("cpu", 3)
    with killed_during(team.pids[rank]) as when:
        measurement = team.run(RING, LONG)
    seconds = time.monotonic() - when[0]
    assert measurement.status is Status.FAILED
    words = f"rank {rank} (process {team.pids[rank]}) was killed by SIGKILL while sampling"
    assert measurement.detail == words
    assert seconds < DETECTED_WITHIN_SECONDS
    assert not team.usable()
    figure(f"rank {rank} killed: named after {seconds * 1e3:.0f} ms")


def test_a_leader_killed_in_a_collective_takes_its_ranks_with_it(figure: Any) -> None:
    team = WorkerTeam("cpu", 3)
    leader = traces.leader_of(os.getpid())
    assert traces.children(leader) == list(team.pids)
    with killed_during(leader) as when:
        measurement = team.run(RING, LONG)
    seconds = time.monotonic() - when[0]
    assert measurement.status is Status.FAILED
    assert measurement.detail == "the team's leader died; its ranks were ended with it"
    assert seconds < DETECTED_WITHIN_SECONDS
    assert traces.all_gone(team.pids)
    figure(f"leader killed: told after {seconds * 1e3:.0f} ms")


def test_a_rank_killed_between_cases_is_named_by_the_next_one() -> None:
    team = WorkerTeam("cpu", 2)
    case = Case("s", "cpu", "broadcast", "default", "int8", "none", 64, 64, 2, root=0)
    assert team.run(case, SHORT).status is Status.OK
    os.kill(team.pids[1], signal.SIGKILL)
    measurement = team.run(case, SHORT)
    assert measurement.status is Status.FAILED
    assert measurement.detail == f"rank 1 (process {team.pids[1]}) was killed by SIGKILL while idle"


@pytest.mark.thinned(1)
@pytest.mark.parametrize("victim", ["rank", "leader"])
def test_the_sweep_goes_on_with_a_fresh_team(bench: Bench, victim: str, figure: Any) -> None:
    process = bench.start_run(bench.long_suite())
    leader = traces.leader_of(process.pid)
    time.sleep(0.5)
    killed = time.monotonic()
    os.kill(leader if victim == "leader" else traces.children(leader)[1], signal.SIGKILL)
    second = traces.wait_until(lambda: next(iter(set(_leaders(process.pid)) - {leader}), 0))
    seconds = time.monotonic() - killed
    assert isinstance(second, int)
    os.kill(traces.leader_of(process.pid), signal.SIGKILL)  # the second case is long, too: end it
    ended = bench.end(process, killed)
    assert ended.code == 5
    expected = r"the team's leader died" if victim == "leader" else r"rank 1 \(process \d+\) was killed by"
    assert re.match(expected, ended.row("all_reduce")["detail"])
    assert ended.row("broadcast")["status"] == Status.FAILED.value
    assert seconds < DETECTED_WITHIN_SECONDS
    figure(f"{victim} killed: a fresh team after {seconds * 1e3:.0f} ms")


def _leaders(runner: int) -> list[int]:
    return [pid for pid in traces.children(runner) if traces.is_leader(pid)]


def test_a_rank_that_kills_itself_costs_only_its_case(bench: Bench, figure: Any) -> None:
    suite = bench.suite({"collective": ["all_reduce", "broadcast", "barrier"]}, rounds=2)
    ended = bench.run(suite, fault="kill:rank=1:collective=broadcast")
    assert ended.code == 5
    assert re.fullmatch(
        r"rank 1 \(process \d+\) was killed by SIGKILL while sampling", ended.row("broadcast")["detail"]
    )
    for collective in ("all_reduce", "barrier"):
        assert ended.row(collective)["status"] == Status.OK.value
        assert len(ended.row(collective)["round_samples"]) >= 2
    assert "killed by SIGKILL" in ended.out
    figure("kill by itself: exit code 5, the other two cases are whole")


def test_an_error_in_a_rank_keeps_its_text_and_place_and_releases_the_others(
    monkeypatch: pytest.MonkeyPatch, figure: Any
) -> None:
    monkeypatch.setenv("CCBENCH_FAULT", "raise:rank=2")
    team = WorkerTeam("cpu", 3)
    began = time.monotonic()
    measurement = team.run(RING, SHORT)
    assert traces.all_gone(team.pids, RELEASED_WITHIN_SECONDS)
    seconds = time.monotonic() - began
    assert measurement.status is Status.FAILED
    assert re.fullmatch(
        r"rank 2: InjectedError: a fault was asked for by CCBENCH_FAULT \(faults.py:\d+\)", measurement.detail
    )
    assert seconds < RELEASED_WITHIN_SECONDS
    figure(f"error in a rank: told, and the others gone, after {seconds * 1e3:.0f} ms")


def test_an_error_in_a_rank_costs_only_its_case(bench: Bench) -> None:
    suite = bench.suite({"collective": ["all_reduce", "broadcast"]})
    ended = bench.run(suite, fault="raise:rank=1:collective=all_reduce")
    assert ended.code == 5
    assert "InjectedError: a fault was asked for" in ended.row("all_reduce")["detail"]
    assert ended.row("broadcast")["status"] == Status.OK.value
