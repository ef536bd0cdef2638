"""The processes that measure a machine: ``python -m ccbench.model.calibration_worker SECONDS``.

A clean interpreter maps anonymous shared memory and forks a process for every further core. All of them run
the same program (``collect``) and meet in shared memory, as the ranks of a case do, so none has to be told
what to do. Rank 0 decides what all must agree on and writes the samples, one JSON document, to standard
output. Anonymous memory leaves nothing behind, and every process dies with its parent.
"""

from __future__ import annotations

import gc
import json
import mmap
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ccbench.dtypes import CPU_DTYPES, numpy_dtype
from ccbench.machine.host import die_with_parent
from ccbench.model.machine import ARITHMETIC, AVERAGE, arithmetic_key

Array = NDArray[Any]

BLOCK_BYTES = 32 << 10
"""Payload of one operation: its operands and result stay in the second cache level, and its call is
a small part of its time."""

KEYS = tuple(arithmetic_key(dtype, kind) for dtype in CPU_DTYPES for kind in ARITHMETIC)
"""Timed operations, as SharedMemory.operation_bytes_per_second names them."""

_UFUNCS = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}

COPY, REDUCE = "copy", "reduce"
KINDS = (COPY, REDUCE)

WORKING_SETS_BYTES = tuple(
    size << 10 for size in (32, 256, 1024, 2048, 8192, 16384, 32768, 65536)
)
"""From the first cache level to memory, closer together where a last-level cache may end."""

MOST_MEMORY_BYTES = 1 << 30
"""Of all processes together; large working sets are left out where cores are many."""

SAMPLE_SECONDS = 0.0006
"""A sample repeats its operation for about this long."""

FEWEST_ROUNDS = 5
"""So many that a lower quartile of tries is not the least of them, which may be luck."""

ROUND_TRIPS = 150
"""In each window of the ping-pong."""

POLLS_BEFORE_YIELD = 250
"""Spins before a process yields, as for ranks."""

YIELDS_BEFORE_SLEEP, SLEEP_SECONDS = 2000, 0.0001

MOST_YIELDS, MOST_SLEEPS = 5_000_000, 200_000
"""Time-outs in seconds, short and long, after which a probe whose peers are gone exits."""

LINE_WORDS = 16
"""Words between two processes' words: two cache lines, since some processors fetch pairs."""

FLAG, FIRST_MEETING, SCRATCH = 0, 1, 3
"""A process's words, each written by that process alone: of the ping-pong, two of meetings, of nobody."""

VALUE_BITS = 43
"""Of a word of a meeting; its number stands above them."""

give_way: Callable[[], None] = getattr(os, "sched_yield", lambda: time.sleep(0))
"""Offer the core to another process; some systems only know a sleep of no length."""


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
            result, remainder = np.empty_like(first), np.empty_like(first)
            for kind, ufunc in _UFUNCS.items():
                self._functions[arithmetic_key(dtype, kind)] = partial(
                    ufunc, first, second, out=result
                )
            two = np.asarray(2).astype(first.dtype)
            average = partial(np.divide, first, two, out=result)
            if first.dtype.kind in "iu":
                average = partial(_whole_average, first, two, remainder, result)
            self._functions[arithmetic_key(dtype, AVERAGE)] = average

    def seconds(self, key: str) -> float:
        """One operation of ``key``, after one that warms its block; key: one of KEYS."""
        function = self._functions[key]
        function()
        begin = time.perf_counter()
        function()
        return time.perf_counter() - begin


def _whole_average(first: Array, two: Array, remainder: Array, result: Array) -> None:
    """Cut towards zero, as the CPU backend does it."""
    np.fmod(first, two, out=remainder)
    np.subtract(first, remainder, out=result)
    np.floor_divide(result, two, out=result)


@dataclass
class Samples:
    """Raw samples in seconds.

    shared_core: none where processes cannot be pinned. operations: "kind/working set/processes" -> seconds
    per operation. arithmetic: key -> seconds per block.
    """

    cores: int
    flag: list[float] = field(default_factory=list)
    shared_core: list[float] = field(default_factory=list)
    check: list[float] = field(default_factory=list)
    operation: list[float] = field(default_factory=list)
    call: list[float] = field(default_factory=list)
    operations: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    arithmetic: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))


def payload_bytes(kind: str, working_set_bytes: int) -> int:
    """Bytes of result when operands and result together fill the working set; whole vectors of floats."""
    return working_set_bytes // (2 if kind == COPY else 3) // 256 * 256


