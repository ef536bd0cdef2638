"""The NCCL library: what its header declares, as tables, and the library itself as CuPy has it.

Source of the tables is ``nccl.h`` of the release named beside each (https://github.com/NVIDIA/nccl,
src/nccl.h.in); ``tests/backends/nccl/recorded`` keeps what the released wheels' headers declare, and a test
lays these tables beside it. Versions are written as ncclGetVersion gives them: 22809 is 2.28.9. Collectives
are called in ``collectives``.

CuPy's wrapper serves where it has a call, and for the rest the very library that CuPy loaded. Everything
below this module may be a stand-in: ``cupy.cuda.nccl``, ``cupy.cuda.runtime``, and an object with the
library's functions as ctypes gives them.

Communicators: one rank's, and all communicators of the ranks that one process drives.

All are blocking. NCCL starts a thread for every launch on a communicator that does not block (src/group.cc),
which would be timed; so errors are asked for while streams are waited for, and a watchdog aborts what blocks.
"""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from ctypes import POINTER, c_char_p, c_float, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any

import numpy as np

from ccbench.backends.base import CannotRun, ControlChannel, OutOfMemory
from ccbench.dtypes import numpy_dtype
from ccbench.errors import BackendUnavailable, CcbenchError, MissingDependency
from ccbench.groups import Groups
from ccbench.machine.files import Files
from ccbench.machine.software import install_line

SUCCESS, INVALID_ARGUMENT, INVALID_USAGE, IN_PROGRESS = 0, 4, 5, 7

_RESULT_NAMES = (
    *("ncclSuccess", "ncclUnhandledCudaError", "ncclSystemError", "ncclInternalError"),
    *("ncclInvalidArgument", "ncclInvalidUsage", "ncclRemoteError", "ncclInProgress", "ncclTimeout"),
)
RESULTS = dict(enumerate(_RESULT_NAMES))
"""ncclResult_t; the last came with 2.31."""

_TYPE_NAMES = (
    *("int8", "uint8", "int32", "uint32", "int64", "uint64"),
    *("float16", "float32", "float64", "bfloat16", "float8_e4m3", "float8_e5m2"),
)
DTYPES = {name: number for number, name in enumerate(_TYPE_NAMES)}
"""ncclDataType_t by ccbench's names."""

DTYPE_SINCE = {"bfloat16": 21003, "float8_e4m3": 22403, "float8_e5m2": 22403}

OPS = {"sum": 0, "prod": 1, "max": 2, "min": 3, "avg": 4}
"""ncclRedOp_t; ``premulsum`` has no number of its own: one is made for every scalar."""

WINDOW_SYMMETRIC = 1
"""NCCL_WIN_COLL_SYMMETRIC."""

SCALAR_ON_HOST = 1
"""ncclScalarHostImmediate: read before the call returns."""

NO_COLOUR = -1
"""NCCL_SPLIT_NOCOLOR: a rank that is in no part."""

UNDEFINED_INT = -(2**31)
CONFIG_MAGIC = 0xCAFEBEEF
SIMULATION_MAGIC = 0x74685283
UNDEFINED_FLOAT = -1.0

_P = c_void_p
_SEND = [_P, _P, c_size_t, c_int]


class SimulationInfo(ctypes.Structure):
    """ncclSimInfo_v22200. estimated_time: microseconds; -1 where NCCL has no estimate."""

    _fields_ = (
        ("size", c_size_t),
        ("magic", c_uint),
        ("version", c_uint),
        ("estimated_time", c_float),
    )


class CollectiveConfig(ctypes.Structure):
    """ncclCollConfig_v23100: settings of one call. Later NCCL appends fields and takes this, by its size."""

    _fields_ = (
        ("size", c_size_t),
        ("magic", c_uint),
        ("version", c_uint),
        ("ext", c_void_p),
        *((name, c_int) for name in ("minCTAs", "maxCTAs", "nvlsCTAs", "cgaClusterSize")),
        ("algSelection", c_char_p),
        ("forceAlgSelection", c_int),
        ("CTAPolicy", c_int),
        ("userProfilerTag", c_uint64),
    )


