"""Reads hwloc's XML (``lstopo machine.xml``), versions 1 to 3: CPUs, PCIe tree, GPUs, NVLinks.

hwloc has packages and NUMA nodes, every PCI bridge with its link rate, and, where it was built with NVML or
ROCm SMI, a matrix of bandwidths (NVLinkBandwidth, XGMIBandwidth) between GPUs, NVSwitches and POWER packages.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from ccbench.errors import MachineError
from ccbench.topology.graph import Device, DeviceKind, Link, LinkKind, Notice, Topology, TopologyClass
from ccbench.topology.nvlink_shape import class_of_direct_links
from ccbench.topology.readers.hwloc_distances import Bandwidths, facts_of, numa_latencies, read_bandwidths
from ccbench.topology.readers.hwloc_tree import Tree, read_tree
from ccbench.topology.xml import Element, parse_xml
from ccbench.units import shown

ONE_GPU_PRODUCTS = ("dgx spark",)
"""Machines whose name alone says that they have one GPU (NVIDIA DGX Spark: one GB10)."""

MOST_JOINED_CPUS = 128
"""Every pair of CPUs gets a link up to here; larger machines have partitions that hwloc does not show."""

_ROOT = "<topology"


def recognises(text: str) -> bool:
    """Whether ``text`` is hwloc's XML: its root element, and objects in it."""
    start = text.find(_ROOT)
    return 0 <= start < 4096 and "<object" in text[start : start + 8192]


def read(text: str) -> Topology:
    """The machine that hwloc saw. Raises MachineError when there is no hwloc XML in ``text``.

    Rates of PCIe links are hwloc's pci_link_speed (GB/s of one direction, the smaller of port and device);
    those of NVLinks its bandwidth matrix (MB/s of one direction).
    """
    document = parse_xml(text, "hwloc XML", doctype_allowed=True)
    root = document.root
    if root.tag != "topology":
        raise MachineError(
            f"hwloc XML: the root element is <{root.tag[:40]}>; expected <topology>; "
            "write the file with 'lstopo x.xml'"
        )
    tree = read_tree(root)
    if not tree.devices and not tree.notices:
        raise MachineError(
            f"hwloc XML: line {root.line}: <topology> holds no processor and no device; "
            "give the whole of a file that 'lstopo x.xml' wrote"
        )
    notices = [*document.notices, *tree.notices]
    bandwidths = read_bandwidths(root, tree.names, tree.models, notices)
    links = [*tree.links, *bandwidths.links, *_socket_links(root, tree, notices)]
    topology_class, reason = _class(root, tree, bandwidths, document.complete)
    if topology_class is TopologyClass.SINGLE_GPU and not any(
        device.kind is DeviceKind.GPU for device in tree.devices
    ):
        text = f"the GPU: the class is taken from the product's name, {shown(_product(root))}"
        notices.append(Notice("not_visible", text, root.line))
    if not tree.has_pci:
        notices.append(
            Notice("not_visible", "no PCI devices in this file; write it with 'lstopo --of xml' as root")
        )
    return Topology(
        name="hwloc XML",
        devices=tuple(tree.devices),
        links=tuple(links),
        topology_class=topology_class,
        source="hwloc_xml",
        notices=tuple(notices),
        facts=_facts(root, tree, bandwidths, topology_class, reason),
    )


def _infos(element: Element) -> dict[str, str]:
    return {
        info.attributes.get("name", ""): info.attributes.get("value", "") for info in element.named("info")
    }


def _product(root: Element) -> str:
    machine = next(iter(root.named("object")), None)
    name = _infos(machine).get("DMIProductName", "") if machine else ""
    return name.replace("_", " ").strip()


def _backends(root: Element) -> set[str]:
    return {
        element.attributes.get("value", "")
        for element in root.walk()
        if element.tag == "info" and element.attributes.get("name") == "Backend"
    }


