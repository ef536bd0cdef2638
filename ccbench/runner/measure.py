"""Measure one case: warm up, match what overlaps, sample until the interval is narrow, check the timed data.

Every rank runs ``measure`` at once. A sample is the time from the first rank's start to the last rank's end
of ``launches`` launches, divided by launches (ReproMPI's definition on a shared clock; where hosts have
clocks of their own, and where devices that start together have, the longest of the ranks' times). Rank 0
decides, all ranks follow, so that all stop together.

Two checks follow the samples, both exact. The last timed sample runs on fresh inputs and poisoned outputs,
and what it left is compared with what is right on every rank. Since launches on equal inputs cannot show a
rank that does not wait for the others, a few more launches, not timed, each get new data while ranks enter
them at different times without any barrier in between.

A run measures every case in several rounds: the end of this module says in which order, and how the rounds of
a case become one measurement.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ccbench.backends.endpoint import FIRST_OF_WARM_UP, DeviceTimed, Endpoint, Overlapping
from ccbench.cases.axes import ALONE, OVERLAP, OVERLAP_PARTS, Case
from ccbench.cases.capabilities import capabilities_of
from ccbench.cases.measurement import MORE_ROUNDS, NO_TEAM, Measurement, Sampling, Status
from ccbench.columns import merge
from ccbench.machine.readings import over_all, telling
from ccbench.runner.bits import RankBits, launch_inexact, over_rounds
from ccbench.stats import relative_width, rounds_interval, stop_reason
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

MATCHING_ROUNDS = 3

SLOW_SAMPLE_SECONDS = 0.005
"""From here on asking after every sample whether to stop costs nothing that shows."""


@dataclass(frozen=True)
class RankResult:
    """Result of one rank. ``stamps`` and ``part_stamps`` are the same on all ranks, which share them.

    stamps: (ranks, samples, 2) in seconds; warmup_seconds: per launch, as this rank saw it;
    waiting_seconds: of a launch, what this rank waited for others. part_stamps: (ranks, parts, samples, 2), of
    OVERLAP_PARTS in mode overlap.
    """

    stamps: NDArray[np.float64]
    warmup_seconds: tuple[float, ...]
    waiting_seconds: float
    launches: int
    stop_reason: str
    mismatch: Mismatch | None
    launching_seconds: float
    part_stamps: NDArray[np.float64] = field(default_factory=lambda: np.empty((0, 0, 0, 2)))
    bits: tuple[RankBits, ...] = ()


def measure(endpoint: Endpoint, case: Case, sampling: Sampling, seed: int) -> RankResult:
    """Take part in one round of ``case``.

    seed: a number that changes from round to round, so that old results are not taken for new ones.
    """
    seeds = range(SEEDS_PER_ROUND * seed, SEEDS_PER_ROUND * (seed + 1))
    # In place the output is the input, so poison comes before the data.
    endpoint.poison()
    endpoint.refill(seeds[0], LAUNCHES_LIMIT)
    warmup, warmup_total_seconds, waiting_seconds = _warm_up(endpoint, sampling)
    # A launch as the slowest rank saw it at last: some ranks may have had nothing to do.
    endpoint.stamps[endpoint.rank, 0] = 0.0, warmup[-1]
    launch_seconds = float(_shared_stamps(endpoint, 1)[:, 0, 1].max())
    launches = 1 if case.mode in ALONE else sampling.launches
    if not launches:
        # So many that a sample is long against the clock's steps and the barrier before it.
        needed = math.ceil(sampling.minimum_sample_seconds / max(launch_seconds, 1e-9))
        if isinstance(endpoint, DeviceTimed):
            needed = endpoint.sample_launches(needed, launch_seconds)
        launches = endpoint.agree(max(1, min(needed, LAUNCHES_LIMIT)))
    sampler = _sampler(endpoint, case, launches, launch_seconds)
    # There is room for so many stamps: the rest of a longer round is for the next ones.
    room = endpoint.stamps.shape[1] // sampler.stamps
    sampling = replace(sampling, maximum_samples=min(sampling.maximum_samples, room))
    count, reason = _sample(endpoint, case, sampling, sampler, launch_seconds)
    # The last sample is measured and checked: what is checked must be what is timed.
    sampler.time_parts(count)
    endpoint.poison()
    endpoint.refill(seeds[1], sampler.launches)
    if not case.in_place:
        # Filling leaves buffers in other caches than a stream of launches does: put that right, then
        # spoil the result again. (In place that would spoil the input.)
        endpoint.launch(1)
        endpoint.poison()
    sampler.time_sample(count)
    mismatch = endpoint.check(seeds[1], sampler.launches)
    adversarial = _adversarial(endpoint, case, seeds[2:], sampler)
    bits = _inexact_bits(endpoint, case, sampler)
    endpoint.barrier()
    endpoint.share_stamps((count + 1) * sampler.stamps)
    stamps = endpoint.stamps[:, : (count + 1) * sampler.stamps].copy()
    by_part = stamps.reshape(len(stamps), count + 1, sampler.stamps, 2).swapaxes(1, 2)
    # Of a sample with parts both together, then each alone; what each took beside the other is within the first.
    own = by_part[endpoint.rank, :3]
    return RankResult(
        by_part[:, 0],
        warmup,
        waiting_seconds,
        launches,
        reason,
        mismatch or adversarial,
        float(np.sum(own[..., 1] - own[..., 0])) + warmup_total_seconds,
        by_part[:, 1:],
        bits,
    )


def _warm_up(endpoint: Endpoint, sampling: Sampling) -> tuple[tuple[float, ...], float, float]:
    """Launch twice as often each time, until the warm-up time is over.

    Return the seconds per launch each time, the seconds of all, and those of the last launches, each, that
    this rank waited for others. Waits are timed here and not in the samples, which they would make longer.
    """
    total = 0.0
    seconds: list[float] = []
    launches = 1
    began = time.perf_counter()
    for number in range(WARMUP_SAMPLES_LIMIT):
        endpoint.begin_sample(FIRST_OF_WARM_UP - number)
        endpoint.barrier()
        start = time.perf_counter()
        waited = endpoint.launch_and_time_waits(launches) / launches
        now = time.perf_counter()
        seconds.append((now - start) / launches)
        total += now - start
        over = number > 0 and now - began >= sampling.warmup_seconds
        if endpoint.agree(int(over)):
            break
        launches = min(2 * launches, LAUNCHES_LIMIT)
    return tuple(seconds), total, waited


def _shared_stamps(endpoint: Endpoint, count: int) -> NDArray[np.float64]:
    """Return a copy of the first stamps of all ranks, which others may overwrite from then on."""
    endpoint.barrier()
    endpoint.share_stamps(count)
    stamps: NDArray[np.float64] = endpoint.stamps[:, :count].copy()
    endpoint.share_stamps(
        0
    )  # the first sample's come here next: what was brought is not theirs
    endpoint.barrier()
    return stamps


def _sampler(endpoint: Endpoint, case: Case, launches: int, launch_seconds: float) -> Sampler:
    """Return what takes the samples; what it computes meanwhile takes about as long as the collective."""
    if case.mode != OVERLAP:
        return Sampler(endpoint, launches)
    assert isinstance(endpoint, Overlapping), "capabilities refuse the mode elsewhere"
    endpoint.prepare_computing(case.overlap_with)
    computes = len(endpoint.stamps) != case.ranks or endpoint.rank in case.communicating_ranks
    sampler = OverlapSampler(endpoint, launches, computes)
    match_computation(endpoint, case, sampler, launches * launch_seconds)
    return sampler


def match_computation(
    endpoint: Endpoint, case: Case, sampler: OverlapSampler, seconds: float
) -> None:
    """Have the computation take about as long as the collective, each on its own: as samples will see them.

    seconds: what the collective took as it warmed up. The number of repetitions is rank 0's on all ranks.
    """

    def part_seconds() -> NDArray[np.float64]:
        stamps = _shared_stamps(endpoint, OverlapSampler.stamps)[:, 1:3]
        return durations(taking_part(case, stamps))

    sampler.compute(0)  # the first time something may have to be made ready
    # Ever twice as much is computed, until it takes half of ``seconds``.
    repetitions = 1
    for _ in range(DOUBLINGS_LIMIT):
        sampler.repeat(repetitions)
        sampler.compute(0)
        if endpoint.agree(int(2 * part_seconds()[0] >= seconds)):
            break
        repetitions *= 2
    # Then both are compared, one after the other.
    ratios = []
    for _ in range(MATCHING_ROUNDS):
        sampler.compute(0)  # no begin_sample: the watchdog counts samples only
        sampler.communicate(0)
        computing, communicating = part_seconds()
        ratios.append(communicating / max(computing, 1e-9))
    matched = round(repetitions * float(np.median(ratios)))
    sampler.repeat(endpoint.agree(max(1, min(matched, 1 << DOUBLINGS_LIMIT))))


def _sample(
    endpoint: Endpoint, case: Case, sampling: Sampling, sampler: Sampler, launch_seconds: float
) -> tuple[int, str]:
    """Take all samples but the last; (their number, why it stopped)."""
    launches, stamps = sampler.launches, sampler.stamps
    slow = bool(endpoint.agree(int(launches * launch_seconds > SLOW_SAMPLE_SECONDS)))
    began = time.perf_counter()
    count, next_look = 0, sampling.minimum_samples - 1
    reasons = ("", "interval", "budget", "maximum of samples")
    while True:
        # Looking costs a barrier and time, so short samples are looked at ever more seldom.
        if slow or count >= next_look or count >= sampling.maximum_samples - 1:
            next_look = count + max(1, count // 8)
            endpoint.barrier()
            endpoint.share_stamps(count * stamps)
            reason = ""
            if endpoint.rank == 0:
                taken = taking_part(case, endpoint.stamps[:, : count * stamps : stamps])
                samples = durations(taken, takes_fastest_rank(case)) / launches
                # The checked sample still comes: until then the newest one stands in for it.
                samples = np.append(samples, samples[-1:] if count else launch_seconds)
                reason = stop_reason(sampling, samples, time.perf_counter() - began)
            # All ranks must stop at the same sample, so rank 0 decides.
            decision = reasons[endpoint.agree(reasons.index(reason))]
            if decision:
                return count, decision
        sampler.time_parts(count)
        sampler.time_sample(count)
        count += 1


def _adversarial(
    endpoint: Endpoint, case: Case, seeds: Sequence[int], sampler: Sampler
) -> Mismatch | None:
    """Launches that go wrong when a wait is missing: new data each time, ranks late one by one, no barrier.

    Who reads a late rank's input too early finds old data there; what is pushed to it too early, it
    overwrites with poison; and who leaves too early spoils its input under the late rank's eyes.
    """
    mismatch: Mismatch | None = None
    # Fewer where filling and checking a buffer costs more than measuring it.
    small = case.size_bytes <= ADVERSARIAL_SIZE_LIMIT_BYTES
    for seed in seeds[: ADVERSARIAL_LAUNCHES if small else ADVERSARIAL_LARGE_LAUNCHES]:
        _be_late(endpoint, case, seed)
        endpoint.poison()
        endpoint.refill(seed)
        sampler.launch_once()
        mismatch = mismatch or endpoint.check(seed, 1)
    return mismatch


def _be_late(endpoint: Endpoint, case: Case, turn: int) -> None:
    """Wait for as long as this rank is late in that turn; in most of them not at all."""
    growth = min(max(1.0, case.size_bytes / DELAY_GROWS_FROM_BYTES), DELAY_GROWTH_LIMIT)
    delay = DELAYS_SECONDS[(7 * turn + 3 * endpoint.rank) % len(DELAYS_SECONDS)] * growth
    until = time.perf_counter() + delay
    while time.perf_counter() < until:  # sleeping would be late by far more than that
        pass


def _inexact_bits(endpoint: Endpoint, case: Case, sampler: Sampler) -> tuple[RankBits, ...]:
    """Launch on inexact data, where the case has some; ranks come late, for who comes first may matter."""

    def launch(turn: int) -> None:
        _be_late(endpoint, case, turn)
        sampler.launch_once()

    return launch_inexact(endpoint, case, launch)


def taking_part(case: Case, stamps: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the rows of ``stamps`` of ranks with something to do; one row stands for all ranks."""
    ranks = case.communicating_ranks
    return stamps if len(ranks) == case.ranks or len(stamps) != case.ranks else stamps[ranks, :]


