"""MPI functions of a case, bound to its buffers, and launches of them from Python and from C.

``MpiCall`` makes blocking calls from Python, ``CLoop`` the same ones from C. ``refusal`` says what MPI asks for
beyond ccbench's own meaning of a collective.

A call from Python into mpi4py takes about half a microsecond, more than many MPI's all-reduce of 8 bytes. So
a launch is written down once, as functions and their arguments, and a sample's launches run in a loop in C
(loop.c). Where that cannot be, mpi4py is called from Python, and the team says why. Signatures are MPI's own
(MPI 4.0, chapters 3 and 6); handles are what mpi4py holds: a pointer with Open MPI, an int with MPICH and
Intel MPI.

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

import numpy as np
from numpy.typing import NDArray

from ccbench.backends.kernels.building import (
    compile_to,
    digest,
    found_compiler,
    kept,
    private_folder,
)
from ccbench.backends.mpi.library import NAMES, MpiLibrary
from ccbench.cases.axes import UNEVEN, Case
from ccbench.collectives import collective, sent_elements
from ccbench.dtypes import item_bytes
from ccbench.errors import BackendUnavailable, CcbenchError, MissingDependency
from ccbench.machine.mpi import OPEN_MPI
from ccbench.verification import Array

TYPES = {
    "int8": "INT8_T",
    "uint8": "UINT8_T",
    "int32": "INT32_T",
    "uint32": "UINT32_T",
    "int64": "INT64_T",
    "uint64": "UINT64_T",
    "float32": "FLOAT",
    "float64": "DOUBLE",
}
"""Element types that MPI can do arithmetic with (MPI 4.0, section 6.9.2); others travel as bytes."""

CLIPPED = ("int8", "uint8")
"""Sums of these wrap around in C and in ccbench's data, and MPI does not say what becomes of them."""

OPS = {"sum": "SUM", "prod": "PROD", "min": "MIN", "max": "MAX"}

LARGEST_COUNT = 2**31 - 1
"""Largest count of an ``int``; larger counts came with MPI 4.0."""


def refusal(case: Case, library: MpiLibrary) -> str | None:
    """Return the reason why this MPI (or any) has no call for ``case``; None where it has."""
    row = collective(case.collective)
    if row.reduces and case.dtype not in TYPES:
        return f"MPI does no arithmetic with {case.dtype}; it can reduce {', '.join(TYPES)}"
    if (
        row.reduces
        and case.op == "sum"
        and case.dtype in CLIPPED
        and library.vendor == OPEN_MPI
    ):
        return (
            f"Open MPI clips sums of {case.dtype} that overflow, on processors with AVX "
            "(open-mpi/ompi issue 8045), so a result cannot be told from a wrong one; use another dtype"
        )
    # Elements of the largest buffer: of uneven blocks one may hold nearly all.
    largest = case.count * max(1, case.ranks)
    if case.collective == UNEVEN:
        members, unit = (
            range(case.group_ranks),
            1 if case.dtype in TYPES else item_bytes(case.dtype),
        )
        largest = unit * max(
            max(case.input_count(member), case.output_count(member)) for member in members
        )
    if largest > LARGEST_COUNT and not library.large_counts:
        return f"{largest} elements: larger counts came with MPI 4.0; {library.name} has none"
    return None


IN_PLACE = "MPI_IN_PLACE"

TAG = 0
"""Of messages between two ranks; a communicator carries one case at a time."""


@dataclass(frozen=True)
class MpiBuffer:
    """A buffer as MPI takes it. counts: elements of a block; of uneven blocks, their lengths and offsets."""

    buffer: Array
    counts: int | tuple[list[int], list[int]]
    datatype: Any


@dataclass(frozen=True)
class MpiFunction:
    """A blocking function of MPI.

    name: MPI's, in small letters. arguments: as mpi4py orders them: pieces, IN_PLACE, None for a buffer that
    MPI does not look at, numbers, an operation.
    """

    name: str
    arguments: tuple[Any, ...]