def _class(root: Element, tree: Tree, bandwidths: Bandwidths, complete: bool) -> tuple[TopologyClass, str]:
    gpus = [device.name for device in tree.devices if device.kind is DeviceKind.GPU]
    kinds = Counter(device.kind for device in tree.devices)
    if kinds[DeviceKind.NVSWITCH] and gpus:
        return TopologyClass.NVSWITCH, "there are NVSwitches"
    if any(link.kind is LinkKind.XGMI for link in bandwidths.links):
        return TopologyClass.XGMI_MESH, "there are XGMI links"
    if bandwidths.direct:
        shape = class_of_direct_links(gpus, bandwidths.direct, on_board=bandwidths.reaches_cpus)
        if shape is not None:
            return shape, "NVLinks join GPUs directly"
    if not complete:
        return TopologyClass.UNKNOWN, "the file is cut"
    if len(gpus) == 1:
        return TopologyClass.SINGLE_GPU, "one GPU on PCI"
    if not gpus and not tree.has_pci and any(name in _product(root).lower() for name in ONE_GPU_PRODUCTS):
        return TopologyClass.SINGLE_GPU, f"{_product(root)} has one GPU"
    if len(gpus) > 1 and _backends(root) & {"NVML", "RSMI"}:
        return TopologyClass.PCIE, "the driver was asked and named no NVLink or XGMI"
    return TopologyClass.UNKNOWN, "hwloc did not ask the GPUs' driver about links"


def _socket_links(root: Element, tree: Tree, notices: list[Notice]) -> list[Link]:
    """The way between CPUs, with the kernel's relative distance where given; hwloc knows no rate of it."""
    cpus = {device.numa_node: device.name for device in tree.devices if device.kind is DeviceKind.CPU}
    if len(cpus) < 2:
        return []
    if len(cpus) > MOST_JOINED_CPUS:
        text = f"{len(cpus)} NUMA nodes: the links between more than {MOST_JOINED_CPUS} are left out"
        notices.append(Notice("unsupported", text))
        return []
    distances = numa_latencies(root)
    return [
        Link(
            cpus[source],
            cpus[target],
            LinkKind.INTER_SOCKET,
            origin="hwloc: both CPUs are in one machine",
            attributes={"numa_distance": distance} if distance is not None else {},
        )
        for source in cpus
        for target in cpus
        if source != target
        for distance in (distances.get((source, target)),)
    ]


def _one_or_all(values: list[Any]) -> Any:
    if not values:
        return None
    return values[0] if len(set(values)) == 1 else values


def _facts(
    root: Element, tree: Tree, bandwidths: Bandwidths, topology_class: TopologyClass, reason: str
) -> dict[str, Any]:
    def of_kind(kind: DeviceKind) -> list[Device]:
        return [device for device in tree.devices if device.kind is kind]

    gpus, switches = of_kind(DeviceKind.GPU), of_kind(DeviceKind.NVSWITCH)
    known = [
        str(switch.attributes["pci_id"]) for switch in switches if switch.attributes["pci_id"] != "0000:0000"
    ]
    speeds = [gpu.attributes.get("pci_link_GBps") for gpu in gpus]
    nvswitch = topology_class is TopologyClass.NVSWITCH
    facts: dict[str, Any] = {
        "gpu_count": len(gpus),
        "nic_count": len(of_kind(DeviceKind.NIC)) if tree.has_pci else None,
        "cpu_count": len(of_kind(DeviceKind.CPU)),
        "nvswitch_count": len(switches) if tree.has_pci else None,
        "nvswitch": None if topology_class is TopologyClass.UNKNOWN else nvswitch,
        "numa_nodes": tree.numa_nodes,
        "cpu_numa_nodes": tree.cpu_numa_nodes,
        "gpu_memory_numa_nodes": tree.memory_numa_nodes,
        "cpu_threads": tree.threads,
        "product": _product(root) or None,
        "hwloc_xml_version": root.attributes.get("version", "1"),
        "gpu_pci_device": _one_or_all([gpu.attributes["pci_id"] for gpu in gpus]),
        "gpu_pci_link_GBps": _one_or_all(
            [speed for speed in speeds if speed is not None and math.isfinite(speed)]
        ),
        "nvswitch_pci_device": _one_or_all(known),
        "class_evidence": reason,
        **facts_of(bandwidths, tree),
    }
    return facts
