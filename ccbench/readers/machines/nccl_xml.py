"""NCCL topology XML and RCCL's dialect: what ``NCCL_TOPO_DUMP_FILE`` writes and ``NCCL_TOPO_FILE`` reads.

Dumps state everything NCCL saw; the files of clouds are written by hand and leave much to the driver. Both
are trees of ``<cpu>``, ``<pci>``, ``<gpu>`` and ``<nic>`` with the links between GPUs inside ``<gpu>``.
Sources: NVIDIA/nccl src/graph/xml.cc and topo.cc, ROCm/rccl tools/topo_expl/models.

NVLinks and xGMI links name their far end by bus id and PCI class: a GPU of the same host, an NVSwitch, or a
bridge of the CPU (0x068001, POWER). A far end the driver may not show is ``fffffff:ff:ff.0``, an NVSwitch.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

from ccbench.errors import MachineError
from ccbench.findings import SourceWarning
from ccbench.readers.lines import whole
from ccbench.readers.xml import Element, parse_below, root_tag
from ccbench.topology.classes import (
    ClassVerdict,
    class_of_direct_links,
    class_of_model,
    is_card,
    is_module,
    nvlink_rate,
    nvlinks_of_model,
    xgmi_rate,
)
from ccbench.topology.graph import Device, DeviceKind, Link, LinkKind, Topology, TopologyClass
from ccbench.topology.pci import CODING, bytes_per_second, model_of

NAME = "NCCL topology XML"

_ACCEPTED = frozenset(
    {f"{speed} GT/s" for speed in ("2.5", "5", "8", "16", "32")}
    | {f"{speed} GT/s PCIe" for speed in ("2.5", "5.0", "8.0", "16.0", "32.0", "64.0")}
)
"""Spellings that NCCL reads (kvDictPciGen in src/graph/topo.cc); it takes any other for 8 GT/s."""

# Beginnings of PCI classes. GPUs: display controllers; processing accelerators (AMD since MI300). Bridges: 0x080100
# is the data-direct function of a ConnectX-8, which NCCL takes so. POWER processors are bridges of class 0x068001.
_GPUS = ("0x03", "0x12")
_NETWORK = ("0x02",)
_BRIDGES = ("0x0604", "0x080100")
_SWITCHES = ("0x068000",)
_PROCESSORS = ("0x068001",)
_UNSEEN = "fffffff:"

_MOST_LINKS = 36
"""NVLINK_MAX_LINKS of nvml.h; no xGMI or C2C comes near it."""

_FASTEST_NET_MBPS = 1_600_000
"""Twice the fastest port sold (800 Gb/s): what a file says beyond it was made up."""

MOST_SOCKETS = 16
"""NUMA nodes of one host that are joined with each other; a file with more of them is no machine."""

_AMD = "0x1002"
_LONGEST_TEXT = 200
"""Characters of a warning: it quotes the file, and a damaged file can hold anything."""

_KNOWN = frozenset({"cpu", "pci", "nic", "net", "gpu", "nvlink", "c2c", "xgmi", "pcilink"})
_SPEED = re.compile(r"\s*([0-9]{1,3}(?:\.[0-9]{1,3})?)\s*GT/s", re.ASCII | re.IGNORECASE)
_NAMES = {
    DeviceKind.GPU: "gpu",
    DeviceKind.NIC: "nic",
    DeviceKind.NVSWITCH: "nvswitch",
    DeviceKind.PCIE_SWITCH: "pcie",
}


def recognises(text: str) -> bool:
    """Return whether ``text`` looks like this format; never raises."""
    return root_tag(text) == "system"


def read(text: str) -> Topology:
    """Return the machine, or the machines, of ``text``.

    CPUs, PCIe switches, GPUs, NICs and NVSwitches with PCIe, NVLink, xGMI and C2C links in both directions.
    Rates are the file's for PCIe and C2C and the datasheet's for NVLink and xGMI, which the file only counts.
    What looks wrong is kept, what cannot be drawn is left out, each with a warning that names the line.
    Raises MachineError when there is no ``<system>``.
    """
    document, system = parse_below(text, NAME, "system", "NCCL_TOPO_DUMP_FILE")
    tree = PcieTree(system)
    if not tree.devices and not tree.warnings:
        raise MachineError(
            f"{NAME}: line {system.line}: <system> holds no processor and no device; "
            "give the whole of a file that NCCL_TOPO_DUMP_FILE wrote"
        )
    # Links between GPUs name their ends by bus id, so they are drawn when every device is known.
    nvlinks, xgmi = _GpuLinks(tree, LinkKind.NVLINK), _GpuLinks(tree, LinkKind.XGMI)
    for gpu in tree.gpus:
        for element in gpu.detail.children if gpu.detail is not None else ():
            if element.tag not in ("c2c", "nvlink", "xgmi"):
                continue
            printed = element.attributes.get("count", "1")
            count = whole(printed)
            if count is None or not 1 <= count <= _MOST_LINKS:
                tree.note(
                    "damaged_line",
                    f"<{element.tag}> with count {printed!r} is left out",
                    element,
                )
            elif element.tag == "c2c":
                # A GPU joined to its CPU: ``count`` links of ``bw`` MB/s each.
                printed = element.attributes.get("bw", "")
                each, rate, origin = whole(printed) or 0, None, "rate not stated"
                if each > 0:
                    rate, origin = each * count * 1e6, f"stated: {count} x {printed} MB/s"
                else:
                    tree.note(
                        "not_visible",
                        f"C2C bandwidth {printed!r} of {gpu.name} says no rate",
                        element,
                    )
                tree.links += Link(
                    gpu.name, gpu.cpu, LinkKind.C2C, rate, count=count, origin=origin
                ).both_ways()
            else:
                (nvlinks if element.tag == "nvlink" else xgmi).add(gpu, element, count)
    for joined in (nvlinks, xgmi):
        joined.draw_pairs()
    topology_class, evidence = _class_of(tree, nvlinks, xgmi, system.closed)
    if topology_class is TopologyClass.UNKNOWN:
        tree.note("not_visible", f"NVLink or not, the file does not tell: {evidence}", system)
    return Topology(
        name="nccl-xml",
        devices=tuple(tree.devices),
        links=tuple(tree.links),
        topology_class=topology_class,
        source=NAME,
        warnings=(*document.warnings, *tree.warnings),
        facts=_facts(tree, nvlinks),
    )


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
    """Place of an element in the tree."""

    node: int
    cpu: str
    parent: str
    numa_node: int | None


def bus_id_of(text: str) -> str:
    """Return a bus id as it is compared: without blanks, in lower case."""
    return text.strip().lower()


class PcieTree:
    """The PCIe tree of a file: devices, the links of the tree, what looks wrong in it.

    hosts: host_hash -> index, in order. buses: (host, bus id) -> name. unclear: PCI devices that may be anything.
    """

    def __init__(self, system: Element) -> None:
        self.cpus = system.named("cpu")
        self.devices: list[Device] = []
        self.links: list[Link] = []
        self.warnings: list[SourceWarning] = []
        self.gpus: list[Gpu] = []
        self.buses: dict[tuple[int, str], str] = {}
        self.unclear = 0
        self._counts: dict[tuple[int, str], int] = {}
        hashes = dict.fromkeys(cpu.attributes.get("host_hash", "") for cpu in self.cpus)
        self.hosts = {host: index for index, host in enumerate(hashes)}
        unknown: dict[str, Element] = {}
        for element in system.walk():
            if element is not system and element.tag not in _KNOWN:
                unknown.setdefault(element.tag, element)
        for tag, element in unknown.items():
            self.note("unsupported", f"<{tag}> is left out", element)
        for child in system.children:
            if child.tag in ("pci", "nic", "gpu", "net"):
                self.note("damaged_line", f"<{child.tag}> outside any <cpu> is left out", child)
        if len(self.hosts) > 1:
            text = f"{len(self.hosts)} hosts in one file: bus ids and device numbers count within each"
            self.note("several_hosts", text, system)
        self._add_cpus()
        self.gpu_names = {gpu.name for gpu in self.gpus}
        # The NUMA nodes of one host reach each other; the file does not say at what rate.
        by_node: dict[int, list[str]] = {}
        for device in self.devices:
            if device.kind is DeviceKind.CPU:
                by_node.setdefault(device.node, []).append(device.name)
        for names in by_node.values():
            if len(names) > MOST_SOCKETS:
                text = (
                    f"{len(names)} NUMA nodes in one host: the links between them are left out"
                )
                self.warnings.append(SourceWarning("contradiction", text))
                continue
            for source, target in itertools.permutations(names, 2):
                origin = "NUMA nodes of one host"
                self.links.append(Link(source, target, LinkKind.INTER_SOCKET, origin=origin))

    def note(self, kind: str, text: str, element: Element) -> None:
        """Add a warning about ``element``, on one line and not longer than people read."""
        self.warnings.append(
            SourceWarning(kind, " ".join(text[:_LONGEST_TEXT].split()), element.line)
        )

    def name(self, node: int, word: str) -> str:
        """Return the next free name such as ``gpu3``, with the host in front where there are several."""
        index = self._counts.get((node, word), 0)
        self._counts[node, word] = index + 1
        return self._prefixed(node, f"{word}{index}")

    def _prefixed(self, node: int, name: str) -> str:
        return f"n{node}.{name}" if len(self.hosts) > 1 and node >= 0 else name

    def _add_cpus(self) -> None:
        """The NUMA nodes, each with everything below it."""
        stated = [whole(cpu.attributes.get("numaid", "")) or 0 for cpu in self.cpus]
        # Above every number the file states, so that no later <cpu> finds its name taken.
        spare = itertools.count(max(stated, default=-1) + 1)
        taken: set[str] = set()
        for element in self.cpus:
            attributes = element.attributes
            node = self.hosts[attributes.get("host_hash", "")]
            numa = whole(attributes.get("numaid", ""))
            is_stated, name = numa is not None and numa >= 0, self._prefixed(node, f"cpu{numa}")
            if not is_stated:
                text = f"NUMA node {attributes.get('numaid', '')!r}: the system did not say which one"
                self.note("not_visible", text, element)
            elif name in taken:
                text = f"NUMA node {numa} stands in the file twice"
                self.note("contradiction", text, element)
            if not is_stated or name in taken:
                name = self._prefixed(node, f"cpu{next(spare)}")
            taken.add(name)
            cpu_attributes: dict[str, Any] = {
                key: attributes[key] for key in ("arch", "vendor") if key in attributes
            }
            self.devices.append(
                Device(name, DeviceKind.CPU, node, numa_node=numa, attributes=cpu_attributes)
            )
            self._add_children(element, _Place(node, name, name, numa))

    def _add_children(self, element: Element, place: _Place) -> None:
        for child in element.children:
            if child.tag == "pci":
                self._add_pci(child, place)
            elif child.tag == "nic" and place.parent == place.cpu:
                # Network interfaces that no PCI device stands for: virtual ones, or their place is hidden.
                for net in child.named("net"):
                    name = self.name(place.node, "nic")
                    stated = self._net_attributes([net])
                    self.devices.append(
                        Device(name, DeviceKind.NIC, place.node, "", place.numa_node, stated)
                    )
                    origin = "no PCI device stated for this interface"
                    self.links += Link(
                        place.cpu, name, LinkKind.PCIE, origin=origin
                    ).both_ways()

    def _kind(self, element: Element) -> DeviceKind | None:
        """Kind by the children before the class, which hand-written files leave out."""
        pci_class, bus_id = (
            element.attributes.get("class", "").lower(),
            element.attributes.get("busid", ""),
        )
        for child, classes, kind in (
            ("gpu", _GPUS, DeviceKind.GPU),
            ("nic", _NETWORK, DeviceKind.NIC),
            ("", _SWITCHES, DeviceKind.NVSWITCH),
            ("pci", _BRIDGES, DeviceKind.PCIE_SWITCH),
        ):
            if element.named(child) or pci_class.startswith(classes):
                return kind
        if pci_class:
            self.note(
                "unsupported", f"PCI device {bus_id} of class {pci_class} is left out", element
            )
        else:
            self.unclear += 1
            text = f"PCI device {bus_id}: class not stated, whether GPU or NIC is unknown"
            self.note("not_visible", text, element)
        return None

    def _add_pci(self, element: Element, place: _Place) -> None:
        kind = self._kind(element)
        if kind is None:
            return
        bus_id = bus_id_of(element.attributes.get("busid", ""))
        details: list[Element | None] = (
            [*element.named("gpu")] if kind is DeviceKind.GPU else []
        )
        if len(details) > 1:
            text = (
                f"{len(details)} <gpu> at {bus_id}: parts of one device, or dies of one package"
            )
            self.note("repeated_bus_id", text, element)
        # A partitioned device or a package of several dies is one PCI device with several GPUs.
        for detail in details or [None]:
            name = self.name(place.node, _NAMES[kind])
            holder = self.buses.setdefault((place.node, bus_id), name)
            if holder != name and len(details) < 2:
                self.note(
                    "repeated_bus_id",
                    f"bus id {bus_id!r} of {name} is that of {holder} too",
                    element,
                )
            attributes: dict[str, Any] = {
                key: text for key, text in element.attributes.items() if key != "busid"
            }
            if kind is DeviceKind.GPU:
                self.gpus.append(Gpu(name, place.node, bus_id, place.cpu, element, detail))
                attributes |= detail.attributes if detail is not None else {}
                model = model_of(
                    element.attributes.get("vendor", ""), element.attributes.get("device", "")
                )
                attributes |= {"model": model} if model is not None else {}
            elif kind is DeviceKind.NIC:
                nets = [net for nic in element.named("nic") for net in nic.named("net")]
                attributes |= self._net_attributes(nets)
            self._link_above(element, name, place.parent)
            self.devices.append(
                Device(name, kind, place.node, bus_id, place.numa_node, attributes)
            )
        self._add_children(element, _Place(place.node, place.cpu, name, place.numa_node))

    def _link_above(self, element: Element, name: str, parent: str) -> None:
        """Link ``name`` to what it hangs on; NCCL guesses where speed or width are not to be read.

        A width of 0 and a speed no PCIe has are as good as not stated.
        """
        speed, width = (element.attributes.get(key, "") for key in ("link_speed", "link_width"))
        attributes: dict[str, float] = {}
        match = _SPEED.match(speed)
        if match and float(match[1]) in CODING:
            attributes["gigatransfers"] = float(match[1])
            if speed not in _ACCEPTED:
                text = f"PCIe speed {speed!r} above {name} is read as {match[1]} GT/s (NCCL takes 8)"
                self.note("unknown_spelling", text, element)
        else:
            is_empty = not speed.strip() or "unknown" in speed.lower()
            text = f"PCIe speed {speed!r} above {name} says no rate (NCCL takes 8 GT/s)"
            self.note("not_visible" if is_empty else "unknown_spelling", text, element)
        lanes = whole(width) or 0
        if 1 <= lanes <= 32:
            attributes["width"] = lanes
        else:
            text = f"PCIe width {width!r} above {name} says no lanes (NCCL takes 16)"
            self.note("not_visible", text, element)
        rate = bytes_per_second(attributes.get("gigatransfers"), lanes)
        origin = f"stated: {speed} x{width}, less the coding"
        origin = "speed or width not stated" if rate is None else origin
        self.links += Link(
            parent, name, LinkKind.PCIE, rate, origin=origin, attributes=attributes
        ).both_ways()

    def _net_attributes(self, nets: list[Element]) -> dict[str, Any]:
        """Name of the first, and the rate together, of the ports ``nets`` of a NIC."""
        if not nets:
            return {}
        rates = []
        for net in nets:
            printed, name = net.attributes.get("speed", ""), net.attributes.get("name", "")
            mbps = whole(printed) or 0
            if mbps <= 0:
                text = f"net {name!r}: speed {printed!r} says no rate (NCCL takes 10000 Mb/s)"
                self.note("not_visible", text, net)
                continue
            if mbps > _FASTEST_NET_MBPS:
                text = f"net {name!r}: {mbps} Mb/s is implausible; kept as stated"
                self.note("contradiction", text, net)
            rates.append(mbps)
        return {
            "name": nets[0].attributes.get("name", ""),
            "net_bytes_per_second": sum(rates) * 1e6 / 8 if len(rates) == len(nets) else None,
        }


class _GpuLinks:
    """Links of one kind between GPUs, or from GPUs to switches and CPUs.

    stated: (GPU, GPU) -> links, as each GPU's own entries say. totals: GPU -> links, those to the CPU left
    out. missing: links whose far end is not in the file.
    """

    def __init__(self, tree: PcieTree, kind: LinkKind) -> None:
        self.tree, self.kind = tree, kind
        self.stated: Counter[tuple[str, str]] = Counter()
        self.totals: Counter[str] = Counter()
        self.targets: dict[str, set[str]] = {}
        self.to_switch = self.to_processor = False
        self.selves = self.missing = 0

    def add(self, gpu: Gpu, element: Element, count: int) -> None:
        """Take in ``count`` links of ``gpu`` to one place; draw those that end at no GPU."""
        target = bus_id_of(element.attributes.get("target", ""))
        target_class = element.attributes.get("tclass", "").lower()
        self.targets.setdefault(gpu.name, set()).add(target)
        if target_class.startswith(_PROCESSORS):
            self.to_processor = True
            self.tree.links += self._link(gpu, gpu.cpu, count).both_ways()
            return
        self.totals[gpu.name] += count
        if target_class.startswith(_SWITCHES) or target.startswith(_UNSEEN):
            self.to_switch = True
            tree, unseen = self.tree, target.startswith(_UNSEEN)
            # An NVSwitch that nobody may see is the same for all hosts.
            node = -1 if unseen and len(tree.hosts) > 1 else gpu.node
            name = tree.buses.get((node, target))
            if name is None:
                name = tree.buses[node, target] = tree.name(node, "nvswitch")
                attributes = {"visible": not unseen}
                tree.devices.append(
                    Device(name, DeviceKind.NVSWITCH, node, target, attributes=attributes)
                )
                if unseen:
                    tree.note(
                        "not_visible",
                        "NVLinks end at a switch that the driver does not show",
                        element,
                    )
            tree.links += self._link(gpu, name, count).both_ways()
            return
        peer = self.tree.buses.get((gpu.node, target), "")
        if target == gpu.bus_id or peer == gpu.name:
            self.selves += 1
            text = f"{gpu.name}: {count} {element.tag} links to itself ({target}): the true end is not known"
            self.tree.note("self_link", text, element)
        elif peer not in self.tree.gpu_names:
            self.missing += 1
            what = f"is {peer}, no GPU" if peer else "is not in the file"
            text = f"{gpu.name}: {count} {element.tag} links to {target}, which {what}"
            self.tree.note("missing_peer", text, element)
        else:
            self.stated[gpu.name, peer] += count

    def _link(self, gpu: Gpu, target: str, count: int) -> Link:
        """``count`` links as ``gpu`` has them."""
        is_nvlink = self.kind is LinkKind.NVLINK
        rate, origin = nvlink_rate(gpu.says("sm")) if is_nvlink else xgmi_rate(gpu.says("gcn"))
        total = rate * count if rate is not None else None
        return Link(gpu.name, target, self.kind, total, count=count, origin=origin)

    def draw_pairs(self) -> None:
        """Links between GPUs; a direction that only the other side states is drawn too, with a warning."""
        gpus = {gpu.name: gpu for gpu in self.tree.gpus}
        pairs = dict.fromkeys(
            [*self.stated, *((target, source) for source, target in self.stated)]
        )
        for source, target in pairs:
            stated, back = self.stated[source, target], self.stated[target, source]
            gpu = gpus[source]
            if stated != back:
                what = f"{stated} {self.kind.value} links from {source} to {target}"
                text = f"{what}, {back} back: both should be equal"
                self.tree.note("contradiction", text, gpu.detail or gpu.pci)
            self.tree.links.append(self._link(gpu, target, stated or back))

    def per_gpu(self) -> list[int] | None:
        """Links of each GPU; None where the file has no such links."""
        return [self.totals[gpu.name] for gpu in self.tree.gpus] if self.targets else None


def _class_of(
    tree: PcieTree, nvlinks: _GpuLinks, xgmi: _GpuLinks, complete: bool
) -> tuple[TopologyClass, str]:
    """The class and why; UNKNOWN where the file leaves it open.

    A file without ``<gpu>`` elements is input for NCCL, which asks the driver for NVLinks when it runs:
    that it names none says nothing, and the class is inferred from PCI ids where they leave one.
    """
    names = [gpu.name for gpu in tree.gpus]
    if nvlinks.to_switch:
        return TopologyClass.NVSWITCH, "NVLinks end at NVSwitches"
    if xgmi.stated:
        return TopologyClass.XGMI_MESH, "xGMI links between GPUs"
    if not complete:
        return TopologyClass.UNKNOWN, "the file is cut off"
    if nvlinks.missing or xgmi.missing:
        return TopologyClass.UNKNOWN, "links end at GPUs that are not in the file"
    direct = class_of_direct_links(names, nvlinks.stated, nvlinks.to_processor)
    if direct is not None:
        return direct, "NVLinks between GPUs"
    one_end_each = all(len(nvlinks.targets.get(name, ())) == 1 for name in names)
    if len(names) > 1 and nvlinks.selves == len(names) and one_end_each:
        evidence = "all NVLinks of each GPU end at one GPU (wrongly stated as itself)"
        return TopologyClass.NVLINK_BRIDGE, evidence
    if nvlinks.selves or xgmi.selves:
        return TopologyClass.UNKNOWN, "links are stated to end where they begin"
    if not names or tree.unclear:
        return TopologyClass.UNKNOWN, "which devices are GPUs is not stated"
    if len(names) == 1:
        return TopologyClass.SINGLE_GPU, "one GPU"
    if all(gpu.detail is not None for gpu in tree.gpus):
        return TopologyClass.PCIE, "no GPU has an NVLink or xGMI link"
    verdict = _class_of_ids(tree)
    if verdict is not None:
        text = f"the class {verdict.topology_class.value} is inferred from the PCI ids, for the file states no"
        tree.note("assumed", f"{text} links between GPUs: {verdict.reason}", tree.gpus[0].pci)
        return verdict.topology_class, f"inferred: {verdict.reason}"
    return (
        TopologyClass.UNKNOWN,
        "no <gpu> elements: NVLinks are asked of the driver when NCCL runs",
    )


def _class_of_ids(tree: PcieTree) -> ClassVerdict | None:
    """The class of the boards that GPUs of these PCI ids are sold on; None where several classes are.

    Only of a file whose GPUs are of one listed model. Cards with NVLinks may have a bridge on, or none.
    """
    ids = {
        (gpu.pci.attributes.get("vendor", ""), gpu.pci.attributes.get("device", ""))
        for gpu in tree.gpus
    }
    models = {model_of(*pair) for pair in ids}
    model = models.pop() if len(models) == 1 else None
    if model is None or len(tree.hosts) > 1:
        return None
    if all(vendor.strip().lower() == _AMD for vendor, _ in ids):
        reason = f"boards with {model} join all GPUs by xGMI"
        is_board = len(tree.gpus) == 8 and re.search(r"MI3[0-9]{2}X", model) is not None
        return ClassVerdict(TopologyClass.XGMI_MESH, reason) if is_board else None
    if is_module(model):
        verdict = class_of_model(model, len(tree.gpus) - 1)
        return verdict if verdict.topology_class is not TopologyClass.UNKNOWN else None
    # The GeForce 3090 is the last card with a bridge whose number of NVLinks nobody states.
    linked = nvlinks_of_model(model) is not None or model.endswith("3090")
    if linked or not is_card(model):
        return None
    return ClassVerdict(TopologyClass.PCIE, f"cards {model} have no NVLinks")


def _facts(tree: PcieTree, nvlinks: _GpuLinks) -> dict[str, Any]:
    """Return what the graph does not say of the machine; None for counts that the file leaves open."""
    switches = [device for device in tree.devices if device.kind is DeviceKind.NVSWITCH]
    facts: dict[str, Any] = {"nvlinks_per_gpu": nvlinks.per_gpu()}
    if tree.unclear and not tree.gpus:
        facts["gpu_count"] = None
    if not all(switch.attributes["visible"] for switch in switches) or not switches:
        facts["nvswitch_count"] = None
    return facts
