from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from ccbench.report.topology_boxes import merged
from ccbench.report.topology_hops import MOST_HOPS, by_hops
from ccbench.topology.fabrics import Wire, full_mesh, hypercube, single_switch, torus
from ccbench.topology.graph import Device, DeviceKind, Topology

WIRE = Wire(50e9)


def hop(found: Topology, name: str) -> int:
    number = found.device(name).attributes["hop"]
    assert isinstance(number, int)
    return number


def test_a_hypercube_has_as_many_gpus_at_a_distance_as_its_binomials_say() -> None:
    found = by_hops(hypercube(5, WIRE).topology(), 16)
    assert found is not None
    assert [merged(one) for one in found.gpus] == [1, 5, 10, 10, 5, 1]
    outward = [link for link in found.links if hop(found, link.source) < hop(found, link.target)]
    assert [link.count for link in outward] == [5, 20, 30, 20, 5]
    assert len(found.links) == 2 * len(outward)
    assert found.links[0].bytes_per_second == 250e9


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(2, 5), min_size=2, max_size=3))
def test_every_gpu_of_a_torus_is_in_one_box(sizes: list[int]) -> None:
    whole = torus(sizes, WIRE).topology()
    found = by_hops(whole, 3)
    assert found is not None
    assert sum(merged(one) for one in found.gpus) == len(whole.gpus)
    assert len(found.gpus) <= MOST_HOPS + 1


def test_a_rate_that_is_not_known_of_one_link_is_not_known_of_their_sum() -> None:
    whole = hypercube(5, WIRE).topology()
    links = (replace(whole.links[0], bytes_per_second=None), *whole.links[1:])
    found = by_hops(replace(whole, links=links), 16)
    assert found is not None
    unknown = [(link.source, link.target) for link in found.links if link.bytes_per_second is None]
    assert unknown == [(whole.links[0].source, "gpu1")]


def test_the_farthest_are_one_box() -> None:
    found = by_hops(torus((16, 16, 16), WIRE).topology(), 16)
    assert found is not None
    assert found.gpus[-1].attributes["detail"] == "5 hops to 24 hops"


def test_gpus_that_nothing_leads_to_are_told_apart() -> None:
    mesh = full_mesh(20, WIRE).topology()
    found = by_hops(Topology("mesh", (*mesh.devices, Device("active_group", DeviceKind.GPU)), mesh.links), 16)
    assert found is not None
    assert [one.attributes["detail"] for one in found.gpus] == ["19 neighbours", "1 hop", "not reached"]


def test_what_has_switches_or_few_gpus_is_drawn_otherwise() -> None:
    assert by_hops(single_switch(64, WIRE).topology(), 16) is None
    assert by_hops(hypercube(4, WIRE).topology(), 16) is None
