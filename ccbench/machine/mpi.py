"""MPI on this machine: whose a launcher is, and the library that mpi4py loads."""

from __future__ import annotations

import ctypes
import importlib
import os
import re
import subprocess
from collections.abc import Mapping
from typing import Any

OPEN_MPI, MPICH, INTEL_MPI = "Open MPI", "MPICH", "Intel MPI"

PROBE_SECONDS = 60.0
"""In which a tool of an MPI, or mpi4py, must have answered."""

_SIGNS = (
    (re.compile(r"Intel\(R\) MPI"), INTEL_MPI),
    (re.compile(r"Open ?MPI|OpenRTE|PRRTE|prterun", re.IGNORECASE), OPEN_MPI),
    (re.compile(r"HYDRA", re.IGNORECASE), MPICH),
)


def loaded_mpi() -> Any:
    """Return mpi4py's module, nothing initialised; ImportError or RuntimeError where it finds no library."""
    # mpi4py would initialise MPI at import, at a level of its own choice.
    settings = importlib.import_module("mpi4py").rc
    settings.initialize = settings.finalize = False
    return importlib.import_module("mpi4py.MPI")


def initialise(mpi: Any, level: int) -> None:
    """Call MPI_Init_thread, which waits for all ranks, while this process's other threads go on.

    mpi4py keeps the interpreter's lock meanwhile: a process whose MPI never comes up would hear nobody.
    """
    try:  # the file of the module leads to the functions of its library
        begin = ctypes.CDLL(mpi.__file__).MPI_Init_thread
    except (OSError, AttributeError):
        mpi.Init_thread(level)
        return
    begin(
        None, None, level, ctypes.byref(ctypes.c_int())
    )  # what fails so early ends the process
    # As mpi4py sets it: errors are raised, where a library would end the process.
    for communicator in (mpi.COMM_SELF, mpi.COMM_WORLD):
        communicator.Set_errhandler(mpi.ERRORS_RETURN)


def tool_output(command: list[str], environment: Mapping[str, str] = os.environ) -> str:
    """Return what a tool prints; '' where it cannot be run, or does not end."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=PROBE_SECONDS,
            check=False,
            env=environment,
            stdin=subprocess.DEVNULL,
            errors="replace",
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout + done.stderr


def launcher_vendor(path: str) -> str:
    """Return the maker of a launcher, as it says itself; '' when it says nothing that is known."""
    text = tool_output([path, "--version"])
    return next((name for sign, name in _SIGNS if sign.search(text)), "")


def as_root(user: int) -> tuple[tuple[str, str], ...]:
    """Return the variables without which Open MPI starts nothing as root, all there is in a container."""
    names = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")
    return tuple((name, "1") for name in names) if user == 0 else ()
