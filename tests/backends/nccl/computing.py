"""What computes beside collectives on the double: cuBLAS as CuPy has it, and the kernel bound by memory."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ccbench.backends.nccl import overlap
from tests.backends.cuda.streams import Task

from .devices import COMPUTING_SECONDS, WorldRuntime

GEMM = [
    "handle",
    "transa",
    "transb",
    "m",
    "n",
    "k",
    "alpha",
    "A",
    "Atype",
    "lda",
    "B",
    "Btype",
    "ldb",
    "beta",
    "C",
    "Ctype",
    "ldc",
    "computeType",
    "algo",
]
"""What ``gemmEx`` of CuPy's binding takes, which a test compares with what was recorded of it."""


@dataclass
class CurrentStream:
    """``cupy.cuda.ExternalStream``: the current stream while it is entered, any number of times."""

    blas: FakeBlas
    stream: int
    before: int = 0

    def __enter__(self) -> None:
        self.before, self.blas.stream = self.blas.stream, self.stream

    def __exit__(self, *_: object) -> None:
        self.blas.stream = self.before


class FakeBlas:
    """``cupy.cuda.cublas`` of one process. handles: handle -> its device."""

    def __init__(self, runtime: WorldRuntime) -> None:
        self._runtime = runtime
        self.stream = 0
        self.handles: dict[int, int] = {}

    def on_stream(self, stream: int) -> CurrentStream:
        return CurrentStream(self, stream)

    def create(self) -> int:
        handle = self._runtime.new_handle()
        self.handles[handle] = self._runtime.getDevice()
        return handle

    def destroy(self, handle: int) -> None:
        del self.handles[handle]

    def gemmEx(self, *given: int) -> None:  # noqa: N802
        of = SimpleNamespace(**dict(zip(GEMM, given, strict=True)))
        assert (of.transa, of.transb, of.algo, of.computeType) == (0, 0, -1, 68)
        assert (of.Atype, of.Btype, of.Ctype) == (2, 2, 2)
        assert (of.lda, of.ldb, of.ldc) == (of.m, of.k, of.m)
        factors = [ctypes.c_float.from_address(at).value for at in (of.alpha, of.beta)]
        assert factors == [1.0, 0.0]
        device = self.handles[of.handle]
        assert self._runtime.getDevice() == device
        world = self._runtime.world
        for address, rows, columns in (
            (of.A, of.m, of.k),
            (of.B, of.k, of.n),
            (of.C, of.m, of.n),
        ):
            values = world.view(address, 2 * rows * columns, device).view(np.float16)
            assert address == of.C or np.all(np.isfinite(values[: 2 * columns]))
        assert world.streams[self.stream].device == device
        self._runtime._add(self.stream, Task(lambda: None, COMPUTING_SECONDS))


@pytest.fixture
def can_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    """Matrices and buffers are small; cuBLAS comes from ``with_blas``."""
    monkeypatch.setattr(overlap, "MATRIX_EDGE", 64)
    monkeypatch.setattr(overlap, "STREAM_BYTES", 1 << 16)


def with_blas(monkeypatch: pytest.MonkeyPatch, runtime: Any) -> FakeBlas:
    """Let computations find cuBLAS on this process's devices."""
    blas = FakeBlas(runtime)
    monkeypatch.setattr(overlap, "open_blas", lambda: (blas, blas.on_stream))
    return blas
