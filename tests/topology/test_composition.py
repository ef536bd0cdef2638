"""Clusters: the closed form, the graph and the bounds tell the same story."""

from __future__ import annotations

import itertools
import time
from dataclasses import replace

import numpy as np
import pytest

from ccbench.errors import MachineError
from ccbench.model.cuts import all_gather_bound, all_reduce_bound
from ccbench.model.level_cuts import level_bound
from ccbench.topology.catalog import load_catalog
from ccbench.topology.composition import cluster, compose
from ccbench.topology.fabric import Fabric, Wire
from ccbench.topology.fabrics import nvswitch, single_switch, torus
from ccbench.topology.fat_trees import fat_tree
from ccbench.topology.graph import Device, DeviceKind, Link, LinkKind, LinkState, Topology, TopologyClass
from ccbench.topology.networks import parse_network
from ccbench.topology.routing import routes_by_search

A100 = nvswitch(8, 12, 25e9, 1e-6).topology()
H100 = nvswitch(8, 18, 25e9, 1e-6).topology()


def pcie_box() -> Topology:
    """Two CPUs, each with a PCIe switch that holds two GPUs."""
    names = {"cpu0": "cpu1", "pcie0": "cpu0", "pcie1": "cpu1"}
    names.update({f"gpu{rank}": f"pcie{rank // 2}" for rank in range(4)})
    kinds = {"cpu": DeviceKind.CPU, "pcie": DeviceKind.PCIE_SWITCH, "gpu": DeviceKind.GPU}
    everything = ["cpu0", "cpu1", "pcie0", "pcie1", "gpu0", "gpu1", "gpu2", "gpu3"]
    devices = tuple(Device(name, kinds[name.rstrip("0123456789")]) for name in everything)
    links = tuple(
        Link(a, b, LinkKind.PCIE, 16e9)
        for one, other in names.items()
        for a, b in ((one, other), (other, one))
    )
    return Topology("box", devices, links, TopologyClass.PCIE)


def chain_of(fabric: Fabric, source: int, target: int) -> list[str]:
    (row,) = fabric.route([source], [target])
    links = row[row >= 0]
    assert [source, *fabric.link_target[links]] == [*fabric.link_source[links], target]
    return [fabric.device(int(vertex)).name for vertex in [source, *fabric.link_target[links]]]


@pytest.mark.parametrize(
    ("node", "nodes", "network", "expected"),
    [
        (A100, 2, "ib-hdr-200x8", "346.667"),
        (A100, 4, "ib-hdr-200x8", "266.667"),
        (H100, 2, "ib-ndr-400x8", "533.3"),
        (H100, 16, "ib-ndr-400x8", "426.7"),
        (nvswitch(72, 18, 50e9).topology(), 8, "ib-ndr-400x72", "951.7"),
    ],
)
@pytest.mark.parametrize("rails", [False, True])
def test_known_optima_of_clusters(
    node: Topology, nodes: int, network: str, expected: str, rails: bool
) -> None:
    graph = compose(node, nodes, network, rails=rails)
    decimals = len(expected.partition(".")[2])
    for bound in (
        all_gather_bound(graph),
        level_bound(cluster(node, nodes, network, rails=rails), "all_gather"),
    ):
        assert f"{float(bound.algbw_bytes_per_second) / 1e9:.{decimals}f}" == expected


@pytest.mark.parametrize("gpus", [2, 4, 8])
@pytest.mark.parametrize("nodes", [2, 3, 8])
@pytest.mark.parametrize("rails", [False, True])
def test_levels_equal_flows_on_rail_clusters(gpus: int, nodes: int, rails: bool) -> None:
    node = nvswitch(gpus, 12, 25e9).topology()
    for gigabits in (25, 200, 800):
        made = cluster(node, nodes, f"roce-{gigabits}x{gpus}", rails=rails)
        flow = all_gather_bound(made.topology())
        assert level_bound(made, "all_gather").algbw_bytes_per_second == flow.algbw_bytes_per_second
        reduced = all_reduce_bound(made.topology())
        assert level_bound(made, "all_reduce").algbw_bytes_per_second == reduced.algbw_bytes_per_second


def test_a_message_goes_by_the_nearest_nic_of_either_side() -> None:
    made = cluster(pcie_box(), 2, "roce-100x2")
    assert chain_of(made, 1, 6) == [
        "n0.gpu1",
        "n0.pcie0",
        "n0.nic0",
        "switch0",
        "n1.nic1",
        "n1.pcie1",
        "n1.gpu2",
    ]
    assert chain_of(made, 0, 3) == ["n0.gpu0", "n0.pcie0", "n0.cpu0", "n0.cpu1", "n0.pcie1", "n0.gpu3"]


