from __future__ import annotations

import numpy as np
import pytest

from ccbench.analysis.pair_matrix import PairMatrix, pair_matrices
from ccbench.groups import Pair

from .machines import Slower, evenly, manifest, pairs, run_of


def matrices(
    machine: str = "hgx-h100",
    ranks: int = 8,
    slower: Slower = evenly,
    sizes: tuple[int, ...] = (8, 1 << 26),
) -> dict[tuple[int, bool], PairMatrix]:
    made = pairs(np.random.default_rng(3), ranks, slower, sizes)
    return {
        (matrix.first.size_bytes, matrix.both): matrix
        for matrix in pair_matrices(run_of(made, manifest(machine)))
    }


@pytest.mark.parametrize("size", [8, 1 << 26])
@pytest.mark.parametrize(("factor", "is_found"), [(1.0, False), (1.1, False), (1.4, True)])
def test_a_pair_misses_its_class_from_fifteen_percent_on(
    size: int, factor: float, is_found: bool
) -> None:
    slower = matrices(slower=lambda pair: factor if pair == Pair(2, 5, False) else 1.0)
    assert [*slower[size, False].misses.name] == ["2>5"] * is_found
    assert slower[size, True].misses.empty
