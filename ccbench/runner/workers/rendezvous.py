"""Rendezvous of the processes that one launcher started: which this is among them, how they find each other.

Open MPI's mpirun, hydra (the mpiexec of MPICH and Intel MPI), srun and torchrun are known. A launcher started
by another launcher (mpirun inside srun, torchrun inside srun) comes first, because the outer one's numbers
count its own processes. In a batch script, or in the shell that salloc opens, Slurm sets the number of tasks
of the whole job although srun has started nothing yet; its step number tells.

The first process tells the others one line of text. The store that carries it must keep it from other users,
because it holds a key. In this order:

1. a folder that all hosts see, named by CCBENCH_RENDEZVOUS: a file that only its owner may read;
2. all processes on one host: a file in the temporary folder;
3. torchrun: the store that it keeps at MASTER_ADDR:MASTER_PORT, which answers whoever can connect to it;
4. an MPI that mpi4py loads: MPI_Bcast;
5. srun: a file in the folder it was started in, which the hosts of a cluster usually share.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import re
import stat
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from ccbench.errors import MissingDependency, UsageError
from ccbench.machine.files import Files
from ccbench.machine.mpi import initialise, loaded_mpi
from ccbench.machine.software import install_line
from ccbench.runner.workers.channel import FIRST_PROCESS, Unreachable, connect
from ccbench.runner.workers.messages import RANK_VARIABLE, RANKS_VARIABLE, Hello

# -- which process this is ---------------------------------------------------------------------------------

OPEN_MPI, HYDRA, SRUN, TORCHRUN = "mpirun of Open MPI", "mpiexec of hydra", "srun", "torchrun"

SLURM_PSEUDO_STEPS = 0xFFFFFFF0
"""Step numbers from here on are no srun's: batch script, interactive shell, prolog (slurm.h)."""

TORCH_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Variables that a pod of a training job, or a shell, may have as well; LOCAL_RANK is torchrun's alone."""


@dataclass(frozen=True)
class LaunchedProcess:
    """A process among those that one launcher has started.

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
        """Return whether all are on this host."""
        return self.local_ranks == self.ranks


def launched_process(variables: Mapping[str, str]) -> LaunchedProcess | None:
    """Return what the variables tell; None for a process that no launcher started, or that is alone."""
    process = _detected(variables)
    return process if process and process.ranks > 1 else None


def _number(variables: Mapping[str, str], name: str, otherwise: int = 0) -> int:
    text = variables.get(name, "")
    return int(text) if text.isascii() and text.isdigit() else otherwise


def _detected(variables: Mapping[str, str]) -> LaunchedProcess | None:
    """Return what the innermost launcher tells: those that others start come before these."""
    number = partial(_number, variables)
    hydra = HYDRA, "PMI_RANK", "PMI_SIZE", number("MPI_LOCALNRANKS"), ""
    # (launcher, variables of rank and ranks, ranks on this host, job) as each launcher names them.
    launchers: list[tuple[str, str, str, int, str]] = []
    if all(variables.get(name) for name in (*TORCH_VARIABLES, "LOCAL_RANK")):
        # torchrun starts processes again under the same id, and the first ones' address is still around then.
        started = (
            "TORCHELASTIC_RUN_ID",
            "TORCHELASTIC_RESTART_COUNT",
            "MASTER_ADDR",
            "MASTER_PORT",
        )
        job = "-".join(variables.get(name, "") for name in started)
        launchers.append((TORCHRUN, "RANK", "WORLD_SIZE", number("LOCAL_WORLD_SIZE"), job))
    job = variables.get("PMIX_NAMESPACE", "") or variables.get("OMPI_MCA_ess_base_jobid", "")
    here = number("OMPI_COMM_WORLD_LOCAL_SIZE")
    launchers.append((OPEN_MPI, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", here, job))
    if "MPI_LOCALNRANKS" in variables:
        launchers.append(hydra)
    step = number("SLURM_STEP_ID", SLURM_PSEUDO_STEPS)
    if step < SLURM_PSEUDO_STEPS:
        total = (
            "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in variables else "SLURM_NTASKS"
        )
        nodes = number("SLURM_STEP_NUM_NODES") or number("SLURM_NNODES")
        job = f"{variables.get('SLURM_JOB_ID', '')}.{step}"
        launchers.append((SRUN, "SLURM_PROCID", total, number(total) if nodes == 1 else 0, job))
    # srun sets this one, too, for the MPI that it may start.
    if "PMI_SIZE" in variables:
        launchers.append(hydra)
    for launcher, rank, ranks, local_ranks, job in launchers:
        mine, total_ranks = number(rank, -1), number(ranks)
        if 0 <= mine < total_ranks:
            return LaunchedProcess(launcher, mine, total_ranks, local_ranks, job)
    return None


_OWN = (RANK_VARIABLE, RANKS_VARIABLE)
_HALF_TOLD = (("PMIX_RANK", ""), ("SLURM_PROCID", "SLURM_NTASKS"), ("RANK", "WORLD_SIZE"))
"""Variables of launchers that are otherwise not recognised: PMIx of any kind, Slurm's, torchrun's."""


def rank_and_size(variables: Mapping[str, str]) -> tuple[int, int]:
    """Return (rank, ranks) as ccbench itself or a launcher told this process, -1 for what nobody told it."""
    process = None if variables.get(RANK_VARIABLE, "").isdigit() else _detected(variables)
    if process:
        return process.rank, process.ranks
    for rank, ranks in (_OWN, *_HALF_TOLD):
        if variables.get(rank, "").isdigit():
            return _number(variables, rank), _number(variables, ranks, -1)
    return -1, -1


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
    *TORCH_VARIABLES,
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "ROLE_NAME",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
)
_KEPT = ("OMPI_MCA_btl", "OMPI_MCA_pml", "OMPI_MCA_coll", "OMPI_ALLOW_RUN_AS_ROOT")


def without_launcher(variables: Mapping[str, str]) -> dict[str, str]:
    """Return ``variables`` for a process that shall not take itself for one of the launcher's."""
    return {
        name: value
        for name, value in variables.items()
        if name not in _OF_TORCH
        and (name.startswith(_KEPT) or not name.startswith(_LAUNCHERS_OWN))
    }


