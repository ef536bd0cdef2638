"""The processes that measure a machine: ``python -m ccbench.model.calibration_worker``.

A clean interpreter leads: it maps anonymous shared memory, forks one worker per core and tells them what
to time. It writes JSON lines to standard output, ``{"progress": 0.4}`` and at last ``{"samples": ...}``.
Anonymous memory leaves nothing behind, and every process dies with its parent.

Words of 64 bits are the only channel between the processes. Each carries the number of its command beside
its content, so that no order between two stores is relied upon.
"""

from __future__ import annotations

import json
import mmap
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from ccbench.machine.processes import die_with_parent
from ccbench.model.arithmetic import KEYS, Arithmetic

COPY, REDUCE = "copy", "reduce"
KINDS = (COPY, REDUCE)

WORKING_SETS_BYTES = tuple(size << 10 for size in (32, 256, 1024, 2048, 8192, 16384, 32768, 65536))
"""From the first cache level to memory, closer together where a last-level cache may end."""

MOST_MEMORY_BYTES = 1 << 30
"""Of all processes together; large working sets are left out where cores are many."""

SAMPLE_SECONDS = 0.0006
"""A sample repeats its operation for about this long."""

FEWEST_ROUNDS = 3

FLAG_TURNS = 150
"""Round trips per window of the ping-pong."""

WAIT_LIMIT_SECONDS = 20.0
"""No process waits longer than this for another: it then ends, and with it all the others."""


give_way: Callable[[], None] = getattr(os, "sched_yield", lambda: time.sleep(0))
"""Offer the core to another process; some systems only know a sleep of no length."""


class Probe(Protocol):
    """What can be timed; tests have one that is made of numbers."""

    cores: int
    working_sets_bytes: tuple[int, ...]

    def flag_seconds(self) -> float:
        """One flag between two cores, a window's mean."""

    def yield_seconds(self) -> float | None:
        """One flag between two processes on one core; None where processes cannot be pinned."""

    def check_seconds(self) -> float:
        """Looking at a flag that is up."""

    def operation_seconds(self) -> float:
        """One array operation on a few elements, with its bookkeeping."""

    def call_seconds(self) -> float:
        """The array operation alone."""

    def arithmetic_seconds(self, key: str) -> float:
        """One block of ``arithmetic.BLOCK_BYTES`` by one process; ``key`` is one of ``arithmetic.KEYS``."""

    def operation_time(self, kind: str, working_set_bytes: int, processes: int) -> float:
        """Seconds per operation of ``kind`` when ``processes`` do the same; payload as in ``payload``."""


@dataclass
class Samples:
    """Raw samples in seconds.

    operations: "kind/working set/processes" -> seconds per operation. arithmetic: key -> seconds per block.
    """

    cores: int
    flag: list[float] = field(default_factory=list)
    shared_core: list[float] = field(default_factory=list)
    check: list[float] = field(default_factory=list)
    operation: list[float] = field(default_factory=list)
    call: list[float] = field(default_factory=list)
    operations: dict[str, list[float]] = field(default_factory=dict)
    arithmetic: dict[str, list[float]] = field(default_factory=dict)


def payload_bytes(kind: str, working_set_bytes: int) -> int:
    """Bytes of result when operands and result together fill the working set; whole vectors of floats."""
    return working_set_bytes // (2 if kind == COPY else 3) // 256 * 256


