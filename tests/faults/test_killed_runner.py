"""The runner is killed with -9 at random moments: what was measured stays, and resume completes it."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from ccbench.cases.measurement import Status
from ccbench.results.files import MANIFEST_NAME, has_cases
from ccbench.runner.planning import RunOptions, plan_suite
from ccbench.suite.model import load_suite
from tests.faults import traces
from tests.faults.conftest import Bench, rows_of

KILLS = 30
KILLS_A_FOLDER = 10
LATEST_KILL_SECONDS = 1.5
"""Kills fall into the time that a whole run takes here and now, or into this where it takes longer; in each
folder one waits for a case instead."""


class Runners:
    """The fork server's client."""

    def __init__(self, folder: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.fork_server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=folder,
        )

    def ask(self, line: str) -> str:
        """One line there, one line back."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def start(self, suite: Path, output: Path) -> int:
        """A runner under way; resumes where there is a run already."""
        return int(self.ask(f"{suite} {output} {int((output / MANIFEST_NAME).exists())}"))

    def end(self, pid: int) -> str:
        """How it ended."""
        return self.ask(f"wait {pid}")


@contextmanager
def runners(folder: Path) -> Iterator[Runners]:
    made = Runners(folder)
    try:
        yield made
    finally:
        assert made.process.stdin is not None
        assert made.process.stdout is not None
        made.process.stdin.close()
        made.process.stdout.close()
        made.process.wait(10)


@pytest.mark.exhaustive
def test_a_runner_killed_many_times_loses_nothing_and_resumes(
    bench: Bench, tmp_path: Path
) -> None:
    suite = bench.suite(
        {"collective": ["all_reduce", "broadcast", "barrier"], "size": ["64 B", "4 KiB"]},
        rounds=2,
    )
    expected = {case.case_id for case in plan_suite(load_suite(suite), RunOptions()).cases}
    assert len(expected) == 5
    chooser = random.Random(20)
    with runners(tmp_path) as server:
        latest = min(LATEST_KILL_SECONDS, _seconds_of_a_run(server, suite, tmp_path / "whole"))
        for number in range(KILLS // KILLS_A_FOLDER):
            folder = tmp_path / f"run-{number}"
            seen: dict[str, tuple[float, ...]] = {}
            for kill in range(KILLS_A_FOLDER):
                pid = server.start(suite, folder)
                if kill == KILLS_A_FOLDER // 2:
                    traces.wait_until(
                        lambda folder=folder: has_cases(folder) and rows_of(folder), 120
                    )
                else:
                    time.sleep(chooser.uniform(0, latest))
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                assert server.end(pid) in ("ended -9", "ended 0")
                seen = _grown(folder, seen)
            assert seen, "the kill that came after a case kept none"
            assert server.end(server.start(suite, folder)) == "ended 0"
            _grown(folder, seen)
            rows = rows_of(folder)
            assert sorted(row["case_id"] for row in rows) == sorted(expected)
            assert {row["status"] for row in rows} == {Status.OK.value}
            assert not list(folder.glob(".*")), "a half-written file is left"


def _seconds_of_a_run(server: Runners, suite: Path, output: Path) -> float:
    began = time.monotonic()
    assert server.end(server.start(suite, output)) == "ended 0"
    return time.monotonic() - began


def _grown(folder: Path, before: dict[str, tuple[float, ...]]) -> dict[str, tuple[float, ...]]:
    """Samples by case; everything that was readable before must still be, samples only grow."""
    if not (folder / MANIFEST_NAME).exists():
        assert not before
        return {}
    now = {row["case_id"]: tuple(row["samples_seconds"]) for row in rows_of(folder)}
    for case_id, samples in before.items():
        assert now[case_id][: len(samples)] == samples
    return now


def test_ranks_and_leader_die_with_the_runner(bench: Bench) -> None:
    process = bench.start_run(bench.long_suite())
    leader = traces.leader_of(process.pid)
    everyone = [leader, *traces.children(leader)]
    process.kill()
    assert traces.all_gone(everyone)
    process.communicate()
