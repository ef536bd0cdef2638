"""Launchers are known by the variables they set."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.runner.workers.rendezvous import (
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


@pytest.mark.parametrize("inner", [OPEN_MPI_SETS, HYDRA_SETS, TORCHRUN_SETS])
def test_a_launcher_that_srun_started_counts_before_srun(inner: dict[str, str]) -> None:
    assert launched_process({**SRUN_SETS, **inner}) == launched_process(inner)


@given(st.sets(st.sampled_from([*OPEN_MPI_SETS, *HYDRA_SETS, *SRUN_SETS, *TORCHRUN_SETS])))
def test_without_its_variables_a_process_is_nobodys(names: set[str]) -> None:
    everything = {**OPEN_MPI_SETS, **HYDRA_SETS, **SRUN_SETS, **TORCHRUN_SETS, "PATH": "/bin"}
    some = {
        name: value for name, value in everything.items() if name in names or name == "PATH"
    }
    left = without_launcher(some)
    assert launched_process(left) is None
    assert left == {"PATH": "/bin"}


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
