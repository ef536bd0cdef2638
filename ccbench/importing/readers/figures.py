"""Printed figures: the value, and half a unit of its last digit, so that checks know the rounding."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

GIBI = 2**30 / 1e9
"""A rate in 2^30 bytes per second times this is one in 1e9 bytes per second."""

LARGEST_SIZE = 2**62
"""Bytes; a larger figure is no size."""

_NUMBER = re.compile(r"[+-]?[0-9]{1,30}(?:\.([0-9]{0,30}))?(?:[eE]([+-]?[0-9]{1,3}))?", re.ASCII)


@dataclass(frozen=True)
class Figure:
    """A number as printed, times the unit it stands in."""

    value: float
    half_unit: float

    def times(self, factor: float) -> Figure:
        """The same figure in a unit that is ``factor`` times smaller."""
        return Figure(self.value * factor, self.half_unit * factor)

    def over(self, divisor: float) -> Figure:
        """The same figure in a unit ``divisor`` times larger: one rounding only, unlike times(1/divisor)."""
        return Figure(self.value / divisor, self.half_unit / divisor)


def figure(text: str) -> Figure | None:
    """The figure ``text`` is, None where it is none, negative, or too large for a float."""
    match = _NUMBER.fullmatch(text.strip())
    if match is None:
        return None
    value = float(text)
    exponent = int(match[2] or 0) - len(match[1] or "")
    if not math.isfinite(value) or value < 0 or not -300 < exponent < 300:
        return None
    return Figure(value, 0.5 * 10.0**exponent)


def whole(text: str) -> int | None:
    """The size or count ``text`` is, None where it is no whole number from 0 to LARGEST_SIZE."""
    stripped = text.strip()
    if not (0 < len(stripped) <= 19 and stripped.isascii() and stripped.isdigit()):
        return None
    value = int(stripped)
    return value if value <= LARGEST_SIZE else None


def microseconds(text: str) -> Figure | None:
    """A figure in microseconds, in seconds."""
    found = figure(text)
    return found.over(1e6) if found else None


def value_of(found: Figure | None) -> float | None:
    """The value, or None."""
    return found.value if found else None


def half_unit_of(found: Figure | None) -> float | None:
    """Half a unit of the last digit, or None."""
    return found.half_unit if found else None


def rate_factor(points: Iterable[tuple[int, Figure, Figure]], default: float) -> float:
    """What printed rates are to be multiplied with to be in 1e9 bytes per second: 1 or GIBI.

    Some tools write GB/s for 2^30 bytes per second, and some changed their mind. points: (bytes, seconds,
    printed rate) of rows whose rate is bytes / seconds; those whose rounding leaves both open do not vote.
    default: where no row tells.
    """
    votes = {1.0: 0, GIBI: 0}
    for size_bytes, seconds, rate in points:
        if seconds.value <= 0:
            continue
        slack = rate.half_unit * 1.02 + rate.value * seconds.half_unit / seconds.value
        fits = [f for f in votes if abs(size_bytes / seconds.value / 1e9 / f - rate.value) <= slack]
        if len(fits) == 1:
            votes[fits[0]] += 1
    if votes[1.0] == votes[GIBI]:
        return default
    return max(votes, key=lambda factor: votes[factor])
