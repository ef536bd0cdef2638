"""Launches from C: a loop (loop.c) that calls MPI's own functions, so that Python costs nothing between them.

A call from Python into mpi4py takes about half a microsecond, more than many MPI's all-reduce of 8 bytes. So
a launch is written down once, as functions and their arguments, and a sample's launches run in C. Where that
cannot be, mpi4py is called from Python, and the team says why. Signatures are MPI's own (MPI 4.0, chapters 3
and 6); handles are what mpi4py holds: a pointer with Open MPI, an int with MPICH and Intel MPI.

What is called are the public ``MPI_`` functions, found in the order in which the dynamic linker finds them
for mpi4py itself: what was put in front of the library (a profiler preloaded for its PMPI wrappers) first,
then the library that mpi4py was linked with. They are asked for their version, which must be what mpi4py
says.

loop.c needs no header of MPI's and is compiled at first use, with ``cc`` or what ``$CC`` names, into the
cache of ``ccbench.backends.kernels.building``.
"""

from __future__ import annotations

import ctypes
import platform
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from ccbench.backends.kernels.building import compile_to, digest, found_compiler, kept, private_folder
from ccbench.backends.mpi.calls import (
    IN_PLACE,
    LARGEST_COUNT,
    NONBLOCKING,
    PERSISTENT,
    Call,
    Function,
    Piece,
    in_one,
)
from ccbench.errors import BackendUnavailable, CcbenchError, MissingDependency

SOURCE = Path(__file__).with_name("loop.c")
OPTIONS = ("-std=c99", "-O2", "-shared", "-fPIC", "-Wall", "-Wextra")

MOST_ARGUMENTS = 12
APPLE_ARGUMENTS = 8
"""As loop.c says."""

MACHINES = ("x86_64", "AMD64", "amd64", "aarch64", "arm64")
"""Of 64 bits, whose calling conventions pass an int as a word."""

COPY = "copy"
"""The function that loop.c has of its own."""

REDUCING = ("allreduce", "reduce_scatter_block", "reduce")

STATUS_ROOM_BYTES = 1024
"""For two statuses: an MPI_Status has 20 bytes with MPICH, 24 with Open MPI, 32 in the standard ABI."""

FROM_C, FROM_PYTHON = "launched from C", "launched from Python"

Launch = Callable[[int], None]
"""So many launches in a row."""


@dataclass(frozen=True)
class Step:
    """A function and its arguments as words."""

    name: str
    arguments: tuple[int, ...]


class Steps:
    """One launch of ``call``. room: memory that the steps point into, which must live as long as they run."""

    def __init__(self, call: Call) -> None:
        self.call, self.mpi = call, call.mpi
        self.request_bytes = int(call.mpi._sizeof(call.mpi.Request))
        # A receive and a send are the most that are under way; MPI writes their handles here.
        slots = ctypes.create_string_buffer(2 * max(8, self.request_bytes))
        statuses = ctypes.create_string_buffer(STATUS_ROOM_BYTES)
        self.room: list[Any] = [slots, statuses]
        self.requests, self.status = ctypes.addressof(slots), ctypes.addressof(statuses)
        for number, request in enumerate(call.requests):
            place = self.requests + number * self.request_bytes
            ctypes.memmove(place, call.mpi._addressof(request), self.request_bytes)
        self.steps = tuple(self._in_mode())
        if call.copies:
            copy = (call.target.ctypes.data, call.source.ctypes.data, call.source.nbytes)
            self.steps += (Step(COPY, copy),)

    def _in_mode(self) -> list[Step]:
        """Return the call in its mode."""
        functions = self.call.functions
        several = len(functions) > 1
        count = (len(functions),) if several else ()
        wait = Step("MPI_Waitall" if several else "MPI_Wait", (*count, self.requests, self.status))
        if self.call.mode == PERSISTENT:
            return [Step("MPI_Startall" if several else "MPI_Start", (*count, self.requests)), wait]
        if self.call.mode == NONBLOCKING:
            places = range(self.requests, self.requests + 2 * self.request_bytes, self.request_bytes)
            begun = zip(functions, places, strict=False)
            return [*(Step(f"MPI_I{one.name}", (*self._words(one), place)) for one, place in begun), wait]
        whole = in_one(functions)
        # Calls for data from one rank alone end with a status; collectives have none.
        status = (self.status,) if whole.name in ("recv", "sendrecv") else ()
        return [Step(f"MPI_{whole.name.capitalize()}", (*self._words(whole), *status))]

    def _words(self, function: Function) -> list[int]:
        """Return arguments up to the communicator.

        A buffer that is not there has the other one's count and type.
        """
        pieces = [one for one in function.arguments if isinstance(one, Piece)]
        words: list[int] = []
        for place, one in enumerate(function.arguments):
            if isinstance(one, Piece):
                words.append(one.buffer.ctypes.data)
            elif one is IN_PLACE:
                words.append(int(self.mpi.IN_PLACE))
            else:
                words.append(one or 0 if one is None or isinstance(one, int) else self._handle(one))
            is_buffer = isinstance(one, Piece) or one is None or one is IN_PLACE
            # MPI's reductions have one count and type, behind both buffers.
            if is_buffer and not (function.name in REDUCING and place == 0):
                words += self._shape(one if isinstance(one, Piece) else pieces[0])
        return [*words, self._handle(self.call.communicator)]

    def _shape(self, piece: Piece) -> tuple[int, ...]:
        """Return count and type; of uneven blocks their lengths, offsets and type."""
        datatype = self._handle(piece.datatype)
        if isinstance(piece.counts, int):
            return piece.counts, datatype
        lengths, offsets = ((ctypes.c_int * len(one))(*one) for one in piece.counts)
        self.room += [lengths, offsets]
        return ctypes.addressof(lengths), ctypes.addressof(offsets), datatype

    def _handle(self, of_mpi: Any) -> int:
        """Return the word by which C knows a communicator, a type or an operation."""
        return int(self.mpi._handleof(of_mpi))


