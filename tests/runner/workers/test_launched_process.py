"""Launchers are known by the variables they set."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.runner.workers.rendezvous import (
    HYDRA,
    OPEN_MPI,
    SRUN,
    TORCHRUN,
    LaunchedProcess,
    launched_process,
    rank_and_size,
    without_launcher,
)

OPEN_MPI_SETS = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_NAMESPACE": "1234@1",
}
HYDRA_SETS = {"PMI_RANK": "0", "PMI_SIZE": "2", "MPI_LOCALNRANKS": "2", "MPI_LOCALRANKID": "0"}
SRUN_SETS = {
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_ID": "1",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_NTASKS": "16",
    "SLURM_PROCID": "5",
}
TORCHRUN_SETS = {
    "RANK": "1",
    "WORLD_SIZE": "2",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "a",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_RESTART_COUNT": "0",
}


@pytest.mark.parametrize(
    ("variables", "process"),
    [
        (OPEN_MPI_SETS, LaunchedProcess(OPEN_MPI, 3, 4, 2, "1234@1")),
        (HYDRA_SETS, LaunchedProcess(HYDRA, 0, 2, 2, "")),
        (SRUN_SETS, LaunchedProcess(SRUN, 5, 8, 0, "77.1")),
        ({**SRUN_SETS, "SLURM_STEP_NUM_NODES": "1"}, LaunchedProcess(SRUN, 5, 8, 8, "77.1")),
        (TORCHRUN_SETS, LaunchedProcess(TORCHRUN, 1, 2, 2, "none-0-a-29500")),
    ],
)
def test_a_launchers_processes_know_their_ranks(
    variables: dict[str, str], process: LaunchedProcess
) -> None:
    assert launched_process(variables) == process


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"},
        {"SLURM_JOB_ID": "77", "SLURM_PROCID": "0", "SLURM_NTASKS": "8"},
        {**SRUN_SETS, "SLURM_STEP_ID": "4294967291"},
        {"RANK": "0", "WORLD_SIZE": "2"},
        {"PMI_RANK": "2", "PMI_SIZE": "2"},
    ],
    ids=[
        "nobody",
        "active_group",
        "batch script",
        "batch step",
        "half of torchrun",
        "beyond the last",
    ],
)
def test_other_processes_have_none(variables: dict[str, str]) -> None:
    assert launched_process(variables) is None


@pytest.mark.parametrize("inner", [OPEN_MPI_SETS, HYDRA_SETS, TORCHRUN_SETS])
def test_a_launcher_that_srun_started_counts_before_srun(inner: dict[str, str]) -> None:
    assert launched_process({**SRUN_SETS, **inner}) == launched_process(inner)


@pytest.mark.parametrize("inner", [OPEN_MPI_SETS, HYDRA_SETS, SRUN_SETS])
def test_what_a_pod_of_a_training_job_sets_is_no_launcher(inner: dict[str, str]) -> None:
    pod = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "a", "MASTER_PORT": "29500"}
    assert launched_process({**pod, **inner}) == launched_process(inner)
    assert rank_and_size({**pod, **inner}) == rank_and_size(inner)


@given(st.sets(st.sampled_from([*OPEN_MPI_SETS, *HYDRA_SETS, *SRUN_SETS, *TORCHRUN_SETS])))
def test_without_its_variables_a_process_is_nobodys(names: set[str]) -> None:
    everything = {**OPEN_MPI_SETS, **HYDRA_SETS, **SRUN_SETS, **TORCHRUN_SETS, "PATH": "/bin"}
    some = {
        name: value for name, value in everything.items() if name in names or name == "PATH"
    }
    left = without_launcher(some)
    assert launched_process(left) is None
    assert left == {"PATH": "/bin"}


def test_what_a_user_tells_open_mpi_stays() -> None:
    settings = {"OMPI_MCA_btl_tcp_if_include": "eth0", "OMPI_ALLOW_RUN_AS_ROOT": "1"}
    assert without_launcher({**OPEN_MPI_SETS, **settings}) == settings


@pytest.mark.parametrize(
    ("variables", "rank_and_ranks"),
    [
        ({"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4"}, (3, 4)),
        ({"PMI_RANK": "0", "PMI_SIZE": "2", "SLURM_PROCID": "9"}, (0, 2)),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "2"}, (1, 2)),
        ({"RANK": "5", "WORLD_SIZE": "8"}, (5, 8)),
        ({"PMIX_RANK": "2"}, (2, -1)),
        ({"RANK": "first"}, (-1, -1)),
        ({**TORCHRUN_SETS, "SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, (1, 2)),
        ({**OPEN_MPI_SETS, "CCBENCH_RANK": "7", "CCBENCH_RANKS": "9"}, (7, 9)),
        ({}, (-1, -1)),
    ],
)
def test_every_launcher_tells_ranks_its_own_way(
    variables: dict[str, str], rank_and_ranks: tuple[int, int]
) -> None:
    assert rank_and_size(variables) == rank_and_ranks
