"""How a team of MPI ranks is started on this host, or by the user's own command.

On this host everything is set by the environment, so that the command stays ``mpiexec -n N``. Ranks pin
themselves as the cpu backend's do, so launchers bind nothing; more ranks than processors are allowed, as they
are there. What a library keeps in files is sent to folders of the team's own, which go with it.
"""

from __future__ import annotations

import os

from ccbench.backends.base import Launch
from ccbench.backends.mpi.library import INTEL_MPI, OPEN_MPI, Library
from ccbench.machine.host import usable_cores

SHARED_MEMORY = "/dev/shm"

_OPEN_MPI_HERE = (
    # Open MPI 4 reads OMPI_MCA_ for its launcher, Open MPI 5 PRTE_MCA_; what one does not know it ignores.
    ("OMPI_MCA_hwloc_base_binding_policy", "none"),
    ("OMPI_MCA_rmaps_base_oversubscribe", "1"),
    ("PRTE_MCA_hwloc_default_binding_policy", "none"),
    ("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe"),
)

_OPEN_MPI_FOLDERS = (
    ("TMPDIR", ""),
    ("OMPI_MCA_btl_vader_backing_directory", SHARED_MEMORY),
    ("OMPI_MCA_btl_sm_backing_directory", SHARED_MEMORY),
)
"""Session files, and the shared memory of Open MPI 4 and 5."""


def as_root(user: int) -> tuple[tuple[str, str], ...]:
    """Open MPI starts nothing as root unless it is told twice; in a container there is nobody else."""
    names = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")
    return tuple((name, "1") for name in names) if user == 0 else ()


def local_launch(library: Library, ranks: int) -> Launch:
    """All ranks on this host, started by the library's own launcher."""
    command = (library.launcher, "-n", str(ranks))
    if library.vendor == OPEN_MPI:
        idle = (("OMPI_MCA_mpi_yield_when_idle", "1"),) if ranks > usable_cores() else ()
        environment = (*_OPEN_MPI_HERE, *as_root(os.geteuid()), *idle)
        return Launch(command, environment, private_folders=_OPEN_MPI_FOLDERS)
    if library.vendor == INTEL_MPI:
        return Launch(command, (("I_MPI_PIN", "0"),), private_folders=(("TMPDIR", ""),))
    return Launch(command, private_folders=(("TMPDIR", ""),))