def collect(
    probe: Probe,
    until_seconds: float,
    clock: Callable[[], float],
    progress: Callable[[float], None],
) -> Samples:
    """Rounds over everything there is to time, until ``clock()`` passes ``until_seconds``.

    A round takes one sample of each, so that a disturbance touches few samples of any; at least
    FEWEST_ROUNDS are taken, however long they last.
    """
    samples = Samples(probe.cores)
    began, rounds = clock(), 0
    while rounds < FEWEST_ROUNDS or clock() < until_seconds:
        samples.flag.append(probe.flag_seconds())
        shared = probe.yield_seconds()
        if shared is not None:
            samples.shared_core.append(shared)
        samples.check.append(probe.check_seconds())
        samples.operation.append(probe.operation_seconds())
        samples.call.append(probe.call_seconds())
        for key in KEYS:
            samples.arithmetic.setdefault(key, []).append(probe.arithmetic_seconds(key))
        for working_set in probe.working_sets_bytes:
            for kind in KINDS:
                for processes in sorted({1, probe.cores}):
                    key = f"{kind}/{working_set}/{processes}"
                    seconds = probe.operation_time(kind, working_set, processes)
                    samples.operations.setdefault(key, []).append(seconds)
        rounds += 1
        share = (clock() - began) / max(until_seconds - began, 1e-9)
        progress(min(1.0, max(share, 0.0)))
    return samples


LINE_WORDS = 16
"""Words between two processes' words: two cache lines, since some processors fetch pairs."""

COMMAND, STARTED, FINISHED, FLAG = range(4)

WAKE, RUN_COPY, RUN_REDUCE, PING, PIN, QUIT = range(6)

POLLS_BEFORE_YIELD = 250
"""As ranks do; it must fit the eight bits of a command."""

POLLS_BEFORE_SLEEP = 2000

MOST_YIELDS = 5_000_000
"""A ping-pong whose other side is gone ends after these, some seconds."""


@dataclass(frozen=True)
class _Command:
    """One word: 20 bits of number, 4 of what, 8 of which, 31 of how often or when."""

    number: int
    what: int
    which: int = 0
    times: int = 0

    def word(self) -> int:
        return self.number << 43 | self.what << 39 | self.which << 31 | self.times

    @staticmethod
    def of(word: int) -> _Command:
        return _Command(word >> 43, word >> 39 & 15, word >> 31 & 255, word & (1 << 31) - 1)


