"""A rank's program bound to memory: the timed loop makes no view, no array and no list.

With two concurrent programs of one rank, or a program and a computation, neither ever waits while the other
could go on. Launches are in step: a rank enters the next launch of both when both are over. So nothing can
stop for good: of the ranks that are in the earliest launch, none waits for one that is ahead, whose counters
only grow; and in that launch every rank goes on with each program whenever that one's waits are satisfied, as
if it were alone, whatever groups the other one has.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from ccbench.backends.control_block import LINE_WORDS, Control, Word, fence
from ccbench.backends.cpu.program import AVERAGE, COPY, CompiledCase, FusedLoop
from ccbench.schedules.placement import Space
from ccbench.verification import Array

BLOCK_BYTES = 256 * 1024
"""Operations that share data advance together by this much. Smaller blocks cost calls (64 KiB: up to
+30 %), larger ones fall out of a 1 MiB L2; see docs/design.md."""

POLLS_BEFORE_YIELD = 300
"""Polls of a flag (about 50 ns each) before the processor is offered to somebody else."""

STAND_BY_SECONDS = 2e-5

Call = tuple[Callable[..., object], tuple[Any, ...]]
Buffers = dict[tuple[int, Space], Array]
"""(rank, space) -> that buffer, as elements of the case's dtype."""

REDUCTIONS: dict[str, np.ufunc] = {
    "sum": np.add,
    "avg": np.add,
    "prod": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
}


class Waiter:
    """Waits for other ranks' counters; ``crowded``, with more ranks than processors, it yields at once.

    stands_by: this rank has nothing to do in the case, so it sleeps between polls and disturbs nobody.
    base: what all progress counters start the next launch from. Every rank takes part in the same launches
    in the same order, so each keeps its own copy and all copies are equal.
    word: which progress counter; two programs of one rank that run at the same time have one each.
    """

    def __init__(
        self, control: Control, oversubscribed: bool, word: Word = Word.PROGRESS
    ) -> None:
        self.base = 1
        self.word = word
        self.waited_seconds = 0.0
        self.stands_by = False
        self._control, self._words = control, control.words
        self.crowded(oversubscribed)

    def crowded(self, oversubscribed: bool) -> None:
        """Take note that ranks that compute at the same time share processors from now on, or do not."""
        self._polls = 0 if oversubscribed else POLLS_BEFORE_YIELD

    def rest(self, idle_looks: int) -> None:
        """After so many looks in a row that found nothing to do, let somebody else have the processor."""
        if idle_looks >= self._polls:
            os.sched_yield()

    def until(self, index: int, goal: int) -> None:
        """Return when word ``index`` is at least ``goal``."""
        words = self._words
        # Sleeping first: a rank without a part must not take the processor of one that is measured.
        while self.stands_by and words[index] < goal:
            time.sleep(STAND_BY_SECONDS)
        if words[index] < goal:
            for _ in range(self._polls):
                if words[index] >= goal:
                    break
            else:
                while words[index] < goal:
                    os.sched_yield()
        fence()

    def meet(self, rank: int, number: int) -> None:
        """Return when all ranks have come to barrier ``number``, as ``rank`` has."""
        control = self._control
        fence()
        control.words[control.index(rank, Word.BARRIER)] = number
        # From its next rank on, so that not all ranks look at one line of memory at once.
        for step in range(1, control.ranks):
            peer = (rank + step) % control.ranks
            self.until(control.index(peer, Word.BARRIER), number)

    def timed_until(self, index: int, goal: int) -> None:
        """Wait as ``until`` does; add the time to ``waited_seconds``, which costs a fifth of a microsecond a wait."""
        if self._words[index] < goal:
            began = time.perf_counter()
            self.until(index, goal)
            self.waited_seconds += time.perf_counter() - began
        else:
            fence()


class ProgramLauncher:
    """Runs one rank's program again and again."""

    def __init__(
        self,
        compiled: CompiledCase,
        rank: int,
        buffers: Buffers,
        op: str,
        control: Control,
        waiter: Waiter,
        members: Sequence[int],
        waits: bool = True,
    ) -> None:
        """members: the team's rank of each of the schedule's; ``rank`` is one of the schedule's.

        waits: False leaves out every wait, which tests use to show that the checks see it.
        """
        program = compiled.programs[rank]
        ranks = compiled.layout.schedule.ranks

        def place(peer: int) -> int:
            return members[peer] * LINE_WORDS + waiter.word

        self._groups = tuple(
            (
                tuple((place(peer), offset) for peer, offset in group.waits if waits),
                tuple(_bound(group.loops, buffers, op, ranks)),
                group.post,
            )
            for group in program.groups
        )
        self._exit_waits = tuple(
            (place(peer), offset) for peer, offset in program.exit_waits if waits
        )
        self._words = control.words
        self._mine = place(rank)
        self._stride = compiled.stride
        self._waiter = waiter

    def launch(self, times: int = 1, time_waits: bool = False) -> None:
        """Take part in ``times`` launches, back to back; every rank must ask for as many."""
        words, mine, stride = self._words, self._mine, self._stride
        until = self._waiter.timed_until if time_waits else self._waiter.until
        base = self._waiter.base
        for _ in range(times):
            # This rank has entered: from now on others may touch its memory.
            words[mine] = base
            for waits, calls, post in self._groups:
                for index, offset in waits:
                    until(index, base + offset)
                for function, arguments in calls:
                    function(*arguments)
                # What was written must be seen no later than the counter that promises it.
                fence()
                words[mine] = base + post
            # Others may still be at work in this rank's memory, which its next launch overwrites.
            for index, offset in self._exit_waits:
                until(index, base + offset)
            base += stride
        self._waiter.base = base

    def steps(self) -> Iterator[bool]:
        """Run one launch bit by bit: True after every call, False after a look at a counter that lags."""
        words, mine, base = self._words, self._mine, self._waiter.base
        words[mine] = base
        for waits, calls, post in self._groups:
            for index, offset in waits:
                while words[index] < base + offset:
                    yield False
            fence()
            for function, arguments in calls:
                function(*arguments)
                yield True
            fence()
            words[mine] = base + post
        for index, offset in self._exit_waits:
            while words[index] < base + offset:
                yield False
        fence()
        self._waiter.base = base + self._stride


