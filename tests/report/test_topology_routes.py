"""No line may pass behind a box that is not its end, or leave a box sideways."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from ccbench.machine.detection import load_cluster, load_topology
from ccbench.report.topology_boxes import condensed, words
from ccbench.report.topology_layout import laid_out
from ccbench.report.topology_plan import Drawn, Layout, line_point
from ccbench.topology.catalog import catalog_names
from ccbench.topology.graph import Device, DeviceKind, Link, LinkKind, LinkState, Topology


def switched(gpus: int, switches: int, broken: int = 0, counted: bool = True) -> Topology:
    names = [f"gpu{one}" for one in range(gpus)]
    devices = [Device(name, DeviceKind.GPU) for name in names]
    devices += [Device(f"nvswitch{one}", DeviceKind.NVSWITCH) for one in range(switches)]
    links = []
    for place, name in enumerate(names):
        for one in range(switches):
            state = LinkState.DOWN if place < broken else LinkState.UP
            told = {} if counted else {"count_known": False}
            links += [
                Link(*ends, LinkKind.NVLINK, 50e9, count=2, state=state, attributes=told)
                for ends in ((name, f"nvswitch{one}"), (f"nvswitch{one}", name))
            ]
    return Topology("switched", tuple(devices), tuple(links))


def leaves_and_spines() -> Topology:
    devices = [Device(f"n{node}.nic{one}", DeviceKind.NIC, node) for node in range(2) for one in range(4)]
    devices += [Device(f"switch{one}", DeviceKind.NETWORK_SWITCH, -1) for one in range(6)]
    pairs = [(f"n{node}.nic{one}", f"switch{one}") for node in range(2) for one in range(4)]
    pairs += [(f"switch{one}", f"switch{top}") for one in range(4) for top in (4, 5)]
    links = [Link(*pair, LinkKind.INFINIBAND, 50e9) for pair in pairs]
    links += [Link(other, one, LinkKind.INFINIBAND, 50e9) for one, other in pairs]
    return Topology("leaves and spines", tuple(devices), tuple(links))


def way(line: Drawn) -> list[tuple[float, float]]:
    """Many points of the line."""
    corners = list(line.points)
    steps = [number / 50 for number in range(51)]
    if line.control is not None:
        a, b, c = corners[0], line.control, corners[1]
        return [
            tuple((1 - t) ** 2 * a[i] + 2 * t * (1 - t) * b[i] + t * t * c[i] for i in (0, 1))  # type: ignore[misc]
            for t in steps
        ]
    return [
        (one[0] + t * (other[0] - one[0]), one[1] + t * (other[1] - one[1]))
        for one, other in itertools.pairwise(corners)
        for t in steps
    ]


def check(layout: Layout) -> int:
    """Number of lines looked at."""
    checked = 0
    for line in layout.links:
        if not line.points:
            continue
        checked += 1
        for name, (x, y) in zip((line.source, line.target), (line.points[0], line.points[-1]), strict=True):
            box = layout.devices[name]
            assert abs(abs(y - box.y) - box.height / 2) < 1e-9
            assert abs(x - box.x) <= box.width / 2
        for x, y in way(line):
            for name, box in layout.devices.items():
                inside = abs(x - box.x) < box.width / 2 - 1e-6 and abs(y - box.y) < box.height / 2 - 1e-6
                assert not inside, (line.source, line.target, name)
    return checked


@pytest.mark.parametrize("name", catalog_names())
def test_no_line_of_a_machine_passes_behind_a_box(name: str) -> None:
    layout = laid_out(load_topology(name))
    circle = sum(not line.points for line in layout.links)
    assert check(layout) + circle == len(layout.links)


def test_no_line_of_a_cluster_passes_behind_a_box() -> None:
    assert check(laid_out(load_cluster("hgx-h100", 2, "ib-ndr-400x8"))) == 25
    assert check(laid_out(leaves_and_spines())) == 12


def test_a_line_past_a_row_goes_through_a_gap() -> None:
    kinds = {"nic0": DeviceKind.NIC, "cpu0": DeviceKind.CPU, "pcie0": DeviceKind.PCIE_SWITCH}
    devices = tuple(Device(*one) for one in kinds.items())
    links = (Link("nic0", "pcie0", LinkKind.PCIE), Link("cpu0", "pcie0", LinkKind.PCIE))
    assert check(laid_out(Topology("past", devices, links))) == 2


def test_switches_with_the_same_neighbours_are_one_box_with_all_their_links() -> None:
    found = condensed(switched(8, 4))
    (switch,) = found.of_kind(DeviceKind.NVSWITCH)
    assert switch.attributes["detail"] == "8 links per GPU · 200 GB/s each way"
    box = laid_out(switched(8, 4)).devices[switch.name]
    assert box.label == "4 NVSwitches"
    assert box.width > 6


def test_a_switch_gives_no_number_of_links_that_were_not_all_counted() -> None:
    found = switched(1, 1)
    more = replace(found, links=(*found.links, replace(found.links[0], attributes={"count_known": False})))
    for one in (switched(4, 1, counted=False), switched(72, 1, counted=False), more):
        (switch,) = condensed(one).of_kind(DeviceKind.NVSWITCH)
        assert words(switch)[1].startswith("links per GPU not stated")
    assert words(switch)[1].endswith(" GB/s each way")


def test_a_long_row_of_equal_gpus_is_one_box_and_one_line() -> None:
    layout = laid_out(switched(72, 18))
    assert layout.devices["gpu0"].label == "72 GPUs"
    assert layout.devices["gpu0"].detail == "gpu0 ... gpu71"
    assert [line.label for line in layout.links] == ["x36, 900 GB/s per GPU"]


def test_gpus_whose_links_are_down_do_not_hide_among_the_others() -> None:
    found = condensed(switched(72, 18, broken=1))
    assert {gpu.name for gpu in found.gpus} == {"gpu0", "gpu1"}
    assert found.device("gpu1").attributes["merged"] == 71
    layout = laid_out(switched(72, 18, broken=1))
    assert sum(line.label == "x36, 900 GB/s per GPU" for line in layout.links) == 1
    boxes = layout.devices
    assert boxes["gpu1"].x - boxes["gpu0"].x > (boxes["gpu1"].width + boxes["gpu0"].width) / 2


def test_switches_are_named_by_level_in_the_order_of_their_numbers() -> None:
    layout = laid_out(leaves_and_spines())
    row = sorted((box.x, box.label) for box in layout.devices.values() if box.label.startswith("leaf"))
    assert [label for _, label in row] == ["leaf 0", "leaf 1", "leaf 2", "leaf 3"]
    assert layout.devices["switch4"].detail == "4, 5"
    assert layout.devices["switch4"].label == "2 spines"


def test_a_bundle_says_its_rate_once() -> None:
    layout = laid_out(load_topology("hgx-h100"))
    labels = [line.label for line in layout.links if line.label]
    assert sorted(labels) == sorted(set(labels))
    assert "x18, 450 GB/s" in labels


@pytest.mark.parametrize("name", ["dgx-1v", "mi250", "mi300x", "ascend-910b", "gh200x4", "h100-pcie-bridge"])
def test_a_line_across_a_circle_cuts_no_box_on_its_way(name: str) -> None:
    layout = laid_out(load_topology(name))
    for line in layout.links:
        for step in range(101):
            x, y = line_point(line, layout, step / 100)
            for other, box in layout.devices.items():
                if other not in (line.source, line.target):
                    inside = abs(x - box.x) < box.width / 2 and abs(y - box.y) < box.height / 2
                    assert not inside, (line.source, line.target, other)
