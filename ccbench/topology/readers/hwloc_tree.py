"""The tree of objects in hwloc's XML: NUMA nodes, PCI bridges and devices become devices and PCIe links.

Every port of a PCIe switch is a bridge. Below a host bridge they alternate: root port (part of the CPU),
upstream port (the switch), downstream port (part of it again), and so on. Switches with nothing of interest
below them are left out.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Any

from ccbench.topology.graph import Device, DeviceKind, Link, LinkKind, Notice, both_ways
from ccbench.topology.pci import card_count
from ccbench.topology.text import one_or_all
from ccbench.topology.xml import Element

MOST_NUMA_NODES = 4096
"""Larger indexes are damage: Linux has at most 1024 nodes."""

MOST_CHARACTERS_OF_A_BITMAP = 600
"""Room for 2048 processors."""

SLOWEST_GPU_GIGABYTES_PER_SECOND = 1.0
"""Below, an AMD "VGA" device is the management console's chip of a server board, not a GPU."""

NVIDIA, AMD, INTEL = "10de", "1002", "8086"
_NAMES = {DeviceKind.GPU: "gpu", DeviceKind.NIC: "nic", DeviceKind.NVSWITCH: "nvswitch"}
_TYPE = re.compile(r"([0-9a-fA-F]{4}) \[([0-9a-fA-F]{4}):([0-9a-fA-F]{4})\]")
_COMPUTE = re.compile(r"(?:nvml|cuda|rsmi|hip|ze|levelzero)\d")
_VERBS = re.compile(r"mlx|hfi|qib|bnxt_re|irdma|efa|rocep|ibp|hns")
_NUMBER = re.compile(r"\d{1,9}(?:\.\d{1,9})?")
BUS = re.compile(r"(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-9a-fA-F]")


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

    @property
    def numa_node(self) -> int | None:
        """The one NUMA node of it; None of several."""
        return self.homes[0] if len(self.homes) == 1 else None