class InactiveLauncher:
    """Takes part in launches of others by keeping step with their counters."""

    def __init__(self, rank: int, stride: int, control: Control, waiter: Waiter) -> None:
        self._words = control.words
        self._mine = control.index(rank, waiter.word)
        self._stride = stride
        self._waiter = waiter

    def launch(self, times: int = 1, time_waits: bool = False) -> None:
        """Be as far as the others will be."""
        self._waiter.base += times * self._stride
        self._words[self._mine] = self._waiter.base

    def steps(self) -> Iterator[bool]:
        """Run one launch, of which there is nothing to do."""
        self.launch()
        yield from ()


Program = ProgramLauncher | InactiveLauncher

_ENDED = None
"""Number of a program's next step after its last one."""


class ConcurrentLauncher:
    """Several programs of one rank, by turns."""

    def __init__(
        self, programs: Sequence[Program], waiter: Waiter, seconds: list[float]
    ) -> None:
        """waiter: its ``waited_seconds`` are those in which no program could go on.

        seconds: each launch adds how long every program took from the launch's begin.
        """
        self._programs = tuple(programs)
        self._waiter = waiter
        self._seconds = seconds

    def launch(self, times: int = 1, time_waits: bool = False) -> None:
        """Take part in ``times`` launches of every program; every rank must ask for as many."""
        for _ in range(times):
            idle = 0
            for moved in self.steps():
                if moved:
                    idle = 0
                    continue
                began = time.perf_counter() if time_waits else 0.0
                self._waiter.rest(idle)
                idle += 1
                if time_waits:
                    self._waiter.waited_seconds += time.perf_counter() - began

    def steps(self) -> Iterator[bool]:
        """Run one launch of every program bit by bit: True when one went on, False when none could."""
        began = time.perf_counter()
        # By turns, one call each, so that a long program does not hold up a short one.
        left = [(number, program.steps()) for number, program in enumerate(self._programs)]
        while left:
            moved = False
            for task in left:
                step = next(task[1], _ENDED)
                if step is _ENDED:
                    self._seconds[task[0]] += time.perf_counter() - began
                    left = [unfinished for unfinished in left if unfinished is not task]
                moved = moved or step is not False
            yield moved


def while_computing(
    program: Program | ConcurrentLauncher,
    once: Callable[[], None],
    launches: int,
    repetitions: int,
    waiter: Waiter,
) -> tuple[float, float]:
    """Launches of ``program``, looked after between every two repetitions of a computation.

    What can go on of the collective goes on; then comes the next repetition. What is left of the longer one
    comes at the end, alone. Returns the seconds until the computation and until the launches were over.
    """
    began = time.perf_counter()
    steps = (step for _ in range(launches) for step in program.steps())
    computed = communicated = 0.0
    done = idle = 0
    running = True
    while running or done < repetitions:
        step = next(steps, _ENDED) if running else False
        if step is _ENDED:
            running, communicated = False, time.perf_counter() - began
        elif step:
            idle = 0
        elif done < repetitions:
            once()
            done += 1
            if done == repetitions:
                computed = time.perf_counter() - began
        else:
            waiter.rest(idle)
            idle += 1
    return computed, communicated


def _bound(loops: Sequence[FusedLoop], buffers: Buffers, op: str, ranks: int) -> list[Call]:
    """Return the calls that run ``loops`` on views of ``buffers``, block by block."""
    bound: list[Call] = []
    for loop in loops:
        operations = [
            operation
            for operation in loop.operations
            if operation.kind != AVERAGE or op == "avg"
        ]
        if loop.elements == 0 or not operations:
            continue
        first = operations[0].target
        item = buffers[(first.rank, first.space)].dtype.itemsize
        # An operation on its own gains nothing from a block that is still in the cache.
        block = loop.elements if len(operations) == 1 else max(1, BLOCK_BYTES // item)
        for begin in range(0, loop.elements, block):
            end = min(begin + block, loop.elements)
            for operation in operations:
                *sources, target = (
                    buffers[(place.rank, place.space)][
                        place.offset + begin : place.offset + end
                    ]
                    for place in (*operation.sources, operation.target)
                )
                bound += calls_of(operation.kind, op, sources, target, ranks)
    return bound


def calls_of(kind: str, op: str, sources: list[Array], target: Array, ranks: int) -> list[Call]:
    """Return the calls of one operation on whole arrays."""
    if kind == COPY:
        return [(np.copyto, (target, sources[0]))]
    if kind == AVERAGE:
        divisor = np.asarray(ranks).astype(target.dtype)
        if target.dtype.kind not in "iu":
            return [(np.divide, (target, divisor, target))]
        # Whole numbers are cut towards zero, as C does.
        remainder = np.empty_like(target)
        return [
            (np.fmod, (target, divisor, remainder)),
            (np.subtract, (target, remainder, target)),
            (np.floor_divide, (target, divisor, target)),
        ]
    reduction = REDUCTIONS[op]
    if op in ("min", "max"):
        # These two take their output by keyword only (NumPy 2.4 deprecates it as third argument).
        return [(partial(reduction, out=target), (sources[0], sources[1]))]
    return [(reduction, (sources[0], sources[1], target))]
