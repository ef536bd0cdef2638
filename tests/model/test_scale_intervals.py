"""Intervals of scales: the linearised bootstrap against refitting every resample, and its speed of ending."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from ccbench.model.cluster_calibration import scale_intervals
from ccbench.model.library.calibration import Observation, calibrate
from tests.model.planted import SCALES, base, measured


def observations(noise: float) -> list[Observation]:
    system = base("hgx-h100", 1).cluster.system
    times = measured(system, SCALES, ("all_reduce", "all_gather", "broadcast"), noise=noise)
    return [Observation(system, request, tuple(seconds)) for request, seconds in times]


def refitted(points: list[Observation], resamples: int) -> dict[str, NDArray[np.float64]]:
    """Every resample fitted with the real model: slow, and what the linearised ones stand for."""
    random = np.random.default_rng(1)
    where = [(one, place) for one in range(len(points)) for place in range(len(points[one].seconds))]
    found: dict[str, list[float]] = {}
    for _ in range(resamples):
        drawn = [where[index] for index in random.integers(0, len(where), len(where))]
        places = [[place for other, place in drawn if other == one] for one in range(len(points))]
        resample = [one.taking(wanted) for one, wanted in zip(points, places, strict=True) if wanted]
        for term, scale in calibrate(resample).scales:
            found.setdefault(term, []).append(scale)
    return {term: np.asarray(scales) for term, scales in found.items()}


def test_linearised_intervals_are_about_as_wide_as_those_of_refitted_resamples() -> None:
    points = observations(noise=0.05)
    estimates = scale_intervals(calibrate(points), points)
    real = refitted(points, 20)
    compared = 0
    for one in estimates:
        if one.points >= 20:
            width = np.log(one.high / one.low) / (2 * 1.96)
            spread = float(np.std(np.log(real[one.term])))
            assert 0.4 < width / spread < 2.5, one
            compared += 1
    assert compared >= 2


def test_a_rate_at_its_limit_still_has_points_and_an_interval() -> None:
    """Links faster than their nominal rate: the efficiency stops at one, whatever the scale."""
    system = base("dgx-a100", 4).cluster.system
    fast = measured(system, {**SCALES, "rate across": 1.1}, ("all_reduce", "all_gather"), noise=0.02)
    points = [Observation(system, request, tuple(s * 0.97 for s in seconds)) for request, seconds in fast]
    across = next(one for one in scale_intervals(calibrate(points), points) if one.term == "rate across")
    assert across.scale > 1.0
    assert across.points >= 10
    assert across.low < across.high


def test_the_same_points_give_the_same_intervals() -> None:
    points = observations(noise=0.05)
    found = calibrate(points)
    assert scale_intervals(found, points) == scale_intervals(found, points)


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_the_scale_always_lies_in_its_interval(noise: float) -> None:
    points = observations(noise)
    found = calibrate(points)
    for estimate, (term, scale) in zip(scale_intervals(found, points), found.scales, strict=True):
        assert (estimate.term, estimate.scale) == (term, scale)
        assert 0 <= estimate.low <= scale <= estimate.high
