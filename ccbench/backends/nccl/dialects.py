"""Dialects: libraries of NCCL's shape as tables of their functions, types, operations and results.

Such a library has a unique id, communicators made by it, and calls on a stream. The core names each function
as NCCL does; a dialect says what it is called in its library, since which version, and which arguments it
takes in which order. In all of them the communicator is the last argument but one, and the stream the last. A
library of the same shape is one ``Dialect`` here; what it lacks is refused by name when a case asks for it.

Source of NCCL's table is ``nccl.h`` of the release named beside each (https://github.com/NVIDIA/nccl,
src/nccl.h.in); ``tests/backends/nccl/recorded`` keeps what the released wheels' headers declare, and a test
lays this table beside it. Versions are written as ncclGetVersion gives them: 22809 is 2.28.9.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from ctypes import (
    POINTER,
    Structure,
    byref,
    c_char,
    c_char_p,
    c_float,
    c_int,
    c_size_t,
    c_uint,
    c_uint64,
    c_void_p,
)
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from ccbench.machine.software import install_line


class SimulationInfo(Structure):
    """ncclSimInfo_v22200. estimated_time: microseconds; -1 where NCCL has no estimate."""

    _fields_ = (
        ("size", c_size_t),
        ("magic", c_uint),
        ("version", c_uint),
        ("estimated_time", c_float),
    )


class CollectiveConfig(Structure):
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


class UniqueId(Structure):
    """A unique id passed by value: as large as the largest, which callees of smaller ones do not notice."""

    _fields_ = (("data", c_char * 4096),)


ARGUMENTS: dict[str, Any] = {
    "id": UniqueId,
    **dict.fromkeys(("send", "recv", "buffer", "comm", "stream"), c_void_p),
    **dict.fromkeys(("address", "config", "scalar", "handle", "id*"), c_void_p),
    **dict.fromkeys(("count", "size"), c_size_t),
    **dict.fromkeys(("ranks", "rank"), c_int),
    **dict.fromkeys(
        ("dtype", "op", "root", "peer", "colour", "key", "flags", "result", "residence"), c_int
    ),
    **dict.fromkeys(("number*", "op*"), POINTER(c_int)),
    **dict.fromkeys(("comm*", "address*", "handle*"), POINTER(c_void_p)),
    "simulation*": POINTER(SimulationInfo),
    "name": c_char_p,
    "text*": POINTER(c_char_p),
    "texts*": POINTER(POINTER(c_char_p)),
}
"""Word in a dialect's table -> type in C; a star marks an address, mostly of what the function writes.

