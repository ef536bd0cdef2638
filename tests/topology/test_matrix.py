from __future__ import annotations

from dataclasses import replace

import pytest

from ccbench.findings import SourceWarning
from ccbench.topology.graph import (
    Device,
    DeviceKind,
    LinkKind,
    LinkState,
    Topology,
    TopologyClass,
)
from ccbench.topology.matrix import path_labels
from ccbench.topology.summary import gpu_matrix, nvlinks_per_gpu, usable_shares
from tests.topology.graphs import graph, with_links


@pytest.mark.parametrize(
    ("pairs", "label"),
    [
        (("gpu0 pcie0", "gpu1 pcie0"), "PIX"),
        (("gpu0 pcie0", "pcie0 pcie1", "pcie1 gpu1"), "PXB"),
        (("gpu0 cpu0", "cpu0 gpu1"), "PHB"),
        (("gpu0 cpu0", "cpu0 cpu1", "cpu1 gpu1"), "SYS"),
        (("gpu0 pcie0", "gpu1 pcie0", "gpu0 cpu0", "cpu0 gpu1"), "PIX"),
        (("gpu0 gpu2", "gpu2 gpu1"), "-"),
        (("gpu0 nic0", "nic0 gpu1"), "-"),
    ],
)
def test_a_path_is_called_after_the_worst_it_passes(pairs: tuple[str, ...], label: str) -> None:
    labels = path_labels(graph(*pairs))
    assert labels[("gpu0", "gpu1")] == labels[("gpu1", "gpu0")] == label
    assert labels[("gpu0", "gpu0")] == "X"


ACROSS = ("gpu0 nic0", "nic0 net0", "net0 nic1", "nic1 gpu1")


def test_between_machines_a_path_is_called_after_the_network() -> None:
    topology = graph(*ACROSS)
    nodes = {"gpu0": 0, "nic0": 0, "net0": -1, "nic1": 1, "gpu1": 1}
    apart = replace(
        topology,
        devices=tuple(replace(device, node=nodes[device.name]) for device in topology.devices),
    )
    labels = path_labels(apart)
    assert (
        labels[("gpu0", "gpu1")]
        == labels[("nic0", "gpu1")]
        == labels[("nic0", "nic1")]
        == "NET"
    )
    assert labels[("gpu0", "nic0")] == "PIX"


def test_inside_a_machine_no_path_goes_over_the_network() -> None:
    assert path_labels(graph(*ACROSS))[("gpu0", "gpu1")] == "-"
    hosted = path_labels(graph(*ACROSS, "gpu0 cpu0", "cpu0 cpu1", "cpu1 gpu1", "cpu1 nic1"))
    assert (hosted[("gpu0", "gpu1")], hosted[("gpu0", "nic1")]) == ("SYS", "SYS")


def test_the_nic_of_another_gpu_is_reached_over_nvlink() -> None:
    pairs = ("gpu0 nvs0", "gpu1 nvs0", "gpu1 nic0", "gpu2 pcie0")
    kinds = dict.fromkeys(pairs[:2], LinkKind.NVLINK)
    labels = path_labels(graph(*pairs, kinds=kinds))
    assert labels[("gpu0", "nic0")] == labels[("nic0", "gpu0")] == "PXN"
    assert (labels[("gpu1", "nic0")], labels[("gpu2", "nic0")]) == ("PIX", "?")


def test_where_the_host_is_shown_or_left_out_a_missing_path_was_not_seen() -> None:
    apart = ("gpu0 pcie0", "gpu1 pcie1")
    assert path_labels(graph(*apart))[("gpu0", "gpu1")] == "?"
    pairs = ("gpu0 gpu1", "gpu2 gpu3")
    alone = graph(*pairs, kind=LinkKind.NVLINK)
    assert path_labels(alone)[("gpu0", "gpu2")] == "-"
    assert path_labels(replace(alone, facts={"omits": "PCIe"}))[("gpu0", "gpu2")] == "?"
    assert path_labels(replace(alone, facts={"omits": "nothing"}))[("gpu0", "gpu2")] == "-"
    assert path_labels(replace(alone, source="nvidia-smi nvlink"))[("gpu0", "gpu2")] == "?"


def test_host_bridges_tell_node_from_phb() -> None:
    one, other = ({"host_bridge": bridge} for bridge in ("pci0000:16", "pci0000:64"))
    assert (
        path_labels(graph("gpu0 cpu0", "cpu0 gpu1", gpu0=one, gpu1=other))[("gpu0", "gpu1")]
        == "NODE"
    )