SYNCHRONIZING_COLLECTIVES = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "barrier",
)
"""Collectives of which no rank has the result before every rank has started."""


def takes_fastest_rank(case: Case) -> bool:
    """Return True if a sample is the time of the rank that took least, by the clocks of the ranks' devices.

    One launch alone, of all ranks, that none can end before all have begun, on hosts that let their
    devices go each by itself: what others took more, they waited for who started last. On one host all
    start together, and who took least only ended first, as a tree's root ends before its leaves.
    """
    return (
        case.collective in SYNCHRONIZING_COLLECTIVES
        and not (case.groups or case.concurrent)
        and case.nodes > 1
        and case.mode in ALONE
        and capabilities_of(case.backend).device_timed
    )


def durations(stamps: NDArray[np.float64], last_starter: bool = False) -> NDArray[np.float64]:
    """Return first rank's start to last rank's end of each sample; stamps has shape (ranks, samples, 2).

    last_starter: the time of the rank that took least (``takes_fastest_rank``).
    """
    began, ended = stamps[:, :, 0], stamps[:, :, 1]
    result: NDArray[np.float64] = (
        (ended - began).min(axis=0) if last_starter else ended.max(axis=0) - began.min(axis=0)
    )
    return result


# -- how a sample is timed ---------------------------------------------------------------------------------


