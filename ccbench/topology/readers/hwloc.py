"""Reads hwloc's XML (``lstopo machine.xml``), versions 1 to 3, and what ``lstopo`` prints on a console.

hwloc has packages and NUMA nodes, every PCI bridge with its link rate, and, where it was built with NVML or
ROCm SMI, a matrix of bandwidths between GPUs, NVSwitches and POWER packages: topology-nvml.c fills
NVLinkBandwidth per link and direction with 20000 MB/s (NVLink 1), 25000 (2 to 4) or 50000 (5), added up per
pair, 1000000 for a GPU to itself; topology-rsmi.c fills XGMIBandwidth likewise. The text of the console has
objects by indentation, but neither matrices nor rates, so no links are read from it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from ccbench.errors import MachineError
from ccbench.topology.classes import class_of_direct_links, connected_groups, peers_of
from ccbench.topology.graph import (
    DeviceKind,
    Link,
    LinkKind,
    Notice,
    Topology,
    TopologyClass,
)
from ccbench.topology.readers.hwloc_tree import BUS, Tree, infos_of
from ccbench.topology.text import one_or_all
from ccbench.topology.xml import Element, parse_xml
from ccbench.units import shown

ONE_GPU_PRODUCTS = ("dgx spark",)
"""Machines whose name alone says that they have one GPU (NVIDIA DGX Spark: one GB10)."""

MOST_JOINED_CPUS = 128
"""Every pair of CPUs gets a link up to here; larger machines have partitions that hwloc does not show."""

MOST_OBJECTS = 256
"""A matrix of more is damage; a rack of 72 GPUs has fewer."""

_KINDS = {"NVLinkBandwidth": LinkKind.NVLINK, "XGMIBandwidth": LinkKind.XGMI}
_MEGABYTES_OF_MODEL = (
    (re.compile(r"P100"), 20_000),
    (re.compile(r"\bG?B[123]00|\bR100|Rubin"), 50_000),
    (re.compile(r"[VAH]100|[AH]800|H20|A30|A40|A6000|3090|QUADRO|Quadro|TITAN|L40"), 25_000),
)
"""MB/s that hwloc counts for one link of a GPU, by its model: to divide by, not what the link carries."""

_ROOT = "<topology"

# lstopo's console text
_SIGN = re.compile(
    r"(?m)^ {0,40}(?:Package|NUMANode(?:\([A-Za-z]{1,20}\))?|Socket|HostBridge) L#\d{1,9}(?: \(| \"|$|\r)"
)
_OBJECT = re.compile(r"( {0,400})([A-Z][A-Za-z0-9]{1,20})(?:\(([A-Za-z0-9]{1,20})\))?(?: L#(\d{1,9}))?")
_BUS_IN_TEXT = re.compile(rf"(?:busid=)?\b({BUS.pattern})\b")
_IDS = re.compile(r"\b([0-9a-fA-F]{4}:[0-9a-fA-F]{4})\b(?![:.])")
_CLASS = re.compile(r"class=([0-9a-fA-F]{4})")
_NODE = re.compile(r"P#(\d{1,6})")
_MEMORY_BUS = re.compile(r"PCIBusID=([0-9a-fA-F:.]{7,20})")
_QUOTED = re.compile(r'"([^"]{1,80})"')
_WORDS_OF_CLASSES = {"VGA": "0300", "3D": "0302", "Display": "0380", "Ethernet": "0200", "InfiniBand": "0207"}
_OS_DEVICES = frozenset(
    {"CoProc", "GPU", "Net", "OpenFabrics", "Block", "DMA", "OSDev", "Network", "Storage"}
)


def recognises(text: str) -> bool:
    """Return whether ``text`` is hwloc's XML, with objects in it, or has objects as lstopo prints them."""
    start = text.find(_ROOT)
    is_xml = 0 <= start < 4096 and "<object" in text[start : start + 8192]
    return is_xml or _SIGN.search(text) is not None


