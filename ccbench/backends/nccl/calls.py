"""What NCCL's header says, as data: its functions, when each came, enumerations, and the two structures.

Source of everything here is ``nccl.h`` of the release named beside it (https://github.com/NVIDIA/nccl,
src/nccl.h.in); ``tests/backends/nccl/recorded`` keeps what the released wheels' headers declare, and a test
lays these tables beside it. Which function a collective calls is said by ``collectives.NATIVE``; the call is
made by ``communicators.Communicator.prepared``. Versions are written as ncclGetVersion gives them: 22809 is
2.28.9.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_float, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any

SUCCESS, INVALID_ARGUMENT, INVALID_USAGE, IN_PROGRESS = 0, 4, 5, 7

RESULTS = {
    0: "ncclSuccess",
    1: "ncclUnhandledCudaError",
    2: "ncclSystemError",
    3: "ncclInternalError",
    4: "ncclInvalidArgument",
    5: "ncclInvalidUsage",
    6: "ncclRemoteError",
    7: "ncclInProgress",
    8: "ncclTimeout",
}
"""ncclResult_t; the last came with 2.31."""

DTYPES = {
    "int8": 0,
    "uint8": 1,
    "int32": 2,
    "uint32": 3,
    "int64": 4,
    "uint64": 5,
    "float16": 6,
    "float32": 7,
    "float64": 8,
    "bfloat16": 9,
    "float8_e4m3": 10,
    "float8_e5m2": 11,
}
"""ncclDataType_t by ccbench's names."""

DTYPE_SINCE = {"bfloat16": 21003, "float8_e4m3": 22403, "float8_e5m2": 22403}

OPS = {"sum": 0, "prod": 1, "max": 2, "min": 3, "avg": 4}
"""ncclRedOp_t; ``premulsum`` has no number of its own: one is made for every scalar."""

FLOAT8_CAPABILITY = 90
"""Compute capability from which NCCL reduces float8: 9.0 (its documentation, "ncclDataType_t")."""

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
        ("minCTAs", c_int),
        ("maxCTAs", c_int),
        ("nvlsCTAs", c_int),
        ("cgaClusterSize", c_int),
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
        function = getattr(native, name, None)
        if function is not None:
            function.argtypes = arguments
            function.restype = c_char_p if name in TEXTS else c_int
