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
from ccbench.topology.composition import compose
from ccbench.topology.files import load_catalog
from ccbench.topology.graph import Topology
from ccbench.topology.node_nics import parse_network
from tests.topology.graphs import graph

machine = partial(graph, rate=31.5e9)


def own(**attributes: Any) -> Topology:
    return machine("gpu0 cpu0", "gpu1 cpu0", "nic0 cpu0", "nic1 cpu0", **attributes)


def said(made: Topology) -> list[tuple[str, str]]:
    return [(warning.kind, warning.text) for warning in made.warnings]


def place(made: Topology, nic: str) -> list[str]:
    return [link.target for link in made.links if link.source == nic]


@pytest.mark.parametrize("word", ["bytes_per_second", "net_bytes_per_second"])
def test_own_nics_of_another_rate_are_spoken_of_and_the_networks_rate_counts(word: str) -> None:
    made = compose(own(nic0={word: 12.5e9}, nic1={word: 25e9}), 1, "ib-hdr-200x2")
    assert said(made) == [
        ("contradiction", "nic0 of box: 100 Gb/s, ib-hdr-200x2 says 200: the latter is taken")
    ]
    assert made.by_name["nic0"].attributes["bytes_per_second"] == 25e9


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
    ("text", "complaint"),
    [
        ("", "'' is not <kind>-<Gb/s>x<NICs per node>"),
        ("iwarp-100x8", "write roce for the least time and tcp for the most"),
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
