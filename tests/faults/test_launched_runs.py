"""Runs whose ranks mpirun has started: of runner, leader, mpirun and ranks nothing is left, whoever dies."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from ccbench.backends.base import TeamRequest
from ccbench.backends.mpi import BACKEND
from ccbench.cases import Status
from ccbench.errors import BackendUnavailable
from ccbench.model.machine import load_machine
from ccbench.runner.workers.team import open_team
from tests.faults import traces
from tests.faults.conftest import SAMPLING, Bench

pytestmark = pytest.mark.skipif(
    BACKEND.unavailable() is not None, reason=f"no MPI here: {BACKEND.unavailable()}"
)


def suite(bench: Bench, *sweeps: dict[str, Any], **sampling: Any) -> Path:
    path = bench.folder / "launched.yaml"
    document = {
        "suite": "launched",
        "backends": ["mpi"],
        "sweep": [{"ranks": 2, "size": "4 KiB", **sweep} for sweep in sweeps],
        "sampling": {**SAMPLING, **sampling},
        "order": "written",
    }
    path.write_text(json.dumps(document))
    return path


def endless(bench: Bench) -> Path:
    return suite(
        bench,
        {"collective": "all_reduce"},
        budget="8 s",
        max_ci_width="0.1%",
        maximum_samples=4000,
        minimum_samples=4000,
        minimum_sample="2 ms",
    )


def everyone(bench: Bench, at_least: int) -> list[int]:
    """Processes of the run once both ranks work."""

    def found() -> list[int]:
        assert bench.started[-1].poll() is None, "the run has ended"
        pids = traces.marked(bench.mark)
        ranks = []
        for pid in pids:
            with suppress(OSError):  # it has ended
                ranks += [pid] if traces.role(pid) == b"agent" else []
        return pids if len(pids) >= at_least and len(ranks) >= 2 else []

    pids = traces.wait_until(found)
    assert isinstance(pids, list)
    time.sleep(1.5)  # into the samples
    return pids


@pytest.mark.thinned(1)
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)]
)
def test_a_runner_that_is_signalled_leaves_no_rank_and_no_mpirun(
    bench: Bench, number: signal.Signals, code: int, figure: Any
) -> None:
    process = bench.start_run(endless(bench))
    pids = everyone(bench, 5)
    began = time.monotonic()
    process.send_signal(number)
    process.communicate(timeout=30)
    assert process.returncode == code
    assert traces.all_gone(pids, 10)
    figure(f"{number.name}: {len(pids)} processes gone after {time.monotonic() - began:.1f} s")


@pytest.mark.thinned(1)
@pytest.mark.parametrize(
    ("fault", "status", "code", "words"),
    [
        ("kill", Status.FAILED, 5, "rank 1 (process "),
        ("raise", Status.FAILED, 5, "rank 1: InjectedError"),
        ("stop", Status.TIMED_OUT, 4, "is stopped by a signal"),
        ("element", Status.WRONG, 1, "rank 1: 1 wrong"),
    ],
)
def test_a_rank_that_misbehaves_is_named_and_a_fresh_team_goes_on(
    bench: Bench, fault: str, status: Status, code: int, words: str
) -> None:
    path = suite(bench, {"collective": ["all_reduce", "broadcast"]}, time_limit="2 s")
    ended = bench.run(path, fault=f"{fault}:rank=1:collective=all_reduce")
    assert ended.code == code, ended.err
    row = ended.row("all_reduce")
    assert row["status"] == status.value
    assert words in row["detail"]
    assert ended.row("broadcast")["status"] == Status.OK.value


@pytest.mark.exhaustive
def test_a_rank_stopped_while_its_library_starts_is_named_and_no_other(
    monkeypatch: pytest.MonkeyPatch, figure: Any
) -> None:
    mark = f"starting-{os.getpid()}"
    monkeypatch.setenv(traces.MARK, mark)

    def stop_one() -> int:
        """Stop a rank that has connected and loads its library; its number, 0 while there is none."""
        for pid in traces.marked(mark):
            with suppress(OSError):  # it has ended
                maps = Path("/proc", str(pid), "maps").read_text()
                if traces.role(pid) == b"agent" and "libmpi" in maps:
                    os.kill(pid, signal.SIGSTOP)
                    return pid
        return 0

    stopped: list[object] = []
    stopper = threading.Thread(target=lambda: stopped.append(traces.wait_until(stop_one, 60)))
    stopper.start()
    began = time.monotonic()
    with pytest.raises(BackendUnavailable, match="the library did not start: rank") as raised:
        open_team(BACKEND, TeamRequest(2, load_machine("cpu-shared-memory")))
    stopper.join()
    assert f"(process {stopped[0]}) is stopped by a signal; the others wait for it" in str(raised.value)
    assert raised.value.exit_code == 4
    assert time.monotonic() - began < 60
    assert [pid for pid in traces.left_behind(mark) if pid != os.getpid()] == []
    figure(f"stopped while its library starts: named after {time.monotonic() - began:.0f} s")
