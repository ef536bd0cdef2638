"""Samples of many points at once, as flat NumPy arrays: medians of rounds, and of points.

A case is visited several times during a run, and samples of one round resemble each other more than those of
different rounds; so what is tested is a round's median, and a round counts once however many samples it has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]


@dataclass(frozen=True)
class Samples:
    """Samples of ``points`` points, grouped by round.

    seconds: all samples. round: of each sample, ascending from 0. point: of each round, ascending.
    """

    seconds: Floats
    one_round: Whole
    point: Whole
    points: int


Rounds = Sequence[Floats]
"""The samples of one point, one array a round, none of them empty."""


def samples_of(points: Sequence[Rounds]) -> Samples:
    """The samples of several points, in their order."""
    parts = [one_round for rounds in points for one_round in rounds]
    lengths = np.array([len(part) for part in parts], dtype=np.int64)
    counts = np.array([len(rounds) for rounds in points], dtype=np.int64)
    return Samples(
        seconds=np.concatenate(parts).astype(np.float64) if parts else np.zeros(0),
        one_round=np.repeat(np.arange(len(parts)), lengths),
        point=np.repeat(np.arange(len(points)), counts),
        points=len(points),
    )


def medians(values: Floats, group: Whole, groups: int) -> Floats:
    """The median of each of ``groups`` groups, NaN of an empty one; ``group`` need not be sorted."""
    order = np.lexsort((values, group))
    ordered = values[order]
    lengths = np.bincount(group, minlength=groups)
    starts = np.cumsum(lengths) - lengths
    found = np.full(groups, np.nan)
    some = lengths > 0
    low = starts[some] + (lengths[some] - 1) // 2
    high = starts[some] + lengths[some] // 2
    found[some] = (ordered[low] + ordered[high]) / 2
    return found


def round_medians(samples: Samples) -> Floats:
    """The median of every round, a row for each point; NaN where a point has fewer rounds than the others."""
    found = medians(samples.seconds, samples.one_round, len(samples.point))
    counts = np.bincount(samples.point, minlength=samples.points)
    table = np.full((samples.points, int(counts.max(initial=0))), np.nan)
    place = np.arange(len(samples.point)) - np.repeat(np.cumsum(counts) - counts, counts)
    table[samples.point, place] = found
    return table
