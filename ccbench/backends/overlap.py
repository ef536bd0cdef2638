"""What a rank's processor computes while a collective goes on (mode ``overlap``), in small repetitions.

``matmul``: products of matrices that stay in the first caches: arithmetic alone. ``memory``: numbers copied
and changed through more memory than caches hold: what shares the memory's bandwidth with the collective.
"""

from __future__ import annotations

import numpy as np

MATMUL = "matmul"
MEMORY = "memory"

MATRIX_EDGE = 64
"""OpenBLAS starts no threads for products of at most 64 x 64 x 64 (interface/gemm.c: SMP_THRESHOLD_MIN x
GEMM_MULTITHREAD_THRESHOLD), so that a rank computes on its own processor, as its collective does."""

PRODUCTS = 4
"""Products in one repetition: some tens of microseconds."""

STREAM_BYTES = 32 << 20
"""Of each of two buffers: together more than a processor's share of a last cache."""

WINDOW_BYTES = 64 << 10
"""Bytes that one repetition reads, and as many that it writes: some tens of microseconds."""


class HostComputation:
    """A computation in repetitions of some tens of microseconds; every one is as much as any other."""

    def __init__(self, kind: str) -> None:
        """kind: ``matmul`` or ``memory``."""
        self._multiplies = kind == MATMUL
        shape = (PRODUCTS, MATRIX_EDGE, MATRIX_EDGE)
        generator = np.random.default_rng(20_26)
        self._left, self._right = (generator.random(shape, dtype=np.float32) for _ in range(2))
        self._product = np.empty(shape, np.float32)
        elements = STREAM_BYTES // 4 if kind == MEMORY else 0
        # Written at once: pages that are first touched by a repetition would make it a long one.
        self._source, self._target = (
            np.ones(elements, np.float32),
            np.ones(elements, np.float32),
        )
        self._begin = 0

    def once(self) -> None:
        """Run one repetition."""
        if self._multiplies:
            np.matmul(self._left, self._right, out=self._product)
            return
        begin = self._begin
        end = begin + WINDOW_BYTES // 4
        np.add(self._source[begin:end], np.float32(1), out=self._target[begin:end])
        self._begin = 0 if end >= len(self._source) else end

    def run(self, repetitions: int) -> None:
        """Run so many repetitions, one after the other."""
        for _ in range(repetitions):
            self.once()
