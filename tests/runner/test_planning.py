"""What a run would do, on this machine and on one that is only named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ccbench.backends import open_backend
from ccbench.backends.prerequisites import driver_missing
from ccbench.cases.axes import Case
from ccbench.errors import BackendUnavailable, MachineError, UsageError
from ccbench.machine.host import usable_cores
from ccbench.runner.planning import (
    RunOptions,
    automatic_backends,
    automatic_ranks,
    case_bytes,
    plan_suite,
    rank_bytes,
    refuse_few_nodes,
    refuse_idle_devices,
    refuse_what_does_not_fit,
)
from ccbench.runner.workers.discovery import LaunchedRanks
from ccbench.runner.workers.facts import HostFacts
from ccbench.suite.model import load_suite, read_suite

CASE = Case("s", "cpu", "all_gather", "ring", "float32", "none", 4096, 256, 4)


def test_a_plan_for_a_named_machine_is_of_its_gpus() -> None:
    plan = plan_suite(load_suite("allreduce"), RunOptions(machine="hgx-h100", only_plan=True))
    assert {case.ranks for case in plan.cases} == {8}
    assert "cuda" in {case.backend for case in plan.cases}
    assert plan.context is not None
    assert any("for 8 GPUs of hgx-h100, not this machine" in note for note in plan.notes)


def test_a_network_is_looked_at_before_anything_runs_and_its_lack_is_said() -> None:
    two = RunOptions(machine="hgx-h100", nodes=2, only_plan=True)
    lacking = "no predictions: 2 nodes need a network; write --network ib-ndr-400x8 or the like"
    assert plan_suite(load_suite("quick"), two).notes[-1] == lacking
    assert (
        lacking
        not in plan_suite(load_suite("quick"), replace(two, network="ib-ndr-400x8")).notes
    )
    with pytest.raises(UsageError, match="--nodes: 2 nodes need a network; write --network"):
        plan_suite(load_suite("quick"), replace(two, backends=("simulated",), only_plan=False))
    for options in (two, RunOptions()):
        with pytest.raises(MachineError, match="network: 'ib-ndr' is not <kind>"):
            plan_suite(load_suite("quick"), replace(options, network="ib-ndr"))


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (
            ("nvidia0", "nvidia1"),
            ("this machine has 2 GPUs", "CuPy is not installed; pip install '.[cuda13]'"),
        ),
        (("dxg",), ("this machine has 1 GPU", "pip install '.[cuda13]'")),
    ],
)
def test_auto_does_not_measure_processors_beside_devices_that_only_lack_a_library(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    files: tuple[str, ...],
    words: tuple[str, ...],
) -> None:
    for file in files:
        (tmp_path / "dev" / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "dev" / file).touch()
    on_files(monkeypatch, tmp_path)
    monkeypatch.setattr("ccbench.backends.prerequisites.find_spec", lambda name: None)
    with pytest.raises(BackendUnavailable) as caught:
        plan_suite(load_suite("quick"), RunOptions())
    assert all(
        word in str(caught.value)
        for word in (*words, "or measure the processors, with --backend cpu")
    )
    assert caught.value.exit_code == 2
    plan = plan_suite(load_suite("quick"), RunOptions(backends=("cpu",)))
    assert {case.backend for case in plan.cases} == {"cpu"}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # hidden on purpose
    assert {case.backend for case in plan_suite(load_suite("quick"), RunOptions()).cases} == {
        "cpu"
    }


def on_files(monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    """Let the device files below ``root`` be this machine's, whatever it has and hides."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    for function in (
        "runner.planning.driver_missing",
        "backends.cuda.driver_missing",
        "backends.nccl.driver_missing",
    ):
        monkeypatch.setattr(f"ccbench.{function}", lambda *at: driver_missing(root))
    monkeypatch.setattr("ccbench.runner.planning.ROOT", root)


