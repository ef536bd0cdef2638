"""Ranks that are slow: one that is late in every launch, and one that is stopped half of the time.

Ranks end together, so the late one shows by never waiting. The other, as under a quota, is stopped while it
waits, too, so that all ranks wait alike; it shows by the processor time that it gets.

The quick tier judges recorded stamps, the exhaustive one real clocks: three tries, of which those count in which no
other program had much of the machine.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

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
from tests.faults.traces import cpu_team
from tests.results.samples import measured, run_of_rows

ROUNDS = 3
"""So that a time slice that another program took from a rank is not taken for slowness."""

TURN_SECONDS = 0.01
TRIES = 3
BUSY_SHARE = 0.1
"""Share of the processors that other programs have, above which clocks show those."""

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


RECORDED: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parent / "late_rank.json").read_text(encoding="utf-8")
)
"""Stamps of three ranks of the cpu backend under CCBENCH_FAULT=slow:rank=1, 2 cores, November 2026."""


def test_the_rank_that_was_late_is_the_slowest_in_recorded_stamps_of_every_collective() -> None:
    slowest = {
        collective: slowest_of(
            measured(
                case=case_of(collective, 3),
                samples_seconds=tuple(stamps["rank_samples_seconds"][1]),
                rank_samples_seconds=tuple(map(tuple, stamps["rank_samples_seconds"])),
                rank_waiting_seconds=tuple(map(tuple, stamps["rank_waiting_seconds"])),
            )
        )
        for collective, stamps in RECORDED.items()
    }
    assert slowest == dict.fromkeys(COLLECTIVES, 1)


def slowest_of(measurement: Measurement) -> int | None:
    """The rank that its row calls the slowest."""
    rank: int | None = row_of(measurement, None, 0.95)["slowest_rank"]
    return rank


def holds(check: Callable[[], tuple[bool, list[Measurement]]]) -> None:
    """Fail when a check of real clocks fails in every try; skip where others had the processors each time."""
    quiet = False
    for _ in range(TRIES):
        passed, measurements = check()
        if passed:
            return
        shares = [one.conditions.other_cpu_share or 0.0 for one in measurements]
        quiet |= median(shares) < BUSY_SHARE
    if not quiet:
        pytest.skip("other programs have the processors")
    raise AssertionError(f"not in {TRIES} tries")


@pytest.mark.exhaustive
@pytest.mark.quiet
@pytest.mark.parametrize("slow", [0, 1, 2])
def test_the_slow_rank_is_the_slowest_in_every_collective(
    monkeypatch: pytest.MonkeyPatch, slow: int
) -> None:
    monkeypatch.setenv("CCBENCH_FAULT", f"slow:rank={slow}")

    def check() -> tuple[bool, list[Measurement]]:
        team = cpu_team()
        try:
            measurements = [rounds_of(team, name) for name in COLLECTIVES]
        finally:
            team.close()
        assert {one.status for one in measurements} == {Status.OK}
        return {slowest_of(one) for one in measurements} == {slow}, measurements

    holds(check)


def rounds_of(team: WorkerTeam, collective: str) -> Measurement:
    """A few short rounds of one case."""
    sampling, measurement = replace(SAMPLING, budget_seconds=0.01), None
    for _ in range(ROUNDS):
        measurement = merged(measurement, team.run(case_of(collective, 3), sampling))
    assert measurement is not None
    return measurement


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


def measurements_of(team: WorkerTeam, ranks: int) -> list[Measurement]:
    """One for each collective in which all ranks do as much."""
    measurements = [team.run(case_of(name, ranks), SAMPLING) for name in SYMMETRIC]
    assert {one.status for one in measurements} == {Status.OK}
    return measurements


def points_of(measurements: list[Measurement]) -> tuple[Point, ...]:
    """The rows of a run of these."""
    rows = [row_of(_unloaded(one), None, 0.95) for one in measurements]
    return run_of_rows(rows, {}).points


def _unloaded(measurement: Measurement) -> Measurement:
    """Without flags of load, for which the verdict leaves cases out: here all count, whatever else runs."""
    flags = tuple(flag for flag in measurement.conditions.flags if flag not in LOAD_FLAGS)
    return replace(measurement, conditions=replace(measurement.conditions, flags=flags))


@pytest.mark.exhaustive
@pytest.mark.quiet
@pytest.mark.parametrize(("ranks", "starved"), [(2, 0), (4, 3)])
def test_the_rank_with_half_of_its_processor_is_named_and_nobody_without(
    ranks: int, starved: int
) -> None:
    def check() -> tuple[bool, list[Measurement]]:
        team = cpu_team(ranks)
        try:
            healthy = measurements_of(team, ranks)
            with half_of_its_processor(team.pids[starved]):
                limited = measurements_of(team, ranks)
        finally:
            team.close()
        named = [{*dict(starved_ranks(points_of(of)))} for of in (healthy, limited)]
        return named == [set(), {starved}], [*healthy, *limited]

    holds(check)
