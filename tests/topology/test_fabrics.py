"""Fabrics: routes are chains of links as short as there are, shared evenly among equal ones."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.errors import MachineError
from ccbench.topology.fabrics import (
    HOPS,
    LINK_KINDS,
    Fabric,
    Wire,
    full_mesh,
    hypercube,
    single_switch,
    torus,
)
from ccbench.topology.graph import DeviceKind, LinkKind
from ccbench.topology.networks import dragonfly, dragonfly_plus, fat_tree
from tests.model.fabrics import distances, nvlink_mesh, nvswitch, ring
from tests.model.graphs import CUBE_MESH

WIRE = Wire(50e9, 1e-6)

ALL = {
    "single switch": single_switch(9, WIRE),
    "nvswitch": nvswitch(8, 18, 25e9, 1e-6),
    "full mesh": full_mesh(7, WIRE),
    "ring of odd length": ring(9, WIRE),
    "tree with one way up": fat_tree((3, 2, 2), WIRE, oversubscription=3.0),
    "one row of two": torus((2,), WIRE),
    "ring of even length": ring(10, WIRE),
    "torus": torus((4, 3, 2), WIRE),
    "torus with a flat side": torus((5, 1, 4), WIRE),
    "hypercube": hypercube(5, WIRE),
    "cube mesh": nvlink_mesh(CUBE_MESH, Wire(25e9, 1e-6, LinkKind.NVLINK)),
    "fat-tree of two levels": fat_tree((4, 6), WIRE),
    "fat-tree of three levels": fat_tree((2, 3, 4), WIRE, 1.5),
    "dragonfly": dragonfly(9, 4, 2, 2, WIRE),
    "dragonfly with spare links": dragonfly(4, 3, 2, 3, WIRE),
    "dragonfly of one group": dragonfly(1, 4, 2, 1, WIRE),
    "dragonfly+": dragonfly_plus(5, 3, 2, 2, 2, WIRE),
    "dragonfly+ of one group": dragonfly_plus(1, 3, 2, 2, 2, WIRE),
}


def every_pair(fabric: Fabric) -> tuple[np.ndarray, np.ndarray]:
    pairs = np.array(list(itertools.product(range(fabric.ranks), repeat=2)))
    return pairs[:, 0], pairs[:, 1]


def follows(fabric: Fabric, source: int, target: int, row: np.ndarray) -> int:
    """How many links ``row`` has, which lead from ``source`` to ``target`` and stand before its padding."""
    links = row[row >= 0]
    assert (row[len(links) :] == -1).all()
    assert [source, *fabric.link_target[links]] == [*fabric.link_source[links], target]
    return len(links)


@pytest.mark.parametrize("name", ALL)
def test_a_route_is_a_chain_of_links_as_short_as_a_search_finds(name: str) -> None:
    fabric = ALL[name]
    sources, targets = every_pair(fabric)
    # Between groups, two global links can be fewer hops than local, global, local, which ``HOPS`` forbids.
    cost = np.array([link.attributes.get(HOPS, 1.0) for link in fabric.topology.links])
    least = distances(fabric, cost)
    for source, target, row in zip(
        sources, targets, fabric.route(sources, targets), strict=True
    ):
        hops = follows(fabric, source, target, row)
        assert cost[row[:hops]].sum() == pytest.approx(least[source, target])


@pytest.mark.parametrize("name", ALL)
def test_every_level_is_a_cut_that_no_set_of_that_size_beats_on_symmetric_fabrics(
    name: str,
) -> None:
    fabric = ALL[name]
    single = next(level for level in fabric.levels if level.ranks == 1)
    into = np.bincount(fabric.link_target, fabric.link_bytes_per_second, fabric.vertices)[
        : fabric.ranks
    ]
    assert single.bytes_per_second == pytest.approx(into.min())
    for level in fabric.levels:
        assert level.groups in {0, fabric.ranks // level.ranks}


@given(st.lists(st.integers(1, 5), min_size=1, max_size=3), st.data())
def test_any_torus_routes_by_the_shorter_way_round(
    sizes: list[int], data: st.DataObject
) -> None:
    ranks = int(np.prod(sizes))
    if ranks < 2:
        return
    source, target = (data.draw(st.integers(0, ranks - 1)) for _ in range(2))
    hops = 0
    left, right = source, target
    for size in sizes:
        ahead = (right - left) % size
        hops += min(ahead, size - ahead)
        left, right = left // size, right // size
    assert (torus(sizes, WIRE).route([source], [target]) >= 0).sum() == hops


@given(st.lists(st.integers(1, 4), min_size=1, max_size=3), st.sampled_from([0.5, 1.0, 2.5]))
def test_any_fat_tree_climbs_to_the_nearest_common_switch(
    children: list[int], over: float
) -> None:
    fabric = fat_tree(children, WIRE, over)
    for source, target, row in zip(
        *every_pair(fabric), fabric.route(*every_pair(fabric)), strict=True
    ):
        climbed, size = 0, 1
        for child in children:
            climbed += int(source // size != target // size)
            size *= child
        assert follows(fabric, source, target, row) == 2 * climbed


def test_links_have_names_kinds_and_counts() -> None:
    fabric = nvswitch(8, 18, 25e9, 1e-6)
    (row,) = fabric.route([2], [5])
    assert [fabric.link_name(link) for link in row] == [
        "gpu2 -> nvswitch0",
        "nvswitch0 -> gpu5",
    ]
    assert [LINK_KINDS[fabric.link_kind_codes[link]] for link in row] == [LinkKind.NVLINK] * 2
    assert fabric.link_bytes_per_second[row].tolist() == [450e9] * 2
    assert fabric.link_counts[row].tolist() == [18, 18]
    assert fabric.topology.by_name["nvswitch0"].kind is DeviceKind.NVSWITCH


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: single_switch(0, WIRE), "ranks: 0 is not a whole number"),
        (lambda: torus((), WIRE), "ranks: 1 is not a whole number, 2 or more"),
        (lambda: torus((3, -1), WIRE), "sizes: -1"),
        (
            lambda: full_mesh(10_000, WIRE),
            "full mesh: 10000 vertices; at most",
        ),
        (lambda: Wire(0.0), "bytes_per_second: 0.0 is not a positive number"),
        (lambda: Wire(1e9, -1.0), "latency_seconds: -1.0"),
        (lambda: fat_tree((), WIRE), "does not fit 0 levels"),
        (lambda: fat_tree((4, 4), WIRE, 0.0), "does not fit"),
        (
            lambda: dragonfly(9, 2, 1, 1, WIRE),
            "2 global links of a group do not reach 8 other groups",
        ),
        (lambda: single_switch(8, WIRE).route([8], [0]), "is not in 0 to 7"),
        (
            lambda: nvlink_mesh([[0, 1, 0], [1, 0, 0], [0, 0, 0]], WIRE).route([0], [2]),
            "no link leads from",
        ),
        (lambda: single_switch(5000, WIRE), "5001 vertices; at most 4096"),
        (lambda: hypercube(17, WIRE), "131072 vertices"),
        (lambda: full_mesh(600, WIRE), "full mesh: 359400 links; at most 300000"),
        (lambda: fat_tree((32, 32, 100), WIRE), "fat-tree: .* vertices"),
        (lambda: dragonfly(129, 32, 25, 4, WIRE), "dragonfly: .* vertices"),
    ],
)
def test_what_cannot_be_built_is_refused(make, complaint: str) -> None:  # type: ignore[no-untyped-def]  # lambdas of the table
    with pytest.raises(MachineError, match=complaint):
        make()
