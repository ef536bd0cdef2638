"""Plans: what rings look like to a kernel."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ccbench.backends.kernels.links import Links, links_of
from ccbench.backends.kernels.sources import (
    NOBODY,
    channel_trees,
    ring_plan,
)
from ccbench.findings import SourceWarning
from ccbench.topology.files import load_catalog


@given(
    st.integers(1, 9).flatmap(
        lambda ranks: st.lists(st.permutations(range(ranks)), min_size=1, max_size=4)
    )
)
def test_a_ring_plan_is_the_order_and_its_inverse(orders: list[list[int]]) -> None:
    ranks = len(orders[0])
    plan = ring_plan(orders)
    assert plan.shape == (len(orders), 2 * ranks)
    assert plan.dtype == np.int32
    for order, row in zip(orders, plan, strict=True):
        assert row[:ranks].tolist() == order
        assert [order[place] for place in row[ranks:]] == list(range(ranks))


def test_a_cube_of_direct_links_gives_a_ring_for_every_lane_each_both_ways() -> None:
    topology = load_catalog("dgx-1v")
    names = [gpu.name for gpu in topology.gpus]
    orders, all_joined = links_of(topology, names)
    otherwise, _ = links_of(topology, names[::-1])
    assert not all_joined
    assert len(otherwise) == len(orders) > 0
    assert all(sorted(order) == list(range(8)) for order in (*orders, *otherwise))
    joined = {(link.source, link.target) for link in topology.links}
    for order in orders:
        steps = zip(order, (*order[1:], order[0]), strict=True)
        assert all((names[source], names[target]) in joined for source, target in steps)
    turned = {tuple(reversed(order)) for order in orders}
    same_ring = {tuple(np.roll(order, -order.index(0)).tolist()) for order in turned}
    assert same_ring == {tuple(np.roll(order, -order.index(0)).tolist()) for order in orders}


def test_behind_a_switch_and_on_one_gpu_nothing_is_prescribed() -> None:
    topology = load_catalog("hgx-h100")
    names = [gpu.name for gpu in topology.gpus]
    assert links_of(topology, names) == Links()
    assert links_of(topology, names[:1] * 2) == Links()
    assert links_of(topology, ["unknown", names[0]]) == Links()


JOINED = {"hgx-a100-4": 4, "a100-pcie-bridge": 2, "rtx-pcie": 1}
"""Of each machine so many GPUs are joined by a link of every pair, and not one more."""


def test_gpus_are_joined_where_every_pair_has_a_link_or_nobody_could_look() -> None:
    for machine, most in JOINED.items():
        topology = load_catalog(machine)
        names = [gpu.name for gpu in topology.gpus]
        assert links_of(topology, names[:most]).joined
        assert links_of(topology, names[: most + 1]).joined == (len(names) == most)
    hidden = replace(topology, warnings=(SourceWarning("not_visible", "NVLink"),))
    assert links_of(hidden, names).joined


RANKS = st.integers(1, 40)


@given(
    RANKS.flatmap(
        lambda ranks: st.tuples(
            st.lists(st.permutations(range(ranks)), max_size=2),
            st.none() | st.integers(0, ranks - 1),
        )
    ),
    RANKS,
)
def test_every_rank_hangs_below_one_root(
    drawn: tuple[list[list[int]], int | None], otherwise: int
) -> None:
    orders, root = drawn
    ranks = len(orders[0]) if orders else max(otherwise, (root or 0) + 1)
    for tree in channel_trees(ranks, 5, root, orders):
        assert tree.parents.count(NOBODY) == 1
        assert root is None or tree.parents.index(-1) == root
        for rank, parent in enumerate(tree.parents):
            assert len(tree.children[rank]) <= 2
            assert parent == NOBODY or rank in tree.children[parent]
            above = 0 if root is None else 1
            assert tree.depth(rank) <= max(ranks - above, 1).bit_length() - 1 + above


@given(st.integers(2, 60), st.booleans())
def test_nobody_is_inner_on_two_channels_but_a_given_root(ranks: int, rooted: bool) -> None:
    even, odd = channel_trees(ranks, 2, 0 if rooted else None)
    both = [rank for rank in range(ranks) if even.children[rank] and odd.children[rank]]
    assert both == ([0] if rooted else [])