def read(text: str) -> Topology:
    """Return the machine that hwloc saw. Raises MachineError when there is neither XML nor an object.

    Rates of PCIe links are hwloc's pci_link_speed (GB/s of one direction, the smaller of port and device);
    those of NVLinks its bandwidth matrix (MB/s of one direction).
    """
    if not text.lstrip("\ufeff \t\r\n").startswith("<") and _ROOT not in text[:4096]:
        return _read_console(text)
    document = parse_xml(text, "hwloc XML", doctype_allowed=True)
    root = document.root
    if root.tag != "topology":
        raise MachineError(
            f"hwloc XML: the root element is <{root.tag[:40]}>; expected <topology>; "
            "write the file with 'lstopo x.xml'"
        )
    tree = Tree(root)
    if not tree.devices and not tree.notices:
        raise MachineError(
            f"hwloc XML: line {root.line}: <topology> holds no processor and no device; "
            "give the whole of a file that 'lstopo x.xml' wrote"
        )
    notices = [*document.notices, *tree.notices]
    matrices = list(_matrices(root, notices))
    bandwidths = _Bandwidths(tree, [matrix for matrix in matrices if matrix.name in _KINDS], notices)
    links = [*tree.links, *bandwidths.links, *_socket_links(tree, matrices, notices)]
    machine = next(iter(root.named("object")), None)
    product = infos_of([machine] if machine else []).get("DMIProductName", "").replace("_", " ").strip()
    topology_class, reason = _class(root, product, tree, bandwidths, document.complete)
    if topology_class is TopologyClass.SINGLE_GPU and not tree.of_kind(DeviceKind.GPU):
        text = f"the GPU: the class is taken from the product's name, {shown(product)}"
        notices.append(Notice("not_visible", text, root.line))
    if not tree.has_pci:
        text = "no PCI devices in this file; write it with 'lstopo --of xml' as root"
        notices.append(Notice("not_visible", text))
    facts = {
        **tree.facts(),
        "nvswitch": None
        if topology_class is TopologyClass.UNKNOWN
        else topology_class is TopologyClass.NVSWITCH,
        "product": product or None,
        "hwloc_xml_version": root.attributes.get("version", "1"),
        "class_evidence": reason,
        **bandwidths.facts(),
    }
    return Topology(
        name="hwloc XML",
        devices=tuple(tree.devices),
        links=tuple(links),
        topology_class=topology_class,
        source="hwloc_xml",
        notices=tuple(notices),
        facts=facts,
    )


def _read_console(text: str) -> Topology:
    root = Element("topology", {}, 1)
    root.children.extend(_objects(text))
    if not root.children:
        raise MachineError(
            "lstopo: no object found; expected lines such as 'Package L#0'; give the output of 'lstopo -v'"
        )
    tree = Tree(root)
    no_links = Notice("not_visible", "lstopo's text has no links; 'lstopo machine.xml' has rates and NVLinks")
    facts = {**tree.facts(), "nvswitch": None, "nvswitch_count": None, "nvlinks_per_gpu": None}
    return Topology(
        name="lstopo",
        devices=tuple(device for device in tree.devices if device.kind is not DeviceKind.PCIE_SWITCH),
        source="lstopo_text",
        notices=(*tree.notices, no_links),
        facts={**facts, "gpu_count": facts["gpu_count"] if tree.has_pci else None},
    )


