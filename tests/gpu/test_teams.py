"""Real teams of workers on GPUs: one process, one process for each rank, and the command line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ccbench.backends.base import TeamRequest
from ccbench.backends.cuda.runtime import Cuda
from ccbench.cases.axes import PROCESSES
from ccbench.cases.measurement import Status
from ccbench.cli import main
from ccbench.results import load_run
from ccbench.runner.workers.team import WorkerTeam

from .cases import SAMPLING, case_of

SUITE = """
backends: [cuda]
sweep:
  collective: [all_reduce, broadcast, barrier]
  algorithm: ALGORITHM
  size: [0 B, 4 KiB, 1 MiB]
  ranks: 2
  transport: TRANSPORT
  processes: PROCESSES
sampling: {rounds: 1, minimum_samples: 3, maximum_samples: 20, budget: 50 ms}
"""


@pytest.mark.parametrize("processes", PROCESSES)
def test_a_team_measures_right(cuda: Cuda, processes: str) -> None:
    team = WorkerTeam(TeamRequest("cuda", 2, processes=processes))
    try:
        for collective in ("all_reduce", "all_gather", "reduce_scatter", "send_recv"):
            for count in (1, 1003, 300_000):
                case = case_of(collective, "ring", 2, count, processes=processes)
                measurement = team.run(case, SAMPLING)
                assert (measurement.status, measurement.wrong_elements) == (Status.OK, 0), (
                    measurement.detail
                )
        assert team.usable()
    finally:
        team.close()


@pytest.mark.parametrize("processes", PROCESSES)
def test_a_stopped_worker_is_named_and_the_team_replaced(
    cuda: Cuda, processes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CCBENCH_FAULT", "stop:rank=1")
    team = WorkerTeam(TeamRequest("cuda", 2, processes=processes))
    case = case_of("all_reduce", "ring", 2, processes=processes)
    measurement = team.run(case, replace(SAMPLING, time_limit_seconds=20.0))
    assert measurement.status is Status.TIMED_OUT
    assert "is stopped by a signal" in measurement.detail
    assert not team.usable()


@pytest.mark.parametrize(
    ("processes", "algorithm", "transport"),
    [
        ("one", "all", "default"),
        ("one", "[ring, tree, mesh, mesh_two_shot, ll, barrier]", "host"),
        (
            "per_gpu",
            "[default, ring]",
            "default",
        ),  # processes take turns on one GPU: right, but slow
    ],
)
def test_a_run_ends_well_and_says_loopback_where_a_gpu_is_shared(
    cuda: Cuda, tmp_path: Path, processes: str, algorithm: str, transport: str
) -> None:
    suite = tmp_path / "gpu.yaml"
    text = SUITE.replace("PROCESSES", processes).replace("ALGORITHM", algorithm)
    suite.write_text(text.replace("TRANSPORT", transport))
    with pytest.raises(SystemExit) as leaving:
        main(["run", str(suite), "-o", str(tmp_path / "run")])
    assert leaving.value.code == 0
    points = load_run(tmp_path / "run").points
    assert {(point.status, point.transport) for point in points} == {("ok", transport)}
    shared = cuda.runtime.getDeviceCount() < 2
    assert all(("loopback" in point.flags) == shared for point in points)
