"""NCCL itself on this machine's GPUs: one rank, and two to four that share the first GPU."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ccbench.backends.base import CannotRun, TeamLaunch, TeamRequest
from ccbench.backends.control_block import Control
from ccbench.backends.cuda.runtime import Cuda
from ccbench.backends.nccl import environment_of
from ccbench.backends.nccl.bootstrap import SHARED_GPU_VERSION, opened
from ccbench.backends.nccl.endpoint import NcclRanks
from ccbench.backends.nccl.library import Library, open_by_cupy
from ccbench.cases.axes import PER_GPU, Case
from ccbench.cases.measurement import Measurement, Sampling, Status
from ccbench.collectives import COLLECTIVES
from ccbench.dtypes import ITEM_BYTES
from ccbench.errors import CcbenchError
from ccbench.machine.host import state
from ccbench.runner.workers.team import WorkerTeam
from tests.backends.measuring import wrong_elements
from tests.backends.nccl.measuring import case_of

SAMPLING = Sampling(rounds=1, minimum_samples=3, maximum_samples=10, budget_seconds=0.05)
OPS = ("sum", "prod", "min", "max", "avg", "premulsum")
END_LIMIT_SECONDS = 30.0


@pytest.fixture(scope="module")
def nccl(cuda: Cuda) -> Library:
    """NCCL, or a skip with the reason."""
    try:
        return open_by_cupy()
    except CcbenchError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def alone(cuda: Cuda, nccl: Library) -> Iterator[NcclRanks]:
    """One rank on the first GPU."""
    endpoint = opened(Control(1, 4096), cuda, nccl, {0: 0})
    yield endpoint
    endpoint.close()


@pytest.mark.parametrize("mode", ["streaming", "isolated", "graph", "cold"])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_every_collective_of_one_rank_is_exact(
    alone: NcclRanks, collective: str, mode: str
) -> None:
    assert wrong_elements(alone, case_of(collective, 1, 5003, mode=mode), SAMPLING) == 0


@pytest.mark.parametrize("dtype", ITEM_BYTES)
@pytest.mark.parametrize("op", OPS)
def test_every_dtype_and_op_of_one_rank_is_exact(alone: NcclRanks, dtype: str, op: str) -> None:
    case = case_of("all_reduce", 1, 5003, dtype=dtype, op=op)
    try:
        assert wrong_elements(alone, case, SAMPLING) == 0
    except (
        CannotRun
    ) as error:  # float8 before 2.24, and multiplied where a communicator has one rank
        if not dtype.startswith("float8"):
            raise
        pytest.skip(str(error))


@pytest.mark.parametrize("kind", ["matmul", "memory"])
def test_a_collective_is_exact_while_something_is_computed(alone: NcclRanks, kind: str) -> None:
    case = case_of("all_reduce", 1, 1 << 20, mode="overlap", overlap_with=kind)
    alone.prepare(case)
    try:
        alone.prepare_computing(kind)
    except CannotRun as error:
        pytest.skip(str(error))
    alone.compute(10)
    computing_alone = alone.device_seconds()
    assert computing_alone > 0
    alone.poison()
    alone.refill(7)
    computing, communicating = alone.launch_while_computing(3, 10)
    assert alone.check(7, 1) is None
    assert computing > 0
    assert communicating > 0
    alone.finish()
    assert wrong_elements(alone, case, SAMPLING) == 0


@pytest.mark.parametrize("registration", ["local", "symmetric"])
def test_registered_memory_of_one_rank_works(alone: NcclRanks, registration: str) -> None:
    case = case_of("all_reduce", 1, 5003, registration=registration)
    try:
        found = wrong_elements(alone, case, SAMPLING)
    except CannotRun as error:  # a version without the call, or memory that NCCL passes over
        if not re.search("NCCL does not register|which came with", str(error)):
            raise
        pytest.skip(str(error))
    assert found == 0


# -- several ranks, a process each, on one GPU --------------------------------------------------


def shared_settings(nccl: Library, case: Case) -> tuple[tuple[str, str], ...]:
    """What lets ranks share a GPU: NCCL's switch from 2.30 on, else the network and hosts of their own."""
    if nccl.version >= SHARED_GPU_VERSION:
        return (
            *environment_of(case),
            ("NCCL_MULTI_RANK_GPU_ENABLE", "1"),
            ("CUDA_VISIBLE_DEVICES", "0"),
        )
    case = replace(case, transport="network")
    return (*environment_of(case), ("CUDA_VISIBLE_DEVICES", "0"))


