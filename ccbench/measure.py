"""Measure one case: warm up, calibrate, sample until the interval is narrow, check the timed data.

Every rank runs ``measure`` at once. A sample is the time from the first rank's start to the last rank's end
of ``launches`` launches, divided by launches (ReproMPI's definition on a shared clock; where hosts have
clocks of their own, the longest of the ranks' times). Rank 0 decides, all ranks follow, so that all stop
together.

Two checks follow the samples, both exact. The last timed sample runs on fresh inputs and poisoned outputs,
and what it left is compared with what is right on every rank. Since launches on equal inputs cannot show a
rank that does not wait for the others, a few more launches, not timed, each get new data while ranks enter
them at different times without any barrier in between.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ccbench.cases import Case, Sampling
from ccbench.stats import median_interval
from ccbench.verification import UNLIMITED_LAUNCHES, Mismatch

LAUNCHES_LIMIT = 1 << 20
WARMUP_SAMPLES_LIMIT = 64
PROVOKED_LAUNCHES = 6
PROVOKED_LARGE_LAUNCHES = 2
PROVOKED_SIZE_LIMIT_BYTES = 1 << 20
SALTS_PER_VISIT = 2 + PROVOKED_LAUNCHES

DELAYS_SECONDS = (0.0, 0.0, 3e-5, 3e-4)
"""How long ranks dawdle before provoked launches: most not at all, some for many times a small launch."""

DELAY_GROWS_FROM_BYTES = 512 << 10
DELAY_GROWTH_LIMIT = 64
"""Filling a large buffer takes time itself, so a late rank must be later still to be late."""

OVERTIME_FACTOR = 4.0
"""A case that cannot reach its minimum of samples stops after this many budgets."""

ALONE_MODES = ("isolated", "cold")
"""Modes in which a sample is one launch."""

SLOW_SAMPLE_SECONDS = 0.005
"""From here on asking after every sample whether to stop costs nothing that shows."""


class Endpoint(Protocol):
    """One rank's side of a backend, as ``measure`` sees it."""

    rank: int
    ranks: int
    stamps: NDArray[np.float64]
    """(ranks, capacity, 2): start and end of each sample on a clock that all ranks share."""

    def refill(self, salt: int) -> None:
        """Fill this rank's input with the data of ``salt``."""

    def poison(self) -> None:
        """Make this rank's output wrong everywhere (before refill: in place they share memory)."""

    def launch(self, times: int) -> None:
        """Run the collective ``times`` times, back to back."""

    def launch_and_time_waits(self, times: int) -> float:
        """As ``launch``; the seconds of it that this rank waited for others."""

    def barrier(self) -> None:
        """Return when every rank has called it."""

    def agree(self, value: int) -> int:
        """Rank 0's value, on every rank."""

    def check(self, salt: int, launches: int) -> Mismatch | None:
        """Compare this rank's output with what is right."""

    def watch(self, sample: int) -> None:
        """Tell the watchdog which sample is next (negative: warming up)."""


@runtime_checkable
class DeviceTimed(Protocol):
    """An endpoint whose device has a clock of its own: samples are what that clock saw."""

    def device_seconds(self) -> float:
        """How long the launches of the last ``launch`` took on the slowest device."""


@runtime_checkable
class Apart(Protocol):
    """An endpoint whose ranks share no memory: what the others have written must be brought here."""

    def share_stamps(self, count: int) -> None:
        """Bring the first ``count`` stamps of all ranks here. Collective.

        Where ranks have no common clock, every start becomes 0, so that a sample is the longest of its
        ranks' times.
        """

    def share_words(self) -> None:
        """Bring the control words of the ranks of this host here. Collective."""


@runtime_checkable
class Overlapping(Protocol):
    """An endpoint that can compute while it communicates (``Case.computing`` says what)."""

    def prepare_computing(self, kind: str) -> None:
        """Get ready for ``matmul`` or ``memory``. Called once per visit, before any computation."""

    def compute(self, repetitions: int) -> None:
        """The computation alone, to its end.

        Where the endpoint is DeviceTimed, ``device_seconds`` is asked afterwards, as after ``launch``.
        """

    def launch_while_computing(self, launches: int, repetitions: int) -> tuple[float, float]:
        """Both at once, to the end of both.

        Returns the seconds from the call until the computation was over, and until the collective was; where
        the endpoint is DeviceTimed, on the device's clock.
        """


@dataclass(frozen=True)
class RankResult:
    """What one rank saw. ``samples`` etc. are the same on all ranks: they come from shared stamps.

    stamps: (ranks, samples, 2) in seconds; warmup_seconds: per launch, as this rank saw it;
    waiting_seconds: of a launch, what this rank waited for others.
    """

    rank: int
    stamps: NDArray[np.float64]
    warmup_seconds: tuple[float, ...]
    waiting_seconds: float
    launches: int
    stop_reason: str
    mismatch: Mismatch | None
    launching_seconds: float


