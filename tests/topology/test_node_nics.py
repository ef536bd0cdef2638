"""NICs of a network in one machine: its own where they agree, else new ones in assumed places."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.errors import MachineError
from ccbench.report.topology_figure import picture
from ccbench.topology.composition import cluster, compose
from ccbench.topology.diagnosis import diagnose
from ccbench.topology.files import load_catalog
from ccbench.topology.graph import DeviceKind, LinkKind, LinkState, Topology
from ccbench.topology.node_nics import parse_network
from tests.topology.graphs import graph, with_links

machine = partial(graph, rate=31.5e9)


def own(**attributes: Any) -> Topology:
    return machine("gpu0 cpu0", "gpu1 cpu0", "nic0 cpu0", "nic1 cpu0", **attributes)


def said(made: Topology) -> list[tuple[str, str]]:
    return [(warning.kind, warning.text) for warning in made.warnings]


def place(made: Topology, nic: str) -> list[str]:
    return [link.target for link in made.links if link.source == nic]


def test_own_nics_that_agree_are_used_without_a_word() -> None:
    node = own(nic0={"bytes_per_second": 25e9}, nic1={"bytes_per_second": 25e9, "up": True})
    assert compose(node, 1, "ib-hdr-200x2") == node


@pytest.mark.parametrize("word", ["bytes_per_second", "net_bytes_per_second"])
def test_own_nics_of_another_rate_are_spoken_of_and_the_networks_rate_counts(word: str) -> None:
    made = compose(own(nic0={word: 12.5e9}, nic1={word: 25e9}), 1, "ib-hdr-200x2")
    assert said(made) == [
        ("contradiction", "nic0 of box: 100 Gb/s, ib-hdr-200x2 says 200: the latter is taken")
    ]
    assert made.device("nic0").attributes["bytes_per_second"] == 25e9


@pytest.mark.parametrize(
    "node", [own(nic0={"up": False}), with_links(own(), "nic0", LinkState.DOWN)]
)
def test_no_nic_that_is_down_is_made_part_of_a_cluster(node: Topology) -> None:
    made = compose(node, 2, "ib-hdr-200x2")
    assert all(nic.attributes.get("up") is not False for nic in made.of_kind(DeviceKind.NIC))
    text = "box has 2 of its own NICs (nic0 down), ib-hdr-200x2 says 2: the latter are shown"
    assert said(made)[0] == ("contradiction", text)
    assert cluster(node, 2, "ib-hdr-200x2").route([0], [2]).size


CASCADE = machine(
    "gpu0 pcie1", "gpu1 pcie2", "gpu2 pcie2", "pcie1 pcie0", "pcie2 pcie0", "pcie0 cpu0"
)


@pytest.mark.parametrize(
    ("node", "nics", "places"),
    [
        (CASCADE, 1, [["cpu0"]]),
        (CASCADE, 3, [["pcie1"], ["pcie2"], ["pcie2"]]),
        (machine("gpu0 cpu0", "gpu1 cpu1", "gpu2 cpu1", "cpu0 cpu1"), 1, [["cpu1"]]),
        (load_catalog("pcie4-x16"), 1, [["cpu0"]]),
        (load_catalog("pcie4-x16"), 2, [["cpu0"], ["cpu1"]]),
        (load_catalog("pcie4-x16"), 3, [["cpu0"], ["cpu1"], ["pcie3"]]),
    ],
)
def test_a_nic_hangs_on_the_switch_of_its_gpus_or_the_processor_of_most(
    node: Topology, nics: int, places: list[list[str]]
) -> None:
    made = compose(node, 1, f"ib-hdr-200x{nics}")
    assert [place(made, f"nic{number}") for number in range(nics)] == places


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=6),
    st.integers(1, 6),
    st.randoms(use_true_random=False),
)
def test_the_order_of_links_does_not_move_a_nic_of_cascaded_switches(
    depths: list[int], nics: int, random: Any
) -> None:
    pairs = ["pcie0 cpu0"]
    for gpu, depth in enumerate(depths):
        chain = [
            "pcie0",
            *(f"pcie{10 * (gpu + 1) + step}" for step in range(depth)),
            f"gpu{gpu}",
        ]
        pairs += [f"{below} {above}" for above, below in itertools.pairwise(chain)]
    node = machine(*pairs)
    links = list(node.links)
    random.shuffle(links)
    one, other = (
        compose(box, 1, f"ib-hdr-200x{nics}")
        for box in (node, replace(node, links=tuple(links)))
    )
    for number in range(nics):
        assert place(one, f"nic{number}") == place(other, f"nic{number}") != []


@pytest.mark.parametrize(
    ("name", "network"), [("a100-pcie-bridge", "roce-100x1"), ("pcie4-x16", "ib-hdr-200x1")]
)
def test_no_advice_is_given_on_places_that_were_assumed(name: str, network: str) -> None:
    made = compose(load_catalog(name), 1, network)
    assert "assumed" in {kind for kind, _ in said(made)}
    assert "gpu_far_from_nics" not in {finding.kind for finding in diagnose(made)}
    stated = replace(
        made, devices=tuple(replace(device, attributes={}) for device in made.devices)
    )
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
    assert any("places of NICs assumed" in text.get_text() for text in picture(made).texts)


def test_a_new_nic_never_takes_the_name_of_another_device() -> None:
    # The machine's only processor is called nic0.
    node = graph("gpu0 nic0", "gpu1 nic0", rate=31.5e9)
    gpu0, processor, gpu1 = node.devices
    node = replace(node, devices=(gpu0, replace(processor, kind=DeviceKind.CPU), gpu1))
    made = compose(node, 1, "ib-hdr-200x2")
    assert [device.name for device in made.devices] == ["gpu0", "nic0", "gpu1", "nic1", "nic2"]
    assert (place(made, "nic1"), place(made, "nic2")) == (["nic0"], ["nic0"])


@pytest.mark.parametrize(
    ("text", "kind", "rate"),
    [
        ("ib-ndr-400x8", LinkKind.INFINIBAND, 50e9),
        ("ib-ndr-400x8/fat-tree:16x8:2", LinkKind.INFINIBAND, 50e9),
        ("ib-ndr-400x8/rails", LinkKind.INFINIBAND, 50e9),
        ("roce-100x8", LinkKind.ROCE, 12.5e9),
        ("efa-100x8", LinkKind.EFA, 12.5e9),
        ("tcp-2.5x8", LinkKind.ETHERNET, 312.5e6),
        ("slingshot-200x8", LinkKind.ETHERNET, 25e9),
    ],
)
def test_networks_are_read_and_written(text: str, kind: LinkKind, rate: float) -> None:
    network = parse_network(text)
    assert (str(network), network.kind, network.bytes_per_second, network.nics) == (
        text,
        kind,
        rate,
        8,
    )


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "'' is not <kind>-<Gb/s>x<NICs per node>"),
        ("ib-ndr-400", "write for example ib-ndr-400x8"),
        ("ib-ndr-400x8\n", "is not <kind>"),
        ("ib-NDR-400x8", "lower case only; write ib-ndr-400x8"),
        ("ib-nrd-400x8", "did you mean 'ib-ndr'"),
        ("zzz-400x8", "one of ib, ib-fdr"),
        ("tcp-0x1", "out of range"),
        ("tcp-25x0", "out of range"),
        ("ib-ndr-400x8/rails:8", "ib-ndr-400x8/fat-tree:16x8"),
        ("ib-ndr-400x8/fat-tre:4", "ib-ndr-400x8/fat-tree:16x8"),
        ("tcp-999999x1", "out of range"),
        ("tcp-" + "9" * 100 + "x1", "is not <kind>"),
    ],
)
def test_a_network_that_cannot_be_read_is_refused_in_one_line(
    text: str, complaint: str
) -> None:
    with pytest.raises(MachineError, match=complaint) as caught:
        parse_network(text)
    assert "\n" not in str(caught.value)