def algorithm_config(algorithms: str) -> CollectiveConfig:
    """NCCL_COLLCONFIG_INITIALIZER with a list of algorithms, of which NCCL takes one or refuses the call."""
    return CollectiveConfig(
        ctypes.sizeof(CollectiveConfig), CONFIG_MAGIC, CONFIGURABLE_SINCE, None,
        UNDEFINED_INT, UNDEFINED_INT, UNDEFINED_INT, UNDEFINED_INT, algorithms.encode(), 1, UNDEFINED_INT, 0,
    )  # fmt: skip


CONFIGURABLE_SINCE = 23102

FUNCTIONS: dict[str, tuple[int, list[Any]]] = {
    "ncclGetVersion": (20304, [POINTER(c_int)]),
    "ncclGetErrorString": (20000, [c_int]),
    "ncclGetLastError": (21304, [_P]),
    "ncclCommDestroy": (20000, [_P]),
    "ncclCommAbort": (20402, [_P]),
    "ncclCommGetAsyncError": (20402, [_P, POINTER(c_int)]),
    "ncclCommCount": (20000, [_P, POINTER(c_int)]),
    "ncclCommUserRank": (20000, [_P, POINTER(c_int)]),
    "ncclCommSplit": (21801, [_P, c_int, c_int, POINTER(_P), _P]),
    "ncclMemAlloc": (21903, [POINTER(_P), c_size_t]),
    "ncclMemFree": (21903, [_P]),
    "ncclCommRegister": (21903, [_P, _P, c_size_t, POINTER(_P)]),
    "ncclCommDeregister": (21903, [_P, _P]),
    "ncclCommWindowRegister": (22703, [_P, _P, c_size_t, POINTER(_P), c_int]),
    "ncclCommWindowDeregister": (22703, [_P, _P]),
    "ncclRedOpCreatePreMulSum": (21104, [POINTER(c_int), _P, c_int, c_int, _P]),
    "ncclRedOpDestroy": (21104, [c_int, _P]),
    "ncclGroupStart": (20000, []),
    "ncclGroupEnd": (20000, []),
    "ncclGroupSimulateEnd": (22203, [POINTER(SimulationInfo)]),
    "ncclAllReduce": (20000, [*_SEND, c_int, _P, _P]),
    "ncclReduce": (20000, [*_SEND, c_int, c_int, _P, _P]),
    "ncclBroadcast": (20202, [*_SEND, c_int, _P, _P]),
    "ncclAllGather": (20000, [*_SEND, _P, _P]),
    "ncclReduceScatter": (20000, [*_SEND, c_int, _P, _P]),
    "ncclSend": (20703, [_P, c_size_t, c_int, c_int, _P, _P]),
    "ncclRecv": (20703, [_P, c_size_t, c_int, c_int, _P, _P]),
    "ncclAlltoAll": (22803, [*_SEND, _P, _P]),
    "ncclGather": (22803, [*_SEND, c_int, _P, _P]),
    "ncclScatter": (22803, [*_SEND, c_int, _P, _P]),
}
CONFIGURABLE = ("ncclAllReduce", "ncclReduce", "ncclBroadcast", "ncclAllGather", "ncclReduceScatter")
"""Collectives of which NCCL has several algorithms: each has a form that takes a CollectiveConfig at last."""

FUNCTIONS |= {f"{name}Config": (CONFIGURABLE_SINCE, [*FUNCTIONS[name][1], _P]) for name in CONFIGURABLE}
"""Name -> (first version, types of the arguments). All return ncclResult_t but TEXTS, which return text."""

TEXTS = ("ncclGetErrorString", "ncclGetLastError")


def version_text(version: int) -> str:
    """``2.28.9`` for 22809; the numbers were made otherwise before 2.9 (2804)."""
    base = 10_000 if version >= 10_000 else 1000
    return f"{version // base}.{version % base // 100}.{version % 100}"


