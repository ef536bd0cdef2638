from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.machine.detection import load_topology
from ccbench.report.topology_layout import laid_out
from ccbench.report.topology_merged import MOST_SEPARATE, Box, condensed
from ccbench.topology.composition import compose
from ccbench.topology.fabrics import Wire, single_switch, torus
from ccbench.topology.graph import Device, DeviceKind, Link, LinkKind, LinkState, Topology
from ccbench.topology.networks import fat_tree
from tests.report.test_topology_layout import on_nvswitches

WIRE = Wire(50e9)


def boxes(topology: Topology) -> list[Box]:
    return list(condensed(topology)[0].values())


def labels(topology: Topology) -> list[str]:
    return [box.label for box in boxes(topology)]


@given(st.lists(st.integers(1, 6), min_size=1, max_size=3), st.sampled_from([1.0, 2.0, 4.0]))
def test_no_device_of_a_tree_is_lost_and_each_class_has_the_links_of_its_first(
    children: list[int], oversubscription: float
) -> None:
    whole = fat_tree(children, WIRE, oversubscription).topology()
    found, lines = condensed(whole)
    counts: Counter[DeviceKind] = Counter()
    for box in found.values():
        counts[box.kind] += box.count
    assert counts == Counter(device.kind for device in whole.devices)
    for box in found.values():
        if box.kind is DeviceKind.GPU:
            leaving = sum(link.count for link in whole.links if link.source == box.name)
            assert sum(line.count for line in lines if line.source == box.name) == leaving


@given(st.permutations(range(4)), st.integers(0, 3))
def test_a_switch_with_a_slower_link_is_not_hidden_among_its_like(
    order: list[int], slow: int
) -> None:
    gpus = [Device(f"gpu{index}", DeviceKind.GPU) for index in range(4)]
    switches = [Device(f"s{one}", DeviceKind.NETWORK_SWITCH, -1) for one in order]
    links = [
        Link(
            gpu.name,
            switch.name,
            LinkKind.ROCE,
            1e9 if switch.name == f"s{slow}" and gpu is gpus[0] else 5e9,
        )
        for gpu in gpus
        for switch in switches
    ]
    found = boxes(Topology("planes", (*gpus, *switches), tuple(links)))
    assert sorted(box.count for box in found if box.kind is DeviceKind.NETWORK_SWITCH) == [1, 3]


def test_a_link_between_classes_is_what_one_of_the_lower_has() -> None:
    tree = fat_tree([16, 4, 4], WIRE).topology()
    assert labels(tree) == ["256 GPUs", "16 leaves", "64 spines", "64 cores"]
    line = next(line for line in condensed(tree)[1] if line.source.startswith("level2"))
    assert (line.count, line.bytes_per_second, line.back) == (4, 200e9, None)


def test_of_many_gpus_that_are_joined_to_each_other_the_links_are_counted() -> None:
    (box,) = boxes(torus((8, 8), WIRE).topology())
    assert (box.label, box.detail) == (
        "64 GPUs",
        "gpu0 ... gpu63, 4 links each to others of them",
    )


def test_machines_are_told_by_the_leaf_they_are_on() -> None:
    cluster = compose(load_topology("hgx-h100"), 16, "ib-ndr-400x8", fat_tree([16, 8], WIRE))
    texts = labels(cluster)
    assert [text for text in texts if "machine" in text] == ["machine 1", "… 14 more machines"]
    assert [text for text in texts if "lea" in text] == ["leaf 0", "… 7 more leaves"]


@pytest.mark.parametrize("ranks", [MOST_SEPARATE, MOST_SEPARATE + 1])
def test_few_gpus_keep_a_box_each(ranks: int) -> None:
    texts = labels(single_switch(ranks, WIRE).topology())
    assert len(texts) == (MOST_SEPARATE + 1 if ranks == MOST_SEPARATE else 2)


def test_a_link_that_is_down_sets_a_machine_apart() -> None:
    cluster = compose(load_topology("hgx-h100"), 4, "ib-ndr-400x8")
    broken = next(
        link for link in cluster.links if link.source == "n2.gpu0" and "nvswitch" in link.target
    )
    links = tuple(
        Link(
            *(link.source, link.target, link.kind),
            link.bytes_per_second,
            None,
            link.count,
            LinkState.DOWN,
        )
        if link is broken
        else link
        for link in cluster.links
    )
    found = {
        (box.label, box.detail)
        for box in boxes(Topology("cluster", cluster.devices, links))
        if box.whole
    }
    assert found == {("… 2 more machines", "like machine 0"), ("machine 2", "8 GPUs, 8 NICs")}


def six_gpus(machine: int, pairs: list[tuple[int, int]]) -> tuple[list[Device], list[Link]]:
    devices = [Device(f"n{machine}.gpu{place}", DeviceKind.GPU, machine) for place in range(6)]
    both = pairs + [(target, source) for source, target in pairs]
    links = [
        Link(devices[one].name, devices[other].name, LinkKind.NVLINK, 25e9)
        for one, other in both
    ]
    return devices, links


def test_a_machine_is_like_another_only_if_the_same_devices_are_joined() -> None:
    triangles = [(0, 1), (1, 2), (2, 0), (3, 4), (4, 5), (5, 3)]
    ring = [(place, (place + 1) % 6) for place in range(6)]
    built = [
        six_gpus(machine, pairs) for machine, pairs in enumerate((triangles, ring, triangles))
    ]
    devices = tuple(device for listed, _ in built for device in listed)
    links = tuple(link for _, listed in built for link in listed)
    found = boxes(Topology("three", devices, links))
    assert [(box.label, box.detail) for box in found if box.whole] == [
        ("machine 1", "6 GPUs"),
        ("machine 2", "like machine 0"),
    ]


def test_a_rate_that_is_not_known_of_one_link_is_not_known_of_their_sum() -> None:
    devices = (Device("gpu0", DeviceKind.GPU), Device("gpu1", DeviceKind.GPU))
    links = [
        Link("gpu0", "gpu1", LinkKind.NVLINK, 1e11, count=4),
        Link("gpu0", "gpu1", LinkKind.NVLINK),
    ]
    (line,) = condensed(Topology("part", devices, tuple(links)))[1]
    assert (line.count, line.bytes_per_second, line.back) == (5, None, (0, None))


def words_to_the_switch(topology: Topology) -> set[str]:
    return {line.label for line in laid_out(topology).lines}


def test_no_number_is_given_of_links_that_were_not_counted() -> None:
    assert words_to_the_switch(on_nvswitches(4, counted=False)) == {
        "number not stated, 50 GB/s",
        "",
    }
    assert words_to_the_switch(on_nvswitches(72, counted=False)) == {
        "number not stated, 50 GB/s each"
    }


def test_one_link_that_was_not_counted_leaves_the_sum_open() -> None:
    found = on_nvswitches(1, counted=True)
    more = replace(
        found, links=(*found.links, replace(found.links[0], attributes={"count_known": False}))
    )
    (words,) = words_to_the_switch(more)
    assert "number not stated" in words
