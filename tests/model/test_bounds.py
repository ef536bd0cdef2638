"""Bounds on fabrics: published optima, and never above any price, for thousands of random cases."""

from __future__ import annotations

import math
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ccbench.collectives import COLLECTIVES
from ccbench.collectives import collective as collective_row
from ccbench.errors import MachineError, UsageError
from ccbench.model.bounds import LIMITS, bound_on_fabric, cut_bound, level_bound
from ccbench.model.fabric_loads import FabricCosts
from ccbench.model.fabric_pricing import price_algorithm
from ccbench.schedules import ALGORITHMS
from ccbench.topology.fabrics import Fabric, Wire, full_mesh, hypercube, single_switch, torus
from ccbench.topology.networks import dragonfly, dragonfly_plus, fat_tree
from tests.model.fabrics import box_cluster, nvswitch, random_fabric, ring

SIZES = np.array([0.0, 1.0, 1e3, 1e5, 1e7, 1e9, 1e11])


def below_every_price(fabric: Fabric, root: int, costs: FabricCosts) -> int:
    """Asserts it for every algorithm at every size; how many cases these are."""
    cases = 0
    for row in ALGORITHMS:
        place = root % fabric.ranks if collective_row(row.collective).rooted else 0
        prices = price_algorithm(row.collective, row.name, fabric, SIZES, costs, root=place)
        bound = bound_on_fabric(row.collective, fabric, SIZES, place)
        in_network = bound_on_fabric(row.collective, fabric, SIZES, place, in_network_reduction=True)
        assert bool(np.all(bound <= prices.seconds)), (fabric, row, root)
        assert bool(np.all(in_network <= bound))
        assert bool(np.all(np.diff(bound) >= 0))
        cases += len(SIZES)
    return cases


@pytest.mark.exhaustive
def test_no_price_is_below_its_bound_in_ten_thousand_random_cases() -> None:
    cases = 0
    for seed in range(50):
        costs = FabricCosts() if seed % 2 else FabricCosts(1e-7, None, 0.9)
        cases += below_every_price(random_fabric(seed), seed, costs)
    assert cases > 10_000


@given(seed=st.integers(1000, 10**9), root=st.integers(0, 1000))
@settings(max_examples=20, deadline=None)
def test_no_price_is_below_its_bound(seed: int, root: int) -> None:
    below_every_price(random_fabric(seed), root, FabricCosts())


@pytest.mark.thinned(3)
@pytest.mark.parametrize("machine", ["hgx-h100", "dgx-a100", "dgx-1v"])
@pytest.mark.parametrize("nodes", [1, 2, 6])
def test_no_price_on_machines_of_the_catalog_is_below_its_bound(machine: str, nodes: int) -> None:
    below_every_price(box_cluster(nodes, machine, "ib-hdr-200x8"), 3, FabricCosts())


@pytest.mark.parametrize("over", [1.0, 4.0])
def test_no_price_of_many_ranks_is_below_its_bound(over: float) -> None:
    below_every_price(fat_tree([8, 16, 16], Wire(50e9, 1e-6), over), 0, FabricCosts())


@pytest.mark.exhaustive
def test_no_price_of_131072_ranks_is_below_its_bound() -> None:
    below_every_price(fat_tree([32, 64, 64], Wire(50e9, 1e-6), [2.0, 2.0]), 5, FabricCosts())


@pytest.mark.parametrize(
    ("fabric", "collective", "gigabytes_per_second"),
    [
        (nvswitch(8, 12, 25e9), "all_gather", 342.857),
        (nvswitch(8, 12, 25e9), "all_reduce", 171.429),
        (fat_tree([4, 4], Wire(50e9), 4.0), "all_to_all", 50 * 16 / 12 / 4 * 1.0),
    ],
    ids=lambda value: str(getattr(value, "name", value)),
)
def test_bounds_are_the_published_optima(
    fabric: Fabric, collective: str, gigabytes_per_second: float
) -> None:
    """ForestColl (arXiv 2402.06787) gives 342.857 GB/s for eight A100; the others by its formula."""
    assert 1 / bound_on_fabric(collective, fabric, 1e9)[0] == pytest.approx(gigabytes_per_second, rel=1e-5)


def test_reduction_in_the_network_halves_what_an_all_reduce_must_move() -> None:
    box = nvswitch(8, 18, 25e9, 1e-6)
    plain = bound_on_fabric("all_reduce", box, 1e9)
    in_network = bound_on_fabric("all_reduce", box, 1e9, in_network_reduction=True)
    assert 1 / in_network[0] == pytest.approx(450)
    assert 1 / plain[0] == pytest.approx(450 * 4 / 7)
    for name in set(COLLECTIVES) - {"all_reduce"}:
        with_it = bound_on_fabric(name, box, 1e9, in_network_reduction=True)
        assert with_it[0] == bound_on_fabric(name, box, 1e9)[0]


def test_small_messages_are_bound_by_the_farthest_pair_not_by_a_number_of_steps() -> None:
    for ranks in (2, 16, 1000):
        fabric = single_switch(ranks, Wire(50e9, 1e-6))
        assert bound_on_fabric("all_reduce", fabric, 1)[0] == pytest.approx(2e-6)
    line = ring(9, Wire(50e9, 1e-6))
    assert bound_on_fabric("broadcast", line, 0)[0] == pytest.approx(4e-6)
    assert bound_on_fabric("send_recv", line, 0)[0] == pytest.approx(1e-6)


def test_one_rank_and_a_fabric_without_latencies_are_not_bound_by_latency() -> None:
    assert bound_on_fabric("all_reduce", single_switch(1, Wire(50e9, 1e-6)), 1e9)[0] == 0
    assert bound_on_fabric("all_reduce", single_switch(4, Wire(50e9)), [0, 1e9])[0] == 0


def test_the_quickest_way_may_pass_other_ranks() -> None:
    """The bound takes the least sum of latencies there is, not that of the route."""
    slow = full_mesh(3, Wire(1e9, 1e-6))
    latency = slow.link_latency_seconds.copy()
    straight = int(slow.route(0, 1)[0, 0])
    latency[straight] = 9e-6
    bent = replace(slow, link_latency_seconds=latency)
    assert bound_on_fabric("broadcast", bent, 0)[0] == pytest.approx(2e-6)


@pytest.mark.parametrize(
    ("collective", "sizes", "root", "words"),
    [
        ("broadcast", 8, 4, "root: 4"),
        ("broadcast", 8, -1, "root: -1"),
        ("all_reduce", -1, 0, "size_bytes"),
        ("all_reduce", math.nan, 0, "size_bytes"),
    ],
)
def test_what_cannot_be_is_refused(collective: str, sizes: float, root: int, words: str) -> None:
    with pytest.raises(MachineError, match=words):
        bound_on_fabric(collective, single_switch(4, Wire(1e9)), sizes, root)


def test_an_unknown_collective_is_refused_and_a_root_that_does_not_count_is_not() -> None:
    fabric = single_switch(4, Wire(1e9))
    with pytest.raises(UsageError, match="all_shuffle"):
        bound_on_fabric("all_shuffle", fabric, 8)
    assert bound_on_fabric("all_reduce", fabric, 8, root=99)[0] > 0


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
