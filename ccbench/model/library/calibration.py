"""Levels of one system that was measured: few non-negative scales, then what is left, size by size.

Scales multiply the model's own terms, so that shape and extrapolation stay the model's. One measured size is
enough: the priors decide which scales it moves, overhead at small sizes and rates at large ones. What scales
leave is interpolated in log-log, as the mean of a Gaussian process with an exponential kernel (Rasmussen and
Williams, Gaussian Processes for Machine Learning, 2006, section 4.2.1): it is kept where it was measured, and
halved for every factor of ``FADING`` away: a calibration says what it saw, and less about what it did not.

The intervals of scales are of a pairs bootstrap (Efron, Annals of Statistics 7 (1979) 1): points are drawn
with replacement and fitted again. A fit takes up to a second, so the residuals are linearised once, at the
scales that were found, and each resample takes a few steps of iteratively reweighted least squares on the
straight lines: the weights are those of the fit's own soft-L1 loss, and its pull towards one stays. Where a
scale moves the choice of algorithm, or an efficiency meets its limit of one, lines are not straight and the
interval is a rough one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ccbench.errors import MachineError
from ccbench.model.library import LibraryRequest, LibrarySystem
from ccbench.model.library.constants import CONSTANTS, LEVELS, LibraryConstants, scaled, shipped
from ccbench.model.library.predictor import priced, seconds_of
from ccbench.model.machine import STRICT, Floats

LOSS_SCALE = 0.12
"""A misprediction of 12 % is where the loss turns from square to linear."""

FADING = 4.0
"""Factor in size away from what was measured after which half of the remaining correction is kept."""

FEWEST_TO_RESAMPLE = 3
"""Of fewer points the resamples are nearly all alike: scales have the intervals of their priors."""

DIFFERENCE = 1e-3
"""Step in log scale for the slopes of the fit: wide enough that a choice of algorithm may change."""

RESAMPLES = 500
CONFIDENCE = 0.95
NORMAL = 1.96
"""Standard deviations of a normal prior within which CONFIDENCE of it lies."""

SEED = 20260
STEP = 0.01
"""In log scale, both ways, for the slopes of intervals: wide enough to see past one change of algorithm."""

PAST_A_LIMIT = 0.1
"""Step downwards where the small one moves nothing: a fit may leave an efficiency above its limit of one."""

REWEIGHTINGS = 5

MATTERS = 0.01
"""A point depends on a scale when one percent of the scale moves its time by this share of a percent."""


@dataclass(frozen=True)
class Observation:
    """Times of one request on one system; ``seconds`` runs along ``request.size_bytes``."""

    system: LibrarySystem
    request: LibraryRequest
    seconds: tuple[float, ...]

    def taking(self, wanted: Sequence[int]) -> Observation:
        """Only the sizes at these places."""
        sizes = tuple(self.request.size_bytes[place] for place in wanted)
        return replace(
            self,
            request=replace(self.request, size_bytes=sizes),
            seconds=tuple(self.seconds[place] for place in wanted),
        )


@dataclass(frozen=True)
class Calibrated:
    """A system's own scales and corrections.

    scales: factor on each of LEVELS. corrections: (size, log of measured over scaled model), by
        (collective, in place), in rising order of size. domain: smallest and largest size seen, likewise.
    """

    system: LibrarySystem
    scales: tuple[tuple[str, float], ...]
    constants: LibraryConstants
    corrections: tuple[tuple[tuple[str, bool], tuple[tuple[float, float], ...]], ...]

    def _seen(self, request: LibraryRequest) -> tuple[tuple[float, float], ...]:
        return dict(self.corrections).get((request.collective, request.in_place), ())

    def seconds(self, request: LibraryRequest) -> Floats:
        """Calibrated time at each size; never below the time of the links at their nominal rates."""
        scaled, seen = seconds_of(self.system, request, self.constants.table), self._seen(request)
        if seen:
            # Errors of a model vary with the factor in size, not with bytes: interpolated in log-log.
            places = np.log([size for size, _ in seen])
            at = np.log(np.maximum(np.asarray(request.size_bytes, dtype=np.float64), 1.0))
            scaled = scaled * np.exp(interpolated(at, places, np.array([one for _, one in seen])))
        return np.asarray(np.maximum(scaled, floor_seconds(self.system, request)))

    def inside(self, request: LibraryRequest) -> NDArray[np.bool_]:
        """True for each size within twice the sizes seen; False beyond, and where nothing was seen."""
        sizes, seen = np.asarray(request.size_bytes, dtype=np.float64), self._seen(request)
        low, high = (seen[0][0] / 2, seen[-1][0] * 2) if seen else (np.inf, np.inf)
        return np.asarray((low <= sizes) & (sizes <= high))


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
    inside = (values[left] * np.sinh(to_right) + values[right] * np.sinh(to_left)) / np.sinh(width)
    return np.asarray(np.where(between, inside, values[left] * np.exp(-to_left)))


def floor_seconds(system: LibrarySystem, request: LibraryRequest) -> Floats:
    """The cheapest algorithm with every link at its nominal rate and no latency: nothing may be faster.

    A lower bound within this model's own algorithms; ``bounds`` has those of any algorithm.
    """
    nominal = {**dict.fromkeys(CONSTANTS, 1.0), "socket_gbytes": np.inf}
    options = priced(system, request, nominal).options
    if not options:
        return np.zeros(len(request.size_bytes))
    # LL and LL128 send flags with the data, so that only Simple can reach a link's rate.
    whole = [option for option in options if option.protocol == "simple"] or options
    return np.asarray(np.min([option.bandwidth_seconds for option in whole], axis=0))


def calibrate(observations: Sequence[Observation], learned: LibraryConstants | None = None) -> Calibrated:
    """Scales and corrections from the observations of one system. Raises MachineError where there are none.

    learned: other constants than those that ship, for validation.
    """
    from scipy.optimize import least_squares

    if not any(one.seconds for one in observations):
        raise MachineError("calibration: no points; give at least one size")
    if len({one.system for one in observations}) != 1:
        raise MachineError("calibration: observations of several systems; calibrate one at a time")
    table = (shipped() if learned is None else learned).table
    spread = np.array([level.measured_spread for level in LEVELS.values()])

    def residuals(point: Floats) -> Floats:
        ratios = np.concatenate(log_ratios(observations, scaled_by(table, np.exp(point))))
        # The prior, one more residual for each scale: a spread weighs as much as a row off by LOSS_SCALE.
        return np.concatenate([ratios, LOSS_SCALE * point / spread])

    found = least_squares(
        residuals,
        np.zeros(len(LEVELS)),
        loss="soft_l1",
        f_scale=LOSS_SCALE,
        max_nfev=40,
        diff_step=[DIFFERENCE] * len(LEVELS),
    )
    scales = np.exp(found.x)
    values = tuple(scaled_by(table, scales).items())
    constants = LibraryConstants(values, "calibration of one system")
    # What the scales leave: of a size that was measured several times, the median.
    left: dict[tuple[str, bool], dict[float, list[float]]] = {}
    for one, ratios in zip(observations, log_ratios(observations, constants.table), strict=True):
        sizes = left.setdefault((one.request.collective, one.request.in_place), {})
        for size, ratio in zip(one.request.size_bytes, (-ratios).tolist(), strict=True):
            sizes.setdefault(float(size), []).append(ratio)
    corrections = tuple(
        (key, tuple((size, float(np.median(logs))) for size, logs in sorted(sizes.items())))
        for key, sizes in left.items()
    )
    named = tuple(zip(LEVELS, scales.tolist(), strict=True))
    return Calibrated(observations[0].system, named, constants, corrections)


def log_ratios(observations: Sequence[Observation], table: Mapping[str, float]) -> list[Floats]:
    """Logarithm of the model's time over the measured one, at the sizes of each observation."""
    return [
        np.log(seconds_of(one.system, one.request, table) / np.asarray(one.seconds)) for one in observations
    ]


