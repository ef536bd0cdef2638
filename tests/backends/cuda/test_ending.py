"""A team's end: ranks that must give things back do, nobody hangs, and nothing is left."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ccbench.backends.cuda import ipc
from ccbench.backends.cuda.ipc import IpcEndpoint
from ccbench.backends.endpoint import open_worker_group
from ccbench.cases import ONE_PROCESS, PER_GPU
from ccbench.machine.host import single_threaded
from ccbench.runner.workers.team import CLOSE_SECONDS

from .test_ipc_together import RANKS, World, world

ROOT = Path(__file__).resolve().parents[3]

__all__ = ["world"]  # a fixture: pytest finds it by its name here


@pytest.mark.parametrize(
    ("how", "seen"), [("closing", [2, 2, 2]), ("hanging", [1, 2, 2]), ("plain", [0, 0, 0])]
)
def test_ranks_that_must_close_do_before_they_are_ended_and_nothing_is_left(
    how: str, seen: list[int]
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.backends.cuda.ending", how],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**single_threaded(os.environ), "PYTHONPATH": str(ROOT)},
        timeout=30,
        check=False,
    )
    assert [int(line) for line in done.stdout.split()] == [*seen, 0], (done.stdout, done.stderr)


def test_only_ranks_that_opened_each_others_memory_take_time_to_close() -> None:
    asked = [("cpu", ONE_PROCESS), ("cuda", ONE_PROCESS), ("cuda", PER_GPU), ("cuda-host", ONE_PROCESS)]
    closing = [one for one in asked if open_worker_group(one[0], 2, 4, one[1]).closing_seconds]
    assert closing == [("cuda", PER_GPU)]


def test_a_team_closes_before_the_runner_kills_it_even_where_a_rank_is_dead() -> None:
    assert ipc.CLOSE_LIMIT_SECONDS < ipc.CLOSING_SECONDS < CLOSE_SECONDS


def test_closing_ranks_have_not_come_to_the_barrier_that_another_still_waits_in(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ipc, "CLOSE_LIMIT_SECONDS", 0.2)
    ended: list[str] = []

    def wait() -> None:
        try:
            world.endpoints[0].barrier()
        except Exception as error:  # what the test lets it go by
            ended.append(str(error))
        else:
            ended.append("got through")

    waiting = threading.Thread(target=wait)
    waiting.start()
    assert world.all(lambda one: None if one.rank == 0 else IpcEndpoint.close(one)) == [None] * RANKS
    waiting.join(0.2)  # time for what must not happen
    world.board.leave(1, "gone")
    waiting.join(20)
    assert ended == ["rank 1: gone"]
