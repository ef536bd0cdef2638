"""Small machines, written as the pairs of devices that a link joins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ccbench.topology.graph import Device, DeviceKind, Link, LinkKind, LinkState, Topology

KINDS = {
    "gpu": DeviceKind.GPU,
    "cpu": DeviceKind.CPU,
    "nic": DeviceKind.NIC,
    "pcie": DeviceKind.PCIE_SWITCH,
    "nvs": DeviceKind.NVSWITCH,
    "net": DeviceKind.NETWORK_SWITCH,
}


def graph(
    *pairs: str,
    kind: LinkKind = LinkKind.PCIE,
    kinds: Mapping[str, LinkKind] | None = None,
    rate: float | None = None,
    **attributes: dict[str, Any],
) -> Topology:
    """``gpu0 pcie0`` is a link both ways, of its own kind or else of ``kind``; attributes go by device."""
    names = dict.fromkeys(name for pair in pairs for name in pair.split())
    devices = tuple(
        Device(name, KINDS[name.rstrip("0123456789")], attributes=attributes.get(name, {}))
        for name in names
    )
    links: list[Link] = []
    for pair in pairs:
        one, other = pair.split()
        links += Link(one, other, (kinds or {}).get(pair, kind), rate).both_ways()
    return Topology("box", devices, tuple(links))


def with_links(topology: Topology, at: str, state: LinkState) -> Topology:
    """The same machine, all links of the device ``at`` in this state; "" for every link there is."""
    links = [
        replace(link, state=state) if not at or at in (link.source, link.target) else link
        for link in topology.links
    ]
    return replace(topology, links=tuple(links))


def the_link(topology: Topology, source: str, target: str, kind: LinkKind) -> Link:
    """The only link of this kind from one device to the other."""
    ends = (source, target, kind)
    (found,) = (
        link for link in topology.links if (link.source, link.target, link.kind) == ends
    )
    return found
