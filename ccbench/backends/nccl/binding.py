"""NCCL as CuPy has it: its wrapper where that has a call, and for the rest the very library that CuPy loaded.

Everything below this module may be a stand-in: ``cupy.cuda.nccl``, ``cupy.cuda.runtime``, and an object with
the library's functions as ctypes gives them.
"""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from ccbench.backends.base import CannotRun, OutOfMemory
from ccbench.backends.nccl.calls import (
    DTYPE_SINCE,
    DTYPES,
    FUNCTIONS,
    INVALID_ARGUMENT,
    INVALID_USAGE,
    OPS,
    RESULTS,
    SIMULATION_MAGIC,
    SUCCESS,
    UNDEFINED_FLOAT,
    SimulationInfo,
    declare,
    version_text,
)
from ccbench.errors import BackendUnavailable, CcbenchError, MissingDependency, UsageError
from ccbench.machine.files import Files
from ccbench.machine.software import install_line

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
        self._refuse_another_library()

    def _refuse_another_library(self) -> None:
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
        """Whether this NCCL has the function ``call`` of ``calls.FUNCTIONS``."""
        return self.version >= FUNCTIONS[call][0] and getattr(self.native, call, None) is not None

    def function(self, call: str) -> Any:
        """Return the C function; CannotRun says from which version on there is one."""
        if not self.has(call):
            first = version_text(FUNCTIONS[call][0])
            raise CannotRun(f"NCCL {self.version_text} has no {call}, which came with {first}; {INSTALL}")
        return getattr(self.native, call)

    def dtype_number(self, dtype: str) -> int:
        """Return NCCL's number of ccbench's ``dtype``; CannotRun where this NCCL does not have it."""
        if dtype not in DTYPES:
            raise UsageError(f"dtype: NCCL has no {dtype!r}; one of {', '.join(DTYPES)}")
        since = DTYPE_SINCE.get(dtype, 0)
        if self.version < since:
            raise CannotRun(
                f"NCCL {self.version_text} has no {dtype}, which came with {version_text(since)}; {INSTALL}"
            )
        return DTYPES[dtype]

    def op_number(self, op: str | int) -> int:
        """Return NCCL's number of ``op``; one from ``Communicator.premultiplied`` is a number already."""
        if isinstance(op, int):
            return op
        if op not in OPS:
            raise UsageError(f"op: NCCL has no {op!r} by name; one of {', '.join(OPS)}")
        return OPS[op]

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
        self._by_cupy(self.module.groupStart, "ncclGroupStart")
        try:
            yield
        except BaseException:
            # A call without a communicator fails the group, at any depth, so that nothing of it runs.
            self.native.ncclBroadcast(None, None, 0, 0, 0, None, None)
            with suppress(NcclFailed):
                self._by_cupy(self.module.groupEnd, "ncclGroupEnd")
            raise
        if end is None:
            self._by_cupy(self.module.groupEnd, "ncclGroupEnd")
        else:
            end()

    def _by_cupy(self, function: Callable[[], Any], call: str) -> Any:
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
        made = self._by_cupy(self.module.get_unique_id, "ncclGetUniqueId")
        if isinstance(made, bytes):
            return made
        return bytes(byte & 0xFF for byte in made)  # CuPy before 14 gives a tuple of signed chars


def _text(raw: Any) -> str:
    return raw.decode(errors="replace") if isinstance(raw, bytes) else str(raw or "")


def loaded_library(maps: str) -> str:
    """The file of the NCCL library in ``maps`` (text of /proc/self/maps), '' where there is none.

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
