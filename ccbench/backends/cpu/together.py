"""Two things of one rank at the same time: a second collective's program, or a computation.

Neither ever waits while the other could go on. Launches are in step: a rank enters the next launch of both
when both are over. So nothing can stop for good: of the ranks that are in the earliest launch, none waits for
one that is ahead, whose counters only grow; and in that launch every rank goes on with each program whenever
that one's waits are satisfied, as if it were alone, whatever groups the other one has.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import chain

from ccbench.backends.cpu.execution import Bystander, Launcher, Pace

Program = Launcher | Bystander

_OVER = None
"""What a program's next step is after its last one."""


class Together:
    """Several programs of one rank, by turns.

    How long each program takes is counted from where each launch begins.
    """

    def __init__(self, programs: Sequence[Program], pace: Pace) -> None:
        """pace: how this rank rests; its ``waited_seconds`` are those in which no program could go on."""
        self._programs = tuple(programs)
        self._pace = pace
        self._seconds = [0.0] * len(programs)

    def taken(self, launches: int) -> tuple[float, ...]:
        """Seconds per launch of each program, of the ``launches`` since this was last asked."""
        seconds, self._seconds = self._seconds, [0.0] * len(self._programs)
        return tuple(total / launches for total in seconds)

    def launch(self, times: int = 1, time_waits: bool = False) -> None:
        """Take part in ``times`` launches of every program; every rank must ask for as many."""
        for _ in range(times):
            idle = 0
            for moved in self.steps():
                idle = 0 if moved else self._idle(idle, time_waits)

    def steps(self) -> Iterator[bool]:
        """One launch of every program bit by bit: True when one went on, False when none could."""
        began = time.perf_counter()
        left = [(number, program.steps()) for number, program in enumerate(self._programs)]
        while left:
            moved = False
            for one in left:
                step = next(one[1], _OVER)
                if step is _OVER:
                    self._seconds[one[0]] += time.perf_counter() - began
                    left = [other for other in left if other is not one]
                moved = moved or step is not False
            yield moved

    def _idle(self, looks: int, time_waits: bool) -> int:
        if time_waits:
            began = time.perf_counter()
            self._pace.rest(looks)
            self._pace.waited_seconds += time.perf_counter() - began
        else:
            self._pace.rest(looks)
        return looks + 1


def while_computing(
    program: Program | Together, once: Callable[[], None], launches: int, repetitions: int, pace: Pace
) -> tuple[float, float]:
    """Launches of ``program``, looked after between every two repetitions of a computation.

    What can go on of the collective goes on; then comes the next repetition. What is left of the longer one
    comes at the end, alone. Returns the seconds until the computation and until the launches were over.
    """
    began = time.perf_counter()
    steps = chain.from_iterable(_launches(program, launches))
    computed = communicated = 0.0
    done = idle = 0
    running = True
    while running or done < repetitions:
        step = next(steps, _OVER) if running else False
        if step is _OVER:
            running, communicated = False, time.perf_counter() - began
        elif step:
            idle = 0
        elif done < repetitions:
            once()
            done += 1
            if done == repetitions:
                computed = time.perf_counter() - began
        else:
            pace.rest(idle)
            idle += 1
    return computed, communicated


def _launches(program: Program | Together, launches: int) -> Iterator[Iterator[bool]]:
    for _ in range(launches):
        yield program.steps()
