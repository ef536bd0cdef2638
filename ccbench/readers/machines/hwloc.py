"""Reads hwloc's XML (``lstopo machine.xml``), versions 1 to 3, and what ``lstopo`` prints on a console.

hwloc has packages and NUMA nodes, every PCI bridge with its link rate, and, where it was built with NVML or
ROCm SMI, a matrix of bandwidths between GPUs, NVSwitches and POWER packages: topology-nvml.c fills
NVLinkBandwidth per link and direction with 20000 MB/s (NVLink 1), 25000 (2 to 4) or 50000 (5), added up per
pair, 1000000 for a GPU to itself; topology-rsmi.c fills XGMIBandwidth likewise. The text of the console has
objects by indentation, but neither matrices nor rates, so no links are read from it.

Every port of a PCIe switch is a bridge. Below a host bridge they alternate: root port (part of the CPU),
upstream port (the switch), downstream port (part of it again), and so on. Switches with nothing of interest
below them are left out.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ccbench.errors import MachineError
from ccbench.findings import SourceWarning
from ccbench.readers.lines import one_or_all
from ccbench.readers.xml import Element, parse_xml
from ccbench.topology.classes import class_of_direct_links, connected_groups, peers_of
from ccbench.topology.graph import Device, DeviceKind, Link, LinkKind, Topology, TopologyClass
from ccbench.topology.pci import card_count
from ccbench.units import shown

_ONE_GPU_PRODUCTS = ("dgx spark",)
"""Machines whose name alone says that they have one GPU (NVIDIA DGX Spark: one GB10)."""

_MOST_JOINED_CPUS = 128
"""Every pair of CPUs gets a link up to here; larger machines have partitions that hwloc does not show."""

_MOST_OBJECTS = 256
"""A matrix of more is damage; a rack of 72 GPUs has fewer."""

_KINDS = {"NVLinkBandwidth": LinkKind.NVLINK, "XGMIBandwidth": LinkKind.XGMI}
_MEGABYTES_OF_MODEL = (
    (re.compile(r"P100"), 20_000),
    (re.compile(r"\bG?B[123]00|\bR100|Rubin"), 50_000),
    (re.compile(r"[VAH]100|[AH]800|H20|A30|A40|A6000|3090|QUADRO|Quadro|TITAN|L40"), 25_000),
)
"""MB/s that hwloc counts for one link of a GPU, by its model: to divide by, not what the link carries."""

_ROOT = "<topology"

_MOST_NUMA_NODES = 4096
"""Larger indexes are damage: Linux has at most 1024 nodes."""

_MOST_CHARACTERS_OF_A_BITMAP = 600
"""Room for 2048 processors."""

_SLOWEST_GPU_GIGABYTES_PER_SECOND = 1.0
"""Below, an AMD "VGA" device is the management console's chip of a server board, not a GPU."""

_NVIDIA, _AMD, _INTEL = "10de", "1002", "8086"
_NAMES = {DeviceKind.GPU: "gpu", DeviceKind.NIC: "nic", DeviceKind.NVSWITCH: "nvswitch"}
_TYPE = re.compile(r"([0-9a-fA-F]{4}) \[([0-9a-fA-F]{4}):([0-9a-fA-F]{4})\]")
_COMPUTE = re.compile(r"(?:nvml|cuda|rsmi|hip|ze|levelzero)\d")
_VERBS = re.compile(r"mlx|hfi|qib|bnxt_re|irdma|efa|rocep|ibp|hns")
_NUMBER = re.compile(r"\d{1,9}(?:\.\d{1,9})?")
_BUS = re.compile(r"(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-9a-fA-F]")


