"""The PCIe tree of an NCCL or RCCL topology file: devices, the links of the tree, what looks wrong in it.

Links between GPUs are another matter (nccl_xml): they name their ends by bus id and can only be drawn
when every device is known.

Rates of the links that the files name but do not put a number on are datasheet rates in bytes per second of
one link in one direction; the lower constants with which NCCL and RCCL search are what their protocols reach,
not what the link is.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ccbench.topology.classes import OF_CAPABILITY
from ccbench.topology.graph import Device, DeviceKind, Link, LinkKind, Notice
from ccbench.topology.pci import CODING, model_of
from ccbench.topology.text import whole
from ccbench.topology.xml import Element

XGMI: Mapping[str, tuple[float, str]] = {
    "gfx906": (24e9, "RCCL's constant for Vega, an effective rate"),
    "gfx908": (46e9, "23 GT/s x 16 lanes, ROCm documentation of the MI100"),
    "gfx90a": (50e9, "25 GT/s x 16 lanes, ROCm documentation of the MI250"),
    "gfx94": (64e9, "32 GT/s x 16 lanes: Linux, amdgpu_xgmi.h"),
    "gfx95": (76.8e9, "assumed: half of the 153.6 GB/s both ways that is told of the MI350X"),
}
"""Architecture, or how its name begins -> one xGMI link and where that is from. ROCm/rccl, src/graph/topo.h
searches with 24 (Vega), 36 (gfx90a) and 48 GB/s (gfx94x, gfx95x)."""

_OLD_NAMES = {"910": "gfx90a"}  # RCCL wrote the decimal version of the architecture until it wrote the name

ACCEPTED = frozenset(
    {f"{speed} GT/s" for speed in ("2.5", "5", "8", "16", "32")}
    | {f"{speed} GT/s PCIe" for speed in ("2.5", "5.0", "8.0", "16.0", "32.0", "64.0")}
)
"""Spellings that NCCL reads (kvDictPciGen in src/graph/topo.cc); it takes any other for 8 GT/s."""

GENERATIONS: Mapping[float, int] = {speed: index + 1 for index, speed in enumerate(sorted(CODING))}
"""GT/s -> PCIe generation."""

_SPEED = re.compile(r"\s*([0-9]{1,3}(?:\.[0-9]{1,3})?)\s*GT/s", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True)
class PcieLink:
    """The link above a PCI device as its file prints it.

    gigatransfers: per second and lane; None where not stated. width: lanes; None where not stated.
    """

    speed_printed: str
    width_printed: str
    gigatransfers: float | None
    width: int | None

    @property
    def bytes_per_second(self) -> float | None:
        """One direction, after coding; None where speed or width is missing."""
        if self.gigatransfers is None or self.width is None:
            return None
        return self.gigatransfers * 1e9 * self.width / 8 * CODING[self.gigatransfers]

    @property
    def origin(self) -> str:
        """Where the rate is from."""
        if self.bytes_per_second is None:
            return "speed or width not stated"
        return f"stated: {self.speed_printed} x{self.width_printed}, less the coding"


def pcie_link(attributes: Mapping[str, str]) -> PcieLink:
    """Speed and width of a ``<pci>``; a width of 0 and a speed no PCIe has are as good as not stated."""
    speed, width = attributes.get("link_speed", ""), attributes.get("link_width", "")
    match = _SPEED.match(speed)
    value = float(match[1]) if match else None
    lanes = int(width) if re.fullmatch(r"[0-9]{1,2}", width, re.ASCII) else 0
    return PcieLink(speed, width, value if value in CODING else None, lanes if 1 <= lanes <= 32 else None)


def nvlink_rate(sm: str) -> tuple[float | None, str]:
    """Bytes per second of one NVLink of a GPU with ``sm`` as the file prints it, and its origin."""
    rate = OF_CAPABILITY.get(int(sm)) if re.fullmatch(r"[0-9]{2,3}", sm, re.ASCII) else None
    if rate is None:
        return None, "rate not stated"
    return rate, f"datasheet rate of one NVLink at compute capability {int(sm) / 10:.1f}"


def xgmi_rate(gcn: str) -> tuple[float | None, str]:
    """Bytes per second of one xGMI link of a GPU with ``gcn`` (``gfx942``, ``910``), and its origin."""
    name = _OLD_NAMES.get(gcn, gcn if gcn.startswith("gfx") else f"gfx{gcn}")
    for beginning, (rate, origin) in XGMI.items():
        if name.startswith(beginning):
            return rate, origin
    return None, "rate not stated"


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
_REAL = re.compile(r"-?[0-9]{1,15}(?:\.[0-9]{1,15})?(?:[eE]-?[0-9]{1,2})?", re.ASCII)
_GROUP = re.compile(r"[0-9a-fA-F]{1,8}", re.ASCII)


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


@dataclass
class Tree:
    """What is collected on the way through the file.

    hosts: host_hash -> index, in order. spare: numbers for CPUs without one. buses: (host, bus id) -> name.
    suspected: lines of the hops already noticed. unclear: PCI devices that may be anything.
    """

    hosts: dict[str, int]
    spare: Iterator[int]
    devices: list[Device] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)
    notices: list[Notice] = field(default_factory=list)
    gpus: list[Gpu] = field(default_factory=list)
    pcis: list[Element] = field(default_factory=list)
    cpus: list[Element] = field(default_factory=list)
    nets: list[Element] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    gpu_names: set[str] = field(default_factory=set)
    buses: dict[tuple[int, str], str] = field(default_factory=dict)
    counts: dict[tuple[int, str], int] = field(default_factory=dict)
    suspected: set[int] = field(default_factory=set)
    unclear: int = 0

    def note(self, kind: str, text: str, element: Element) -> None:
        """Add a notice about ``element``, on one line and not longer than people read."""
        self.notices.append(Notice(kind, " ".join(text[:LONGEST_TEXT].split()), element.line))

    def name(self, node: int, word: str) -> str:
        """The next free name such as ``gpu3``, with the host in front where there are several."""
        index = self.counts.get((node, word), 0)
        self.counts[node, word] = index + 1
        return self.prefixed(node, f"{word}{index}")

    def prefixed(self, node: int, name: str) -> str:
        """``name``, with the host in front where there are several."""
        return f"n{node}.{name}" if len(self.hosts) > 1 and node >= 0 else name


@dataclass(frozen=True)
class _Place:
    """Where in the tree an element stands. ``above``: the links from the CPU down to here."""

    node: int
    cpu: str
    parent: str
    numa_node: int | None
    above: tuple[tuple[Element, PcieLink], ...] = ()


def bus_id_of(text: str) -> str:
    """A bus id as it is compared: without blanks, in lower case."""
    return text.strip().lower()


def collect(system: Element) -> Tree:
    """Walk through ``<system>``."""
    cpus = system.named("cpu")
    hashes = dict.fromkeys(cpu.attributes.get("host_hash", "") for cpu in cpus)
    stated = [whole(cpu.attributes.get("numaid", "")) for cpu in cpus]
    # Above every number the file states, so that no later <cpu> finds its name taken.
    spare = itertools.count(
        max((number for number in stated if number is not None and number >= 0), default=-1) + 1
    )
    tree = Tree(hosts={host: index for index, host in enumerate(hashes)}, spare=spare)
    _note_unknown(tree, system)
    if len(tree.hosts) > 1:
        text = f"{len(tree.hosts)} hosts in one file: bus ids and device numbers count within each"
        tree.note("several_hosts", text, system)
    for cpu in cpus:
        _cpu(tree, cpu)
    _join_sockets(tree)
    return tree


def _note_unknown(tree: Tree, system: Element) -> None:
    seen = set()
    for element in system.walk():
        if element is not system and element.tag not in _KNOWN and element.tag not in seen:
            seen.add(element.tag)
            tree.note("unsupported", f"<{element.tag}> is left out", element)
    for child in system.children:
        if child.tag in ("pci", "nic", "gpu", "net"):
            tree.note("damaged_line", f"<{child.tag}> outside any <cpu> is left out", child)


def _cpu(tree: Tree, element: Element) -> None:
    attributes = element.attributes
    node = tree.hosts[attributes.get("host_hash", "")]
    numa = whole(attributes.get("numaid", ""))
    if numa is None or numa < 0:
        text = f"NUMA node {attributes.get('numaid', '')!r}: the system did not say which one"
        tree.note("not_visible", text, element)
    name = tree.prefixed(node, f"cpu{numa}")
    if numa is not None and numa >= 0 and name in tree.names:
        tree.note("contradiction", f"NUMA node {numa} stands in the file twice", element)
    if numa is None or numa < 0 or name in tree.names:
        name = tree.prefixed(node, f"cpu{next(tree.spare)}")
    said: dict[str, Any] = {key: value for key, value in attributes.items() if key != "numaid"}
    cores = cores_of(attributes.get("affinity", ""))
    if cores is not None:
        said["cores"] = cores
    tree.names.add(name)
    tree.cpus.append(element)
    tree.devices.append(Device(name, DeviceKind.CPU, node, numa_node=numa, attributes=said))
    _children(tree, element, _Place(node, name, name, numa))


def cores_of(mask: str) -> int | None:
    """How many logical cores an affinity mask such as ``ffff,0000ffff`` names; None where it is none."""
    groups = mask.split(",")
    if len(groups) > 1024 or not all(map(_GROUP.fullmatch, groups)):
        return None
    return sum(int(group, 16).bit_count() for group in groups)


def _children(tree: Tree, element: Element, place: _Place) -> None:
    for child in element.children:
        if child.tag == "pci":
            _pci(tree, child, place)
        elif child.tag == "nic" and place.parent == place.cpu:
            _bare_nic(tree, child, place)


def _kind(tree: Tree, element: Element) -> DeviceKind | None:
    said = element.attributes.get("class", "").lower()
    if element.named("gpu") or said.startswith(GPU_CLASSES):
        return DeviceKind.GPU
    if element.named("nic") or said.startswith(NETWORK_CLASSES):
        return DeviceKind.NIC
    if said.startswith(SWITCH_CLASSES):
        return DeviceKind.NVSWITCH
    if element.named("pci") or said.startswith(BRIDGE_CLASSES):
        return DeviceKind.PCIE_SWITCH
    bus_id = element.attributes.get("busid", "")
    if said:
        tree.note("unsupported", f"PCI device {bus_id} of class {said} is left out", element)
    else:
        tree.unclear += 1
        tree.note("not_visible", f"PCI device {bus_id}: class not stated, GPU or NIC cannot be told", element)
    return None


_WORDS = {
    DeviceKind.GPU: "gpu",
    DeviceKind.NIC: "nic",
    DeviceKind.NVSWITCH: "nvswitch",
    DeviceKind.PCIE_SWITCH: "pcie",
}


def _pci(tree: Tree, element: Element, place: _Place) -> None:
    tree.pcis.append(element)
    kind = _kind(tree, element)
    if kind is None:
        return
    bus_id = bus_id_of(element.attributes.get("busid", ""))
    name = tree.name(place.node, _WORDS[kind])
    if (place.node, bus_id) in tree.buses:
        other = tree.buses[place.node, bus_id]
        tree.note("repeated_bus_id", f"bus id {bus_id!r} of {name} is that of {other} too", element)
    else:
        tree.buses[place.node, bus_id] = name
    attributes: dict[str, Any] = {key: value for key, value in element.attributes.items() if key != "busid"}
    if kind is DeviceKind.GPU:
        attributes.update(_gpu(tree, element, name, bus_id, place))
    elif kind is DeviceKind.NIC:
        nets = [net for nic in element.named("nic") for net in nic.named("net")]
        attributes.update(_net_attributes(tree, nets), pci=True)
    link = _tree_link(tree, element, name, place)
    chain = (*place.above, (element, link))
    if kind is DeviceKind.GPU:
        _suspect(tree, chain)
    tree.devices.append(Device(name, kind, place.node, bus_id, place.numa_node, attributes))
    _children(tree, element, _Place(place.node, place.cpu, name, place.numa_node, chain))


def _gpu(tree: Tree, element: Element, name: str, bus_id: str, place: _Place) -> Mapping[str, Any]:
    details = element.named("gpu")
    if len(details) > 1:
        tree.note("contradiction", f"{len(details)} <gpu> in one <pci>: the first counts", details[1])
    detail = details[0] if details else None
    tree.gpu_names.add(name)
    tree.gpus.append(Gpu(name, place.node, bus_id, place.cpu, element, detail))
    model = model_of(element.attributes.get("vendor", ""), element.attributes.get("device", ""))
    said = dict(detail.attributes) if detail is not None else {}
    return {**said, "model": model} if model is not None else said


def _tree_link(tree: Tree, element: Element, name: str, place: _Place) -> PcieLink:
    """Draw the link above ``element`` both ways."""
    link = pcie_link(element.attributes)
    speed, width = link.speed_printed, link.width_printed
    if link.gigatransfers is None:
        kind = "unknown_spelling" if speed.strip() and "unknown" not in speed.lower() else "not_visible"
        tree.note(kind, f"PCIe speed {speed!r} above {name} says no rate (NCCL takes 8 GT/s)", element)
    elif speed not in ACCEPTED:
        text = f"PCIe speed {speed!r} above {name} is read as {link.gigatransfers:g} GT/s (NCCL takes 8)"
        tree.note("unknown_spelling", text, element)
    if link.width is None:
        tree.note("not_visible", f"PCIe width {width!r} above {name} says no lanes (NCCL takes 16)", element)
    said: dict[str, Any] = {"link_speed": speed, "link_width": width}
    said.update({"gigatransfers": link.gigatransfers} if link.gigatransfers is not None else {})
    said.update({"width": link.width} if link.width is not None else {})
    for source, target in ((place.parent, name), (name, place.parent)):
        tree.links.append(
            Link(source, target, LinkKind.PCIE, link.bytes_per_second, origin=link.origin, attributes=said)
        )
    return link


def _suspect(tree: Tree, chain: tuple[tuple[Element, PcieLink], ...]) -> None:
    """Notice every hop above a GPU that is hard to believe: one lane, Gen1, or two generations slower."""
    fastest = chain[-1][1].gigatransfers or 0.0
    for element, link in chain:
        speed = link.gigatransfers or math.inf
        if element.line in tree.suspected or not (link.width == 1 or speed <= 2.5 or 4 * speed <= fastest):
            continue
        tree.suspected.add(element.line)
        bus_id, seen = element.attributes.get("busid", ""), f"{link.speed_printed} x{link.width_printed}"
        text = f"{bus_id}: {seen} on the way to a GPU is implausible (virtual or idle port); kept as stated"
        tree.note("contradiction", text, element)


def _bare_nic(tree: Tree, element: Element, place: _Place) -> None:
    """Network interfaces that no PCI device stands for: virtual ones, or NICs whose place is hidden."""
    for net in element.named("net"):
        name = tree.name(place.node, "nic")
        attributes = {**_net_attributes(tree, [net]), "pci": False}
        tree.devices.append(Device(name, DeviceKind.NIC, place.node, "", place.numa_node, attributes))
        for source, target in ((place.cpu, name), (name, place.cpu)):
            link = Link(source, target, LinkKind.PCIE, origin="no PCI device stated for this interface")
            tree.links.append(link)


def _net_attributes(tree: Tree, nets: list[Element]) -> dict[str, Any]:
    """Name, gdr, latency and the rate of all ports together of a NIC with the ports ``nets``."""
    tree.nets.extend(nets)
    if not nets:
        return {}
    speeds = [_net_mbps(tree, net) for net in nets]
    latency = nets[0].attributes.get("latency", "")
    known = [speed for speed in speeds if speed is not None]
    return {
        "name": nets[0].attributes.get("name", ""),
        "net_bytes_per_second": sum(known) * 1e6 / 8 if len(known) == len(nets) else None,
        "gdr": any(net.attributes.get("gdr") == "1" for net in nets),
        "latency_seconds": float(latency) * 1e-6 if _REAL.fullmatch(latency) else None,
        "nets": [dict(net.attributes) for net in nets],
    }


def _net_mbps(tree: Tree, net: Element) -> int | None:
    speed, name = net.attributes.get("speed", ""), net.attributes.get("name", "")
    mbps = whole(speed)
    if mbps is None or mbps <= 0:
        tree.note("not_visible", f"net {name!r}: speed {speed!r} says no rate (NCCL takes 10000 Mb/s)", net)
        return None
    if mbps > FASTEST_NET_MBPS:
        tree.note("contradiction", f"net {name!r}: {mbps} Mb/s is implausible; kept as stated", net)
    return mbps


def _join_sockets(tree: Tree) -> None:
    """The NUMA nodes of one host reach each other; the file does not say at what rate."""
    cpus = [device for device in tree.devices if device.kind is DeviceKind.CPU]
    by_node: dict[int, list[str]] = {}
    for cpu in cpus:
        by_node.setdefault(cpu.node, []).append(cpu.name)
    for names in by_node.values():
        if len(names) > MOST_SOCKETS:
            text = f"{len(names)} NUMA nodes in one host: the links between them are left out"
            tree.notices.append(Notice("contradiction", text))
            continue
        for source, target in itertools.permutations(names, 2):
            origin = "NUMA nodes of one host"
            tree.links.append(Link(source, target, LinkKind.INTER_SOCKET, origin=origin))
