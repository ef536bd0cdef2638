"""Ranks that are slow: one that is late in every launch, and one that is stopped half of the time.

Ranks end together, so the late one shows by never waiting. The other, as under a quota, is stopped while it
waits, too, so that all ranks wait alike; it shows by the processor time that it gets.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from ccbench.analysis.slow_ranks import SYMMETRIC, starved_ranks
from ccbench.cases.axes import Case
from ccbench.cases.measurement import Measurement, Sampling, Status
from ccbench.collectives import COLLECTIVES
from ccbench.flags import LOAD_FLAGS
from ccbench.results import Point
from ccbench.results.schema import row_of
from ccbench.runner.measure import merged
from ccbench.runner.workers.team import WorkerTeam
from tests.results.samples import run_of_rows

ROUNDS = 3
"""So that a time slice that another program took from a rank is not taken for slowness."""

TURN_SECONDS = 0.01
SAMPLING = Sampling(
    rounds=1,
    budget_seconds=0.15,
    warmup_seconds=0.03,
    minimum_sample_seconds=0.0002,
    minimum_samples=3,
)


def case_of(collective: str, ranks: int) -> Case:
    row = COLLECTIVES[collective]
    op = "sum" if row.reduces else "none"
    size = row.size_bytes(256, ranks, 4)
    root = 0 if row.rooted else -1
    return Case("s", "cpu", collective, "default", "float32", op, size, 256, ranks, root=root)


@pytest.mark.thinned(1)
@pytest.mark.parametrize("slow", [0, 1, 2])
def test_the_slow_rank_is_the_slowest_in_every_collective(
    monkeypatch: pytest.MonkeyPatch, slow: int
) -> None:
    monkeypatch.setenv("CCBENCH_FAULT", f"slow:rank={slow}")
    team = WorkerTeam("cpu", 3)
    named = {}
    for collective in COLLECTIVES:
        measurement = None
        for _ in range(ROUNDS):
            measurement = merged(
                measurement,
                team.run(case_of(collective, 3), replace(SAMPLING, budget_seconds=0.01)),
            )
        assert measurement is not None
        assert measurement.status is Status.OK
        named[collective] = row_of(measurement, None, 0.95)["slowest_rank"]
    team.close()
    assert named == dict.fromkeys(COLLECTIVES, slow)


@contextmanager
def half_of_its_processor(process: int) -> Iterator[None]:
    """Stop and continue a process by turns."""
    over = threading.Event()

    def limit() -> None:
        while not over.is_set():
            os.kill(process, signal.SIGSTOP)
            over.wait(TURN_SECONDS)
            os.kill(process, signal.SIGCONT)
            over.wait(TURN_SECONDS)

    limiter = threading.Thread(target=limit)
    limiter.start()
    try:
        yield
    finally:
        over.set()
        limiter.join()


def points_of(team: WorkerTeam, ranks: int) -> tuple[Point, ...]:
    """One for each collective in which all ranks do as much."""
    measured = [
        team.run(case, SAMPLING) for case in (case_of(name, ranks) for name in SYMMETRIC)
    ]
    assert [one.status for one in measured] == [Status.OK] * len(measured)
    return run_of_rows([row_of(_unloaded(one), None, 0.95) for one in measured], {}).points


def _unloaded(measurement: Measurement) -> Measurement:
    """Without flags of load, for which the verdict leaves cases out: here all count, whatever else runs."""
    flags = tuple(flag for flag in measurement.conditions.flags if flag not in LOAD_FLAGS)
    return replace(measurement, conditions=replace(measurement.conditions, flags=flags))


@pytest.mark.thinned(1)
@pytest.mark.parametrize(("ranks", "starved"), [(2, 0), (4, 3)])
def test_the_rank_with_half_of_its_processor_is_named_and_nobody_without(
    ranks: int, starved: int
) -> None:
    team = WorkerTeam("cpu", ranks)
    try:
        healthy = points_of(team, ranks)
        with half_of_its_processor(team.pids[starved]):
            limited = points_of(team, ranks)
    finally:
        team.close()
    assert starved_ranks(healthy) == {}
    named = starved_ranks(limited)
    assert set(named) == {starved}
