"""The emulation as a backend: every kernel, type and op; teams that die; runs that say what they are."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ccbench.backends.base import TeamRequest
from ccbench.backends.control_block import Control
from ccbench.backends.cuda_host import BACKEND, EmulatedEndpoint
from ccbench.backends.kernels import building
from ccbench.backends.kernels.sources import kernel_algorithms
from ccbench.cases.axes import NO_ROOT, Case
from ccbench.cases.measurement import Measurement, Status
from ccbench.collectives import COLLECTIVES
from ccbench.dtypes import ITEM_BYTES
from ccbench.results import load_run
from ccbench.runner.workers.team import WorkerTeam
from tests.backends import measuring
from tests.backends.measuring import SAMPLING, command

POINTS = [(name, algorithm) for name in COLLECTIVES for algorithm in kernel_algorithms(name)]


def case_of(
    collective: str, algorithm: str, ranks: int, count: int = 97, **changes: Any
) -> Case:
    return measuring.case_of("cuda-host", collective, algorithm, ranks, count, **changes)


def wrong_elements(endpoint: EmulatedEndpoint, case: Case) -> int:
    assert BACKEND.unsupported(case) is None
    return measuring.wrong_elements(endpoint, case)


@pytest.mark.thinned(4)
@pytest.mark.parametrize(("collective", "algorithm"), POINTS)
def test_every_kernel_is_right_for_odd_counts_and_every_root(
    collective: str, algorithm: str
) -> None:
    endpoint = EmulatedEndpoint(Control(1, 64), 3)
    for count in (0, 1, 2, 31, 5003):
        for root in range(3) if COLLECTIVES[collective].rooted else (NO_ROOT,):
            case = case_of(collective, algorithm, 3, count, root=root)
            if BACKEND.unsupported(case) is None:  # a schedule may not exist for three ranks
                assert wrong_elements(endpoint, case) == 0


@pytest.mark.thinned(4)
@pytest.mark.parametrize("dtype", ITEM_BYTES)
@pytest.mark.parametrize("op", ["sum", "prod", "min", "max", "avg"])
def test_every_type_and_op_is_right_in_place_and_out_of_place(dtype: str, op: str) -> None:
    endpoint = EmulatedEndpoint(Control(1, 64), 4)
    for collective in ("all_reduce", "reduce_scatter", "reduce"):
        for in_place in (False, True):
            case = case_of(collective, "ring", 4, dtype=dtype, op=op, in_place=in_place)
            assert wrong_elements(endpoint, case) == 0, case.label


@pytest.mark.parametrize(
    ("case", "words"),
    [
        (case_of("all_reduce", "ring", 17), "cuda-host has at most 16"),
        (case_of("all_reduce", "ring", 2, 1 << 25), "elements are emulated"),
        (
            case_of("all_reduce", "ring", 2, mode="graph"),
            "no mode graph; it has streaming, isolated",
        ),
        (case_of("all_reduce", "bruck", 2), "no kernel runs all_reduce as 'bruck'; there are "),
        (case_of("all_reduce", "ring", 2, protocol="ll128"), "no protocol ll128"),
        (case_of("all_reduce", "ring", 9, dtype="float8_e5m2"), "cannot be checked"),
        (case_of("all_reduce", "ring", 2, nodes=2), "on one node"),
        (
            case_of("all_to_all_v", "default", 2, traffic="zipf:1"),
            "no traffic zipf:1; there is on cpu, ",
        ),
        (case_of("all_reduce", "ring", 2, concurrent="all_gather"), "no concurrent all_gather"),
        (
            replace(case_of("all_reduce", "ring", 6), groups="rank // 4"),
            "makes groups of 2 and 4 of 6 ranks",
        ),
    ],
)
def test_what_cannot_run_says_why(case: Case, words: str) -> None:
    assert words in str(BACKEND.unsupported(case))


def test_without_a_compiler_the_backend_says_how_to_get_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    building.compiler.cache_clear()
    try:
        reason = str(BACKEND.unavailable())
    finally:
        building.compiler.cache_clear()
    assert reason.startswith("no C++ compiler called 'no-such-compiler' was found; ")
    assert "apt-get install g++" in reason


# -- groups --------------------------------------------------------------------------------------------------

GROUPINGS = (
    "rank // 2",
    "rank % 2",
    "[[0, 3], [2, 1]]",
    "[[3, 1]]",
    "rank % 4",
    "tp of tp2-cp1-ep1-dp2-pp1",
)


def grouped(
    collective: str, algorithm: str, groups: str, count: int = 97, **changes: Any
) -> Case:
    """A case of four ranks in groups."""
    return case_of(collective, algorithm, 4, count, groups=groups, **changes)


@pytest.mark.thinned(5)
@pytest.mark.parametrize(("collective", "algorithm"), POINTS)
def test_every_kernel_is_right_in_groups_at_once_and_alone(
    collective: str, algorithm: str
) -> None:
    endpoint = EmulatedEndpoint(Control(1, 64), 4)
    for groups, alone in (("rank % 2", -1), ("rank // 2", 1)):
        case = grouped(collective, algorithm, groups, active_group=alone)
        assert wrong_elements(endpoint, case) == 0


@pytest.mark.thinned(3)
@pytest.mark.parametrize("groups", GROUPINGS)
def test_any_groups_are_right_and_the_world_is_as_it_was_afterwards(groups: str) -> None:
    endpoint = EmulatedEndpoint(Control(1, 64), 4)
    plain = case_of("all_reduce", "ring", 4, 1001)
    for _ in range(2):
        assert (
            wrong_elements(endpoint, grouped("all_reduce", "ring", groups, 1001, in_place=True))
            == 0
        )
        assert wrong_elements(endpoint, grouped("all_gather", "ll", groups, 31)) == 0
        assert wrong_elements(endpoint, plain) == 0


# -- teams ---------------------------------------------------------------------------------------------------


def measured(case: Case, limit_seconds: float = 30.0) -> tuple[Measurement, bool]:
    team = WorkerTeam(TeamRequest("cuda-host", case.ranks))
    try:
        return team.run(
            case, replace(SAMPLING, time_limit_seconds=limit_seconds)
        ), team.usable()
    finally:
        team.close()


@pytest.mark.parametrize(
    ("fault", "status", "words"),
    [
        (
            "kill",
            Status.FAILED,
            r"process of all ranks \(process \d+\) was killed by SIGKILL while sampling",
        ),
        pytest.param(
            *(
                "stop",
                Status.TIMED_OUT,
                r"the process of all ranks \(process \d+\) is stopped by a signal$",
            ),
            marks=pytest.mark.exhaustive,
        ),
        ("raise", Status.FAILED, "InjectedError: a fault was asked for"),
        ("element", Status.WRONG, "rank 1: 1 wrong, first at element 48"),
    ],
)
def test_a_worker_that_misbehaves_is_named(
    monkeypatch: pytest.MonkeyPatch, fault: str, status: Status, words: str
) -> None:
    monkeypatch.setenv("CCBENCH_FAULT", f"{fault}:rank=1")
    measurement, usable = measured(case_of("all_reduce", "ring", 2), limit_seconds=3.0)
    assert measurement.status is status
    assert re.search(words, measurement.detail), measurement.detail
    assert usable == (status is Status.WRONG)


# -- runs ----------------------------------------------------------------------------------------------------

SUITE = """
sweep: {collective: [all_reduce, barrier], size: 64 B, ranks: 2}
sampling: {rounds: 1, minimum_samples: 3, maximum_samples: 5, warmup: 0 s, minimum_sample: 0 s, budget: 10 ms}
"""


def test_a_run_says_emulation_wherever_it_is_shown(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    suite, folder = tmp_path / "small.yaml", tmp_path / "run"
    suite.write_text(SUITE)
    assert command("run", str(suite), "--backend", "cuda-host", "-o", str(folder)) == 0
    rows = load_run(folder).table.to_pylist()
    assert rows
    for row in rows:
        assert (row["status"], row["simulated"], row["predicted_seconds"]) == ("ok", True, None)
        assert "emulation" in row["flags"]
    assert command("report", str(folder), "--format", "md", "-o", str(tmp_path / "out.md")) == 0
    shown = (tmp_path / "out.md").read_text()
    assert "EMULATION" in shown
    assert "SIMULATED" not in shown
    assert "EMULATION" in capfd.readouterr().out


def test_the_cuda_backend_without_a_driver_is_one_sentence_and_exit_code_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    why = "this machine has no NVIDIA driver"
    monkeypatch.setattr("ccbench.backends.cuda.driver_missing", lambda root=None: why)
    monkeypatch.chdir(tmp_path)
    assert command("run", "loopback", "--backend", "cuda") == 2
    assert capfd.readouterr().err.strip() == (
        "ccbench: error: backend cuda: this machine has no NVIDIA driver"
    )
    assert not (tmp_path / "results").exists()
