"""Levels of one system that was measured: few non-negative scales, then what is left, size by size.

Scales multiply the model's own terms, so that shape and extrapolation stay the model's. One measured size is
enough: the priors decide which scales it moves, overhead at small sizes and rates at large ones. What scales
leave is interpolated in log-log, as the mean of a Gaussian process with an exponential kernel (Rasmussen and
Williams, Gaussian Processes for Machine Learning, 2006, section 4.2.1): it is kept where it was measured, and
halved for every factor of ``FADING`` away: a calibration says what it saw, and less about what it did not.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from ccbench.documents import STRICT
from ccbench.errors import MachineError
from ccbench.model.library import LibraryRequest, LibrarySystem
from ccbench.model.library.constants import (
    CONSTANTS,
    MEASURED_LEVELS,
    LibraryConstants,
    scaled,
    shipped,
)
from ccbench.model.library.predictor import priced, seconds_of
from ccbench.model.machine_files import Floats

LOSS_SCALE = 0.12
"""A misprediction of 12 % is where the loss turns from square to linear."""

FADING = 4.0
"""Factor in size away from what was measured after which half of the remaining correction is kept."""

DIFFERENCE = 1e-3
"""Step in log scale for the slopes of the fit: wide enough that a choice of algorithm may change."""

STEP = 0.01
"""In log scale, for the slopes that tell scales apart: wide enough to see past one change of algorithm. Both
ways, for an efficiency moves nothing above its limit of one."""

APART = 0.2
"""Least share of a scale's slopes that no mix of the other scales has; below it they could stand for it."""

MATTERS = 0.01
"""A point depends on a scale when one percent of the scale moves its time by this share of a percent."""


@dataclass(frozen=True)
class Observation:
    """Times of one request on one system; ``seconds`` runs along ``request.size_bytes``."""

    system: LibrarySystem
    request: LibraryRequest
    seconds: tuple[float, ...]

    def taking(self, places: Sequence[int]) -> Observation:
        """Only the sizes at these places."""
        sizes = tuple(self.request.size_bytes[place] for place in places)
        return replace(
            self,
            request=replace(self.request, size_bytes=sizes),
            seconds=tuple(self.seconds[place] for place in places),
        )


@dataclass(frozen=True)
class Calibrated:
    """A system's own scales and corrections.

    scales: factor on each of MEASURED_LEVELS. corrections: log of measured over scaled model by size, in rising
        order, by (collective, in place).
    """

    system: LibrarySystem
    scales: Mapping[str, float]
    constants: LibraryConstants
    corrections: Mapping[tuple[str, bool], Mapping[float, float]]

    def seconds(self, request: LibraryRequest) -> Floats:
        """Calibrated time at each size; never below the time of the links at their nominal rates."""
        scaled = seconds_of(self.system, request, self.constants.table)
        corrections = self.corrections.get((request.collective, request.in_place))
        if corrections:
            # Errors of a model vary with the factor in size, not with bytes: interpolated in log-log.
            places, values = np.log([*corrections]), np.array([*corrections.values()])
            at = np.log(np.maximum(np.asarray(request.size_bytes, dtype=np.float64), 1.0))
            scaled = scaled * np.exp(interpolated(at, places, values))
        return np.asarray(np.maximum(scaled, floor_seconds(self.system, request)))


def interpolated(at: Floats, places: Floats, values: Floats) -> Floats:
    """Corrections at ``at`` from the ``values`` at rising ``places``, all logarithms of sizes and of factors.

    Only the nearest place on each side counts: an exponential kernel is that of a Markov process.
    """
    rate = np.log(2) / np.log(FADING)
    before = np.searchsorted(places, at, side="right") - 1
    left, right = np.maximum(before, 0), np.minimum(before + 1, len(places) - 1)
    to_left, to_right = rate * np.abs(at - places[left]), rate * np.abs(places[right] - at)
    between = left != right
    width = np.where(between, rate * (places[right] - places[left]), 1.0)
    inside = (values[left] * np.sinh(to_right) + values[right] * np.sinh(to_left)) / np.sinh(
        width
    )
    return np.asarray(np.where(between, inside, values[left] * np.exp(-to_left)))


def floor_seconds(system: LibrarySystem, request: LibraryRequest) -> Floats:
    """The cheapest algorithm with every link at its nominal rate and no latency: nothing may be faster.

    A lower bound within this model's own algorithms; ``bounds`` has those of any algorithm.
    """
    nominal = {**dict.fromkeys(CONSTANTS, 1.0), "socket_gbytes": np.inf}
    nominal |= {"own_block": 0.0, "own_block_reduced": 0.0}
    options = priced(system, request, nominal).options
    if not options:
        return np.zeros(len(request.size_bytes))
    # LL and LL128 send flags with the data, so that only Simple can reach a link's rate.
    whole = [option for option in options if option.protocol == "simple"] or options
    return np.asarray(np.min([option.bandwidth_seconds for option in whole], axis=0))


