"""What a built library tells of itself: its structures, and the kernels' arithmetic alone."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ccbench.backends.kernels import abi
from ccbench.backends.kernels.host_engine import loaded


def layout(path: Path) -> dict[str, int]:
    """Sizes and offsets of the structures as a built library has them."""
    function = loaded(path).ccb_host_layout
    function.restype = ctypes.c_char_p
    lines = function().decode().splitlines()
    return {name: int(value) for name, value in (line.split() for line in lines)}


def words_combined(
    path: Path, dtype: str, op: str, received: NDArray[np.uint64], own: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    """The kernels' arithmetic alone: words of elements combined, as a built library does it."""
    return _words(path, dtype, op, 1, received, own)


def words_finished(path: Path, dtype: str, ranks: int, total: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The kernels' division of an average's total alone."""
    return _words(path, dtype, "avg", ranks, total, None)


def _words(
    path: Path, dtype: str, op: str, ranks: int, first: NDArray[np.uint64], second: NDArray[np.uint64] | None
) -> NDArray[np.uint64]:
    first = np.ascontiguousarray(first)
    second = None if second is None else np.ascontiguousarray(second)
    result = np.empty_like(first)
    loaded(path).ccb_host_words(
        ctypes.c_int(abi.type_number(dtype)),
        ctypes.c_int(abi.op_number(op)),
        ctypes.c_int(ranks),
        ctypes.c_longlong(len(first)),
        ctypes.c_void_p(first.ctypes.data),
        ctypes.c_void_p(None if second is None else second.ctypes.data),
        ctypes.c_void_p(result.ctypes.data),
    )
    return result