class _Party:
    """One process: its words, its buffers, and what it can do; rank 0 leads."""

    def __init__(self, rank: int, memory: mmap.mmap, ranks: int, region_bytes: int, epoch: int) -> None:
        self.rank = rank
        self.words = memoryview(memory).cast("q")
        self._epoch = epoch
        begin = ranks * LINE_WORDS * 8 + rank * region_bytes
        self._region = np.frombuffer(memory, dtype=np.float32, offset=begin, count=region_bytes // 4)

    def index(self, rank: int, word: int) -> int:
        return rank * LINE_WORDS + word

    def touch(self) -> None:
        """Have the pages of the region given out, with numbers that are not zero."""
        self._region[:] = 1.0

    def buffers(
        self, kind: str, working_set_bytes: int
    ) -> list[np.ndarray[tuple[int], np.dtype[np.float32]]]:
        """Operands, then result."""
        elements = payload_bytes(kind, working_set_bytes) // 4
        parts = 2 if kind == COPY else 3
        return [self._region[part * elements : (part + 1) * elements] for part in range(parts)]

    def work(self, kind: str, working_set_bytes: int, times: int) -> tuple[int, int]:
        """(start, end) in nanoseconds of ``times`` operations."""
        *operands, result = self.buffers(kind, working_set_bytes)
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

    def report(self, number: int, started: int, finished: int) -> None:
        """Tell the leader; 20 bits of number, 43 of nanoseconds since the epoch."""
        self.words[self.index(self.rank, STARTED)] = number << 43 | started
        self.words[self.index(self.rank, FINISHED)] = number << 43 | finished

    def wait(self, index: int, reached: Callable[[int], bool], *, patient: bool = False) -> int:
        """Poll a word until it is as wanted; ``patient`` waits also sleep. Exits when that takes too long."""
        words, polls = self.words, 0
        limit = time.monotonic() + WAIT_LIMIT_SECONDS
        while not reached(words[index]):
            polls += 1
            if polls <= POLLS_BEFORE_YIELD:
                continue
            if patient and polls > POLLS_BEFORE_SLEEP:
                time.sleep(0.0001)
            else:
                give_way()
            if polls % 64 == 0 and time.monotonic() > limit:
                os._exit(1)
        return words[index]

    def until(self, index: int, goal: int, polls: int) -> None:
        """As a rank waits for a flag: poll, then yield."""
        words = self.words
        if words[index] < goal:
            for _ in range(polls):
                if words[index] >= goal:
                    return
            for _ in range(MOST_YIELDS):
                if words[index] >= goal:
                    return
                give_way()
            os._exit(1)


def follow(party: _Party, working_sets_bytes: tuple[int, ...]) -> None:
    """A worker's life: do as commanded until told to quit."""
    mine = party.index(party.rank, COMMAND)
    number, awake = 0, False
    while True:
        last = number
        word = party.wait(mine, lambda value, last=last: value >> 43 != last, patient=not awake)  # type: ignore[misc]
        command = _Command.of(word)
        number, awake = command.number, command.what == WAKE
        started = finished = 0
        if command.what == QUIT:
            return
        if command.what == PIN:
            pin(command.which)
        elif command.what == PING:
            answer(party, command)
        elif command.what in (RUN_COPY, RUN_REDUCE):
            kind = COPY if command.what == RUN_COPY else REDUCE
            started, finished = party.work(kind, working_sets_bytes[command.which], command.times)
        party.report(number, started, finished)


def answer(party: _Party, command: _Command) -> None:
    """The worker's half of a ping-pong of FLAG_TURNS turns, counted on from ``command.times``."""
    theirs, mine = party.index(0, FLAG), party.index(party.rank, FLAG)
    for turn in range(command.times + 1, command.times + FLAG_TURNS + 1):
        party.until(theirs, turn, command.which)
        party.words[mine] = turn


def pin(core: int) -> None:
    """Keep this process on the ``core``-th of the processors it may use, where that can be asked for."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {ALLOWED[core % len(ALLOWED)]})


ALLOWED = (
    sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [*range(os.cpu_count() or 1)]
)
"""Processors this process was given when it started."""


class SharedMemoryProbe:
    """The real probe: rank 0 is this process, the others are forked and wait for commands."""

    def __init__(self) -> None:
        self.cores = len(ALLOWED)
        ranks = max(self.cores, 2)
        fits = [size for size in WORKING_SETS_BYTES if size * ranks <= MOST_MEMORY_BYTES]
        self.working_sets_bytes = tuple(fits or WORKING_SETS_BYTES[:1])
        region = self.working_sets_bytes[-1]
        memory = mmap.mmap(-1, ranks * (LINE_WORDS * 8 + region))
        epoch = time.perf_counter_ns()
        self._number, self._turn = 0, 0
        self._times: dict[tuple[str, int], int] = {}
        self._workers: list[int] = []
        leader = os.getpid()
        for rank in range(1, ranks):
            worker = os.fork()
            if not worker:
                _run_worker(_Party(rank, memory, ranks, region, epoch), self.working_sets_bytes, leader)
            self._workers.append(worker)
        self._party = _Party(0, memory, ranks, region, epoch)
        pin(0)
        self._party.touch()
        self.arithmetic_seconds = Arithmetic().seconds
        self._wait_for(range(1, ranks), self._tell(range(1, ranks), WAKE))

    def close(self) -> None:
        """Have the workers quit and collect them."""
        self._tell(range(1, len(self._workers) + 1), QUIT)
        for worker in self._workers:
            os.waitpid(worker, 0)

    def _tell(self, ranks: range, what: int, which: int = 0, times: int = 0) -> int:
        self._number += 1
        word = _Command(self._number, what, which, times).word()
        for rank in ranks:
            self._party.words[self._party.index(rank, COMMAND)] = word
        return self._number

    def _wait_for(self, ranks: range, number: int) -> list[tuple[int, int]]:
        times = []
        for rank in ranks:
            words = [
                self._party.wait(self._party.index(rank, word), lambda value: value >> 43 == number)
                for word in (STARTED, FINISHED)
            ]
            times.append((words[0] & (1 << 43) - 1, words[1] & (1 << 43) - 1))
        return times

    def flag_seconds(self) -> float:
        """See Probe. On one core a flag costs a yield."""
        return self._ping(POLLS_BEFORE_YIELD if self.cores > 1 else 0)

    def yield_seconds(self) -> float | None:
        """See Probe: worker 1 visits the leader's core."""
        if not hasattr(os, "sched_setaffinity"):
            return None
        one = range(1, 2)
        self._wait_for(one, self._tell(one, PIN, which=0))
        seconds = self._ping(0)
        self._wait_for(one, self._tell(one, PIN, which=1))
        return seconds

    def _ping(self, polls: int) -> float:
        party, first = self._party, self._turn
        number = self._tell(range(1, 2), PING, which=polls, times=first)
        mine, theirs = party.index(0, FLAG), party.index(1, FLAG)
        party.words[mine] = first + 1
        party.until(theirs, first + 1, polls)
        begin = time.perf_counter()
        for turn in range(first + 2, first + FLAG_TURNS + 1):
            party.words[mine] = turn
            party.until(theirs, turn, polls)
        seconds = time.perf_counter() - begin
        self._turn = first + FLAG_TURNS
        self._wait_for(range(1, 2), number)
        return seconds / (FLAG_TURNS - 1) / 2

    def check_seconds(self) -> float:
        """See Probe."""
        until, mine = self._party.until, self._party.index(0, FLAG)
        begin = time.perf_counter()
        for _ in range(500):
            until(mine, 0, 0)
        return (time.perf_counter() - begin) / 500

    def operation_seconds(self) -> float:
        """See Probe: the loop of a rank whose every step waits for nothing, calls once and posts."""
        source, result = self._party.buffers(COPY, 4096)
        steps = (((np.copyto, (result[:1], source[:1])),),) * 200
        words, mine = self._party.words, self._party.index(0, STARTED)
        begin = time.perf_counter()
        for position, calls in enumerate(steps):
            for function, arguments in calls:
                function(*arguments)
            words[mine] = position
        return (time.perf_counter() - begin) / len(steps)

    def call_seconds(self) -> float:
        """See Probe."""
        source, result = (part[:1] for part in self._party.buffers(COPY, 4096))
        begin = time.perf_counter()
        for _ in range(200):
            np.copyto(result, source)
        return (time.perf_counter() - begin) / 200

    def operation_time(self, kind: str, working_set_bytes: int, processes: int) -> float:
        """See Probe: from the first process's start to the last one's end, over the repetitions."""
        which = self.working_sets_bytes.index(working_set_bytes)
        times = self._times.get((kind, which)) or self._find_times(kind, which)
        others = range(1, processes)
        self._wait_for(others, self._tell(others, WAKE))
        number = self._tell(others, RUN_COPY if kind == COPY else RUN_REDUCE, which, times)
        spans = [self._party.work(kind, working_set_bytes, times), *self._wait_for(others, number)]
        nanoseconds = max(end for _, end in spans) - min(start for start, _ in spans)
        return nanoseconds / times / 1e9

    def _find_times(self, kind: str, which: int) -> int:
        working_set = self.working_sets_bytes[which]
        self._party.work(kind, working_set, 1)
        start, end = self._party.work(kind, working_set, 1)
        times = max(1, min(10_000, round(SAMPLE_SECONDS * 1e9 / max(end - start, 1))))
        self._times[(kind, which)] = times
        return times


def _run_worker(party: _Party, working_sets_bytes: tuple[int, ...], leader: int) -> None:
    """The forked process; never returns, whatever happens."""
    status = 1
    try:
        die_with_parent(leader)
        pin(party.rank)
        party.touch()
        follow(party, working_sets_bytes)
        status = 0
    finally:
        os._exit(status)


def main(arguments: list[str]) -> int:
    """``until``: the monotonic clock's reading at which to stop."""
    die_with_parent(os.getppid())
    until_seconds = float(arguments[0])
    probe = SharedMemoryProbe()

    def say(line: dict[str, object]) -> None:
        print(json.dumps(line), flush=True)

    samples = collect(probe, until_seconds, time.monotonic, lambda share: say({"progress": share}))
    probe.close()
    say({"samples": vars(samples)})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