def test_auto_of_launched_ranks_is_refused_where_their_gpus_lack_a_library() -> None:
    lacking = HostFacts(
        "b", ranks=2, gpus=("H100", "H100"), no_gpus="CuPy is not installed; pip install it"
    )
    launched = LaunchedRanks(
        ("a", "b", "b"), (HostFacts("a", ranks=1, no_gpus="no driver"), lacking)
    )
    with pytest.raises(
        BackendUnavailable, match=r"b has 2 GPUs, .* CuPy is not installed; pip install it; or"
    ):
        refuse_idle_devices(RunOptions(launched=launched))


@pytest.mark.parametrize("nodes", [None, 3])
def test_a_fleet_check_of_fewer_than_four_nodes_is_refused_with_the_command_to_type(
    nodes: int | None,
) -> None:
    words = f"this run has {nodes or 1}; start ranks on more, such as srun -N 64 .* ccbench run health"
    with pytest.raises(UsageError, match=words):
        refuse_few_nodes(load_suite("fleet"), RunOptions(nodes=nodes))


@pytest.mark.parametrize(
    ("changes", "of_all", "of_one"),
    [
        ({}, 4 * (1024 + 4096), 1024 + 4096),
        ({"in_place": True}, 4 * 4096, 4096),
        ({"groups": "rank // 2", "size_bytes": 2048}, 2 * 2 * (1024 + 2048), 1024 + 2048),
        (
            {"groups": "rank // 2", "size_bytes": 2048, "active_group": 0},
            2 * (1024 + 2048),
            1024 + 2048,
        ),
        ({"concurrent": "all_reduce on rank % 2"}, 4 * (5120 + 8192), 5120 + 8192),
        ({"collective": "all_to_all_v"}, 4 * (4096 + 4096), 4096 + 4096),
        # The rank that everybody sends to needs most.
        (
            {"collective": "all_to_all_v", "traffic": "hot:0.5"},
            4 * (4096 + 4096),
            4096 + 4 * 2048,
        ),
        # Even traffic of many ranks needs no matrix.
        (
            {"collective": "all_to_all_v", "ranks": 10**5, "count": 1, "size_bytes": 400_000},
            8 * 10**10,
            800_000,
        ),
        ({"collective": "gather", "root": 3}, 4 * 1024 + 4096, 1024 + 4096),
    ],
)
def test_bytes_of_a_case_are_counted_on_all_ranks_and_on_the_one_with_most(
    changes: dict[str, Any], of_all: int, of_one: int
) -> None:
    case = replace(CASE, **changes)
    assert (case_bytes(case), rank_bytes(case)) == (of_all, of_one)


@pytest.mark.parametrize(
    ("processes", "planned"), [(None, {"one"}), ("all", {"one", "per_gpu"})]
)
def test_process_models_of_the_command_line_replace_the_suites(
    processes: str | None, planned: set[str]
) -> None:
    suite = read_suite("{backends: [cuda], sweep: {collective: all_reduce, ranks: 2}}")
    plan = plan_suite(suite, RunOptions(processes=processes))
    assert {case.processes for case in plan.cases} == planned
    # Ranks on processors are processes already: the key means nothing there.
    plan = plan_suite(suite, RunOptions(backends=("cpu",), processes="per_gpu"))
    assert {case.processes for case in plan.cases} == {"one"}


MIXED = """
sweep:
  - {collective: all_reduce, size: 1 KiB, backends: nccl}
  - {collective: all_reduce, size: 1 KiB, backends: mpi, memory: device}
"""


def test_gpus_are_ranks_where_every_sweep_is_on_them_or_has_its_memory_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ccbench.runner.planning.visible_gpus", lambda: 6)
    options = RunOptions(backends=("nccl", "mpi"), machine="hgx-h100")
    on_devices = plan_suite(read_suite(MIXED, "s"), options)
    assert {case.ranks for case in on_devices.cases} == {6}
    on_host = plan_suite(read_suite(MIXED.replace(", memory: device", ""), "s"), options)
    assert {case.ranks for case in on_host.cases} == {max(2, usable_cores())}


