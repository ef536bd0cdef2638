"""Measure one case: warm up, calibrate, sample until the interval is narrow, check the timed data.

Every rank runs ``measure`` at once. A sample is the time from the first rank's start to the last rank's end
of ``launches`` launches, divided by launches (ReproMPI's definition on a shared clock). Rank 0 decides, all
ranks follow, so that all stop together. The last sample runs on freshly filled inputs and poisoned outputs,
and what those timed launches left is compared with what is right, on every rank.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ccbench.cases import Case, Sampling
from ccbench.stats import median_interval
from ccbench.verification import UNLIMITED_LAUNCHES, Mismatch

LAUNCHES_LIMIT = 1 << 20
WARMUP_SAMPLES_LIMIT = 64
OVERTIME_FACTOR = 4.0
"""A case that cannot reach its minimum of samples stops after this many budgets."""

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
    endpoint.refill(2 * salt)
    warmup = _warm_up(endpoint, sampling, launch_limit, 2 * salt)
    launch_seconds = warmup.turns_seconds[-1]
    launches = _launches_per_sample(endpoint, case, sampling, launch_seconds, launch_limit)
    count, reason = _sample(endpoint, sampling, launches, launch_limit, launch_seconds, 2 * salt)
    mismatch = _checked_sample(endpoint, count, 2 * salt + 1, launches)
    endpoint.barrier()
    stamps = endpoint.stamps[:, : count + 1].copy()
    return RankResult(
        endpoint.rank,
        stamps,
        warmup.turns_seconds,
        warmup.waiting_seconds,
        launches,
        reason,
        mismatch,
        float(np.sum(stamps[endpoint.rank, :, 1] - stamps[endpoint.rank, :, 0])) + warmup.total_seconds,
    )


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
    if case.mode == "isolated":
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
    endpoint.stamps[endpoint.rank, sample] = (start, end)


def _checked_sample(endpoint: Endpoint, sample: int, salt: int, launches: int) -> Mismatch | None:
    endpoint.poison()
    endpoint.refill(salt)
    _timed(endpoint, sample, launches)
    return endpoint.check(salt, launches)


def _sample(
    endpoint: Endpoint,
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
            reason = ""
            if endpoint.rank == 0:
                samples = durations(endpoint.stamps[:, :count]) / launches
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