def test_with_rails_a_message_changes_rail_inside_its_node() -> None:
    made = cluster(H100, 3, "ib-ndr-400x8", rails=True)
    assert chain_of(made, 1, 8 + 5) == [
        "n0.gpu1",
        "n0.nvswitch0",
        "n0.gpu5",
        "n0.nic5",
        "rail5",
        "n1.nic5",
        "n1.gpu5",
    ]


def test_more_nics_than_gpus_are_bundled_and_fewer_are_shared() -> None:
    many = compose(H100, 2, "efa-100x32")
    (link,) = [link for link in many.links if link.source == "n1.nic3" and link.target == "switch0"]
    assert (link.bytes_per_second, link.count, link.kind) == (50e9, 4, LinkKind.EFA)
    few = cluster(H100, 2, "slingshot-200x4")
    nics = {chain_of(few, gpu, 8)[1] for gpu in range(8)}
    assert nics == {"n0.nic0", "n0.nic1", "n0.nic2", "n0.nic3"}
    assert sum(device.kind is DeviceKind.NIC for device in few.topology().devices) == 8


def test_nics_that_the_node_has_are_used_when_they_are_as_many() -> None:
    box = pcie_box()
    nic = Device("nic0", DeviceKind.NIC, attributes={"name": "mlx5_3"})
    links = tuple(Link(a, b, LinkKind.PCIE, 16e9) for a, b in (("cpu1", "nic0"), ("nic0", "cpu1")))
    with_nic = Topology("box", (*box.devices, nic), (*box.links, *links))
    one = cluster(with_nic, 2, "ib-edr-100x1")
    assert chain_of(one, 0, 4)[2:6] == ["n0.cpu0", "n0.cpu1", "n0.nic0", "switch0"]
    assert one.topology().device("n1.nic0").attributes == {"name": "mlx5_3"}
    two = cluster(with_nic, 2, "ib-edr-100x2")
    assert chain_of(two, 0, 4) == [
        "n0.gpu0",
        "n0.pcie0",
        "n0.nic0",
        "switch0",
        "n1.nic0",
        "n1.pcie0",
        "n1.gpu0",
    ]


