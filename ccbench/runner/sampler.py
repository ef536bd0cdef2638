"""What a sample is made of: launches of the collective, or these and a computation, by turns and at once."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Protocol

from ccbench.backends.endpoint import DeviceTimed, Endpoint, Overlapping
from ccbench.cases import OVERLAP_PARTS


class Plain:
    """A sample is ``launches`` launches.

    stamps: how many a sample has; the first is the sample itself, then come those of ``parts``. launching:
    which of them are of launches.
    """

    stamps = 1
    parts: tuple[str, ...] = ()
    launching: tuple[int, ...] = (0,)

    def __init__(self, endpoint: Endpoint, launches: int) -> None:
        self._endpoint = endpoint
        self.launches = launches

    def alone(self, sample: int) -> None:
        """Nothing is measured before the sample itself."""

    def together(self, sample: int) -> None:
        """Take the sample."""
        endpoint = self._endpoint
        endpoint.watch(sample)
        endpoint.barrier()
        start = time.perf_counter()
        endpoint.launch(self.launches)
        end = time.perf_counter()
        if isinstance(endpoint, DeviceTimed):  # devices start together, whenever their hosts got here
            start, end = 0.0, endpoint.device_seconds()
        endpoint.stamps[endpoint.rank, sample] = (start, end)

    def once(self) -> None:
        """One launch as samples have them."""
        self._endpoint.launch(1)


class OverlappingEndpoint(Endpoint, Overlapping, Protocol):
    """An endpoint that can do both."""


class Overlapped:
    """A sample is the computation alone, the collective alone, and both together, which is its time.

    By turns in every sample, so that all three are of the same moment and their ratios stand whatever the
    machine does meanwhile.
    """

    stamps = 1 + len(OVERLAP_PARTS)
    parts = OVERLAP_PARTS
    launching: tuple[int, ...] = (0, 1, 2)

    def __init__(self, endpoint: OverlappingEndpoint, launches: int, computes: bool) -> None:
        """computes: False for a rank that stands by and leaves the processors to those who do something."""
        self._endpoint = endpoint
        self.launches = launches
        self._computes = computes
        self._repetitions = int(computes)

    def repeat(self, repetitions: int) -> None:
        """Compute so much for every sample from now on."""
        self._repetitions = repetitions if self._computes else 0

    def alone(self, sample: int) -> None:
        """The computation, then the collective, each alone on all ranks."""
        self._endpoint.watch(sample)
        self.compute(sample)
        self.communicate(sample)

    def compute(self, sample: int) -> None:
        """The computation alone."""
        self._timed(sample * self.stamps + 1, partial(self._endpoint.compute, self._repetitions))

    def communicate(self, sample: int) -> None:
        """The collective alone."""
        self._timed(sample * self.stamps + 2, partial(self._endpoint.launch, self.launches))

    def _timed(self, stamp: int, work: Callable[[], None]) -> None:
        endpoint = self._endpoint
        start, seconds = timed(endpoint, work)
        endpoint.stamps[endpoint.rank, stamp] = (start, start + seconds)

    def together(self, sample: int) -> None:
        """Both at once."""
        endpoint = self._endpoint
        endpoint.barrier()
        start = time.perf_counter()
        took = endpoint.launch_while_computing(self.launches, self._repetitions)
        stamps = endpoint.stamps[endpoint.rank, sample * self.stamps : (sample + 1) * self.stamps]
        if isinstance(endpoint, DeviceTimed):
            start = 0.0
        for place, seconds in ((0, max(took)), (3, took[0]), (4, took[1])):
            stamps[place] = (start, start + seconds)

    def once(self) -> None:
        """One launch while there is a little to compute."""
        self._endpoint.launch_while_computing(1, min(1, self._repetitions))


def timed(endpoint: Endpoint, work: Callable[[], None]) -> tuple[float, float]:
    """When ``work`` began on this rank, all ranks having come, and what it took by the endpoint's clock.

    Devices with a clock of their own start together, at 0.
    """
    endpoint.barrier()
    start = time.perf_counter()
    work()
    seconds = time.perf_counter() - start
    return (0.0, endpoint.device_seconds()) if isinstance(endpoint, DeviceTimed) else (start, seconds)