buffer: the only one, of data that stay where they are at a root. id: by value. What is unsigned in a library
is signed here, as in NCCL: all numbers are small."""


@dataclass(frozen=True)
class Function:
    """A function of a library. since: its first version. arguments: words of ARGUMENTS, in order.

    name: in the library. is_text: it returns text; all others return a result's number.
    """

    name: str
    since: int
    arguments: tuple[str, ...]
    is_text: bool = False

    @cached_property
    def types(self) -> list[Any]:
        """Types in C of the arguments."""
        return [ARGUMENTS[word] for word in self.arguments]


@dataclass(frozen=True, eq=False)
class Dialect:
    """One library of NCCL's shape.

    name: of its backend. label: in sentences. files: names of its library, for the loader. oldest: version
    that is known well enough. functions: by NCCL's names. dtype_since: first versions of types that came
    later. ops: ``premulsum`` has no number of its own: one is made for every scalar. refusals: results for
    what the library does not take. version_text: a version's number in words. id_bytes: of a unique id.
    companions: files beside the library that it opens by name.
    """

    name: str
    label: str
    files: tuple[str, ...]
    install: str
    oldest: int
    functions: Mapping[str, Function]
    dtypes: Mapping[str, int]
    dtype_since: Mapping[str, int]
    ops: Mapping[str, int]
    results: Mapping[int, str]
    refusals: tuple[int, ...]
    in_progress: int
    version_text: Callable[[int], str]
    id_bytes: int = 128
    companions: tuple[str, ...] = ()

    def version_of(self, native: Any) -> int:
        """Return the version that the library ``native`` gives, 0 where it gives none."""
        version = c_int(0)
        if row := self.functions.get("ncclGetVersion"):
            getattr(native, row.name)(byref(version))
        return version.value


def nccl_version_text(version: int) -> str:
    """Return ``2.28.9`` for 22809; the numbers were made otherwise before 2.9 (2804)."""
    base = 10_000 if version >= 10_000 else 1000
    return f"{version // base}.{version % base // 100}.{version % 100}"


def library_folder(dialect: Dialect) -> str:
    """Return the folder of Python's environment or LD_LIBRARY_PATH that has the library; '' where none has.

    Wheels of oneCCL put it into the environment's ``lib``, those installed with ``pip --target`` beside it.
    """
    folders = [os.path.join(place, "lib") for place in (sys.prefix, *sys.path)]
    folders += filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep))
    return next(
        (
            folder
            for folder in folders
            if os.path.exists(os.path.join(folder, dialect.files[0]))
        ),
        "",
    )


def functions(
    table: str, prefix: str = "nccl", texts: tuple[str, ...] = ()
) -> dict[str, Function]:
    """Read a table: on each line NCCL's name without ``nccl``, the first version, the arguments.

    prefix: of the library's names. A line whose function has another name there says it after a slash.
    """
    rows = {}
    for line in filter(str.strip, table.splitlines()):
        names, since, *arguments = line.split()
        ours, _, theirs = names.partition("/")
        name = f"{prefix}{theirs or ours}"
        rows[f"nccl{ours}"] = Function(name, int(since), tuple(arguments), ours in texts)
    return rows


# -- NCCL ----------------------------------------------------------------------------------------------------

CONFIGURABLE_SINCE = 23102

CONFIGURABLE = (
    *("ncclAllReduce", "ncclReduce", "ncclBroadcast", "ncclAllGather", "ncclReduceScatter"),
    *("ncclAlltoAll", "ncclGather", "ncclScatter"),
)
"""Collectives with a form that takes a CollectiveConfig at last; the first five have several algorithms."""

NCCL_TEXTS = ("GetErrorString", "GetLastError")

NCCL_FUNCTIONS = functions(
    """
    GetVersion           20304 number*
    GetErrorString       20000 result
    GetLastError         21304 comm
    CommDestroy          20000 comm
    CommAbort            20402 comm
    CommGetAsyncError    20402 comm number*
    CommCount            20000 comm number*
    CommUserRank         20000 comm number*
    CommSplit            21801 comm colour key comm* config
    MemAlloc             21903 address* size
    MemFree              21903 address
    CommRegister         21903 comm address size handle*
    CommDeregister       21903 comm handle
    CommWindowRegister   22703 comm address size handle* flags
    CommWindowDeregister 22703 comm handle
    RedOpCreatePreMulSum 21104 op* scalar dtype residence comm
    RedOpDestroy         21104 op comm
    GroupStart           20000
    GroupEnd             20000
    GroupSimulateEnd     22203 simulation*
    ParamGetAllParameterKeys 23007 texts* number*
    ParamGetParameter    23007 name text* number*
    AllReduce            20000 send recv count dtype op comm stream
    Reduce               20000 send recv count dtype op root comm stream
    Broadcast            20202 send recv count dtype root comm stream
    AllGather            20000 send recv count dtype comm stream
    ReduceScatter        20000 send recv count dtype op comm stream
    Send                 20703 send count dtype peer comm stream
    Recv                 20703 recv count dtype peer comm stream
    AlltoAll             22803 send recv count dtype comm stream
    Gather               22803 send recv count dtype root comm stream
    Scatter              22803 send recv count dtype root comm stream
    """,
    texts=NCCL_TEXTS,
)
NCCL_FUNCTIONS |= {
    f"{name}Config": Function(
        f"{name}Config", CONFIGURABLE_SINCE, (*NCCL_FUNCTIONS[name].arguments, "config")
    )
    for name in CONFIGURABLE
}

NCCL_TYPES = (
    *("int8", "uint8", "int32", "uint32", "int64", "uint64"),
    *("float16", "float32", "float64", "bfloat16", "float8_e4m3", "float8_e5m2"),
)
"""ncclDataType_t by ccbench's names, in its order."""

