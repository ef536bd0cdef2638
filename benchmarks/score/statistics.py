"""Errors of predictions as four figures, for all sizes and for three bands of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ccbench.model.library.intervals import REGIMES

_SMALL, _MIDDLE = (most for _, most in REGIMES if most)
BANDS: tuple[tuple[str, int, int | None], ...] = (
    ("up_to_32KiB", 0, _SMALL),
    ("32KiB_to_32MiB", _SMALL + 1, _MIDDLE),
    ("above_32MiB", _MIDDLE + 1, None),
)
"""Name, and the least and the most bytes: where latency rules, in between, and where bandwidth rules."""


@dataclass(frozen=True)
class ErrorSummary:
    """Of the relative errors ``predicted / measured - 1`` as fractions; None where there is no point.

    median_error, mape: median and mean of their magnitudes. bias: their mean with sign; above zero where
    predictions are too slow.
    """

    points: int
    median_error: float | None = None
    mape: float | None = None
    bias: float | None = None


@dataclass(frozen=True)
class Score:
    """Of all points, and of each band by name."""

    overall: ErrorSummary
    bands: Mapping[str, ErrorSummary]


def summary(errors: Sequence[float]) -> ErrorSummary:
    """The four figures of ``errors``, which are finite."""
    if not len(errors):
        return ErrorSummary(0)
    signed = np.asarray(errors, dtype=np.float64)
    sizes = np.abs(signed)
    return ErrorSummary(
        len(signed), float(np.median(sizes)), float(sizes.mean()), float(signed.mean())
    )


def score(size_bytes: Sequence[int], errors: Sequence[float]) -> Score:
    """Of points of these sizes with these errors; what is not finite (nobody predicted it) is not counted."""
    known = [
        (size, error)
        for size, error in zip(size_bytes, errors, strict=True)
        if np.isfinite(error)
    ]
    bands = {
        name: summary(
            [error for size, error in known if least <= size and (most is None or size <= most)]
        )
        for name, least, most in BANDS
    }
    return Score(summary([error for _, error in known]), bands)
