"""The tree of objects in hwloc's XML: NUMA nodes, PCI bridges and devices become devices and PCIe links.

hwloc lists every port of a PCIe switch as a bridge. Below a host bridge they alternate: root port (part of
the CPU), upstream port (the switch), downstream port (part of it again), and so on. Switches with nothing of
interest below them are left out.

What a PCI device in hwloc's output is: GPU, NVSwitch, network card, or nothing ccbench looks at.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ccbench.topology.graph import Device, DeviceKind, Link, LinkKind, Notice
from ccbench.topology.xml import Element

NVIDIA = "10de"
AMD = "1002"
INTEL = "8086"

SLOWEST_GPU_GIGABYTES_PER_SECOND = 1.0
"""Below, an AMD "VGA" device is the management console's chip of a server board, not a GPU."""

_TYPE = re.compile(r"([0-9a-fA-F]{4}) \[([0-9a-fA-F]{4}):([0-9a-fA-F]{4})\]")
_COMPUTE = re.compile(r"(?:nvml|cuda|rsmi|hip|ze|levelzero)\d")


def parse_type(text: str) -> tuple[str, str, str]:
    """Class, vendor and device, in small hexadecimal digits, of hwloc's ``0302 [10de:1db8] [...]``; empty
    where the text is not one."""
    found = _TYPE.match(text[:40])
    return (found[1].lower(), found[2].lower(), found[3].lower()) if found else ("", "", "")


def kind_of(
    pci_class: str,
    vendor: str,
    subtype: str,
    names: Iterable[str],
    gigabytes_per_second: float | None,
) -> DeviceKind | None:
    """What a device is, by its class (``0302``), its vendor, hwloc's subtype and its operating system names.

    PCI classes (PCI Code and ID Assignment Specification): 02 network, 0300 VGA, 0302 3D controller, 0380
    other display, 0680 other bridge, 12 processing accelerator.
    """
    if subtype == "NVSwitch" or (pci_class == "0680" and vendor == NVIDIA):
        return DeviceKind.NVSWITCH
    if pci_class.startswith("02"):
        return DeviceKind.NIC
    if any(_COMPUTE.match(name) for name in names):
        return DeviceKind.GPU
    if pci_class.startswith("12") or pci_class == "0302" or (pci_class == "0300" and vendor == NVIDIA):
        return DeviceKind.GPU
    if pci_class == "0380" and vendor in {NVIDIA, AMD, INTEL}:
        return DeviceKind.GPU
    fast = (gigabytes_per_second or 0.0) > SLOWEST_GPU_GIGABYTES_PER_SECOND
    return DeviceKind.GPU if pci_class == "0300" and vendor == AMD and fast else None


MOST_NUMA_NODES = 4096
"""Larger indexes are damage: Linux has at most 1024 nodes."""

MOST_CHARACTERS_OF_A_BITMAP = 600
"""Room for 2048 processors."""

_NUMBER = re.compile(r"\d{1,9}(?:\.\d{1,9})?")
_BUS = re.compile(r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-9a-fA-F]")
_NAMES = {DeviceKind.GPU: "gpu", DeviceKind.NIC: "nic", DeviceKind.NVSWITCH: "nvswitch"}


@dataclass
class _Switch:
    """A PCIe switch that becomes a device when something below it does."""

    element: Element
    place: _Place
    name: str = ""


@dataclass(frozen=True)
class _Place:
    """Where an object hangs: at a CPU (NUMA nodes ``homes``), or at a switch.

    port: the bridge directly above: none, host, root, up or down. speed: its link's GB/s.
    """

    homes: tuple[int, ...] = ()
    port: str = ""
    speed: float | None = None
    switch: _Switch | None = None


@dataclass
class Tree:
    """What the objects say. ``names`` maps hwloc's ``OSDev:802`` and ``Package:3`` to devices' names."""

    devices: list[Device] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)
    notices: list[Notice] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)
    models: dict[str, str] = field(default_factory=dict)
    os_names: dict[str, str] = field(default_factory=dict)
    """hwloc's ``OSDev:802`` and ``Package:3`` -> the name hwloc prints (nvml0, Package0)."""
    numa_nodes: int = 0
    cpu_numa_nodes: list[int] = field(default_factory=list)
    memory_numa_nodes: list[int] = field(default_factory=list)
    threads: int = 0
    has_pci: bool = False


