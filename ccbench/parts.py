"""What the samples of a case are made of, from the stamps of all ranks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ccbench.cases import Case, CaseFacts, Measurement
from ccbench.collectives import collective
from ccbench.groups import format_ranks
from ccbench.measure import RankResult, durations, taking_part

Samples = tuple[tuple[float, ...], ...]
"""Seconds per launch, [part][sample]."""


def parts_of(case: Case, facts: CaseFacts, result: RankResult) -> tuple[tuple[str, ...], Samples]:
    """What samples are made of, or what ran at the same time, each with its samples in seconds per launch.

    As measuring took it apart, else as the endpoint says, else groups by ranks' stamps.
    """

    def samples(stamps: NDArray[np.float64]) -> tuple[float, ...]:
        return tuple((durations(stamps) / result.launches).tolist())

    if result.parts:
        every = (taking_part(case, result.part_stamps[:, part]) for part in range(len(result.parts)))
        return result.parts, tuple(map(samples, every))
    untold = case.beside or not case.groups or not case.everybody
    if facts.parts or untold or len(result.stamps) != case.ranks:
        return facts.parts, facts.part_samples_seconds
    names = tuple(f"ranks {format_ranks(members)}" for members in case.members)
    return names, tuple(samples(result.stamps[members, :]) for members in case.members)


def rank_by_rank(measurement: Measurement, stamps: NDArray[np.float64]) -> Measurement:
    """The measurement with what each rank saw of its samples. stamps: (ranks, samples, 2), in seconds."""
    began = stamps[:, :, 0]  # all 0 where ranks have no clock in common, or devices that start together
    seconds = (stamps[:, :, 1] - stamps[:, :, 0]) / measurement.launches_per_sample
    return replace(
        measurement,
        skew_seconds=tuple(np.ptp(began, axis=0).tolist()) if began.any() else (),
        rank_samples_seconds=tuple(map(tuple, seconds.tolist())),
    )


def wrong_elements_of(case: Case, results: Iterable[RankResult]) -> int | None:
    """Of all ranks together; None where nothing was there to be compared."""
    if case.count == 0 and collective(case.collective).moves_data:
        return None
    return sum(one.mismatch.wrong_elements for one in results if one.mismatch)