def function_of(
    mpi: Any, communicator: Any, case: Case, source: Array, target: Array, one_way: bool
) -> MpiFunction:
    """Return one launch of ``case`` on ``communicator``.

    case: as these ranks see it, which of a pair are two and no pair any more; so ``one_way`` tells that only
    the first of them sends. source is target in place.
    """
    rank, ranks = communicator.rank, communicator.size
    # Counts are in elements of a type that MPI knows; other types travel as so many bytes.
    unit, datatype = 1, getattr(mpi, TYPES.get(case.dtype, "BYTE"))
    if case.dtype not in TYPES:
        unit = item_bytes(case.dtype)

    def piece(buffer: Array, blocks: int = 1) -> MpiBuffer:
        return MpiBuffer(buffer, len(buffer) // blocks * unit, datatype)

    def uneven(buffer: Array, elements: NDArray[np.int64]) -> MpiBuffer:
        lengths = elements * unit
        return MpiBuffer(
            buffer, (lengths.tolist(), (np.cumsum(lengths) - lengths).tolist()), datatype
        )

    if one_way and rank == 0:
        return MpiFunction("send", (piece(source), 1, TAG))
    if one_way:
        return MpiFunction("recv", (piece(target), 0, TAG))
    if case.collective == "send_recv":
        # To the right neighbour from the left one, as nccl-tests' sendrecv.
        to, origin = (rank + 1) % ranks, (rank - 1) % ranks
        arguments = (piece(source), to, TAG, piece(target), origin, TAG)
        return MpiFunction("sendrecv", arguments)
    row, root = collective(case.collective), max(case.root, 0)
    at_root = rank == root
    operation = (getattr(mpi, OPS[case.op]),) if row.reduces else ()
    rooted = (root,) if row.rooted else ()
    send: Any = piece(
        source, ranks if case.collective in ("all_to_all", "scatter", "reduce_scatter") else 1
    )
    receive_: Any = piece(
        target, ranks if case.collective in ("all_gather", "all_to_all", "gather") else 1
    )
    if case.collective == UNEVEN:
        elements = sent_elements(case.traffic, case.count, ranks)
        send, receive_ = uneven(source, elements[rank]), uneven(target, elements[:, rank])
    elif case.in_place and case.collective == "reduce_scatter":
        send, receive_ = IN_PLACE, send  # all blocks go in, one comes out at the buffer's start
    elif case.in_place and case.collective == "scatter" and at_root:
        receive_ = IN_PLACE
    elif case.in_place and (at_root or not row.rooted):
        send = IN_PLACE
    match case.collective:
        case "barrier":
            buffers: tuple[Any, ...] = ()
        case "broadcast":
            buffers = (piece(source if at_root else target),)
        case "scatter":
            buffers = (send if at_root else None, receive_)
        case "gather" | "reduce":
            buffers = (send, receive_ if at_root else None)
        case _:
            buffers = (send, receive_)
    return MpiFunction(NAMES[case.collective], (*buffers, *operation, *rooted))


class MpiCall:
    """One launch of a case from Python.

    launch: runs it to its end. copies: MPI_Bcast, which has one buffer, leaves this rank to copy what it has
    sent to the other.
    """

    def __init__(
        self,
        mpi: Any,
        communicator: Any,
        case: Case,
        buffers: tuple[Array, Array],
        one_way: bool = False,
        copy: Callable[[Array, Array], object] = np.copyto,
    ) -> None:
        """buffers: source and target. copy: from the second of two buffers to the first."""
        self.mpi, self.communicator = mpi, communicator
        self.source, self.target = buffers
        self.function = function_of(mpi, communicator, case, *buffers, one_way)
        root = case.collective == "broadcast" and communicator.rank == max(case.root, 0)
        self.copies = root and not case.in_place
        memory = getattr(mpi, "buffer", None) or mpi.memory  # its name before mpi4py 4
        arguments = [
            [
                memory.frombuffer(argument.buffer.view(np.uint8)),
                argument.counts,
                argument.datatype,
            ]
            if isinstance(argument, MpiBuffer)
            else argument
            for argument in self.function.arguments
        ]
        taken = [mpi.IN_PLACE if argument is IN_PLACE else argument for argument in arguments]
        whole = partial(getattr(communicator, self.function.name.capitalize()), *taken)

        def whole_and_copy() -> None:
            whole()
            copy(self.target, self.source)

        self.launch: Callable[[], object] = whole_and_copy if self.copies else whole


SOURCE = Path(__file__).with_name("loop.c")
OPTIONS = ("-std=c99", "-O2", "-shared", "-fPIC", "-Wall", "-Wextra")

MOST_ARGUMENTS = 12
APPLE_ARGUMENTS = 8
"""Arguments as loop.c takes them."""

MACHINES = ("x86_64", "AMD64", "amd64", "aarch64", "arm64")
"""Of 64 bits, whose calling conventions pass an int as a word."""

COPY = "copy"
"""The function that loop.c has of its own."""

REDUCING = ("allreduce", "reduce_scatter_block", "reduce")

STATUS_ROOM_BYTES = 512
"""For a status: an MPI_Status has 20 bytes with MPICH, 24 with Open MPI, 32 in the standard ABI."""

FROM_C, FROM_PYTHON = "launched from C", "launched from Python"

Launch = Callable[[int], None]
"""So many launches in a row."""


@dataclass(frozen=True)
class CallStep:
    """A function and its arguments as words."""

    name: str
    arguments: tuple[int, ...]


class Steps:
    """One launch of ``call``. room: memory that the steps point into, which must live as long as they run."""

    def __init__(self, call: MpiCall) -> None:
        self.call, self.mpi = call, call.mpi
        status = ctypes.create_string_buffer(STATUS_ROOM_BYTES)
        self.room: list[Any] = [status]
        whole = call.function
        # Calls for data from one rank alone end with a status; collectives have none.
        ends = (ctypes.addressof(status),) if whole.name in ("recv", "sendrecv") else ()
        self.steps: tuple[CallStep, ...] = (
            CallStep(f"MPI_{whole.name.capitalize()}", (*self._words(whole), *ends)),
        )
        if call.copies:
            copy = (call.target.ctypes.data, call.source.ctypes.data, call.source.nbytes)
            self.steps += (CallStep(COPY, copy),)

    def _words(self, function: MpiFunction) -> list[int]:
        """Return arguments up to the communicator.

        A buffer that is not there has the other one's count and type.
        """
        pieces = [
            argument for argument in function.arguments if isinstance(argument, MpiBuffer)
        ]
        words: list[int] = []
        for place, argument in enumerate(function.arguments):
            if isinstance(argument, MpiBuffer):
                words.append(argument.buffer.ctypes.data)
            elif argument is IN_PLACE:
                words.append(int(self.mpi.IN_PLACE))
            else:
                words.append(
                    argument or 0
                    if argument is None or isinstance(argument, int)
                    else self._handle(argument)
                )
            is_buffer = (
                isinstance(argument, MpiBuffer) or argument is None or argument is IN_PLACE
            )
            # MPI's reductions have one count and type, behind both buffers.
            if is_buffer and not (function.name in REDUCING and place == 0):
                shape = argument if isinstance(argument, MpiBuffer) else pieces[0]
                if isinstance(shape.counts, int):
                    words.append(shape.counts)
                else:  # of uneven blocks their lengths and offsets
                    lists = [(ctypes.c_int * len(each))(*each) for each in shape.counts]
                    self.room += lists
                    words += map(ctypes.addressof, lists)
                words.append(self._handle(shape.datatype))
        return [*words, self._handle(self.call.communicator)]

    def _handle(self, of_mpi: Any) -> int:
        """Return the word by which C knows a communicator, a type or an operation."""
        return int(self.mpi._handleof(of_mpi))


def steps_of(call: MpiCall) -> Steps | None:
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
    compiler = found_compiler("CC", "cc")
    if compiler is None:
        raise MissingDependency("no C compiler was found; install one (cc) or name one with CC")
    source = SOURCE.read_bytes()
    name = f"loop-{digest(source, *OPTIONS, *compiler, platform.machine())}.so"

    def compile_one(target: Path) -> None:
        compile_to(target, compiler[0], [*OPTIONS, SOURCE.name], SOURCE.parent)

    return kept(private_folder("mpi") / name, compile_one)


class CLoop:
    """loop.c and the MPI that mpi4py uses, found. OSError, AttributeError or CcbenchError where not."""

    def __init__(self, mpi: Any) -> None:
        if platform.machine() not in MACHINES or sys.platform == "win32":
            raise BackendUnavailable(
                f"nothing is known of calls on {sys.platform} {platform.machine()}"
            )
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
        version = text.value.decode(errors="replace").rstrip("\0")
        if version != mpi.Get_library_version().rstrip("\0"):
            raise BackendUnavailable(
                f"the MPI of this process is another one than mpi4py's: {version[:60]!r}"
            )

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
        for place, step in zip(made, steps.steps, strict=True):
            try:
                function = (
                    self._own.ccbench_copy if step.name == COPY else self._function(step.name)
                )
            except AttributeError:
                return None
            place.function = ctypes.cast(function, ctypes.c_void_p).value or 0
            place.count = len(step.arguments)
            place.arguments[: len(step.arguments)] = step.arguments

        def launches(times: int, made: Any = made, room: Sequence[Any] = steps.room) -> None:
            # room: kept alive with the loop, for the steps point into it.
            if code := self._launch(ctypes.addressof(made), len(made), times):
                raise self._mpi.Exception(code)

        return launches


def c_loop(mpi: Any) -> CLoop | str:
    """Return the loop for the MPI of ``mpi`` (mpi4py's module), or the reason why launches stay in Python."""
    try:
        return CLoop(mpi)
    except (OSError, AttributeError, CcbenchError) as error:
        return " ".join(str(error).split())