class Tree:
    """What the objects below ``root`` say.

    names and os_names: hwloc's ``OSDev:802`` and ``Package:3`` -> our device's name, and the name hwloc
    prints (nvml0, Package0). memory: NUMA node that is a GPU's memory -> the GPU's PCI bus id.
    """

    def __init__(self, root: Element) -> None:
        self.devices: list[Device] = []
        self.links: list[Link] = []
        self.notices: list[Notice] = []
        self.names: dict[str, str] = {}
        self.os_names: dict[str, str] = {}
        self.cpus: list[int] = []
        self.memory: dict[int, str] = {}
        self.threads = 0
        self.has_pci = False
        self.counts: dict[str, int] = {}
        self._add_cpus(root)
        waiting = [(child, _Place()) for child in reversed(root.named("object"))]
        while waiting:
            element, place = waiting.pop()
            kind = element.attributes.get("type", "")
            self.has_pci |= kind in {"Bridge", "PCIDev"}
            if kind == "Bridge":
                place = _below_bridge(element, place)
            elif kind == "PCIDev":
                self._add_pci_device(element, place)
            elif kind not in {"OSDev", "Misc"}:
                self.threads += kind == "PU"
                place = _Place(self._homes(element) or place.homes)
                if kind in {"Package", "Socket"}:
                    key = f"Package:{element.attributes.get('gp_index', '')}"
                    self.os_names[key] = self._next("Package")
                    if place.homes:
                        self.names[key] = f"cpu{place.homes[0]}"
            waiting.extend((child, place) for child in reversed(element.named("object")))

    def of_kind(self, kind: DeviceKind) -> list[Device]:
        """Devices of one kind, in order."""
        return [device for device in self.devices if device.kind is kind]

    def _next(self, word: str) -> str:
        self.counts[word] = self.counts.get(word, -1) + 1
        return f"{word}{self.counts[word]}"

    def _add_cpus(self, root: Element) -> None:
        nodes = [
            each for each in root.walk() if each.tag == "object" and each.attributes.get("type") == "NUMANode"
        ]
        self.numa_nodes = len(nodes)
        for element in nodes:
            text, cpuset = element.attributes.get("os_index", ""), element.attributes.get("cpuset", "x1")
            index = int(text) if re.fullmatch(r"\d{1,9}", text) else MOST_NUMA_NODES
            if index >= MOST_NUMA_NODES:
                text = "a NUMA node without a number; left out"
                self.notices.append(Notice("damaged_line", text, element.line))
            elif element.attributes.get("subtype") == "GPUMemory" or re.fullmatch(r"[0x,]+", cpuset):
                # NUMA nodes that are a GPU's memory have no cores.
                self.memory[index] = infos_of([element]).get("PCIBusID", "").lower()
            elif index in self.cpus:
                self.notices.append(Notice("contradiction", f"NUMA node {index} appears twice", element.line))
            else:
                self.cpus.append(index)
                size = element.attributes.get("local_memory", "")
                attributes = {"memory_bytes": int(size)} if re.fullmatch(r"\d{1,20}", size) else {}
                cpu = Device(f"cpu{index}", DeviceKind.CPU, numa_node=index, attributes=attributes)
                self.devices.append(cpu)
        self.known_cpus = set(self.cpus)
        if not nodes and any(element.attributes.get("type") == "Machine" for element in root.named("object")):
            # hwloc 1 leaves the node out where there is only one.
            self.devices.append(Device("cpu0", DeviceKind.CPU))

    def _homes(self, element: Element) -> tuple[int, ...]:
        """NUMA nodes with cores that ``element`` lies in; none where it does not say."""
        nodes = _bitmap(element.attributes.get("nodeset", ""))
        return tuple(node for node in nodes if node in self.known_cpus)

    def _add_pci_device(self, element: Element, place: _Place) -> None:
        children = [child for child in element.named("object") if child.attributes.get("type") == "OSDev"]
        os_names = [child.attributes.get("name", "") for child in children]
        vendor, device = _type(element)[1:]
        memory = [node for node, bus in self.memory.items() if bus and bus == _bus(element)]
        kind = DeviceKind.GPU if memory else _kind(element, os_names)
        if kind is None:
            return
        infos, speed = infos_of(children), _speed(element)
        if kind is DeviceKind.NVSWITCH and vendor == "0000":
            text = f"the NVSwitch at {element.attributes.get('pci_busid', '?')} shows no PCI ids"
            self.notices.append(Notice("not_visible", text, element.line))
        verbs = [name for name in os_names if _VERBS.match(name)]
        attributes: dict[str, Any] = {
            "pci_id": f"{vendor}:{device}" if vendor else "0000:0000",
            "model": infos.get("GPUModel"),
            "uuid": infos.get("NVIDIAUUID"),
            "os_devices": os_names or None,
            "name": (verbs or os_names)[0] if kind is DeviceKind.NIC and os_names else None,
            "pci_link_GBps": speed,
            "memory_numa_node": memory[0] if memory else None,
        }
        name = self._next(_NAMES[kind])
        for each in (element, *children):
            if "gp_index" in each.attributes:
                key = f"{each.attributes.get('type')}:{each.attributes['gp_index']}"
                self.names[key] = name
                self.os_names[key] = each.attributes.get("name", "") or each.attributes.get("pci_busid", name)
        said = {key: value for key, value in attributes.items() if value is not None}
        self.devices.append(Device(name, kind, 0, self._bus_id(element), place.numa_node, said))
        self._hang(name, element, place)

    def _bus_id(self, element: Element) -> str:
        text = element.attributes.get("pci_busid", "")
        if not BUS.fullmatch(text):
            self.notices.append(Notice("damaged_line", f"no PCI bus id: {text[:40]!r}", element.line))
        return _bus(element)

    def _hang(self, name: str, element: Element, place: _Place) -> None:
        """Link a device to the switch or CPU above it, and the switches that are not there yet likewise."""
        switch, fresh = place.switch, False
        if switch is not None and not switch.name:
            switch.name, fresh = self._next("pcie"), True
            bus_id, pci_id = self._bus_id(switch.element), ":".join(_type(switch.element)[1:])
            kind, numa_node = DeviceKind.PCIE_SWITCH, switch.place.numa_node
            self.devices.append(Device(switch.name, kind, 0, bus_id, numa_node, {"pci_id": pci_id}))
        upper = switch.name if switch is not None else self._cpu(place)
        if upper:
            speed, port = _speed(element), place.speed
            known = [value for value in (speed, port) if value is not None]
            rate = min(known) * 1e9 if known else None  # that of the slower end
            origin = f"hwloc pci_link_speed, line {element.line}: device {speed} GB/s, port above {port} GB/s"
            self.links += both_ways(Link(name, upper, LinkKind.PCIE, rate, origin=origin))
        if switch is not None and fresh:
            self._hang(switch.name, switch.element, switch.place)

    def _cpu(self, place: _Place) -> str:
        """The CPU an I/O device hangs at; empty where hwloc puts it at the whole machine of several."""
        if self.numa_nodes == 0:
            return "cpu0" if any(device.name == "cpu0" for device in self.devices[:1]) else ""
        if len(self.cpus) == 1:
            return f"cpu{self.cpus[0]}"
        return f"cpu{place.homes[0]}" if place.homes and len(place.homes) < len(self.cpus) else ""

    def facts(self) -> dict[str, Any]:
        """Everything countable."""
        gpus, switches = self.of_kind(DeviceKind.GPU), self.of_kind(DeviceKind.NVSWITCH)
        known = [switch.attributes["pci_id"] for switch in switches]
        speeds = [gpu.attributes["pci_link_GBps"] for gpu in gpus if "pci_link_GBps" in gpu.attributes]
        return {
            "gpu_count": len(gpus),
            "nic_count": len(self.of_kind(DeviceKind.NIC)) if self.has_pci else None,
            "nic_physical_count": card_count(self.of_kind(DeviceKind.NIC)) if self.has_pci else None,
            "cpu_count": len(self.of_kind(DeviceKind.CPU)),
            "nvswitch_count": len(switches) if self.has_pci else None,
            "numa_nodes": self.numa_nodes,
            "cpu_numa_nodes": self.cpus,
            "gpu_memory_numa_nodes": sorted(self.memory),
            "gpu_memory_numa_to_bus": {str(node): bus for node, bus in self.memory.items() if bus},
            "cpu_threads": self.threads,
            "gpu_pci_device": one_or_all(
                [gpu.attributes["pci_id"] for gpu in gpus if gpu.attributes["pci_id"] != "0000:0000"]
            ),
            "gpu_pci_link_GBps": one_or_all(speeds),
            "nvswitch_pci_device": one_or_all([pci_id for pci_id in known if pci_id != "0000:0000"]),
        }


