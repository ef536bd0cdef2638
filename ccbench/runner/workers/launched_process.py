"""The launcher that started this process as one of many, read from the variables that it sets.

Open MPI's mpirun, hydra (the mpiexec of MPICH and Intel MPI), srun and torchrun are known. A launcher started
by another launcher (mpirun inside srun, torchrun inside srun) comes first, because the outer one's numbers
count its own processes. In a batch script, or in the shell that salloc opens, Slurm sets the number of tasks
of the whole job although srun has started nothing yet; its step number tells.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

OPEN_MPI, HYDRA, SRUN, TORCHRUN = "mpirun of Open MPI", "mpiexec of hydra", "srun", "torchrun"

SLURM_PSEUDO_STEPS = 0xFFFFFFF0
"""Step numbers from here on are no srun's: batch script, interactive shell, prolog (slurm.h)."""

TORCH_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class LaunchedProcess:
    """This process among those that one launcher has started.

    local_ranks: how many of them are on this host, 0 where the launcher does not tell. job: a name that only
    this start has, '' where there is none.
    """

    launcher: str
    rank: int
    ranks: int
    local_ranks: int = 0
    job: str = ""

    @property
    def one_host(self) -> bool:
        """True when all are on this host."""
        return self.local_ranks == self.ranks

    @property
    def starts_mpi(self) -> bool:
        """True when an MPI can come up in processes that this launcher has started."""
        return self.launcher != TORCHRUN


def launched_process(variables: Mapping[str, str]) -> LaunchedProcess | None:
    """Return what the variables tell; None for a process that no launcher started, or that is alone."""
    found = _detected(variables)
    return found if found and found.ranks > 1 else None


def _detected(variables: Mapping[str, str]) -> LaunchedProcess | None:
    return (
        _torchrun(variables)
        or _open_mpi(variables)
        or _hydra(variables, "MPI_LOCALNRANKS")
        or _srun(variables)
        or _hydra(variables, "PMI_SIZE")
    )


_OWN = ("CCBENCH_RANK", "CCBENCH_RANKS")
_HALF_TOLD = (("PMIX_RANK", ""), ("SLURM_PROCID", "SLURM_NTASKS"), ("RANK", "WORLD_SIZE"))
"""Variables of launchers that are otherwise not recognised: PMIx of any kind, Slurm's, torchrun's."""


def rank_and_size(variables: Mapping[str, str]) -> tuple[int, int]:
    """Return (rank, ranks) as ccbench itself or a launcher told this process, -1 for what nobody told it."""
    found = None if variables.get(_OWN[0], "").isdigit() else _detected(variables)
    if found:
        return found.rank, found.ranks
    for rank, ranks in (_OWN, *_HALF_TOLD):
        if variables.get(rank, "").isdigit():
            return _number(variables, rank), _number(variables, ranks, -1)
    return -1, -1


def _number(variables: Mapping[str, str], name: str, otherwise: int = 0) -> int:
    text = variables.get(name, "")
    return int(text) if text.isascii() and text.isdigit() else otherwise


def _torchrun(variables: Mapping[str, str]) -> LaunchedProcess | None:
    if not all(variables.get(name) for name in TORCH_VARIABLES):
        return None
    # torchrun starts processes again under the same id, and the first ones' address is still around then.
    started = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT")
    job = "-".join(variables.get(name, "") for name in started)
    return _process(variables, TORCHRUN, "RANK", "WORLD_SIZE", _number(variables, "LOCAL_WORLD_SIZE"), job)


def _open_mpi(variables: Mapping[str, str]) -> LaunchedProcess | None:
    job = variables.get("PMIX_NAMESPACE", "") or variables.get("OMPI_MCA_ess_base_jobid", "")
    local = _number(variables, "OMPI_COMM_WORLD_LOCAL_SIZE")
    return _process(variables, OPEN_MPI, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", local, job)


def _hydra(variables: Mapping[str, str], sign: str) -> LaunchedProcess | None:
    if sign not in variables:
        return None
    return _process(variables, HYDRA, "PMI_RANK", "PMI_SIZE", _number(variables, "MPI_LOCALNRANKS"), "")


def _srun(variables: Mapping[str, str]) -> LaunchedProcess | None:
    step = _number(variables, "SLURM_STEP_ID", SLURM_PSEUDO_STEPS)
    if step >= SLURM_PSEUDO_STEPS:
        return None
    total = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in variables else "SLURM_NTASKS"
    nodes = _number(variables, "SLURM_STEP_NUM_NODES") or _number(variables, "SLURM_NNODES")
    local = _number(variables, total) if nodes == 1 else 0
    job = f"{variables.get('SLURM_JOB_ID', '')}.{step}"
    return _process(variables, SRUN, "SLURM_PROCID", total, local, job)


def _process(
    variables: Mapping[str, str], launcher: str, rank: str, ranks: str, local_ranks: int, job: str
) -> LaunchedProcess | None:
    mine, total = _number(variables, rank, -1), _number(variables, ranks)
    return LaunchedProcess(launcher, mine, total, local_ranks, job) if 0 <= mine < total else None


_LAUNCHERS_OWN = (
    "OMPI_",
    "PMIX_",
    "PMI_",
    "PRTE_",
    "MPI_LOCAL",
    "HYDRA_",
    "HYDI_",
    "SLURM_",
    "TORCHELASTIC_",
)
_OF_TORCH = (
    *TORCH_VARIABLES, "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_NAME",
    "ROLE_RANK", "ROLE_WORLD_SIZE",
)  # fmt: skip
_KEPT = ("OMPI_MCA_btl", "OMPI_MCA_pml", "OMPI_MCA_coll", "OMPI_ALLOW_RUN_AS_ROOT")


def without_launcher(variables: Mapping[str, str]) -> dict[str, str]:
    """``variables`` for a process that shall not take itself for one of the launcher's."""
    return {
        name: value
        for name, value in variables.items()
        if name not in _OF_TORCH and (name.startswith(_KEPT) or not name.startswith(_LAUNCHERS_OWN))
    }