def scaled_by(table: Mapping[str, float], scales: Floats) -> dict[str, float]:
    """``table`` with a scale for each of LEVELS, in their order."""
    return scaled(table, dict(zip(LEVELS, scales.tolist(), strict=True)))


@dataclass(frozen=True)
class ScaleEstimate:
    """A factor on one group of the model's constants, with its interval (see ``scale_intervals``).

    points: how many measured points depend on it; where none does, it is one and says nothing.
    """

    term: str
    scale: float
    low: float
    high: float
    points: int

    __pydantic_config__: ClassVar[dict[str, object]] = STRICT

    def __post_init__(self) -> None:
        if not 0 <= self.low <= self.scale <= self.high:
            raise MachineError(
                f"scales: {self.term}: {self.scale} does not lie between {self.low} and {self.high}"
            )


def scale_intervals(calibrated: Calibrated, observations: Sequence[Observation]) -> tuple[ScaleEstimate, ...]:
    """The scales of ``calibrated``, which was fitted to ``observations``, with 95% intervals.

    Intervals are percentiles of the resamples, made wider where they would leave out the scale itself. They
    are of the points as they are: points that err together (all sizes of one bad day) make them too narrow.
    """
    found = np.log([scale for _, scale in calibrated.scales])
    count, table = len(found), shipped().table

    def residuals(point: Floats) -> Floats:
        return np.concatenate(log_ratios(observations, scaled_by(table, np.exp(point))))

    here = residuals(found)
    slopes, limited = _slopes(residuals, found, here)
    counts = np.count_nonzero(np.abs(slopes) > MATTERS, axis=0)

    # The prior, as in the fit, is one more row for each scale; every resample keeps it.
    spread = np.array([level.measured_spread for level in LEVELS.values()])
    lines = np.vstack([slopes, np.diag(LOSS_SCALE / spread)])
    offsets = np.concatenate([here, LOSS_SCALE * found / spread])

    def moved(drawn: Floats) -> Floats:
        step = _refitted(lines, offsets, drawn)
        rising = limited & (step > 0)
        if rising.any():
            # Above its limit a scale would move nothing: it stays, and the others are fitted without it.
            step = np.zeros_like(step)
            step[~rising] = _refitted(lines[:, ~rising], offsets, drawn)
        return step

    points, prior = len(here), np.ones(count)
    if points < FEWEST_TO_RESAMPLE:
        reach = NORMAL * spread
        return tuple(
            ScaleEstimate(term, scale, float(np.exp(x - far)), float(np.exp(x + far)), int(seen))
            for (term, scale), x, far, seen in zip(
                calibrated.scales, found, reach, counts.tolist(), strict=True
            )
        )
    random = np.random.default_rng(SEED)
    draws = random.multinomial(points, np.full(points, 1 / points), size=RESAMPLES).astype(np.float64)
    steps = np.stack([moved(np.concatenate([drawn, prior])) for drawn in draws])
    # Only what differs between resamples counts: the fit may have stopped a little before its end.
    steps -= moved(np.ones(len(offsets)))
    edges = [100 * (1 - CONFIDENCE) / 2, 100 * (1 + CONFIDENCE) / 2]
    low, high = np.exp(np.percentile(found + steps, edges, axis=0))
    return tuple(
        ScaleEstimate(term, scale, min(scale, float(low[place])), max(scale, float(high[place])), int(seen))
        for place, ((term, scale), seen) in enumerate(zip(calibrated.scales, counts.tolist(), strict=True))
    )


