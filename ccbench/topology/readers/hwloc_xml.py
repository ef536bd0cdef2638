"""Reads hwloc's XML (``lstopo machine.xml``), versions 1 to 3: CPUs, PCIe tree, GPUs, NVLinks.

hwloc has packages and NUMA nodes, every PCI bridge with its link rate, and, where it was built with NVML or
ROCm SMI, a matrix of bandwidths (NVLinkBandwidth, XGMIBandwidth) between GPUs, NVSwitches and POWER packages.

hwloc's distance matrices: bandwidths of NVLinks and XGMI links, latencies between NUMA nodes.

hwloc's topology-nvml.c fills NVLinkBandwidth per link and direction with 20000 MB/s (NVLink 1), 25000 (2 to
4) or 50000 (5), added up per pair, 1000000 for a GPU to itself; topology-rsmi.c fills XGMIBandwidth likewise.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ccbench.errors import MachineError
from ccbench.topology.classes import class_of_direct_links, connected_groups
from ccbench.topology.graph import Device, DeviceKind, Link, LinkKind, Notice, Topology, TopologyClass
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


def _one_or_all(values: Sequence[Any]) -> Any:
    if not values:
        return None
    return values[0] if len(set(values)) == 1 else list(values)


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


MOST_OBJECTS = 256
"""A matrix of more is damage; a rack of 72 GPUs has fewer."""

_KINDS = {"NVLinkBandwidth": LinkKind.NVLINK, "XGMIBandwidth": LinkKind.XGMI}
_WHOLE = re.compile(r"\d{1,15}")

_MEGABYTES_OF_MODEL = (
    (re.compile(r"P100"), 20_000),
    (re.compile(r"\bG?B[123]00|\bR100|Rubin"), 50_000),
    (re.compile(r"[VAH]100|[AH]800|H20|A30|A40|A6000|3090|QUADRO|Quadro|TITAN|L40"), 25_000),
)
"""MB/s that hwloc counts for one link of a GPU, by its model: to divide by, not what the link carries."""


@dataclass
class Matrix:
    """A square matrix: ``keys`` name its objects as hwloc does (``OSDev:802``), ``values`` by row."""

    name: str
    keys: list[str]
    values: list[int]
    line: int

    def value(self, row: int, column: int) -> int:
        """What leads from one object to another."""
        return self.values[row * len(self.keys) + column]

    def row(self, index: int) -> list[int]:
        """What leads from object ``index`` to each."""
        return self.values[index * len(self.keys) : (index + 1) * len(self.keys)]


@dataclass
class Bandwidths:
    """Links of the matrices. ``direct``: pairs of GPUs; ``per_gpu``: links of each, None if not countable."""

    matrices: list[Matrix] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)
    direct: set[tuple[str, str]] = field(default_factory=set)
    reaches_cpus: bool = False
    per_gpu: dict[str, int | None] = field(default_factory=dict)


def _matrices(root: Element, notices: list[Notice]) -> list[Matrix]:
    found = []
    for element in root.children:
        if element.tag not in {"distances2", "distances2hetero"}:
            continue
        words = " ".join(part.text for part in element.named("indexes")).split()
        values = " ".join(part.text for part in element.named("u64values")).split()
        name = element.attributes.get("name", "")
        if element.tag == "distances2":
            words = [f"{element.attributes.get('type', '')}:{word}" for word in words]
        size = len(words)
        if size > MOST_OBJECTS or len(values) != size * size or not all(map(_WHOLE.fullmatch, values)):
            text = f"the matrix {name[:40]!r} has {size} objects and {len(values)} values; left out"
            notices.append(Notice("damaged_line", text, element.line))
        elif size:
            found.append(Matrix(name, words, [int(value) for value in values], element.line))
    return found


def numa_latencies(root: Element) -> dict[tuple[int | None, int | None], int]:
    """(NUMA node, NUMA node) -> the kernel's relative distance; 10 is the node itself.

    Says nothing of damage: read_bandwidths has looked at the same matrices.
    """
    found: dict[tuple[int | None, int | None], int] = {}
    for matrix in _matrices(root, notices=[]):
        if matrix.name != "NUMALatency":
            continue
        nodes = [key.partition(":")[2] for key in matrix.keys]
        for row, source in enumerate(nodes):
            for value, target in zip(matrix.row(row), nodes, strict=True):
                if source.isdecimal() and target.isdecimal() and len(source) < 9 and len(target) < 9:
                    found[int(source), int(target)] = value
    return found


def read_bandwidths(
    root: Element, names: dict[str, str], models: dict[str, str], notices: list[Notice]
) -> Bandwidths:
    """Links of every bandwidth matrix; an object that stands nowhere in the tree is named in a notice."""
    bandwidths = Bandwidths()
    for matrix in _matrices(root, notices):
        kind = _KINDS.get(matrix.name)
        if kind is None:
            continue
        bandwidths.matrices.append(matrix)
        for key in matrix.keys:
            if key not in names:
                text = f"{matrix.name} names {key[:40]}, which is not in the tree"
                notices.append(Notice("missing_peer", text, matrix.line))
        for row, key in enumerate(matrix.keys):
            for other, megabytes in zip(matrix.keys, matrix.row(row), strict=True):
                ends = names.get(key), names.get(other)
                if key != other and megabytes and ends[0] and ends[1] and ends[0] != ends[1]:
                    _add_link(bandwidths, matrix, kind, (ends[0], ends[1]), megabytes, models)
    return bandwidths


def _add_link(
    bandwidths: Bandwidths,
    matrix: Matrix,
    kind: LinkKind,
    ends: tuple[str, str],
    megabytes: int,
    models: dict[str, str],
) -> None:
    source, target = ends
    count = _link_count(megabytes, models.get(source) or models.get(target) or "")
    bandwidths.links.append(
        Link(
            source,
            target,
            kind,
            megabytes * 1e6,
            count=count or 1,
            origin=f"hwloc {matrix.name}, line {matrix.line}: {megabytes} MB/s",
            attributes={} if count else {"count_known": False},
        )
    )
    if source.startswith("gpu"):
        before = bandwidths.per_gpu.get(source, 0)
        bandwidths.per_gpu[source] = None if count is None or before is None else before + count
        if target.startswith("gpu"):
            bandwidths.direct.add((min(ends), max(ends)))
    bandwidths.reaches_cpus = bandwidths.reaches_cpus or target.startswith("cpu")


def _link_count(megabytes: int, model: str) -> int | None:
    """Links behind a rate; None where the model does not tell the rate of one."""
    per_link = next((rate for pattern, rate in _MEGABYTES_OF_MODEL if pattern.search(model)), None)
    return megabytes // per_link if per_link and megabytes % per_link == 0 else None


def facts_of(bandwidths: Bandwidths, tree: Tree) -> dict[str, Any]:
    """Facts of the first bandwidth matrix, and links per GPU."""
    if not bandwidths.matrices:
        return {"nvlinks_per_gpu": None}
    gpus = [device.name for device in tree.devices if device.name in bandwidths.per_gpu]
    per_gpu = [bandwidths.per_gpu[gpu] for gpu in gpus]
    facts: dict[str, Any] = {
        "nvlinks_per_gpu": per_gpu if per_gpu and None not in per_gpu else None,
        "distances": _distances(bandwidths.matrices[0], tree),
    }
    if bandwidths.direct:
        facts["gpu_groups"] = _groups(bandwidths.matrices[0], tree)
    return facts


def _distances(matrix: Matrix, tree: Tree) -> dict[str, Any]:
    """The matrix in short: with switches the sums of the rows, without every pair that has a link."""
    where = [tree.names.get(key, "") for key in matrix.keys]
    gpus = [index for index, name in enumerate(where) if name.startswith("gpu")]
    switches = [index for index, name in enumerate(where) if name.startswith("nvswitch")]
    summary: dict[str, Any] = {
        "name": matrix.name,
        "objects": len(matrix.keys),
        "unit": "MB/s per direction",
    }
    if switches:
        used = [
            [matrix.value(gpu, switch) for switch in switches if matrix.value(gpu, switch)] for gpu in gpus
        ]
        reached = _one_or_all([len(row) for row in used])
        summary[f"gpu_to_each_of_its_{reached}_switches"] = _one_or_all(
            [rate for row in used for rate in row]
        )
        summary["gpu_row_sum"] = _one_or_all([sum(matrix.row(gpu)) for gpu in gpus])
        summary["switch_row_sum"] = _one_or_all([sum(matrix.row(switch)) for switch in switches])
        summary["gpu_to_gpu"] = _one_or_all([matrix.value(gpu, other) for gpu in gpus for other in gpus])
        return summary
    labels = [tree.os_names.get(key, key) for key in matrix.keys]
    pairs, others = {}, []
    for left in range(len(labels)):
        for right in range(left + 1, len(labels)):
            value = matrix.value(left, right)
            if value:
                pairs[f"{labels[left]}-{labels[right]}"] = value
            else:
                others.append(value)
    diagonal = [matrix.value(index, index) for index in range(len(labels))]
    return {**summary, "pairs": pairs, "self": _one_or_all(diagonal), "other": _one_or_all(others)}


def _groups(matrix: Matrix, tree: Tree) -> list[list[str]]:
    """GPUs that reach each other over direct links, by hwloc's names, in the order of the matrix."""
    gpus = [index for index, key in enumerate(matrix.keys) if tree.names.get(key, "").startswith("gpu")]
    peers = {
        gpu: [
            other for other in gpus if other != gpu and (matrix.value(gpu, other) or matrix.value(other, gpu))
        ]
        for gpu in gpus
    }
    return [
        [tree.os_names.get(matrix.keys[gpu], matrix.keys[gpu]) for gpu in sorted(group)]
        for group in connected_groups(peers)
    ]