def calibrate(
    observations: Sequence[Observation], learned: LibraryConstants | None = None
) -> Calibrated:
    """Scales and corrections from the observations of one system. Raises MachineError where there are none.

    learned: other constants than those that ship, for validation.
    """
    from scipy.optimize import least_squares

    if not any(observation.seconds for observation in observations):
        raise MachineError("calibration: no points; give at least one size")
    if len({observation.system for observation in observations}) != 1:
        raise MachineError(
            "calibration: observations of several systems; calibrate one at a time"
        )
    table = (shipped() if learned is None else learned).table
    spread = np.array([level.measured_spread for level in MEASURED_LEVELS.values()])

    def residuals(point: Floats) -> Floats:
        ratios = _all_log_ratios(observations, table, point)
        # The prior, one more residual for each scale: a spread weighs as much as a row off by LOSS_SCALE.
        return np.concatenate([ratios, LOSS_SCALE * point / spread])

    fit = least_squares(
        residuals,
        np.zeros(len(MEASURED_LEVELS)),
        loss="soft_l1",
        f_scale=LOSS_SCALE,
        max_nfev=40,
        diff_step=[DIFFERENCE] * len(MEASURED_LEVELS),
    )
    scales = dict(zip(MEASURED_LEVELS, np.exp(fit.x).tolist(), strict=True))
    values = tuple(scaled(table, scales).items())
    constants = LibraryConstants(values, "calibration of one system")
    # What the scales leave: of a size that was measured several times, the median.
    left: dict[tuple[str, bool], dict[float, list[float]]] = defaultdict(
        lambda: defaultdict(list)
    )
    ratios = log_ratios(observations, constants.table)
    for observation, logs in zip(observations, ratios, strict=True):
        request = observation.request
        for size, log in zip(request.size_bytes, logs.tolist(), strict=True):
            left[request.collective, request.in_place][float(size)].append(-log)
    corrections = {
        key: {size: float(np.median(logs)) for size, logs in sorted(sizes.items())}
        for key, sizes in left.items()
    }
    return Calibrated(observations[0].system, scales, constants, corrections)


def log_ratios(observations: Sequence[Observation], table: Mapping[str, float]) -> list[Floats]:
    """Logarithm of the model's time over the measured one, at the sizes of each observation."""
    return [
        np.log(
            seconds_of(observation.system, observation.request, table)
            / np.asarray(observation.seconds)
        )
        for observation in observations
    ]


def _all_log_ratios(
    observations: Sequence[Observation], table: Mapping[str, float], logs_of_scales: Floats
) -> Floats:
    """Those of all sizes with ``table`` times a scale for each of MEASURED_LEVELS, in their order."""
    scales = dict(zip(MEASURED_LEVELS, np.exp(logs_of_scales).tolist(), strict=True))
    return np.concatenate(log_ratios(observations, scaled(table, scales)))


@dataclass(frozen=True)
class ScaleEstimate:
    """A factor on one group of the model's constants, and what tells it.

    points: how many measured points depend on it; where none does, it is one and says nothing.
    apart: share of what it does to them that no mix of the others does; below APART it is as good as a guess.
    """

    term: str
    scale: float
    points: int
    apart: float

    __pydantic_config__: ClassVar[dict[str, object]] = STRICT

    def __post_init__(self) -> None:
        if not 0 <= self.apart <= 1:
            raise MachineError(
                f"scales: {self.term}: apart is {self.apart}, no share between 0 and 1"
            )


def scale_estimates(
    calibrated: Calibrated, observations: Sequence[Observation]
) -> tuple[ScaleEstimate, ...]:
    """The scales of ``calibrated``, which was fitted to ``observations``, each with what tells it."""
    fitted, table = np.log([*calibrated.scales.values()]), shipped().table
    # How the logarithm of each point's time changes with that of each scale.
    slopes = np.stack(
        [
            _all_log_ratios(observations, table, fitted + step)
            - _all_log_ratios(observations, table, fitted - step)
            for step in STEP * np.eye(len(fitted))
        ],
        axis=1,
    ) / (2 * STEP)
    points = np.count_nonzero(np.abs(slopes) > MATTERS, axis=0)
    estimates = []
    for place, (term, scale) in enumerate(calibrated.scales.items()):
        own, rest = slopes[:, place], np.delete(slopes, place, axis=1)
        left = own - rest @ np.linalg.lstsq(rest, own, rcond=None)[0]
        apart = 0.0
        if points[place]:
            apart = min(1.0, float(np.linalg.norm(left) / np.linalg.norm(own)))
        estimates.append(ScaleEstimate(term, scale, int(points[place]), apart))
    return tuple(estimates)
