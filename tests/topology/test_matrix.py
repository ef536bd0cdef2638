from __future__ import annotations

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


def test_the_nic_of_another_gpu_is_reached_over_nvlink() -> None:
    pairs = ("gpu0 nvs0", "gpu1 nvs0", "gpu1 nic0", "gpu2 pcie0")
    kinds = dict.fromkeys(pairs[:2], LinkKind.NVLINK)
    labels = path_labels(graph(*pairs, kinds=kinds))
    assert labels[("gpu0", "nic0")] == labels[("nic0", "gpu0")] == "PXN"
    assert (labels[("gpu1", "nic0")], labels[("gpu2", "nic0")]) == ("PIX", "?")


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
