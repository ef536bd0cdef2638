"""A library of NCCL's shape as this process has it, and one communicator of it.

``dialects`` says what each function is called; here they are named as NCCL does. Collectives are called in
``collectives``. CuPy's wrapper serves where there is one and it has a call, and for the rest the very library
that CuPy loaded. Everything below this module may be a stand-in: ``cupy.cuda.nccl``,
``cupy.cuda.runtime``, and an object with the library's functions as ctypes gives them.

Communicators (``communicators`` keeps those of a process's ranks) are blocking. NCCL starts a thread for every
launch on a communicator that does not block (src/group.cc), which would be timed; so errors are asked for while
streams are waited for, and a watchdog aborts what blocks.
"""

from __future__ import annotations

import ctypes
import os
import re
import warnings
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import numpy as np

from ccbench.backends.base import CannotRun, OutOfMemory
from ccbench.backends.nccl.dialects import (
    CONFIGURABLE_SINCE,
    NCCL,
    CollectiveConfig,
    Dialect,
    SimulationInfo,
    UniqueId,
    library_folder,
)
from ccbench.dtypes import numpy_dtype
from ccbench.errors import BackendUnavailable, CcbenchError, MissingDependency
from ccbench.machine.files import Files

SUCCESS = 0
"""Of all dialects."""

MISSING_LIBRARY = re.compile(r"([\w.+-]+): cannot open shared object file")
"""Beginning of what the loader (ld.so) says of a library that another one needs."""

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


def call_config(algorithms: str, cta_policy: int | None) -> CollectiveConfig:
    """NCCL_COLLCONFIG_INITIALIZER with a list of algorithms, of which NCCL takes one or refuses the call.

    An empty list leaves the algorithm to NCCL, None the policy to the communicator.
    """
    return CollectiveConfig(
        ctypes.sizeof(CollectiveConfig),
        CONFIG_MAGIC,
        CONFIGURABLE_SINCE,
        None,
        UNDEFINED_INT,
        UNDEFINED_INT,
        UNDEFINED_INT,
        UNDEFINED_INT,
        algorithms.encode() or None,
        1,
        UNDEFINED_INT if cta_policy is None else cta_policy,
        0,
    )


def declare(native: Any, dialect: Dialect) -> None:
    """Tell ctypes the types of every function that the library ``native`` has."""
    for row in dialect.functions.values():
        # Untyped, ctypes would hand addresses on as C ints and cut them to 32 bits.
        function = getattr(native, row.name, None)
        if function is not None:
            function.argtypes = row.types
            function.restype = ctypes.c_char_p if row.is_text else ctypes.c_int


class LibraryFailed(CcbenchError):
    """A call failed; the text has the library's own words.

    code: its result. call: the function. refused: it would not take what it was asked, such as an algorithm
    that it does not have for the collective.
    """

    def __init__(self, text: str, code: int, call: str, refused: bool = False) -> None:
        super().__init__(text)
        self.code = code
        self.call = call
        self.refused = refused


