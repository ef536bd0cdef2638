from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.schedules.tree import Edges, complement, tree_edges, tree_parents

RANKS = st.integers(1, 300)


def parents(edges: Edges) -> dict[int, int]:
    return dict(zip(edges.child.tolist(), edges.parent.tolist(), strict=True))


def depth_of(parent: dict[int, int], rank: int) -> int:
    steps = 0
    while rank in parent:
        rank, steps = parent[rank], steps + 1
        assert steps <= len(parent), "a cycle"
    return steps


@given(RANKS)
def test_both_trees_span_all_ranks_with_two_children_at_most(ranks: int) -> None:
    first = tree_edges(ranks)
    second = complement(first, ranks, 0)
    assert not set(first.parent.tolist()) & set(second.parent.tolist()), "an inner rank of both"
    for edges in (first, second):
        parent = parents(edges)
        roots = set(range(ranks)) - set(parent)
        assert len(roots) == 1
        assert max(Counter(parent.values()).values(), default=0) <= 2
        depths = [depth_of(parent, rank) for rank in edges.child.tolist()]
        assert depths == edges.depth.tolist()
        assert max(depths, default=0) == ranks.bit_length() - 1


@given(RANKS)
def test_children_lie_on_both_sides_of_their_parent(ranks: int) -> None:
    parent = tree_parents(ranks).tolist()
    for rank in range(ranks):
        children = [child for child in range(ranks) if parent[child] == rank]
        assert sum(child < rank for child in children) <= 1
        assert sum(child > rank for child in children) <= 1


@pytest.mark.parametrize(
    ("ranks", "parent"),
    [(1, [-1]), (8, [1, 3, 1, 7, 5, 3, 5, -1]), (11, [1, 3, 1, 7, 5, 3, 5, -1, 9, 7, 9])],
)
def test_the_tree_is_the_one_drawn_by_hand(ranks: int, parent: list[int]) -> None:
    assert tree_parents(ranks).tolist() == parent
