from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ccbench.machine.detection import load_topology
from ccbench.report.topology_alike import MOST_SEPARATE, reduced
from ccbench.report.topology_boxes import merged, words
from ccbench.topology.composition import compose
from ccbench.topology.dragonflies import dragonfly
from ccbench.topology.fabrics import Wire, single_switch
from ccbench.topology.fat_trees import fat_tree
from ccbench.topology.graph import Device, DeviceKind, Link, LinkKind, LinkState, Topology

WIRE = Wire(50e9)


def labels(topology: Topology) -> list[str]:
    return [words(one)[0] for one in reduced(topology).devices]


def leaving(topology: Topology, name: str) -> int:
    return sum(link.count for link in topology.links if link.source == name)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=3), st.sampled_from([1.0, 2.0, 4.0]))
def test_no_device_of_a_tree_is_lost_and_each_class_has_the_links_of_its_first(
    children: list[int], oversubscription: float
) -> None:
    whole = fat_tree(children, WIRE, oversubscription).topology()
    small = reduced(whole)
    counts: Counter[DeviceKind] = Counter()
    for one in small.devices:
        counts[one.kind] += merged(one)
    assert counts == Counter(one.kind for one in whole.devices)
    for gpu in small.gpus:
        assert leaving(small, gpu.name) == leaving(whole, gpu.name)
    assert sum(merged(gpu) > 1 for gpu in small.gpus) <= len(children)


@settings(max_examples=30, deadline=None)
@given(st.permutations(range(4)), st.integers(0, 3))
def test_a_switch_with_a_slower_link_is_not_hidden_among_its_like(order: list[int], slow: int) -> None:
    gpus = [Device(f"gpu{one}", DeviceKind.GPU) for one in range(4)]
    switches = [Device(f"s{one}", DeviceKind.NETWORK_SWITCH, -1) for one in order]
    links = [
        Link(
            gpu.name, switch.name, LinkKind.ROCE, 1e9 if switch.name == f"s{slow}" and gpu is gpus[0] else 5e9
        )
        for gpu in gpus
        for switch in switches
    ]
    small = reduced(Topology("planes", (*gpus, *switches), tuple(links)))
    found = sorted(merged(one) for one in small.of_kind(DeviceKind.NETWORK_SWITCH))
    assert found == [1, 3]


def test_a_tree_is_told_from_the_first_leaf() -> None:
    assert labels(fat_tree([16, 4, 4], WIRE).topology()) == [
        "GPU 0", "GPU 1", "GPU 2", "… 13 more GPUs", "… 48 more GPUs", "… 192 more GPUs",
        "leaf 0", "… 3 more leaves", "… 12 more leaves", "16 spines", "… 48 more spines", "64 cores",
    ]  # fmt: skip


def test_a_link_between_classes_is_what_one_of_the_lower_has() -> None:
    small = reduced(fat_tree([16, 4, 4], WIRE).topology())
    up = [link for link in small.links if (link.source, link.target) == ("level2.switch0", "level3.switch0")]
    assert [(link.count, link.bytes_per_second) for link in up] == [(4, 200e9)]


def test_machines_are_told_by_the_leaf_they_are_on() -> None:
    cluster = compose(load_topology("hgx-h100"), 16, "ib-ndr-400x8", fat_tree([16, 8], WIRE))
    found = labels(cluster)
    assert [one for one in found if "machine" in one] == ["machine 1", "… 14 more machines"]
    assert [one for one in found if "lea" in one] == ["leaf 0", "… 7 more leaves"]


def test_groups_of_a_dragonfly_are_told_by_the_switch_they_are_joined_to() -> None:
    found = labels(dragonfly(9, 4, 2, 2, WIRE).topology())
    assert found.count("… 2 more groups") == 4
    assert [one for one in found if one.startswith("switch")] == [f"switch {one}" for one in range(4)]


@pytest.mark.parametrize("ranks", [MOST_SEPARATE, MOST_SEPARATE + 1])
def test_few_gpus_keep_a_box_each(ranks: int) -> None:
    gpus = reduced(single_switch(ranks, WIRE).topology()).gpus
    assert len(gpus) == (MOST_SEPARATE if ranks == MOST_SEPARATE else 4)


def test_a_link_that_is_down_sets_a_machine_apart() -> None:
    cluster = compose(load_topology("hgx-h100"), 4, "ib-ndr-400x8")
    broken = next(link for link in cluster.links if link.source == "n2.gpu0" and "nvswitch" in link.target)
    links = tuple(
        Link(*(link.source, link.target, link.kind), link.bytes_per_second, None, link.count, LinkState.DOWN)
        if link is broken
        else link
        for link in cluster.links
    )
    small = reduced(Topology("cluster", cluster.devices, links))
    found = {words(one) for one in small.devices if "folded" in one.attributes}
    assert found == {("… 2 more machines", "like machine 0"), ("machine 2", "8 GPUs, 8 NICs")}


def six_gpus(machine: int, pairs: list[tuple[int, int]]) -> tuple[list[Device], list[Link]]:
    devices = [Device(f"n{machine}.gpu{place}", DeviceKind.GPU, machine) for place in range(6)]
    both = pairs + [(other, one) for one, other in pairs]
    links = [Link(devices[one].name, devices[other].name, LinkKind.NVLINK, 25e9) for one, other in both]
    return devices, links


def test_a_machine_is_like_another_only_if_the_same_devices_are_joined() -> None:
    triangles = [(0, 1), (1, 2), (2, 0), (3, 4), (4, 5), (5, 3)]
    ring = [(place, (place + 1) % 6) for place in range(6)]
    built = [six_gpus(machine, pairs) for machine, pairs in enumerate((triangles, ring, triangles))]
    devices = tuple(device for listed, _ in built for device in listed)
    links = tuple(link for _, listed in built for link in listed)
    found = [words(one) for one in reduced(Topology("three", devices, links)).devices]
    assert [pair for pair in found if pair[0].startswith("machine")] == [
        ("machine 1", "6 GPUs"),
        ("machine 2", "like machine 0"),
    ]


def test_a_rate_that_is_not_known_of_one_link_is_not_known_of_their_sum() -> None:
    devices = (Device("gpu0", DeviceKind.GPU), Device("gpu1", DeviceKind.GPU))
    links = [Link("gpu0", "gpu1", LinkKind.NVLINK, 1e11, count=4), Link("gpu0", "gpu1", LinkKind.NVLINK)]
    (link,) = reduced(Topology("part", devices, tuple(links))).links
    assert (link.count, link.bytes_per_second) == (5, None)
