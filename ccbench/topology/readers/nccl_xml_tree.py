"""The PCIe tree of an NCCL or RCCL topology file: devices, the links of the tree, what looks wrong in it.

Links between GPUs are another matter (nccl_xml): they name their ends by bus id and can only be drawn
when every device is known.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ccbench.topology.graph import Device, DeviceKind, Link, LinkKind, Notice, both_ways
from ccbench.topology.pci import CODING, bytes_per_second, model_of
from ccbench.topology.text import whole
from ccbench.topology.xml import Element

ACCEPTED = frozenset(
    {f"{speed} GT/s" for speed in ("2.5", "5", "8", "16", "32")}
    | {f"{speed} GT/s PCIe" for speed in ("2.5", "5.0", "8.0", "16.0", "32.0", "64.0")}
)
"""Spellings that NCCL reads (kvDictPciGen in src/graph/topo.cc); it takes any other for 8 GT/s."""

GPU_CLASSES = ("0x03", "0x12")  # display controllers; processing accelerators (AMD since MI300)
NIC_CLASSES = ("0x0200", "0x0207")  # Ethernet and InfiniBand; a Wi-Fi card (0x0280) is no NIC to count
NETWORK_CLASSES = ("0x02",)
BRIDGE_CLASSES = ("0x0604", "0x080100")  # 0x080100: data-direct function of a ConnectX-8, which NCCL takes so
SWITCH_CLASSES = ("0x068000",)

FASTEST_NET_MBPS = 1_600_000
"""Twice the fastest port sold (800 Gb/s): what a file says beyond it was made up."""

MOST_SOCKETS = 16
"""NUMA nodes of one host that are joined with each other; a file with more of them is no machine."""

LONGEST_TEXT = 200
"""Characters of a notice: it quotes the file, and a damaged file can hold anything."""

_KNOWN = frozenset({"cpu", "pci", "nic", "net", "gpu", "nvlink", "c2c", "xgmi", "pcilink"})
_SPEED = re.compile(r"\s*([0-9]{1,3}(?:\.[0-9]{1,3})?)\s*GT/s", re.ASCII | re.IGNORECASE)
_REAL = re.compile(r"-?[0-9]{1,15}(?:\.[0-9]{1,15})?(?:[eE]-?[0-9]{1,2})?", re.ASCII)
_GROUP = re.compile(r"[0-9a-fA-F]{1,8}", re.ASCII)
_NAMES = {
    DeviceKind.GPU: "gpu",
    DeviceKind.NIC: "nic",
    DeviceKind.NVSWITCH: "nvswitch",
    DeviceKind.PCIE_SWITCH: "pcie",
}


class PcieLink:
    """The link above a ``<pci>`` with these ``attributes``; ``speed`` and ``width`` as printed.

    gigatransfers: per second and lane. lanes: its width. bytes_per_second: one direction, after coding. None
    where not stated; a width of 0 and a speed no PCIe has are as good as not stated.
    """

    def __init__(self, attributes: Mapping[str, str]) -> None:
        self.speed, self.width = attributes.get("link_speed", ""), attributes.get("link_width", "")
        match = _SPEED.match(self.speed)
        value = float(match[1]) if match else None
        self.gigatransfers = value if value in CODING else None
        lanes = whole(self.width) or 0
        self.lanes = lanes if 1 <= lanes <= 32 else None
        self.bytes_per_second = bytes_per_second(self.gigatransfers, self.lanes)
        self.origin = f"stated: {self.speed} x{self.width}, less the coding"
        if self.bytes_per_second is None:
            self.origin = "speed or width not stated"


@dataclass(frozen=True)
class Gpu:
    """A GPU of the file. ``detail`` is its ``<gpu>``; None where a hand-written file has only ``<pci>``."""

    name: str
    node: int
    bus_id: str
    cpu: str
    pci: Element
    detail: Element | None

    def says(self, attribute: str) -> str:
        """An attribute of ``<gpu>``; empty where it is not stated."""
        return self.detail.attributes.get(attribute, "") if self.detail is not None else ""


@dataclass(frozen=True)
class _Place:
    """Where in the tree an element stands. ``above``: the links from the CPU down to here."""

    node: int
    cpu: str
    parent: str
    numa_node: int | None
    above: tuple[tuple[Element, PcieLink], ...] = ()


def bus_id_of(text: str) -> str:
    """Return a bus id as it is compared: without blanks, in lower case."""
    return text.strip().lower()


def cores_of(mask: str) -> int | None:
    """Return how many logical cores a mask such as ``ffff,0000ffff`` names; None where it is none."""
    groups = mask.split(",")
    if len(groups) > 1024 or not all(map(_GROUP.fullmatch, groups)):
        return None
    return sum(int(group, 16).bit_count() for group in groups)


class Tree:
    """What is collected on the way through ``<system>``.

    hosts: host_hash -> index, in order. buses: (host, bus id) -> name. pcis, nets: elements of the file.
    unclear: PCI devices that may be anything.
    """

    def __init__(self, system: Element) -> None:
        self.cpus = system.named("cpu")
        self.devices: list[Device] = []
        self.links: list[Link] = []
        self.notices: list[Notice] = []
        self.gpus: list[Gpu] = []
        self.pcis: list[Element] = []
        self.nets: list[Element] = []
        self.buses: dict[tuple[int, str], str] = {}
        self.unclear = 0
        self._names: set[str] = set()
        self._counts: dict[tuple[int, str], int] = {}
        self._suspected: set[int] = set()
        hashes = dict.fromkeys(cpu.attributes.get("host_hash", "") for cpu in self.cpus)
        self.hosts = {host: index for index, host in enumerate(hashes)}
        stated = [whole(cpu.attributes.get("numaid", "")) or 0 for cpu in self.cpus]
        # Above every number the file states, so that no later <cpu> finds its name taken.
        self._spare = itertools.count(max(stated, default=-1) + 1)
        self._note_unknown(system)
        if len(self.hosts) > 1:
            text = f"{len(self.hosts)} hosts in one file: bus ids and device numbers count within each"
            self.note("several_hosts", text, system)
        for cpu in self.cpus:
            self._cpu(cpu)
        self._join_sockets()

    @cached_property
    def gpu_names(self) -> set[str]:
        """Names of all GPUs."""
        return {gpu.name for gpu in self.gpus}

    def note(self, kind: str, text: str, element: Element) -> None:
        """Add a notice about ``element``, on one line and not longer than people read."""
        self.notices.append(Notice(kind, " ".join(text[:LONGEST_TEXT].split()), element.line))

    def name(self, node: int, word: str) -> str:
        """Return the next free name such as ``gpu3``, with the host in front where there are several."""
        index = self._counts.get((node, word), 0)
        self._counts[node, word] = index + 1
        return self._prefixed(node, f"{word}{index}")

    def _prefixed(self, node: int, name: str) -> str:
        return f"n{node}.{name}" if len(self.hosts) > 1 and node >= 0 else name

    def _note_unknown(self, system: Element) -> None:
        unknown: dict[str, Element] = {}
        for element in system.walk():
            if element is not system and element.tag not in _KNOWN:
                unknown.setdefault(element.tag, element)
        for tag, element in unknown.items():
            self.note("unsupported", f"<{tag}> is left out", element)
        for child in system.children:
            if child.tag in ("pci", "nic", "gpu", "net"):
                self.note("damaged_line", f"<{child.tag}> outside any <cpu> is left out", child)

    def _cpu(self, element: Element) -> None:
        attributes = element.attributes
        node = self.hosts[attributes.get("host_hash", "")]
        numa = whole(attributes.get("numaid", ""))
        name = self._prefixed(node, f"cpu{numa}")
        if numa is None or numa < 0:
            text = f"NUMA node {attributes.get('numaid', '')!r}: the system did not say which one"
            self.note("not_visible", text, element)
            name = self._prefixed(node, f"cpu{next(self._spare)}")
        elif name in self._names:
            self.note("contradiction", f"NUMA node {numa} stands in the file twice", element)
            name = self._prefixed(node, f"cpu{next(self._spare)}")
        said: dict[str, Any] = {key: value for key, value in attributes.items() if key != "numaid"}
        cores = cores_of(attributes.get("affinity", ""))
        if cores is not None:
            said["cores"] = cores
        self._names.add(name)
        self.devices.append(Device(name, DeviceKind.CPU, node, numa_node=numa, attributes=said))
        self._children(element, _Place(node, name, name, numa))

    def _children(self, element: Element, place: _Place) -> None:
        for child in element.children:
            if child.tag == "pci":
                self._pci(child, place)
            elif child.tag == "nic" and place.parent == place.cpu:
                # Network interfaces that no PCI device stands for: virtual ones, or their place is hidden.
                for net in child.named("net"):
                    name = self.name(place.node, "nic")
                    said = {**self._net_attributes([net]), "pci": False}
                    self.devices.append(Device(name, DeviceKind.NIC, place.node, "", place.numa_node, said))
                    origin = "no PCI device stated for this interface"
                    self.links += both_ways(Link(place.cpu, name, LinkKind.PCIE, origin=origin))

    def _kind(self, element: Element) -> DeviceKind | None:
        said, bus_id = element.attributes.get("class", "").lower(), element.attributes.get("busid", "")
        if element.named("gpu") or said.startswith(GPU_CLASSES):
            return DeviceKind.GPU
        if element.named("nic") or said.startswith(NETWORK_CLASSES):
            return DeviceKind.NIC
        if said.startswith(SWITCH_CLASSES):
            return DeviceKind.NVSWITCH
        if element.named("pci") or said.startswith(BRIDGE_CLASSES):
            return DeviceKind.PCIE_SWITCH
        if said:
            self.note("unsupported", f"PCI device {bus_id} of class {said} is left out", element)
        else:
            self.unclear += 1
            text = f"PCI device {bus_id}: class not stated, GPU or NIC cannot be told"
            self.note("not_visible", text, element)
        return None

    def _pci(self, element: Element, place: _Place) -> None:
        self.pcis.append(element)
        kind = self._kind(element)
        if kind is None:
            return
        bus_id = bus_id_of(element.attributes.get("busid", ""))
        details: list[Element | None] = [*element.named("gpu")] if kind is DeviceKind.GPU else []
        if len(details) > 1:
            text = f"{len(details)} <gpu> at {bus_id}: parts of one device, or dies of one package"
            self.note("repeated_bus_id", text, element)
        link = PcieLink(element.attributes)
        chain = (*place.above, (element, link))
        # A partitioned device or a package of several dies is one PCI device with several GPUs.
        for detail in details or [None]:
            name = self.name(place.node, _NAMES[kind])
            other = self.buses.setdefault((place.node, bus_id), name)
            if other != name and len(details) < 2:
                self.note("repeated_bus_id", f"bus id {bus_id!r} of {name} is that of {other} too", element)
            said: dict[str, Any] = {key: text for key, text in element.attributes.items() if key != "busid"}
            if kind is DeviceKind.GPU:
                self.gpus.append(Gpu(name, place.node, bus_id, place.cpu, element, detail))
                said |= detail.attributes if detail is not None else {}
                model = model_of(element.attributes.get("vendor", ""), element.attributes.get("device", ""))
                said |= {"model": model} if model is not None else {}
            elif kind is DeviceKind.NIC:
                nets = [net for nic in element.named("nic") for net in nic.named("net")]
                said |= {**self._net_attributes(nets), "pci": True}
            self._link_above(element, link, name, place)
            if kind is DeviceKind.GPU:
                self._suspect(chain)
            self.devices.append(Device(name, kind, place.node, bus_id, place.numa_node, said))
        self._children(element, _Place(place.node, place.cpu, name, place.numa_node, chain))

    def _link_above(self, element: Element, link: PcieLink, name: str, place: _Place) -> None:
        speed, width = link.speed, link.width
        if link.gigatransfers is None:
            kind = "unknown_spelling" if speed.strip() and "unknown" not in speed.lower() else "not_visible"
            self.note(kind, f"PCIe speed {speed!r} above {name} says no rate (NCCL takes 8 GT/s)", element)
        elif speed not in ACCEPTED:
            text = f"PCIe speed {speed!r} above {name} is read as {link.gigatransfers:g} GT/s (NCCL takes 8)"
            self.note("unknown_spelling", text, element)
        if link.lanes is None:
            text = f"PCIe width {width!r} above {name} says no lanes (NCCL takes 16)"
            self.note("not_visible", text, element)
        known = {"gigatransfers": link.gigatransfers, "width": link.lanes}
        said: dict[str, Any] = {"link_speed": speed, "link_width": width}
        said |= {key: value for key, value in known.items() if value is not None}
        rate = link.bytes_per_second
        self.links += both_ways(
            Link(place.parent, name, LinkKind.PCIE, rate, origin=link.origin, attributes=said)
        )

    def _suspect(self, chain: tuple[tuple[Element, PcieLink], ...]) -> None:
        """Notice every hop above a GPU that is hard to believe: one lane, Gen1, or two generations slower."""
        fastest = chain[-1][1].gigatransfers or 0.0
        for element, link in chain:
            speed = link.gigatransfers or math.inf
            odd = link.lanes == 1 or speed <= 2.5 or 4 * speed <= fastest
            if element.line in self._suspected or not odd:
                continue
            self._suspected.add(element.line)
            bus_id, seen = element.attributes.get("busid", ""), f"{link.speed} x{link.width}"
            text = (
                f"{bus_id}: {seen} on the way to a GPU is implausible (virtual or idle port); kept as stated"
            )
            self.note("contradiction", text, element)

    def _net_attributes(self, nets: list[Element]) -> dict[str, Any]:
        """Name, gdr, latency and the rate of all ports together of a NIC with the ports ``nets``."""
        self.nets.extend(nets)
        if not nets:
            return {}
        speeds = [self._net_mbps(net) for net in nets]
        latency = nets[0].attributes.get("latency", "")
        known = [speed for speed in speeds if speed is not None]
        return {
            "name": nets[0].attributes.get("name", ""),
            "net_bytes_per_second": sum(known) * 1e6 / 8 if len(known) == len(nets) else None,
            "gdr": any(net.attributes.get("gdr") == "1" for net in nets),
            "latency_seconds": float(latency) * 1e-6 if _REAL.fullmatch(latency) else None,
            "nets": [dict(net.attributes) for net in nets],
        }

    def _net_mbps(self, net: Element) -> int | None:
        speed, name = net.attributes.get("speed", ""), net.attributes.get("name", "")
        mbps = whole(speed)
        if mbps is None or mbps <= 0:
            text = f"net {name!r}: speed {speed!r} says no rate (NCCL takes 10000 Mb/s)"
            self.note("not_visible", text, net)
            return None
        if mbps > FASTEST_NET_MBPS:
            self.note("contradiction", f"net {name!r}: {mbps} Mb/s is implausible; kept as stated", net)
        return mbps

    def _join_sockets(self) -> None:
        """The NUMA nodes of one host reach each other; the file does not say at what rate."""
        by_node: dict[int, list[str]] = {}
        for device in self.devices:
            if device.kind is DeviceKind.CPU:
                by_node.setdefault(device.node, []).append(device.name)
        for names in by_node.values():
            if len(names) > MOST_SOCKETS:
                text = f"{len(names)} NUMA nodes in one host: the links between them are left out"
                self.notices.append(Notice("contradiction", text))
                continue
            for source, target in itertools.permutations(names, 2):
                origin = "NUMA nodes of one host"
                self.links.append(Link(source, target, LinkKind.INTER_SOCKET, origin=origin))
