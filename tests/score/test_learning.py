from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.score.learning import fit
from ccbench.model.library import LibraryRequest, LibrarySystem
from ccbench.model.library.calibration import Observation
from ccbench.model.library.constants import constants_of
from ccbench.model.library.predictor import seconds_of
from tests.model.library.systems import A100, H100, HDR, clustered, lone

SIZES = tuple(1 << power for power in range(3, 34, 3))
PLANTED = {"base": 1.3, "NVLink": 0.93, "NVLS of Hopper": 1.05, "fabric": 0.96}


def observed(
    system: LibrarySystem, collective: str, noise: float = 0.0, seed: int = 0
) -> Observation:
    request = LibraryRequest(collective, SIZES)
    seconds = seconds_of(system, request, constants_of(PLANTED).table)
    factor = np.exp(noise * np.random.default_rng(seed).standard_normal(len(SIZES)))
    return Observation(system, request, tuple((seconds * factor).tolist()))


def observations(noise: float = 0.0) -> list[Observation]:
    machines = [
        H100,
        A100,
        lone(2),
        clustered(A100, 2, HDR),
        clustered(A100, 8, HDR),
        clustered(H100, 2),
    ]
    expected = [
        (machine, name) for machine in machines for name in ("all_reduce", "all_gather")
    ]
    return [observed(*one, noise, seed) for seed, one in enumerate(expected)]


def test_planted_levels_are_found_again() -> None:
    found = dict(fit(observations(0.01), prior_weight=0.001).levels)
    for name, scale in PLANTED.items():
        assert abs(np.log(found[name] / scale)) < 0.25 * abs(np.log(scale)), name


@pytest.mark.exhaustive
def test_systems_that_are_off_by_a_factor_move_nothing_much() -> None:
    healthy = observations()
    sick = [
        replace(
            one,
            system=replace(one.system, ranks_per_node=4),
            seconds=tuple(3 * np.array(one.seconds)),
        )
        for one in healthy[:2]
    ]
    one, other = (dict(fit(rows).levels) for rows in (healthy, [*healthy, *sick]))
    assert other == pytest.approx(one, rel=0.03)


@pytest.mark.exhaustive
def test_a_system_counts_once_whatever_its_number_of_rows() -> None:
    rows = observations()
    slow = [
        replace(one, seconds=tuple(1.2 * np.array(one.seconds)))
        for one in rows
        if one.system == rows[0].system
    ]
    rows = [*slow, *[one for one in rows if one.system != rows[0].system]]
    again = [*rows, *slow * 20]
    once, often = (fit(observed).table for observed in (rows, again))
    for one in rows:
        expected = seconds_of(one.system, one.request, once)
        assert seconds_of(one.system, one.request, often) == pytest.approx(expected, rel=0.04)
