"""Processors, memory nodes, PCIe tree and network cards as Linux tells them, as a graph.

Vendors' links (NVLink, XGMI, HCCS) are not in these files: who reads only these must not take their absence
for an answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ccbench.machine import pci
from ccbench.machine.files import Files
from ccbench.machine.host import read_host
from ccbench.machine.network import Card, read_cards
from ccbench.machine.pci import PciFunction, Port
from ccbench.topology.graph import Device, DeviceKind, Link, LinkKind, Notice, Topology
from ccbench.topology.pci import bytes_per_second

NODES = "/sys/devices/system/node"
Number = TypeVar("Number", int, float)

VENDORS: Mapping[int, str] = {
    pci.NVIDIA: "NVIDIA",
    pci.AMD: "AMD",
    pci.INTEL: "Intel",
    0x19E5: "Huawei",
    0x1DA3: "Habana",
}
"""PCI vendor numbers (the PCI ID Repository, pci-ids.ucw.cz)."""

NVSWITCH_CLASS = 0x068000


@dataclass
class _Graph:
    """What is being put together."""

    functions: Mapping[str, PciFunction]
    cpus: dict[int, str]
    devices: list[Device] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)
    notices: list[Notice] = field(default_factory=list)
    switches: dict[str, str] = field(default_factory=dict)


def read_sysfs(files: Files) -> Topology:
    """The machine whose ``/sys`` and ``/proc`` lie below the root of ``files``.

    Facts: gpu_count, nic_count, cpu_count, nvswitch_count, cpu_affinity, numa_affinity, hypervisor, product,
    iommu_groups, iommu_types, acs_redirecting (addresses), acs_visible, cores, memory_only_nodes.
    """
    functions = pci.read_functions(files)
    cpus, cpu_devices, empty_nodes = _processors(files)
    graph = _Graph(functions, cpus, list(cpu_devices))
    if not functions:
        graph.notices.append(
            Notice("not_visible", "/sys/bus/pci/devices is empty or hidden: the PCIe tree is unknown")
        )
    _add_endpoints(graph, read_cards(files))
    graph.links.extend(_between_processors(files, cpus))
    host = read_host(files)
    gpus = [device for device in graph.devices if device.kind is DeviceKind.GPU]
    switches = sum(device.kind is DeviceKind.NVSWITCH for device in graph.devices)
    facts: dict[str, Any] = {
        "gpu_count": len(gpus),
        "nic_count": sum(device.kind is DeviceKind.NIC for device in graph.devices),
        "cpu_count": len(cpus),
        # A VM, and a rack with its switches elsewhere, shows none although the GPUs use them.
        "nvswitch_count": switches if switches or not gpus else None,
        "numa_affinity": [gpu.numa_node for gpu in gpus],
        "cpu_affinity": [_cores_of(graph, gpu) for gpu in gpus],
        "cores": files.text("/sys/devices/system/cpu/online"),
        "memory_only_nodes": empty_nodes,
        "hypervisor": host.hypervisor,
        "product": host.product,
        **_isolation(files, functions, graph),
    }
    return Topology(
        name=host.name,
        devices=tuple(graph.devices),
        links=tuple(graph.links),
        source="sysfs",
        notices=tuple(graph.notices),
        facts=facts,
    )


def _processors(files: Files) -> tuple[dict[int, str], list[Device], list[int]]:
    """(NUMA node -> name, devices, nodes that have memory and no cores)."""
    model = files.fields("/proc/cpuinfo").get("model name")
    cpus, devices, empty = {}, [], []
    folders = sorted(files.matching(NODES, "node[0-9]*"), key=lambda path: int(path.rsplit("node", 1)[1]))
    for folder in folders:
        node = int(folder.rsplit("node", 1)[1])
        cores = files.text(f"{folder}/cpulist")
        if not cores:
            empty.append(node)
            continue
        memory = re.search(r"MemTotal:\s+([0-9]+) kB", files.text(f"{folder}/meminfo") or "")
        attributes = {
            "cores": cores,
            "memory_bytes": int(memory[1]) * 1024 if memory else None,
            "model": model,
        }
        cpus[node] = f"cpu{node}"
        devices.append(Device(cpus[node], DeviceKind.CPU, numa_node=node, attributes=attributes))
    if not devices:  # kernels without NUMA, and sandboxes
        attributes = {"cores": files.text("/sys/devices/system/cpu/online"), "model": model}
        cpus[0] = "cpu0"
        devices.append(Device("cpu0", DeviceKind.CPU, attributes=attributes))
    return cpus, devices, empty


def _between_processors(files: Files, cpus: Mapping[int, str]) -> Iterator[Link]:
    for node, name in cpus.items():
        distances = (files.text(f"{NODES}/node{node}/distance") or "").split()
        for position, (other, other_name) in enumerate(cpus.items()):
            if node == other:
                continue
            near = distances[position] if len(distances) == len(cpus) else ""
            attributes = {"distance": int(near)} if near.isdecimal() else {}
            yield Link(name, other_name, LinkKind.INTER_SOCKET, origin="sysfs", attributes=attributes)


def _add_endpoints(graph: _Graph, cards: tuple[Card, ...]) -> None:
    functions = sorted(graph.functions.values(), key=lambda one: one.address)
    gpus = [one for one in functions if one.is_accelerator and not _shadows(graph, one)]
    switches = [one for one in functions if one.class_code == NVSWITCH_CLASS and one.vendor == pci.NVIDIA]
    for kind, prefix, chosen in ((DeviceKind.GPU, "gpu", gpus), (DeviceKind.NVSWITCH, "nvswitch", switches)):
        for index, function in enumerate(chosen):
            attributes = {"vendor": VENDORS.get(function.vendor, f"{function.vendor:#06x}")}
            _add_function(graph, f"{prefix}{index}", kind, function, attributes)
    index = 0
    for card in cards:
        function_of_card = graph.functions.get(card.bus_id)
        # A virtual function next to its own physical one is the same cable again.
        if function_of_card is not None and _shadows(graph, function_of_card):
            continue
        _add_card(graph, f"nic{index}", card, function_of_card)
        index += 1


def _shadows(graph: _Graph, function: PciFunction) -> bool:
    """Whether it is a virtual function whose physical one (same bus and bridge, not virtual) is here too."""
    if not function.virtual:
        return False
    return any(
        not other.virtual and other.bridges == function.bridges and other.vendor == function.vendor
        for other in graph.functions.values()
    )


def _add_card(graph: _Graph, name: str, card: Card, function: PciFunction | None) -> None:
    attributes = {
        "name": card.name,
        "rdma": card.rdma,
        "bytes_per_second": card.bytes_per_second,
        "up": card.up,
        **card.attributes,
    }
    if function is not None:
        _add_function(graph, name, DeviceKind.NIC, function, attributes)
        return
    graph.devices.append(
        Device(name, DeviceKind.NIC, bus_id=card.bus_id, numa_node=card.numa_node, attributes=attributes)
    )
    cpu = _cpu_of(graph, card.numa_node)
    if cpu is None:
        text = f"{name} ({card.name}) has no PCI address: where it is attached is unknown"
        graph.notices.append(Notice("not_visible", text))
    else:
        origin = "sysfs: on a bus of the hypervisor, rate unknown"
        graph.links += [
            Link(name, cpu, LinkKind.PCIE, origin=origin),
            Link(cpu, name, LinkKind.PCIE, origin=origin),
        ]


def _add_function(
    graph: _Graph, name: str, kind: DeviceKind, function: PciFunction, attributes: Mapping[str, Any]
) -> None:
    node = _node_of(graph, function)
    everything = {**attributes, "host_bridge": function.host_bridge, "pci_bridges": len(function.bridges)}
    graph.devices.append(Device(name, kind, 0, function.address, node, everything))
    _attach(graph, name, function, node)


def _node_of(graph: _Graph, function: PciFunction) -> int | None:
    """Its own NUMA node; where it has none, that of the nearest bridge above that has one."""
    for address in (function.address, *reversed(function.bridges)):
        one = graph.functions.get(address)
        if one is not None and one.numa_node is not None and one.numa_node >= 0:
            return one.numa_node
    return function.numa_node


def _cpu_of(graph: _Graph, node: int | None) -> str | None:
    if node in graph.cpus:
        return graph.cpus[node]
    return next(iter(graph.cpus.values())) if len(graph.cpus) == 1 else None


def _attach(graph: _Graph, name: str, function: PciFunction, node: int | None) -> None:
    """Link ``name`` upwards: to the switch it hangs below, or to the processor."""
    switch = _switch_above(function.bridges)
    port = graph.functions.get(function.bridges[-1]) if function.bridges else None
    if switch is None:
        parent = _cpu_of(graph, node)
    else:
        parent = graph.switches.get(switch) or _add_switch(graph, switch, node)
    if parent is None:
        seen = "-1" if node == -1 else "not given" if node is None else f"{node}, which has no cores"
        text = f"{name} ({function.address}): its NUMA node is {seen}: which processor it hangs on is unknown"
        graph.notices.append(Notice("not_visible", text))
        return
    graph.links.extend(_hop(name, parent, function, port))


def _switch_above(bridges: tuple[str, ...]) -> str | None:
    """The upstream port of the switch right above a device, from the bridges on its path.

    Ports alternate: root port, then upstream and downstream port of each switch. With an odd number of
    bridges below the root port the last one is an upstream port without a downstream port to be seen.
    """
    below_root = bridges[1:]
    if not below_root:
        return None
    return below_root[-1] if len(below_root) % 2 else below_root[-2]


def _add_switch(graph: _Graph, upstream: str, node: int | None) -> str:
    name = graph.switches[upstream] = f"pcie{len(graph.switches)}"
    function = graph.functions.get(upstream)
    host_bridge = function.host_bridge if function else ""
    graph.devices.append(
        Device(name, DeviceKind.PCIE_SWITCH, 0, upstream, node, {"host_bridge": host_bridge})
    )
    if function is not None:
        _attach(graph, name, function, node)
    return name


def _hop(name: str, parent: str, function: PciFunction, port: PciFunction | None) -> tuple[Link, Link]:
    """The link above ``function``, both ways; ``port`` is the other end."""
    current, above = function.current, port.maximum if port else Port(None, None)
    maximum = Port(
        _possible(current.gigatransfers, function.maximum.gigatransfers, above.gigatransfers),
        _possible(current.width, function.maximum.width, above.width),
    )
    attributes = {
        "gigatransfers": current.gigatransfers,
        "width": current.width,
        "max_gigatransfers": maximum.gigatransfers,
        "max_width": maximum.width,
        "device_max_gigatransfers": function.maximum.gigatransfers,
        "device_max_width": function.maximum.width,
        "port_max_gigatransfers": above.gigatransfers,
        "port_max_width": above.width,
    }
    speed, words = current.gigatransfers or maximum.gigatransfers, "as it runs now"
    if function.is_accelerator and maximum.gigatransfers is not None:
        # An idle GPU runs its link at 2.5 GT/s and speeds up with the first copy; it never changes the width.
        speed, words = maximum.gigatransfers, "speed as it can be, width as it is now"
    width = current.width or maximum.width
    rate = bytes_per_second(speed, width)
    origin = f"sysfs: {speed:g} GT/s x{width}, {words}" if rate is not None else "sysfs: rate not given"
    return (
        Link(name, parent, LinkKind.PCIE, rate, origin=origin, attributes=attributes),
        Link(parent, name, LinkKind.PCIE, rate, origin=origin, attributes=attributes),
    )


def _possible(now: Number | None, device: Number | None, port: Number | None) -> Number | None:
    """What both ends can; a port that could do less than what runs is a hypervisor's invention."""
    if device is None or port is None:
        return port if device is None else device
    return device if now is not None and port < now <= device else min(device, port)


def _cores_of(graph: _Graph, gpu: Device) -> str | None:
    cpu = _cpu_of(graph, gpu.numa_node)
    found = next((device for device in graph.devices if device.name == cpu), None)
    return found.attributes.get("cores") if found else None


def _isolation(
    files: Files, functions: Mapping[str, PciFunction], graph: _Graph
) -> dict[str, int | bool | list[str] | None]:
    """Signs that traffic between devices takes the way through the root: IOMMU, ACS."""
    groups = files.matching("/sys/kernel/iommu_groups")
    types = sorted({files.text(f"{group}/type") or "" for group in groups} - {""})
    known = pci.bridges_above(functions, (one.bus_id for one in graph.devices if one.kind is DeviceKind.GPU))
    redirects = pci.redirecting(known)
    return {
        "iommu_groups": len(groups),
        "iommu_types": types,
        "acs_visible": redirects is not None if known else None,
        "acs_redirecting": redirects or [],
    }