class Library:
    """A library as this process has it; used by one thread.

    native: the library by ctypes. module: CuPy's wrapper of it, ``cupy.cuda.nccl``; None of one that CuPy
    does not know. runtime: ``cupy.cuda.runtime``. version: as ncclGetVersion gives it, 22809 for 2.28.9; 0 of
    a library that does not tell. path: its file, '' where that is not known.
    """

    def __init__(
        self,
        dialect: Dialect,
        native: Any,
        module: Any = None,
        runtime: Any = None,
        path: str = "",
    ):
        self.dialect = dialect
        self.native = native
        self.module = module
        self.runtime = runtime
        self.path = path
        declare(native, dialect)
        self.version = dialect.version_of(native)
        label, text = dialect.label, dialect.version_text
        # Calls of one library on communicators of another would corrupt both.
        if module is not None and self.version != int(module.get_version()):
            raise BackendUnavailable(
                f"{self.path or f'the {label} library'} says it is {self.version_text}, CuPy uses "
                f"{text(int(module.get_version()))}: two {label} libraries are loaded; keep one on "
                "LD_LIBRARY_PATH"
            )
        if self.version < dialect.oldest:
            raise BackendUnavailable(
                f"{label} {self.version_text} is too old, {text(dialect.oldest)} or newer is needed; "
                f"{dialect.install}"
            )

    @property
    def version_text(self) -> str:
        """``2.28.9``."""
        return self.dialect.version_text(self.version)

    # -- what there is -----------------------------------------------------------------------------------

    def has(self, call: str) -> bool:
        """Return True if this library has what NCCL names ``call``."""
        row = self.dialect.functions.get(call)
        return row is not None and self.version >= row.since and hasattr(self.native, row.name)

    def function(self, call: str) -> Any:
        """Return the C function; CannotRun says from which version on there is one, or that there is none."""
        dialect, row = self.dialect, self.dialect.functions.get(call)
        if row is None:
            raise CannotRun(f"{dialect.label} has no function such as {call}")
        if not self.has(call):
            first = f", which came with {dialect.version_text(row.since)}" if row.since else ""
            raise CannotRun(
                f"{dialect.label} {self.version_text} has no {row.name}{first}; {dialect.install}"
            )
        return getattr(self.native, row.name)

    def dtype_number(self, dtype: str) -> int:
        """Return the library's number of ccbench's ``dtype``; CannotRun where it does not have it."""
        dialect, since = self.dialect, self.dialect.dtype_since.get(dtype, 0)
        if dtype not in dialect.dtypes:
            raise CannotRun(
                f"{dialect.label} has no {dtype}; it has {', '.join(dialect.dtypes)}"
            )
        if self.version < since:
            raise CannotRun(
                f"{dialect.label} {self.version_text} has no {dtype}, which came with "
                f"{dialect.version_text(since)}; {dialect.install}"
            )
        return dialect.dtypes[dtype]

    def op_number(self, op: str | int) -> int:
        """Return the library's number of ``op``; one of ``Communicator.premultiplied`` is one already."""
        if isinstance(op, int):
            return op
        if op not in self.dialect.ops:
            raise CannotRun(
                f"{self.dialect.label} has no {op}; it has {', '.join(self.dialect.ops)}"
            )
        return self.dialect.ops[op]

    # -- errors ------------------------------------------------------------------------------------------

    def words(self, code: int, handle: int = 0) -> str:
        """Return what the library says of a result: its name, its meaning, the last error it wrote down."""
        calls = [("ncclGetErrorString", code), ("ncclGetLastError", handle or None)]
        meaning, last = [
            _text(self.function(call)(argument)) if self.has(call) else ""
            for call, argument in calls
        ]
        name = self.dialect.results.get(code, f"result {code}")
        return f"{name}: {meaning}" + (f" ({' '.join(last.split())})" if last.strip() else "")

    def check(self, code: int, call: str, handle: int = 0) -> None:
        """Raise LibraryFailed unless ``code`` is ncclSuccess."""
        if code != SUCCESS:
            raise self.failed(code, call, handle)

    def call(self, call: str, *arguments: Any, handle: int = 0) -> None:
        """Call a C function; CannotRun where there is none, LibraryFailed where it fails."""
        self.check(self.function(call)(*arguments), call, handle)

    def failed(self, code: int, call: str, handle: int = 0) -> LibraryFailed:
        """Return the error for a result of ``call``."""
        row = self.dialect.functions.get(call)
        text = f"{row.name if row else call}: {self.words(code, handle)}"
        return LibraryFailed(text, code, call, code in self.dialect.refusals)

    def failure(self, error: Exception, call: str) -> Exception:
        """Return what an exception of CuPy's means: LibraryFailed with NCCL's words, or the exception itself.

        CuPy knows results up to 6 by name; beyond, making its error fails with a KeyError of the number.
        """
        code = getattr(error, "status", None)
        if (
            code is None
            and isinstance(error, KeyError)
            and error.args
            and error.args[0] in self.dialect.results
        ):
            code = error.args[0]
        if code is None or type(error).__name__ not in ("NcclError", "KeyError"):
            return error
        return self.failed(int(code), call)

    def settings(self, variables: Container[str]) -> dict[str, str]:
        """Return the values in effect of those ``variables`` that the library tells of.

        2.30 to 2.32 tell of those of their log and of few more, which they register when they are loaded
        (DEFINE_NCCL_PARAM of src/include/param/param.h); before, of none.
        """
        list_keys = "ncclParamGetAllParameterKeys"
        if not self.has(list_keys):
            return {}
        keys, value, count = (
            ctypes.POINTER(ctypes.c_char_p)(),
            ctypes.c_char_p(),
            ctypes.c_int(),
        )
        self.call(list_keys, ctypes.byref(keys), ctypes.byref(count))
        values: dict[str, str] = {}
        # One that it does not know is not asked for: that would be a line in the user's log.
        for key in sorted(keys[: count.value]):
            if _text(key) in variables:
                self.call(
                    "ncclParamGetParameter", key, ctypes.byref(value), ctypes.byref(count)
                )
                values[_text(key)] = _text(value.value)
        return values

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
            self.call("ncclMemFree", address)

    # -- groups ------------------------------------------------------------------------------------------

    @contextmanager
    def group(self, end: Callable[[], None] | None = None) -> Iterator[None]:
        """Have calls inside happen together when it ends; groups may be nested. end: instead of its end.

        What one thread asks of several communicators must be asked in one group, or the first call waits
        for the second for ever. An exception inside drops the calls.
        """
        self._call("ncclGroupStart", "groupStart")
        try:
            yield
        except BaseException:
            # A call without a communicator fails the group, at any depth, so that nothing of it runs.
            self.function("ncclBroadcast")(None, None, 0, 0, 0, None, None)
            with suppress(LibraryFailed):
                self._call("ncclGroupEnd", "groupEnd")
            raise
        if end is None:
            self._call("ncclGroupEnd", "groupEnd")
        else:
            end()

    def _call(self, call: str, by_cupy: str) -> None:
        """Call a function without arguments, by CuPy where it wraps the library."""
        if self.module is not None:
            self.by_cupy(getattr(self.module, by_cupy), call)
        else:
            self.call(call)

    def by_cupy(self, function: Callable[[], Any], call: str) -> Any:
        """Call ``function`` of CuPy's; LibraryFailed with NCCL's words where NCCL fails."""
        try:
            return function()
        except Exception as error:
            raise self.failure(error, call) from None

    def simulate(self, calls: Iterable[Callable[[], None]]) -> float | None:
        """Return NCCL's own estimate, in seconds, of all ``calls`` in one group.

        Nothing is moved. None where NCCL has no estimate (before 2.22, or not for these calls). Raises
        LibraryFailed as the calls themselves do.
        """
        name = "ncclGroupSimulateEnd"
        if not self.has(name):
            return None
        info = SimulationInfo(
            ctypes.sizeof(SimulationInfo), SIMULATION_MAGIC, self.version, UNDEFINED_FLOAT
        )
        with self.group(lambda: self.call(name, ctypes.byref(info))):
            for call in calls:
                call()
        # Microseconds, as the tuner's times (NCCL user guide, "ncclSimInfo_t"); negative where not known.
        return float(info.estimated_time) * 1e-6 if info.estimated_time > 0 else None

    # -- communicators -----------------------------------------------------------------------------------

    def unique_id(self) -> bytes:
        """Return bytes that all ranks of one communicator must be given."""
        if self.module is None:
            made = ctypes.create_string_buffer(self.dialect.id_bytes)
            self.call("ncclGetUniqueId", made)
            return made.raw
        by_cupy = self.by_cupy(self.module.get_unique_id, "ncclGetUniqueId")
        if isinstance(by_cupy, bytes):
            return by_cupy
        return bytes(
            byte & 0xFF for byte in by_cupy
        )  # CuPy before 14 gives a tuple of signed chars


