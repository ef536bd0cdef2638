"""Launches of Gloo that are begun and go on by themselves: one behind a computation, or two at the same time.

A process group's own thread runs what is begun, so the rank has nothing to look after. When a work is over,
that thread says so through the work's future. Sends and receives between two ranks have none, nor has a
reduce_scatter, which torch makes of Gloo's all-reduce and a copy: these are over when they were waited for.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

from ccbench.backends.gloo.calls import Begin, Work

SILENT = ("send_recv", "reduce_scatter")
"""Collectives that do not tell when they are over (``Work::getFuture not implemented``, torch 2.13)."""

LOOKED_AFTER = "Gloo's own thread runs the collective, which is asked between repetitions whether it is over"
WAITED_FOR = (
    "the collective does not tell when it is over, and is waited for after its share of the computation"
)
AT_ONCE = "each collective runs in the thread of a process group of its own"


class GlooBackground:
    """Implements ``ccbench.backends.background.Background``."""

    def __init__(self, begin: Begin, collective: str) -> None:
        self.tells = collective not in SILENT
        self._begin = begin
        self._works: Sequence[Work] = ()

    def begin(self) -> None:
        """Start a launch; a copy that Gloo needs before is done here."""
        self._works = self._begin()

    def over(self) -> bool:
        """Whether the launch is over."""
        if not all(work.is_completed() for work in self._works):
            return False
        self.wait()  # at once; raises what went wrong in the other thread
        return True

    def wait(self) -> None:
        """Return when the launch is over."""
        for work in self._works:
            work.wait()

    def launch(self) -> None:
        """One launch with nothing beside it."""
        self.begin()
        self.wait()


class BothAtOnce:
    """Two collectives on process groups of their own, the case's own begun first.

    seconds: each launch adds how long either took from the launch's begin; None where they cannot be told
    apart. One that does not tell when it is over is waited for before the one that does, so that the end of
    its wait is its end.
    """

    def __init__(
        self, begins: Sequence[Begin | None], collectives: Sequence[str], seconds: list[float] | None
    ) -> None:
        """begins: None where this rank has no part in a collective."""
        self._begins = [(lane, begin) for lane, begin in enumerate(begins) if begin is not None]
        self._tells = [name not in SILENT for name in collectives]
        self._seconds = seconds

    def __call__(self) -> None:
        """One launch, which is over when both are."""
        began = time.perf_counter()
        running = [(lane, begin(), dict[int, float]()) for lane, begin in self._begins]
        for lane, works, ends in running:
            if self._seconds is not None and self._tells[lane]:
                for number, work in enumerate(works):
                    work.get_future().add_done_callback(partial(_note, ends, number))
        for lane, works, ends in sorted(running, key=self._tells_last):
            for number, work in enumerate(works):
                work.wait()
                ends.setdefault(number, time.perf_counter())
            if self._seconds is not None:
                self._seconds[lane] += max(ends.values(), default=began) - began

    def _tells_last(self, one: tuple[int, Sequence[Work], dict[int, float]]) -> bool:
        return self._tells[one[0]]


def _note(ends: dict[int, float], number: int, future: object) -> None:
    """Called in the process group's thread."""
    ends[number] = time.perf_counter()
