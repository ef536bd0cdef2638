from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.score.learning import domain_of, fit
from ccbench.model.library import LibraryRequest, LibrarySystem
from ccbench.model.library.calibration import Observation
from ccbench.model.library.constants import constants_of
from ccbench.model.library.predictor import seconds_of
from tests.model.library.systems import A100, H100, HDR, STARTS, clustered, lone

SIZES = tuple(1 << power for power in range(3, 34, 3))
PLANTED = {
    "latency of Simple": 1.3,
    "rate inside": 0.93,
    "rate of switches": 1.12,
    "rate across": 0.96,
}


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
    found = dict(fit(observations(0.05)).levels)
    for name, scale in PLANTED.items():
        assert abs(np.log(found[name] / scale)) < 0.25 * abs(np.log(scale)), name


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


def test_a_system_counts_once_whatever_its_number_of_rows() -> None:
    rows = observations(0.1)
    again = [*rows, *[row for row in rows if row.system == rows[0].system] * 20]
    assert dict(fit(again).levels) == pytest.approx(dict(fit(rows).levels), rel=0.02)


def test_what_is_trusted_beforehand_moves_less() -> None:
    weak, strong = (
        dict(fit(observations(), prior_weight=weight).levels) for weight in (0.001, 10.0)
    )
    for name in PLANTED:
        assert abs(np.log(strong[name])) < 0.2 * abs(np.log(weak[name])), name


def test_without_observations_nothing_is_learned() -> None:
    assert fit([]).values == STARTS.values


def test_the_domain_is_what_was_observed() -> None:
    domain = domain_of(observations())
    assert fit(observations(), most_evaluations=1).domain == domain
    most_nodes = dict(domain.most_nodes)
    assert most_nodes["generation", "ampere"] == most_nodes["network", "ib"] == 8
    assert most_nodes["intra", "none"] == 2
    assert dict(domain.most_ranks_per_node) == {"none": 1, "nvswitch": 8}
    assert domain.largest_bytes == SIZES[-1]
