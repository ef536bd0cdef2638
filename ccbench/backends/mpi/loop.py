"""Launches from C: a loop (loop.c) that calls MPI's own functions, so that Python costs nothing between them.

A call from Python into mpi4py takes about half a microsecond, more than many MPI's all-reduce of 8 bytes. So
a launch is written down once (``functions``), and a sample's launches run in C. Where that cannot be, mpi4py
is called from Python as before, and the team says why.

What is called are the public ``MPI_`` functions, found in the order in which the dynamic linker finds them
for mpi4py itself: what was put in front of the library (a profiler preloaded for its PMPI wrappers) first,
then the library that mpi4py was linked with. They are asked for their version, which must be what mpi4py
says.

loop.c needs no header of MPI's and is compiled at first use, with ``cc`` or what ``$CC`` names, into the
cache of ``ccbench.backends.kernels.cache``.
"""

from __future__ import annotations

import ctypes
import platform
import sys
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from ccbench.backends.kernels.cache import kept, private_folder
from ccbench.backends.kernels.compiling import compile_to, digest, found_compiler
from ccbench.backends.mpi.functions import COPY, Steps
from ccbench.errors import BackendUnavailable, CcbenchError, MissingDependency

SOURCE = Path(__file__).with_name("loop.c")
OPTIONS = ("-std=c99", "-O2", "-shared", "-fPIC", "-Wall", "-Wextra")

MOST_ARGUMENTS = 12
APPLE_ARGUMENTS = 8
"""As loop.c says."""

MACHINES = ("x86_64", "AMD64", "amd64", "aarch64", "arm64")
"""Of 64 bits, whose calling conventions pass an int as a word."""

FROM_C, FROM_PYTHON = "launched from C", "launched from Python"

Launch = Callable[[int], None]
"""So many launches in a row."""


class _Step(ctypes.Structure):
    _fields_ = (
        ("function", ctypes.c_ssize_t),
        ("count", ctypes.c_ssize_t),
        ("arguments", ctypes.c_ssize_t * MOST_ARGUMENTS),
    )


@cache
def built_loop() -> Path:
    """The library made from loop.c, compiled now unless the cache has it; CcbenchError where it cannot be."""
    found = found_compiler("CC", "cc")
    if found is None:
        raise MissingDependency("no C compiler was found; install one (cc) or name one with CC")
    source = SOURCE.read_bytes()
    name = f"loop-{digest(source, *OPTIONS, *found, platform.machine())}.so"
    compile_one = partial(_compile, found[0])
    return kept(private_folder("mpi") / name, compile_one)


def _compile(compiler: str, target: Path) -> None:
    compile_to(target, compiler, [*OPTIONS, SOURCE.name], SOURCE.parent)


class CLoop:
    """loop.c and the MPI that mpi4py uses, found. OSError, AttributeError or CcbenchError where not."""

    def __init__(self, mpi: Any) -> None:
        if platform.machine() not in MACHINES or sys.platform == "win32":
            raise BackendUnavailable(f"nothing is known of calls on {sys.platform} {platform.machine()}")
        self._mpi = mpi
        self._places = (ctypes.CDLL(None), ctypes.CDLL(mpi.__file__))
        self._own = ctypes.CDLL(str(built_loop()))
        self._launch = self._own.ccbench_launch
        self._launch.argtypes = (ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_ssize_t)
        self._launch.restype = ctypes.c_int
        apple = sys.platform == "darwin" and platform.machine() == "arm64"
        self._most = APPLE_ARGUMENTS if apple else MOST_ARGUMENTS
        said = self._library_version()
        if said != mpi.Get_library_version().rstrip("\0"):
            raise BackendUnavailable(f"the MPI of this process is another one than mpi4py's: {said[:60]!r}")

    def _library_version(self) -> str:
        text = ctypes.create_string_buffer(int(self._mpi.MAX_LIBRARY_VERSION_STRING) + 1)
        length = ctypes.c_int()
        function = self._function("MPI_Get_library_version")
        if function(text, ctypes.byref(length)):
            raise BackendUnavailable("MPI_Get_library_version fails when it is called from C")
        return text.value.decode(errors="replace").rstrip("\0")

    def _function(self, name: str) -> Any:
        for place in self._places:
            if hasattr(place, name):
                return getattr(place, name)
        raise AttributeError(f"the MPI that mpi4py loads has no {name}")

    def _address(self, name: str) -> int:
        function = self._own.ccbench_copy if name == COPY else self._function(name)
        return ctypes.cast(function, ctypes.c_void_p).value or 0

    def launch(self, steps: Steps) -> Launch | None:
        """``steps`` as a function that runs them so many times; None where their functions cannot be called.

        The function raises mpi4py's own exception where MPI returns an error.
        """
        if any(len(step.arguments) > self._most for step in steps.steps):
            return None
        try:
            made = (_Step * len(steps.steps))(
                *(
                    _Step(self._address(one.name), len(one.arguments), _words(one.arguments))
                    for one in steps.steps
                )
            )
        except AttributeError:
            return None
        return partial(self._run, made, len(made), steps.room)

    def _run(self, made: Any, count: int, room: Sequence[Any], times: int) -> None:
        code = self._launch(ctypes.addressof(made), count, times)
        if code:
            raise self._mpi.Exception(code)


def _words(arguments: Sequence[int]) -> Any:
    return (ctypes.c_ssize_t * MOST_ARGUMENTS)(*arguments)


def c_loop(mpi: Any) -> CLoop | str:
    """The loop for the MPI that ``mpi`` (mpi4py's module) uses, or why launches stay in Python."""
    try:
        return CLoop(mpi)
    except (OSError, AttributeError, CcbenchError) as error:
        return " ".join(str(error).split())