def collect(probe: Probe, until_seconds: float, clock: Callable[[], float]) -> Samples:
    """Rounds over everything there is to time, until ``clock()`` passes ``until_seconds``.

    A round takes one sample of each, so that a disturbance touches few samples of any; at least
    FEWEST_ROUNDS are taken, however long they last. What one process does alone comes in one piece, so that
    the others have long been asleep for most of it.
    """
    samples = Samples(probe.cores)
    rounds = 0
    while probe.gather(int(rounds < FEWEST_ROUNDS or clock() < until_seconds))[0]:
        samples.flag.append(probe.flag_seconds())
        if probe.pinned:
            samples.shared_core.append(probe.yield_seconds())
        if probe.rank == 0:
            samples.check.append(probe.check_seconds())
            samples.operation.append(probe.operation_seconds())
            samples.call.append(probe.call_seconds())
            for key in KEYS:
                samples.arithmetic[key].append(probe.arithmetic_seconds(key))
        for processes in sorted({1, probe.cores}):
            for working_set in probe.working_sets_bytes:
                for kind in KINDS:
                    seconds = probe.operation_time(kind, working_set, processes)
                    samples.operations[f"{kind}/{working_set}/{processes}"].append(seconds)
        rounds += 1
    return samples


class Probe:
    """One of the processes that measure together; what it returns counts in rank 0 alone.

    pinned: whether processes can be kept on one core.
    """

    def __init__(self) -> None:
        all_cores = range(os.cpu_count() or 1)
        self.pinned = hasattr(os, "sched_setaffinity")
        self._allowed = sorted(os.sched_getaffinity(0) if self.pinned else all_cores)
        self.cores = len(self._allowed)
        self.rank, self.ranks = 0, max(self.cores, 2)
        fits = [size for size in WORKING_SETS_BYTES if size * self.ranks <= MOST_MEMORY_BYTES]
        self.working_sets_bytes = tuple(fits or WORKING_SETS_BYTES[:1])
        self._words_bytes = self.ranks * LINE_WORDS * 8
        self._memory = mmap.mmap(
            -1, self._words_bytes + self.ranks * self.working_sets_bytes[-1]
        )
        self._words = memoryview(self._memory).cast("q")
        self._epoch = time.perf_counter_ns()
        self._meetings, self._turn = 0, 0
        self._times: dict[tuple[str, int], int] = {}

    def become(self, rank: int) -> None:
        """Be this process from now on: on its core, its memory given out, with numbers that are not zero."""
        self.rank = rank
        self._pin(rank)
        region = self.working_sets_bytes[-1]
        begin = self._words_bytes + rank * region
        self._region = np.frombuffer(self._memory, np.float32, region // 4, begin)
        self._region[:] = 1.0
        if rank == 0:
            self._arithmetic = Arithmetic()

    def _pin(self, core: int) -> None:
        """Keep this process on the ``core``-th of the processors that it may use, where that can be done."""
        if self.pinned:
            os.sched_setaffinity(0, {self._allowed[core % self.cores]})

    # -- how processes meet --------------------------------------------------------------------------------

    def gather(self, value: int = 0, patient: bool = True) -> list[int]:
        """Return every process's value once all have come. patient: who waits long sleeps."""
        self._meetings += 1
        # The number is in the same word as the value, so that no order between two stores is relied upon. Of
        # two words by turns, because others may still read this one when the next meeting begins.
        number, word = self._meetings << VALUE_BITS, FIRST_MEETING + self._meetings % 2
        self._words[self.rank * LINE_WORDS + word] = number | value
        places = [rank * LINE_WORDS + word for rank in range(self.ranks)]
        for place in places:
            self._until(place, number, POLLS_BEFORE_YIELD, patient)
        return [self._words[place] - number for place in places]

    def _until(self, index: int, goal: int, polls: int, patient: bool = False) -> None:
        """Wait as a rank does for a flag: poll, then yield; where it is not timed, sleep."""
        words = self._words
        if words[index] < goal:
            for _ in range(polls):
                if words[index] >= goal:
                    return
            for turn in range(MOST_SLEEPS if patient else MOST_YIELDS):
                if words[index] >= goal:
                    return
                if patient and turn > YIELDS_BEFORE_SLEEP:
                    time.sleep(SLEEP_SECONDS)
                else:
                    give_way()
            os._exit(1)

    # -- what is timed -------------------------------------------------------------------------------------

    def flag_seconds(self) -> float:
        """One flag between two cores, a window's mean. On one core it costs a yield."""
        return self._ping(POLLS_BEFORE_YIELD if self.cores > 1 else 0)

    def yield_seconds(self) -> float:
        """One flag between two processes on one core: rank 1 visits that of rank 0."""
        if self.rank == 1:
            self._pin(0)
        seconds = self._ping(0)
        if self.rank == 1:
            self._pin(1)
        return seconds

    def _ping(self, polls: int) -> float:
        self.gather()
        if self.rank > 1:
            return 0.0
        words, mine, theirs = (
            self._words,
            self.rank * LINE_WORDS + FLAG,
            (1 - self.rank) * LINE_WORDS + FLAG,
        )
        first, self._turn = self._turn + 1, self._turn + ROUND_TRIPS
        if self.rank == 1:
            for turn in range(first, first + ROUND_TRIPS):
                self._until(theirs, turn, polls)
                words[mine] = turn
            return 0.0
        words[mine] = first
        self._until(theirs, first, polls)
        begin = time.perf_counter()
        for turn in range(first + 1, first + ROUND_TRIPS):
            words[mine] = turn
            self._until(theirs, turn, polls)
        return (time.perf_counter() - begin) / (ROUND_TRIPS - 1) / 2

    def check_seconds(self) -> float:
        """Looking at a flag that is up."""
        until = self._until
        begin = time.perf_counter()
        for _ in range(500):
            until(FLAG, 0, 0)
        return (time.perf_counter() - begin) / 500

    def operation_seconds(self) -> float:
        """One array operation, with its bookkeeping: a rank's loop whose steps wait for nothing and post."""
        source, result = self._buffers(COPY, 4096)
        steps = (((np.copyto, (result[:1], source[:1])),),) * 200
        words, mine = self._words, SCRATCH
        begin = time.perf_counter()
        for position, calls in enumerate(steps):
            for function, arguments in calls:
                function(*arguments)
            words[mine] = position
        return (time.perf_counter() - begin) / len(steps)

    def call_seconds(self) -> float:
        """The array operation alone."""
        source, result = (part[:1] for part in self._buffers(COPY, 4096))
        begin = time.perf_counter()
        for _ in range(200):
            np.copyto(result, source)
        return (time.perf_counter() - begin) / 200

    def arithmetic_seconds(self, key: str) -> float:
        """One block of ``arithmetic.BLOCK_BYTES`` by one process; ``key`` is one of ``arithmetic.KEYS``."""
        return self._arithmetic.seconds(key)

    def operation_time(self, kind: str, working_set_bytes: int, processes: int) -> float:
        """Seconds per operation of ``kind`` when one process does it, or all do.

        From the first process's start to the last one's end, over the repetitions.
        """
        if processes == 1 and self.rank:
            return 0.0
        times = 0
        if not self.rank:
            key = kind, working_set_bytes
            if key not in self._times:
                # The first warms its memory; the second says how many fill a sample.
                self._work(*key, 1)
                start, end = self._work(*key, 1)
                self._times[key] = max(
                    1, min(10_000, round(SAMPLE_SECONDS * 1e9 / max(end - start, 1)))
                )
            times = self._times[key]
        if processes > 1:
            times = self.gather(times)[0]
            self.gather(patient=False)  # all are awake now, and begin together
        start, end = self._work(kind, working_set_bytes, times)
        if processes > 1:
            start, end = min(self.gather(start)), max(self.gather(end))
        return (end - start) / times / 1e9

    def _work(self, kind: str, working_set_bytes: int, times: int) -> tuple[int, int]:
        """(start, end) in nanoseconds of ``times`` operations."""
        *operands, result = self._buffers(kind, working_set_bytes)
        if kind == COPY:
            begin = time.perf_counter_ns()
            for _ in range(times):
                np.copyto(result, operands[0])
        else:
            first, second = operands
            begin = time.perf_counter_ns()
            for _ in range(times):
                np.add(first, second, result)
        return begin - self._epoch, time.perf_counter_ns() - self._epoch

    def _buffers(
        self, kind: str, working_set_bytes: int
    ) -> list[np.ndarray[Any, np.dtype[np.float32]]]:
        """Operands, then result."""
        elements = payload_bytes(kind, working_set_bytes) // 4
        parts = 2 if kind == COPY else 3
        return [self._region[part * elements : (part + 1) * elements] for part in range(parts)]


def main(until_seconds: float) -> None:
    """Measure until the monotonic clock reads ``until_seconds``."""
    die_with_parent(os.getppid())
    probe, leader, children = Probe(), os.getpid(), list[int]()
    for rank in range(1, probe.ranks):
        children.append(os.fork())
        if not children[-1]:
            status = 1
            try:
                die_with_parent(leader)
                probe.become(rank)
                collect(probe, until_seconds, time.monotonic)
                status = 0
            finally:
                os._exit(status)
    probe.become(0)
    samples = collect(probe, until_seconds, time.monotonic)
    for child in children:
        os.waitpid(child, 0)
    print(json.dumps(vars(samples)))
    gc.freeze()  # who waits for the samples does not wait for garbage to be collected


if __name__ == "__main__":
    main(float(sys.argv[1]))
