"""A picture gives no number of links that the source did not give."""

from __future__ import annotations

from dataclasses import replace

from ccbench.report.topology_boxes import condensed, words
from ccbench.topology.graph import Device, DeviceKind, Link, LinkKind, Topology, TopologyClass


def switched(gpus: int, *, counted: bool) -> Topology:
    """``gpus`` GPUs with two links each to one NVSwitch."""
    names = [f"gpu{index}" for index in range(gpus)]
    attributes = {} if counted else {"count_known": False}
    links = tuple(
        Link(*way, LinkKind.NVLINK, 1e11, count=2, attributes=attributes)
        for name in names
        for way in ((name, "nvswitch0"), ("nvswitch0", name))
    )
    devices = (*(Device(name, DeviceKind.GPU) for name in names), Device("nvswitch0", DeviceKind.NVSWITCH))
    return Topology("t", devices, links, TopologyClass.NVSWITCH)


def on_the_switch(topology: Topology) -> str:
    (switch,) = condensed(topology).of_kind(DeviceKind.NVSWITCH)
    return words(switch)[1]


def test_a_switch_says_how_many_links_each_gpu_has_where_the_source_does() -> None:
    assert on_the_switch(switched(4, counted=True)) == "2 links per GPU · 100 GB/s each way"


def test_a_switch_gives_no_number_of_links_that_were_not_counted() -> None:
    for gpus in (4, 72):
        assert on_the_switch(switched(gpus, counted=False)) == "links per GPU not stated · 100 GB/s each way"


def test_one_link_that_was_not_counted_leaves_the_sum_open() -> None:
    found = switched(1, counted=True)
    more = replace(found, links=(*found.links, replace(found.links[0], attributes={"count_known": False})))
    assert on_the_switch(more).startswith("links per GPU not stated")