def _slopes(
    residuals: Callable[[Floats], Floats], found: Floats, here: Floats
) -> tuple[Floats, NDArray[np.bool_]]:
    """Slopes of ``residuals`` at ``found``, where they are ``here``, and which scales only fall there."""
    columns, limited = [], np.zeros(len(found), dtype=bool)
    for place, axis in enumerate(np.eye(len(found))):
        column = (residuals(found + STEP * axis) - residuals(found - STEP * axis)) / (2 * STEP)
        if np.all(np.abs(column) <= MATTERS):
            # Perhaps an efficiency at its limit of one, of which only lower values matter.
            column = (here - residuals(found - PAST_A_LIMIT * axis)) / PAST_A_LIMIT
            limited[place] = bool(np.any(np.abs(column) > MATTERS))
        columns.append(column)
    return np.stack(columns, axis=1), limited


def _refitted(lines: Floats, offsets: Floats, counts: Floats) -> Floats:
    """The step that makes the loss of ``offsets + lines @ step`` least, each row counted so often."""
    step = np.zeros(lines.shape[1])
    for _ in range(REWEIGHTINGS):
        # Soft-L1: 2 (sqrt(1 + z) - 1) of z = (r / scale)^2, whose slope in z is 1 / sqrt(1 + z).
        weights = counts / np.sqrt(1.0 + ((offsets + lines @ step) / LOSS_SCALE) ** 2)
        weighted = lines * weights[:, None]
        step = np.linalg.solve(lines.T @ weighted, -(weighted.T @ offsets))
    return step
