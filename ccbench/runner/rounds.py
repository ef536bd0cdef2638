"""Rounds of a run: in which order cases are measured, and how the rounds of one become one measurement."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace

from ccbench.cases import MORE_ROUNDS, NO_TEAM, Case, Measurement, Sampling, Status
from ccbench.machine.readings import over_all, telling
from ccbench.stats import relative_width, rounds_interval

EXTRA_ROUNDS_FACTOR = 2
"""A case whose interval stays wide is measured in up to this many times the planned rounds."""


def expected_rounds(sampling: Sampling, made: int) -> int:
    """Return how many rounds a case needs that is not done after ``made``; once unclear, as many as it may.

    Before it is known whether it will be, the middle (geometric) between planned and most: at most 1.41
    times too many or too few. Intervals of half the median leave hardly any case unclear.
    """
    if made >= sampling.rounds:
        return max(1, EXTRA_ROUNDS_FACTOR * sampling.rounds - made)
    wide = sampling.target_relative_width >= 0.5 or sampling.rounds == 1
    factor = 1 if wide else math.sqrt(EXTRA_ROUNDS_FACTOR)
    return math.ceil(factor * sampling.rounds) - made


def blocks(
    cases: Sequence[Case], kind_of: Callable[[Case], Hashable], most_kinds: int, sampling: Sampling
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


def merged(before: Measurement | None, now: Measurement) -> Measurement:
    """Merge all rounds so far into one measurement; a round that failed speaks for the whole case.

    Samples of earlier rounds are kept whatever the newest one brought.
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
    wrong = [one.wrong_elements for one in (before, now) if one.wrong_elements is not None]
    return replace(
        now,
        started_at=before.started_at,
        samples_seconds=before.samples_seconds + now.samples_seconds,
        warmup_seconds=before.warmup_seconds + now.warmup_seconds,
        skew_seconds=before.skew_seconds + now.skew_seconds,
        rank_samples_seconds=_joined(before.rank_samples_seconds, now.rank_samples_seconds),
        rank_waiting_seconds=_joined(before.rank_waiting_seconds, now.rank_waiting_seconds),
        rank_cpu_share=_mean(before, before.rank_cpu_share, now.rank_cpu_share),
        rank_queued_share=_mean(before, before.rank_queued_share, now.rank_queued_share),
        round_samples=rounds_of(before) + rounds_of(now),
        group_samples_seconds=_joined(before.group_samples_seconds, now.group_samples_seconds),
        launching_seconds=before.launching_seconds + now.launching_seconds,
        device_readings=telling((before.device_readings, now.device_readings)),
        wrong_elements=sum(wrong) if wrong else None,
        conditions=over_all(before.conditions, now.conditions),
    )


def _joined(
    earlier: tuple[tuple[float, ...], ...], newest: tuple[tuple[float, ...], ...]
) -> tuple[tuple[float, ...], ...]:
    """Return the figures of each rank or part, those of the newest round after the earlier ones."""
    return tuple(first + then for first, then in zip(earlier, newest, strict=True))


def _mean(before: Measurement, earlier: tuple[float, ...], newest: tuple[float, ...]) -> tuple[float, ...]:
    """Return the mean of each rank over all rounds; ``earlier`` is that of those that ``before`` holds."""
    # A system may not tell the figure in every round: then it is of the others.
    if not earlier or not newest:
        return newest or earlier
    rounds = len(rounds_of(before))
    both = zip(earlier, newest, strict=True)
    return tuple((rounds * mean + value) / (rounds + 1) for mean, value in both)


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
    rounds = len(rounds_of(measurement))
    if rounds < sampling.rounds:
        return replace(measurement, stop_reason=MORE_ROUNDS)
    interval = rounds_interval(measurement.samples_seconds, rounds_of(measurement), sampling.confidence)
    if relative_width(interval) <= sampling.target_relative_width or sampling.target_relative_width >= 1:
        return replace(measurement, stop_reason="interval")
    if rounds >= EXTRA_ROUNDS_FACTOR * sampling.rounds:
        return replace(measurement, stop_reason="maximum of rounds")
    return replace(measurement, stop_reason=MORE_ROUNDS)
