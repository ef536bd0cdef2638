from __future__ import annotations

import numpy as np
import pytest

from ccbench.analysis.pair_matrix import PairMatrix, pair_matrices
from ccbench.report.drawing import draw_map
from ccbench.report.figure import Figure
from ccbench.report.maps import (
    pair_figures,
)
from tests.analysis.health import machines
from tests.report.synthetic import grid_of


def made(machine: str = "hgx-h100", ranks: int = 8, slow: float = 1.0) -> list[PairMatrix]:
    """Latency and bandwidth of a machine whose pair 2, 5 may be slow, one way then both ways."""
    random = np.random.default_rng(5)
    measurements = machines.pairs(
        random, ranks, lambda pair: slow if {pair.source, pair.target} == {2, 5} else 1.0
    )
    matrices = pair_matrices(machines.run_of(measurements, machines.manifest(machine)))
    return sorted(matrices, key=lambda one: (one.first.size_bytes, one.both))


def test_beyond_sixteen_ranks_cells_have_no_numbers() -> None:
    random = np.random.default_rng(5)
    many = machines.pairs(random, 17, sizes=(8,))
    for figure in pair_figures(pair_matrices(machines.run_of(many, {}))):
        assert grid_of(figure).texts == ()
        assert len(grid_of(figure).values) == 17


def lightness(figure: Figure, *cells: tuple[int, int]) -> list[float]:
    """Mean of red, green and blue of cells of the map as it is drawn."""
    from matplotlib.figure import Figure as Canvas

    axes = Canvas().add_axes((0.1, 0.1, 0.6, 0.8))
    draw_map(figure, grid_of(figure), axes)
    (image,) = axes.images
    values = np.array(
        [grid_of(figure).values[row][column] for row, column in cells], dtype=float
    )
    colours = np.asarray(image.cmap(image.norm(values)))
    return [float(one) for one in colours[:, :3].mean(axis=1)]


@pytest.mark.parametrize("place", [0, 2])
def test_bad_cells_are_the_dark_ones_for_times_and_for_rates(place: int) -> None:
    bad, good = lightness(pair_figures(made(slow=2.0))[place], (2, 5), (0, 1))
    assert bad < good - 0.15