def declare(native: Any) -> None:
    """Tell ctypes the types of every function that the library ``native`` has."""
    for name, (_, arguments) in FUNCTIONS.items():
        # Untyped, ctypes would hand addresses on as C ints and cut them to 32 bits.
        function = getattr(native, name, None)
        if function is not None:
            function.argtypes = arguments
            function.restype = c_char_p if name in TEXTS else c_int


INSTALL = f"{install_line('cuda13')} (cuda12, as the driver has it) brings CuPy and the nvidia-nccl wheel"

OLDEST = 21403
"""2.14.3: the oldest whose header the table of calls was compared with."""


class NcclFailed(CcbenchError):
    """A call of NCCL failed; the text has NCCL's own words. ``code``: ncclResult_t; ``call``: function."""

    def __init__(self, text: str, code: int, call: str) -> None:
        super().__init__(text)
        self.code = code
        self.call = call

    @property
    def refused(self) -> bool:
        """NCCL would not take what it was asked, such as an algorithm it does not have for the collective."""
        return self.code in (INVALID_ARGUMENT, INVALID_USAGE)


class Nccl:
    """NCCL as this process has it; used by one thread.

    module: ``cupy.cuda.nccl``. native: the same library by ctypes. runtime: ``cupy.cuda.runtime``.
    version: as ncclGetVersion gives it, 22809 for 2.28.9. path: the library's file, '' where that is not
    known.
    """

    def __init__(self, module: Any, native: Any, runtime: Any, path: str = "") -> None:
        self.module = module
        self.native = native
        self.runtime = runtime
        self.path = path
        declare(native)
        self.version = int(module.get_version())
        # Calls of one library on communicators of another would corrupt both.
        found = ctypes.c_int(0)
        self.native.ncclGetVersion(ctypes.byref(found))
        if found.value != self.version:
            raise BackendUnavailable(
                f"{self.path or 'the NCCL library'} says it is {version_text(found.value)}, CuPy uses "
                f"{version_text(self.version)}: two NCCL libraries are loaded; keep one on LD_LIBRARY_PATH"
            )
        if self.version < OLDEST:
            raise BackendUnavailable(
                f"NCCL {self.version_text} is too old, {version_text(OLDEST)} or newer is needed; {INSTALL}"
            )

    @property
    def version_text(self) -> str:
        """``2.28.9``."""
        return version_text(self.version)

    # -- what there is -----------------------------------------------------------------------------------

    def has(self, call: str) -> bool:
        """Return True if this NCCL has the function ``call`` of FUNCTIONS."""
        return self.version >= FUNCTIONS[call][0] and getattr(self.native, call, None) is not None

    def function(self, call: str) -> Any:
        """Return the C function; CannotRun says from which version on there is one."""
        if not self.has(call):
            first = version_text(FUNCTIONS[call][0])
            raise CannotRun(f"NCCL {self.version_text} has no {call}, which came with {first}; {INSTALL}")
        return getattr(self.native, call)

    def dtype_number(self, dtype: str) -> int:
        """Return NCCL's number of ccbench's ``dtype``; CannotRun where this NCCL does not have it."""
        since = DTYPE_SINCE.get(dtype, 0)
        if self.version < since:
            raise CannotRun(
                f"NCCL {self.version_text} has no {dtype}, which came with {version_text(since)}; {INSTALL}"
            )
        return DTYPES[dtype]

    def op_number(self, op: str | int) -> int:
        """Return NCCL's number of ``op``; one from ``Communicator.premultiplied`` is a number already."""
        return op if isinstance(op, int) else OPS[op]

    # -- errors ------------------------------------------------------------------------------------------

    def words(self, code: int, handle: int = 0) -> str:
        """Return what NCCL says about a result: its name, its meaning, the last error it wrote down."""
        meaning = _text(self.native.ncclGetErrorString(code))
        last = _text(self.native.ncclGetLastError(handle or None)) if self.has("ncclGetLastError") else ""
        name = RESULTS.get(code, f"result {code}")
        return f"{name}: {meaning}" + (f" ({' '.join(last.split())})" if last.strip() else "")

    def check(self, code: int, call: str, handle: int = 0) -> None:
        """Raise NcclFailed unless ``code`` is ncclSuccess."""
        if code != SUCCESS:
            raise NcclFailed(f"{call}: {self.words(code, handle)}", code, call)

    def failure(self, error: Exception, call: str) -> Exception:
        """Return what an exception of CuPy's means: NcclFailed with NCCL's words, or the exception itself.

        CuPy knows results up to 6 by name; beyond, making its error fails with a KeyError of the number.
        """
        code = getattr(error, "status", None)
        if code is None and isinstance(error, KeyError) and error.args and error.args[0] in RESULTS:
            code = error.args[0]
        if code is None or type(error).__name__ not in ("NcclError", "KeyError"):
            return error
        return NcclFailed(f"{call}: {self.words(int(code))}", int(code), call)

    # -- memory ------------------------------------------------------------------------------------------

    def allocate(self, size_bytes: int) -> int:
        """Return memory of the current device that may be registered; OutOfMemory where there is none."""
        address = ctypes.c_void_p()
        code = self.function("ncclMemAlloc")(ctypes.byref(address), max(size_bytes, 1))
        # No result of its own stands for too little memory: only NCCL's words tell.
        if code != SUCCESS and "out of memory" in (words := self.words(code)):
            raise OutOfMemory(f"NCCL cannot allocate {size_bytes} bytes: {words}")
        self.check(code, "ncclMemAlloc")
        return address.value or 0

    def free(self, address: int) -> None:
        """Give back what ``allocate`` gave."""
        if address:
            self.check(self.function("ncclMemFree")(address), "ncclMemFree")

    # -- groups ------------------------------------------------------------------------------------------

    @contextmanager
    def group(self, end: Callable[[], None] | None = None) -> Iterator[None]:
        """Have calls inside happen together when it ends; groups may be nested. end: instead of its end.

        What one thread asks of several communicators must be asked in one group, or the first call waits
        for the second for ever. An exception inside drops the calls.
        """
        self.by_cupy(self.module.groupStart, "ncclGroupStart")
        try:
            yield
        except BaseException:
            # A call without a communicator fails the group, at any depth, so that nothing of it runs.
            self.native.ncclBroadcast(None, None, 0, 0, 0, None, None)
            with suppress(NcclFailed):
                self.by_cupy(self.module.groupEnd, "ncclGroupEnd")
            raise
        if end is None:
            self.by_cupy(self.module.groupEnd, "ncclGroupEnd")
        else:
            end()

    def by_cupy(self, function: Callable[[], Any], call: str) -> Any:
        """Call ``function`` of CuPy's; NcclFailed with NCCL's words where NCCL fails."""
        try:
            return function()
        except Exception as error:
            raise self.failure(error, call) from None

    def simulate(self, calls: Iterable[Callable[[], None]]) -> float | None:
        """Return NCCL's own estimate, in seconds, of all ``calls`` in one group.

        Nothing is moved. None where NCCL has no estimate (before 2.22, or not for these calls). Raises
        NcclFailed as the calls themselves do.
        """
        name = "ncclGroupSimulateEnd"
        if not self.has(name):
            return None
        info = SimulationInfo(ctypes.sizeof(SimulationInfo), SIMULATION_MAGIC, self.version, UNDEFINED_FLOAT)
        with self.group(lambda: self.check(self.function(name)(ctypes.byref(info)), name)):
            for call in calls:
                call()
        # Microseconds, as the tuner's times (NCCL user guide, "ncclSimInfo_t"); negative where not known.
        return float(info.estimated_time) * 1e-6 if info.estimated_time > 0 else None

    # -- communicators -----------------------------------------------------------------------------------

    def unique_id(self) -> bytes:
        """Return 128 bytes that all ranks of one communicator must be given."""
        made = self.by_cupy(self.module.get_unique_id, "ncclGetUniqueId")
        if isinstance(made, bytes):
            return made
        return bytes(byte & 0xFF for byte in made)  # CuPy before 14 gives a tuple of signed chars