def test_direct_links_have_their_own_words() -> None:
    kinds = {
        "gpu0 gpu1": LinkKind.XGMI,
        "gpu1 gpu2": LinkKind.HCCS,
        "gpu2 gpu3": LinkKind.NVLINK,
    }
    labels = path_labels(graph(*kinds, kinds=kinds))
    assert [labels[(f"gpu{index}", f"gpu{index + 1}")] for index in range(3)] == [
        "XGMI",
        "HCCS",
        "NV1",
    ]


def test_switches_that_are_joined_lead_from_board_to_board() -> None:
    pairs = ("gpu0 nvs0", "nvs0 nvs1", "nvs1 gpu1", "gpu2 nvs2")
    labels = path_labels(graph(*pairs, kind=LinkKind.NVLINK))
    assert (labels[("gpu0", "gpu1")], labels[("gpu0", "gpu2")]) == ("NV1", "-")


def test_a_gpu_whose_links_are_all_down_is_cut_off_and_not_unseen() -> None:
    for pairs in (("gpu0 gpu1", "gpu1 gpu2"), ("gpu0 nvs0", "gpu1 nvs0", "gpu2 nvs0")):
        labels = path_labels(
            with_links(graph(*pairs, kind=LinkKind.NVLINK), "gpu0", LinkState.DOWN)
        )
        assert (labels[("gpu0", "gpu1")], labels[("gpu1", "gpu0")]) == ("down", "down")
        assert labels[("gpu1", "gpu2")] == "NV1"


def unlike(**states: LinkState) -> Topology:
    """GPUs whose pairs (g01, g12, g02) have NVLinks of the given states."""
    parts = [
        with_links(graph(f"gpu{name[1]} gpu{name[2]}", kind=LinkKind.NVLINK), "", state)
        for name, state in states.items()
    ]
    devices = dict.fromkeys(device.name for part in parts for device in part.devices)
    links = tuple(link for part in parts for link in part.links)
    gpus = tuple(Device(name, DeviceKind.GPU) for name in sorted(devices))
    return Topology("box", gpus, links, TopologyClass.NVLINK_MESH)


def test_up_down_and_not_visible_are_three_things() -> None:
    found = unlike(g01=LinkState.UP, g12=LinkState.NOT_VISIBLE, g02=LinkState.DOWN)
    assert gpu_matrix(found) == [["X", "NV1", "down"], ["NV1", "X", None], ["down", None, "X"]]
    assert nvlinks_per_gpu(found) == [1, None, None]
    assert usable_shares(found) is None


def test_beside_links_that_nobody_could_see_pcie_is_not_said_to_be_the_path() -> None:
    found = unlike(g01=LinkState.NOT_VISIBLE)
    hosted = graph("gpu0 cpu0", "gpu1 cpu0")
    both = replace(hosted, links=(*hosted.links, *found.links))
    assert path_labels(both)[("gpu0", "gpu1")] == "?"
    assert path_labels(hosted)[("gpu0", "gpu1")] == "PHB"


def test_what_the_source_printed_stands() -> None:
    found = replace(graph("gpu0 cpu0", "cpu0 gpu1"), matrix={("gpu0", "gpu1"): "NV12"})
    assert path_labels(found)[("gpu1", "gpu0")] == "NV12"


def test_what_the_source_does_not_show_is_not_called_missing() -> None:
    topology = graph("gpu0 nvs0", "gpu1 nvs1", kind=LinkKind.NVLINK)
    assert path_labels(topology)[("gpu0", "gpu1")] == "-"
    cut = replace(topology, warnings=(SourceWarning("truncated", "the text ends"),))
    assert path_labels(cut)[("gpu0", "gpu1")] == "?"
    assert path_labels(replace(topology, links=()))[("gpu0", "gpu1")] == "?"


def test_of_a_printed_matrix_no_other_path_is_worked_out() -> None:
    topology = graph("gpu0 cpu0", "cpu0 gpu1", "cpu0 nic0")
    topology = replace(
        topology, matrix={("gpu0", "gpu1"): "NODE"}, facts={"paths": "as printed"}
    )
    labels = path_labels(topology)
    assert (labels[("gpu1", "gpu0")], labels[("gpu0", "nic0")]) == ("NODE", "?")


def test_uncounted_links_to_switches_are_named_without_a_number() -> None:
    counted = graph("gpu0 nvs0", "gpu1 nvs0", kind=LinkKind.NVLINK)
    links = tuple(replace(link, attributes={"count_known": False}) for link in counted.links)
    assert path_labels(replace(counted, links=links))[("gpu0", "gpu1")] == "NVL"
    assert path_labels(counted)[("gpu0", "gpu1")] == "NV1"
