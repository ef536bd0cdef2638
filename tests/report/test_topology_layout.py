"""No text covers another or leaves its box, none is too small to read, and no line passes behind a box."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from matplotlib.backend_bases import RendererBase
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox, BboxBase

from ccbench.machine.detection import load_cluster, load_topology
from ccbench.report.drawing import drawing_settings
from ccbench.report.topology_figure import picture
from ccbench.report.topology_layout import Layout, laid_out, line_point
from ccbench.topology.catalog import catalog_names
from ccbench.topology.composition import compose
from ccbench.topology.fabrics import Wire, full_mesh, hypercube, single_switch, torus
from ccbench.topology.graph import Device, DeviceKind, Link, LinkKind, LinkState, Topology
from ccbench.topology.networks import dragonfly, dragonfly_plus, fat_tree
from tests.model.fabrics import ring

WIRE = Wire(50e9)
SMALLEST_POINTS = 7.0
WIDEST_INCHES = 11.0
"""On 800 pixels letters of seven points are then seven pixels."""


CLUSTERS: dict[str, Callable[[], Topology]] = {
    "two machines": lambda: load_cluster("hgx-h100", 2, "ib-ndr-400x8"),
    "four machines": lambda: load_cluster("dgx-a100", 4, "efa-100x4"),
    "meshes": lambda: load_cluster("mi300x", 2, "roce-400x8"),
    "one NIC": lambda: load_cluster("rtx-pcie", 3, "tcp-25x1"),
    "two racks": lambda: load_cluster("gb200-nvl72", 2, "ib-ndr-400x72"),
    "more than a graph holds": lambda: load_cluster("hgx-h100", 4096, "ib-ndr-400x8"),
    "two levels": lambda: compose(
        load_topology("hgx-h100"), 16, "ib-ndr-400x8", fat_tree([16, 8], WIRE)
    ),
    "three levels": lambda: compose(
        load_topology("hgx-h100"), 16, "ib-ndr-400x8", fat_tree([16, 4, 2], WIRE)
    ),
    "rails": lambda: load_cluster("hgx-h100", 16, "ib-ndr-400x8/rails"),
    "bare tree": lambda: fat_tree([16, 16], WIRE).topology(),
    "bare tree of three levels": lambda: fat_tree([16, 4, 4], WIRE).topology(),
    "tree of 3712 vertices": lambda: fat_tree([16, 16, 12], WIRE).topology(),
    "dragonfly": lambda: dragonfly(9, 4, 2, 2, WIRE).topology(),
    "dragonfly+": lambda: dragonfly_plus(5, 2, 2, 2, 2, WIRE).topology(),
    "torus": lambda: torus((8, 8), WIRE).topology(),
    "torus of 4096": lambda: torus((16, 16, 16), WIRE).topology(),
    "mesh": lambda: full_mesh(100, WIRE).topology(),
    "ring": lambda: ring(16, WIRE).topology(),
    "hypercube": lambda: hypercube(4, WIRE).topology(),
    "switch": lambda: single_switch(256, WIRE).topology(),
}  # fmt: skip


def agg(figure: Figure) -> RendererBase:
    """What measures letters."""
    renderer: RendererBase = FigureCanvasAgg(figure).get_renderer()  # type: ignore[no-untyped-call]  # untyped there
    return renderer


def texts(topology: Topology) -> tuple[list[tuple[Text, Bbox]], BboxBase]:
    """Every text with its place on paper, in points, and the paper."""
    with drawing_settings():
        figure = picture(topology)
        figure.set_dpi(72)
        renderer = agg(figure)
        found = [*figure.texts, *(one for axes in figure.axes for one in axes.texts)]
        found += [one for legend in figure.legends for one in legend.get_texts()]
        figure.draw(renderer)
        places = [(one, Text.get_window_extent(one, renderer)) for one in found if one.get_text()]
    return places, figure.bbox


def check(topology: Topology) -> None:
    places, paper = texts(topology)
    assert places
    for (one, first), (other, second) in itertools.combinations(places, 2):
        apart = (
            first.x1 <= second.x0 or second.x1 <= first.x0 or first.y1 <= second.y0 or second.y1 <= first.y0
        )
        # Lines of a box are set close; the letters themselves still do not touch.
        overlap = min(first.y1, second.y1) - max(first.y0, second.y0)
        assert apart or overlap < 2.5, (one.get_text(), other.get_text())
    for one, place in places:
        assert float(one.get_fontsize()) >= SMALLEST_POINTS, one.get_text()
        assert min(place.x0, place.y0) >= 0, one.get_text()
        assert place.x1 <= paper.width, one.get_text()
        assert place.y1 <= paper.height, one.get_text()
    assert paper.width <= WIDEST_INCHES * 72


@pytest.mark.thinned(8)
@pytest.mark.parametrize("name", catalog_names())
def test_no_text_of_a_machine_covers_another(name: str) -> None:
    check(load_topology(name))


@pytest.mark.thinned(6)
@pytest.mark.parametrize("name", CLUSTERS)
def test_no_text_of_a_cluster_covers_another(name: str) -> None:
    check(CLUSTERS[name]())


@pytest.mark.thinned(6)
@pytest.mark.parametrize("name", CLUSTERS)
def test_texts_of_boxes_stay_inside_them(name: str) -> None:
    topology = CLUSTERS[name]()
    widths: dict[str, float] = {}
    for box in laid_out(topology).boxes.values():
        for words in (box.label, box.detail):
            widths[words] = min(box.width * 72, widths.get(words, 1e9))
    for one, place in texts(topology)[0]:
        if one.get_zorder() == 6:
            assert place.width <= widths[one.get_text()], one.get_text()


@pytest.mark.thinned(6)
@pytest.mark.parametrize("name", CLUSTERS)
def test_labels_of_lines_cover_no_box(name: str) -> None:
    topology = CLUSTERS[name]()
    layout = laid_out(topology)
    assert any(line.label for line in layout.lines) or not layout.lines or "ring" in name or "hyper" in name
    with drawing_settings():
        figure = picture(topology)
        renderer = agg(figure)
        axes = figure.axes[0]
        for one in axes.texts:
            if one.get_zorder() != 4:
                continue
            place = Text.get_window_extent(one, renderer).transformed(axes.transData.inverted())
            for box in layout.boxes.values():
                across = place.x1 > box.x - box.width / 2 and place.x0 < box.x + box.width / 2
                upward = place.y1 > box.y - box.height / 2 + 0.02 and place.y0 < box.y + box.height / 2 - 0.02
                assert not (across and upward), (one.get_text(), box.label)


def switched(gpus: int, switches: int, broken: int = 0) -> Topology:
    names = [f"gpu{one}" for one in range(gpus)]
    devices = [Device(name, DeviceKind.GPU) for name in names]
    devices += [Device(f"nvswitch{one}", DeviceKind.NVSWITCH) for one in range(switches)]
    links = []
    for place, name in enumerate(names):
        for one in range(switches):
            state = LinkState.DOWN if place < broken else LinkState.UP
            links.append(Link(name, f"nvswitch{one}", LinkKind.NVLINK, 50e9, count=2, state=state))
            links.append(Link(f"nvswitch{one}", name, LinkKind.NVLINK, 50e9, count=2, state=state))
    return Topology("switched", tuple(devices), tuple(links))


def leaves_and_spines() -> Topology:
    devices = [Device(f"n{node}.nic{one}", DeviceKind.NIC, node) for node in range(2) for one in range(4)]
    devices += [Device(f"switch{one}", DeviceKind.NETWORK_SWITCH, -1) for one in range(6)]
    pairs = [(f"n{node}.nic{one}", f"switch{one}") for node in range(2) for one in range(4)]
    pairs += [(f"switch{one}", f"switch{top}") for one in range(4) for top in (4, 5)]
    links = [Link(*pair, LinkKind.INFINIBAND, 50e9) for pair in pairs]
    links += [Link(other, one, LinkKind.INFINIBAND, 50e9) for one, other in pairs]
    return Topology("leaves and spines", tuple(devices), tuple(links))


def behind(layout: Layout) -> list[tuple[str, str, str]]:
    """Lines with a box, not one of their ends, that they pass behind."""
    return [
        (line.source, line.target, name)
        for line in layout.lines
        for name, box in layout.boxes.items()
        if name not in (line.source, line.target)
        for x, y in (line_point(line.points, step / 200) for step in range(201))
        if abs(x - box.x) < box.width / 2 - 1e-6 and abs(y - box.y) < box.height / 2 - 1e-6
    ]


def check_lines(layout: Layout) -> None:
    """No line passes behind a box or leaves one sideways, but for those on a circle."""
    assert not behind(layout)
    for line in layout.lines:
        ends = [layout.boxes[name] for name in (line.source, line.target)]
        if not any(box.on_circle for box in ends):
            for box, (x, y) in zip(ends, (line.points[0], line.points[-1]), strict=True):
                assert abs(abs(y - box.y) - box.height / 2) < 1e-9
                assert abs(x - box.x) <= box.width / 2


@pytest.mark.parametrize("name", catalog_names())
def test_no_line_of_a_machine_passes_behind_a_box(name: str) -> None:
    check_lines(laid_out(load_topology(name)))


def test_no_line_of_a_cluster_passes_behind_a_box() -> None:
    for topology in (load_cluster("hgx-h100", 4, "ib-ndr-400x8/torus:4x8"), leaves_and_spines()):
        check_lines(laid_out(topology))
    assert len(laid_out(leaves_and_spines()).lines) == 12


def test_a_line_past_a_row_goes_through_a_gap() -> None:
    devices = (
        Device("nic0", DeviceKind.NIC),
        Device("cpu0", DeviceKind.CPU),
        Device("pcie0", DeviceKind.PCIE_SWITCH),
    )
    links = (Link("nic0", "pcie0", LinkKind.PCIE), Link("cpu0", "pcie0", LinkKind.PCIE))
    layout = laid_out(Topology("past", devices, links))
    check_lines(layout)
    assert max(len(line.points) for line in layout.lines) == 4


def test_switches_with_the_same_neighbours_are_one_box_with_all_their_links() -> None:
    box = laid_out(switched(8, 4)).boxes["nvswitch0"]
    assert box.detail == "8 links per GPU · 200 GB/s each way"
    assert box.label == "4 NVSwitches"
    assert box.width > 6


def test_a_long_row_of_equal_gpus_is_one_box_and_one_line() -> None:
    layout = laid_out(switched(72, 18))
    assert layout.boxes["gpu0"].label == "72 GPUs"
    assert layout.boxes["gpu0"].detail == "gpu0 ... gpu71"
    assert [line.label for line in layout.lines] == ["x36, 900 GB/s per GPU"]


def test_gpus_whose_links_are_down_do_not_hide_among_the_others() -> None:
    layout = laid_out(switched(72, 18, broken=1))
    assert sum(line.label == "x36, 900 GB/s per GPU" for line in layout.lines) == 1
    boxes = layout.boxes
    assert boxes.keys() == {"gpu0", "gpu1", "nvswitch0"}
    assert boxes["gpu1"].count == 71
    assert boxes["gpu1"].x - boxes["gpu0"].x > (boxes["gpu1"].width + boxes["gpu0"].width) / 2


def test_switches_are_named_by_level_in_the_order_of_their_numbers() -> None:
    layout = laid_out(leaves_and_spines())
    row = sorted((box.x, box.label) for box in layout.boxes.values() if box.label.startswith("leaf"))
    assert [label for _, label in row] == ["leaf 0", "leaf 1", "leaf 2", "leaf 3"]
    assert layout.boxes["switch4"].detail == "4, 5"
    assert layout.boxes["switch4"].label == "2 spines"


def test_a_bundle_says_its_rate_once() -> None:
    layout = laid_out(load_topology("hgx-h100"))
    words = [line.label for line in layout.lines if line.label]
    assert sorted(words) == sorted(set(words))
    assert "x18, 450 GB/s" in words
