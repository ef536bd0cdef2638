"""A against A: points at which rounds of one configuration, compared with themselves, differ as well.

Rounds are drawn anew at random many times, with replacement, so that both sides come from one pot and every change
seen is a false alarm. What differs between two whole runs (placement, a neighbour) does not show in one.
"""

from __future__ import annotations

import numpy as np

from ccbench.analysis.comparison import by_identity, obstacle_of, side_of
from ccbench.analysis.significance import (
    CONFIDENCE,
    SEED,
    enough_rounds,
    round_medians,
    rounds_of,
    tested,
)
from ccbench.analysis.verdicts import Settings
from ccbench.results import Point, Run

DRAWS = 100


def noisy_points(run: Run, settings: Settings) -> list[Point]:
    """Return points whose rounds differ from themselves in more draws than the confidence lets pass."""
    kept, tables = [], []
    for points in by_identity(run).values():
        side = side_of(points)
        each = len(side.rounds)
        if obstacle_of(side, "run", settings) is None and enough_rounds(each, each):
            kept.append(points[0])
            tables.append(side.rounds)
    if not kept:
        return []
    medians = np.sort(round_medians(tables), axis=1)  # NaN last
    random = np.random.default_rng(SEED)
    counts, places = rounds_of(medians)[:, None], np.arange(medians.shape[1])
    threshold, alarms = np.full(len(kept), settings.threshold), np.zeros(len(kept))
    for _ in range(DRAWS):
        base, new = (
            np.where(
                places < counts,
                np.take_along_axis(
                    medians, (random.random(medians.shape) * counts).astype(np.int64), axis=1
                ),
                np.nan,
            )
            for _ in range(2)
        )
        alarms += tested(base, new).beyond(threshold)
    noisy = alarms > (1 - CONFIDENCE) * DRAWS
    return [point for point, is_noisy in zip(kept, noisy, strict=True) if is_noisy]