def _text(raw: Any) -> str:
    return raw.decode(errors="replace") if isinstance(raw, bytes) else str(raw or "")


def loaded_library(maps: str) -> str:
    """Return the file of the NCCL library in ``maps`` (text of /proc/self/maps), '' where there is none.

    BackendUnavailable where there are several.
    """
    files = dict.fromkeys(
        fields[5]
        for fields in (line.split(maxsplit=5) for line in maps.splitlines())
        if len(fields) == 6 and fields[5].rsplit("/", 1)[-1].startswith("libnccl.so")
    )
    if len(files) > 1:
        raise BackendUnavailable(
            f"several NCCL libraries are loaded: {', '.join(files)}; keep one on LD_LIBRARY_PATH"
        )
    return next(iter(files), "")


def open_nccl(load: Callable[[str], Any] = ctypes.CDLL, files: Files | None = None) -> Nccl:
    """NCCL as CuPy finds it: the nvidia-nccl wheel, else the system's libnccl.so.2.

    Raises MissingDependency without CuPy or NCCL, BackendUnavailable where NCCL is too old or there twice.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # CuPy warns where NCCL is absent; said below
            from cupy.cuda import nccl, runtime  # type: ignore[import-not-found,unused-ignore]

            available = bool(nccl.available)
    except ImportError as error:
        raise MissingDependency(f"CuPy's NCCL cannot be imported ({error}); {INSTALL}") from None
    if not available:
        raise MissingDependency(f"CuPy finds no NCCL library; {INSTALL}")
    nccl.get_version()  # loads the library, where importing alone has not
    path = loaded_library((files or Files()).text("/proc/self/maps") or "")
    return Nccl(nccl, load(path or "libnccl.so.2"), runtime, path)


class Communicator:
    """One rank of a communicator; made by ``communicator_of`` and by ``split``.

    cupy: CuPy's NcclCommunicator, or None of a part of another one: then ``held`` is what NCCL writes the
    handle into, at the end of the group at the latest.
    """

    def __init__(self, nccl: Nccl, *, cupy: Any = None, held: ctypes.c_void_p | None = None) -> None:
        self.nccl = nccl
        self.cupy = cupy
        self._held = ctypes.c_void_p() if held is None else held  # one that holds nothing yet is false
        self._kept: list[ctypes.c_void_p] = []
        self._aborted = False

    @property
    def handle(self) -> int:
        """ncclComm_t; 0 before the group that makes it has ended, and after the end."""
        return int((self.cupy.comm if self.cupy is not None else self._held.value) or 0)

    @property
    def rank(self) -> int:
        """This rank's number in the communicator."""
        return self._asked("ncclCommUserRank")

    @property
    def ranks(self) -> int:
        """Number of ranks in the communicator."""
        return self._asked("ncclCommCount")

    def _asked(self, call: str) -> int:
        answer = ctypes.c_int(-1)
        self.check(self.nccl.function(call)(self.handle, ctypes.byref(answer)), call)
        return answer.value

    def check(self, code: int, call: str) -> None:
        """Raise NcclFailed with this communicator's last error unless ``code`` is ncclSuccess."""
        self.nccl.check(code, call, self.handle)

    def failure(self) -> str:
        """Return NCCL's own words for what has failed, '' where nothing has; never waits."""
        if self._aborted or not self.handle:
            return ""
        found = ctypes.c_int(SUCCESS)
        code = self.nccl.native.ncclCommGetAsyncError(self.handle, ctypes.byref(found))
        code = code if code != SUCCESS else found.value
        return "" if code in (SUCCESS, IN_PROGRESS) else self.nccl.words(code, self.handle)

    # -- operations, parts, memory -----------------------------------------------------------------------

    def premultiplied(self, scalar: float, dtype: str) -> int:
        """Return a new op: ``scalar`` times this rank's elements, then summed; ``release`` it at last."""
        number = self.nccl.dtype_number(dtype)
        value = np.asarray(scalar).astype(numpy_dtype(dtype)).reshape(1)
        made = ctypes.c_int(-1)
        create = self.nccl.function("ncclRedOpCreatePreMulSum")
        code = create(ctypes.byref(made), value.ctypes.data, number, SCALAR_ON_HOST, self.handle)
        self.check(code, "ncclRedOpCreatePreMulSum")
        return made.value

    def release(self, op: int) -> None:
        """Give up an op of ``premultiplied``; calls enqueued with it are not disturbed."""
        if self.handle:
            self.check(self.nccl.function("ncclRedOpDestroy")(op, self.handle), "ncclRedOpDestroy")

    def split(self, colour: int, key: int) -> Communicator | None:
        """Return a communicator of the ranks that give the same ``colour``, in the order of their keys.

        Every rank must call it; those with NO_COLOUR are in no part and get None. Where one thread has
        several ranks, in one group, after which the parts can be used.
        """
        held = ctypes.c_void_p()
        split = self.nccl.function("ncclCommSplit")
        self.check(split(self.handle, colour, key, ctypes.byref(held), None), "ncclCommSplit")
        if colour == NO_COLOUR:
            self._kept.append(held)  # NCCL writes into it when the group ends
            return None
        return Communicator(self.nccl, held=held)

    def register(self, address: int, size_bytes: int, symmetric: bool) -> ctypes.c_void_p:
        """Let NCCL use a buffer directly instead of copying through its own; return what it knows it by.

        It is written when the group has ended, and stays empty where NCCL cannot use the buffer.

        symmetric: all ranks must register as much, at the same place of the order of registrations, of memory
        from ``Nccl.allocate``; where one thread has several ranks, in one group. CannotRun where this NCCL
        cannot.
        """
        handle = ctypes.c_void_p()
        name = "ncclCommWindowRegister" if symmetric else "ncclCommRegister"
        more = (WINDOW_SYMMETRIC,) if symmetric else ()
        function = self.nccl.function(name)
        self.check(function(self.handle, address, size_bytes, ctypes.byref(handle), *more), name)
        return handle

    def deregister(self, registered: ctypes.c_void_p, symmetric: bool) -> None:
        """End a registration, before its memory is given back."""
        name = "ncclCommWindowDeregister" if symmetric else "ncclCommDeregister"
        if registered.value and self.handle:
            self.check(self.nccl.function(name)(self.handle, registered.value), name)

    # -- the end -----------------------------------------------------------------------------------------

    def abort(self) -> None:
        """End everything that runs, at once; the communicator is gone. May itself hang."""
        self._end("abort", self.nccl.native.ncclCommAbort)

    def destroy(self) -> None:
        """Give the communicator up after everything enqueued is over; safe to call twice."""
        if self.failure():
            # NCCL does not destroy one that has failed: it would leave the thread in a group
            # (ncclCommEnsureReady of src/init.cc).
            self.abort()
        else:
            self._end("destroy", self.nccl.native.ncclCommDestroy)

    def _end(self, by_cupy: str, native: Callable[[int], int]) -> None:
        handle = self.handle
        if not handle or self._aborted:
            return
        self._aborted = by_cupy == "abort"
        if self.cupy is not None:
            getattr(self.cupy, by_cupy)()
            return
        self._held.value = None
        code = native(handle)
        if not self._aborted:
            self.nccl.check(code, "ncclCommDestroy")


