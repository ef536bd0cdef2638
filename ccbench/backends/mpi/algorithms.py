"""``algorithm: mpi:<name>``: which algorithms the installed MPI has, and the environment that forces one.

Open MPI: the component ``coll/tuned`` lists its algorithms through ``ompi_info`` and takes
``coll_tuned_<collective>_algorithm`` while ``coll_tuned_use_dynamic_rules`` is set. MPICH lists its control
variables through ``mpivars``; ``MPIR_CVAR_<COLLECTIVE>_INTRA_ALGORITHM`` names one, which counts where device
collectives are off. Intel MPI has numbered presets, ``I_MPI_ADJUST_<COLLECTIVE>`` (its Developer Reference,
"I_MPI_ADJUST Family"), whose range ``impi_info`` tells.

All three read the environment when they start, so each algorithm has a team of its own. None can be asked
afterwards whether the algorithm really ran: a library may fall back where an algorithm does not fit the
number of ranks or the size, without a word.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from ccbench.backends.mpi.calls import NAMES
from ccbench.backends.mpi.library import INTEL_MPI, MPICH, OPEN_MPI, PROBE_SECONDS, Library

PREFIX = "mpi:"

Algorithms = Mapping[str, Mapping[str, str]]
"""Of each collective: name -> the value that the library's variable takes."""

_OPEN_MPI_LINE = re.compile(r"coll_tuned_(\w+)_algorithm:enumerator:value:(\d+):(\w+)\s*$")
_CVAR_LINE = re.compile(r"\s*MPIR_CVAR_(\w+)_INTRA_ALGORITHM\s*=")
_CHOICE_LINE = re.compile(r"(\w+)\s+- ")
_PRESETS = re.compile(r"range: (\d+)-(\d+)")

NOT_ALGORITHMS = ("ignore", "auto", "nb")
"""Values that leave the choice to the library."""


def open_mpi_algorithms(text: str) -> Algorithms:
    """From ``ompi_info --param coll tuned --level 9 --parsable``."""
    found: dict[str, dict[str, str]] = {}
    for line in text.splitlines():
        match = _OPEN_MPI_LINE.search(line)
        if match and match[3] not in NOT_ALGORITHMS:
            found.setdefault(match[1], {})[match[3].lower()] = match[2]
    return found


def mpich_algorithms(text: str) -> Algorithms:
    """From ``mpivars``: a variable's line, then one line for each value."""
    found: dict[str, dict[str, str]] = {}
    current: dict[str, str] | None = None
    for line in text.splitlines():
        variable, choice = _CVAR_LINE.match(line), _CHOICE_LINE.match(line)
        if variable:
            current = found.setdefault(variable[1].lower(), {})
        elif current is not None and choice:
            if choice[1] not in NOT_ALGORITHMS:
                current[choice[1]] = choice[1]
        else:
            current = None
    return found


def intel_presets(text: str) -> dict[str, str]:
    """From ``impi_info -v I_MPI_ADJUST_ALLREDUCE`` and the like: ``preset_1`` to the highest."""
    found = _PRESETS.search(text)
    if not found:
        return {}
    return {f"preset_{number}": str(number) for number in range(max(1, int(found[1])), int(found[2]) + 1)}


@lru_cache(maxsize=4)
def algorithms_of_library(library: Library) -> Algorithms:
    """What the library says it has; empty where its tools are not installed or it has none to choose from."""
    folder = Path(library.launcher).parent
    if library.vendor == OPEN_MPI:
        arguments = ["--param", "coll", "tuned", "--level", "9", "--parsable"]
        return open_mpi_algorithms(_said(folder / "ompi_info", arguments, library))
    if library.vendor == MPICH:
        return mpich_algorithms(_said(folder / "mpivars", [], library))
    if library.vendor == INTEL_MPI:
        tool = folder / "impi_info"
        return {
            name: intel_presets(_said(tool, ["-v", f"I_MPI_ADJUST_{name.upper()}"], library))
            for name in NAMES.values()
        }
    return {}


def _said(tool: Path, arguments: list[str], library: Library) -> str:
    paths = [str(Path(library.path).parent), os.environ.get("LD_LIBRARY_PATH", "")]
    environment = {**os.environ, "LD_LIBRARY_PATH": ":".join(filter(None, paths))}
    try:
        done = subprocess.run(
            [str(tool), *arguments], capture_output=True, text=True, timeout=PROBE_SECONDS, check=False,
            env=environment, stdin=subprocess.DEVNULL, errors="replace",
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout


def names_of(library: Library, collective: str) -> tuple[str, ...]:
    """``mpi:ring`` and so on, of one of ccbench's collectives."""
    return tuple(
        f"{PREFIX}{name}" for name in algorithms_of_library(library).get(NAMES.get(collective, ""), {})
    )


def settings(library: Library, collective: str, algorithm: str) -> tuple[tuple[str, str], ...]:
    """The variables that force ``algorithm``; none for ``default`` and for one that does not exist."""
    of_mpi = NAMES.get(collective, "")
    value = algorithms_of_library(library).get(of_mpi, {}).get(algorithm.removeprefix(PREFIX))
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
