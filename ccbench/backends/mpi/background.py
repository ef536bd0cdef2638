"""Non-blocking launches of MPI: one behind a computation, or two at the same time.

Begun from Python, one mpi4py method each: what goes on in between cannot be a loop in C.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from ccbench.backends.mpi.calls import Starter

LOOKED_AFTER = "the collective is begun without blocking, and MPI_Testall called between repetitions"
AT_ONCE = "both collectives are begun without blocking, then waited for by MPI_Waitany"


class MpiBackground:
    """Implements ``ccbench.backends.background.Background``: MPI_Testall lets the library make progress."""

    tells = True

    def __init__(self, mpi: Any, starter: Starter) -> None:
        self._test_all, self._wait_all = mpi.Request.Testall, mpi.Request.Waitall
        self._starter = starter
        self._requests: list[Any] = []

    def begin(self) -> None:
        """Start a launch."""
        self._requests = self._starter.begin()

    def over(self) -> bool:
        """Let the library make progress; whether the launch is over."""
        if not self._test_all(self._requests):
            return False
        self._end()
        return True

    def wait(self) -> None:
        """Return when the launch is over."""
        self._wait_all(self._requests)
        self._end()

    def launch(self) -> None:
        """One launch with nothing beside it."""
        self.begin()
        self.wait()

    def _end(self) -> None:
        if self._starter.after:
            self._starter.after()


class BothAtOnce:
    """Two collectives, the case's own begun first. None: this rank has no part in that one."""

    def __init__(self, mpi: Any, starters: Sequence[Starter | None], seconds: list[float]) -> None:
        """seconds: each launch adds how long either took from the launch's begin."""
        self._wait_any = mpi.Request.Waitany
        self._starters = [(lane, one) for lane, one in enumerate(starters) if one is not None]
        self._seconds = seconds

    def __call__(self) -> None:
        """One launch, which is over when both are."""
        clock, seconds = time.perf_counter, self._seconds
        began = clock()
        requests: list[Any] = []
        lanes: list[tuple[int, Starter]] = []
        left = [0, 0]
        for lane, one in self._starters:
            begun = one.begin()
            requests += begun
            lanes += [(lane, one)] * len(begun)
            left[lane] = len(begun)
        while any(left):
            number = self._wait_any(requests)
            # MPI_UNDEFINED, below 0: what is left was complete from the start, which it does not tell.
            known = number >= 0
            for lane, one in [lanes[number]] if known else [one for one in self._starters if left[one[0]]]:
                left[lane] = left[lane] - 1 if known else 0
                if not left[lane]:
                    if one.after:
                        one.after()
                    seconds[lane] += clock() - began