class Sampler:
    """Takes samples of ``launches`` launches each.

    stamps: how many a sample has; the first is the sample itself, then come those of its parts.
    """

    stamps = 1

    def __init__(self, endpoint: Endpoint, launches: int) -> None:
        self.endpoint = endpoint
        self.launches = launches

    def time_parts(self, sample: int) -> None:
        """Measure what belongs to a sample before it is taken: nothing."""

    def time_sample(self, sample: int) -> None:
        """Take a sample: its start and its end, as this rank sees them, become its stamp."""
        self.endpoint.begin_sample(sample)
        self._timed(sample, partial(self.endpoint.launch, self.launches))

    def launch_once(self) -> None:
        """One launch as samples have them."""
        self.endpoint.launch(1)

    def _timed(self, stamp: int, work: Callable[[], None]) -> None:
        endpoint = self.endpoint
        endpoint.barrier()
        start = time.perf_counter()
        work()
        end = time.perf_counter()
        if isinstance(
            endpoint, DeviceTimed
        ):  # devices start together, whenever their hosts got here
            start, end = 0.0, endpoint.device_seconds()
        endpoint.stamps[endpoint.rank, stamp] = (start, end)


class OverlappingEndpoint(Endpoint, Overlapping, Protocol):
    """An endpoint that can do both."""


