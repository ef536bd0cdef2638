"""How fast one core computes with each type: the rates that memory does not limit."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ccbench.dtypes import CPU_DTYPES, numpy_dtype
from ccbench.model.machine import ARITHMETIC, AVERAGE, arithmetic_key

BLOCK_BYTES = 32 << 10
"""Payload of one operation: its operands and result stay in the second cache level, and its call is
a small part of its time."""

KEYS = tuple(arithmetic_key(dtype, kind) for dtype in CPU_DTYPES for kind in ARITHMETIC)
"""What is timed, as SharedMemory.operation_bytes_per_second names it."""

Array = NDArray[Any]

_UFUNCS = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}


class Arithmetic:
    """Blocks of every type and what to do with them.

    They hold whole numbers of either sign between 1 and 100, in random order. So do the buffers of a
    launch, more or less, and that matters: operations on 16-bit floats branch on signs and on zeros, and
    take two to five times as long when that cannot be foreseen. None overflows, and none becomes so small
    that a processor takes longer over it.
    """

    def __init__(self) -> None:
        self._functions: dict[str, Callable[[], object]] = {}
        random = np.random.default_rng(1)
        for dtype in CPU_DTYPES:
            elements = BLOCK_BYTES // numpy_dtype(dtype).itemsize
            first, second = (
                (random.integers(1, 101, elements) * random.choice((-1, 1), elements)).astype(
                    numpy_dtype(dtype)
                )
                for _ in range(2)
            )
            for kind in ARITHMETIC:
                self._functions[arithmetic_key(dtype, kind)] = _function(kind, first, second)

    def seconds(self, key: str) -> float:
        """One operation of ``key``, after one that warms its block; key: one of KEYS."""
        function = self._functions[key]
        function()
        begin = time.perf_counter()
        function()
        return time.perf_counter() - begin


def _function(kind: str, first: Array, second: Array) -> Callable[[], object]:
    result = np.empty_like(first)
    if kind != AVERAGE:
        ufunc = _UFUNCS[kind]
        return lambda: ufunc(first, second, out=result)
    two = np.asarray(2).astype(first.dtype)
    if first.dtype.kind not in "iu":
        return lambda: np.divide(first, two, out=result)
    remainder = np.empty_like(first)

    def average() -> None:
        """Cut towards zero, as the CPU backend does it."""
        np.fmod(first, two, out=remainder)
        np.subtract(first, remainder, out=result)
        np.floor_divide(result, two, out=result)

    return average
