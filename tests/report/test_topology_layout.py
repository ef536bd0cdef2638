"""No text covers another or leaves its box, none is too small to read, and no line passes behind a box."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.backend_bases import RendererBase
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from ccbench.machine.detection import joined, load_cluster, load_topology, read_nvml
from ccbench.machine.files import Files
from ccbench.machine.sysfs import read_sysfs
from ccbench.report.drawing import drawing_settings
from ccbench.report.topology_figure import LOOKS, draw_topology, picture
from ccbench.report.topology_layout import HEIGHT, PictureLayout, laid_out, line_point
from ccbench.report.topology_merged import condensed
from ccbench.topology.composition import compose
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
from tests.machine.recorded_nvml import RecordedNvml, switched
from tests.machine.sysfs_tree import two_sockets_four_switches
from tests.model.fabrics import ring

WIRE = Wire(50e9)
SMALLEST_POINTS = 7.0
WIDEST_INCHES = 11.0
"""On 800 pixels letters of seven points are then seven pixels."""

IN_A_BOX, ON_A_LINE = 6, 4
"""How high texts lie."""


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
}


def check(topology: Topology) -> list[tuple[Text, Bbox]]:
    """Every text with its place in points; none covers another, leaves the paper or is too small."""
    with drawing_settings():
        figure = picture(topology)
        figure.set_dpi(72)
        renderer: RendererBase = FigureCanvasAgg(figure).get_renderer()  # type: ignore[no-untyped-call]  # untyped there
        found = [*figure.texts, *(text for axes in figure.axes for text in axes.texts)]
        found += [text for legend in figure.legends for text in legend.get_texts()]
        figure.draw(renderer)
        places = [
            (one, Text.get_window_extent(one, renderer)) for one in found if one.get_text()
        ]
    assert places
    for (one, first), (other, second) in itertools.combinations(places, 2):
        apart = (
            first.x1 <= second.x0
            or second.x1 <= first.x0
            or first.y1 <= second.y0
            or second.y1 <= first.y0
        )
        # Lines of a box are set close; the letters themselves still do not touch.
        overlap = min(first.y1, second.y1) - max(first.y0, second.y0)
        assert apart or overlap < 2.5, (one.get_text(), other.get_text())
    for one, place in places:
        assert float(one.get_fontsize()) >= SMALLEST_POINTS, one.get_text()
        assert min(place.x0, place.y0) >= 0, one.get_text()
        assert place.x1 <= figure.bbox.width, one.get_text()
        assert place.y1 <= figure.bbox.height, one.get_text()
    assert figure.bbox.width <= WIDEST_INCHES * 72
    return places


@pytest.mark.thinned(8)
@pytest.mark.parametrize("name", catalog_names())
def test_no_text_of_a_machine_covers_another(name: str) -> None:
    check(load_topology(name))


@pytest.mark.thinned(7)
@pytest.mark.parametrize("name", CLUSTERS)
def test_texts_of_a_cluster_stay_inside_their_boxes_and_labels_of_lines_off_them(
    name: str,
) -> None:
    topology = CLUSTERS[name]()
    layout = laid_out(topology)
    assert (
        any(line.label for line in layout.lines)
        or not layout.lines
        or "ring" in name
        or "hyper" in name
    )
    widths: dict[str, float] = {}
    for box in layout.boxes.values():
        for words in (box.label, box.detail):
            widths[words] = min(box.width * 72, widths.get(words, 1e9))
    for one, place in check(topology):
        if one.get_zorder() == IN_A_BOX:
            assert place.width <= widths[one.get_text()], one.get_text()
        if one.get_zorder() == ON_A_LINE:
            assert one.axes is not None
            drawn = place.transformed(one.axes.transData.inverted())
            for box in layout.boxes.values():
                across = drawn.x1 > box.x - box.width / 2 and drawn.x0 < box.x + box.width / 2
                upward = (
                    drawn.y1 > box.y - HEIGHT / 2 + 0.02
                    and drawn.y0 < box.y + HEIGHT / 2 - 0.02
                )
                assert not (across and upward), (one.get_text(), box.label)


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


def leaves_and_spines() -> Topology:
    devices = [
        Device(f"n{node}.nic{index}", DeviceKind.NIC, node)
        for node in range(2)
        for index in range(4)
    ]
    devices += [Device(f"switch{index}", DeviceKind.NETWORK_SWITCH, -1) for index in range(6)]
    pairs = [
        (f"n{node}.nic{index}", f"switch{index}") for node in range(2) for index in range(4)
    ]
    pairs += [(f"switch{index}", f"switch{top}") for index in range(4) for top in (4, 5)]
    links = [Link(*pair, LinkKind.INFINIBAND, 50e9) for pair in pairs]
    links += [Link(target, source, LinkKind.INFINIBAND, 50e9) for source, target in pairs]
    return Topology("leaves and spines", tuple(devices), tuple(links))


def behind(layout: PictureLayout) -> list[tuple[str, str, str]]:
    """Lines with a box, not one of their ends, that they pass behind."""
    return [
        (line.source, line.target, name)
        for line in layout.lines
        for name, box in layout.boxes.items()
        if name not in (line.source, line.target)
        for x, y in (line_point(line.points, step / 200) for step in range(201))
        if abs(x - box.x) < box.width / 2 - 1e-6 and abs(y - box.y) < HEIGHT / 2 - 1e-6
    ]


def check_lines(layout: PictureLayout) -> None:
    """No line passes behind a box or leaves one sideways."""
    assert not behind(layout)
    for line in layout.lines:
        ends = [layout.boxes[name] for name in (line.source, line.target)]
        for box, (x, y) in zip(ends, (line.points[0], line.points[-1]), strict=True):
            assert abs(abs(y - box.y) - HEIGHT / 2) < 1e-9
            assert abs(x - box.x) <= box.width / 2


@pytest.mark.parametrize("name", catalog_names())
def test_no_line_of_a_machine_passes_behind_a_box(name: str) -> None:
    check_lines(laid_out(load_topology(name)))


def test_no_line_of_a_cluster_passes_behind_a_box() -> None:
    for topology in (
        load_cluster("hgx-h100", 4, "ib-ndr-400x8/torus:4x8"),
        leaves_and_spines(),
    ):
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
    box = laid_out(on_nvswitches(8, 4)).boxes["nvswitch0"]
    assert box.detail == "nvswitch0 ... nvswitch3"
    assert box.label == "4 NVSwitches"
    assert box.width > 6


def test_a_long_row_of_equal_gpus_is_one_box_and_one_line() -> None:
    layout = laid_out(on_nvswitches(72, 18))
    assert layout.boxes["gpu0"].label == "72 GPUs"
    assert layout.boxes["gpu0"].detail == "gpu0 ... gpu71"
    assert [line.label for line in layout.lines] == ["x36, 900 GB/s each"]


def test_gpus_whose_links_are_down_do_not_hide_among_the_others() -> None:
    layout = laid_out(on_nvswitches(72, 18, broken=1))
    assert sum(line.label == "x36, 900 GB/s each" for line in layout.lines) == 1
    boxes = layout.boxes
    assert boxes.keys() == {"gpu0", "gpu1", "nvswitch0"}
    assert boxes["gpu1"].count == 71
    assert boxes["gpu1"].x - boxes["gpu0"].x > (boxes["gpu1"].width + boxes["gpu0"].width) / 2


def test_switches_are_named_by_level_in_the_order_of_their_numbers() -> None:
    layout = laid_out(leaves_and_spines())
    row = sorted(
        (box.x, box.label) for box in layout.boxes.values() if box.label.startswith("leaf")
    )
    assert [label for _, label in row] == ["leaf 0", "leaf 1", "leaf 2", "leaf 3"]
    assert layout.boxes["switch4"].detail == "switch4 ... switch5"
    assert layout.boxes["switch4"].label == "2 spines"


def test_a_bundle_says_its_rate_once() -> None:
    layout = laid_out(load_topology("hgx-h100"))
    words = [line.label for line in layout.lines if line.label]
    assert sorted(words) == sorted(set(words))
    assert "x18, 450 GB/s" in words


@pytest.fixture
def board(tmp_path: Path) -> Topology:
    two_sockets_four_switches(tmp_path)
    kernel = read_sysfs(Files(tmp_path))
    addresses = [f"0000{gpu.bus_id}" for gpu in kernel.gpus]
    return joined(
        kernel, read_nvml(RecordedNvml(switched("NVIDIA A100-SXM4-80GB", 8, 12, 4, addresses)))
    )


def mesh(kind: LinkKind = LinkKind.XGMI, state: LinkState = LinkState.UP) -> Topology:
    gpus = tuple(Device(f"gpu{index}", DeviceKind.GPU) for index in range(8))
    links = tuple(
        Link(gpu.name, other.name, kind, 64e9, state=state)
        for gpu in gpus
        for other in gpus
        if gpu != other
    )
    return Topology("a mesh", gpus, links, TopologyClass.XGMI_MESH)


def machines(count: int) -> Topology:
    devices, links = [Device("switch0", DeviceKind.NETWORK_SWITCH, node=-1)], []
    for node in range(count):
        gpu, nic = f"n{node}.gpu0", f"n{node}.nic0"
        devices += [Device(gpu, DeviceKind.GPU, node), Device(nic, DeviceKind.NIC, node)]
        links += [
            Link(gpu, nic, LinkKind.PCIE, 63e9),
            Link(nic, gpu, LinkKind.PCIE, 63e9),
            Link(nic, "switch0", LinkKind.INFINIBAND, 50e9),
            Link("switch0", nic, LinkKind.INFINIBAND, 50e9),
        ]
    return Topology("a cluster", tuple(devices), tuple(links))


def apart(layout: PictureLayout) -> bool:
    boxes = list(layout.boxes.values())
    return all(
        abs(one.x - box.x) >= (one.width + box.width) / 2 - 1e-9 or abs(one.y - box.y) >= HEIGHT
        for place, one in enumerate(boxes)
        for box in boxes[:place]
    )


def test_rows_stand_in_order_and_boxes_do_not_overlap(board: Topology) -> None:
    layout = laid_out(board)
    rows: dict[DeviceKind, set[float]] = {}
    for box in layout.boxes.values():
        rows.setdefault(box.kind, set()).add(box.y)
    assert sorted(rows, key=lambda kind: -max(rows[kind])) == [
        DeviceKind.NIC,
        DeviceKind.CPU,
        DeviceKind.PCIE_SWITCH,
        DeviceKind.GPU,
        DeviceKind.NVSWITCH,
    ]
    assert all(len(heights) == 1 for heights in rows.values())
    assert layout.boxes.keys() == condensed(board)[0].keys()
    assert apart(layout)


def test_every_pair_that_is_joined_has_one_line_with_the_number_of_its_links(
    board: Topology,
) -> None:
    lines = {frozenset((line.source, line.target)): line for line in laid_out(board).lines}
    assert set(lines) == {frozenset((line.source, line.target)) for line in condensed(board)[1]}
    assert len(lines) == len(laid_out(board).lines)
    assert lines[frozenset(("gpu0", "nvswitch0"))].count == 12
    assert lines[frozenset(("gpu0", "nvswitch0"))].bytes_per_second == 300e9


def test_a_mesh_is_a_row_with_arcs_below_it_and_hides_no_link() -> None:
    layout = laid_out(mesh())
    assert len(layout.lines) == 28
    assert apart(layout)
    (level,) = {box.y for box in layout.boxes.values()}
    assert all(y < level for line in layout.lines for _, y in line.points)
    assert all(y > 0 for line in layout.lines for _, y in line.points)


def test_of_many_machines_the_first_is_drawn_and_the_rest_counted() -> None:
    layout = laid_out(machines(100))
    assert layout.frame is not None
    assert layout.boxes["n1.gpu0"].label == "… 99 more machines"
    assert layout.boxes["n1.gpu0"].detail == "like machine 0"
    assert "n1.nic0" not in layout.boxes
    assert layout.boxes["switch0"].y > layout.boxes["n0.nic0"].y
    assert apart(layout)


def test_what_finds_no_room_is_counted_below_the_picture() -> None:
    routers = load_cluster("hgx-h100", 36, "ib-ndr-400x8/dragonfly:9x4x8x2")
    assert (
        picture(routers).texts[-1].get_text().endswith("Not shown: 31 machines, 31 switches.")
    )
    assert "Not shown" not in picture(machines(100)).texts[-1].get_text()


def test_a_machine_unlike_the_first_says_what_is_in_it() -> None:
    cluster = machines(2)
    other_cluster = replace(
        cluster, devices=(*cluster.devices, Device("n1.gpu1", DeviceKind.GPU, 1))
    )
    assert laid_out(other_cluster).boxes["n1.gpu0"].detail == "2 GPUs, 1 NIC"


def test_the_figure_says_what_width_means() -> None:
    words = " ".join(text.get_text() for text in picture(machines(2)).texts)
    assert "A wider line carries more" in words
    labels = [text.get_text() for text in picture(machines(2)).legends[0].get_texts()]
    assert "InfiniBand, 50 GB/s" in labels


def test_kinds_differ_by_colour_or_dashes_and_rates_by_width(board: Topology) -> None:
    kinds = [*map(LinkKind, ("infiniband", "roce", "efa", "ethernet", "nvlink", "pcie"))]
    assert (
        len({LOOKS[kind].colour for kind in kinds})
        == len({LOOKS[kind].label for kind in kinds})
        == 6
    )
    widths = {line.get_linewidth() for line in picture(board).axes[0].lines}
    assert len({round(width, 2) for width in widths}) >= 3


def test_the_legend_says_the_rates(board: Topology) -> None:
    words = [text.get_text() for text in picture(board).legends[0].get_texts()]
    assert "NVLink, x12, 300 GB/s" in words
    assert "PCIe, 31.51 GB/s" in words


def test_links_that_are_down_are_written_as_such() -> None:
    words = [
        text.get_text() for text in picture(mesh(LinkKind.NVLINK, LinkState.DOWN)).axes[0].texts
    ]
    assert words.count("x1 down") == 28


def test_links_that_nobody_could_see_are_neither_up_nor_down() -> None:
    figure = picture(mesh(LinkKind.NVLINK, LinkState.NOT_VISIBLE))
    assert [text.get_text() for text in figure.axes[0].texts].count("x1 not visible") == 28
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["not visible"]


def two_gpus(*links: tuple[str, str, float | None, int]) -> Topology:
    gpus = (Device("gpu0", DeviceKind.GPU), Device("gpu1", DeviceKind.GPU))
    made = tuple(
        Link(one, other, LinkKind.NVLINK, rate, count=count)
        for one, other, rate, count in links
    )
    return Topology("two", gpus, made)


def test_directions_that_differ_are_both_told() -> None:
    (line,) = laid_out(two_gpus(("gpu1", "gpu0", 25e9, 1), ("gpu0", "gpu1", 100e9, 4))).lines
    assert (line.source, line.bytes_per_second, line.back) == ("gpu0", 100e9, (1, 25e9))
    assert line.label == "→ x4, 100 GB/s ← x1, 25 GB/s"


def test_a_link_in_one_direction_is_told_as_such() -> None:
    (line,) = laid_out(two_gpus(("gpu1", "gpu0", 25e9, 2))).lines
    assert line.label == "← x2, 25 GB/s only"


GPU_PAIRS = (("gpu0", "gpu1"), ("gpu1", "gpu0"))


@pytest.mark.parametrize("name", ["$\\alpha$ & <b>", "雪" * 300, "", "a\nb\x00"])
def test_any_name_can_be_drawn(name: str, tmp_path: Path) -> None:
    draw_topology(Topology(name, (Device(f"gpu{name}", DeviceKind.GPU),)), tmp_path / "any.svg")
    assert (tmp_path / "any.svg").stat().st_size > 500


def test_nothing_at_all_can_be_drawn(tmp_path: Path) -> None:
    draw_topology(Topology("empty", ()), tmp_path / "empty.png")
    assert (tmp_path / "empty.png").exists()


def test_the_switch_of_a_row_reaches_over_what_hangs_on_it() -> None:
    layout = laid_out(machines(2))
    switch = layout.boxes["switch0"]
    for name in ("n0.nic0", "n1.gpu0"):
        assert abs(layout.boxes[name].x - switch.x) < switch.width / 2
    assert math.isclose(
        switch.x + switch.width / 2,
        layout.boxes["n1.gpu0"].x + layout.boxes["n1.gpu0"].width / 2,
    )


def test_nics_that_nothing_is_said_of_are_one_box_that_says_so() -> None:
    lost = tuple(Device(f"nic{index}", DeviceKind.NIC) for index in range(1, 5))
    devices = (
        Device("cpu0", DeviceKind.CPU),
        Device("gpu0", DeviceKind.GPU),
        Device("nic0", DeviceKind.NIC),
        *lost,
    )
    links = (Link("cpu0", "gpu0", LinkKind.PCIE), Link("cpu0", "nic0", LinkKind.PCIE))
    layout = laid_out(Topology("lost", devices, links))
    assert layout.boxes["nic1"].label == "… 4 more NICs"
    assert layout.boxes["nic1"].detail == "the source states no link"
    assert {"nic2", "nic3", "nic4"}.isdisjoint(layout.boxes)


def test_over_joined_gpus_rows_keep_their_order() -> None:
    devices = [Device("cpu0", DeviceKind.CPU), *mesh().devices]
    links = list(mesh().links)
    for index in range(8):
        devices += [
            Device(f"pcie{index}", DeviceKind.PCIE_SWITCH),
            Device(f"nic{index}", DeviceKind.NIC),
        ]
        links += [
            Link(f"pcie{index}", f"{kind}{index}", LinkKind.PCIE) for kind in ("gpu", "nic")
        ]
        links.append(Link("cpu0", f"pcie{index}", LinkKind.PCIE))
    boxes = laid_out(Topology("around", tuple(devices), tuple(links))).boxes
    assert (
        boxes["nic0"].y
        > boxes["cpu0"].y
        > boxes["pcie0"].y
        > max(boxes[f"gpu{one}"].y for one in range(8))
    )
