"""Closed forms agree with maximum flows where both can be had, and reach where flows cannot."""

from __future__ import annotations

import time

import pytest

from ccbench.errors import MachineError
from ccbench.model.cuts import cut_bound
from ccbench.model.graph_bounds import LIMITS, level_bound
from ccbench.topology.dragonflies import dragonfly, dragonfly_plus
from ccbench.topology.fabrics import Fabric, Wire, full_mesh, hypercube, nvswitch, ring, single_switch, torus
from ccbench.topology.fat_trees import fat_tree

WIRE = Wire(50e9, 1e-6)


@pytest.mark.parametrize(
    ("fabric", "expected"),
    [
        (full_mesh(8, Wire(28e9)), "224.0"),
        (ring(16, WIRE), "106.7"),
        (torus((8, 8), WIRE), "203.2"),
        (torus((4, 4, 4), WIRE), "304.8"),
        (hypercube(6, WIRE), "304.8"),
        (nvswitch(8, 12, 25e9), "342.9"),
        (fat_tree((16, 16), WIRE), "50.20"),
        (fat_tree((16, 16), WIRE, 4.0), "50.20"),
        (fat_tree((16, 16), WIRE, 16.0), "50.20"),
        (fat_tree((16, 16), WIRE, 32.0), "26.7"),
        (dragonfly(9, 4, 2, 2, Wire(25e9)), "25.35"),
    ],
)
def test_known_optima_of_all_gather_by_levels_and_by_flows(fabric: Fabric, expected: str) -> None:
    decimals = len(expected.partition(".")[2])
    by_flow = cut_bound("all_gather", fabric.topology())
    for algbw in (level_bound(fabric, "all_gather")[0], by_flow):
        assert f"{float(algbw) / 1e9:.{decimals}f}" == expected


@pytest.mark.thinned(20)
@pytest.mark.parametrize(
    "fabric",
    [
        single_switch(12, WIRE),
        full_mesh(8, WIRE),
        ring(12, WIRE),
        torus((4, 6), WIRE),
        hypercube(4, WIRE),
        fat_tree((4, 4), WIRE, 2.0),
        fat_tree((2, 4, 2), WIRE, (1.0, 8.0)),
        dragonfly(5, 2, 2, 2, WIRE),
        dragonfly_plus(4, 2, 2, 2, 2, WIRE),
    ],
    ids=lambda fabric: fabric.name,
)
@pytest.mark.parametrize("collective", LIMITS)
def test_levels_never_say_less_than_flows_and_mostly_the_same(fabric: Fabric, collective: str) -> None:
    by_level = level_bound(fabric, collective)[0]
    by_flow = cut_bound(collective, fabric.topology())
    assert by_level >= by_flow * (1 - 1e-12) or collective in {"all_to_all", "all_reduce"}
    if collective in {"all_gather", "reduce_scatter", "broadcast", "reduce", "send_recv"}:
        assert by_level == by_flow


def test_oversubscription_shows_in_all_to_all() -> None:
    rates = [level_bound(fat_tree((16, 16), WIRE, ratio), "all_to_all")[0] for ratio in (1.0, 4.0)]
    assert rates[0] == pytest.approx(50e9 * 256 / 255)
    assert rates[1] == pytest.approx(16 * 50e9 / 4 * 256 / (16 * 240))


def test_a_hundred_thousand_ranks_are_bounded_in_a_moment() -> None:
    fabric = fat_tree((32, 32, 100), WIRE, 2.0)
    start = time.process_time()
    for collective in LIMITS:
        assert level_bound(fabric, collective)[0] > 0
    assert time.process_time() - start < 1


def test_the_level_is_named() -> None:
    _, level = level_bound(fat_tree((16, 16), WIRE, 4.0), "all_to_all")
    assert (level.name, level.ranks, level.bytes_per_second) == ("subtree of level 1", 16, 200e9)


def test_what_has_no_bound_is_refused() -> None:
    with pytest.raises(MachineError, match="'barrier' moves no data"):
        level_bound(single_switch(4, WIRE), "barrier")
    with pytest.raises(MachineError, match="1 ranks; a bound needs at least two"):
        level_bound(single_switch(1, WIRE), "all_gather")
