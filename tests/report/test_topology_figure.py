from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from ccbench.machine.detection import joined, load_cluster, read_nvml
from ccbench.machine.files import Files
from ccbench.machine.sysfs import read_sysfs
from ccbench.report.topology_figure import LOOKS, draw_topology, picture
from ccbench.report.topology_layout import Layout, laid_out
from ccbench.report.topology_merged import condensed
from ccbench.topology.graph import Device, DeviceKind, Link, LinkKind, LinkState, Topology, TopologyClass
from tests.machine.recorded_nvml import RecordedNvml, switched
from tests.machine.sysfs_tree import two_sockets_four_switches


@pytest.fixture
def board(tmp_path: Path) -> Topology:
    two_sockets_four_switches(tmp_path)
    kernel = read_sysfs(Files(tmp_path))
    addresses = [f"0000{gpu.bus_id}" for gpu in kernel.gpus]
    return joined(kernel, read_nvml(RecordedNvml(switched("NVIDIA A100-SXM4-80GB", 8, 12, 4, addresses))))


def mesh(kind: LinkKind = LinkKind.XGMI, state: LinkState = LinkState.UP) -> Topology:
    gpus = tuple(Device(f"gpu{one}", DeviceKind.GPU) for one in range(8))
    links = tuple(
        Link(one.name, other.name, kind, 64e9, state=state) for one in gpus for other in gpus if one != other
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


def apart(layout: Layout) -> bool:
    boxes = list(layout.boxes.values())
    return all(
        abs(one.x - other.x) >= (one.width + other.width) / 2 - 1e-9 or abs(one.y - other.y) >= one.height
        for place, one in enumerate(boxes)
        for other in boxes[:place]
    )


def test_rows_stand_in_order_and_boxes_do_not_overlap(board: Topology) -> None:
    layout = laid_out(board)
    rows: dict[DeviceKind, set[float]] = {}
    for box in layout.boxes.values():
        rows.setdefault(box.kind, set()).add(box.y)
    assert sorted(rows, key=lambda kind: -max(rows[kind])) == [
        DeviceKind.NIC, DeviceKind.CPU, DeviceKind.PCIE_SWITCH, DeviceKind.GPU, DeviceKind.NVSWITCH,
    ]  # fmt: skip
    assert all(len(heights) == 1 for heights in rows.values())
    assert layout.boxes.keys() == condensed(board)[0].keys()
    assert apart(layout)


def test_every_pair_that_is_joined_has_one_line_with_the_number_of_its_links(board: Topology) -> None:
    lines = {frozenset((one.source, one.target)): one for one in laid_out(board).lines}
    assert set(lines) == {frozenset((line.source, line.target)) for line in condensed(board)[1]}
    assert len(lines) == len(laid_out(board).lines)
    assert lines[frozenset(("gpu0", "nvswitch0"))].count == 12
    assert lines[frozenset(("gpu0", "nvswitch0"))].bytes_per_second == 300e9


def test_a_mesh_stands_on_a_circle_and_hides_no_link() -> None:
    layout = laid_out(mesh())
    assert len(layout.lines) == 28
    assert apart(layout)
    assert len({(round(one.x, 3), round(one.y, 3)) for one in layout.boxes.values()}) == 8
    middle = sum(one.y for one in layout.boxes.values()) / 8
    assert sum(one.y > middle for one in layout.boxes.values()) == 4


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
    assert picture(routers).texts[-1].get_text().endswith("Not shown: 31 machines, 31 switches.")
    assert "Not shown" not in picture(machines(100)).texts[-1].get_text()


def test_a_machine_unlike_the_first_says_what_is_in_it() -> None:
    cluster = machines(2)
    other = replace(cluster, devices=(*cluster.devices, Device("n1.gpu1", DeviceKind.GPU, 1)))
    assert laid_out(other).boxes["n1.gpu0"].detail == "2 GPUs, 1 NIC"


def test_every_kind_of_network_has_a_colour_of_its_own() -> None:
    kinds = [*map(LinkKind, ("infiniband", "roce", "efa", "ethernet", "nvlink", "pcie"))]
    assert len({LOOKS[kind].colour for kind in kinds}) == 6
    assert len({LOOKS[kind].label for kind in kinds}) == 6


def test_the_figure_says_what_width_means() -> None:
    words = " ".join(text.get_text() for text in picture(machines(2)).texts)
    assert "A wider line carries more" in words
    labels = [text.get_text() for text in picture(machines(2)).legends[0].get_texts()]
    assert "InfiniBand, 50 GB/s" in labels


def test_kinds_differ_by_colour_or_dashes_and_rates_by_width(board: Topology) -> None:
    looks = {kind: (look.colour, look.dashes) for kind, look in LOOKS.items()}
    assert len({looks[kind] for kind in (LinkKind.NVLINK, LinkKind.PCIE, LinkKind.INFINIBAND)}) == 3
    widths = {line.get_linewidth() for line in picture(board).axes[0].lines}
    assert len({round(width, 2) for width in widths}) >= 3


def test_the_legend_says_the_rates(board: Topology) -> None:
    words = [text.get_text() for text in picture(board).legends[0].get_texts()]
    assert "NVLink x12, 300 GB/s" in words
    assert "PCIe, 31.51 GB/s" in words


def test_links_that_are_down_are_written_as_such() -> None:
    words = [text.get_text() for text in picture(mesh(LinkKind.NVLINK, LinkState.DOWN)).axes[0].texts]
    assert words.count("x1 down") == 28


def test_links_that_nobody_could_see_are_neither_up_nor_down() -> None:
    figure = picture(mesh(LinkKind.NVLINK, LinkState.NOT_VISIBLE))
    assert [text.get_text() for text in figure.axes[0].texts].count("x1 not visible") == 28
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["not visible"]


def two_gpus(*links: tuple[str, str, float | None, int]) -> Topology:
    gpus = (Device("gpu0", DeviceKind.GPU), Device("gpu1", DeviceKind.GPU))
    made = tuple(Link(one, other, LinkKind.NVLINK, rate, count=count) for one, other, rate, count in links)
    return Topology("two", gpus, made)


def test_directions_that_differ_are_both_told() -> None:
    (line,) = laid_out(two_gpus(("gpu1", "gpu0", 25e9, 1), ("gpu0", "gpu1", 100e9, 4))).lines
    assert (line.source, line.bytes_per_second, line.back) == ("gpu0", 100e9, (1, 25e9))
    assert line.label == "→ x4, 100 GB/s ← x1, 25 GB/s"


def test_a_link_in_one_direction_is_told_as_such() -> None:
    (line,) = laid_out(two_gpus(("gpu1", "gpu0", 25e9, 2))).lines
    assert line.label == "← x2, 25 GB/s only"


def test_links_of_known_and_of_unknown_rate_have_no_known_sum() -> None:
    both = [(one, other, rate, 4) for one, other in GPU_PAIRS for rate in (100e9, None)]
    (line,) = laid_out(two_gpus(*both)).lines
    assert (line.count, line.bytes_per_second, line.back, line.label) == (8, None, None, "x8")


GPU_PAIRS = (("gpu0", "gpu1"), ("gpu1", "gpu0"))


@pytest.mark.parametrize("ending", [".svg", ".png", ".pdf"])
def test_the_same_topology_gives_the_same_bytes(ending: str, tmp_path: Path) -> None:
    files = [tmp_path / f"{name}{ending}" for name in ("one", "two")]
    for file in files:
        draw_topology(mesh(), file)
    first, second = (file.read_bytes() for file in files)
    assert first == second
    assert len(first) > 2000


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
        switch.x + switch.width / 2, layout.boxes["n1.gpu0"].x + layout.boxes["n1.gpu0"].width / 2
    )


def test_nics_that_nothing_is_said_of_are_one_box_that_says_so() -> None:
    lost = tuple(Device(f"nic{one}", DeviceKind.NIC) for one in range(1, 5))
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


def test_with_gpus_on_a_circle_no_nic_stands_in_the_way_of_their_lines() -> None:
    devices = [Device("cpu0", DeviceKind.CPU), *mesh().devices]
    links = list(mesh().links)
    for one in range(8):
        devices += [Device(f"pcie{one}", DeviceKind.PCIE_SWITCH), Device(f"nic{one}", DeviceKind.NIC)]
        links += [Link(f"pcie{one}", f"{kind}{one}", LinkKind.PCIE) for kind in ("gpu", "nic")]
        links.append(Link("cpu0", f"pcie{one}", LinkKind.PCIE))
    boxes = laid_out(Topology("around", tuple(devices), tuple(links))).boxes
    assert (
        boxes["nic0"].y > boxes["cpu0"].y > boxes["pcie0"].y > max(boxes[f"gpu{one}"].y for one in range(8))
    )