def team_of(ranks: int, environment: tuple[tuple[str, str], ...]) -> WorkerTeam:
    """A process for each rank, started by the team's leader."""
    return WorkerTeam(
        TeamRequest("nccl", ranks, TeamLaunch(pinned=False), environment, PER_GPU)
    )


def run(nccl: Library, cases: list[Case]) -> list[Measurement]:
    """All cases on one team of processes."""
    team = team_of(cases[0].ranks, shared_settings(nccl, cases[0]))
    try:
        return [team.run(replace(case, processes=PER_GPU), SAMPLING) for case in cases]
    finally:
        team.close()


@pytest.mark.parametrize("ranks", [2, 4])
def test_every_collective_of_ranks_that_share_a_gpu_is_exact(nccl: Library, ranks: int) -> None:
    for measurement in run(nccl, [case_of(name, ranks, 5003) for name in COLLECTIVES]):
        assert (measurement.status, measurement.wrong_elements or 0) == (Status.OK, 0), (
            measurement.detail
        )
        assert "loopback" in measurement.conditions.flags


def test_dtypes_and_ops_of_ranks_that_share_a_gpu_are_exact(nccl: Library) -> None:
    cases = [
        case_of("all_reduce", 2, 777, dtype=dtype, op=op) for dtype in ITEM_BYTES for op in OPS
    ]
    for measurement in run(nccl, cases):
        must = measurement.case.dtype in ("float32", "int32") and measurement.case.op in (
            "sum",
            "min",
            "max",
        )
        allowed = (Status.OK,) if must else (Status.OK, Status.UNSUPPORTED)
        assert measurement.status in allowed, measurement.detail


@pytest.mark.parametrize(
    "changes",
    [
        {"mode": "graph"},
        {"groups": "rank // 2"},
        {"groups": "rank % 2", "concurrent": "all_gather"},
        {"aggregation": 4},
        {"in_place": True, "misalignment_bytes": 4},
    ],
)
def test_variations_of_ranks_that_share_a_gpu_are_exact(
    nccl: Library, changes: dict[str, object]
) -> None:
    case = replace(case_of("all_reduce", 4, 5003), **changes)  # type: ignore[arg-type]  # fields of a case
    (measurement,) = run(nccl, [case])
    assert (measurement.status, measurement.wrong_elements) == (Status.OK, 0), (
        measurement.detail
    )


@pytest.mark.parametrize(
    ("algorithm", "protocol"), [("ring", "ll"), ("ring", "simple"), ("tree", "ll")]
)
def test_forced_algorithms_of_ranks_that_share_a_gpu_are_what_runs_or_are_refused(
    nccl: Library, algorithm: str, protocol: str
) -> None:
    (measurement,) = run(
        nccl, [case_of("all_reduce", 2, 5003, algorithm=algorithm, protocol=protocol)]
    )
    allowed = (Status.OK,) if algorithm == "ring" else (Status.OK, Status.UNSUPPORTED)
    assert measurement.status in allowed, measurement.detail
    if measurement.status is Status.OK and measurement.protocol_used:
        assert (measurement.algorithm_used, measurement.protocol_used) == (algorithm, protocol)


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_a_rank_that_is_stopped_or_killed_ends_the_case_and_leaves_no_process(
    nccl: Library, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(
        "CCBENCH_FAULT", f"{'stop' if number is signal.SIGSTOP else 'kill'}:rank=1"
    )
    case = case_of("all_reduce", 2, 5003, processes=PER_GPU)
    team = team_of(2, shared_settings(nccl, case))
    pids = team.pids
    began = time.monotonic()
    measurement = team.run(case, replace(SAMPLING, time_limit_seconds=20.0))
    assert time.monotonic() - began < END_LIMIT_SECONDS
    assert measurement.status in (Status.FAILED, Status.TIMED_OUT)
    assert "rank 1" in measurement.detail
    assert not team.usable()
    team.close()
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists() and state(pid) != "Z"]
    assert os.getpid() not in pids


def test_ranks_that_share_a_gpu_without_a_word_are_refused(nccl: Library) -> None:
    with pytest.raises(CcbenchError, match="have the same GPU"):
        team_of(2, (("CUDA_VISIBLE_DEVICES", "0"),))