class StopRule:
    """Stop when the interval of the median is narrow enough, or the budget or the patience is spent."""

    def __init__(self, sampling: Sampling) -> None:
        self._sampling = sampling

    def reason(self, samples: NDArray[np.float64], elapsed_seconds: float) -> str:
        """Why to stop now, or '' to go on. ``samples``: seconds per launch."""
        rule = self._sampling
        if len(samples) >= rule.maximum_samples:
            return "maximum of samples"
        if len(samples) < rule.minimum_samples:
            return "budget" if elapsed_seconds >= OVERTIME_FACTOR * rule.budget_seconds else ""
        interval = median_interval(samples, rule.confidence)
        narrow = interval.high - interval.low <= rule.target_relative_width * interval.median
        if narrow and interval.confidence >= rule.confidence:
            return "interval"
        return "budget" if elapsed_seconds >= rule.budget_seconds else ""


def measure(endpoint: Endpoint, case: Case, sampling: Sampling, launch_limit: int, salt: int) -> RankResult:
    """Take part in one visit of ``case``.

    launch_limit: launches that the data stand before they must be filled anew.
    salt: a number that changes from visit to visit, so that old results are not taken for new ones.
    """
    # There is room for so many stamps: the rest of a longer visit is for the next ones.
    room = endpoint.stamps.shape[1]
    sampling = replace(sampling, maximum_samples=min(sampling.maximum_samples, room))
    endpoint.poison()
    endpoint.refill(SALTS_PER_VISIT * salt)
    warmup = _warm_up(endpoint, sampling, launch_limit, SALTS_PER_VISIT * salt)
    launch_seconds = _of_all_ranks(endpoint, warmup)
    launches = _launches_per_sample(endpoint, case, sampling, launch_seconds, launch_limit)
    salts = range(SALTS_PER_VISIT * salt, SALTS_PER_VISIT * (salt + 1))
    count, reason = _sample(endpoint, case, sampling, launches, launch_limit, launch_seconds, salts[0])
    mismatch = _checked_sample(endpoint, case, count, salts[1], launches)
    provoked = _provoked(endpoint, case, salts[2 : 2 + _provoked_launches(case)])
    endpoint.barrier()
    _bring_stamps(endpoint, count + 1)
    stamps = endpoint.stamps[:, : count + 1].copy()
    return RankResult(
        endpoint.rank,
        stamps,
        warmup.turns_seconds,
        warmup.waiting_seconds,
        launches,
        reason,
        mismatch or provoked,
        float(np.sum(stamps[endpoint.rank, :, 1] - stamps[endpoint.rank, :, 0])) + warmup.total_seconds,
    )


def _of_all_ranks(endpoint: Endpoint, warmup: _WarmUp) -> float:
    """A launch as the slowest rank saw it in the last turn: some ranks may have had nothing to do."""
    endpoint.stamps[endpoint.rank, 0] = 0.0, warmup.turns_seconds[-1]
    endpoint.barrier()
    _bring_stamps(endpoint, 1)
    slowest = float(endpoint.stamps[:, 0, 1].max())
    _bring_stamps(endpoint, 0)  # the first sample's come here next: what was brought is not theirs
    endpoint.barrier()
    return slowest


def communicating(case: Case) -> tuple[int, ...]:
    """The ranks with something to do: all, a pair's, or those of a group alone and of what is beside."""
    beside = case.beside_case
    if case.everybody or (beside and beside.everybody):
        return tuple(range(case.ranks))
    groups = (*case.members, *(beside.members if beside else ()))
    return tuple(dict.fromkeys(rank for group in groups for rank in group))


def taking_part(case: Case, stamps: NDArray[np.float64]) -> NDArray[np.float64]:
    """The rows of ``stamps`` that are of ranks with something to do; one row stands for all ranks."""
    if case.everybody or len(stamps) != case.ranks:
        return stamps
    return stamps[communicating(case), :]


@dataclass(frozen=True)
class _WarmUp:
    """Seconds per launch of each turn; of all launches together; and waiting per launch of the last turn."""

    turns_seconds: tuple[float, ...]
    total_seconds: float
    waiting_seconds: float


def _warm_up(endpoint: Endpoint, sampling: Sampling, launch_limit: int, salt: int) -> _WarmUp:
    """Twice as many launches each time, until the warm-up time is over.

    Waits are timed here and not in the samples, which they would make longer.
    """
    total = 0.0
    seconds: list[float] = []
    launches = 1
    began = time.perf_counter()
    for turn in range(WARMUP_SAMPLES_LIMIT):
        endpoint.watch(-1 - turn)
        if launch_limit < UNLIMITED_LAUNCHES:
            endpoint.refill(salt)
        endpoint.barrier()
        start = time.perf_counter()
        waited = endpoint.launch_and_time_waits(launches) / launches
        now = time.perf_counter()
        seconds.append((now - start) / launches)
        total += now - start
        over = turn > 0 and now - began >= sampling.warmup_seconds
        if endpoint.agree(int(over)):
            break
        launches = min(2 * launches, launch_limit, LAUNCHES_LIMIT)
    return _WarmUp(tuple(seconds), total, waited)


