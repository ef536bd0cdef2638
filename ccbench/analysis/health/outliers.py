"""Which of several like things is worse than the others, by the median absolute deviation."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

LIMIT = 3.5
"""Scaled deviations from the median at which a value is an outlier (B. Iglewicz and D. C. Hoaglin, "How to
Detect and Handle Outliers", ASQC 1993: modified z-scores above 3.5)."""

SCALE = 1.4826
"""Median absolute deviation of normally distributed values times this is their standard deviation."""


def high_outliers(values: Sequence[float], least: float) -> tuple[int, ...]:
    """Places of values that lie above the median by more than LIMIT scaled deviations and by ``least``.

    ``least`` keeps a difference without consequence from being one, where all the others are very alike. Of
    fewer than three values none is an outlier: nobody knows which of two is the odd one.
    """
    if len(values) < 3:
        return ()
    middle = median(values)
    spread = SCALE * median(abs(value - middle) for value in values)
    edge = middle + max(LIMIT * spread, least)
    return tuple(place for place, value in enumerate(values) if value > edge)


def relative_spread(values: Sequence[float]) -> float:
    """Scaled median absolute deviation over the median; 0 for fewer than two values or a median of 0."""
    if len(values) < 2:
        return 0.0
    middle = median(values)
    return SCALE * median(abs(value - middle) for value in values) / middle if middle else 0.0