@pytest.mark.parametrize(
    ("reason", "planned"), [(None, ["cpu", "oneccl"]), ("not here", ["cpu"])]
)
def test_a_backend_joins_a_suite_where_nothing_of_it_is_missing(
    monkeypatch: pytest.MonkeyPatch, reason: str | None, planned: list[str]
) -> None:
    monkeypatch.setattr(open_backend("oneccl"), "unavailable", lambda elsewhere=False: reason)
    text = "backends: [cpu]\nwhere_installed: [oneccl]\nsweep: {collective: all_reduce, size: 4 KiB, ranks: 2}\n"
    plan = plan_suite(read_suite(text), RunOptions())
    assert sorted({case.backend for case in plan.cases}) == planned


def test_more_ranks_than_processors_are_refused_unless_asked_for() -> None:
    many = automatic_ranks() + 1
    text = f"{{backends: [cpu, simulated], sweep: {{collective: barrier, ranks: [2, {many}]}}}}"
    cases = plan_suite(read_suite(text), RunOptions()).cases
    cure = f"{many} ranks of cpu on .* --ranks {many - 1}, or give --oversubscribe"
    with pytest.raises(UsageError, match=cure):
        refuse_what_does_not_fit(cases, RunOptions())
    refuse_what_does_not_fit(cases, RunOptions(oversubscribe=True))
    refuse_what_does_not_fit(cases, RunOptions(launch="mpirun"))
    others = [case for case in cases if case.backend == "simulated" or case.ranks == 2]
    refuse_what_does_not_fit(others, RunOptions())


def test_sizes_beyond_the_memory_are_refused_before_anything_is_measured() -> None:
    large = replace(CASE, ranks=2, count=1 << 46, size_bytes=1 << 48)
    cure = "1.5 PiB, and .* GiB of memory are free; write smaller sizes.*--oversubscribe"
    for backend in ("cpu", "gloo", "cuda-host"):
        with pytest.raises(UsageError, match=cure):
            refuse_what_does_not_fit([replace(large, backend=backend)], RunOptions())
    for backend in ("nccl", "simulated"):
        refuse_what_does_not_fit([replace(large, backend=backend)], RunOptions())
    refuse_what_does_not_fit([large], RunOptions(oversubscribe=True))


def test_a_plan_is_in_order_of_sizes_although_the_run_is_not() -> None:
    text = "{backends: [cpu], sweep: {collective: [reduce, broadcast], ranks: 2, size: [1K, 1M, 8]}}"
    by_size = plan_suite(read_suite(text), RunOptions()).by_size
    assert [case.size_bytes for case in by_size if case.collective == "reduce"] == [
        8,
        1024,
        1 << 20,
    ]
    assert [case.collective for case in by_size] == ["broadcast"] * 3 + ["reduce"] * 3


@pytest.mark.parametrize(("gpus", "expected"), [(1, ("cuda",)), (2, ("nccl", "cuda"))])
def test_auto_leaves_nccl_out_where_there_is_one_gpu_and_says_so(
    monkeypatch: pytest.MonkeyPatch, gpus: int, expected: tuple[str, ...]
) -> None:
    monkeypatch.delenv("NCCL_MULTI_RANK_GPU_ENABLE", raising=False)
    monkeypatch.setattr("ccbench.runner.planning.visible_gpus", lambda: gpus)
    monkeypatch.setattr("ccbench.backends.cuda.driver_missing", lambda: None)
    monkeypatch.setattr("ccbench.backends.nccl.driver_missing", lambda: None)
    monkeypatch.setattr("ccbench.backends.cuda.cupy_missing", lambda: None)
    monkeypatch.setattr("ccbench.backends.nccl.cupy_missing", lambda: None)
    assert automatic_backends(RunOptions(ranks=1))[0] == ("nccl", "cuda")
    backends, (note,) = automatic_backends(RunOptions())
    assert backends == expected
    assert ("without nccl: there is one GPU" in note) is (gpus == 1)
