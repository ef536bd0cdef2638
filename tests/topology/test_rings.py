"""Rings share no link and use as many as they can; trees reach everybody."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.errors import MachineError
from ccbench.topology.fabrics import Fabric, Wire, full_mesh
from ccbench.topology.files import catalog_names, load_catalog
from ccbench.topology.graph import LinkKind, LinkState, Topology, TopologyClass
from ccbench.topology.rings import RingPlan, are_joined, rings_for, usable_share, walecki
from ccbench.topology.summary import usable_shares
from tests.model.fabrics import nvlink_mesh, nvswitch, ring

NVLINK = Wire(25e9, kind=LinkKind.NVLINK)


def hops(plan: RingPlan) -> Counter[tuple[str, str]]:
    used: Counter[tuple[str, str]] = Counter()
    for order in plan.orders:
        used.update(zip(order, (*order[1:], order[0]), strict=True))
    return used


def there(topology: Topology) -> Counter[tuple[str, str]]:
    counts: Counter[tuple[str, str]] = Counter()
    for link in topology.links:
        counts[link.source, link.target] += link.count
    return counts


@pytest.mark.parametrize("vertices", range(2, 30))
def test_walecki_cycles_pass_all_and_share_no_edge(vertices: int) -> None:
    cycles = walecki(vertices)
    assert len(cycles) == (vertices - 1) // 2
    edges = [
        frozenset(pair)
        for cycle in cycles
        for pair in zip(cycle, (*cycle[1:], cycle[0]), strict=True)
    ]
    assert all(sorted(cycle) == list(range(vertices)) for cycle in cycles)
    assert len(edges) == len(set(edges))
    if vertices % 2:
        assert len(edges) == vertices * (vertices - 1) // 2


@pytest.mark.parametrize(("name", "lanes"), [("dgx-1p", 4), ("dgx-1v", 6), ("gh200x4", 18)])
def test_rings_over_direct_links_use_every_link_both_ways(name: str, lanes: int) -> None:
    machine = load_catalog(name)
    plan = rings_for(machine)
    assert len(plan.orders) == lanes
    assert hops(plan) == there(machine)


@given(st.integers(3, 7), st.data())
def test_on_any_mesh_rings_fit_into_the_links(size: int, data: st.DataObject) -> None:
    rows = [[0] * size for _ in range(size)]
    for a in range(size):
        for b in range(a):
            rows[a][b] = rows[b][a] = data.draw(st.integers(0, 3))
    if not any(map(any, rows)):
        return
    machine = nvlink_mesh(rows, NVLINK).topology
    plan = rings_for(machine)
    names = sorted(device.name for device in machine.gpus)
    assert all(sorted(order) == names for order in plan.orders)
    if plan.method != "fallback":
        have = there(machine)
        assert all(count <= have[pair] for pair, count in hops(plan).items())


def test_a_plain_ring_is_found_and_a_pair_uses_its_bundle() -> None:
    plan = rings_for(ring(6, NVLINK).topology)
    assert (plan.method, len(plan.orders)) == ("direct", 2)
    assert rings_for(load_catalog("dgx-1v"), ["gpu0", "gpu3"]).orders == (("gpu0", "gpu3"),) * 2


def test_a_group_of_four_on_a_full_mesh_uses_three_sevenths_and_behind_a_switch_all() -> None:
    mesh, switch = full_mesh(8, NVLINK).topology, nvswitch(8, 18, 25e9).topology
    for size in (2, 4, 8):
        group = [f"gpu{rank}" for rank in range(size)]
        assert set(usable_share(mesh, group).values()) == {Fraction(size - 1, 7)}
        assert set(usable_share(switch, group).values()) == {Fraction(1)}
        assert set(usable_share(load_catalog("hgx-h100"), group).values()) == {Fraction(1)}
    assert set(
        usable_share(load_catalog("ascend-910b"), ["gpu0", "gpu1", "gpu6", "gpu7"]).values()
    ) == {Fraction(3, 7)}


@pytest.mark.parametrize("group", [["gpu0"], ["gpu0", "gpu0"], ["gpu0", "gpu99"]])
def test_groups_that_cannot_be_are_refused(group: list[str]) -> None:
    with pytest.raises(MachineError, match=r"participants; give|is not a GPU"):
        rings_for(load_catalog("dgx-1v"), group)


@pytest.mark.parametrize("state", [LinkState.DOWN, LinkState.NOT_VISIBLE])
@pytest.mark.parametrize("made", [full_mesh(4, NVLINK), nvswitch(4, 2, 25e9)])
def test_rings_and_shares_take_only_links_that_carry_data(
    state: LinkState, made: Fabric
) -> None:
    whole = made.topology
    links = tuple(
        replace(link, state=state) if "gpu3" in (link.source, link.target) else link
        for link in whole.links
    )
    found = replace(whole, links=links)
    assert rings_for(whole).method != "fallback"
    assert rings_for(found).method == "fallback"
    assert rings_for(found, ["gpu0", "gpu1", "gpu2"]).method != "fallback"
    assert usable_share(found, ["gpu0", "gpu3"])["gpu3"] == 0


def test_two_separate_meshes_are_not_joined_though_each_is() -> None:
    one = full_mesh(4, NVLINK).topology
    names = {f"gpu{place}": f"gpu{place + 4}" for place in range(4)}
    second = tuple(
        replace(link, source=names[link.source], target=names[link.target])
        for link in one.links
    )
    devices = (
        *one.devices,
        *(replace(device, name=names[device.name]) for device in one.devices),
    )
    found = replace(
        one,
        devices=devices,
        links=(*one.links, *second),
        topology_class=TopologyClass.NVLINK_MESH,
    )
    assert are_joined(found, [f"gpu{place}" for place in range(4)])
    assert not are_joined(found, ["gpu0", "gpu4"])
    assert usable_shares(found) == {"2": "1/3", "4": "1", "8": None}


@pytest.mark.parametrize("name", catalog_names())
def test_where_a_switch_or_rings_join_a_group_it_is_joined(name: str) -> None:
    machine = load_catalog(name)
    if len(machine.gpus) > 1 and rings_for(machine).method != "fallback":
        assert are_joined(machine, [gpu.name for gpu in machine.gpus])
