"""The MPI that mpi4py loads: its launcher, its algorithms, and the environment that it is started with.

The library is asked in a process of its own, because the runner must load no MPI: mpi4py is imported there
without initialising anything (MPI_Get_library_version may be called before MPI_Init; MPI 4.0, section 9.1.1).

mpiexec and library must be of one make. A launcher of another make starts n worlds of one rank each, without
a word from either; so it is looked for beside the library first, then in PATH, and asked what it is.

On this host everything is set by the environment, so that the command stays ``mpiexec -n N``. Ranks pin
themselves as the cpu backend's do, so launchers bind nothing; more ranks than processors are allowed, as they
are there. What a library keeps in files is sent to folders of the team's own, which go with it.

``algorithm: mpi:<name>`` forces an algorithm:

- Open MPI: the component ``coll/tuned`` lists its algorithms through ``ompi_info`` and takes
  ``coll_tuned_<collective>_algorithm`` while ``coll_tuned_use_dynamic_rules`` is set.
- MPICH lists its control variables through ``mpivars``; ``MPIR_CVAR_<COLLECTIVE>_INTRA_ALGORITHM`` names one,
  which counts where device collectives are off.
- Intel MPI has numbered presets, ``I_MPI_ADJUST_<COLLECTIVE>`` (its Developer Reference, "I_MPI_ADJUST
  Family"), whose range ``impi_info`` tells.

All three read the environment when they start, so each algorithm has a team of its own. None can be asked
afterwards whether the algorithm really ran: a library may fall back where an algorithm does not fit the
number of ranks or the size, without a word.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from ccbench.backends.base import Environment, TeamLaunch
from ccbench.machine.files import Files
from ccbench.machine.host import usable_cores
from ccbench.machine.mpi import (
    INTEL_MPI,
    MPICH,
    OPEN_MPI,
    PROBE_SECONDS,
    as_root,
    launcher_vendor,
    tool_output,
)
from ccbench.machine.software import install_line

INSTALL = f"{install_line('mpi')} (mpi4py and MPICH), or mpi4py beside the MPI of this system"


NAMES = {
    "all_reduce": "allreduce",
    "all_gather": "allgather",
    "reduce_scatter": "reduce_scatter_block",
    "broadcast": "bcast",
    "reduce": "reduce",
    "all_to_all": "alltoall",
    "all_to_all_v": "alltoallv",
    "gather": "gather",
    "scatter": "scatter",
    "barrier": "barrier",
}
"""MPI's names of the collectives, in small letters. send_recv is no collective of MPI's."""

PREFIX = "mpi:"
"""Of names of a library's own algorithms."""

_PROBE = """
import ctypes, json, os, mpi4py
mpi4py.rc.initialize = mpi4py.rc.finalize = False
from mpi4py import MPI
maps = open('/proc/self/maps').read().splitlines() if os.path.exists('/proc/self/maps') else []
paths = [fields[5] for line in maps if len(fields := line.split(maxsplit=5)) == 6]
loaded = [path for path in paths if os.path.basename(path).startswith('libmpi')][:1]
functions = ctypes.CDLL(loaded[0]) if loaded else None
print(json.dumps([MPI.Get_library_version(), mpi4py.__version__, loaded, hasattr(functions, 'MPI_Allreduce_c')]))
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


@dataclass(frozen=True)
class MpiLibrary:
    """An MPI that works here. name: with its version; path: of the library's file; launcher: its mpiexec.

    large_counts: it has this part of MPI 4.0 (some have it and still call themselves 3.1, so the function is
    looked for, not the number).
    """

    name: str
    mpi4py: str
    path: str
    launcher: str
    large_counts: bool = True

    @property
    def vendor(self) -> str:
        """The make whose launcher and settings it understands."""
        return vendor(self.name)

    @property
    def version(self) -> str:
        """The library and mpi4py, as they are recorded."""
        return f"{self.name}, mpi4py {self.mpi4py}"


def library_name(text: str) -> str:
    """Return ``Open MPI 4.1.4`` from what MPI_Get_library_version says; of an unknown one the first words."""
    text = text.replace("\0", " ")
    for pattern, name in _NAMES:
        match = pattern.search(text)
        if match:
            return f"{name} {match[1]}"
    return " ".join(text.split()[:6]) or "an MPI without a name"


def vendor(name: str) -> str:
    """Return Open MPI, MPICH (also for what is made from it) or Intel MPI; '' for an unknown one."""
    if name.startswith(("MVAPICH", "Cray MPICH")):
        return MPICH
    return next((maker for maker in (OPEN_MPI, MPICH, INTEL_MPI) if name.startswith(maker)), "")


def find_launcher(library_path: str, of: str) -> tuple[str, str]:
    """Return (path, '') of the launcher of a library by ``of``; ('', reason) where there is none."""
    names = _LAUNCHERS.get(of, ("mpiexec", "mpirun"))
    # Beside the library (``bin`` next to its ``lib``), then beside Python, then in PATH.
    above = (
        list(Path(library_path).resolve().parents)[:5] + list(Path(library_path).parents)[:5]
    )
    folders = [str(folder / "bin") for folder in above if library_path] + [
        str(Path(sys.executable).parent)
    ]
    folders += os.environ.get("PATH", os.defpath).split(os.pathsep)
    tried: dict[str, str] = {}
    for folder, name in itertools.product(dict.fromkeys(filter(None, folders)), names):
        candidate = shutil.which(name, path=folder)
        if candidate is None or candidate in tried:
            continue
        tried[candidate] = maker = launcher_vendor(candidate)
        if maker == of or (not of and maker):
            return candidate, ""
    makers = [
        f"{candidate} is {maker or 'of unknown make'}" for candidate, maker in tried.items()
    ]
    what = f"; {'; '.join(makers[:3])}" if makers else ""
    return "", (
        f"mpi4py loads {of or 'an MPI that is not known here'} ({library_path or 'no file is named'}), but "
        f"there is no mpiexec of it{what}; put its own bin folder into PATH, or install: {INSTALL}"
    )


CHOOSING = ("LD_LIBRARY_PATH", "LD_PRELOAD", "MPI4PY_LIBMPI", "MPI4PY_MPIABI")
"""Variables on which it depends which library is loaded."""

LIBRARY_FOLDERS = ("lib", "lib64", "lib/release")
"""Of an MPI, below the folder that it is installed in; the last is Intel's (2021.1 to 2021.12)."""


