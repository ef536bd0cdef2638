"""A rank that is late in every launch: ranks end together, so it shows by being the one that never waits."""

from __future__ import annotations

from typing import Any

import pytest

from ccbench.cases import Case, Sampling, Status
from ccbench.collectives import COLLECTIVES
from ccbench.results.rows import row_of, usual_waits
from ccbench.runner.rounds import merged
from ccbench.runner.workers.team import WorkerTeam
from tests.faults.conftest import Bench

SAMPLING = Sampling(
    rounds=1, budget_seconds=0.01, warmup_seconds=0.03, minimum_sample_seconds=0.0002, minimum_samples=3
)
ROUNDS = 3
"""So that a time slice that another program took from a rank is not taken for slowness."""


def case_of(collective: str, ranks: int) -> Case:
    row = COLLECTIVES[collective]
    op = "sum" if row.reduces else "none"
    size = row.size_bytes(256, ranks, 4)
    root = 0 if row.rooted else -1
    return Case("s", "cpu", collective, "default", "float32", op, size, 256, ranks, root=root)


@pytest.mark.thinned(1)
@pytest.mark.parametrize("slow", [0, 1, 2])
def test_the_slow_rank_is_the_slowest_in_every_collective(
    monkeypatch: pytest.MonkeyPatch, slow: int, figure: Any
) -> None:
    monkeypatch.setenv("CCBENCH_FAULT", f"slow:rank={slow}")
    team = WorkerTeam("cpu", 3)
    named = {}
    for collective in COLLECTIVES:
        measurement = None
        for _ in range(ROUNDS):
            measurement = merged(measurement, team.run(case_of(collective, 3), SAMPLING))
        assert measurement is not None
        assert measurement.status is Status.OK
        named[collective] = row_of(measurement, None, 0.95)["slowest_rank"]
    team.close()
    assert named == dict.fromkeys(COLLECTIVES, slow)
    figure(f"rank {slow} sleeps 5 ms a launch: named in {len(named)} of {len(named)} collectives")


def test_the_run_folder_names_the_slow_rank_too(bench: Bench) -> None:
    suite = bench.suite({"collective": "all_reduce", "ranks": 3}, rounds=3, warmup="90 ms")
    ended = bench.run(suite, fault="slow:rank=1")
    row = ended.row("all_reduce")
    assert (ended.code, row["slowest_rank"]) == (0, 1)
    waiting = usual_waits(row["rank_waiting_seconds"])
    assert min(waiting[0], waiting[2]) > waiting[1]


def test_a_misspelt_fault_ends_the_run_before_it_begins(bench: Bench) -> None:
    ended = bench.run(bench.suite({"collective": "all_reduce"}), fault="slow:rank=x")
    assert ended.code == 2
    assert ended.err.startswith("ccbench: error: CCBENCH_FAULT: 'slow:rank=x': rank is 'x'")
    assert len(ended.err.splitlines()) == 1
    assert not ended.folder.exists()