def _objects(text: str) -> Iterator[Element]:
    """The objects of a console's text as elements of the XML: flat, PCI devices in a group of their node."""
    column, group, pci = 0, Element("object", {"type": "Group"}, 1), None
    for number, line in enumerate(text.split("\n"), start=1):
        line = line[:2000].rstrip()
        found = _OBJECT.match(line)
        if found is None or (found[4] is None and found[2] not in _OS_DEVICES | {"PCI", "Machine"}):
            continue
        word, rest = found[2].removesuffix("Dev"), line[found.end() :]
        node, memory, bus = _NODE.search(rest), _MEMORY_BUS.search(rest), _BUS_IN_TEXT.search(rest)
        element = Element("object", {"type": found[2], "subtype": found[3] or ""}, number)
        if word == "NUMANode":
            element.attributes["os_index"] = node[1] if node else ""
            info = {"name": "PCIBusID", "value": memory[1].lower() if memory else ""}
            element.children.append(Element("info", info, number))
            if node and found[3] != "GPUMemory":
                bits = f"{1 << int(node[1]) % 32:#x}" + ",0" * (int(node[1]) // 32)
                group = Element("object", {"type": "Group", "nodeset": bits}, number)
                yield group
            yield element
        elif word == "PCI":
            stated, ids = _CLASS.search(rest), _IDS.search(rest)
            of_word = next((code for name, code in _WORDS_OF_CLASSES.items() if f"({name})" in rest), "")
            pci_class = (stated[1] if stated else of_word) or "0000"
            element.attributes |= {"type": "PCIDev", "pci_busid": bus[1] if bus else "", "subtype": ""}
            element.attributes["pci_type"] = f"{pci_class} [{ids[1] if ids else '0000:0000'}]"
            group.children.append(element)
            column, pci = len(found[1]), element
        elif found[2] in _OS_DEVICES and pci is not None and len(found[1]) > column:
            name = _QUOTED.search(rest)
            if name:
                pci.children.append(Element("object", {"type": "OSDev", "name": name[1]}, number))
        else:
            yield element


@dataclass
class _Matrix:
    """A square matrix: ``keys`` name its objects as hwloc does (``OSDev:802``), ``rows`` what leads where."""

    name: str
    keys: list[str]
    rows: list[list[int]]
    line: int


def _matrices(root: Element, notices: list[Notice]) -> Iterator[_Matrix]:
    for element in root.children:
        if element.tag not in {"distances2", "distances2hetero"}:
            continue
        words = " ".join(part.text for part in element.named("indexes")).split()
        values = " ".join(part.text for part in element.named("u64values")).split()
        name, size = element.attributes.get("name", ""), len(words)
        sound = all(re.fullmatch(r"\d{1,18}", value) for value in values)
        if size > MOST_OBJECTS or len(values) != size * size or not sound:
            text = f"the matrix {name[:40]!r} has {size} objects and {len(values)} values; left out"
            notices.append(Notice("damaged_line", text, element.line))
        elif size:
            one_type = element.attributes.get("type", "") + ":" if element.tag == "distances2" else ""
            rows = [[int(value) for value in values[at : at + size]] for at in range(0, size * size, size)]
            yield _Matrix(name, [one_type + word for word in words], rows, element.line)


@dataclass
class _Bandwidths:
    """Links of the bandwidth matrices. ``direct``: pairs of GPUs; ``per_gpu``: None if not countable."""

    tree: Tree
    matrices: list[_Matrix]
    notices: list[Notice]
    links: list[Link] = field(default_factory=list)
    direct: set[tuple[str, str]] = field(default_factory=set)
    per_gpu: dict[str, int | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        names = self.tree.names
        for matrix in self.matrices:
            for key in matrix.keys:
                if key not in names:
                    text = f"{matrix.name} names {key[:40]}, which is not in the tree"
                    self.notices.append(Notice("missing_peer", text, matrix.line))
            for key, row in zip(matrix.keys, matrix.rows, strict=True):
                for other, megabytes in zip(matrix.keys, row, strict=True):
                    source, target = names.get(key), names.get(other)
                    if key != other and megabytes and source and target and source != target:
                        self._add(matrix, source, target, megabytes)

    def _add(self, matrix: _Matrix, source: str, target: str, megabytes: int) -> None:
        models = {gpu.name: str(gpu.attributes.get("model", "")) for gpu in self.tree.of_kind(DeviceKind.GPU)}
        model = models.get(source) or models.get(target, "")
        each = next((rate for pattern, rate in _MEGABYTES_OF_MODEL if pattern.search(model)), None)
        # None where the model does not tell the rate of one link.
        count = megabytes // each if each and megabytes % each == 0 else None
        origin = f"hwloc {matrix.name}, line {matrix.line}: {megabytes} MB/s"
        attributes = {} if count else {"count_known": False}
        link = Link(
            source, target, _KINDS[matrix.name], megabytes * 1e6, origin=origin, attributes=attributes
        )
        self.links.append(replace(link, count=count or 1))
        if source.startswith("gpu"):
            before = self.per_gpu.get(source, 0)
            self.per_gpu[source] = None if count is None or before is None else before + count
            if target.startswith("gpu"):
                self.direct.add((min(source, target), max(source, target)))

    def facts(self) -> dict[str, Any]:
        """Facts of the first bandwidth matrix, and links per GPU."""
        if not self.matrices:
            return {"nvlinks_per_gpu": None}
        counts = [self.per_gpu[gpu.name] for gpu in self.tree.devices if gpu.name in self.per_gpu]
        facts: dict[str, Any] = {
            "nvlinks_per_gpu": counts if counts and None not in counts else None,
            "distances": self._distances(),
        }
        if self.direct:
            facts["gpu_groups"] = self._groups()
        return facts

    def _distances(self) -> dict[str, Any]:
        """The matrix in short: with switches the sums of the rows, without every pair that has a link."""
        matrix, rows = self.matrices[0], self.matrices[0].rows
        where = [self.tree.names.get(key, "") for key in matrix.keys]
        gpus = [index for index, name in enumerate(where) if name.startswith("gpu")]
        switches = [index for index, name in enumerate(where) if name.startswith("nvswitch")]
        summary = {"name": matrix.name, "objects": len(matrix.keys), "unit": "MB/s per direction"}
        if switches:
            used = [[rows[gpu][switch] for switch in switches if rows[gpu][switch]] for gpu in gpus]
            reached = one_or_all([len(row) for row in used])
            return {
                **summary,
                f"gpu_to_each_of_its_{reached}_switches": one_or_all([rate for row in used for rate in row]),
                "gpu_row_sum": one_or_all([sum(rows[gpu]) for gpu in gpus]),
                "switch_row_sum": one_or_all([sum(rows[switch]) for switch in switches]),
                "gpu_to_gpu": one_or_all([rows[gpu][other] for gpu in gpus for other in gpus]),
            }
        labels = [self.tree.os_names.get(key, key) for key in matrix.keys]
        values = {(i, j): rows[i][j] for i in range(len(rows)) for j in range(i + 1, len(rows))}
        return {
            **summary,
            "pairs": {f"{labels[i]}-{labels[j]}": value for (i, j), value in values.items() if value},
            "self": one_or_all([rows[i][i] for i in range(len(rows))]),
            "other": one_or_all([value for value in values.values() if not value]),
        }

    def _groups(self) -> list[list[str]]:
        """GPUs that reach each other over direct links, by hwloc's names, in the order of the matrix."""
        keys = {self.tree.names.get(key, ""): key for key in reversed(self.matrices[0].keys)}
        gpus = [name for name in reversed(keys) if name.startswith("gpu")]
        groups = connected_groups(peers_of(gpus, self.direct))
        return [
            [self.tree.os_names.get(keys[gpu], keys[gpu]) for gpu in gpus if gpu in group] for group in groups
        ]


def _class(
    root: Element, product: str, tree: Tree, bandwidths: _Bandwidths, complete: bool
) -> tuple[TopologyClass, str]:
    gpus = [gpu.name for gpu in tree.of_kind(DeviceKind.GPU)]
    if gpus and tree.of_kind(DeviceKind.NVSWITCH):
        return TopologyClass.NVSWITCH, "there are NVSwitches"
    if any(link.kind is LinkKind.XGMI for link in bandwidths.links):
        return TopologyClass.XGMI_MESH, "there are XGMI links"
    on_board = any(link.target.startswith("cpu") for link in bandwidths.links)
    shape = class_of_direct_links(gpus, bandwidths.direct, on_board)
    if shape is not None:
        return shape, "NVLinks join GPUs directly"
    if not complete:
        return TopologyClass.UNKNOWN, "the file is cut"
    if len(gpus) == 1:
        return TopologyClass.SINGLE_GPU, "one GPU on PCI"
    if not gpus and not tree.has_pci and any(name in product.lower() for name in ONE_GPU_PRODUCTS):
        return TopologyClass.SINGLE_GPU, f"{product} has one GPU"
    infos = [each.attributes for each in root.walk() if each.tag == "info"]
    backends = {info.get("value") for info in infos if info.get("name") == "Backend"}
    if len(gpus) > 1 and backends & {"NVML", "RSMI"}:
        return TopologyClass.PCIE, "the driver was asked and named no NVLink or XGMI"
    return TopologyClass.UNKNOWN, "hwloc did not ask the GPUs' driver about links"


def _socket_links(tree: Tree, matrices: list[_Matrix], notices: list[Notice]) -> list[Link]:
    """The way between CPUs, with the kernel's relative distance where given; hwloc knows no rate of it."""
    cpus = {str(device.numa_node): device.name for device in tree.of_kind(DeviceKind.CPU)}
    if len(cpus) > MOST_JOINED_CPUS:
        text = f"{len(cpus)} NUMA nodes: the links between more than {MOST_JOINED_CPUS} are left out"
        notices.append(Notice("unsupported", text))
        return []
    distances: dict[tuple[str, str], int] = {}
    for matrix in matrices:
        if matrix.name == "NUMALatency":
            nodes = [key.partition(":")[2] for key in matrix.keys]
            for source, row in zip(nodes, matrix.rows, strict=True):
                distances |= {(source, target): value for target, value in zip(nodes, row, strict=True)}
    origin = "hwloc: both CPUs are in one machine"
    links = []
    for source in cpus:
        for target in cpus:
            distance = distances.get((source, target))
            attributes = {"numa_distance": distance} if distance is not None else {}
            link = Link(
                cpus[source], cpus[target], LinkKind.INTER_SOCKET, origin=origin, attributes=attributes
            )
            links += [link] if source != target else []
    return links
