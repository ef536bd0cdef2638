"""Which MPI mpi4py loads, the launcher that belongs to it, and how it starts ranks on this host.

Asked in a process of its own, because the runner must load no MPI: mpi4py is imported there without
initialising anything (MPI_Get_library_version may be called before MPI_Init; MPI 4.0, section 9.1.1).

mpiexec and library must be of one make. A launcher of another make starts n worlds of one rank each, without
a word from either; so it is looked for beside the library first, then in PATH, and asked what it is.

On this host everything is set by the environment, so that the command stays ``mpiexec -n N``. Ranks pin
themselves as the cpu backend's do, so launchers bind nothing; more ranks than processors are allowed, as they
are there. What a library keeps in files is sent to folders of the team's own, which go with it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from ccbench.backends.base import Launch
from ccbench.machine.host import usable_cores
from ccbench.machine.software import install_line

OPEN_MPI, MPICH, INTEL_MPI = "Open MPI", "MPICH", "Intel MPI"

INSTALL = f"{install_line('mpi')} (mpi4py and MPICH), or mpi4py beside the MPI of this system"

PROBE_SECONDS = 60.0

_PROBE = """
import ctypes, json, os, mpi4py
mpi4py.rc.initialize = mpi4py.rc.finalize = False
from mpi4py import MPI
maps = open('/proc/self/maps').read().splitlines() if os.path.exists('/proc/self/maps') else []
paths = [fields[5] for line in maps if len(fields := line.split(maxsplit=5)) == 6]
loaded = [path for path in paths if os.path.basename(path).startswith('libmpi')][:1]
functions = ctypes.CDLL(loaded[0]) if loaded else None
has = [hasattr(functions, name) for name in ('MPI_Allreduce_init', 'MPI_Allreduce_c')]
print(json.dumps([MPI.Get_library_version(), mpi4py.__version__, loaded, has]))
"""

_NAMES = (
    (re.compile(r"Open MPI v?([\w.]+)"), OPEN_MPI),
    (re.compile(r"Intel\(R\) MPI Library ([\w.]+)"), INTEL_MPI),
    (re.compile(r"MVAPICH2? Version\s*:\s*(\S+)"), "MVAPICH"),
    (re.compile(r"CRAY MPICH version (\S+)"), "Cray MPICH"),
    (re.compile(r"MPICH Version:\s*(\S+)"), MPICH),
)

_LAUNCHERS = {
    OPEN_MPI: ("mpiexec", "mpirun", "mpiexec.openmpi", "mpirun.openmpi"),
    MPICH: ("mpiexec.hydra", "mpiexec", "mpiexec.mpich"),
    INTEL_MPI: ("mpiexec.hydra", "mpiexec"),
}

_SIGNS = (
    (re.compile(r"Intel\(R\) MPI"), INTEL_MPI),
    (re.compile(r"Open ?MPI|OpenRTE|PRRTE|prterun", re.IGNORECASE), OPEN_MPI),
    (re.compile(r"HYDRA", re.IGNORECASE), MPICH),
)


@dataclass(frozen=True)
class Library:
    """An MPI that works here. name: with its version; path: of the library's file; launcher: its mpiexec.

    persistent, large_counts: whether it has these parts of MPI 4.0 (some have them and still call themselves
    3.1, so the functions are looked for, not the number).
    """

    name: str
    mpi4py: str
    path: str
    launcher: str
    persistent: bool = True
    large_counts: bool = True

    @property
    def vendor(self) -> str:
        """Whose launcher and settings it understands."""
        return vendor(self.name)

    @property
    def version(self) -> str:
        """What is recorded."""
        return f"{self.name}, mpi4py {self.mpi4py}"


def library_name(text: str) -> str:
    """``Open MPI 4.1.4`` from what MPI_Get_library_version says; of an unknown one the first words."""
    text = text.replace("\0", " ")
    for pattern, name in _NAMES:
        found = pattern.search(text)
        if found:
            return f"{name} {found[1]}"
    return " ".join(text.split()[:6]) or "an MPI without a name"


def vendor(name: str) -> str:
    """Open MPI, MPICH (and what is made from it) or Intel MPI; '' for an unknown one."""
    if name.startswith(("MVAPICH", "Cray MPICH")):
        return MPICH
    return next((one for one in (OPEN_MPI, MPICH, INTEL_MPI) if name.startswith(one)), "")


def launcher_vendor(path: str) -> str:
    """Whose launcher a file is, as it says itself; '' when it says nothing that is known."""
    try:
        said = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=PROBE_SECONDS, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    text = said.stdout + said.stderr
    return next((name for sign, name in _SIGNS if sign.search(text)), "")


def _candidates(library_path: str, names: tuple[str, ...]) -> Iterator[str]:
    """Launchers beside the library (``bin`` next to its ``lib``), then beside Python, then in PATH."""
    above = list(Path(library_path).resolve().parents)[:5] + list(Path(library_path).parents)[:5]
    folders = [str(one / "bin") for one in above if library_path] + [str(Path(sys.executable).parent)]
    for folder in dict.fromkeys([*folders, *os.environ.get("PATH", os.defpath).split(os.pathsep)]):
        for name in names:
            found = shutil.which(name, path=folder) if folder else None
            if found:
                yield found


def find_launcher(library_path: str, of: str) -> tuple[str, str]:
    """(path, '') of the launcher that belongs to a library of ``of``; ('', reason) where there is none."""
    others = []
    for candidate in dict.fromkeys(_candidates(library_path, _LAUNCHERS.get(of, ("mpiexec", "mpirun")))):
        seen = launcher_vendor(candidate)
        if seen == of or (not of and seen):
            return candidate, ""
        others.append(f"{candidate} is {seen or 'of unknown make'}")
    what = f"; {'; '.join(others[:3])}" if others else ""
    return "", (
        f"mpi4py loads {of or 'an MPI that is not known here'} ({library_path or 'no file is named'}), but "
        f"there is no mpiexec of it{what}; put its own bin folder into PATH, or install: {INSTALL}"
    )


@lru_cache(maxsize=1)
def installed() -> Library | str:
    """The MPI that works here, or why there is none and what to do."""
    if importlib.util.find_spec("mpi4py") is None:
        return f"mpi4py is not installed; {INSTALL}"
    try:
        said = subprocess.run(
            [sys.executable, "-c", _PROBE], capture_output=True, text=True, timeout=PROBE_SECONDS,
            check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"mpi4py did not load its MPI in {PROBE_SECONDS:.0f} s; look at 'python -m mpi4py --version'"
    if said.returncode:
        last = (said.stderr.strip().splitlines() or [f"exit code {said.returncode}"])[-1]
        return f"mpi4py finds no MPI ({last[:200]}); {INSTALL}"
    text, mpi4py, loaded, (persistent, large) = json.loads(said.stdout.strip().splitlines()[-1])
    name, path = library_name(text), loaded[0] if loaded else ""
    launcher, reason = find_launcher(path, vendor(name))
    return reason or Library(name, mpi4py, path, launcher, persistent, large)


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
