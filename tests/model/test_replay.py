"""Prices against the replay: another program, which lets every rank go ahead as soon as it can."""

from __future__ import annotations

import json
from functools import lru_cache

import numpy as np
import pytest

from ccbench.model.fabric_pricing import (
    FabricCosts,
    fabric_loads,
    price_algorithm,
    price_loads,
)
from ccbench.schedules import ALGORITHMS, Algorithm, schedule_for
from ccbench.schedules.schedule import Schedule
from ccbench.topology.fabrics import Fabric, Wire, full_mesh, single_switch
from tests.golden.simgrid.generate import FIGURES
from tests.golden.simgrid.platforms import Figure, fabric_of
from tests.model.replay import Replay

SENDER_SECONDS = 5e-7
COSTS = FabricCosts(SENDER_SECONDS)
WIRE = Wire(1e9, 1e-6)


def ids(row: Algorithm) -> str:
    return f"{row.collective}-{row.name}"


def scheduled(row: Algorithm, ranks: int) -> Schedule:
    pieces = 5 if row.parameter.startswith("pieces") else None
    return schedule_for(row.collective, row.name, ranks, parameter=pieces, prove=False)


def ratio(schedule: Schedule, fabric: Fabric, size_bytes: float) -> float:
    loads = fabric_loads(schedule, fabric, COSTS)
    size = 0.0 if schedule.collective == "barrier" else size_bytes
    replayed = Replay(schedule, fabric, size, SENDER_SECONDS).run()
    return float(price_loads(loads, size).seconds[0]) / replayed


@pytest.mark.thinned(60)
@pytest.mark.parametrize("row", ALGORITHMS, ids=ids)
@pytest.mark.parametrize("size_bytes", [1e4, 1e7])
@pytest.mark.parametrize(
    "fabric",
    [single_switch(8, WIRE), single_switch(64, WIRE), full_mesh(8, WIRE)],
    ids=lambda fabric: f"{fabric.name}-{fabric.ranks}",
)
def test_where_all_ways_are_alike_the_replay_says_the_same(
    row: Algorithm, size_bytes: float, fabric: Fabric
) -> None:
    assert ratio(scheduled(row, fabric.ranks), fabric, size_bytes) == pytest.approx(1, rel=1e-9)


WEIGHED = {"dragonfly"}
"""Where ways of different latency meet on a link, of which SimGrid gives the shorter the larger share."""


@lru_cache(maxsize=1)
def figures() -> list[Figure]:
    return [Figure(**row) for row in json.loads(FIGURES.read_text())["figures"]]


def error(figure: Figure) -> float:
    fabric = fabric_of(figure)
    prices = price_algorithm(figure.collective, figure.algorithm, fabric, figure.size_bytes)
    return float(prices.seconds[0]) / figure.seconds - 1


def family(figure: Figure) -> str:
    name = str(figure.platform.get("fabric", figure.platform["family"]))
    return name + " with latency at its ends" * ("latency" in figure.platform)


@pytest.mark.exhaustive
def test_the_mean_error_over_all_figures_is_below_three_percent() -> None:
    errors = np.abs([error(figure) for figure in figures()])
    assert len(errors) >= 150
    assert errors.mean() < 0.01
    assert np.median(errors) < 0.001


@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", sorted({family(figure) for figure in figures()}))
def test_the_mean_error_is_below_three_percent_in_every_family(name: str) -> None:
    errors = np.array([error(figure) for figure in figures() if family(figure) == name])
    assert len(errors) >= 10
    if name in WEIGHED:
        assert np.median(np.abs(errors)) < 0.03
        assert errors.min() > -0.02, (
            "ranks that are served first run ahead, so the price is too high"
        )
    else:
        assert np.abs(errors).mean() < 0.03
        assert np.abs(errors).max() < 0.03