class OverlapSampler(Sampler):
    """Takes samples of a computation, the collective, and both concurrently, which is the sample's time.

    One after the other in every sample, so that all three are of the same moment and their ratios stand
    whatever the machine does meanwhile.
    """

    endpoint: OverlappingEndpoint
    stamps = 1 + len(OVERLAP_PARTS)

    def __init__(self, endpoint: OverlappingEndpoint, launches: int, computes: bool) -> None:
        """computes: False for a rank that stands by and leaves the processors to those who do something."""
        super().__init__(endpoint, launches)
        self._computes = computes
        self.repetitions = int(computes)

    def repeat(self, repetitions: int) -> None:
        """Compute so much for every sample from now on."""
        self.repetitions = repetitions if self._computes else 0

    def time_parts(self, sample: int) -> None:
        """Time the computation, then the collective, each with nothing concurrent."""
        self.endpoint.begin_sample(sample)
        self.compute(sample)
        self.communicate(sample)

    def compute(self, sample: int) -> None:
        """Time the computation with nothing concurrent."""
        self._timed(sample * self.stamps + 1, partial(self.endpoint.compute, self.repetitions))

    def communicate(self, sample: int) -> None:
        """Time the collective with nothing concurrent."""
        self._timed(sample * self.stamps + 2, partial(self.endpoint.launch, self.launches))

    def time_sample(self, sample: int) -> None:
        """Time both concurrently: the stamps of the sample, of the computation and of the collective."""
        endpoint = self.endpoint
        endpoint.barrier()
        start = time.perf_counter()
        took = endpoint.launch_while_computing(self.launches, self.repetitions)
        stamps = endpoint.stamps[
            endpoint.rank, sample * self.stamps : (sample + 1) * self.stamps
        ]
        if isinstance(endpoint, DeviceTimed):
            start = 0.0
        for place, seconds in ((0, max(took)), (3, took[0]), (4, took[1])):
            stamps[place] = (start, start + seconds)

    def launch_once(self) -> None:
        """One launch while there is a little to compute."""
        self.endpoint.launch_while_computing(1, min(1, self.repetitions))


