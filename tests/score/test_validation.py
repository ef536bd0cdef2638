from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.score.keys import system_key
from benchmarks.score.logs import LogPoints
from benchmarks.score.validation import (
    ANCHORS,
    anchored_systems,
    coverage,
    folds,
    held_out_systems,
    plain_residuals,
    pooled,
    residuals_of,
)
from ccbench.model.library.calibration import Observation
from ccbench.model.library.constants import LibraryConstants, constants_of
from ccbench.model.library.predictor import seconds_of
from tests.score.corpora import SIZES, log_points


class Learner:
    """Remembers what it was given; learns nothing."""

    def __init__(self) -> None:
        self.seen: list[list[int]] = []

    def __call__(self, observations: Sequence[Observation]) -> LibraryConstants:
        self.seen.append([observation.system.ranks_per_node for observation in observations])
        return constants_of({})


def quiet(_: str) -> None:
    return


def slower(
    file: str, factor: float, spread: float = 0.0, seed: int = 0, **changes: Any
) -> LogPoints:
    """A log whose times are the model's, nothing learned, times ``factor`` and lognormal noise."""
    points = log_points(file, SIZES, **changes)
    (one,) = points.observations
    noise = np.exp(np.random.default_rng(seed).normal(0.0, spread, len(SIZES)))
    seconds = seconds_of(one.system, one.request, constants_of({}).table) * factor * noise
    return replace(points, observations=(replace(one, seconds=tuple(seconds.tolist())),))


def many(count: int = 12, spread: float = 0.2) -> list[LogPoints]:
    """Systems of as many sizes of node, each with a level and noise of its own."""
    levels = np.exp(np.random.default_rng(1).normal(0.0, spread, count))
    return [
        slower(
            f"{one}.txt", float(level), 0.1, one, ranks_per_node=one + 2, name=f"board {one}"
        )
        for one, level in enumerate(levels)
    ]


def test_learning_never_sees_the_system_that_it_is_tested_on() -> None:
    learner = Learner()
    logs = [
        log_points("a.txt", SIZES, name="one site"),
        log_points("b.txt", SIZES, name="another site"),
        log_points("c.txt", SIZES, ranks_per_node=4, intra_bytes_per_second=1e11),
    ]
    systems = held_out_systems(folds(logs, system_key, quiet, learner))
    assert [system.files for system in systems] == [("a.txt", "b.txt"), ("c.txt",)]
    assert learner.seen == [[4], [8, 8]]
    assert [len(system.log_ratios) for system in systems] == [2 * len(SIZES), len(SIZES)]


def test_intervals_of_systems_that_were_left_out_hold_as_often_as_they_say() -> None:
    tested = held_out_systems(folds(many(24), system_key, quiet, Learner()))
    learned = residuals_of(tested)
    held = coverage(tested, learned)
    assert 0.8 <= held["coverage_80"] <= 0.9
    assert 0.95 <= held["coverage_95"] <= 1.0
    assert 1.0 < held["median_width"] < 3.0
    for outer, inner in zip(learned.tail_95, learned.tail_80, strict=True):
        assert outer <= inner


def test_intervals_of_anchored_predictions_are_of_all_anchors_together() -> None:
    found = anchored_systems(folds(many(4), system_key, quiet, Learner()))
    learned = residuals_of(pooled(found))
    told = [systems for name, systems in found.items() if ANCHORS[name]]
    for place, one in enumerate(learned.systems):
        assert (
            len(one.octaves)
            == len(one.log_ratios)
            == sum(len(of[place].log_ratios) for of in told)
        )
    assert all(
        "octaves" in residual
        for residual in plain_residuals(learned, "four systems")["systems"]
    )
