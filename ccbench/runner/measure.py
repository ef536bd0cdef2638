"""Measure one case: warm up, calibrate, sample until the interval is narrow, check the timed data.

Every rank runs ``measure`` at once. A sample is the time from the first rank's start to the last rank's end
of ``launches`` launches, divided by launches (ReproMPI's definition on a shared clock; where hosts have
clocks of their own, and where devices that start together have, the longest of the ranks' times). Rank 0
decides, all ranks follow, so that all stop together.

Two checks follow the samples, both exact. The last timed sample runs on fresh inputs and poisoned outputs,
and what it left is compared with what is right on every rank. Since launches on equal inputs cannot show a
rank that does not wait for the others, a few more launches, not timed, each get new data while ranks enter
them at different times without any barrier in between.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ccbench.backends.endpoint import FIRST_OF_WARM_UP, DeviceTimed, Endpoint, Overlapping
from ccbench.cases import ALONE, OVERLAP, OVERLAP_PARTS, Case, Sampling, capabilities_of
from ccbench.errors import UsageError
from ccbench.stats import stop_reason
from ccbench.verification import Mismatch

LAUNCHES_LIMIT = 1 << 20
WARMUP_SAMPLES_LIMIT = 64
ADVERSARIAL_LAUNCHES = 6
ADVERSARIAL_LARGE_LAUNCHES = 2
ADVERSARIAL_SIZE_LIMIT_BYTES = 1 << 20
SEEDS_PER_ROUND = 2 + ADVERSARIAL_LAUNCHES

DELAYS_SECONDS = (0.0, 0.0, 3e-5, 3e-4)
"""Delays of ranks before adversarial launches: most not at all, some for many times a small launch."""

DELAY_GROWS_FROM_BYTES = 512 << 10
DELAY_GROWTH_LIMIT = 64
"""Filling a large buffer takes time itself, so a late rank must be later still to be late."""

DOUBLINGS_LIMIT = 24
"""Most times that what is computed meanwhile is doubled."""

CALIBRATION_TURNS = 3

SLOW_SAMPLE_SECONDS = 0.005
"""From here on asking after every sample whether to stop costs nothing that shows."""


@dataclass(frozen=True)
class RankResult:
    """Result of one rank. ``samples`` etc. are the same on all ranks: they come from shared stamps.

    stamps: (ranks, samples, 2) in seconds; warmup_seconds: per launch, as this rank saw it;
    waiting_seconds: of a launch, what this rank waited for others. parts: names of what samples are made of,
    where measuring takes it apart; part_stamps: (ranks, parts, samples, 2).
    """

    rank: int
    stamps: NDArray[np.float64]
    warmup_seconds: tuple[float, ...]
    waiting_seconds: float
    launches: int
    stop_reason: str
    mismatch: Mismatch | None
    launching_seconds: float
    parts: tuple[str, ...] = ()
    part_stamps: NDArray[np.float64] = field(default_factory=lambda: np.empty((0, 0, 0, 2)))


def measure(endpoint: Endpoint, case: Case, sampling: Sampling, seed: int) -> RankResult:
    """Take part in one round of ``case``.

    seed: a number that changes from round to round, so that old results are not taken for new ones.
    """
    seeds = range(SEEDS_PER_ROUND * seed, SEEDS_PER_ROUND * (seed + 1))
    endpoint.poison()
    endpoint.refill(seeds[0], LAUNCHES_LIMIT)
    warmup = _warm_up(endpoint, sampling)
    launch_seconds = _of_all_ranks(endpoint, warmup)
    launches = _launches_per_sample(endpoint, case, sampling, launch_seconds)
    turns = _turns(endpoint, case, launches, launch_seconds)
    # There is room for so many stamps: the rest of a longer round is for the next ones.
    room = endpoint.stamps.shape[1] // turns.stamps
    sampling = replace(sampling, maximum_samples=min(sampling.maximum_samples, room))
    count, reason = _sample(endpoint, case, sampling, turns, launch_seconds)
    mismatch = _checked_sample(endpoint, case, count, seeds[1], turns)
    adversarial = _adversarial(endpoint, case, seeds[2 : 2 + _adversarial_launches(case)], turns)
    endpoint.barrier()
    _bring_stamps(endpoint, (count + 1) * turns.stamps)
    stamps = endpoint.stamps[:, : (count + 1) * turns.stamps].copy()
    by_part = stamps.reshape(len(stamps), count + 1, turns.stamps, 2).swapaxes(1, 2)
    own = by_part[endpoint.rank, turns.launching]
    return RankResult(
        endpoint.rank,
        by_part[:, 0],
        warmup.turns_seconds,
        warmup.waiting_seconds,
        launches,
        reason,
        mismatch or adversarial,
        float(np.sum(own[..., 1] - own[..., 0])) + warmup.total_seconds,
        turns.parts,
        by_part[:, 1:],
    )


def _turns(endpoint: Endpoint, case: Case, launches: int, launch_seconds: float) -> Plain | Overlapped:
    """Return what a sample is made of."""
    if case.mode != OVERLAP:
        return Plain(endpoint, launches)
    if not isinstance(endpoint, Overlapping):
        raise UsageError(
            "mode overlap: this backend cannot compute while it communicates; choose another mode"
        )
    endpoint.prepare_computing(case.overlap_with)
    computes = len(endpoint.stamps) != case.ranks or endpoint.rank in case.communicating_ranks
    turns = Overlapped(endpoint, launches, computes)
    _calibrate(endpoint, case, turns, launches * launch_seconds)
    return turns


def _calibrate(endpoint: Endpoint, case: Case, turns: Overlapped, seconds: float) -> None:
    """Have the computation take about as long as the collective, each alone: as samples will see them.

    Ever twice as much is computed, until it takes half of ``seconds``, what the collective took as it warmed
    up; then both are compared. The number of repetitions is rank 0's on all ranks.
    """
    turns.compute(0)  # the first time something may have to be made ready
    repetitions = 1
    for _ in range(DOUBLINGS_LIMIT):
        turns.repeat(repetitions)
        turns.compute(0)
        computing, _ = _alone_seconds(endpoint, case)
        if endpoint.agree(int(2 * computing >= seconds)):
            break
        repetitions *= 2
    ratios = []
    for _ in range(CALIBRATION_TURNS):
        turns.compute(0)
        turns.communicate(0)
        computing, communicating_seconds = _alone_seconds(endpoint, case)
        ratios.append(communicating_seconds / max(computing, 1e-9))
    wanted = round(repetitions * float(np.median(ratios)))
    turns.repeat(endpoint.agree(max(1, min(wanted, 1 << DOUBLINGS_LIMIT))))


def _alone_seconds(endpoint: Endpoint, case: Case) -> tuple[float, float]:
    """Return what computation and collective took in the turns just taken, over ranks taking part."""
    endpoint.barrier()
    _bring_stamps(endpoint, Overlapped.stamps)
    took = durations(taking_part(case, endpoint.stamps[:, 1:3]))
    _bring_stamps(endpoint, 0)  # other stamps come where these were
    endpoint.barrier()
    return float(took[0]), float(took[1])


def _of_all_ranks(endpoint: Endpoint, warmup: _WarmUp) -> float:
    """A launch as the slowest rank saw it in the last turn: some ranks may have had nothing to do."""
    endpoint.stamps[endpoint.rank, 0] = 0.0, warmup.turns_seconds[-1]
    endpoint.barrier()
    _bring_stamps(endpoint, 1)
    slowest = float(endpoint.stamps[:, 0, 1].max())
    _bring_stamps(endpoint, 0)  # the first sample's come here next: what was brought is not theirs
    endpoint.barrier()
    return slowest


def taking_part(case: Case, stamps: NDArray[np.float64]) -> NDArray[np.float64]:
    """The rows of ``stamps`` that are of ranks with something to do; one row stands for all ranks."""
    ranks = case.communicating_ranks
    return stamps if len(ranks) == case.ranks or len(stamps) != case.ranks else stamps[ranks, :]


@dataclass(frozen=True)
class _WarmUp:
    """Seconds per launch of each turn; of all launches together; and waiting per launch of the last turn."""

    turns_seconds: tuple[float, ...]
    total_seconds: float
    waiting_seconds: float


def _warm_up(endpoint: Endpoint, sampling: Sampling) -> _WarmUp:
    """Twice as many launches each time, until the warm-up time is over.

    Waits are timed here and not in the samples, which they would make longer.
    """
    total = 0.0
    seconds: list[float] = []
    launches = 1
    began = time.perf_counter()
    for turn in range(WARMUP_SAMPLES_LIMIT):
        endpoint.watch(FIRST_OF_WARM_UP - turn)
        endpoint.barrier()
        start = time.perf_counter()
        waited = endpoint.launch_and_time_waits(launches) / launches
        now = time.perf_counter()
        seconds.append((now - start) / launches)
        total += now - start
        over = turn > 0 and now - began >= sampling.warmup_seconds
        if endpoint.agree(int(over)):
            break
        launches = min(2 * launches, LAUNCHES_LIMIT)
    return _WarmUp(tuple(seconds), total, waited)


def _launches_per_sample(endpoint: Endpoint, case: Case, sampling: Sampling, launch_seconds: float) -> int:
    if case.mode in ALONE:
        return 1
    if sampling.launches:
        return sampling.launches
    wanted = math.ceil(sampling.minimum_sample_seconds / max(launch_seconds, 1e-9))
    if isinstance(endpoint, DeviceTimed):
        wanted = endpoint.sample_launches(wanted, launch_seconds)
    return endpoint.agree(max(1, min(wanted, LAUNCHES_LIMIT)))


def _bring_stamps(endpoint: Endpoint, count: int) -> None:
    endpoint.share_stamps(count)


def _checked_sample(
    endpoint: Endpoint, case: Case, sample: int, seed: int, turns: Plain | Overlapped
) -> Mismatch | None:
    turns.alone(sample)
    endpoint.poison()
    endpoint.refill(seed, turns.launches)
    if not case.in_place:
        # Filling leaves buffers in other caches than a stream of launches does: put that right, then
        # spoil the result again. (In place that would spoil the input.)
        endpoint.launch(1)
        endpoint.poison()
    turns.together(sample)
    return endpoint.check(seed, turns.launches)


def _adversarial(
    endpoint: Endpoint, case: Case, seeds: Sequence[int], turns: Plain | Overlapped
) -> Mismatch | None:
    """Launches that go wrong when a wait is missing: new data each time, ranks late by turns, no barrier.

    Who reads a late rank's input too early finds old data there; what is pushed to it too early, it
    overwrites with poison; and who leaves too early spoils its input under the late rank's eyes.
    """
    found: Mismatch | None = None
    growth = min(max(1.0, case.size_bytes / DELAY_GROWS_FROM_BYTES), DELAY_GROWTH_LIMIT)
    for seed in seeds:
        delay = DELAYS_SECONDS[(7 * seed + 3 * endpoint.rank) % len(DELAYS_SECONDS)] * growth
        until = time.perf_counter() + delay
        while time.perf_counter() < until:
            pass
        endpoint.poison()
        endpoint.refill(seed)
        turns.once()
        found = found or endpoint.check(seed, 1)
    return found


def _adversarial_launches(case: Case) -> int:
    """Fewer where filling and checking a buffer costs more than measuring it."""
    return (
        ADVERSARIAL_LAUNCHES
        if case.size_bytes <= ADVERSARIAL_SIZE_LIMIT_BYTES
        else ADVERSARIAL_LARGE_LAUNCHES
    )


def _sample(
    endpoint: Endpoint,
    case: Case,
    sampling: Sampling,
    turns: Plain | Overlapped,
    launch_seconds: float,
) -> tuple[int, str]:
    """All samples but the last; (their number, why it stopped)."""
    launches, stamps = turns.launches, turns.stamps
    slow = bool(endpoint.agree(int(launches * launch_seconds > SLOW_SAMPLE_SECONDS)))
    began = time.perf_counter()
    count, next_look = 0, sampling.minimum_samples - 1
    reasons = ("", "interval", "budget", "maximum of samples")
    while True:
        if slow or count >= next_look or count >= sampling.maximum_samples - 1:
            next_look = count + max(1, count // 8)
            endpoint.barrier()
            _bring_stamps(endpoint, count * stamps)
            reason = ""
            if endpoint.rank == 0:
                taken = taking_part(case, endpoint.stamps[:, : count * stamps : stamps])
                samples = durations(taken, by_last_starter(case)) / launches
                # The checked sample still comes: until then the newest one stands in for it.
                samples = np.append(samples, samples[-1:] if count else launch_seconds)
                reason = stop_reason(sampling, samples, time.perf_counter() - began)
            decision = reasons[endpoint.agree(reasons.index(reason))]
            if decision:
                return count, decision
        turns.alone(count)
        turns.together(count)
        count += 1


WAITED_FOR_BY_ALL = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
"""Collectives of which no rank has the result before every rank has started."""


def by_last_starter(case: Case) -> bool:
    """Return whether a sample is the time of the rank that took least, by the clocks of the ranks' devices.

    One launch alone, of all ranks, that none can end before all have begun, on hosts that let their
    devices go each by itself: what others took more, they waited for who started last. On one host all
    start together, and who took least only ended first, as a tree's root ends before its leaves.
    """
    waits = case.collective in WAITED_FOR_BY_ALL and not (case.groups or case.concurrent)
    return waits and case.nodes > 1 and case.mode in ALONE and capabilities_of(case.backend).device_timed


def durations(stamps: NDArray[np.float64], last_starter: bool = False) -> NDArray[np.float64]:
    """First rank's start to last rank's end of each sample; stamps has shape (ranks, samples, 2).

    last_starter: the time of the rank that took least (``by_last_starter``).
    """
    began, ended = stamps[:, :, 0], stamps[:, :, 1]
    result: NDArray[np.float64] = (
        (ended - began).min(axis=0) if last_starter else ended.max(axis=0) - began.min(axis=0)
    )
    return result


# -- what a sample is made of ------------------------------------------------------------------------------


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
