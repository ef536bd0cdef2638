"""Runs whose ranks mpirun has started: of runner, leader, mpirun and ranks nothing is left, whoever dies."""

from __future__ import annotations

import json
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from ccbench.backends.mpi import BACKEND
from ccbench.cases import Status
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
