"""Price of one launch of the CPU backend, at five costs that its own ranks measure between the rounds of a run.

A compiled program says of every rank what it waits for, calls, copies and reduces. ``longest_path`` follows
several launches of all ranks and counts along the way that ends last:

    price = flags x flag + groups x group + calls x call + bytes copied x copying + bytes reduced x reducing

``Probe`` measures the five, all ranks at once, at the case's working set, type and operation, before and after
each round; the price takes their lower quartiles. Nothing is kept from one run to the next: what slows a round
slows the probe beside it. The price says which of the five a case is made of; it is no bound, and no verdict.
"""

from __future__ import annotations

import math
import mmap
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from ccbench.backends.control_block import Control, Word, fence
from ccbench.backends.cpu.arena import Arena
from ccbench.backends.cpu.execution import BLOCK_BYTES, Call, Waiter, calls_of
from ccbench.backends.cpu.program import AVERAGE, COPY, REDUCE, CompiledCase, Group, Wait
from ccbench.backends.launch_price import CALL, COPIED, FLAG, GROUP, REDUCED, TERMS, Floats
from ccbench.backends.rank_endpoint import STAGGER_BYTES
from ccbench.cases.axes import OVERLAP, Case
from ccbench.dtypes import item_bytes, numpy_dtype

Posts = dict[int, list[tuple[int, Floats]]]
"""Of each rank the values that its counter took in a launch, and the way to each."""

LAUNCHES = 5
"""Launches followed; the first one finds everybody ready, the others follow each other as in a sample."""

LEAST_WORKING_SET, MOST_WORKING_SET = 32 << 10, 64 << 20
"""Bytes of a rank. Below, a call's fixed cost hides what its bytes cost; above, no cache holds any of them."""

LEAST_SHARE_OF_WORK = 0.25
"""Share of a call on many bytes that is at least theirs, however long the call on one element took."""

LEAST_TIMES = 3
"""Repetitions in a window, however long they are, and before every one: so many passes fill a shared cache."""

WINDOW_SECONDS = 0.5e-3
"""Short against a slice of a scheduler's time (3 ms): most windows fall between what other programs get."""

MOST_GROWTH = 50.0

FILLED_AT_ONCE = 1 << 16
"""Elements."""


def is_priced(case: Case) -> bool:
    """Return whether the five costs make a launch of ``case``: it is alone, with warm data.

    Of the three operations that average whole numbers none is among them.
    """
    whole_average = case.op == "avg" and "int" in case.dtype
    return not (case.concurrent or case.mode in (OVERLAP, "cold") or whole_average)


def work_of(group: Group, item_bytes: int, averages: bool) -> Floats:
    """Return what a rank does in ``group``, by TERMS; the extra pass of an average counts as reducing."""
    work = np.zeros(len(TERMS))
    work[GROUP] = 1.0
    for loop in group.loops:
        used = [each for each in loop.operations if averages or each.kind != AVERAGE]
        blocks = loop.elements * item_bytes / BLOCK_BYTES if len(used) > 1 else 1.0
        for operation in used if loop.elements else ():
            work[CALL] += math.ceil(blocks)
            work[COPIED if operation.kind == COPY else REDUCED] += loop.elements * item_bytes
    return work


@dataclass(frozen=True, eq=False)
class LaunchWork:
    """One launch of a group's ranks as its price takes it.

    groups: (step, rank, waits, work by TERMS), in order of steps. exits: what each rank waits for at its end.
    working_set: bytes touched, each once, by rank that works. working: those ranks, all where there is no work.
    """

    groups: tuple[tuple[int, int, tuple[Wait, ...], Floats], ...]
    exits: dict[int, tuple[Wait, ...]]
    working_set: int
    working: tuple[int, ...]

    @property
    def work(self) -> Floats:
        """All ranks' work, by TERMS."""
        return sum((work for *_, work in self.groups), np.zeros(len(TERMS)))


