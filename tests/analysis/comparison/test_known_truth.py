"""Two hundred pairs of runs whose truth is known: few false alarms, and what changed is found."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from ccbench.analysis.comparison import compare
from ccbench.analysis.self_check import noisy_points
from ccbench.analysis.verdicts import Settings, Verdict
from ccbench.results.keys import POINT

from .synthetic import Noise, made_up

POINTS = 24
USUAL = Noise()
CHANGED = 6


@dataclass(frozen=True)
class Kind:
    name: str
    pairs: int
    change: float = 0.0
    noise: Noise = USUAL


KINDS = (
    Kind("no change", 40),
    Kind("+2 %", 20, 0.02),
    Kind("+5 %", 20, 0.05),
    Kind("+10 %", 40, 0.10),
    Kind("+20 %", 20, 0.20),
    Kind("more noise", 20, 0.10, Noise(one_round=0.04, sample=0.1)),
    Kind("fewer samples", 20, 0.10, Noise(samples=4)),
    Kind("bimodal", 10, 0.0, Noise(modes=0.15)),
    Kind("drifting", 10, 0.10, Noise(drift=0.04)),
)


@dataclass(frozen=True)
class Shares:
    """Shares over all pairs of one kind: of unchanged points, and of changed ones."""

    false_alarms: int
    unchanged: int
    detected: int
    called_same: int
    changed: int


def shares_of(kind: Kind, random: np.random.Generator) -> Shares:
    counts = np.zeros(5, dtype=int)
    for _ in range(kind.pairs):
        changes = np.zeros(POINTS)
        changes[random.choice(POINTS, CHANGED, replace=False)] = kind.change
        base = made_up(random, np.zeros(POINTS).tolist(), kind.noise, "base")
        new = made_up(random, changes.tolist(), kind.noise, "new")
        truth = {
            POINT(pair.point): change
            for pair, change in zip(compare(base, base).points, changes, strict=True)
        }
        for point in compare(base, new).points:
            alarm = point.verdict in (Verdict.SLOWER, Verdict.FASTER)
            change = truth[POINT(point.point)]
            if change < 0.05:
                counts += (alarm, 1, 0, 0, 0)
            else:
                counts += (
                    0,
                    0,
                    point.verdict is Verdict.SLOWER,
                    point.verdict is Verdict.SAME,
                    1,
                )
    return Shares(*counts.tolist())


@pytest.mark.exhaustive
def test_of_two_hundred_pairs_false_alarms_are_few_and_slow_downs_are_found() -> None:
    assert sum(kind.pairs for kind in KINDS) == 200
    results = {
        kind.name: shares_of(kind, np.random.default_rng([2026, place]))
        for place, kind in enumerate(KINDS)
    }
    for name, rates in results.items():
        assert rates.false_alarms <= 0.01 * rates.unchanged, name
    for name in ("+10 %", "+20 %", "fewer samples", "drifting"):
        assert results[name].detected >= 0.95 * results[name].changed, name
    for name in ("+10 %", "+20 %", "more noise", "fewer samples", "drifting"):
        assert results[name].called_same == 0, name
    assert results["+5 %"].called_same <= 0.05 * results["+5 %"].changed


def test_few_points_differ_from_themselves() -> None:
    random = np.random.default_rng(5)
    for noise in (Noise(), Noise(one_round=0.3)):
        run = made_up(random, [0.0] * POINTS, noise, "one")
        assert len(noisy_points(run, Settings())) <= 0.01 * POINTS
