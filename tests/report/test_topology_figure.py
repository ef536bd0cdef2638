"""Pictures of topologies: no text covers another or leaves the paper, and none hides what is unlike the others."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from ccbench.machine.detection import load_cluster, load_topology
from ccbench.report.drawing import drawing_settings
from ccbench.report.topology_figure import LOOKS, boxes_of, lines_of, picture
from ccbench.topology.fabrics import Wire, full_mesh, hypercube, single_switch, torus
from ccbench.topology.files import catalog_names
from ccbench.topology.graph import (
    Device,
    DeviceKind,
    Link,
    LinkKind,
    LinkState,
    Topology,
    TopologyClass,
)
from ccbench.topology.networks import dragonfly, dragonfly_plus, fat_tree
from tests.model.fabrics import ring
from tests.report.pictures import nothing_overlaps

WIRE = Wire(50e9)

CLUSTERS: dict[str, Callable[[], Topology]] = {
    "two machines": lambda: load_cluster("hgx-h100", 2, "ib-ndr-400x8"),
    "four machines": lambda: load_cluster("dgx-a100", 4, "efa-100x4"),
    "meshes": lambda: load_cluster("mi300x", 2, "roce-400x8"),
    "one NIC": lambda: load_cluster("rtx-pcie", 3, "tcp-25x1"),
    "two racks": lambda: load_cluster("gb200-nvl72", 2, "ib-ndr-400x72"),
    "more than a graph holds": lambda: load_cluster("hgx-h100", 4096, "ib-ndr-400x8"),
    "two levels": lambda: load_cluster("hgx-h100", 16, "ib-ndr-400x8/fat-tree:16x8"),
    "three levels": lambda: load_cluster("hgx-h100", 16, "ib-ndr-400x8/fat-tree:16x4x2"),
    "rails": lambda: load_cluster("hgx-h100", 16, "ib-ndr-400x8/rails"),
    "bare tree": lambda: fat_tree([16, 16], WIRE).topology,
    "bare tree of three levels": lambda: fat_tree([16, 4, 4], WIRE).topology,
    "tree of 3712 vertices": lambda: fat_tree([16, 16, 12], WIRE).topology,
    "dragonfly": lambda: dragonfly(9, 4, 2, 2, WIRE).topology,
    "dragonfly+": lambda: dragonfly_plus(5, 2, 2, 2, 2, WIRE).topology,
    "torus": lambda: torus((8, 8), WIRE).topology,
    "torus of 4096": lambda: torus((16, 16, 16), WIRE).topology,
    "mesh": lambda: full_mesh(100, WIRE).topology,
    "ring": lambda: ring(16, WIRE).topology,
    "hypercube": lambda: hypercube(4, WIRE).topology,
    "switch": lambda: single_switch(256, WIRE).topology,
}


def labels(topology: Topology) -> list[str]:
    return sorted({box.label for box in boxes_of(topology).values()})


def numbers(topology: Topology) -> list[str]:
    return [line.numbers for line in lines_of(topology, boxes_of(topology))]


def texts(topology: Topology) -> list[str]:
    figure = picture(topology)
    legends = [text for legend in figure.legends for text in legend.get_texts()]
    return [text.get_text() for text in (*figure.texts, *figure.axes[0].texts, *legends)]


@pytest.mark.thinned(8)
@pytest.mark.parametrize("name", catalog_names())
def test_no_text_of_a_machine_covers_another(name: str) -> None:
    with drawing_settings():
        nothing_overlaps(picture(load_topology(name)))


@pytest.mark.thinned(7)
@pytest.mark.parametrize("name", CLUSTERS)
def test_no_text_of_a_cluster_covers_another(name: str) -> None:
    with drawing_settings():
        nothing_overlaps(picture(CLUSTERS[name]()))


def on_nvswitches(
    gpus: int, switches: int = 1, broken: int = 0, counted: bool = True
) -> Topology:
    """GPUs with two links each to every NVSwitch; those of the first ``broken`` are down."""
    devices = [Device(f"gpu{index}", DeviceKind.GPU) for index in range(gpus)]
    devices += [Device(f"nvswitch{index}", DeviceKind.NVSWITCH) for index in range(switches)]
    attributes = {} if counted else {"count_known": False}
    links: list[Link] = []
    for gpu, switch in itertools.product(range(gpus), range(switches)):
        state = LinkState.DOWN if gpu < broken else LinkState.UP
        ends = (f"gpu{gpu}", f"nvswitch{switch}")
        one_way = Link(*ends, LinkKind.NVLINK, 50e9, None, 2, state, attributes=attributes)
        links += one_way.both_ways()
    return Topology("switched", tuple(devices), tuple(links), TopologyClass.NVSWITCH)


def test_switches_are_one_box_with_all_links_of_a_gpu() -> None:
    switched = on_nvswitches(8, 4)
    assert "4 NVSwitches" in labels(switched)
    assert numbers(switched) == ["x8, 200 GB/s"] * 8
    assert "x8, 200 GB/s" in texts(switched)
    assert "NVLink, x8, 200 GB/s" in texts(switched)


def test_gpus_whose_links_are_down_do_not_hide_among_the_others() -> None:
    broken = on_nvswitches(72, 18, broken=1)
    assert {"71 GPUs", "GPU 0"} <= set(labels(broken))
    assert "down" in numbers(broken)
    assert "NVLink, down" in texts(broken)


def mesh(kind: LinkKind = LinkKind.XGMI, state: LinkState = LinkState.UP) -> Topology:
    gpus = tuple(Device(f"gpu{index}", DeviceKind.GPU) for index in range(8))
    links = tuple(
        Link(gpu.name, other.name, kind, 64e9, state=state)
        for gpu in gpus
        for other in gpus
        if gpu != other
    )
    return Topology("a mesh", gpus, links, TopologyClass.XGMI_MESH)


def test_a_mesh_has_an_arc_for_every_pair() -> None:
    assert len(numbers(mesh())) == 28
    assert numbers(mesh(LinkKind.NVLINK, LinkState.NOT_VISIBLE)) == ["not visible"] * 28


def test_kinds_differ_by_colour_or_dashes_and_rates_by_width() -> None:
    kinds = [*map(LinkKind, ("infiniband", "roce", "efa", "ethernet", "nvlink", "pcie"))]
    assert len({LOOKS[kind][1] for kind in kinds}) == 6
    cluster = load_cluster("dgx-a100", 2, "ib-ndr-400x8")
    widths = {line.style["linewidth"] for line in lines_of(cluster, boxes_of(cluster))}
    assert len(widths) >= 3
