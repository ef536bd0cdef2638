"""Plans: what rings look like to a kernel."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.backends.kernels.plans import natural_orders, ring_plan
from ccbench.errors import UsageError


@given(
    st.integers(1, 9).flatmap(lambda ranks: st.lists(st.permutations(range(ranks)), min_size=1, max_size=4))
)
def test_a_ring_plan_is_the_order_and_its_inverse(orders: list[list[int]]) -> None:
    ranks = len(orders[0])
    plan = ring_plan(orders)
    assert plan.shape == (len(orders), 2 * ranks)
    assert plan.dtype == np.int32
    for order, row in zip(orders, plan, strict=True):
        assert row[:ranks].tolist() == order
        assert [order[place] for place in row[ranks:]] == list(range(ranks))


@pytest.mark.parametrize("orders", [[[0, 1, 1]], [[0, 1], [1, 2]], [[0, 1], [0]], [[1, 2]]])
def test_what_is_not_an_order_of_all_ranks_is_refused(orders: list[list[int]]) -> None:
    with pytest.raises(UsageError, match="name every rank once"):
        ring_plan(orders)


def test_natural_rings_run_both_ways() -> None:
    assert natural_orders(3, 3) == [[0, 1, 2], [2, 1, 0], [0, 1, 2]]