def read_tree(root: Element) -> Tree:
    """Devices and PCIe links of the document whose root element is ``root``."""
    tree = Tree()
    _add_cpus(tree, root)
    counts: dict[str, int] = {}
    packages = 0
    waiting: list[tuple[Element, _Place]] = [(child, _Place()) for child in reversed(root.named("object"))]
    while waiting:
        element, place = waiting.pop()
        kind = element.attributes.get("type", "")
        if kind == "Bridge":
            tree.has_pci = True
            place = _below_bridge(element, place)
        elif kind == "PCIDev":
            tree.has_pci = True
            _add_pci_device(tree, element, place, counts)
        elif kind not in {"OSDev", "Misc"}:
            tree.threads += kind == "PU"
            place = _Place(_homes(tree, element, place))
            if kind in {"Package", "Socket"}:
                _name_package(tree, element, place, packages)
                packages += 1
        waiting.extend((child, place) for child in reversed(element.named("object")))
    return tree


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and re.fullmatch(r"\d{1,9}", text) else None


def _speed(element: Element) -> float | None:
    """GB/s of the device's link; None where hwloc prints none or zero."""
    text = element.attributes.get("pci_link_speed", "")
    value = float(text) if _NUMBER.fullmatch(text) else 0.0
    return value or None


@functools.lru_cache(maxsize=1024)
def _bitmap(text: str) -> tuple[int, ...]:
    """Set bits of hwloc's ``0x000000ff,,0x0`` (groups of 32 bits, highest first, empty ones zero)."""
    groups = text[:MOST_CHARACTERS_OF_A_BITMAP].split(",")
    if not all(re.fullmatch(r"(?:0x)?[0-9a-fA-F]{0,8}", group) for group in groups):
        return ()
    value = 0
    for group in groups:
        value = value << 32 | int(group.removeprefix("0x") or "0", 16)
    return tuple(bit for bit in range(min(value.bit_length(), MOST_NUMA_NODES)) if value >> bit & 1)


def _is_memory_only(element: Element) -> bool:
    """NUMA nodes that are a GPU's memory have no cores."""
    cpuset = element.attributes.get("cpuset")
    gpu_memory = element.attributes.get("subtype") == "GPUMemory"
    return gpu_memory or (cpuset is not None and re.fullmatch(r"[0x,]+", cpuset) is not None)


def _add_cpus(tree: Tree, root: Element) -> None:
    nodes = [
        element
        for element in root.walk()
        if element.tag == "object" and element.attributes.get("type") == "NUMANode"
    ]
    tree.numa_nodes = len(nodes)
    for element in nodes:
        index = _whole(element.attributes.get("os_index"))
        if index is None or index >= MOST_NUMA_NODES:
            tree.notices.append(
                Notice("damaged_line", "a NUMA node without a number; left out", element.line)
            )
        elif _is_memory_only(element):
            tree.memory_numa_nodes.append(index)
        elif index in tree.cpu_numa_nodes:
            tree.notices.append(Notice("contradiction", f"NUMA node {index} appears twice", element.line))
        else:
            tree.cpu_numa_nodes.append(index)
            size = element.attributes.get("local_memory", "")
            attributes: dict[str, Any] = {"memory_bytes": int(size)} if _is_size(size) else {}
            tree.devices.append(Device(f"cpu{index}", DeviceKind.CPU, numa_node=index, attributes=attributes))
    if not nodes and any(element.attributes.get("type") == "Machine" for element in root.named("object")):
        # hwloc 1 leaves the node out where there is only one.
        tree.devices.append(Device("cpu0", DeviceKind.CPU))


def _is_size(text: str) -> bool:
    return re.fullmatch(r"\d{1,20}", text) is not None


def _homes(tree: Tree, element: Element, place: _Place) -> tuple[int, ...]:
    """NUMA nodes with cores that ``element`` lies in; those of the object above where it does not say."""
    nodeset = element.attributes.get("nodeset")
    if nodeset is None:
        return place.homes
    known = set(tree.cpu_numa_nodes)
    homes = tuple(node for node in _bitmap(nodeset) if node in known)
    return homes or place.homes


def _name_package(tree: Tree, element: Element, place: _Place, position: int) -> None:
    key = f"Package:{element.attributes.get('gp_index', '')}"
    tree.os_names[key] = f"Package{position}"
    if place.homes:
        tree.names[key] = f"cpu{place.homes[0]}"


def _below_bridge(element: Element, place: _Place) -> _Place:
    speed = _speed(element)
    if element.attributes.get("bridge_type", "").startswith("0-"):
        return _Place(place.homes, "host", speed, None)
    if place.port in {"", "host"}:
        return _Place(place.homes, "root", speed, None)
    if place.port in {"root", "down"}:
        return _Place(place.homes, "up", None, _Switch(element, place))
    return _Place(place.homes, "down", speed, place.switch)


