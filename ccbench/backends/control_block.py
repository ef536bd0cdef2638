"""The control block: memory in which a team's ranks and its leader see each other's words and time stamps.

It is an anonymous shared mapping made before the ranks are forked, so that nothing is left behind, whatever
dies: it vanishes with the last process that holds it, kill -9 included, and so does an ``anonymous_file``.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import threading
from collections.abc import Callable
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

LINE_WORDS = 16
"""128 bytes: two cache lines, because adjacent lines are fetched together on x86."""


class Word(IntEnum):
    """A rank's words in its control line; each is written by that rank alone."""

    PROGRESS = 0
    BARRIER = 1
    ACTIVITY = 2
    SAMPLE = 3
    DECISION = 4
    CPU_NANOSECONDS = 5
    PING = 6
    ARRIVED = 7
    PROGRESS_CONCURRENT = 8


class Activity(IntEnum):
    """A rank's activity, for the watchdog's report."""

    IDLE = 0
    PREPARING = 1
    WARMING_UP = 2
    SAMPLING = 3
    CHECKING = 4


def _fence_by_lock(lock: threading.Lock = threading.Lock()) -> None:  # noqa: B008 - one lock on purpose
    """Elsewhere: what precedes a release stays before it, what follows an acquire stays after it.

    One cycle would let accesses from both sides meet inside the lock, so there are two: a release and a
    later acquire of one thread keep their order (arm64: STLR before LDAR and CASA). What the lock is does
    not matter to the processor, so it need not be shared between processes.
    """
    with lock:
        pass
    with lock:
        pass


# x86 keeps stores in order and loads in order, which is all that flags need.
fence: Callable[[], None] = (
    (lambda: None) if os.uname().machine in ("x86_64", "i686", "AMD64") else _fence_by_lock
)


class Control:
    """Words and time stamps that all ranks and the team's leader see.

    words: memoryview of int64, ``LINE_WORDS`` per rank. stamps: float64 array (ranks, capacity, 2) of start
    and end times of samples. part_seconds: one of the same shape, of seconds per launch that each of two
    collectives took that ran concurrently; pages are taken when first written.
    """

    def __init__(self, ranks: int, sample_capacity: int) -> None:
        word_bytes = ranks * LINE_WORDS * 8
        stamp_bytes = ranks * sample_capacity * 16
        mapping = mmap.mmap(-1, word_bytes + 2 * stamp_bytes)
        self.ranks = ranks
        self.words = memoryview(mapping)[:word_bytes].cast("q")
        both: NDArray[np.float64] = np.frombuffer(
            mapping, np.float64, 2 * ranks * sample_capacity * 2, word_bytes
        ).reshape(2, ranks, sample_capacity, 2)
        self.stamps, self.part_seconds = both[0], both[1]

    def index(self, rank: int, word: Word) -> int:
        """Return the place of a rank's word in ``words``."""
        return rank * LINE_WORDS + word

    def read(self, rank: int, word: Word) -> int:
        """Return a rank's word."""
        return self.words[self.index(rank, word)]


def anonymous_file() -> int:
    """Return a file descriptor of memory that no path leads to."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("ccbench", os.MFD_CLOEXEC)
    file, path = tempfile.mkstemp(prefix="ccbench-")
    os.unlink(path)
    return file
