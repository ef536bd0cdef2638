"""Predictions and bounds: host memory, links of a fabric, libraries of GPUs and of hosts, calibration."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Interval:
    """Times in seconds between which 80 % and 95 % of measurements lie. origin: the systems that say so."""

    low_80_seconds: float
    high_80_seconds: float
    low_95_seconds: float
    high_95_seconds: float
    origin: str


@dataclass(frozen=True)
class Prediction:
    """Times in seconds for one launch of one case; ``bound_seconds <= predicted_seconds`` always.

    bound_seconds: no schedule can be faster on this machine.
    predicted_seconds: price of the schedule that runs.
    latency_seconds, bandwidth_seconds: the two parts of predicted_seconds.
    bottleneck: a sentence naming the term or link that costs most.
    interval: None where nothing of the kind was ever compared with measurements (ccbench's own schedules).
    """

    bound_seconds: float
    predicted_seconds: float
    latency_seconds: float
    bandwidth_seconds: float
    bottleneck: str
    interval: Interval | None = None
