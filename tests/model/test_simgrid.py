"""Prices against SimGrid's SMPI, which has its own algorithms, routes and sharing of links."""

from __future__ import annotations

import json
from functools import lru_cache

import numpy as np
import pytest

from ccbench.model.fabric_pricing import price_algorithm
from tests.golden.simgrid.generate import FIGURES
from tests.golden.simgrid.platforms import Figure, fabric_of

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


def test_the_mean_error_over_all_figures_is_below_three_percent() -> None:
    errors = np.abs([error(figure) for figure in figures()])
    assert len(errors) >= 150
    assert errors.mean() < 0.01
    assert np.median(errors) < 0.001


@pytest.mark.parametrize("name", sorted({family(figure) for figure in figures()}))
def test_the_mean_error_is_below_three_percent_in_every_family(name: str) -> None:
    errors = np.array([error(figure) for figure in figures() if family(figure) == name])
    assert len(errors) >= 10
    if name in WEIGHED:
        assert np.median(np.abs(errors)) < 0.03
        assert errors.min() > -0.02, "ranks that are served first run ahead, so the price is too high"
    else:
        assert np.abs(errors).mean() < 0.03
        assert np.abs(errors).max() < 0.03


def test_the_figures_span_four_sizes_of_network() -> None:
    hosts = {figure.hosts for figure in figures()}
    assert min(hosts) == 16
    assert max(hosts) == 1024
    families = {family(figure) for figure in figures()}
    assert families >= {"star", "fat_tree", "torus", "dragonfly", "dragonfly_plus", "hypercube"}
