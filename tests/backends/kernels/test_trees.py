"""Plans of trees: one root, everybody below it, shallow, and complementary."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.backends.kernels.plans import PlanRequest, plan_for
from ccbench.backends.kernels.trees import NOBODY, channel_trees, tree_plan
from ccbench.errors import UsageError

RANKS = st.integers(1, 40)


@given(
    RANKS.flatmap(
        lambda ranks: st.tuples(
            st.lists(st.permutations(range(ranks)), max_size=2), st.none() | st.integers(0, ranks - 1)
        )
    ),
    RANKS,
)
def test_every_rank_hangs_below_one_root(drawn: tuple[list[list[int]], int | None], otherwise: int) -> None:
    orders, root = drawn
    ranks = len(orders[0]) if orders else max(otherwise, (root or 0) + 1)
    for tree in channel_trees(ranks, 5, root, orders):
        assert tree.parents.count(NOBODY) == 1
        assert root is None or tree.root == root
        for rank, parent in enumerate(tree.parents):
            assert len(tree.children[rank]) <= 2
            assert parent == NOBODY or rank in tree.children[parent]
            above = 0 if root is None else 1
            assert tree.depth(rank) <= max(ranks - above, 1).bit_length() - 1 + above


@given(st.integers(2, 60), st.booleans())
def test_nobody_is_inner_on_two_channels_but_a_given_root(ranks: int, rooted: bool) -> None:
    one, other = channel_trees(ranks, 2, 0 if rooted else None)
    both = [rank for rank in range(ranks) if one.children[rank] and other.children[rank]]
    assert both == ([0] if rooted else [])


@given(st.integers(1, 30), st.integers(1, 4))
def test_a_plan_says_who_is_whose_parent(ranks: int, channels: int) -> None:
    trees = channel_trees(ranks, channels)
    plan = tree_plan(trees)
    assert plan.shape == (channels, 4 * ranks)
    assert plan.dtype == np.int32
    for tree, row in zip(trees, plan.reshape(channels, 4, ranks), strict=True):
        parents, first, second, lag = row
        assert parents.tolist() == list(tree.parents)
        for rank in range(ranks):
            named = [int(child) for child in (first[rank], second[rank]) if child != NOBODY]
            assert named == list(tree.children[rank])
            assert parents[rank] == NOBODY or lag[rank] >= lag[parents[rank]]


def test_neighbours_of_the_order_are_near_in_the_tree() -> None:
    """In-order: adding left child, own and right child keeps the order of ranks."""
    (tree,) = channel_trees(7, 1)
    assert tree.parents == (1, 3, 1, -1, 5, 3, 5)
    (tree,) = channel_trees(7, 1, orders=[[6, 5, 4, 3, 2, 1, 0]])
    assert tree.children[3] == (5, 1)


@pytest.mark.parametrize("order", [[0, 1, 1], [0, 1], [1, 2, 3]])
def test_what_is_not_an_order_of_all_ranks_is_refused(order: list[int]) -> None:
    with pytest.raises(UsageError, match="name every rank once"):
        channel_trees(3, 1, orders=[order])


@pytest.mark.parametrize("root", [-1, 3])
def test_a_root_that_is_no_rank_is_refused(root: int) -> None:
    with pytest.raises(UsageError, match="not among ranks 0 to 2"):
        channel_trees(3, 1, root)


@pytest.mark.parametrize("collective", ["all_reduce", "broadcast", "reduce"])
def test_the_planner_knows_which_collectives_have_a_root(collective: str) -> None:
    plan = plan_for("tree.cu", PlanRequest(collective, ranks=6, channels=3, root=4)).plan
    assert plan is not None
    roots = [row[:6].tolist().index(NOBODY) for row in plan]
    assert (roots == [4, 4, 4]) == (collective != "all_reduce")