def _add_pci_device(tree: Tree, element: Element, place: _Place, counts: dict[str, int]) -> None:
    children = [child for child in element.named("object") if child.attributes.get("type") == "OSDev"]
    os_names = [child.attributes.get("name", "") for child in children]
    pci_class, vendor, device = parse_type(element.attributes.get("pci_type", ""))
    subtype = element.attributes.get("subtype", "")
    kind = kind_of(pci_class, vendor, subtype, os_names, _speed(element))
    if kind is None:
        return
    infos = _infos(children)
    attributes: dict[str, Any] = {"pci_id": f"{vendor}:{device}" if vendor else "0000:0000"}
    if kind is DeviceKind.NVSWITCH and vendor == "0000":
        text = f"the NVSwitch at {element.attributes.get('pci_busid', '?')} shows no PCI ids"
        tree.notices.append(Notice("not_visible", text, element.line))
    attributes.update({"model": infos["GPUModel"]} if "GPUModel" in infos else {})
    attributes.update({"uuid": infos["NVIDIAUUID"]} if "NVIDIAUUID" in infos else {})
    if os_names:
        attributes["os_devices"] = os_names
    if kind is DeviceKind.NIC and os_names:
        verbs = [name for name in os_names if re.match(r"mlx|hfi|qib|bnxt_re|irdma|efa|rocep|ibp|hns", name)]
        attributes["name"] = (verbs or os_names)[0]
    if _speed(element) is not None:
        attributes["pci_link_GBps"] = _speed(element)
    prefix = _NAMES[kind]
    counts[prefix] = counts.get(prefix, -1) + 1
    name = f"{prefix}{counts[prefix]}"
    _note_names(tree, element, children, name)
    if infos.get("GPUModel"):
        tree.models[name] = infos["GPUModel"]
    _hang(
        tree, element, place, counts, Device(name, kind, 0, _bus_id(tree, element), _home(place), attributes)
    )


def _infos(elements: list[Element]) -> dict[str, str]:
    found: dict[str, str] = {}
    for element in elements:
        for info in element.named("info"):
            found.setdefault(info.attributes.get("name", ""), info.attributes.get("value", ""))
    return found


def _note_names(tree: Tree, element: Element, children: list[Element], name: str) -> None:
    for each in (element, *children):
        index = each.attributes.get("gp_index")
        if index is not None:
            key = f"{each.attributes.get('type')}:{index}"
            tree.names[key] = name
            tree.os_names[key] = each.attributes.get("name", "") or each.attributes.get("pci_busid", name)


def _bus_id(tree: Tree, element: Element) -> str:
    text = element.attributes.get("pci_busid", "")
    if _BUS.fullmatch(text):
        return text.lower()
    tree.notices.append(Notice("damaged_line", f"no PCI bus id: {text[:40]!r}", element.line))
    return ""


def _home(place: _Place) -> int | None:
    return place.homes[0] if len(place.homes) == 1 else None


def _hang(tree: Tree, element: Element, place: _Place, counts: dict[str, int], device: Device) -> None:
    """Add ``device`` and the switches above it that are not there yet, each with its link."""
    tree.devices.append(device)
    name = device.name
    while True:
        switch = place.switch
        fresh = switch is not None and not switch.name
        if switch is not None and fresh:
            counts["pcie"] = counts.get("pcie", -1) + 1
            switch.name = f"pcie{counts['pcie']}"
            pci_id = ":".join(parse_type(switch.element.attributes.get("pci_type", ""))[1:])
            tree.devices.append(
                Device(
                    switch.name,
                    DeviceKind.PCIE_SWITCH,
                    0,
                    _bus_id(tree, switch.element),
                    _home(place),
                    {"pci_id": pci_id},
                )
            )
        upper = switch.name if switch is not None else _cpu(tree, place)
        if upper:
            tree.links.extend(_both_ways(name, upper, element, place.speed))
        if switch is None or not fresh:
            return
        name, element, place = switch.name, switch.element, switch.place


def _cpu(tree: Tree, place: _Place) -> str:
    """The CPU an I/O device hangs at; empty where hwloc puts it at the whole machine of several."""
    if tree.numa_nodes == 0:
        return "cpu0" if any(device.name == "cpu0" for device in tree.devices[:1]) else ""
    known = tree.cpu_numa_nodes
    if len(known) == 1:
        return f"cpu{known[0]}"
    return f"cpu{place.homes[0]}" if place.homes and len(place.homes) < len(known) else ""


def _both_ways(name: str, upper: str, element: Element, port: float | None) -> list[Link]:
    """A PCIe link, at the rate of its slower end."""
    speed = _speed(element)
    known = [value for value in (speed, port) if value is not None]
    origin = f"hwloc pci_link_speed, line {element.line}: device {speed} GB/s, port above {port} GB/s"
    rate = min(known) * 1e9 if known else None
    return [
        Link(source, target, LinkKind.PCIE, rate, origin=origin)
        for source, target in ((name, upper), (upper, name))
    ]