def launch_of(compiled: CompiledCase, case: Case) -> LaunchWork:
    """Return what the programs of all ranks do in a launch of ``case``."""
    size, groups, places, working = item_bytes(case.dtype), [], set(), []
    for rank, program in compiled.programs.items():
        for group in program.groups:
            work = work_of(group, size, case.op == "avg")
            groups.append((group.post, rank, group.waits, work))
        loops = [loop for group in program.groups for loop in group.loops if loop.elements]
        working += [rank] if loops else []
        for operation in (operation for loop in loops for operation in loop.operations):
            places |= {*operation.sources, operation.target}
    total = size * sum(place.elements for place in places)
    # Who waits, waits for earlier steps: in order of steps every way is known when it is looked up.
    return LaunchWork(
        tuple(sorted(groups, key=itemgetter(0, 1))),
        {rank: program.exit_waits for rank, program in compiled.programs.items()},
        total // max(len(working), 1),
        tuple(working or compiled.programs),
    )


def longest_path(launch: LaunchWork, costs: Floats) -> Floats:
    """Return what a launch does along the way that ends last, by TERMS; costs: as ``Probe.costs`` gives them."""
    flag = np.eye(len(TERMS))[FLAG]
    here = dict.fromkeys(launch.exits, np.zeros(len(TERMS)))
    ends = []

    def after(rank: int, waits: Iterable[Wait], posts: Posts) -> Floats:
        ways = [here[rank]]
        for peer, goal in waits:
            ways.append(flag + next(way for post, way in posts[peer] if post >= goal))
        return max(ways, key=costs.__matmul__)

    for _ in range(LAUNCHES):
        posts: Posts = {rank: [(0, way)] for rank, way in here.items()}
        for post, rank, waits, work in launch.groups:
            here[rank] = after(rank, waits, posts) + work
            posts[rank].append((post, here[rank]))
        # Who leaves a launch waits for the others' last step, not for their leaving.
        here = {rank: after(rank, waits, posts) for rank, waits in launch.exits.items()}
        ends.append(max(here.values(), key=costs.__matmul__))
    return np.asarray((ends[-1] - ends[0]) / (LAUNCHES - 1))