# lstopo's console text
_SIGN = re.compile(
    r"(?m)^ {0,40}(?:Package|NUMANode(?:\([A-Za-z]{1,20}\))?|Socket|HostBridge) L#\d{1,9}(?: \(| \"|$|\r)"
)
_OBJECT = re.compile(
    r"( {0,400})([A-Z][A-Za-z0-9]{1,20})(?:\(([A-Za-z0-9]{1,20})\))?(?: L#(\d{1,9}))?"
)
_BUS_IN_TEXT = re.compile(rf"(?:busid=)?\b({_BUS.pattern})\b")
_IDS = re.compile(r"\b([0-9a-fA-F]{4}:[0-9a-fA-F]{4})\b(?![:.])")
_CLASS = re.compile(r"class=([0-9a-fA-F]{4})")
_NODE = re.compile(r"P#(\d{1,6})")
_MEMORY_BUS = re.compile(r"PCIBusID=([0-9a-fA-F:.]{7,20})")
_QUOTED = re.compile(r'"([^"]{1,80})"')
_WORDS_OF_CLASSES = {
    "VGA": "0300",
    "3D": "0302",
    "Display": "0380",
    "Ethernet": "0200",
    "InfiniBand": "0207",
}
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
    tree = _PciTree(root)
    if not tree.devices and not tree.warnings:
        raise MachineError(
            f"hwloc XML: line {root.line}: <topology> holds no processor and no device; "
            "give the whole of a file that 'lstopo x.xml' wrote"
        )
    warnings = [*document.warnings, *tree.warnings]
    matrices = [matrix for matrix in _matrices(root, warnings) if matrix.name in _KINDS]
    bandwidths = _Bandwidths(tree, matrices, warnings)
    cpus = [device.name for device in tree.of_kind(DeviceKind.CPU)]
    links = [*tree.links, *bandwidths.links]
    if len(cpus) > _MOST_JOINED_CPUS:
        reason = f"{len(cpus)} NUMA nodes: the links between more than {_MOST_JOINED_CPUS} are left out"
        warnings.append(SourceWarning("unsupported", reason))
    else:  # the way between CPUs; hwloc knows no rate of it
        origin = "hwloc: both CPUs are in one machine"
        links += [
            Link(*pair, LinkKind.INTER_SOCKET, origin=origin)
            for pair in itertools.permutations(cpus, 2)
        ]
    machine = next(iter(root.named("object")), None)
    product = (
        _infos_of([machine] if machine else [])
        .get("DMIProductName", "")
        .replace("_", " ")
        .strip()
    )
    topology_class, reason = _class(root, product, tree, bandwidths, document.complete)
    if topology_class is TopologyClass.SINGLE_GPU and not tree.of_kind(DeviceKind.GPU):
        text = f"the GPU: the class is taken from the product's name, {shown(product)}"
        warnings.append(SourceWarning("not_visible", text, root.line))
    if not tree.has_pci:
        text = "no PCI devices in this file; write it with 'lstopo --of xml' as root"
        warnings.append(SourceWarning("not_visible", text))
    unknown = topology_class is TopologyClass.UNKNOWN
    facts = {
        **tree.facts(),
        "nvswitch": None if unknown else topology_class is TopologyClass.NVSWITCH,
        "product": product or None,
        "class_evidence": reason,
        **bandwidths.facts(),
    }
    return Topology(
        name="hwloc XML",
        devices=tuple(tree.devices),
        links=tuple(links),
        topology_class=topology_class,
        source="hwloc_xml",
        warnings=tuple(warnings),
        facts=facts,
    )