# -- how they find each other ------------------------------------------------------------------------------

FOLDER_VARIABLE = "CCBENCH_RENDEZVOUS"

LIMIT_SECONDS = 120.0
POLL_SECONDS = 0.05
SUCCESSOR_SECONDS = 15.0
"""Time by which the first process may be later where a start before it has left its address."""

FORGOTTEN_SECONDS = 10 * LIMIT_SECONDS
"""The age at which a file that processes were to meet over serves nobody any more."""

PREFIX = ".ccbench-"
"""Of such files' names."""

NAME_DIGITS = 20
_NAMED = re.compile(rf"{re.escape(PREFIX)}[0-9a-f]{{{NAME_DIGITS}}}(-[a-z0-9_]+)?$")
"""Such a file, or the draft of one (``tempfile.mkstemp``)."""

STORE_KEY = "ccbench/leader"

LAUNCHER_NAMES = (
    "mpirun",
    "mpiexec",
    "hydra_pmi_proxy",
    "orted",
    "prted",
    "prterun",
    "slurmstepd",
    "srun",
)


class Store(ABC):
    """Carries one text from the first process to the others."""

    @abstractmethod
    def set(self, text: str) -> None:
        """Called by rank 0."""

    @abstractmethod
    def get(self) -> str:
        """Called by all others; UsageError when nothing comes in time."""

    def newer(self, text: str) -> str:
        """Return what has come in the place of ``text``, which led nowhere; '' when nothing does."""
        return ""

    def close(self) -> None:  # noqa: B027  (only files have something to forget)
        """Forget the text: all have it."""


_ONLY_A_FILE = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
"""Neither a link to a file, nor a pipe that somebody keeps readers waiting at."""


class FileStore(Store):
    """A file that only its owner may read."""

    def __init__(self, folder: Path, name: str) -> None:
        self._path = folder / f"{PREFIX}{name}"

    def set(self, text: str) -> None:
        """Write it whole or not at all."""
        with suppress(OSError):
            for path in self._path.parent.glob(f"{PREFIX}*"):
                with suppress(OSError):
                    status = path.lstat()
                    # Hosts' clocks may differ by some minutes.
                    old = time.time() - status.st_mtime > FORGOTTEN_SECONDS
                    # The folder may be the user's home: only this user's files, and named like those made here.
                    mine = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
                    if old and mine and _NAMED.match(path.name):
                        path.unlink()
        try:
            handle, draft = tempfile.mkstemp(
                prefix=f"{self._path.name}-", dir=self._path.parent
            )
            with os.fdopen(handle, "w") as file:
                file.write(text)
            os.replace(draft, self._path)
        except OSError as error:
            raise UsageError(
                f"{self._path.parent}: cannot be written ({error.strerror}), but processes meet there; set "
                f"{FOLDER_VARIABLE} to a folder that all hosts see"
            ) from None

    def get(self) -> str:
        """Look until it is there."""
        address = self._other_than("", LIMIT_SECONDS)
        if address:
            return address
        raise UsageError(
            f"{self._path}: rank 0 wrote nothing there in {LIMIT_SECONDS:.0f} s: it did not start, or its "
            f"host does not share this folder; set {FOLDER_VARIABLE} to one that all hosts see"
        )

    def newer(self, text: str) -> str:
        """A start that was killed may have left its own, which this one's first process replaces."""
        return self._other_than(text, SUCCESSOR_SECONDS)

    def _other_than(self, stale: str, seconds: float) -> str:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            with suppress(OSError), os.fdopen(os.open(self._path, _ONLY_A_FILE)) as file:
                # Of the file that is open, because others may exchange names in a temporary folder.
                status = os.fstat(file.fileno())
                if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid():
                    text = file.read()
                    if text != stale:
                        return text
            time.sleep(POLL_SECONDS)
        return ""

    def close(self) -> None:
        """Remove it."""
        with suppress(OSError):
            self._path.unlink()