def communicators_of(nccl: Nccl, devices: Sequence[int]) -> list[Communicator]:
    """Return one communicator for each device, in rank order, all in this process.

    As ncclCommInitAll makes them (NVIDIA/nccl, src/init.cc), which CuPy calls without letting go of the
    interpreter: nobody could act while it hangs.
    """
    begun: list[Communicator] = []
    unique_id = nccl.unique_id()
    try:
        with nccl.group():
            for rank, device in enumerate(devices):
                begun.append(communicator_of(nccl, len(devices), unique_id, rank, device))
    except BaseException:
        for communicator in begun:  # nobody else knows them
            communicator.abort()
        raise
    return begun


def communicator_of(nccl: Nccl, ranks: int, unique_id: bytes, rank: int, device: int) -> Communicator:
    """Return this process's communicator as ``rank`` of ``ranks``, when all have come."""
    nccl.runtime.setDevice(device)
    kind = nccl.module.NcclCommunicator
    try:
        try:
            return Communicator(nccl, cupy=kind(ranks, unique_id, rank))
        except TypeError:  # before 14
            signed = tuple(byte - 256 * (byte > 127) for byte in unique_id)
            return Communicator(nccl, cupy=kind(ranks, signed, rank))
    except Exception as error:
        raise nccl.failure(error, "ncclCommInitRank") from None