def _launches_per_sample(
    endpoint: Endpoint, case: Case, sampling: Sampling, launch_seconds: float, launch_limit: int
) -> int:
    if case.mode in ALONE_MODES:
        return 1
    if sampling.launches:
        return sampling.launches
    wanted = math.ceil(sampling.minimum_sample_seconds / max(launch_seconds, 1e-9))
    return endpoint.agree(max(1, min(wanted, launch_limit, LAUNCHES_LIMIT)))


def _timed(endpoint: Endpoint, sample: int, launches: int) -> None:
    endpoint.watch(sample)
    endpoint.barrier()
    start = time.perf_counter()
    endpoint.launch(launches)
    end = time.perf_counter()
    if isinstance(endpoint, DeviceTimed):
        end = start + endpoint.device_seconds()
    endpoint.stamps[endpoint.rank, sample] = (start, end)


def _bring_stamps(endpoint: Endpoint, count: int) -> None:
    if isinstance(endpoint, Apart):
        endpoint.share_stamps(count)


def _checked_sample(endpoint: Endpoint, case: Case, sample: int, salt: int, launches: int) -> Mismatch | None:
    endpoint.poison()
    endpoint.refill(salt)
    if not case.in_place:
        # Filling leaves buffers in other caches than a stream of launches does: put that right, then
        # spoil the result again. (In place that would spoil the input.)
        endpoint.launch(1)
        endpoint.poison()
    _timed(endpoint, sample, launches)
    return endpoint.check(salt, launches)


def _provoked(endpoint: Endpoint, case: Case, salts: Sequence[int]) -> Mismatch | None:
    """Launches that go wrong when a wait is missing: new data each time, ranks late by turns, no barrier.

    Who reads a late rank's input too early finds old data there; what is pushed to it too early, it
    overwrites with poison; and who leaves too early spoils its input under the late rank's eyes.
    """
    found: Mismatch | None = None
    growth = min(max(1.0, case.size_bytes / DELAY_GROWS_FROM_BYTES), DELAY_GROWTH_LIMIT)
    for salt in salts:
        delay = DELAYS_SECONDS[(7 * salt + 3 * endpoint.rank) % len(DELAYS_SECONDS)] * growth
        until = time.perf_counter() + delay
        while time.perf_counter() < until:
            pass
        endpoint.poison()
        endpoint.refill(salt)
        endpoint.launch(1)
        found = found or endpoint.check(salt, 1)
    return found


def _provoked_launches(case: Case) -> int:
    """Fewer where filling and checking a buffer costs more than measuring it."""
    return PROVOKED_LAUNCHES if case.size_bytes <= PROVOKED_SIZE_LIMIT_BYTES else PROVOKED_LARGE_LAUNCHES


def _sample(
    endpoint: Endpoint,
    case: Case,
    sampling: Sampling,
    launches: int,
    launch_limit: int,
    launch_seconds: float,
    salt: int,
) -> tuple[int, str]:
    """All samples but the last; (their number, why it stopped)."""
    rule = StopRule(sampling)
    slow = bool(endpoint.agree(int(launches * launch_seconds > SLOW_SAMPLE_SECONDS)))
    began = time.perf_counter()
    count, next_look = 0, sampling.minimum_samples - 1
    reasons = ("", "interval", "budget", "maximum of samples")
    while True:
        if slow or count >= next_look or count >= sampling.maximum_samples - 1:
            next_look = count + max(1, count // 8)
            endpoint.barrier()
            _bring_stamps(endpoint, count)
            reason = ""
            if endpoint.rank == 0:
                samples = durations(taking_part(case, endpoint.stamps[:, :count])) / launches
                # The checked sample still comes: until then the newest one stands in for it.
                samples = np.append(samples, samples[-1:] if count else launch_seconds)
                reason = rule.reason(samples, time.perf_counter() - began)
            decision = reasons[endpoint.agree(reasons.index(reason))]
            if decision:
                return count, decision
        if launch_limit < UNLIMITED_LAUNCHES:
            endpoint.refill(salt)
        _timed(endpoint, count, launches)
        count += 1


def durations(stamps: NDArray[np.float64]) -> NDArray[np.float64]:
    """First rank's start to last rank's end of each sample; stamps has shape (ranks, samples, 2)."""
    result: NDArray[np.float64] = stamps[:, :, 1].max(axis=0) - stamps[:, :, 0].min(axis=0)
    return result