@pytest.mark.parametrize(
    "made",
    [
        cluster(A100, 4, "ib-hdr-200x8"),
        cluster(pcie_box(), 3, "roce-100x2"),
        cluster(A100, 4, "ib-hdr-200x8", fat_tree((8, 4), Wire(25e9), 2.0)),
        cluster(A100, 4, "ib-hdr-200x4", torus((4, 4), Wire(25e9))),
        cluster(A100, 1),
    ],
    ids=["switch", "pcie", "fat-tree", "torus", "one node"],
)
def test_every_route_is_a_chain_as_short_as_a_search_finds(made: Fabric) -> None:
    pairs = np.array(list(itertools.permutations(range(made.ranks), 2)))
    hops = (made.route(pairs[:, 0], pairs[:, 1]) >= 0).sum(axis=1)
    for source, target in pairs[:: max(1, len(pairs) // 200)].tolist():
        chain_of(made, source, target)
    graph = made.topology()
    assert len({device.name for device in graph.devices}) == made.vertices
    found = (routes_by_search(graph).route(pairs[:, 0], pairs[:, 1]) >= 0).sum(axis=1)
    assert hops.tolist() == found.tolist()


def test_a_network_that_is_oversubscribed_shows_as_a_level() -> None:
    made = cluster(A100, 16, "ib-hdr-200x8", fat_tree((32, 4), Wire(25e9), 4.0))
    assert [(level.name, level.ranks) for level in made.levels] == [
        ("GPU", 1),
        ("node", 8),
        ("subtree of level 1", 32),
    ]
    bound = level_bound(made, "all_to_all")
    assert bound.level.name == "subtree of level 1"
    assert bound.level.bytes_per_second == pytest.approx(32 * 25e9 / 4)


def test_one_node_is_itself() -> None:
    alone = compose(A100, 1)
    assert [device.name for device in alone.devices] == [device.name for device in A100.devices]
    assert {(link.source, link.target, link.bytes_per_second) for link in alone.links} == {
        (link.source, link.target, link.bytes_per_second) for link in A100.links
    }


def test_a_hundred_thousand_gpus_compose_and_route_in_under_a_second() -> None:
    start = time.process_time()
    made = cluster(H100, 12_800, "ib-ndr-400x8", fat_tree((64, 50, 32), Wire(50e9)))
    every = np.arange(made.ranks)
    routes = made.route(every, (every + 8) % made.ranks)
    assert time.process_time() - start < 1
    assert made.ranks == 102_400
    assert level_bound(made, "all_gather").algbw_bytes_per_second == pytest.approx(400e9, rel=1e-3)
    links = routes[1000][routes[1000] >= 0]
    assert [1000, *made.link_target[links]] == [*made.link_source[links], 1008]


def test_networks_are_read() -> None:
    network = parse_network("ib-ndr-400x8")
    assert (network.kind, network.bytes_per_second, network.nics) == (LinkKind.INFINIBAND, 50e9, 8)
    assert parse_network("roce-100x2").kind is LinkKind.ROCE
    assert parse_network("efa-100x4").kind is LinkKind.EFA
    assert parse_network("tcp-25x1").kind is LinkKind.ETHERNET
    assert parse_network("slingshot-200x4").bytes_per_second == 25e9
    for text in ("ib-ndr-400x8", "tcp-2.5x1"):
        assert str(parse_network(text)) == text


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "'' is not <kind>-<Gb/s>x<NICs per node>"),
        ("ib-ndr-400", "write for example ib-ndr-400x8"),
        ("ib-ndr-400x8\n", "is not <kind>"),
        ("ib-nrd-400x8", "did you mean ib-ndr"),
        ("zzz-400x8", "one of ib, ib-fdr"),
        ("tcp-0x1", "out of range"),
        ("tcp-25x0", "out of range"),
        ("tcp-999999x1", "out of range"),
        ("tcp-" + "9" * 100 + "x1", "is not <kind>"),
    ],
)
def test_a_network_that_cannot_be_read_is_refused_in_one_line(text: str, complaint: str) -> None:
    with pytest.raises(MachineError, match=complaint) as caught:
        parse_network(text)
    assert "\n" not in str(caught.value)


def test_what_cannot_be_composed_is_refused() -> None:
    with pytest.raises(MachineError, match="network: missing for 2 nodes"):
        cluster(A100, 2)
    with pytest.raises(MachineError, match="nodes: 0 is not a whole number"):
        cluster(A100, 0)
    with pytest.raises(MachineError, match="has no GPU"):
        cluster(Topology("empty", ()), 2, "tcp-25x1")
    with pytest.raises(MachineError, match="joins 4 ports, but 2 nodes have 16 NICs"):
        cluster(A100, 2, "ib-hdr-200x8", single_switch(4, Wire(25e9)))
    with pytest.raises(MachineError, match="at most 4096 become a graph"):
        compose(A100, 400, "ib-hdr-200x8")


@pytest.mark.parametrize(("name", "switches"), [("hgx-h100", 4), ("dgx-2", 12), ("gb200-nvl72", 18)])
def test_a_composed_graph_has_every_nvswitch_and_every_link_of_its_nodes(name: str, switches: int) -> None:
    node = load_catalog(name)
    for nodes in (1, 3):
        made = compose(node, nodes, "ib-ndr-400x8")
        assert len(made.of_kind(DeviceKind.NVSWITCH)) == nodes * switches
        inside = [link for link in made.links if link.kind is LinkKind.NVLINK]
        stated = [link for link in node.links if link.kind is LinkKind.NVLINK]
        assert len(inside) == nodes * len(stated)
        assert {link.origin for link in inside} == {link.origin for link in stated}
        assert all(link.origin for link in made.links)
        assert [device.name for device in made.gpus][:2] == (
            ["gpu0", "gpu1"] if nodes == 1 else ["n0.gpu0", "n0.gpu1"]
        )


def test_links_that_are_down_stay_in_the_composed_graph_as_down() -> None:
    node = load_catalog("hgx-h100")
    broken = replace(node, links=(replace(node.links[0], state=LinkState.DOWN), *node.links[1:]))
    made = compose(broken, 2, "ib-ndr-400x8")
    assert [link.state for link in made.links].count(LinkState.DOWN) == 2


def test_a_graph_with_all_switches_that_is_too_large_is_refused() -> None:
    with pytest.raises(MachineError, match=r"at most 4096 become a graph"):
        compose(load_catalog("dgx-2"), 120, "ib-ndr-400x8")