def _text(raw: Any) -> str:
    return raw.decode(errors="replace") if isinstance(raw, bytes) else str(raw or "")


def loaded_library(maps: str, dialect: Dialect = NCCL) -> str:
    """Return the library's file in ``maps`` (text of /proc/self/maps), '' where there is none.

    BackendUnavailable where there are several.
    """
    stems = tuple(name.partition(".so")[0] + ".so" for name in dialect.files)
    files = dict.fromkeys(
        fields[5]
        for fields in (line.split(maxsplit=5) for line in maps.splitlines())
        if len(fields) == 6 and fields[5].rsplit("/", 1)[-1].startswith(stems)
    )
    if len(files) > 1:
        raise BackendUnavailable(
            f"several {dialect.label} libraries are loaded: {', '.join(files)}; keep one on LD_LIBRARY_PATH"
        )
    return next(iter(files), "")


def open_by_loader(dialect: Dialect, load: Callable[..., Any] = ctypes.CDLL) -> Library:
    """Return a library that CuPy does not know, from the folders of Python's packages or the system's.

    Its wheel puts it where the loader does not look: what it needs, and what it opens by name, is loaded.
    Raises MissingDependency where there is none.
    """
    folder = library_folder(dialect)

    def needed(name: str) -> Any:
        path = os.path.join(folder, name)
        try:
            return load(path if os.path.exists(path) else name, mode=ctypes.RTLD_GLOBAL)
        except OSError as error:
            missing = MISSING_LIBRARY.match(str(error))
            if (
                not missing
                or not os.path.exists(os.path.join(folder, missing[1]))
                or missing[1] == name
            ):
                raise
            needed(missing[1])  # it lies beside the one that needs it
            return needed(name)

    try:
        native, *_ = [needed(name) for name in (*dialect.files, *dialect.companions)]
    except OSError as error:
        raise MissingDependency(
            f"{dialect.label} cannot be loaded ({error}); {dialect.install}"
        ) from None
    return Library(dialect, native, path=os.path.join(folder, dialect.files[0]))