MOST_KEPT = 16
"""Groupings whose communicators are kept besides that of all ranks: more than a suite measures in turn, and
each takes memory of its devices."""

ByRank = dict[int, Communicator]
"""Communicators of this process's ranks, by their rank in the team."""


class Communicators:
    """All communicators of this process's ranks. Collective: every process asks for the same in turn.

    devices: the device of each of the team's ranks that this process drives.
    """

    def __init__(self, nccl: Nccl, devices: Mapping[int, int], ranks: int, exchange: ControlChannel) -> None:
        self._nccl = nccl
        self._devices = dict(devices)
        self._exchange = exchange
        self._made: dict[tuple[int, Groups], ByRank] = {}
        self._all: Groups = (tuple(range(ranks)),)
        self._world = (0, self._all)

    def world(self) -> ByRank:
        """Return those of all ranks together; made the first time, and again after ``abort``."""
        if self._world not in self._made:
            self._made[self._world] = self._new(self._all[0])
        return self._made[self._world]

    def of(self, stream: int, groups: Groups) -> ByRank:
        """Return those of ``groups``, () for all ranks together; each stream has communicators of its own."""
        key = (stream, groups or self._all)
        world = self.world()  # it is one of those asked for, or what they are split from
        if key == self._world:
            return world
        if key not in self._made:
            # Give up what was used longest ago; nothing of it may run. Every process gives up the same.
            kept = [one for one in self._made if one != self._world]
            for oldest in kept[: max(0, len(kept) - MOST_KEPT + 1)]:
                for communicator in self._made.pop(oldest).values():
                    communicator.destroy()
            self._made[key] = self._split(key[1])
        self._made[key] = self._made.pop(key)  # last, so that what was used longest ago comes first
        return self._made[key]

    def _new(self, members: tuple[int, ...]) -> ByRank:
        """Return a communicator of ``members`` by a unique id, which the process of the first one makes."""
        own = [rank for rank in members if rank in self._devices]
        if len(own) == len(members):
            made = communicators_of(self._nccl, [self._devices[rank] for rank in own])
            return dict(zip(own, made, strict=True))
        # Where processes drive one rank each, the first member's number is its process's.
        starts = members[0] in self._devices
        unique_id = self._exchange.broadcast(self._nccl.unique_id() if starts else None, members[0])
        made = [
            communicator_of(self._nccl, len(members), unique_id, members.index(rank), self._devices[rank])
            for rank in own
        ]
        return dict(zip(own, made, strict=True))

    def _split(self, groups: Groups) -> ByRank:
        world = self.world()
        if not self._nccl.has("ncclCommSplit"):
            return {rank: one for members in groups for rank, one in self._new(members).items()}
        places = {
            rank: (number, members.index(rank)) for number, members in enumerate(groups) for rank in members
        }
        with self._nccl.group():
            parts = {rank: one.split(*places.get(rank, (NO_COLOUR, 0))) for rank, one in world.items()}
        return {rank: part for rank, part in parts.items() if part}

    def every(self) -> list[Communicator]:
        """Return all that there are."""
        return [one for by_rank in self._made.values() for one in by_rank.values()]

    def failures(self) -> list[str]:
        """Return what NCCL says of communicators that failed, each once."""
        return list(dict.fromkeys(filter(None, (one.failure() for one in self.every()))))

    def abort(self) -> None:
        """End everything that runs on any of them, and forget them."""
        self._end(Communicator.abort)

    def close(self) -> None:
        """Give all up after what runs has ended."""
        self._end(Communicator.destroy)

    def _end(self, how: Callable[[Communicator], None]) -> None:
        ending = self.every()
        self._made.clear()
        for communicator in reversed(ending):  # parts before what they were split from
            with suppress(Exception):  # one that does not end must not keep the others from it
                how(communicator)
