"""From two sides of many points to verdicts: all points at once, since the correction needs them all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ccbench.analysis.comparison.bootstrap import ratio_intervals
from ccbench.analysis.comparison.rounds import Floats, round_medians, samples_of
from ccbench.analysis.comparison.sides import Side
from ccbench.analysis.comparison.significance import (
    corrected,
    differ,
    enough_rounds,
    rank_p,
    rounds_needed,
    welch_p,
)
from ccbench.analysis.comparison.values import Cause, Comparison, Settings, Verdict
from ccbench.results import Point
from ccbench.units import format_change

BY_RATIO_ALONE = "printed averages: the ratio against the threshold, nothing is known of their spread"


@dataclass(frozen=True)
class Facing:
    """A point that both runs have a time of. told: what is unusual about the pair."""

    point: Point
    base: Side
    new: Side
    told: str = ""


@dataclass(frozen=True)
class Tested:
    """Of many points: ratio of medians, corrected and rank p, and whether the two sides differ.

    would_differ: whether they would, had the point been the only one.
    """

    ratio: Floats
    p_value: Floats
    rank_p_value: Floats
    differs: NDArray[np.bool_]
    would_differ: NDArray[np.bool_]

    def beyond(self, threshold: Floats) -> NDArray[np.bool_]:
        """Points that differ, and by the threshold or more in either direction."""
        return self.differs & self._is_far(threshold)

    def kept_back(self, threshold: Floats) -> NDArray[np.bool_]:
        """Points that the correction for the number of points alone keeps from being ``beyond``."""
        return self.would_differ & ~self.differs & self._is_far(threshold)

    def _is_far(self, threshold: Floats) -> NDArray[np.bool_]:
        return np.abs(np.log(self.ratio)) >= np.log1p(threshold)


def tested(base: Floats, new: Floats, confidence: float) -> Tested:
    """base, new: medians of rounds in seconds, a row a point, NaN where a row has no further round."""
    alone = welch_p(np.log(base), np.log(new))
    welch, ranks = corrected(alone), rank_p(base, new)
    ratio = np.nanmedian(new, axis=1) / np.nanmedian(base, axis=1)
    return Tested(ratio, welch, ranks, differ(welch, ranks, confidence), differ(alone, ranks, confidence))


def judged(pairs: Sequence[Facing], settings: Settings) -> list[Comparison]:
    """The comparison of every pair, in order."""
    testable = [
        enough_rounds(len(pair.base.rounds), len(pair.new.rounds), settings.confidence) for pair in pairs
    ]
    by_test = iter(_by_test([pair for pair, enough in zip(pairs, testable, strict=True) if enough], settings))
    return [
        next(by_test) if enough else _without_test(pair, settings)
        for pair, enough in zip(pairs, testable, strict=True)
    ]


def _plain(pair: Facing, settings: Settings) -> Comparison:
    """All that is known before any verdict."""
    point = pair.point
    base, new = pair.base.seconds or 0.0, pair.new.seconds or 0.0
    return Comparison(
        point, Verdict.NONE, settings.thresholds.of(point.collective, point.backend, point.size_bytes),
        reason=pair.told, base_seconds=base, new_seconds=new, ratio=new / base,
        base_rounds=len(pair.base.rounds), new_rounds=len(pair.new.rounds),
    )  # fmt: skip


def _without_test(pair: Facing, settings: Settings) -> Comparison:
    """Of too few rounds: none of a measured point, the ratio's alone of what another tool printed."""
    plain = _plain(pair, settings)
    if not (pair.base.averages or pair.new.averages or (pair.base.imported and pair.new.imported)):
        needed = rounds_needed(settings.confidence)
        reason = (
            f"{plain.base_rounds} rounds against {plain.new_rounds} cannot show a change at "
            f"{settings.confidence:.4g}; {needed} against {needed} can"
        )
        return replace(plain, cause=Cause.TOO_FEW_ROUNDS, reason=joined(pair.told, reason))
    verdict = by_ratio(plain.ratio or 1.0, plain.threshold)
    return replace(plain, verdict=verdict, reason=joined(pair.told, BY_RATIO_ALONE))


def by_ratio(ratio: float, threshold: float) -> Verdict:
    """A verdict on a number that has no interval."""
    if ratio >= 1 + threshold:
        return Verdict.SLOWER
    return Verdict.FASTER if ratio <= 1 / (1 + threshold) else Verdict.SAME


def _by_test(pairs: Sequence[Facing], settings: Settings) -> list[Comparison]:
    if not pairs:
        return []
    base = round_medians(samples_of([pair.base.rounds for pair in pairs]))
    new = round_medians(samples_of([pair.new.rounds for pair in pairs]))
    found = tested(base, new, settings.confidence)
    low, high = ratio_intervals(base, new, settings.confidence, settings.draws, settings.seed)
    plain = [_plain(pair, settings) for pair in pairs]
    thresholds = np.array([one.threshold for one in plain])
    beyond, kept_back = found.beyond(thresholds), found.kept_back(thresholds)
    comparisons = []
    for place, one in enumerate(plain):
        full = replace(
            one,
            base_seconds=float(np.nanmedian(base[place])),
            new_seconds=float(np.nanmedian(new[place])),
            ratio=float(found.ratio[place]),
            # Of few values the median of the replicates is not always the median itself.
            low=float(min(low[place], found.ratio[place])),
            high=float(max(high[place], found.ratio[place])),
            p_value=float(found.p_value[place]),
            rank_p_value=float(found.rank_p_value[place]),
        )
        one = _with_verdict(full, bool(beyond[place]))
        if one.cause is Cause.TOO_WIDE and kept_back[place]:
            text = _among_many(full, len(pairs), settings.confidence)
            one = replace(one, reason=joined(full.reason, text))
        comparisons.append(one)
    return comparisons


def _among_many(one: Comparison, count: int, confidence: float) -> str:
    """What keeps a change from being shown that a comparison of this point alone would show."""
    change = format_change((one.ratio or 1.0) - 1)
    return (
        f"{change}: as the only point a change, but one among {count} is found by chance too easily (p "
        f"{one.p_value:.2g}, corrected for their number, is above {1 - confidence:.2g}); more rounds show it,"
        " or runs of fewer points (--only)"
    )


def _with_verdict(one: Comparison, beyond: bool) -> Comparison:
    ratio, low, high = one.ratio or 1.0, one.low or 0.0, one.high or np.inf
    if beyond:
        return replace(one, verdict=Verdict.SLOWER if ratio > 1 else Verdict.FASTER)
    if within(low, high, one.threshold):
        return replace(one, verdict=Verdict.SAME)
    return replace(one, cause=Cause.TOO_WIDE, reason=joined(one.reason, too_wide(one, low, high)))


def within(low: float, high: float, threshold: float) -> bool:
    """Whether a change by the threshold in either direction is ruled out."""
    return 1 / (1 + threshold) < low and high < 1 + threshold


def too_wide(one: Comparison, low: float, high: float) -> str:
    """What the interval leaves open."""
    span = f"between {format_change(low - 1)} and {format_change(high - 1)}"
    return f"{span}: neither a change by {one.threshold:.3g} nor the lack of one is shown"


def joined(*parts: str) -> str:
    """Reasons in one line."""
    return "; ".join(part for part in parts if part)