def open_by_cupy(
    dialect: Dialect = NCCL,
    load: Callable[[str], Any] = ctypes.CDLL,
    files: Files | None = None,
) -> Library:
    """Return the library as CuPy finds it: its wheel's, else the system's.

    Raises MissingDependency without CuPy or the library, BackendUnavailable where that is too old or there
    twice.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # CuPy warns where NCCL is absent; said below
            from cupy.cuda import nccl, runtime  # type: ignore[import-not-found,unused-ignore]

            available = bool(nccl.available)
    except ImportError as error:
        raise MissingDependency(
            f"CuPy's {dialect.label} cannot be imported ({error}); {dialect.install}"
        ) from None
    if not available:
        raise MissingDependency(f"CuPy finds no {dialect.label} library; {dialect.install}")
    nccl.get_version()  # loads the library, where importing alone has not
    path = loaded_library((files or Files()).text("/proc/self/maps") or "", dialect)
    return Library(dialect, load(path or dialect.files[0]), nccl, runtime, path)


class Communicator:
    """One rank of a communicator; made by ``communicator_of`` and by ``split``.

    cupy: CuPy's NcclCommunicator, or None of a part of another one: then ``held`` is what NCCL writes the
    handle into, at the end of the group at the latest.
    """

    def __init__(
        self, library: Library, *, cupy: Any = None, held: ctypes.c_void_p | None = None
    ) -> None:
        self.library = library
        self.cupy = cupy
        self._held = (
            ctypes.c_void_p() if held is None else held
        )  # one that holds nothing yet is false
        self._kept: list[ctypes.c_void_p] = []
        self._aborted = False

    @property
    def handle(self) -> int:
        """ncclComm_t; 0 before the group that makes it has ended, and after the end."""
        return int((self.cupy.comm if self.cupy is not None else self._held.value) or 0)

    @property
    def rank(self) -> int:
        """Return this rank's number in the communicator."""
        return self._asked("ncclCommUserRank")

    @property
    def ranks(self) -> int:
        """Number of ranks in the communicator."""
        return self._asked("ncclCommCount")

    def _asked(self, call: str) -> int:
        answer = ctypes.c_int(-1)
        self._call(call, self.handle, ctypes.byref(answer))
        return answer.value

    def _call(self, call: str, *arguments: Any) -> None:
        self.library.call(call, *arguments, handle=self.handle)

    def check(self, code: int, call: str) -> None:
        """Raise LibraryFailed with this communicator's last error unless ``code`` is ncclSuccess."""
        self.library.check(code, call, self.handle)

    def failure(self) -> str:
        """Return NCCL's own words for what has failed, '' where nothing has; never waits."""
        if self._aborted or not self.handle or not self.library.has("ncclCommGetAsyncError"):
            return ""
        result = ctypes.c_int(SUCCESS)
        code = self.library.function("ncclCommGetAsyncError")(self.handle, ctypes.byref(result))
        code = code if code != SUCCESS else result.value
        return (
            ""
            if code in (SUCCESS, self.library.dialect.in_progress)
            else self.library.words(code, self.handle)
        )

    # -- operations, parts, memory -----------------------------------------------------------------------

    def premultiplied(self, scalar: float, dtype: str) -> int:
        """Return a new op: ``scalar`` times this rank's elements, then summed; ``release`` it at last."""
        number = self.library.dtype_number(dtype)
        value = np.asarray(scalar).astype(numpy_dtype(dtype)).reshape(1)
        made = ctypes.c_int(-1)
        words = (ctypes.byref(made), value.ctypes.data, number, SCALAR_ON_HOST, self.handle)
        self._call("ncclRedOpCreatePreMulSum", *words)
        return made.value

    def release(self, op: int) -> None:
        """Give up an op of ``premultiplied``; calls enqueued with it are not disturbed."""
        if self.handle:
            self._call("ncclRedOpDestroy", op, self.handle)

    def split(self, colour: int, key: int) -> Communicator | None:
        """Return a communicator of the ranks that give the same ``colour``, in the order of their keys.

        Every rank must call it; those with NO_COLOUR are in no part and get None. Where one thread has
        several ranks, in one group, after which the parts can be used.
        """
        held = ctypes.c_void_p()
        self._call("ncclCommSplit", self.handle, colour, key, ctypes.byref(held), None)
        if colour == NO_COLOUR:
            self._kept.append(held)  # NCCL writes into it when the group ends
            return None
        return Communicator(self.library, held=held)

    def register(self, address: int, size_bytes: int, symmetric: bool) -> ctypes.c_void_p:
        """Let NCCL use a buffer directly instead of copying through its own; return what it knows it by.

        It is written when the group has ended, and stays empty where NCCL cannot use the buffer.

        symmetric: all ranks must register as much, at the same place of the order of registrations, of memory
        from ``Library.allocate``; where one thread has several ranks, in one group. CannotRun where this NCCL
        cannot.
        """
        handle = ctypes.c_void_p()
        name = "ncclCommWindowRegister" if symmetric else "ncclCommRegister"
        more = (WINDOW_SYMMETRIC,) if symmetric else ()
        self._call(name, self.handle, address, size_bytes, ctypes.byref(handle), *more)
        return handle

    def deregister(self, registered: ctypes.c_void_p, symmetric: bool) -> None:
        """End a registration, before its memory is given back."""
        name = "ncclCommWindowDeregister" if symmetric else "ncclCommDeregister"
        if registered.value and self.handle:
            self._call(name, self.handle, registered.value)

    # -- the end -----------------------------------------------------------------------------------------

    def abort(self) -> None:
        """End everything that runs, at once; the communicator is gone. May itself hang."""
        self._end("abort", "ncclCommAbort")

    def destroy(self) -> None:
        """Give the communicator up after everything enqueued is over; safe to call twice."""
        if self.failure():
            # NCCL does not destroy one that has failed: it would leave the thread in a group
            # (ncclCommEnsureReady of src/init.cc).
            self.abort()
        else:
            self._end("destroy", "ncclCommDestroy")

    def _end(self, by_cupy: str, call: str) -> None:
        handle = self.handle
        if not handle or self._aborted:
            return
        self._aborted = by_cupy == "abort"
        if self.cupy is not None:
            getattr(self.cupy, by_cupy)()
            return
        self._held.value = None
        code = self.library.function(call)(handle)
        if not self._aborted:
            self.library.check(code, call)


