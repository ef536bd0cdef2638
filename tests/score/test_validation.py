from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchmarks.score.keys import machine_key, system_key
from benchmarks.score.learning import fit
from benchmarks.score.logs import LogPoints
from benchmarks.score.validation import (
    ANCHORS,
    anchored_systems,
    between_systems,
    coverage,
    figures,
    folds,
    held_out_systems,
    library_of,
    plain_residuals,
    pooled,
    residuals_of,
    shipped_by_system,
)
from ccbench.model.library import HostProcessor
from ccbench.model.library.calibration import Observation
from ccbench.model.library.constants import LibraryConstants, constants_of
from ccbench.model.library.predictor import seconds_of
from tests.model.library.systems import MI300X
from tests.score.corpora import SIZES, entry, log_points, system


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


def test_part_of_a_machine_teaches_nothing_about_the_rest() -> None:
    learner = Learner()
    logs = [log_points("a.txt", SIZES), log_points("b.txt", SIZES, ranks_per_node=4)]
    systems = held_out_systems(folds(logs, system_key, quiet, learner, machine_key))
    assert [system.files for system in systems] == [("a.txt",), ("b.txt",)]
    assert learner.seen == [[]]


def test_all_systems_of_a_generation_are_left_out_together() -> None:
    learner = Learner()
    logs = [log_points("a.txt", SIZES), log_points("b.txt", SIZES, ranks_per_node=4)]
    systems = held_out_systems(folds(logs, lambda one: one.generation, quiet, learner))
    assert learner.seen == [[]]
    assert [system.files for system in systems] == [("a.txt",), ("b.txt",)]


def test_logs_that_are_not_healthy_teach_nothing_and_are_not_tested() -> None:
    sick = replace(log_points("b.txt", SIZES, ranks_per_node=4), entry=entry(healthy=False))
    dim = replace(log_points("c.txt", SIZES, ranks_per_node=2), entry=entry(healthy=None))
    systems = held_out_systems(
        folds([log_points("a.txt", SIZES), sick, dim], system_key, quiet, Learner())
    )
    assert [system.files for system in systems] == [("a.txt",)]
    assert len(shipped_by_system([sick, dim])) == 0


def test_each_system_counts_once_whatever_its_number_of_rows() -> None:
    fast = [slower(f"{index}.txt", 1.0) for index in range(9)]
    slow = [slower(f"slow{one}.txt", 2.0, ranks_per_node=one) for one in (2, 4)]
    found = figures(held_out_systems(folds([*fast, *slow], system_key, quiet, Learner())))
    assert found["systems"] == 3
    assert found["median_error"] == pytest.approx(0.5)
    assert found["bias"] == pytest.approx(-0.5)
    assert found["bands"]["above_32MiB"]["systems"] == 3
    assert found["networks"].keys() == {"no network"}


def test_the_interval_of_the_median_holds_it_and_is_as_wide_as_systems_differ() -> None:
    wide, narrow = (
        figures(held_out_systems(folds(many(12, spread), system_key, quiet, Learner())))
        for spread in (0.5, 0.05)
    )
    for one in (wide, narrow):
        assert one["low"] <= one["median_error"] <= one["high"] <= one["percentile_90"] * 1.5
    assert wide["high"] - wide["low"] > narrow["high"] - narrow["low"]


def test_intervals_of_systems_that_were_left_out_hold_as_often_as_they_say() -> None:
    tested = held_out_systems(folds(many(24), system_key, quiet, Learner()))
    learned = residuals_of(tested)
    held = coverage(tested, learned)
    assert 0.8 <= held["coverage_80"] <= 0.9
    assert 0.95 <= held["coverage_95"] <= 1.0
    assert 1.0 < held["median_width"] < 3.0
    for outer, inner in zip(learned.tail_95, learned.tail_80, strict=True):
        assert outer <= inner


def test_residuals_are_those_of_the_rows_and_come_back_from_plain_values() -> None:
    learned = residuals_of(held_out_systems(folds(many(3), system_key, quiet, Learner())))
    plain = plain_residuals(learned, "3 logs")
    assert [one["name"] for one in plain["systems"]] == ["board 0", "board 1", "board 2"]
    first = learned.systems[0]
    assert len(first.log_ratios) == len(first.transfer_shares) == len(SIZES)
    assert dict(first.medians).keys() == {"latency", "middle", "large"}
    assert all(0 <= share <= 1 for share in first.transfer_shares)


def test_a_told_size_brings_systems_of_other_levels_near_and_is_not_tested() -> None:
    found = anchored_systems(folds(many(8, spread=0.5), system_key, quiet, Learner()))
    assert list(found) == list(ANCHORS)  # each system has one collective: there are no others
    small = {
        name: figures(systems)["bands"]["up_to_32KiB"]["median_error"]
        for name, systems in found.items()
    }
    assert small["told 1 KiB"] < small["no size told"] / 2
    rest = {size for size in SIZES if size not in (1 << 10, 1 << 22, 1 << 24, 1 << 28)}
    for systems in found.values():
        for one in systems:
            assert rest <= set(one.size_bytes.tolist()) < set(SIZES) - {1 << 10, 1 << 28}
    (one, *_) = found["told 1 KiB"]
    assert one.octaves.tolist() == np.minimum(np.log2(one.size_bytes / 1024), 20).tolist()
    assert found["no size told"][0].octaves.size == 0


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


def test_between_measured_sizes_systems_of_other_levels_are_near() -> None:
    left_out = folds(many(8, spread=0.5), system_key, quiet, Learner())
    between, plain = between_systems(left_out), held_out_systems(left_out)
    assert figures(between)["median_error"] < figures(plain)["median_error"] / 2
    assert all(sorted(one.size_bytes.tolist()) == sorted(SIZES)[1:-1] for one in between)
    assert all(len(one.octaves) == len(one.log_ratios) for one in between)
    few = [log_points("a.txt", SIZES[:3])]
    assert between_systems(folds(few, system_key, quiet, Learner())) == ()


def test_of_one_system_no_coverage_is_known() -> None:
    tested = held_out_systems(folds([log_points("a.txt", SIZES)], system_key, quiet, fit))
    assert coverage(tested, residuals_of(tested)) == {"bands": {}}


@pytest.mark.parametrize(
    ("version", "word"),
    [
        ((), "NCCL, version unknown"),
        ((2, 9, 9), "NCCL to 2.17"),
        ((2, 18), "NCCL 2.18 to 2.22"),
        ((2, 26, 2), "NCCL from 2.23"),
    ],
)
def test_libraries_are_told_by_what_they_brought(version: tuple[int, ...], word: str) -> None:
    assert library_of(system(), version) == word
    assert library_of(MI300X, version) == "RCCL"


def test_a_system_is_told_by_its_figures_and_not_by_its_name() -> None:
    assert system_key(
        system(name="x", origins={"a": "b"}, host=HostProcessor.AMD)
    ) == system_key(system())
    assert system_key(system(intra_bytes_per_second=200e9)) != system_key(system())