def _read_console(text: str) -> Topology:
    """Return what a console's text shows.

    Its objects become elements of the XML, flat, with PCI devices in a group of their node.
    """
    root = Element("topology", {}, 1)
    column, group, pci = 0, Element("object", {"type": "Group"}, 1), None
    for number, line in enumerate(text.split("\n"), start=1):
        line = line[:2000].rstrip()
        match = _OBJECT.match(line)
        if match is None or (
            match[4] is None and match[2] not in _OS_DEVICES | {"PCI", "Machine"}
        ):
            continue
        word, rest = match[2].removesuffix("Dev"), line[match.end() :]
        element = Element("object", {"type": match[2], "subtype": match[3] or ""}, number)
        if word == "NUMANode":
            node, memory = _NODE.search(rest), _MEMORY_BUS.search(rest)
            element.attributes["os_index"] = node[1] if node else ""
            info = {"name": "PCIBusID", "value": memory[1].lower() if memory else ""}
            element.children.append(Element("info", info, number))
            if node and match[3] != "GPUMemory":
                # A node's devices are told by its bit in a set, groups of 32 bits, highest first.
                bits = f"{1 << int(node[1]) % 32:#x}" + ",0" * (int(node[1]) // 32)
                group = Element("object", {"type": "Group", "nodeset": bits}, number)
                root.children.append(group)
            root.children.append(element)
        elif word == "PCI":
            bus, stated, ids = _BUS_IN_TEXT.search(rest), _CLASS.search(rest), _IDS.search(rest)
            of_word = next(
                (code for name, code in _WORDS_OF_CLASSES.items() if f"({name})" in rest), ""
            )
            pci_class = (stated[1] if stated else of_word) or "0000"
            element.attributes |= {
                "type": "PCIDev",
                "pci_busid": bus[1] if bus else "",
                "subtype": "",
                "pci_type": f"{pci_class} [{ids[1] if ids else '0000:0000'}]",
            }
            group.children.append(element)
            column, pci = len(match[1]), element
        elif match[2] in _OS_DEVICES and pci is not None and len(match[1]) > column:
            name = _QUOTED.search(rest)
            if name:
                attributes = {"type": "OSDev", "name": name[1]}
                pci.children.append(Element("object", attributes, number))
        else:
            root.children.append(element)
    if not root.children:
        raise MachineError(
            "lstopo: no object found; expected lines such as 'Package L#0'; give the output of 'lstopo -v'"
        )
    tree = _PciTree(root)
    no_links = SourceWarning(
        "not_visible", "no links are shown; 'lstopo machine.xml' has rates and NVLinks"
    )
    facts = {**tree.facts(), "nvswitch": None, "nvswitch_count": None, "nvlinks_per_gpu": None}
    return Topology(
        name="lstopo",
        devices=tuple(
            device for device in tree.devices if device.kind is not DeviceKind.PCIE_SWITCH
        ),
        source="lstopo_text",
        warnings=(*tree.warnings, no_links),
        facts={**facts, "gpu_count": facts["gpu_count"] if tree.has_pci else None},
    )


@dataclass
class _Matrix:
    """A square matrix: ``keys`` name its objects as hwloc does (``OSDev:802``), ``rows`` what leads where."""

    name: str
    keys: list[str]
    rows: list[list[int]]
    line: int


def _matrices(root: Element, warnings: list[SourceWarning]) -> Iterator[_Matrix]:
    for element in root.children:
        if element.tag not in {"distances2", "distances2hetero"}:
            continue
        words = " ".join(part.text for part in element.named("indexes")).split()
        values = " ".join(part.text for part in element.named("u64values")).split()
        name, size = element.attributes.get("name", ""), len(words)
        sound = all(re.fullmatch(r"\d{1,18}", value) for value in values)
        if size > _MOST_OBJECTS or len(values) != size * size or not sound:
            text = f"the matrix {name[:40]!r} has {size} objects and {len(values)} values; left out"
            warnings.append(SourceWarning("damaged_line", text, element.line))
        elif size:
            one_type = (
                element.attributes.get("type", "") + ":" if element.tag == "distances2" else ""
            )
            rows = [
                [int(value) for value in values[at : at + size]]
                for at in range(0, size * size, size)
            ]
            yield _Matrix(name, [one_type + word for word in words], rows, element.line)


class _Bandwidths:
    """Links of the bandwidth matrices. ``direct``: pairs of GPUs; ``per_gpu``: None if not countable."""

    def __init__(
        self, tree: _PciTree, matrices: list[_Matrix], warnings: list[SourceWarning]
    ) -> None:
        self.tree, self.matrices = tree, matrices
        self.links: list[Link] = []
        self.direct: set[tuple[str, str]] = set()
        self.per_gpu: dict[str, int | None] = {}
        models = {gpu.name: gpu.model for gpu in tree.of_kind(DeviceKind.GPU)}
        for matrix in matrices:
            for key in matrix.keys:
                if key not in tree.names:
                    text = f"{matrix.name} names {key[:40]}, which is not in the tree"
                    warnings.append(SourceWarning("missing_peer", text, matrix.line))
            for key, row in zip(matrix.keys, matrix.rows, strict=True):
                for peer, megabytes in zip(matrix.keys, row, strict=True):
                    source, target = tree.names.get(key), tree.names.get(peer)
                    if (
                        key == peer
                        or not megabytes
                        or not source
                        or not target
                        or source == target
                    ):
                        continue
                    # Not countable where the model does not tell the rate of one link.
                    model = models.get(source) or models.get(target, "")
                    each = next(
                        (
                            rate
                            for pattern, rate in _MEGABYTES_OF_MODEL
                            if pattern.search(model)
                        ),
                        None,
                    )
                    count = megabytes // each if each and megabytes % each == 0 else None
                    origin = f"hwloc {matrix.name}, line {matrix.line}: {megabytes} MB/s"
                    count_note = {} if count else {"count_known": False}
                    self.links.append(
                        Link(
                            source,
                            target,
                            _KINDS[matrix.name],
                            megabytes * 1e6,
                            count=count or 1,
                            origin=origin,
                            attributes=count_note,
                        )
                    )
                    if source.startswith("gpu"):
                        before = self.per_gpu.get(source, 0)
                        self.per_gpu[source] = (
                            None if count is None or before is None else before + count
                        )
                        if target.startswith("gpu"):
                            self.direct.add((min(source, target), max(source, target)))

    def facts(self) -> dict[str, Any]:
        """Return facts of the first bandwidth matrix, and links per GPU."""
        if not self.matrices:
            return {"nvlinks_per_gpu": None}
        counts = [
            self.per_gpu[gpu.name] for gpu in self.tree.devices if gpu.name in self.per_gpu
        ]
        facts: dict[str, Any] = {
            "nvlinks_per_gpu": counts if counts and None not in counts else None,
            "distances": self._distances(),
        }
        if self.direct:
            # GPUs that reach each other over direct links, by hwloc's names, in the order of the matrix.
            keys = {
                self.tree.names.get(key, ""): key for key in reversed(self.matrices[0].keys)
            }
            gpus = [name for name in reversed(keys) if name.startswith("gpu")]
            called = {gpu: self.tree.os_names.get(keys[gpu], keys[gpu]) for gpu in gpus}
            groups = connected_groups(peers_of(gpus, self.direct))
            facts["gpu_groups"] = [
                [called[gpu] for gpu in gpus if gpu in group] for group in groups
            ]
        return facts

    def _distances(self) -> dict[str, Any]:
        """The matrix in short: with switches the sums of the rows, without every pair that has a link."""
        matrix, rows = self.matrices[0], self.matrices[0].rows
        where = [self.tree.names.get(key, "") for key in matrix.keys]
        gpus = [index for index, name in enumerate(where) if name.startswith("gpu")]
        switches = [index for index, name in enumerate(where) if name.startswith("nvswitch")]
        summary = {
            "name": matrix.name,
            "objects": len(matrix.keys),
            "unit": "MB/s per direction",
        }
        if switches:
            used = [
                [rows[gpu][switch] for switch in switches if rows[gpu][switch]] for gpu in gpus
            ]
            reached = one_or_all([len(row) for row in used])
            return {
                **summary,
                f"gpu_to_each_of_its_{reached}_switches": one_or_all(
                    [rate for row in used for rate in row]
                ),
                "gpu_row_sum": one_or_all([sum(rows[gpu]) for gpu in gpus]),
                "switch_row_sum": one_or_all([sum(rows[switch]) for switch in switches]),
                "gpu_to_gpu": one_or_all([rows[gpu][peer] for gpu in gpus for peer in gpus]),
            }
        labels = [self.tree.os_names.get(key, key) for key in matrix.keys]
        values = {(i, j): rows[i][j] for i in range(len(rows)) for j in range(i + 1, len(rows))}
        return {
            **summary,
            "pairs": {
                f"{labels[i]}-{labels[j]}": value for (i, j), value in values.items() if value
            },
            "self": one_or_all([rows[i][i] for i in range(len(rows))]),
            "other": one_or_all([value for value in values.values() if not value]),
        }


def _class(
    root: Element, product: str, tree: _PciTree, bandwidths: _Bandwidths, complete: bool
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
    if (
        not gpus
        and not tree.has_pci
        and any(name in product.lower() for name in _ONE_GPU_PRODUCTS)
    ):
        return TopologyClass.SINGLE_GPU, f"{product} has one GPU"
    infos = [each.attributes for each in root.walk() if each.tag == "info"]
    backends = {info.get("value") for info in infos if info.get("name") == "Backend"}
    if len(gpus) > 1 and backends & {"NVML", "RSMI"}:
        return TopologyClass.PCIE, "the driver was asked and named no NVLink or XGMI"
    return TopologyClass.UNKNOWN, "hwloc did not ask the GPUs' driver about links"


@dataclass
class _Switch:
    """A PCIe switch that becomes a device when something below it does."""

    element: Element
    place: _Parent
    name: str = ""


@dataclass(frozen=True)
class _Parent:
    """Parent of an object: a CPU (NUMA nodes ``homes``), or a switch.

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


class _PciTree:
    """NUMA nodes, PCI bridges and devices below ``root`` as devices and PCIe links.

    names and os_names: hwloc's ``OSDev:802`` and ``Package:3`` -> our device's name, and the name hwloc
    prints (nvml0, Package0). memory: NUMA node that is a GPU's memory -> the GPU's PCI bus id.
    """

    def __init__(self, root: Element) -> None:
        self.devices: list[Device] = []
        self.links: list[Link] = []
        self.warnings: list[SourceWarning] = []
        self.names: dict[str, str] = {}
        self.os_names: dict[str, str] = {}
        self.cpus: dict[int, None] = {}
        self.memory: dict[int, str] = {}
        self.threads = 0
        self.has_pci = False
        self.counts: dict[str, int] = {}
        self._add_cpus(root)
        waiting = [(child, _Parent()) for child in reversed(root.named("object"))]
        while waiting:
            element, place = waiting.pop()
            kind = element.attributes.get("type", "")
            self.has_pci |= kind in {"Bridge", "PCIDev"}
            if kind == "Bridge":
                speed = _speed(element)
                if element.attributes.get("bridge_type", "").startswith("0-"):
                    place = _Parent(place.homes, "host", speed)
                elif place.port in {"", "host"}:
                    place = _Parent(place.homes, "root", speed)
                elif place.port in {"root", "down"}:
                    place = _Parent(place.homes, "up", None, _Switch(element, place))
                else:
                    place = _Parent(place.homes, "down", speed, place.switch)
            elif kind == "PCIDev":
                self._add_pci_device(element, place)
            elif kind not in {"OSDev", "Misc"}:
                self.threads += kind == "PU"
                # NUMA nodes with cores that the object lies in; none where it does not say.
                nodes = _bitmap(element.attributes.get("nodeset", ""))
                place = _Parent(
                    tuple(node for node in nodes if node in self.cpus) or place.homes
                )
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
            each
            for each in root.walk()
            if each.tag == "object" and each.attributes.get("type") == "NUMANode"
        ]
        self.numa_nodes = len(nodes)
        for element in nodes:
            text, cpuset = (
                element.attributes.get("os_index", ""),
                element.attributes.get("cpuset", "x1"),
            )
            index = int(text) if re.fullmatch(r"\d{1,9}", text) else _MOST_NUMA_NODES
            if index >= _MOST_NUMA_NODES:
                text = "a NUMA node without a number; left out"
                self.warnings.append(SourceWarning("damaged_line", text, element.line))
            elif element.attributes.get("subtype") == "GPUMemory" or re.fullmatch(
                r"[0x,]+", cpuset
            ):
                # NUMA nodes that are a GPU's memory have no cores.
                self.memory[index] = _infos_of([element]).get("PCIBusID", "").lower()
            elif index in self.cpus:
                self.warnings.append(
                    SourceWarning("contradiction", f"two NUMA nodes {index}", element.line)
                )
            else:
                self.cpus[index] = None
                size = element.attributes.get("local_memory", "")
                attributes = (
                    {"memory_bytes": int(size)} if re.fullmatch(r"\d{1,20}", size) else {}
                )
                cpu = Device(
                    f"cpu{index}", DeviceKind.CPU, numa_node=index, attributes=attributes
                )
                self.devices.append(cpu)
        if not nodes and any(
            element.attributes.get("type") == "Machine" for element in root.named("object")
        ):
            # hwloc 1 leaves the node out where there is only one.
            self.devices.append(Device("cpu0", DeviceKind.CPU))

    def _add_pci_device(self, element: Element, place: _Parent) -> None:
        children = [
            child
            for child in element.named("object")
            if child.attributes.get("type") == "OSDev"
        ]
        os_names = [child.attributes.get("name", "") for child in children]
        vendor, device = _type(element)[1:]
        memory = [node for node, bus in self.memory.items() if bus and bus == _bus(element)]
        kind = DeviceKind.GPU if memory else _kind(element, os_names)
        if kind is None:
            return
        infos, speed = _infos_of(children), _speed(element)
        if kind is DeviceKind.NVSWITCH and vendor == "0000":
            text = (
                f"the NVSwitch at {element.attributes.get('pci_busid', '?')} shows no PCI ids"
            )
            self.warnings.append(SourceWarning("not_visible", text, element.line))
        verbs = [name for name in os_names if _VERBS.match(name)]
        attributes: dict[str, Any] = {
            "pci_id": f"{vendor}:{device}" if vendor else "0000:0000",
            "model": infos.get("GPUModel"),
            "uuid": infos.get("NVIDIAUUID"),
            "name": (verbs or os_names)[0] if kind is DeviceKind.NIC and os_names else None,
            "pci_link_GBps": speed,
            "memory_numa_node": memory[0] if memory else None,
        }
        name = self._next(_NAMES[kind])
        for each in (element, *children):
            if "gp_index" in each.attributes:
                key = f"{each.attributes.get('type')}:{each.attributes['gp_index']}"
                self.names[key] = name
                self.os_names[key] = each.attributes.get("name", "") or each.attributes.get(
                    "pci_busid", name
                )
        stated = {key: value for key, value in attributes.items() if value is not None}
        self.devices.append(
            Device(name, kind, 0, self._bus_id(element), place.numa_node, stated)
        )
        self._hang(name, element, place)

    def _bus_id(self, element: Element) -> str:
        text = element.attributes.get("pci_busid", "")
        if not _BUS.fullmatch(text):
            self.warnings.append(
                SourceWarning("damaged_line", f"no PCI bus id: {text[:40]!r}", element.line)
            )
        return _bus(element)

    def _hang(self, name: str, element: Element, place: _Parent) -> None:
        """Link a device to the switch or CPU above it, and the switches that are not there yet likewise."""
        switch, fresh = place.switch, False
        if switch is not None and not switch.name:
            switch.name, fresh = self._next("pcie"), True
            bus_id, pci_id = self._bus_id(switch.element), ":".join(_type(switch.element)[1:])
            kind, numa_node = DeviceKind.PCIE_SWITCH, switch.place.numa_node
            self.devices.append(
                Device(switch.name, kind, 0, bus_id, numa_node, {"pci_id": pci_id})
            )
        # Without a switch it hangs at a CPU, and at none where hwloc puts it at the whole machine of several.
        upper = switch.name if switch is not None else ""
        if switch is None and self.numa_nodes == 0:
            upper = "cpu0" if any(device.name == "cpu0" for device in self.devices[:1]) else ""
        elif switch is None and len(self.cpus) == 1:
            upper = f"cpu{next(iter(self.cpus))}"
        elif switch is None and place.homes and len(place.homes) < len(self.cpus):
            upper = f"cpu{place.homes[0]}"
        if upper:
            speed, port = _speed(element), place.speed
            speeds = [value for value in (speed, port) if value is not None]
            rate = min(speeds) * 1e9 if speeds else None  # that of the slower end
            origin = f"hwloc pci_link_speed, line {element.line}: device {speed} GB/s, port above {port} GB/s"
            self.links += Link(name, upper, LinkKind.PCIE, rate, origin=origin).both_ways()
        if switch is not None and fresh:
            self._hang(switch.name, switch.element, switch.place)

    def facts(self) -> dict[str, Any]:
        """Return everything countable."""
        gpus, switches = self.of_kind(DeviceKind.GPU), self.of_kind(DeviceKind.NVSWITCH)
        pci_ids = [switch.attributes["pci_id"] for switch in switches]
        speeds = [
            gpu.attributes["pci_link_GBps"] for gpu in gpus if "pci_link_GBps" in gpu.attributes
        ]
        return {
            "gpu_count": len(gpus),
            "nic_count": len(self.of_kind(DeviceKind.NIC)) if self.has_pci else None,
            "nic_physical_count": card_count(self.of_kind(DeviceKind.NIC))
            if self.has_pci
            else None,
            "cpu_count": len(self.of_kind(DeviceKind.CPU)),
            "nvswitch_count": len(switches) if self.has_pci else None,
            "numa_nodes": self.numa_nodes,
            "cpu_numa_nodes": list(self.cpus),
            "gpu_memory_numa_nodes": sorted(self.memory),
            "gpu_memory_numa_to_bus": {
                str(node): bus for node, bus in self.memory.items() if bus
            },
            "cpu_threads": self.threads,
            "gpu_pci_device": one_or_all(
                [
                    gpu.attributes["pci_id"]
                    for gpu in gpus
                    if gpu.attributes["pci_id"] != "0000:0000"
                ]
            ),
            "gpu_pci_link_GBps": one_or_all(speeds),
            "nvswitch_pci_device": one_or_all(
                [pci_id for pci_id in pci_ids if pci_id != "0000:0000"]
            ),
        }


def _infos_of(elements: list[Element]) -> dict[str, str]:
    """Names and values of the ``<info>`` elements directly below ``elements``; the first counts."""
    infos = [
        info.attributes
        for element in reversed(elements)
        for info in reversed(element.named("info"))
    ]
    return {info.get("name", ""): info.get("value", "") for info in infos}


def _type(element: Element) -> tuple[str, str, str]:
    """Class, vendor and device, in small hexadecimal digits, of ``0302 [10de:1db8]``; empty if not one."""
    match = _TYPE.match(element.attributes.get("pci_type", "")[:40])
    return (match[1].lower(), match[2].lower(), match[3].lower()) if match else ("", "", "")


def _bus(element: Element) -> str:
    text = element.attributes.get("pci_busid", "")
    return text.lower() if _BUS.fullmatch(text) else ""


def _speed(element: Element) -> float | None:
    """GB/s of the device's link; None where hwloc prints none or zero."""
    text = element.attributes.get("pci_link_speed", "")
    value = float(text) if _NUMBER.fullmatch(text) else 0.0
    return value or None


def _kind(element: Element, os_names: list[str]) -> DeviceKind | None:
    """Kind of a PCI device; None for what ccbench does not look at.

    PCI classes (PCI Code and ID Assignment Specification): 02 network, 0300 VGA, 0302 3D controller, 0380
    other display, 0680 other bridge, 12 processing accelerator.
    """
    pci_class, vendor, _ = _type(element)
    if element.attributes.get("subtype") == "NVSwitch" or (
        pci_class == "0680" and vendor == _NVIDIA
    ):
        return DeviceKind.NVSWITCH
    if pci_class.startswith("02"):
        return DeviceKind.NIC
    fast = (_speed(element) or 0.0) > _SLOWEST_GPU_GIGABYTES_PER_SECOND
    is_gpu = (
        any(_COMPUTE.match(name) for name in os_names)
        or pci_class.startswith("12")
        or pci_class == "0302"
        or (pci_class == "0300" and (vendor == _NVIDIA or (vendor == _AMD and fast)))
        or (pci_class == "0380" and vendor in {_NVIDIA, _AMD, _INTEL})
    )
    return DeviceKind.GPU if is_gpu else None


@functools.lru_cache(maxsize=1024)
def _bitmap(text: str) -> tuple[int, ...]:
    """Set bits of hwloc's ``0x000000ff,,0x0`` (groups of 32 bits, highest first, empty ones zero)."""
    groups = text[:_MOST_CHARACTERS_OF_A_BITMAP].split(",")
    if not all(re.fullmatch(r"(?:0x)?[0-9a-fA-F]{0,8}", group) for group in groups):
        return ()
    value = 0
    for group in groups:
        value = value << 32 | int(group.removeprefix("0x") or "0", 16)
    return tuple(
        bit for bit in range(min(value.bit_length(), _MOST_NUMA_NODES)) if value >> bit & 1
    )
