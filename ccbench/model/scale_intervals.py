"""How sure the scales of a calibration are: a bootstrap over points, linearised at the fit.

Pairs bootstrap (Efron, Annals of Statistics 7 (1979) 1): points are drawn with replacement and fitted again.
A fit takes up to a second, so the residuals are linearised once, at the scales that were found, and each
resample takes a few steps of iteratively reweighted least squares on the straight lines: the weights are
those of the fit's own soft-L1 loss, and its pull towards one stays. Where a scale moves the choice of
algorithm, or an efficiency meets its limit of one, lines are not straight and the interval is a rough one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ccbench.model.calibrated import ScaleEstimate
from ccbench.model.library.calibration import (
    LOSS_SCALE,
    SCALE_SPREAD,
    TERMS,
    USUAL_SPREAD,
    Calibrated,
    Observation,
    scaled_table,
)
from ccbench.model.library.constants import LibraryConstants, shipped
from ccbench.model.library.predictor import seconds_of

Floats = NDArray[np.float64]

RESAMPLES = 500
CONFIDENCE = 0.95
SEED = 20260
STEP = 0.01
"""In log scale, both ways, for the slopes: wide enough to see past one change of algorithm."""

PAST_A_LIMIT = 0.1
"""Step downwards where the small one moves nothing: a fit may leave an efficiency above its limit of one."""

REWEIGHTINGS = 5

MATTERS = 0.01
"""A point depends on a scale when one percent of the scale moves its time by this share of a percent."""


def scale_intervals(
    calibrated: Calibrated,
    observations: Sequence[Observation],
    start: LibraryConstants | None = None,
    resamples: int = RESAMPLES,
) -> tuple[ScaleEstimate, ...]:
    """The scales of ``calibrated``, which was fitted to ``observations`` from ``start``, with 95% intervals.

    Intervals are percentiles of the resamples, made wider where they would leave out the scale itself. They
    are of the points as they are: points that err together (all sizes of one bad day) make them too narrow.
    """
    table = (shipped() if start is None else start).table
    found = np.log([scale for _, scale in calibrated.scales])
    residuals = _residuals(observations, table, found)
    slopes, limited = _slopes(observations, table, found)
    counts = np.count_nonzero(np.abs(slopes) > MATTERS, axis=0)
    moved = _resampled(residuals, slopes, found, limited, resamples)
    edges = [100 * (1 - CONFIDENCE) / 2, 100 * (1 + CONFIDENCE) / 2]
    low, high = np.exp(np.percentile(found + moved, edges, axis=0))
    return tuple(
        ScaleEstimate(term, scale, min(scale, float(low[place])), max(scale, float(high[place])), int(seen))
        for place, ((term, scale), seen) in enumerate(zip(calibrated.scales, counts.tolist(), strict=True))
    )


def _residuals(observations: Sequence[Observation], table: dict[str, float], point: Floats) -> Floats:
    scaled = scaled_table(table, np.exp(point))
    parts = [
        np.log(seconds_of(one.system, one.request, scaled) / np.asarray(one.seconds)) for one in observations
    ]
    return np.concatenate(parts)


def _slopes(
    observations: Sequence[Observation], table: dict[str, float], point: Floats
) -> tuple[Floats, NDArray[np.bool_]]:
    """Shape (points, scales); and which scales have met a limit, so that only lower values of them matter."""
    here = _residuals(observations, table, point)
    columns = []
    limited = np.zeros(len(point), dtype=bool)
    for place in range(len(point)):
        above, below = _aside(observations, table, point, place, STEP)
        column = (above - below) / (2 * STEP)
        if np.all(np.abs(column) <= MATTERS):
            _, below = _aside(observations, table, point, place, PAST_A_LIMIT)
            column = (here - below) / PAST_A_LIMIT
            limited[place] = bool(np.any(np.abs(column) > MATTERS))
        columns.append(column)
    return np.stack(columns, axis=1), limited


def _aside(
    observations: Sequence[Observation], table: dict[str, float], point: Floats, place: int, step: float
) -> tuple[Floats, Floats]:
    """Residuals with one scale a step higher, and a step lower."""
    apart = np.zeros_like(point)
    apart[place] = step
    above = _residuals(observations, table, point + apart)
    return above, _residuals(observations, table, point - apart)


def _resampled(
    residuals: Floats, slopes: Floats, found: Floats, limited: NDArray[np.bool_], resamples: int
) -> Floats:
    """How far each resample's scales lie from those found, in log; shape (resamples, scales)."""
    spread = np.array([SCALE_SPREAD.get(term, USUAL_SPREAD) for term in TERMS])
    random = np.random.default_rng(SEED)
    points = len(residuals)
    lines = np.vstack([slopes, np.diag(LOSS_SCALE / spread)])
    offsets = np.concatenate([residuals, LOSS_SCALE * found / spread])
    draws = random.multinomial(points, np.full(points, 1 / points), size=resamples).astype(np.float64)
    moved = np.zeros((resamples, len(found)))
    for place, drawn in enumerate(draws):
        moved[place] = _bounded(lines, offsets, np.concatenate([drawn, np.ones(len(found))]), limited)
    # Only what differs between resamples counts: the fit may have stopped a little before its end.
    return moved - _bounded(lines, offsets, np.ones(len(offsets)), limited)


def _bounded(lines: Floats, offsets: Floats, counts: Floats, limited: NDArray[np.bool_]) -> Floats:
    """As ``_refitted``, but scales that are ``limited`` stay or fall: above, they would move nothing."""
    step = _refitted(lines, offsets, counts)
    rising = limited & (step > 0)
    if rising.any():
        step = np.zeros_like(step)
        step[~rising] = _refitted(lines[:, ~rising], offsets, counts)
    return step


def _refitted(lines: Floats, offsets: Floats, counts: Floats) -> Floats:
    """The step that makes the loss of ``offsets + lines @ step`` least, each row counted so often."""
    step = np.zeros(lines.shape[1])
    for _ in range(REWEIGHTINGS):
        # Soft-L1: 2 (sqrt(1 + z) - 1) of z = (r / scale)^2, whose slope in z is 1 / sqrt(1 + z).
        weights = counts / np.sqrt(1.0 + ((offsets + lines @ step) / LOSS_SCALE) ** 2)
        weighted = lines * weights[:, None]
        step = np.linalg.solve(lines.T @ weighted, -(weighted.T @ offsets))
    return step