def steps_of(call: Call) -> Steps | None:
    """Return one launch of ``call``; None where counts, which are of type int here, are too large."""
    return None if max(call.source.nbytes, call.target.nbytes) > LARGEST_COUNT else Steps(call)


class _Step(ctypes.Structure):
    _fields_ = (
        ("function", ctypes.c_ssize_t),
        ("count", ctypes.c_ssize_t),
        ("arguments", ctypes.c_ssize_t * MOST_ARGUMENTS),
    )


@cache
def built_loop() -> Path:
    """Return the library made from loop.c, compiled unless it is kept; CcbenchError where it cannot be."""
    found = found_compiler("CC", "cc")
    if found is None:
        raise MissingDependency("no C compiler was found; install one (cc) or name one with CC")
    source = SOURCE.read_bytes()
    name = f"loop-{digest(source, *OPTIONS, *found, platform.machine())}.so"

    def compile_one(target: Path) -> None:
        compile_to(target, found[0], [*OPTIONS, SOURCE.name], SOURCE.parent)

    return kept(private_folder("mpi") / name, compile_one)


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
        # Another MPI may have been loaded before: its functions would be given the wrong handles.
        text = ctypes.create_string_buffer(int(mpi.MAX_LIBRARY_VERSION_STRING) + 1)
        if self._function("MPI_Get_library_version")(text, ctypes.byref(ctypes.c_int())):
            raise BackendUnavailable("MPI_Get_library_version fails when it is called from C")
        said = text.value.decode(errors="replace").rstrip("\0")
        if said != mpi.Get_library_version().rstrip("\0"):
            raise BackendUnavailable(f"the MPI of this process is another one than mpi4py's: {said[:60]!r}")

    def _function(self, name: str) -> Any:
        for place in self._places:
            if hasattr(place, name):
                return getattr(place, name)
        raise AttributeError(f"the MPI that mpi4py loads has no {name}")

    def launch(self, steps: Steps | None) -> Launch | None:
        """Return a function that runs ``steps`` so many times; None where their functions cannot be called.

        The function raises mpi4py's own exception where MPI returns an error.
        """
        if steps is None or any(len(step.arguments) > self._most for step in steps.steps):
            return None
        made = (_Step * len(steps.steps))()
        for place, one in zip(made, steps.steps, strict=True):
            try:
                function = self._own.ccbench_copy if one.name == COPY else self._function(one.name)
            except AttributeError:
                return None
            place.function = ctypes.cast(function, ctypes.c_void_p).value or 0
            place.count = len(one.arguments)
            place.arguments[: len(one.arguments)] = one.arguments
        # The loop keeps what the steps point into alive.
        return partial(self._run, made, len(made), steps.room)

    def _run(self, made: Any, count: int, room: Sequence[Any], times: int) -> None:
        code = self._launch(ctypes.addressof(made), count, times)
        if code:
            raise self._mpi.Exception(code)


def c_loop(mpi: Any) -> CLoop | str:
    """Return the loop for the MPI of ``mpi`` (mpi4py's module), or the reason why launches stay in Python."""
    try:
        return CLoop(mpi)
    except (OSError, AttributeError, CcbenchError) as error:
        return " ".join(str(error).split())
