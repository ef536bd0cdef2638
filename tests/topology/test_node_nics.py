"""NICs of a network in one machine: its own where they agree, else new ones in assumed places."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ccbench.report.topology_layout import laid_out
from ccbench.topology.catalog import load_catalog
from ccbench.topology.composition import cluster, compose
from ccbench.topology.diagnosis import diagnose
from ccbench.topology.graph import Device, DeviceKind, Link, LinkKind, LinkState, Topology

KINDS = {
    "gpu": DeviceKind.GPU, "cpu": DeviceKind.CPU, "nic": DeviceKind.NIC, "sw": DeviceKind.PCIE_SWITCH,
}  # fmt: skip


def machine(*pairs: str, **attributes: dict[str, Any]) -> Topology:
    """Devices named in pairs such as ``gpu0 cpu0``, joined by PCIe of 31.5 GB/s."""
    names = dict.fromkeys(name for pair in pairs for name in pair.split())
    devices = [
        Device(name, KINDS[name.rstrip("0123456789")], attributes=attributes.get(name, {})) for name in names
    ]
    links = [
        Link(one, other, LinkKind.PCIE, 31.5e9)
        for pair in pairs
        for one, other in (pair.split(), pair.split()[::-1])
    ]
    return Topology("box", tuple(devices), tuple(links))


def own(**attributes: dict[str, Any]) -> Topology:
    return machine("gpu0 cpu0", "gpu1 cpu0", "nic0 cpu0", "nic1 cpu0", **attributes)


def said(made: Topology) -> list[tuple[str, str]]:
    return [(notice.kind, notice.text) for notice in made.notices]


def rates(made: Topology) -> set[float]:
    return {nic.attributes["bytes_per_second"] for nic in made.of_kind(DeviceKind.NIC)}


def place(made: Topology, nic: str) -> list[str]:
    return [link.target for link in made.links if link.source == nic]


def test_own_nics_that_agree_are_used_without_a_word() -> None:
    node = own(nic0={"bytes_per_second": 25e9}, nic1={"bytes_per_second": 25e9, "up": True})
    assert compose(node, 1, "ib-hdr-200x2") == node


def test_own_nics_of_another_rate_are_spoken_of_and_the_networks_rate_counts() -> None:
    node = own(nic0={"bytes_per_second": 12.5e9}, nic1={"bytes_per_second": 25e9})
    made = compose(node, 1, "ib-hdr-200x2")
    assert said(made) == [
        ("contradiction", "nic0 of box: 100 Gb/s, ib-hdr-200x2 says 200: the latter is taken")
    ]
    assert rates(made) == {25e9}


def test_the_rate_that_an_nccl_file_states_is_a_rate() -> None:
    rate = {"net_bytes_per_second": 12.5e9}
    made = compose(own(nic0=rate, nic1=rate), 1, "ib-hdr-200x2")
    assert said(made)[0][1].startswith("nic0, nic1 of box: 100 Gb/s")
    assert rates(made) == {25e9}


def test_slots_that_are_slower_than_the_ports_are_spoken_of() -> None:
    made = compose(own(), 1, "ib-ndr-400x2")
    assert said(made) == [
        (
            "contradiction",
            "slots of nic0, nic1 in box carry 31.5 GB/s, less than the 50 GB/s of a port of ib-ndr-400x2: "
            "both stay as they are",
        )
    ]


def test_no_nic_that_is_down_is_made_part_of_a_cluster() -> None:
    by_word = own(nic0={"up": False, "bytes_per_second": 25e9})
    by_links = own()
    links = [
        replace(link, state=LinkState.DOWN) if "nic0" in (link.source, link.target) else link
        for link in by_links.links
    ]
    for node in (by_word, replace(by_links, links=tuple(links))):
        made = compose(node, 2, "ib-hdr-200x2")
        assert all(nic.attributes.get("up") is not False for nic in made.of_kind(DeviceKind.NIC))
        assert said(made)[0] == (
            "contradiction",
            "box has 2 of its own NICs (nic0 down), ib-hdr-200x2 says 2: the latter are shown",
        )
        assert cluster(node, 2, "ib-hdr-200x2").route([0], [2]).size


CASCADE = machine("gpu0 sw1", "gpu1 sw2", "gpu2 sw2", "sw1 sw0", "sw2 sw0", "sw0 cpu0")


@pytest.mark.parametrize(
    ("node", "nics", "places"),
    [
        (CASCADE, 1, [["cpu0"]]),
        (CASCADE, 3, [["sw1"], ["sw2"], ["sw2"]]),
        (machine("gpu0 cpu0", "gpu1 cpu1", "gpu2 cpu1", "cpu0 cpu1"), 1, [["cpu1"]]),
        (load_catalog("pcie4-x16"), 3, [["cpu0"], ["cpu1"], ["pcie3"]]),
    ],
)
def test_a_nic_hangs_on_the_switch_of_its_gpus_or_the_processor_of_most(
    node: Topology, nics: int, places: list[list[str]]
) -> None:
    made = compose(node, 1, f"ib-hdr-200x{nics}")
    assert [place(made, f"nic{number}") for number in range(nics)] == places


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=6), st.integers(1, 6), st.randoms(use_true_random=False)
)
def test_the_order_of_links_does_not_move_a_nic_of_cascaded_switches(
    depths: list[int], nics: int, random: Any
) -> None:
    pairs = ["sw0 cpu0"]
    for gpu, depth in enumerate(depths):
        chain = ["sw0", *(f"sw{10 * (gpu + 1) + step}" for step in range(depth)), f"gpu{gpu}"]
        pairs += [f"{below} {above}" for above, below in itertools.pairwise(chain)]
    node = machine(*pairs)
    links = list(node.links)
    random.shuffle(links)
    one, other = (compose(box, 1, f"ib-hdr-200x{nics}") for box in (node, replace(node, links=tuple(links))))
    for number in range(nics):
        assert place(one, f"nic{number}") == place(other, f"nic{number}") != []


@pytest.mark.parametrize(
    ("name", "network"), [("a100-pcie-bridge", "roce-100x1"), ("pcie4-x16", "ib-hdr-200x1")]
)
def test_no_advice_is_given_on_places_that_were_assumed(name: str, network: str) -> None:
    made = compose(load_catalog(name), 1, network)
    assert "assumed" in {kind for kind, _ in said(made)}
    assert "gpu_far_from_nics" not in {finding.kind for finding in diagnose(made)}
    stated = replace(made, devices=tuple(replace(device, attributes={}) for device in made.devices))
    assert "gpu_far_from_nics" in {finding.kind for finding in diagnose(stated)}


def test_a_nic_on_a_gpu_for_want_of_pcie_is_said_and_drawn_as_assumed() -> None:
    made = compose(load_catalog("hgx-h100"), 1, "ib-ndr-400x8")
    assert said(made) == [
        (
            "assumed",
            "where the NICs of ib-ndr-400x8 hang is not known: each is put on the GPUs it serves, for no "
            "PCIe is shown, in a slot as fast as its port",
        )
    ]
    boxes = [box for box in laid_out(made).boxes.values() if box.kind is DeviceKind.NIC]
    assert {box.detail for box in boxes} == {"assumed"}


def test_a_new_nic_never_takes_the_name_of_another_device() -> None:
    node = machine("gpu0 cpu0", "gpu1 cpu0")
    renamed = replace(
        node,
        devices=tuple(replace(one, name="nic0") if one.name == "cpu0" else one for one in node.devices),
        links=tuple(
            replace(
                link, source=link.source.replace("cpu0", "nic0"), target=link.target.replace("cpu0", "nic0")
            )
            for link in node.links
        ),
    )
    made = compose(renamed, 1, "ib-hdr-200x2")
    assert [device.name for device in made.devices] == ["gpu0", "nic0", "gpu1", "nic1", "nic2"]
    assert (place(made, "nic1"), place(made, "nic2")) == (["nic0"], ["nic0"])