class Probe:
    """Measures the five costs, all ranks at the same time; made before the ranks are forked."""

    def __init__(self, ranks: int) -> None:
        self.ranks, self.rank = ranks, -1
        self._control = Control(ranks, 1)
        self._arenas = [Arena() for _ in range(ranks)]
        self._waiter = Waiter(self._control, False)
        self._barriers = 0
        self._filled: tuple[object, int] = None, 0
        self._times: dict[object, int] = {}

    def costs(self, case: Case, launch: LaunchWork, crowded: bool) -> tuple[float, ...]:
        """Return seconds by TERMS, now; 0.0 for what ``launch`` does not do. Collective.

        crowded: ranks share processors. Each figure is of one window, from the first rank's start to the last
        rank's end.
        """
        self._waiter.crowded(crowded)
        active = case.communicating_ranks
        self._waiter.stands_by = self.rank not in active
        working = tuple(members[rank] for members in case.members for rank in launch.working)
        dtype, work = numpy_dtype(case.dtype), launch.work
        touched = min(max(launch.working_set, LEAST_WORKING_SET), MOST_WORKING_SET)
        target, source = self._operands(touched // 2 // dtype.itemsize, dtype, 2)
        result, mine, theirs = self._operands(touched // 3 // dtype.itemsize, dtype, 3)
        forms = {
            GROUP: [],
            CALL: calls_of(COPY, "", [source[:1]], target[:1], self.ranks),
            COPIED: calls_of(COPY, "", [source], target, self.ranks),
            REDUCED: calls_of(REDUCE, case.op, [mine, theirs], result, self.ranks)
            if work[REDUCED]
            else [],
        }
        seconds = [self._window(FLAG, partial(self._pass_token, active), active)]
        for term, calls in forms.items():
            key = (term, touched, dtype, case.op, working)
            timed = partial(self._launch, calls)
            seconds.append(self._window(key, timed, working) if work[term] else 0.0)
        call = seconds[CALL]
        for term, operand in ((COPIED, target), (REDUCED, result)):
            least = LEAST_SHARE_OF_WORK * seconds[term]
            seconds[term] = max(seconds[term] - call, least) / operand.nbytes
        seconds[CALL] = max(call - seconds[GROUP], 0.0)
        return tuple(seconds)

    def release(self) -> None:
        """Forget the operands of the last case."""
        self._filled = None, 0
        for arena in self._arenas:
            arena.release()

    def shrink(self) -> None:
        """Give their memory back, after every rank has released it."""
        self._arenas[self.rank].shrink()

    def _operands(
        self, elements: int, dtype: np.dtype[np.generic], count: int
    ) -> list[NDArray[np.generic]]:
        """Return arrays in this rank's memory but for the last one, which is in its neighbour's."""
        size = -(-elements * dtype.itemsize // mmap.PAGESIZE) * mmap.PAGESIZE + STAGGER_BYTES
        if self._filled != (dtype, max(self._filled[1], count * size)):
            self._filled = dtype, count * size
            self._arenas[self.rank].reserve(count * size)
            whole = self._arenas[self.rank].view(0, count * size // dtype.itemsize, dtype)
            # Of either sign, for 16-bit floats branch on it; a sum of two stays in every type.
            some = np.random.default_rng(self.rank).integers(-9, 10, FILLED_AT_ONCE)
            for begin in range(0, len(whole), FILLED_AT_ONCE):
                part = whole[begin : begin + FILLED_AT_ONCE]
                part[:] = some[: len(part)]
            self._barrier()
        owners = [self.rank] * (count - 1) + [(self.rank + 1) % self.ranks]
        return [
            self._arenas[owner].view(number * size, elements, dtype)
            for number, owner in enumerate(owners)
        ]

    def _window(
        self, key: object, work: Callable[[int], None], working: Sequence[int]
    ) -> float:
        """Return the seconds that each ``work`` takes, in a window that is long enough."""
        times = self._times.get(key, LEAST_TIMES)
        self._timed(work, LEAST_TIMES, working)
        seconds = self._timed(work, times, working)
        # Looked at every time: a first try that was disturbed must not shorten all later windows.
        while seconds < WINDOW_SECONDS / 2:
            times = math.ceil(times * min(WINDOW_SECONDS / max(seconds, 1e-9), MOST_GROWTH))
            seconds = self._timed(work, times, working)
        self._times[key] = times
        return seconds / times

    def _timed(self, work: Callable[[int], None], times: int, working: Sequence[int]) -> float:
        """Return seconds from the first rank's start to the last rank's end; the same on all ranks."""
        stamps = self._control.stamps[:, 0]
        self._barrier()
        if self.rank in working:
            began = time.perf_counter()
            work(times)
            stamps[self.rank] = began, time.perf_counter()
        self._barrier()
        seconds = float(stamps[list(working), 1].max() - stamps[list(working), 0].min())
        self._barrier()
        return seconds

    def _barrier(self) -> None:
        self._barriers += 1
        self._waiter.meet(self.rank, self._barriers)

    def _pass_token(self, active: Sequence[int], times: int) -> None:
        """``times`` flags, each from a rank to the next: round the ranks, however many share a processor."""
        words, until, place = self._control.words, self._waiter.until, active.index(self.rank)
        first = self._barriers << 32  # more than any flag before, on all ranks alike
        before, mine = (
            self._control.index(active[(place + back) % len(active)], Word.PING)
            for back in (-1, 0)
        )
        for number in range(first, first + times):
            if (number - first) % len(active) == place:
                if number > first:
                    until(before, number - 1)
                words[mine] = number

    def _launch(self, calls: Sequence[Call], times: int) -> None:
        """``times`` groups as a launch runs them: a wait that is over, the calls, a post."""
        words, mine = self._control.words, self._control.index(self.rank, Word.PROGRESS)
        until, waits = self._waiter.until, ((mine, 0),)
        for number in range(times):
            for index, goal in waits:
                until(index, goal)
            for function, operands in calls:
                function(*operands)
            fence()
            words[mine] = number
