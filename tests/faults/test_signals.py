"""Ctrl-C and SIGTERM: an exit code that tells, everything kept, and the table all the same."""

from __future__ import annotations

import os
import signal

import pytest

from ccbench.cases.measurement import Status
from tests.faults import traces
from tests.faults.conftest import Bench


@pytest.mark.thinned(1)
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_keeps_what_was_measured_and_prints_it(
    bench: Bench, number: signal.Signals, code: int
) -> None:
    suite = bench.suite(
        {"collective": ["all_reduce", "broadcast", "barrier"]},
        rounds=100,
        budget="60 s",
        max_ci_width="0.1%",
        minimum_samples=100_000,
        maximum_samples=1_000_000,
        time_limit="100 s",
    )
    process = bench.start_run(suite)
    log = bench.folder / "out" / "cases.log"
    traces.wait_until(lambda: log.exists() and log.stat().st_size)
    os.kill(process.pid, number)
    ended = bench.end(process)
    assert ended.code == code
    (row, *_) = rows = ended.rows
    assert {row["status"] for row in rows} == {Status.OK.value}
    assert len(row["samples_seconds"]) > 0
    assert "all_reduce" in ended.out
    assert "run folder: out" in ended.err


def test_nohup_is_respected(bench: Bench) -> None:
    """A runner that was started with SIGHUP ignored does not hear it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        process = bench.start_run(bench.suite({"collective": "barrier"}, budget="500 ms"))
    finally:
        signal.signal(signal.SIGHUP, before)
    traces.leader_of(process.pid)
    os.kill(process.pid, signal.SIGHUP)
    assert bench.end(process).code == 0