NCCL_RESULTS = (
    *("Success", "UnhandledCudaError", "SystemError", "InternalError"),
    *("InvalidArgument", "InvalidUsage", "RemoteError", "InProgress", "Timeout"),
)
"""ncclResult_t, in its order; the last came with 2.30."""

NCCL = Dialect(
    name="nccl",
    label="NCCL",
    files=("libnccl.so.2",),
    install=f"{install_line('cuda13')} (cuda12, as the driver has it) brings CuPy and the nvidia-nccl wheel",
    oldest=21403,  # 2.14.3: the oldest whose header the table was compared with
    functions=NCCL_FUNCTIONS,
    dtypes={name: number for number, name in enumerate(NCCL_TYPES)},
    dtype_since={"bfloat16": 21003, "float8_e4m3": 22403, "float8_e5m2": 22403},
    ops={"sum": 0, "prod": 1, "max": 2, "min": 3, "avg": 4},
    results={number: f"nccl{name}" for number, name in enumerate(NCCL_RESULTS)},
    refusals=(4, 5),  # ncclInvalidArgument, ncclInvalidUsage
    in_progress=7,
    version_text=nccl_version_text,
)

# -- RCCL ----------------------------------------------------------------------------------------------------

RCCL = replace(
    NCCL,
    name="rccl",
    label="RCCL",
    files=("librccl.so.1",),
    install=f"ROCm brings RCCL, and {install_line('rocm7')} CuPy for it",
)
"""NCCL's names, types and results, and the number of the NCCL that a release follows, which ncclGetVersion
gives (projects/rccl/src/nccl.h.in of github.com/ROCm/rocm-systems). CuPy for ROCm has it as
``cupy.cuda.nccl``."""

# -- oneCCL --------------------------------------------------------------------------------------------------

ONECCL_RESULTS = (
    *(
        "Success",
        "Error",
        "SystemError",
        "InternalError",
        "InvalidArgument",
        "InvalidUsage",
        "InProgress",
    ),
    *(
        "FailureGPU",
        "FailureCPU",
        "AllocFailureCPU",
        "AllocFailureGPU",
        "PluginException",
        "NotImplemented",
    ),
)
"""onecclResult_t, in its order."""

ONECCL = Dialect(
    name="oneccl",
    label="oneCCL",
    files=("libccl.so.2",),
    companions=("libccl_legacy_cpu.so",),
    install=f"{install_line('oneccl')} (1.8 GB)",
    oldest=0,
    functions=functions(
        """
        GetVersion      0 number*
        GetErrorString  0 result
        GetLastError    0 comm
        GetUniqueId     0 id*
        CommInitRank    0 comm* count id rank
        CommDestroy     0 comm
        CommCount       0 comm number*
        CommUserRank    0 comm number*
        CommSplit       0 comm colour key comm* config
        GroupStart      0
        GroupEnd        0
        AllReduce       0 send recv count dtype op comm stream
        Reduce          0 send recv count dtype op root comm stream
        Broadcast       0 send recv count dtype root comm stream
        AllGather       0 send recv count dtype comm stream
        ReduceScatter   0 send recv count dtype op comm stream
        AlltoAll/AllToAll 0 send recv count dtype comm stream
        Send            0 send count dtype peer comm stream
        Recv            0 recv count dtype peer comm stream
        """,
        "oneccl",
        NCCL_TEXTS,
    ),
    dtypes={name: number for number, name in enumerate(NCCL_TYPES[:10])},
    dtype_since={},
    ops={
        "sum": 0,
        "prod": 1,
        "max": 2,
        "min": 3,
    },  # avg: "Unsupported onecclRedOp_t value" of this plug-in
    results={number: f"oneccl{name}" for number, name in enumerate(ONECCL_RESULTS)},
    refusals=(4, 5, 12),  # InvalidArgument, InvalidUsage, NotImplemented
    in_progress=6,
    version_text=lambda version: (
        f"{version // 10_000}.{version % 10_000 // 100}.{version % 100}"
    ),
    id_bytes=4096,
)
"""Intel's library (include/oneapi/ccl/v2/ccl.h and types.h of github.com/uxlfoundation/oneCCL): NCCL's
numbers of types and operations, results of its own; 20211700 is 2021.17. Its header declares abort and
ncclCommGetAsyncError as not implemented."""