def communicators_of(
    library: Library, ranks: int, unique_id: bytes, devices: Mapping[int, int]
) -> list[Communicator]:
    """Return the communicators of this process, by ``devices``: rank -> device; when all ``ranks`` have come.

    Several as ncclCommInitAll makes them (NVIDIA/nccl, src/init.cc), which CuPy calls without letting go of the
    interpreter: nobody could act while it hangs.
    """
    begun: list[Communicator] = []
    try:
        with library.group() if len(devices) > 1 else nullcontext():
            for rank, device in devices.items():
                begun.append(communicator_of(library, ranks, unique_id, rank, device))
    except BaseException:
        for communicator in begun:  # nobody else knows them
            communicator.abort()
        raise
    return begun


def communicator_of(
    library: Library, ranks: int, unique_id: bytes, rank: int, device: int
) -> Communicator:
    """Return this process's communicator as ``rank`` of ``ranks``, when all have come."""
    if library.runtime is not None:
        library.runtime.setDevice(device)
    if library.module is None:
        call, held = "ncclCommInitRank", ctypes.c_void_p()
        by_value = UniqueId.from_buffer_copy(unique_id.ljust(ctypes.sizeof(UniqueId), b"\0"))
        values = {
            "ranks": ranks,
            "count": ranks,
            "rank": rank,
            "id*": unique_id,
            "id": by_value,
        }
        values["comm*"] = ctypes.byref(held)
        words = library.dialect.functions[call].arguments
        library.call(call, *[values[word] for word in words])
        return Communicator(library, held=held)
    kind = library.module.NcclCommunicator
    try:
        try:
            return Communicator(library, cupy=kind(ranks, unique_id, rank))
        except TypeError:  # before 14
            signed = tuple(byte - 256 * (byte > 127) for byte in unique_id)
            return Communicator(library, cupy=kind(ranks, signed, rank))
    except Exception as error:
        raise library.failure(error, "ncclCommInitRank") from None
