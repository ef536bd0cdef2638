"""Predictions and bounds: host memory, links of a fabric, libraries of GPUs and of hosts, calibration."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from ccbench.columns import described

_NO_PREDICTION = "no prediction was made"
_NO_BOUND = "no prediction was made, or ranks are processes"
_NO_RANGE = "no interval is known: no prediction, or none of a GPU library"


def _edge(edge: str, share: int) -> dict[str, Any]:
    return described(
        f"{edge} edge of the interval of {share} % of such measurements",
        "seconds",
        _NO_RANGE,
        name=f"predicted_{edge}_{share}_seconds",
    )


@dataclass(frozen=True)
class PredictionInterval:
    """Times in seconds between which 80 % and 95 % of measurements lie.

    Of ranks on processors the 80 % alone: no healthy systems are known that tell more, so nothing is judged.
    """

    low_80_seconds: float = field(metadata=_edge("low", 80))
    high_80_seconds: float = field(metadata=_edge("high", 80))
    low_95_seconds: float = field(default=0.0, metadata=_edge("low", 95))
    high_95_seconds: float = field(default=math.inf, metadata=_edge("high", 95))
    origin: str = field(
        default="",
        metadata=described(
            "systems whose errors the intervals are from",
            "",
            _NO_RANGE,
            name="predicted_origin",
        ),
    )


@dataclass(frozen=True)
class Prediction:
    """Times in seconds for one launch of one case; ``bound_seconds <= predicted_seconds``; 0 where there is none."""

    bound_seconds: float = field(
        metadata=described("no schedule can be faster here", "seconds", _NO_BOUND)
    )
    predicted_seconds: float = field(
        metadata=described("price of the schedule that ran", "seconds", _NO_PREDICTION)
    )
    latency_seconds: float = field(
        metadata=described(
            "part of predicted_seconds that does not grow with the size",
            "seconds",
            _NO_PREDICTION,
            name="predicted_latency_seconds",
        )
    )
    bandwidth_seconds: float = field(
        metadata=described(
            "part of predicted_seconds that grows with the size",
            "seconds",
            _NO_PREDICTION,
            name="predicted_bandwidth_seconds",
        )
    )
    bottleneck: str = field(
        metadata=described("the link or term that costs most", "", _NO_PREDICTION)
    )
    interval: PredictionInterval | None = None
    """None where nothing of the kind was ever compared with measurements (ccbench's own schedules)."""