class TorchStore(Store):
    """The store that torchrun keeps for its processes; without torchrun's, rank 0's own."""

    def __init__(self, process: LaunchedProcess, variables: Mapping[str, str]) -> None:
        try:
            distributed = importlib.import_module("torch.distributed")
        except ImportError:
            raise MissingDependency(
                f"torchrun started this process, but torch is not here; {install_line('gloo')}"
            ) from None
        self._key = f"{STORE_KEY}/{process.job}"
        # torchrun's own store is there already; without it rank 0 of these keeps one.
        agents = variables.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        self._store: Any = distributed.TCPStore(
            variables["MASTER_ADDR"],
            int(variables["MASTER_PORT"]),
            None,
            process.rank == 0 and not agents,
            timeout=timedelta(seconds=LIMIT_SECONDS),
        )

    def set(self, text: str) -> None:
        """Put it there."""
        self._store.set(self._key, text)

    def get(self) -> str:
        """The store waits until it is there."""
        try:
            text: bytes = self._store.get(self._key)
        except RuntimeError as error:
            raise UsageError(
                f"torchrun's store holds nothing of rank 0 ({error}); did rank 0 start?"
            ) from None
        return text.decode()


class MpiStore(Store):
    """The MPI itself, which stays up: it can be started only once in a process."""

    def __init__(self, process: LaunchedProcess) -> None:
        mpi = loaded_mpi()
        # MPICH below MPI_THREAD_MULTIPLE spins without ever giving its processor away.
        crowded = process.local_ranks > (os.cpu_count() or 1)
        many = crowded and process.launcher == HYDRA
        initialise(mpi, mpi.THREAD_MULTIPLE if many else mpi.THREAD_FUNNELED)
        self._world = mpi.COMM_WORLD
        if self._world.size != process.ranks:
            library = " ".join(mpi.Get_library_version().replace("\0", " ").split()[:4])
            raise UsageError(
                f"{process.launcher} started {process.ranks} processes, but the MPI that mpi4py loads "
                f"({library}) sees a world of {self._world.size}: each believes it is alone; use that "
                "library's own mpiexec, or install mpi4py for the launcher's MPI"
            )

    def set(self, text: str) -> None:
        """Broadcast it."""
        self._world.bcast(text, 0)

    def get(self) -> str:
        """Receive it."""
        text: str = self._world.bcast(None, 0)
        return text


def connect_to_first(store: Store, hello: Hello) -> Connection:
    """Connect to where the first process says; UsageError when it says nothing or cannot be reached."""
    text = store.get()
    try:
        return connect(text, hello, FIRST_PROCESS)
    except Unreachable:
        newer = store.newer(text)
        if not newer:
            raise
    return connect(newer, hello, FIRST_PROCESS)


def store_for(process: LaunchedProcess, variables: Mapping[str, str]) -> Store:
    """Return the store that fits; UsageError where there is none, with what to set."""
    if variables.get(FOLDER_VARIABLE):
        name = process.job or f"{process.launcher}-{process.ranks}"
        return FileStore(Path(variables[FOLDER_VARIABLE]), _name(name))
    if process.one_host:
        return FileStore(Path(tempfile.gettempdir()), _name(process.job or _starter(Files())))
    if process.launcher == TORCHRUN:
        return TorchStore(process, variables)
    if mpi_works():
        return MpiStore(process)
    if process.launcher == SRUN:
        return FileStore(Path.cwd(), _name(process.job))
    raise UsageError(
        f"{process.launcher} started {process.ranks} processes on several hosts, which have no way to find "
        f"each other: set {FOLDER_VARIABLE} to a folder that all hosts see, or install mpi4py beside the MPI"
    )


def mpi_works() -> bool:
    """Return True when mpi4py finds its library."""
    try:
        loaded_mpi()
    except (ImportError, RuntimeError):
        return False
    return True


def _name(text: str) -> str:
    """Return a name like ``text``, but of plain letters, and of one user only."""
    return hashlib.sha256(f"{os.geteuid()} {text}".encode()).hexdigest()[:NAME_DIGITS]


def _starter(files: Files) -> str:
    """Name the launcher's process on this host, which its ranks have in common, with when it started."""
    # Scripts may stand between; the first known name above is the launcher. Numbers come again, so the start
    # of the process (field 22 of proc_pid_stat(5)) belongs to its name.
    number = first = os.getppid()
    while number > 1:
        fields = files.text(f"/proc/{number}/stat")
        if fields is None:
            break
        name = fields[fields.index("(") + 1 : fields.rindex(")")]
        after = fields[fields.rindex(")") + 2 :].split()
        if name.startswith(LAUNCHER_NAMES):
            return f"{number} {after[19]}"
        number = int(after[1])
    return str(first)