def loading(library: str) -> Environment:
    """Return variables with which mpi4py loads ``library``: its file, or the folder that it is installed in.

    Wheels of mpi4py from 4.1 on know MPI4PY_LIBMPI ("MPI ABI" in its documentation); one that was built for
    a make finds others of that make by LD_LIBRARY_PATH.
    """
    path = Path(library)
    below = (
        candidate
        for folder in LIBRARY_FOLDERS
        for candidate in sorted((path / folder).glob("libmpi.so*"))
    )
    # Wheels have links as text files.
    file = next(
        (candidate for candidate in below if Files().content(str(candidate), 4) == b"\x7fELF"),
        path,
    )
    folders = [str(file.parent), os.environ.get("LD_LIBRARY_PATH", "")]
    return ("LD_LIBRARY_PATH", ":".join(filter(None, folders))), ("MPI4PY_LIBMPI", str(file))


@lru_cache(maxsize=64)
def installed(environment: Environment = ()) -> MpiLibrary | str:
    """Return the MPI that works here, or the reason why there is none and what to do.

    environment: those variables of its ranks that are among CHOOSING.
    """
    requested = dict(environment).get("MPI4PY_LIBMPI")
    if importlib.util.find_spec("mpi4py") is None:
        return f"mpi4py is not installed; {INSTALL}"
    try:
        process = subprocess.run(
            [sys.executable, "-c", _PROBE],
            capture_output=True,
            text=True,
            timeout=PROBE_SECONDS,
            check=False,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **dict(environment)},
        )
    except subprocess.TimeoutExpired:
        return f"mpi4py did not load its MPI in {PROBE_SECONDS:.0f} s; look at 'python -m mpi4py --version'"
    if process.returncode:
        last = (process.stderr.strip().splitlines() or [f"exit code {process.returncode}"])[-1]
        return f"mpi4py finds no MPI ({last[:200]}); {INSTALL}"
    text, mpi4py, loaded, large = json.loads(process.stdout.strip().splitlines()[-1])
    name, path = library_name(text), loaded[0] if loaded else ""
    if requested and os.path.realpath(requested) != os.path.realpath(path):
        return f"mpi4py {mpi4py} loads {path or name}, not {requested}; install mpi4py 4.1 or newer as a wheel"
    launcher, reason = find_launcher(path, vendor(name))
    return reason or MpiLibrary(name, mpi4py, path, launcher, large)


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


def local_launch(library: MpiLibrary, ranks: int) -> TeamLaunch:
    """Return how all ranks start on this host, by the library's own launcher."""
    command = (library.launcher, "-n", str(ranks))
    if library.vendor == OPEN_MPI:
        # Ranks that poll must give up a processor that they share, or each waits for the scheduler's turn.
        idle = (("OMPI_MCA_mpi_yield_when_idle", "1"),) if ranks > usable_cores() else ()
        environment = (*_OPEN_MPI_HERE, *as_root(os.geteuid()), *idle)
        return TeamLaunch(command, environment, private_folders=_OPEN_MPI_FOLDERS)
    if library.vendor == INTEL_MPI:
        return TeamLaunch(command, (("I_MPI_PIN", "0"),), private_folders=(("TMPDIR", ""),))
    return TeamLaunch(command, private_folders=(("TMPDIR", ""),))


