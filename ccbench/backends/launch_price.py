"""Price of a launch that a backend took apart: how often it pays each of five costs, and what those are."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ccbench.cases.measurement import Measurement
from ccbench.model import Prediction, PredictionInterval
from ccbench.units import format_seconds

Floats = NDArray[np.float64]

TERMS = FLAG, GROUP, CALL, COPIED, REDUCED = range(5)
TERM_NAMES = ("waiting for flags", "bookkeeping", "calls", "copying", "reducing")

LOW, HIGH = 0.75, 1.35
"""So many times the price: nine in ten medians lie between on quiet machines, four in five on loaded ones."""


def prediction_of(measurement: Measurement) -> Prediction | None:
    """Return the price of a launch, at the lower quartiles of all windows; None where nothing was counted."""
    if not measurement.path_counts:
        return None
    costs = np.quantile(np.array(measurement.path_costs_seconds), 0.25, axis=1)
    parts = np.array(measurement.path_counts) * costs
    seconds, most = float(parts.sum()), int(parts.argmax())
    fixed = float(parts[:COPIED].sum())
    bottleneck = f"{TERM_NAMES[most]}: {format_seconds(float(parts[most]))}"
    interval = PredictionInterval(LOW * seconds, HIGH * seconds)
    return Prediction(0.0, seconds, fixed, seconds - fixed, bottleneck, interval)