def infos_of(elements: list[Element]) -> dict[str, str]:
    """What ``<info>`` elements directly below ``elements`` say; the first counts."""
    infos = [info.attributes for element in reversed(elements) for info in reversed(element.named("info"))]
    return {info.get("name", ""): info.get("value", "") for info in infos}


def _type(element: Element) -> tuple[str, str, str]:
    """Class, vendor and device, in small hexadecimal digits, of ``0302 [10de:1db8]``; empty if not one."""
    found = _TYPE.match(element.attributes.get("pci_type", "")[:40])
    return (found[1].lower(), found[2].lower(), found[3].lower()) if found else ("", "", "")


def _bus(element: Element) -> str:
    text = element.attributes.get("pci_busid", "")
    return text.lower() if BUS.fullmatch(text) else ""


def _speed(element: Element) -> float | None:
    """GB/s of the device's link; None where hwloc prints none or zero."""
    text = element.attributes.get("pci_link_speed", "")
    value = float(text) if _NUMBER.fullmatch(text) else 0.0
    return value or None


def _kind(element: Element, os_names: list[str]) -> DeviceKind | None:
    """What a PCI device is; None for what ccbench does not look at.

    PCI classes (PCI Code and ID Assignment Specification): 02 network, 0300 VGA, 0302 3D controller, 0380
    other display, 0680 other bridge, 12 processing accelerator.
    """
    pci_class, vendor, _ = _type(element)
    if element.attributes.get("subtype") == "NVSwitch" or (pci_class == "0680" and vendor == NVIDIA):
        return DeviceKind.NVSWITCH
    if pci_class.startswith("02"):
        return DeviceKind.NIC
    fast = (_speed(element) or 0.0) > SLOWEST_GPU_GIGABYTES_PER_SECOND
    is_gpu = (
        any(_COMPUTE.match(name) for name in os_names)
        or pci_class.startswith("12")
        or pci_class == "0302"
        or (pci_class == "0300" and (vendor == NVIDIA or (vendor == AMD and fast)))
        or (pci_class == "0380" and vendor in {NVIDIA, AMD, INTEL})
    )
    return DeviceKind.GPU if is_gpu else None


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


def _below_bridge(element: Element, place: _Place) -> _Place:
    speed = _speed(element)
    if element.attributes.get("bridge_type", "").startswith("0-"):
        return _Place(place.homes, "host", speed)
    if place.port in {"", "host"}:
        return _Place(place.homes, "root", speed)
    if place.port in {"root", "down"}:
        return _Place(place.homes, "up", None, _Switch(element, place))
    return _Place(place.homes, "down", speed, place.switch)