Algorithms = Mapping[str, Mapping[str, str]]
"""Of each collective: name -> the value that the library's variable takes."""

_OPEN_MPI_LINE = re.compile(r"coll_tuned_(\w+)_algorithm:enumerator:value:(\d+):(\w+)\s*$")
_CVAR_LINE = re.compile(r"\s*MPIR_CVAR_(\w+)_INTRA_ALGORITHM\s*=")
_CHOICE_LINE = re.compile(r"(\w+)\s+- ")
_PRESETS = re.compile(r"range: (\d+)-(\d+)")

NOT_ALGORITHMS = ("ignore", "auto", "nb")
"""Values that leave the choice to the library."""


def open_mpi_algorithms(text: str) -> Algorithms:
    """Read ``ompi_info --param coll tuned --level 9 --parsable``."""
    algorithms: dict[str, dict[str, str]] = {}
    for line in text.splitlines():
        match = _OPEN_MPI_LINE.search(line)
        if match and match[3] not in NOT_ALGORITHMS:
            algorithms.setdefault(match[1], {})[match[3].lower()] = match[2]
    return algorithms


def mpich_algorithms(text: str) -> Algorithms:
    """Read ``mpivars``: a variable's line, then one line for each value."""
    algorithms: dict[str, dict[str, str]] = {}
    current: dict[str, str] | None = None
    for line in text.splitlines():
        variable, choice = _CVAR_LINE.match(line), _CHOICE_LINE.match(line)
        if variable:
            current = algorithms.setdefault(variable[1].lower(), {})
        elif current is not None and choice:
            if choice[1] not in NOT_ALGORITHMS:
                current[choice[1]] = choice[1]
        else:
            current = None
    return algorithms


def intel_presets(text: str) -> dict[str, str]:
    """Read ``impi_info -v I_MPI_ADJUST_ALLREDUCE`` and the like: ``preset_1`` to the highest."""
    match = _PRESETS.search(text)
    if not match:
        return {}
    return {
        f"preset_{number}": str(number)
        for number in range(max(1, int(match[1])), int(match[2]) + 1)
    }


@lru_cache(maxsize=4)
def algorithms_of_library(library: MpiLibrary) -> Algorithms:
    """Return all that the library lists; nothing where its tools are not installed or it has no choice."""
    folder = Path(library.launcher).parent
    # Its tools load the library too, and may not find it where it lies outside the system's folders.
    paths = [str(Path(library.path).parent), os.environ.get("LD_LIBRARY_PATH", "")]
    found_here = {**os.environ, "LD_LIBRARY_PATH": ":".join(filter(None, paths))}
    if library.vendor == OPEN_MPI:
        command = [
            str(folder / "ompi_info"),
            "--param",
            "coll",
            "tuned",
            "--level",
            "9",
            "--parsable",
        ]
        return open_mpi_algorithms(tool_output(command, found_here))
    if library.vendor == MPICH:
        return mpich_algorithms(tool_output([str(folder / "mpivars")], found_here))
    if library.vendor == INTEL_MPI:
        variables = {name: f"I_MPI_ADJUST_{name.upper()}" for name in NAMES.values()}
        tool = str(folder / "impi_info")
        return {
            name: intel_presets(tool_output([tool, "-v", variable], found_here))
            for name, variable in variables.items()
        }
    return {}


def names_of(library: MpiLibrary, collective: str) -> tuple[str, ...]:
    """Return ``mpi:ring`` and so on, of one of ccbench's collectives."""
    return tuple(
        f"{PREFIX}{name}"
        for name in algorithms_of_library(library).get(NAMES.get(collective, ""), {})
    )


def settings(
    library: MpiLibrary, collective: str, algorithm: str
) -> tuple[tuple[str, str], ...]:
    """Return the variables that force ``algorithm``; none for ``default`` and for one that does not exist."""
    of_mpi = NAMES.get(collective, "")
    value = algorithms_of_library(library).get(of_mpi, {}).get(algorithm.removeprefix(PREFIX))
    # Without the prefix nothing is forced, even where a library has an algorithm called "default".
    if value is None or not algorithm.startswith(PREFIX):
        return ()
    if library.vendor == OPEN_MPI:
        # Above the other components, such as coll/han, which would be asked first.
        return (
            ("OMPI_MCA_coll_tuned_priority", "100"),
            ("OMPI_MCA_coll_tuned_use_dynamic_rules", "1"),
            (f"OMPI_MCA_coll_tuned_{of_mpi}_algorithm", value),
        )
    if library.vendor == MPICH:
        return (
            ("MPIR_CVAR_DEVICE_COLLECTIVES", "none"),
            (f"MPIR_CVAR_{of_mpi.upper()}_INTRA_ALGORITHM", value),
        )
    return ((f"I_MPI_ADJUST_{of_mpi.upper()}", value),)
