"""A collective that goes on while its rank does something else, on endpoints of ranks without shared memory.

Collectives without blocking need the calling rank to look after them: MPI may move data only inside MPI's
calls (MPI 4.0, section 3.7.4, "Progress"), while Gloo has threads of its own. So between two repetitions of a
computation, some tens of microseconds apart, it is asked whether the collective is over, as programs do that
hide communication; and where it is, the next launch begins at once, as on a stream beside the computation.
What does not tell whether it is over is waited for after its share of the computation.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from ccbench.backends.apart import ApartEndpoint
from ccbench.backends.computing import HostComputation


class Background(Protocol):
    """One launch at a time that goes on by itself. tells: whether ``over`` can be asked."""

    tells: bool

    def begin(self) -> None:
        """Start a launch; the one before must be over."""

    def over(self) -> bool:
        """Look after the launch; whether it is over."""

    def wait(self) -> None:
        """Return when it is over."""


def run_while_computing(
    background: Background | None, once: Callable[[], None], launches: int, repetitions: int
) -> tuple[float, float]:
    """``launches`` launches while ``once`` runs ``repetitions`` times altogether, to the end of both.

    Returns the seconds from the call until the last repetition ended, and until the last launch was seen to
    be over: 0 where ``background`` is None, on a rank that stands by.
    """
    if background is not None and not background.tells:
        return _in_shares(background, once, launches, repetitions)
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
    while background is not None and left:
        background.wait()
        left -= 1
        if left:
            background.begin()
        else:
            communicated = clock() - began
    return computed, communicated


def _in_shares(
    background: Background, once: Callable[[], None], launches: int, repetitions: int
) -> tuple[float, float]:
    """A launch is begun, its share of the repetitions runs, then it is waited for, and the next one comes."""
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


class ComputingEndpoint(ApartEndpoint):
    """Implements ``ccbench.backends.endpoint.Overlapping`` where a case in mode overlap has a ``background``.

    A subclass sets it in ``bind``; None on a rank that stands by.
    """

    background: Background | None = None
    _computation: HostComputation | None = None

    def prepare_computing(self, kind: str) -> None:
        """Make the computation that is to hide the collective."""
        self._computation = HostComputation(kind)

    def compute(self, repetitions: int) -> None:
        """The computation alone."""
        assert self._computation is not None, "it is prepared"
        self._computation.run(repetitions)

    def launch_while_computing(self, launches: int, repetitions: int) -> tuple[float, float]:
        """Both at once; the seconds until the computation was over, and until the collective was."""
        assert self._computation is not None, "it is prepared"
        began = self._entered_seconds = time.perf_counter()
        if self._fault:
            self._fault.before_launches(launches)
        late = time.perf_counter() - began
        computed, communicated = run_while_computing(
            self.background, self._computation.once, launches, repetitions
        )
        self._left_seconds = time.perf_counter()
        return late + computed, late + communicated if self.background else 0.0

    def finish(self) -> None:
        """Drop what was computed on, whose room the next case may need, and the buffers. Collective."""
        self._computation = None
        super().finish()
