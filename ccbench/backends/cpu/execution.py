"""A rank's program bound to memory: the timed loop makes no view, no array and no list."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from ccbench.backends.cpu.memory import LINE_WORDS, Control, Word, fence
from ccbench.backends.cpu.program import AVERAGE, COPY, CompiledCase, Operation, Strand
from ccbench.schedules.placement import Place, Space
from ccbench.verification import Array

BLOCK_BYTES = 256 * 1024
"""Operations that share data advance together by this much. Smaller blocks cost calls (64 KiB: up to
+30 %), larger ones fall out of a 1 MiB L2; see docs/overhead.md."""

POLLS_BEFORE_YIELD = 300
"""Polls of a flag (about 50 ns each) before the processor is offered to somebody else."""

STAND_BY_SECONDS = 2e-5

Call = tuple[Callable[..., object], tuple[Any, ...]]
Buffers = dict[tuple[int, Space], Array]
"""(rank, space) -> that buffer, as elements of the case's dtype."""

_REDUCTIONS: dict[str, Callable[..., object]] = {
    "sum": np.add,
    "avg": np.add,
    "prod": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
}


class Pace:
    """Waits for other ranks' counters; ``crowded``, with more ranks than processors, it yields at once.

    stands_by: this rank has nothing to do in the case, so it sleeps between polls and disturbs nobody.
    base: what all progress counters start the next launch from. Every rank takes part in the same launches
    in the same order, so each keeps its own copy and all copies are equal.
    word: which progress counter; two programs of one rank that run at the same time have one each.
    """

    def __init__(self, control: Control, oversubscribed: bool, word: Word = Word.PROGRESS) -> None:
        self.base = 1
        self.word = word
        self.waited_seconds = 0.0
        self.stands_by = False
        self._words = control.words
        self.crowded(oversubscribed)

    def crowded(self, oversubscribed: bool) -> None:
        """Whether ranks that compute at the same time share processors from now on."""
        self._polls = 0 if oversubscribed else POLLS_BEFORE_YIELD

    def rest(self, idle_looks: int) -> None:
        """After so many looks in a row that found nothing to do, let somebody else have the processor."""
        if idle_looks >= self._polls:
            os.sched_yield()

    def until(self, index: int, goal: int) -> None:
        """Return when word ``index`` is at least ``goal``."""
        words = self._words
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

    def timed_until(self, index: int, goal: int) -> None:
        """As ``until``; adds the time to ``waited_seconds``, which costs a fifth of a microsecond a wait."""
        if self._words[index] < goal:
            began = time.perf_counter()
            self.until(index, goal)
            self.waited_seconds += time.perf_counter() - began
        else:
            fence()


class Launcher:
    """Runs one rank's program again and again."""

    def __init__(
        self,
        compiled: CompiledCase,
        rank: int,
        buffers: Buffers,
        op: str,
        control: Control,
        pace: Pace,
        members: Sequence[int],
        waits: bool = True,
    ) -> None:
        """members: the team's rank of each of the schedule's; ``rank`` is one of the schedule's.

        waits: False leaves out every wait, which tests use to show that the checks see it.
        """
        program = compiled.programs[rank]
        bind = _Binder(buffers, op, compiled.layout.schedule.ranks)

        def place(peer: int) -> int:
            return members[peer] * LINE_WORDS + pace.word

        self._groups = tuple(
            (
                tuple((place(peer), offset) for peer, offset in group.waits if waits),
                tuple(bind.calls(group.strands)),
                group.post,
            )
            for group in program.groups
        )
        self._exit_waits = tuple((place(peer), offset) for peer, offset in program.exit_waits if waits)
        self._words = control.words
        self._mine = place(rank)
        self._stride = compiled.stride
        self._pace = pace

    def launch(self, times: int = 1, time_waits: bool = False) -> None:
        """Take part in ``times`` launches, back to back; every rank must ask for as many."""
        words, mine, stride = self._words, self._mine, self._stride
        until = self._pace.timed_until if time_waits else self._pace.until
        base = self._pace.base
        for _ in range(times):
            words[mine] = base
            for waits, calls, post in self._groups:
                for index, offset in waits:
                    until(index, base + offset)
                for function, arguments in calls:
                    function(*arguments)
                fence()
                words[mine] = base + post
            for index, offset in self._exit_waits:
                until(index, base + offset)
            base += stride
        self._pace.base = base

    def steps(self) -> Iterator[bool]:
        """One launch bit by bit: True after every call, False after a look at a counter that lags."""
        words, mine, base = self._words, self._mine, self._pace.base
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
        self._pace.base = base + self._stride


class Bystander:
    """Takes part in launches of others by keeping step with their counters."""

    def __init__(self, rank: int, stride: int, control: Control, pace: Pace) -> None:
        self._words = control.words
        self._mine = control.index(rank, pace.word)
        self._stride = stride
        self._pace = pace

    def launch(self, times: int = 1, time_waits: bool = False) -> None:
        """Be as far as the others will be."""
        self._pace.base += times * self._stride
        self._words[self._mine] = self._pace.base

    def steps(self) -> Iterator[bool]:
        """One launch, of which there is nothing to do."""
        self.launch()
        yield from ()


class _Binder:
    """Turns strands into calls on views."""

    def __init__(self, buffers: Buffers, op: str, ranks: int) -> None:
        self._buffers = buffers
        self._op = op
        self._ranks = ranks

    def calls(self, strands: tuple[Strand, ...]) -> list[Call]:
        bound: list[Call] = []
        for strand in strands:
            operations = [o for o in strand.operations if o.kind != AVERAGE or self._op == "avg"]
            if strand.elements == 0 or not operations:
                continue
            item = self._buffer(operations[0].target).dtype.itemsize
            block = strand.elements if len(operations) == 1 else max(1, BLOCK_BYTES // item)
            for begin in range(0, strand.elements, block):
                end = min(begin + block, strand.elements)
                for operation in operations:
                    bound += self._call(operation, begin, end)
        return bound

    def _buffer(self, place: Place) -> Array:
        return self._buffers[(place.rank, place.space)]

    def _view(self, place: Place, begin: int, end: int) -> Array:
        return self._buffer(place)[place.offset + begin : place.offset + end]

    def _call(self, operation: Operation, begin: int, end: int) -> list[Call]:
        target = self._view(operation.target, begin, end)
        if operation.kind == AVERAGE:
            return _average(target, self._ranks)
        sources = [self._view(place, begin, end) for place in operation.sources]
        if operation.kind == COPY:
            return [(np.copyto, (target, sources[0]))]
        reduction = _REDUCTIONS[self._op]
        if self._op in ("min", "max"):
            # These two take their output by keyword only (NumPy 2.4 deprecates it as third argument).
            return [(partial(reduction, out=target), (sources[0], sources[1]))]
        return [(reduction, (sources[0], sources[1], target))]


def _average(target: Array, ranks: int) -> list[Call]:
    """Divide in place; whole numbers are cut towards zero, as C does."""
    divisor = np.asarray(ranks).astype(target.dtype)
    if target.dtype.kind not in "iu":
        return [(np.divide, (target, divisor, target))]
    remainder = np.empty_like(target)
    return [
        (np.fmod, (target, divisor, remainder)),
        (np.subtract, (target, remainder, target)),
        (np.floor_divide, (target, divisor, target)),
    ]
