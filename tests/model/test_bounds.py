"""Bounds on fabrics: published optima, and never above any price, for thousands of random cases."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.collectives import COLLECTIVES
from ccbench.collectives import collective as collective_row
from ccbench.errors import MachineError
from ccbench.model.bounds import LIMITS, bound_on_fabric, cut_bound, level_bound
from ccbench.model.fabric_pricing import FabricCosts, price_algorithm
from ccbench.schedules import ALGORITHMS
from ccbench.topology.fabrics import Fabric, Wire, full_mesh, hypercube, single_switch, torus
from ccbench.topology.graph import Device, DeviceKind, Link, LinkKind, LinkState, Topology
from ccbench.topology.networks import dragonfly, dragonfly_plus, fat_tree
from tests.model.fabrics import box_cluster, nvswitch, random_fabric, ring
from tests.model.graphs import CUBE_MESH, FULL_MESH, GB, boxes, meshed, mi250, topology
from tests.tiers import examples

SIZES = np.array([0.0, 1.0, 1e3, 1e5, 1e7, 1e9, 1e11])


def below_every_price(fabric: Fabric, root: int, costs: FabricCosts) -> int:
    """Asserts it for every algorithm at every size; how many cases these are."""
    cases = 0
    for row in ALGORITHMS:
        place = root % fabric.ranks if collective_row(row.collective).rooted else 0
        prices = price_algorithm(row.collective, row.name, fabric, SIZES, costs, root=place)
        bound = bound_on_fabric(row.collective, fabric, SIZES, place)
        in_network = bound_on_fabric(
            row.collective, fabric, SIZES, place, in_network_reduction=True
        )
        assert bool(np.all(bound <= prices.seconds)), (fabric, row, root)
        assert bool(np.all(in_network <= bound))
        assert bool(np.all(np.diff(bound) >= 0))
        cases += len(SIZES)
    return cases


@pytest.mark.exhaustive
def test_no_price_is_below_its_bound_in_ten_thousand_random_cases() -> None:
    cases = 0
    for seed in range(50):
        costs = FabricCosts() if seed % 2 else FabricCosts(1e-7, None, 0.9, 1e-7)
        cases += below_every_price(random_fabric(seed), seed, costs)
    assert cases > 10_000


@pytest.mark.thinned(4)
@examples(8, 100, seed=st.integers(1000, 10**9), root=st.integers(0, 1000))
def test_no_price_is_below_its_bound(seed: int, root: int) -> None:
    below_every_price(random_fabric(seed), root, FabricCosts(message_seconds=seed % 3 * 1e-6))


@pytest.mark.thinned(2)
@pytest.mark.parametrize("machine", ["hgx-h100", "dgx-a100", "dgx-1v"])
@pytest.mark.parametrize("nodes", [1, 2, 6])
def test_no_price_on_machines_of_the_catalog_is_below_its_bound(
    machine: str, nodes: int
) -> None:
    below_every_price(box_cluster(nodes, machine, "ib-hdr-200x8"), 3, FabricCosts())


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("levels", "over"),
    [
        ((8, 4, 4), 1.0),
        pytest.param((8, 4, 4), 4.0, marks=pytest.mark.exhaustive),
        pytest.param((8, 16, 16), 2.0, marks=pytest.mark.exhaustive),
    ],
)
def test_no_price_of_many_ranks_is_below_its_bound(
    levels: tuple[int, ...], over: float
) -> None:
    below_every_price(fat_tree(levels, Wire(50e9, 1e-6), over), 5, FabricCosts())


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


def with_latencies(fabric: Fabric, latency: Callable[[Link], float]) -> Fabric:
    links = tuple(
        replace(link, latency_seconds=latency(link)) for link in fabric.topology.links
    )
    return replace(fabric, topology=replace(fabric.topology, links=links))


def test_the_quickest_way_may_pass_other_ranks() -> None:
    """The bound takes the least sum of latencies there is, not that of the route."""
    slow = full_mesh(3, Wire(1e9, 1e-6))
    bent = with_latencies(
        slow, lambda link: 9e-6 if (link.source, link.target) == ("gpu0", "gpu1") else 1e-6
    )
    assert bound_on_fabric("broadcast", bent, 0)[0] == pytest.approx(2e-6)


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
def test_known_optima_of_all_gather_by_levels_and_by_flows(
    fabric: Fabric, expected: str
) -> None:
    decimals = len(expected.partition(".")[2])
    by_flow = cut_bound("all_gather", fabric.topology)
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
        fat_tree((2, 4, 2), WIRE, 8.0),
        dragonfly(5, 2, 2, 2, WIRE),
        dragonfly_plus(4, 2, 2, 2, 2, WIRE),
    ],
    ids=lambda fabric: fabric.name,
)
@pytest.mark.parametrize("collective", LIMITS)
def test_levels_never_say_less_than_flows_and_mostly_the_same(
    fabric: Fabric, collective: str
) -> None:
    by_level = level_bound(fabric, collective)[0]
    by_flow = cut_bound(collective, fabric.topology)
    assert by_level >= by_flow * (1 - 1e-12) or collective in {"all_to_all", "all_reduce"}
    if collective in {"all_gather", "reduce_scatter", "broadcast", "reduce", "send_recv"}:
        assert by_level == by_flow


def test_what_has_no_bound_by_levels_is_refused() -> None:
    with pytest.raises(MachineError, match="'barrier' moves no data"):
        level_bound(single_switch(4, WIRE), "barrier")
    with pytest.raises(MachineError, match="1 ranks; a bound needs at least two"):
        level_bound(single_switch(1, WIRE), "all_gather")


P100 = tuple(tuple(min(1, count) for count in row) for row in CUBE_MESH)


def gigabytes(rate: Fraction) -> float:
    return float(rate) / GB


# The first five are what the authors' own program (github.com/liangyuRain/ForestColl) prints.
@pytest.mark.exhaustive
@pytest.mark.thinned(5)
@pytest.mark.parametrize(
    ("machine", "expected"),
    [
        (boxes(2, 8, 300, 25, 2), "346.667"),
        (boxes(4, 8, 300, 25, 2), "266.667"),
        (meshed(mi250(), 50), "342.857"),
        (meshed(mi250(), 50, 2, 16), "354.133"),
        (meshed(mi250(), 50, 4, 16), "341.333"),
        (meshed(CUBE_MESH, 25), "171.43"),
        (meshed(P100, 20), "91.43"),
        (boxes(2, 8, 450, 50), "533.3"),
        (boxes(16, 8, 450, 50), "426.7"),
        (boxes(8, 72, 900, 50), "951.7"),
        (boxes(128, 8, 450, 50), "403.15"),
    ],
)
def test_all_gather_reaches_the_published_optimum(machine: Topology, expected: str) -> None:
    bound = cut_bound("all_gather", machine)
    decimals = len(expected.partition(".")[2])
    assert f"{gigabytes(bound):.{decimals}f}" == expected


@st.composite
def random_graphs(draw: st.DrawFn, both_ways: bool = False) -> Topology:
    gpus, switches = draw(st.integers(2, 4)), draw(st.integers(0, 2))
    names = [f"gpu{rank}" for rank in range(gpus)] + [
        f"switch{index}" for index in range(switches)
    ]
    pairs = list((itertools.combinations if both_ways else itertools.permutations)(names, 2))
    rates = draw(
        st.lists(
            st.sampled_from([0, 0, 1, 2, 3, 5.5]), min_size=len(pairs), max_size=len(pairs)
        )
    )
    edges = [(*pair, rate) for pair, rate in zip(pairs, rates, strict=True) if rate]
    return topology(gpus, edges, both_ways)


def every_side(machine: Topology) -> list[set[str]]:
    names = [device.name for device in machine.devices]
    return [
        set(part)
        for size in range(1, len(names))
        for part in itertools.combinations(names, size)
    ]


def leaving(machine: Topology, side: set[str]) -> Fraction:
    crossing = [
        link for link in machine.links if link.source in side and link.target not in side
    ]
    return sum((Fraction(link.bytes_per_second or 0) for link in crossing), Fraction(0))


@given(random_graphs())
def test_bounds_equal_the_worst_of_all_cuts(machine: Topology) -> None:
    ranks = {device.name for device in machine.gpus}
    sides = [side for side in every_side(machine) if side & ranks]
    gather_all = min(leaving(machine, s) / len(s & ranks) for s in sides if ranks - s) * len(
        ranks
    )
    to_root = min(leaving(machine, s) / len(s & ranks) for s in sides if "gpu0" not in s) * len(
        ranks
    )
    from_root = min(leaving(machine, s) for s in sides if "gpu0" in s and ranks - s)
    assert cut_bound("all_gather", machine) == gather_all
    assert cut_bound("gather", machine, 0) == to_root
    assert cut_bound("broadcast", machine, 0) == from_root
    pairwise = min(
        leaving(machine, s) * len(ranks) / (len(s & ranks) * len(ranks - s))
        for s in sides
        if ranks - s
    )
    assert cut_bound("all_to_all", machine) >= pairwise


@given(random_graphs())
def test_turning_all_links_round_swaps_gathering_and_scattering(machine: Topology) -> None:
    links = tuple(
        Link(link.target, link.source, link.kind, link.bytes_per_second)
        for link in machine.links
    )
    turned = Topology("turned", machine.devices, links)
    for forward, backward in (
        ("all_gather", "reduce_scatter"),
        ("gather", "scatter"),
        ("broadcast", "reduce"),
    ):
        assert cut_bound(forward, machine) == cut_bound(backward, turned)


def two_phases(machine: Topology) -> Fraction:
    """The best that reduce_scatter followed by all_gather can do; not a limit for other algorithms."""
    rates = cut_bound("reduce_scatter", machine), cut_bound("all_gather", machine)
    return Fraction(0) if 0 in rates else 1 / (1 / rates[0] + 1 / rates[1])


@given(random_graphs(both_ways=True))
def test_a_limit_of_all_reduce_never_lies_below_what_two_phases_reach(
    machine: Topology,
) -> None:
    """Where as much can leave a switch as enters it: else the cuts of all_gather are no more than limits."""
    assert cut_bound("all_reduce", machine) >= two_phases(machine)


@pytest.mark.parametrize(
    "machine",
    [
        boxes(1, 8, 300, 0),
        boxes(4, 8, 300, 25, 2),
        meshed(CUBE_MESH, 25),
        meshed(FULL_MESH, 28),
    ],
)
def test_on_symmetric_machines_two_phases_are_the_best_all_reduce(machine: Topology) -> None:
    assert cut_bound("all_reduce", machine) == two_phases(machine)
    assert two_phases(machine) * 2 == cut_bound("all_gather", machine)


def test_links_that_are_down_carry_nothing() -> None:
    up = boxes(1, 3, 10, 0)
    links = tuple(
        Link(link.source, link.target, link.kind, link.bytes_per_second, state=LinkState.DOWN)
        if "gpu2" in (link.source, link.target)
        else link
        for link in up.links
    )
    assert cut_bound("all_gather", Topology("down", up.devices, links)) == 0


def test_what_has_no_bound_by_cuts_is_refused() -> None:
    with pytest.raises(MachineError, match="1 GPUs; a bound needs at least two"):
        cut_bound("all_gather", boxes(1, 1, 10, 0))
    with pytest.raises(MachineError, match="'barrier' moves no data"):
        cut_bound("barrier", boxes(1, 4, 10, 0))
    gpus = tuple(Device(f"gpu{rank}", DeviceKind.GPU) for rank in range(2))
    with pytest.raises(MachineError, match="gpu0 -> gpu1 has no rate"):
        cut_bound("all_gather", Topology("x", gpus, (Link("gpu0", "gpu1", LinkKind.PCIE),)))
    with pytest.raises(MachineError, match="root: 8 is not a rank; write 0 to 7"):
        cut_bound("broadcast", boxes(1, 8, 10, 0), 8)
