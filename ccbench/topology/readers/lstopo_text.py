"""Reads what ``lstopo`` prints on a console: the tree of objects by indentation, one per line.

Links cannot be read from it: lstopo prints bandwidth matrices only with ``--distances``, and no link rate.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from ccbench.errors import MachineError
from ccbench.topology.graph import Device, DeviceKind, Notice, Topology, TopologyClass
from ccbench.topology.readers.hwloc_tree import kind_of

_OBJECT = re.compile(r"( {0,400})([A-Z][A-Za-z0-9]{1,20})(?:\(([A-Za-z0-9]{1,20})\))?(?: L#(\d{1,9}))?")
_SIGN = re.compile(
    r"(?m)^ {0,40}(?:Package|NUMANode(?:\([A-Za-z]{1,20}\))?|Socket|HostBridge) L#\d{1,9}(?: \(| \"|$|\r)"
)
_BUS = re.compile(r"(?:busid=)?\b((?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-9a-fA-F])\b")
_IDS = re.compile(r"\b([0-9a-fA-F]{4}):([0-9a-fA-F]{4})\b(?![:.])")
_CLASS = re.compile(r"class=([0-9a-fA-F]{4})")
_NODE = re.compile(r"P#(\d{1,6})")
_MEMORY_BUS = re.compile(r"PCIBusID=([0-9a-fA-F:.]{7,20})")
_QUOTED = re.compile(r'"([^"]{1,80})"')
_WORDS_OF_CLASSES = {"VGA": "0300", "3D": "0302", "Display": "0380", "Ethernet": "0200", "InfiniBand": "0207"}


@dataclass
class _Pci:
    """A PCI line and the operating system devices below it."""

    column: int
    bus_id: str
    text: str
    numa_node: int | None
    names: list[str] = field(default_factory=list)


@dataclass
class _Machine:
    cpus: dict[int, int] = field(default_factory=dict)
    """NUMA node with cores -> line."""
    memory: dict[int, str] = field(default_factory=dict)
    """NUMA node that is a GPU's memory -> the GPU's PCI bus id, empty where not printed."""
    pci: list[_Pci] = field(default_factory=list)
    threads: int = 0
    objects: int = 0
    newest_node: int | None = None
    notices: list[Notice] = field(default_factory=list)


def recognises(text: str) -> bool:
    """Whether ``text`` has objects as lstopo prints them."""
    return _SIGN.search(text) is not None


def read(text: str) -> Topology:
    """CPUs, GPUs and network cards of the tree, without links.

    Raises MachineError when no object is found.
    """
    machine = _Machine()
    for number, line in enumerate(text.split("\n"), start=1):
        _read_line(machine, number, line[:2000].rstrip())
    if not machine.objects:
        raise MachineError(
            "lstopo: no object found; expected lines such as 'Package L#0'; give the output of 'lstopo -v'"
        )
    machine.notices.append(
        Notice("not_visible", "lstopo's text has no links; 'lstopo machine.xml' has rates and NVLinks")
    )
    devices = _devices(machine)
    gpus = sum(device.kind is DeviceKind.GPU for device in devices)
    return Topology(
        name="lstopo",
        devices=tuple(devices),
        topology_class=TopologyClass.UNKNOWN,
        source="lstopo_text",
        notices=tuple(machine.notices),
        facts={
            "gpu_count": gpus if machine.pci else None,
            "nic_count": sum(device.kind is DeviceKind.NIC for device in devices) if machine.pci else None,
            "cpu_count": len(machine.cpus),
            "nvswitch_count": None,
            "nvlinks_per_gpu": None,
            "nvswitch": None,
            "numa_nodes": len(machine.cpus) + len(machine.memory),
            "cpu_numa_nodes": sorted(machine.cpus),
            "gpu_memory_numa_nodes": sorted(machine.memory),
            "gpu_memory_numa_to_bus": {str(node): bus for node, bus in machine.memory.items() if bus},
            "cpu_threads": machine.threads,
        },
    )


def _read_line(machine: _Machine, number: int, line: str) -> None:
    found = _OBJECT.match(line)
    if found is None or (found[4] is None and found[2] not in _WITHOUT_NUMBER):
        return
    column, word, kind = len(found[1]), found[2], found[3] or ""
    rest = line[found.end() :]
    machine.objects += 1
    if word == "NUMANode":
        _read_numa_node(machine, number, kind, rest)
    elif word == "PU":
        machine.threads += 1
    elif word in {"PCI", "PCIDev"}:
        bus = _BUS.search(rest)
        if bus is None:
            machine.notices.append(Notice("damaged_line", "a PCI device without its bus id", number))
            return
        machine.pci.append(_Pci(column, bus[1].lower(), rest, machine.newest_node))
    elif word in _OS_DEVICES and machine.pci and column > machine.pci[-1].column:
        name = _QUOTED.search(rest)
        if name:
            machine.pci[-1].names.append(name[1])


_OS_DEVICES = frozenset(
    {"CoProc", "GPU", "Net", "OpenFabrics", "Block", "DMA", "OSDev", "Network", "Storage"}
)
_WITHOUT_NUMBER = _OS_DEVICES | {"PCI", "Machine"}


def _read_numa_node(machine: _Machine, number: int, kind: str, rest: str) -> None:
    node = _NODE.search(rest)
    if node is None:
        machine.notices.append(Notice("damaged_line", "a NUMA node without its number", number))
        return
    index = int(node[1])
    if kind == "GPUMemory":
        bus = _MEMORY_BUS.search(rest)
        machine.memory[index] = bus[1].lower() if bus else ""
    elif index in machine.cpus:
        machine.notices.append(Notice("contradiction", f"NUMA node {index} appears twice", number))
    else:
        machine.cpus[index] = number
        machine.newest_node = index


def _devices(machine: _Machine) -> list[Device]:
    devices = [Device(f"cpu{node}", DeviceKind.CPU, numa_node=node) for node in machine.cpus]
    memory_of = {bus: node for node, bus in machine.memory.items() if bus}
    counts: dict[str, int] = {}
    for pci in machine.pci:
        kind = _kind(pci, pci.bus_id in memory_of)
        if kind is None:
            continue
        prefix = {DeviceKind.GPU: "gpu", DeviceKind.NIC: "nic"}.get(kind, "nvswitch")
        counts[prefix] = counts.get(prefix, -1) + 1
        attributes: dict[str, Any] = {"os_devices": pci.names} if pci.names else {}
        if kind is DeviceKind.NIC and pci.names:
            attributes["name"] = pci.names[-1]
        if pci.bus_id in memory_of:
            attributes["memory_numa_node"] = memory_of[pci.bus_id]
        name = f"{prefix}{counts[prefix]}"
        devices.append(Device(name, kind, 0, pci.bus_id, pci.numa_node, attributes))
    return devices


def _kind(pci: _Pci, has_memory_node: bool) -> DeviceKind | None:
    if has_memory_node:
        return DeviceKind.GPU
    stated = _CLASS.search(pci.text)
    word = next((code for word, code in _WORDS_OF_CLASSES.items() if f"({word})" in pci.text), "")
    ids = _IDS.search(pci.text)
    return kind_of(stated[1].lower() if stated else word, ids[1].lower() if ids else "", "", pci.names, None)
