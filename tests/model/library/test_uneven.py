"""Uneven all-to-all: balanced it is the even one, and its loads are those counted message by message."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from ccbench.errors import MachineError
from ccbench.model.library.predictor import MOST_RANKS, predict_library, uneven_loads, uneven_shape
from ccbench.model.library.shapes import shapes
from ccbench.model.library.system import LibraryRequest, LibrarySystem
from tests.model.library.systems import A100, B200, H100, MI300X, NDR, V100_CUBE, clustered, lone

EVEN = str([[1] * 16] * 16)
SYSTEMS = [
    clustered(H100, 2),
    clustered(MI300X, 2),
    clustered(H100, 2, replace(NDR, per_node=4)),
    replace(clustered(A100, 4), ranks_per_node=4),
]


@pytest.mark.parametrize("system", SYSTEMS, ids=lambda system: f"{system.name}-{system.nodes}")
def test_as_a_matrix_of_equal_amounts_it_is_the_even_one(system: LibrarySystem) -> None:
    (even,) = shapes("all_to_all_v", system)
    found = uneven_shape(even, system, EVEN)
    assert (found.port_bytes, found.node_bytes) == pytest.approx((even.port_bytes, even.node_bytes))


@pytest.mark.parametrize("system", [H100, MI300X, V100_CUBE, B200, lone(4)], ids=lambda one: one.name)
def test_so_it_is_on_one_node_and_with_one_rank_a_node(system: LibrarySystem) -> None:
    (even,) = shapes("all_to_all_v", system)
    found = uneven_shape(even, system, str([[1] * system.ranks] * system.ranks))
    assert (found.port_bytes, found.node_bytes) == pytest.approx((even.port_bytes, even.node_bytes))


@settings(deadline=None)
@given(some.lists(some.lists(some.integers(0, 9), min_size=8, max_size=8), min_size=8, max_size=8))
def test_no_rank_moves_less_than_it_must_and_the_busiest_counts(rows: list[list[int]]) -> None:
    amounts = np.array(rows, dtype=float)
    if not amounts.any():
        return
    loads = uneven_loads(H100, str(rows))
    amounts /= amounts.sum(axis=1).max()
    np.fill_diagonal(amounts, 0)
    busiest = max(amounts.sum(axis=0).max(), amounts.sum(axis=1).max())
    assert loads.rank == pytest.approx(busiest)
    assert loads.inside == pytest.approx(busiest)
    assert loads.node == loads.nic == 0


def test_a_full_mesh_waits_for_the_link_between_the_pair_with_most_to_exchange() -> None:
    rows = [[0] * 8 for _ in range(8)]
    rows[2][5] = 1
    assert uneven_loads(MI300X, str(rows)).inside == pytest.approx(7)
    assert uneven_loads(H100, str(rows)).inside == pytest.approx(1)


def test_a_rank_that_all_send_to_is_reached_through_its_own_nic() -> None:
    loads = uneven_loads(clustered(H100, 2), "hot:1")
    # Eight ranks of the other node, through one of eight NICs.
    assert (loads.node, loads.nic) == (8, 64)


def test_the_more_skewed_the_slower() -> None:
    system = clustered(H100, 2)
    seconds = [
        predict_library(system, LibraryRequest("all_to_all_v", (1 << 26,), traffic=traffic))[0].seconds
        for traffic in ("", "zipf:0.5", "zipf:1.5", "hot:0.9")
    ]
    assert seconds == sorted(seconds)
    assert seconds[0] < seconds[-1] / 4


def test_a_matrix_too_large_to_look_at_is_refused() -> None:
    with pytest.raises(MachineError, match="at most"):
        uneven_loads(clustered(H100, MOST_RANKS), "hot:0.5")