EXTRA_ROUNDS_FACTOR = 2
"""A case whose interval stays wide is measured in up to this many times the planned rounds."""


def blocks(
    cases: Sequence[Case],
    kind_of: Callable[[Case], Hashable],
    most_kinds: int,
    sampling: Sampling,
) -> list[tuple[list[Case], int]]:
    """Return cases that are measured in turn, each until it has so many rounds.

    kind_of: what a case needs of which only ``most_kinds`` can be had at a time; None where it needs none.
    One block of all cases, or two for each kind where not all kinds can be had at once.
    """
    kinds: dict[Hashable, list[Case]] = {}
    for case in cases:
        kinds.setdefault(kind_of(case), []).append(case)
    most = EXTRA_ROUNDS_FACTOR * sampling.rounds
    if len(kinds.keys() - {None}) <= most_kinds:
        return [(list(cases), most)]
    # The second half in the reverse order: steady drift hits all alike, and what is at hand comes first.
    half, parts = -(-sampling.rounds // 2), list(kinds.values())
    return [*((part, half) for part in parts), *((part, most) for part in reversed(parts))]


def turned(cases: Iterable[Case]) -> list[Case]:
    """Return cases with the variants of each point in reverse: A B in a round, B A in the next.

    Steady drift then hits all of them alike.
    """
    neighbours = (
        [*group]
        for _, group in groupby(cases, lambda case: case.point if case.variant else case)
    )
    return [case for group in neighbours for case in reversed(group)]


def merged(
    before: Measurement | None, now: Measurement, fresh_ranks: bool = False
) -> Measurement:
    """Merge all rounds so far into one measurement; a round that failed speaks for the whole case.

    Samples of earlier rounds are kept whatever the newest one brought. fresh_ranks: each round has its own.
    """
    if before is None or before.status is not Status.OK:
        return now
    if now.stop_reason == NO_TEAM:
        return replace(before, stop_reason=NO_TEAM)  # it says nothing about the case
    if not now.samples_seconds:  # it failed, and the samples before it are facts all the same
        return replace(
            before,
            status=now.status,
            detail=now.detail,
            wrong_elements=now.wrong_elements,
            stop_reason=now.stop_reason,
            conditions=over_all(before.conditions, now.conditions),
        )
    rounds = len(rounds_of(before))
    both = merge(
        before,
        now,
        {"mean": partial(_mean, rounds), "device readings": lambda *texts: telling(texts)},
    )
    return replace(
        both,
        round_samples=rounds_of(before) + rounds_of(now),
        conditions=over_all(before.conditions, now.conditions),
        rounding=over_rounds(before.rounding, now.rounding, fresh_ranks),
    )


def _mean(rounds: int, before: tuple[float, ...], now: tuple[float, ...]) -> tuple[float, ...]:
    """Return the mean of each rank over all rounds; ``before`` is that of ``rounds``."""
    # A system may not tell the figure in every round: then it is of the others.
    if not before or not now:
        return now or before
    pairs = zip(before, now, strict=True)
    return tuple((rounds * mean + value) / (rounds + 1) for mean, value in pairs)


def rounds_of(measurement: Measurement) -> tuple[int, ...]:
    """Return the samples per round; a measurement that does not say was one round."""
    if measurement.round_samples or not measurement.samples_seconds:
        return measurement.round_samples
    return (len(measurement.samples_seconds),)


def judged(measurement: Measurement, sampling: Sampling) -> Measurement:
    """Return the measurement with the reason why it is done, or MORE_ROUNDS."""
    if measurement.status is not Status.OK or measurement.stop_reason == NO_TEAM:
        return measurement
    # At least as many as planned, however narrow: rounds tell drift from noise.
    rounds, reason = rounds_of(measurement), MORE_ROUNDS
    if len(rounds) >= sampling.rounds:
        interval = rounds_interval(measurement.samples_seconds, rounds, sampling.confidence)
        target = sampling.target_relative_width
        if relative_width(interval) <= target or target >= 1:
            reason = "interval"
        elif len(rounds) >= EXTRA_ROUNDS_FACTOR * sampling.rounds:
            reason = "maximum of rounds"
    return replace(measurement, stop_reason=reason)
