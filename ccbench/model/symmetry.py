"""Which of many steps, and of many ranks, need a look: of equal ones one, of too many a stated sample."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ccbench.model.patterns import Steps
from ccbench.topology.fabrics import Fabric
from ccbench.topology.routing import Ints

MOST_EXACT_FLOWS = 1_200_000
"""Flows, counted over all its steps, up to which each step of a pattern is looked at."""

MOST_EXACT_TURNS = 4096
MOST_SAMPLED_FLOWS = 900_000
FEWEST_SAMPLES = 12
MOST_SAMPLES = 192

FEWEST_RANKS = 2048
"""Below this it is quicker to look at all ranks."""

FEWEST_GROUPS = 12
"""Fewer equal groups than this save nothing when three of them are looked at."""


@dataclass(frozen=True)
class Sample:
    """``turns`` that stand for ``counts`` turns each; exact where each stands for itself or its equals."""

    turns: tuple[int, ...]
    counts: tuple[int, ...]
    exact: bool


def sampled_turns(steps: Steps, ranks: int) -> Sample:
    """The turns of ``steps`` to look at.

    Steps with the same flows, or with the same set of flows in another order, are looked at once: that is
    exact. Otherwise every turn is looked at as long as these are few, and a stratified sample beyond.
    """
    if steps.turns == 1 or _repeats(steps, ranks):
        return Sample((0,), (steps.turns,), exact=True)
    flows = len(steps.source) * steps.turns
    if steps.turns <= MOST_EXACT_TURNS and flows <= MOST_EXACT_FLOWS:
        return Sample(tuple(range(steps.turns)), (1,) * steps.turns, exact=True)
    return stratified(steps.turns, affordable(len(steps.source)))


def affordable(flows: int) -> int:
    """How many steps of ``flows`` flows a sample may have."""
    return max(FEWEST_SAMPLES, min(MOST_SAMPLES, MOST_SAMPLED_FLOWS // max(1, flows)))


def _repeats(steps: Steps, ranks: int) -> bool:
    """Whether the second step, and so every one, has the same set of flows as the first."""
    source_move, target_move = steps.source_move % ranks, steps.target_move % ranks
    if source_move == target_move == 0:
        return True
    if source_move != target_move or len(steps.source) < 2:
        return False
    source, target = steps.source.astype(np.int64), steps.target.astype(np.int64)
    before = source * ranks + target
    after = (source + source_move) % ranks * ranks + (target + target_move) % ranks
    first, second = np.lexsort((steps.width, before)), np.lexsort((steps.width, after))
    same_pairs = np.array_equal(before[first], after[second])
    return same_pairs and np.array_equal(steps.width[first], steps.width[second])


def stratified(turns: int, samples: int) -> Sample:
    """About ``samples`` of ``turns`` turns: dense near both ends, where shifts are short, even between.

    Each stratum is represented by a turn near its middle, moved off it by the golden fraction so that no
    power of two of the fabric's sizes is met every time. The second half mirrors the first, because a shift
    and its opposite load opposite links.
    """
    if turns <= samples:
        return Sample(tuple(range(turns)), (1,) * turns, exact=True)
    half, middle = turns // 2, turns % 2
    wanted = max(2, samples // 2)
    near = [1 << bit for bit in range(min(wanted // 3, half.bit_length() - 1))]
    even = np.linspace(0, half, wanted - len(near) + 1).astype(np.int64)
    edges = np.unique(np.concatenate([even, np.array(near, dtype=np.int64)]))
    sizes = np.diff(edges)
    golden = (math.sqrt(5) - 1) / 2
    places = edges[:-1] + (sizes * ((np.arange(len(sizes)) + 1) * golden % 1.0)).astype(np.int64)
    mirrored = (turns - 1 - places)[::-1]
    return Sample(
        (*places.tolist(), *([half] * middle), *mirrored.tolist()),
        (*sizes.tolist(), *([1] * middle), *sizes[::-1].tolist()),
        exact=False,
    )


def representative_ranks(fabric: Fabric) -> Ints | None:
    """Ranks of the first, a middle and the last of the largest equal groups of ``fabric``; None if too few.

    Where groups are alike, and flows too, what loads the links of one group loads those of all. Links of a
    group must carry only what begins or ends in it: true of trees and of minimal routes in a dragonfly, not
    of tori. Whether it is true here is for the caller to test.
    """
    sizes = [
        level.ranks
        for level in fabric.levels
        if level.consecutive and level.groups >= FEWEST_GROUPS and level.groups * level.ranks == fabric.ranks
    ]
    if fabric.ranks < FEWEST_RANKS or max(sizes, default=1) == 1:
        return None
    size = max(sizes)
    groups = fabric.ranks // size
    chosen = np.array([0, groups * 5 // 8, groups - 1])
    return np.asarray(chosen[:, None] * size + np.arange(size)).ravel()
