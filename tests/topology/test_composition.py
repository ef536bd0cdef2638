"""Clusters: the routes, the graph and the bounds tell the same story."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.errors import MachineError
from ccbench.model.bounds import cut_bound, level_bound
from ccbench.topology.composition import cluster, compose
from ccbench.topology.fabrics import (
    Fabric,
    Wire,
    full_mesh,
    hypercube,
    torus,
)
from ccbench.topology.files import load_catalog
from ccbench.topology.graph import Device, DeviceKind, LinkKind, Topology
from ccbench.topology.matrix import path_labels
from ccbench.topology.networks import dragonfly, dragonfly_plus, fat_tree
from tests.model.fabrics import distances, nvswitch
from tests.topology.graphs import graph

A100 = nvswitch(8, 12, 25e9, 1e-6).topology
H100 = nvswitch(8, 18, 25e9, 1e-6).topology


BOX = graph(
    "cpu0 cpu1",
    *("pcie0 cpu0", "pcie1 cpu1"),
    *("gpu0 pcie0", "gpu1 pcie0", "gpu2 pcie1", "gpu3 pcie1"),
    rate=16e9,
)
"""Two CPUs, each with a PCIe switch that holds two GPUs."""
HOSTED = load_catalog("pcie4-x16")
HGX = load_catalog("hgx-h100")


def chain_of(fabric: Fabric, source: int, target: int) -> str:
    (row,) = fabric.route([source], [target])
    links = row[row >= 0]
    assert [source, *fabric.link_target[links]] == [*fabric.link_source[links], target]
    return " ".join(
        fabric.devices[int(vertex)].name for vertex in [source, *fabric.link_target[links]]
    )


@pytest.mark.parametrize(
    ("node", "nodes", "network", "expected"),
    [
        (A100, 2, "ib-hdr-200x8", "346.667"),
        (A100, 4, "ib-hdr-200x8", "266.667"),
        (H100, 2, "ib-ndr-400x8", "533.3"),
        (H100, 16, "ib-ndr-400x8", "426.7"),
        pytest.param(
            *(nvswitch(72, 18, 50e9).topology, 8, "ib-ndr-400x72", "951.7"),
            marks=pytest.mark.exhaustive,
        ),
    ],
)
@pytest.mark.parametrize("shape", ["", "/rails"])
def test_known_optima_of_clusters(
    node: Topology, nodes: int, network: str, expected: str, shape: str
) -> None:
    made = cluster(node, nodes, network + shape)
    decimals = len(expected.partition(".")[2])
    for algbw in (
        cut_bound("all_gather", compose(node, nodes, network + shape)),
        level_bound(made, "all_gather")[0],
    ):
        assert f"{float(algbw) / 1e9:.{decimals}f}" == expected


@pytest.mark.thinned(2)
@pytest.mark.parametrize("gpus", [2, 4, 8])
@pytest.mark.parametrize("nodes", [2, 3, 8])
@pytest.mark.parametrize("shape", ["", "/rails"])
def test_levels_equal_flows_on_clusters(gpus: int, nodes: int, shape: str) -> None:
    node = nvswitch(gpus, 12, 25e9).topology
    for gigabits in (25, 200, 800):
        made = cluster(node, nodes, f"roce-{gigabits}x{gpus}{shape}")
        for collective in ("all_gather", "all_reduce"):
            assert level_bound(made, collective)[0] == cut_bound(collective, made.topology)


def test_a_message_goes_by_the_nearest_nic_of_either_side() -> None:
    made = cluster(BOX, 2, "roce-100x2")
    leaves, enters = "n0.gpu1 n0.pcie0 n0.nic0 switch0", "n1.nic1 n1.pcie1 n1.gpu2"
    assert chain_of(made, 1, 6) == f"{leaves} {enters}"
    assert chain_of(made, 0, 3) == "n0.gpu0 n0.pcie0 n0.cpu0 n0.cpu1 n0.pcie1 n0.gpu3"


def test_more_nics_than_gpus_are_bundled_and_fewer_are_shared() -> None:
    many = cluster(H100, 2, "efa-100x32").topology
    (link,) = [
        link for link in many.links if link.source == "n1.nic3" and link.target == "switch0"
    ]
    assert (link.bytes_per_second, link.count, link.kind) == (50e9, 4, LinkKind.EFA)
    few = cluster(H100, 2, "slingshot-200x4")
    nics = {chain_of(few, gpu, 8).split()[1] for gpu in range(8)}
    assert nics == {"n0.nic0", "n0.nic1", "n0.nic2", "n0.nic3"}
    assert sum(device.kind is DeviceKind.NIC for device in few.topology.devices) == 8


def test_nics_that_the_node_has_are_used_when_they_are_as_many() -> None:
    nic = graph("nic0 cpu1", rate=16e9, nic0={"name": "mlx5_3"})
    with_nic = replace(
        BOX, devices=(*BOX.devices, nic.by_name["nic0"]), links=(*BOX.links, *nic.links)
    )
    one = cluster(with_nic, 2, "ib-edr-100x1")
    assert " n0.cpu0 n0.cpu1 n0.nic0 switch0 " in chain_of(one, 0, 4)
    assert one.topology.by_name["n1.nic0"].attributes == {"name": "mlx5_3"}
    two = cluster(with_nic, 2, "ib-edr-100x2")
    assert chain_of(two, 0, 4) == "n0.gpu0 n0.pcie0 n0.nic0 switch0 n1.nic0 n1.pcie0 n1.gpu0"


@pytest.mark.parametrize(
    "made",
    [
        cluster(A100, 4, "ib-hdr-200x8"),
        cluster(BOX, 3, "roce-100x2"),
        cluster(A100, 4, "ib-hdr-200x8/fat-tree:8x4:2"),
        cluster(A100, 4, "ib-hdr-200x4/torus:4x4"),
        cluster(A100, 1),
    ],
    ids=["switch", "pcie", "fat-tree", "torus", "one node"],
)
def test_every_route_is_a_chain_as_short_as_a_search_finds(made: Fabric) -> None:
    pairs = np.array(list(itertools.permutations(range(made.ranks), 2)))
    hops = (made.route(pairs[:, 0], pairs[:, 1]) >= 0).sum(axis=1)
    for source, target in pairs[:: max(1, len(pairs) // 200)].tolist():
        chain_of(made, source, target)
    graph = made.topology
    assert len({device.name for device in graph.devices}) == made.vertices
    assert hops.tolist() == distances(made)[pairs[:, 0], pairs[:, 1]].tolist()


def test_a_network_that_is_oversubscribed_shows_as_a_level() -> None:
    made = cluster(A100, 16, "ib-hdr-200x8/fat-tree:32x4:4")
    assert [(level.name, level.ranks) for level in made.levels] == [
        ("GPU", 1),
        ("node", 8),
        ("subtree of level 1", 32),
    ]
    _, level = level_bound(made, "all_to_all")
    assert level.name == "subtree of level 1"
    assert level.bytes_per_second == pytest.approx(32 * 25e9 / 4)


@pytest.mark.parametrize(
    ("shape", "made"),
    [
        ("fat-tree:8x4:2", lambda wire: fat_tree((8, 4), wire, 2.0)),
        ("dragonfly:4x2x4x2", lambda wire: dragonfly(4, 2, 4, 2, wire)),
        ("dragonfly+:4x2x2x4x2", lambda wire: dragonfly_plus(4, 2, 2, 4, 2, wire)),
        ("torus:4x8", lambda wire: torus((4, 8), wire)),
        ("hypercube:5", lambda wire: hypercube(5, wire)),
        ("full-mesh:32", lambda wire: full_mesh(32, wire)),
    ],
)
def test_a_network_may_name_the_shape_of_its_switches(
    shape: str, made: Callable[[Wire], Fabric]
) -> None:
    machines = cluster(A100, 4, f"ib-ndr-400x8/{shape}").machines
    assert machines is not None
    named, built, ranks = machines.network, made(Wire(50e9)), np.arange(32)
    assert named.route(ranks, ranks[::-1]).tolist() == built.route(ranks, ranks[::-1]).tolist()
    assert named.link_bytes_per_second.tolist() == built.link_bytes_per_second.tolist()


@pytest.mark.parametrize(
    ("shape", "complaint"),
    [
        ("hypercube:4", "joins 16 ports, but 4 nodes have 32 NICs"),
        ("dragonfly:4x2", "write dragonfly:<groups>x<routers>x<ports of a router>"),
        ("torus:4x8:2", "only a fat-tree is oversubscribed; leave out :2"),
        ("fat-tree:8x0", "children"),
    ],
)
def test_a_shape_that_does_not_fit_its_network_is_refused_in_one_line(
    shape: str, complaint: str
) -> None:
    with pytest.raises(MachineError, match=complaint) as caught:
        cluster(A100, 4, f"ib-ndr-400x8/{shape}")
    assert "\n" not in str(caught.value)


TWO_CARDS = Topology(
    "two cards", tuple(Device(f"gpu{rank}", DeviceKind.GPU) for rank in range(2))
)


@pytest.mark.parametrize("call", [cluster, compose])
@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((A100, 2), "network: missing for 2 nodes"),
        ((A100, 0), "nodes: 0 is not a whole number"),
        ((A100, 2, ["ib-ndr-400x8"]), "is not <kind>-<Gb/s>x<NICs per node>"),
        ((Topology("empty", ()), 2, "tcp-25x1"), "has no GPU"),
        (
            (compose(A100, 2, "ib-hdr-200x8"), 2, "ib-hdr-200x8"),
            "is 2 machines already; a cluster",
        ),
        (
            (A100, 2, "ib-hdr-200x8/torus:4"),
            "joins 4 ports, but 2 nodes have 16 NICs",
        ),
        ((TWO_CARDS, 2, "roce-100x1"), "two cards: shows no link that joins gpu0 to gpu1"),
    ],
)
def test_what_cannot_be_composed_is_refused(
    call: Callable[..., object], arguments: tuple[Any, ...], complaint: str
) -> None:
    with pytest.raises(MachineError, match=complaint):
        call(*arguments)


@pytest.mark.parametrize("nics", [1, 3, 8, 12, 13, 32])
@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("node", [HGX, HOSTED], ids=["NVSwitch", "PCIe"])
def test_any_number_of_nics_is_in_the_graph_at_its_rate(
    node: Topology, nodes: int, nics: int
) -> None:
    made = compose(node, nodes, f"ib-ndr-400x{nics}")
    names = {device.name for device in made.of_kind(DeviceKind.NIC)}
    assert len(names) == nodes * nics
    assert all(
        device.attributes["bytes_per_second"] == 50e9 for device in made.of_kind(DeviceKind.NIC)
    )
    ports = [link for link in made.links if link.kind is LinkKind.INFINIBAND]
    assert len(ports) == (2 * nodes * nics if nodes > 1 else 0)
    inside = [
        link
        for link in made.links
        if link.kind is LinkKind.PCIE and {link.source, link.target} & names
    ]
    assert {(link.bytes_per_second, link.count) for link in (*ports, *inside)} == {(50e9, 1)}
    assert names <= {link.target for link in inside}
    if nodes > 1:
        closed = cluster(node, nodes, f"ib-ndr-400x{nics}").levels
        (level,) = [level for level in closed if level.name == "node"]
        assert level.bytes_per_second == pytest.approx(nics * 50e9)


def test_nics_of_one_node_lead_nowhere() -> None:
    assert compose(HGX, 1, "ib-ndr-400x8").facts["omits"].startswith("PCIe")
    bound = level_bound(cluster(A100, 1, "ib-hdr-200x8"), "all_gather")[0]
    assert bound == level_bound(cluster(A100, 1), "all_gather")[0]
    assert compose(A100, 1) is A100


@pytest.mark.parametrize("paths", [{}, {"paths": "as printed"}])
def test_printed_words_go_along_and_what_was_not_printed_stays_unknown(
    paths: dict[str, str],
) -> None:
    printed = replace(BOX, matrix={("gpu0", "gpu1"): "PIX"}, facts=paths)
    made = compose(printed, 2, "roce-100x4")
    labels = path_labels(made)
    assert labels[("n1.gpu1", "n1.gpu0")] == "PIX"
    assert labels[("n0.gpu0", "n0.gpu3")] == ("?" if paths else "SYS")
    assert labels[("n0.gpu0", "n0.nic0")] == "PIX"


def test_links_without_a_rate_are_named_with_the_cure() -> None:
    links = tuple(replace(link, bytes_per_second=None) for link in HOSTED.links)
    with pytest.raises(MachineError) as caught:
        compose(replace(HOSTED, links=links), 2, "ib-ndr-400x8")
    for said in (
        "26 of 26 links have no rate",
        "8 pcie (pcie0 -> cpu0 ...)",
        "2 inter_socket",
        "--yaml",
    ):
        assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert compose(replace(HOSTED, links=links), 1, "ib-ndr-400x8").of_kind(DeviceKind.NIC)


@given(st.integers(1, 9), st.integers(1, 40), st.integers(1, 3))
def test_nics_are_dealt_evenly_in_order_and_every_gpu_has_one(
    gpus: int, nics: int, nodes: int
) -> None:
    made = compose(nvswitch(gpus, 2, 25e9).topology, nodes, f"roce-100x{nics}")
    served: dict[str, list[str]] = {gpu.name: [] for gpu in made.gpus}
    for link in made.links:
        if link.source in served and "nic" in link.target:
            served[link.source].append(link.target)
    counts = [len(of_gpu) for of_gpu in served.values()]
    assert min(counts) >= 1
    assert max(counts) - min(counts) <= 1
    assert len({nic for of_gpu in served.values() for nic in of_gpu}) == nics * nodes
