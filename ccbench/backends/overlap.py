"""A collective that goes on while its rank computes something: the computation, and how the two take turns.

Collectives without blocking need the calling rank to look after them: MPI may move data only inside MPI's
calls (MPI 4.0, section 3.7.4, "Progress"), while Gloo has threads of its own. So a computation runs in small
repetitions, and between two of them, some tens of microseconds apart, it is asked whether the collective is
over, as programs do that hide communication; where it is, the next launch begins at once, as on a stream
beside the computation. What does not tell whether it is over is waited for after its share of the
computation.

``matmul``: products of matrices that stay in the first caches: arithmetic alone. ``memory``: numbers copied
and changed through more memory than caches hold: what shares the memory's bandwidth with the collective.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

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
        # Not a method kept in a field: that would be a circle, and the memory stay until it is looked for.
        if self._multiplies:
            self._multiply()
        else:
            self._stream()

    def run(self, repetitions: int) -> None:
        """Run so many repetitions, one after the other."""
        once = self._multiply if self._multiplies else self._stream
        for _ in range(repetitions):
            once()

    def _multiply(self) -> None:
        np.matmul(self._left, self._right, out=self._product)

    def _stream(self) -> None:
        begin = self._begin
        end = begin + WINDOW_BYTES // 4
        np.add(self._source[begin:end], np.float32(1), out=self._target[begin:end])
        self._begin = 0 if end >= len(self._source) else end


class OnProcessors:
    """A computation on the rank's processor while it communicates (half of ``Overlapping``)."""

    _computation: HostComputation | None = None

    def prepare_computing(self, kind: str) -> None:
        """Get ready for ``matmul`` or ``memory``."""
        self._computation = HostComputation(kind)

    def compute(self, repetitions: int) -> None:
        """Run the computation alone, to its end."""
        assert self._computation is not None, "it is prepared"
        self._computation.run(repetitions)


class Background(Protocol):
    """One launch at a time that goes on by itself. tells: ``over`` can be asked."""

    tells: bool

    def begin(self) -> None:
        """Start a launch; the one before must be over."""

    def over(self) -> bool:
        """Look after the launch; True if it is over."""

    def wait(self) -> None:
        """Return when it is over."""


def run_while_computing(
    background: Background | None, once: Callable[[], None], launches: int, repetitions: int
) -> tuple[float, float]:
    """Launch ``launches`` times while ``once`` runs ``repetitions`` times altogether, to the end of both.

    Returns the seconds from the call until the last repetition ended, and until the last launch was seen to
    be over: 0 where ``background`` is None, on a rank that belongs to no group.
    """
    if background is not None and not background.tells:
        # A launch is begun, its share of the repetitions runs, then it is waited for, and the next one comes.
        began = computed = time.perf_counter()
        done = 0
        for number in range(1, launches + 1):
            background.begin()
            while done < repetitions * number // launches:
                once()
                done += 1
            computed = time.perf_counter()
            background.wait()
        return computed - began, time.perf_counter() - began
    clock = time.perf_counter
    began = clock()
    left, communicated = launches, 0.0
    if background is not None:
        background.begin()
    for _ in range(repetitions):
        once()
        if background is not None and left and background.over():
            left -= 1
            if left:
                background.begin()
            else:
                communicated = clock() - began
    computed = clock() - began
    # What is left of the collective has nothing to hide behind.
    while background is not None and left:
        background.wait()
        left -= 1
        if left:
            background.begin()
        else:
            communicated = clock() - began
    return computed, communicated
