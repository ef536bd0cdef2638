from __future__ import annotations

import numpy as np
import pytest

from benchmarks.score.learning import domain_of, fit
from ccbench.model.library import LibraryRequest, LibrarySystem
from ccbench.model.library.calibration import Observation
from ccbench.model.library.constants import BY_NAME, constants_of
from ccbench.model.library.predictor import seconds_of
from tests.model.library.systems import A100, H100, HDR, STARTS, clustered, lone

SIZES = tuple(1 << power for power in range(3, 34, 3))
PLANTED = {"network_hop.ll": 1.5, "efficiency.fabric": 0.9, "hop.simple": 1.7, "fill.ring": 0.3}


def observed(system: LibrarySystem, collective: str, noise: float = 0.0, seed: int = 0) -> Observation:
    request = LibraryRequest(collective, SIZES)
    seconds = seconds_of(system, request, constants_of(PLANTED).table)
    factor = np.exp(noise * np.random.default_rng(seed).standard_normal(len(SIZES)))
    return Observation(system, request, tuple((seconds * factor).tolist()))


def observations(noise: float = 0.0) -> list[Observation]:
    machines = [H100, A100, lone(2), clustered(A100, 2, HDR), clustered(A100, 8, HDR), clustered(H100, 2)]
    wanted = [(machine, name) for machine in machines for name in ("all_reduce", "all_gather")]
    return [observed(*one, noise, seed) for seed, one in enumerate(wanted)]


def test_planted_constants_are_found_again() -> None:
    found = fit(observations(0.05), prior_weight=0.1, most_evaluations=8).table
    for name, value in PLANTED.items():
        start = BY_NAME[name].start
        assert abs(np.log(found[name] / value)) < 0.5 * abs(np.log(start / value)), name


def test_one_sick_row_moves_nothing_much() -> None:
    healthy = observations()
    sick = Observation(A100, LibraryRequest("all_reduce", (1 << 30,)), (10.0,))
    one, other = (fit(rows, most_evaluations=6).table for rows in (healthy, [*healthy, sick]))
    for name in PLANTED:
        assert other[name] == pytest.approx(one[name], rel=0.03)


def test_what_is_trusted_beforehand_moves_less() -> None:
    weak, strong = (
        fit(observations(), prior_weight=weight, most_evaluations=6).table for weight in (0.5, 50.0)
    )
    for name in PLANTED:
        start = STARTS.table[name]
        assert abs(strong[name] - start) < 0.1 * abs(weak[name] - start), name


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
