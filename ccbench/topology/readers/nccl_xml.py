"""NCCL topology XML and RCCL's dialect: what ``NCCL_TOPO_DUMP_FILE`` writes and ``NCCL_TOPO_FILE`` reads.

Dumps state everything NCCL saw; the files of clouds are written by hand and leave much to the driver. Both
are trees of ``<cpu>``, ``<pci>``, ``<gpu>`` and ``<nic>`` with the links between GPUs inside ``<gpu>``.
Sources: NVIDIA/nccl src/graph/xml.cc and topo.cc, ROCm/rccl tools/topo_expl/models.

NVLinks and xGMI links name their far end by bus id and PCI class: a GPU of the same host, an NVSwitch, or a
bridge of the CPU (0x068001, POWER). A far end the driver may not show is ``fffffff:ff:ff.0``, an NVSwitch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from ccbench.errors import MachineError
from ccbench.topology.classes import (
    class_of_direct_links,
    connected_groups,
    nvlink_rate,
    peers_of,
    xgmi_rate,
)
from ccbench.topology.graph import Device, DeviceKind, Link, LinkKind, Topology, TopologyClass, both_ways
from ccbench.topology.pci import GENERATIONS, card_count
from ccbench.topology.readers.nccl_xml_tree import (
    BRIDGE_CLASSES,
    GPU_CLASSES,
    NIC_CLASSES,
    SWITCH_CLASSES,
    Gpu,
    PcieLink,
    Tree,
    bus_id_of,
)
from ccbench.topology.text import one_or_all, whole
from ccbench.topology.xml import Element, parse_below, root_tag

NAME = "NCCL topology XML"

PROCESSOR_CLASS = "0x068001"
MOST_LINKS = 36
"""NVLINK_MAX_LINKS of nvml.h; no xGMI or C2C comes near it."""

_UNSEEN = "fffffff:"


def recognises(text: str) -> bool:
    """Return whether ``text`` looks like this format; never raises."""
    return root_tag(text) == "system"


def read(text: str) -> Topology:
    """Return the machine, or the machines, of ``text``.

    CPUs, PCIe switches, GPUs, NICs and NVSwitches with PCIe, NVLink, xGMI and C2C links in both directions.
    Rates are the file's for PCIe and C2C and the datasheet's for NVLink and xGMI, which the file only counts.
    What looks wrong is kept and noticed, what cannot be drawn is left out and noticed, each with its line.
    Raises MachineError when there is no ``<system>``.
    """
    document, system = parse_below(text, NAME, "system", "NCCL_TOPO_DUMP_FILE")
    tree = Tree(system)
    if not tree.devices and not tree.notices:
        raise MachineError(
            f"{NAME}: line {system.line}: <system> holds no processor and no device; "
            "give the whole of a file that NCCL_TOPO_DUMP_FILE wrote"
        )
    nvlinks, xgmi = _GpuLinks(tree, LinkKind.NVLINK), _GpuLinks(tree, LinkKind.XGMI)
    for gpu in tree.gpus:
        for element in gpu.detail.children if gpu.detail is not None else ():
            count = _count(tree, element) if element.tag in ("c2c", "nvlink", "xgmi") else None
            if count is not None and element.tag == "c2c":
                _c2c(tree, gpu, element, count)
            elif count is not None:
                (nvlinks if element.tag == "nvlink" else xgmi).add(gpu, element, count)
    for joined in (nvlinks, xgmi):
        joined.draw_pairs()
    for joined in (nvlinks, xgmi):
        joined.compare_gpus()
    found, evidence = _class_of(tree, nvlinks, xgmi, system.closed)
    if found is TopologyClass.UNKNOWN:
        tree.note("not_visible", f"NVLink or not, the file does not tell: {evidence}", system)
    nvswitch: bool | None = nvlinks.to_switch
    if not nvswitch and (found is TopologyClass.UNKNOWN or any(gpu.detail is None for gpu in tree.gpus)):
        nvswitch = None
    return Topology(
        name="nccl-xml",
        devices=tuple(tree.devices),
        links=tuple(tree.links),
        topology_class=found,
        source=NAME,
        notices=(*document.notices, *tree.notices),
        facts={**_facts(system, tree, nvlinks, xgmi), "nvswitch": nvswitch, "class_evidence": evidence},
    )


def _count(tree: Tree, element: Element) -> int | None:
    printed = element.attributes.get("count", "1")
    count = whole(printed)
    if count is None or not 1 <= count <= MOST_LINKS:
        tree.note("damaged_line", f"<{element.tag}> with count {printed!r} is left out", element)
        return None
    return count


def _c2c(tree: Tree, gpu: Gpu, element: Element, count: int) -> None:
    """A GPU joined to its CPU: ``count`` links of ``bw`` MB/s each."""
    printed = element.attributes.get("bw", "")
    each, rate, origin = whole(printed), None, "rate not stated"
    if each is not None and each > 0:
        rate, origin = each * count * 1e6, f"stated: {count} x {printed} MB/s"
    else:
        tree.note("not_visible", f"C2C bandwidth {printed!r} of {gpu.name} says no rate", element)
    tree.links += both_ways(Link(gpu.name, gpu.cpu, LinkKind.C2C, rate, count=count, origin=origin))


class _GpuLinks:
    """What one kind of GPU link joins.

    stated: (GPU, GPU) -> links, as each GPU's own entries say. totals: GPU -> links, those to the CPU left
    out. classes: target classes in order of appearance. missing: links whose far end is not in the file.
    """

    def __init__(self, tree: Tree, kind: LinkKind) -> None:
        self.tree, self.kind = tree, kind
        self.stated: Counter[tuple[str, str]] = Counter()
        self.totals: Counter[str] = Counter()
        self.targets: dict[str, set[str]] = {}
        self.classes: dict[str, None] = {}
        self.to_switch = self.to_processor = False
        self.selves = self.missing = self.entries = 0

    def add(self, gpu: Gpu, element: Element, count: int) -> None:
        """Take in ``count`` links of ``gpu`` to one place; draw those that end at no GPU."""
        target = bus_id_of(element.attributes.get("target", ""))
        target_class = element.attributes.get("tclass", "").lower()
        self.entries += 1
        self.targets.setdefault(gpu.name, set()).add(target)
        if target_class:
            self.classes[target_class] = None
        if target_class.startswith(PROCESSOR_CLASS):
            self.to_processor = True
            self.tree.links += both_ways(self._link(gpu, gpu.cpu, count))
            return
        self.totals[gpu.name] += count
        if target_class.startswith(SWITCH_CLASSES) or target.startswith(_UNSEEN):
            self.to_switch = True
            self.tree.links += both_ways(self._link(gpu, self._switch(gpu.node, target, element), count))
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
            if target_class and not target_class.startswith(GPU_CLASSES):
                text = f"{target} is a GPU, the link says class {target_class}"
                self.tree.note("contradiction", text, element)
            self.stated[gpu.name, peer] += count

    def _switch(self, node: int, target: str, element: Element) -> str:
        """The NVSwitch with bus id ``target``; one that nobody may see is the same for all hosts."""
        tree, unseen = self.tree, target.startswith(_UNSEEN)
        node = -1 if unseen and len(tree.hosts) > 1 else node
        name = tree.buses.get((node, target))
        if name is None:
            name = tree.buses[node, target] = tree.name(node, "nvswitch")
            said = {"visible": not unseen}
            tree.devices.append(Device(name, DeviceKind.NVSWITCH, node, target, attributes=said))
            if unseen:
                tree.note("not_visible", "NVLinks end at a switch that the driver does not show", element)
        return name

    def _link(self, gpu: Gpu, target: str, count: int) -> Link:
        """``count`` links as ``gpu`` has them."""
        is_nvlink = self.kind is LinkKind.NVLINK
        rate, origin = nvlink_rate(gpu.says("sm")) if is_nvlink else xgmi_rate(gpu.says("gcn"))
        total = rate * count if rate is not None else None
        return Link(gpu.name, target, self.kind, total, count=count, origin=origin)

    def draw_pairs(self) -> None:
        """Links between GPUs; a direction that only the other side states is drawn too, and noticed."""
        gpus = {gpu.name: gpu for gpu in self.tree.gpus}
        pairs = dict.fromkeys([*self.stated, *((target, source) for source, target in self.stated)])
        for source, target in pairs:
            stated, back = self.stated[source, target], self.stated[target, source]
            gpu = gpus[source]
            if stated != back:
                what = f"{stated} {self.kind.value} links from {source} to {target}"
                text = f"{what}, {back} back: both should be equal"
                self.tree.note("contradiction", text, gpu.detail or gpu.pci)
            self.tree.links.append(self._link(gpu, target, stated or back))

    def compare_gpus(self) -> None:
        """GPUs of one machine have equally many links; the tools skip failing ones without a word."""
        most = max(self.totals.values(), default=0)
        for gpu in self.tree.gpus:
            found = self.totals[gpu.name]
            if found < most:
                text = f"{gpu.name} has {found} links to GPUs or switches, others have {most}: hidden or down"
                self.tree.note("contradiction", text, gpu.detail or gpu.pci)

    def per_gpu(self) -> list[int] | None:
        """Links of each GPU; None where the file has no such links."""
        return [self.totals[gpu.name] for gpu in self.tree.gpus] if self.entries else None

    def groups(self, word: str) -> dict[str, Any]:
        """GPUs that reach each other over direct links, by their index in the file."""
        index = {gpu.name: number for number, gpu in enumerate(self.tree.gpus)}
        near = peers_of(index.values(), [(index[one], index[other]) for one, other in self.stated])
        groups = [sorted(group) for group in connected_groups(near)]
        return {
            f"{word}_groups": [[str(number) for number in group] for group in groups],
            f"{word}_full_mesh_in_each_group": all(
                len(near[number]) == len(group) - 1 for group in groups for number in group
            ),
            f"{word}_symmetric": all(
                self.stated[target, source] == count for (source, target), count in self.stated.items()
            ),
        }


def _class_of(tree: Tree, nvlinks: _GpuLinks, xgmi: _GpuLinks, complete: bool) -> tuple[TopologyClass, str]:
    """The class and why; UNKNOWN where the file leaves it open.

    A file without ``<gpu>`` elements is input for NCCL, which asks the driver for NVLinks when it runs:
    that it names none says nothing.
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
    return TopologyClass.UNKNOWN, "no <gpu> elements: NVLinks are asked of the driver when NCCL runs"


def _distinct(values: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys(value for value in values if value is not None))


def _facts(system: Element, tree: Tree, nvlinks: _GpuLinks, xgmi: _GpuLinks) -> dict[str, Any]:
    """Everything countable; strings where the file prints strings."""
    facts: dict[str, Any] = {
        "root": system.tag,
        "version": system.attributes.get("version"),
        **_device_facts(tree),
        **_host_facts(tree),
        **_pcie_facts(tree),
        "nvlinks_per_gpu": nvlinks.per_gpu(),
        "nvlink_target_classes": list(nvlinks.classes),
        "nvlink_self_targets": nvlinks.selves,
        "gpu_matrix": None,
    }
    if xgmi.entries:
        facts["xgmi_links_per_gpu"] = xgmi.per_gpu()
    for word, joined in (("nvlink", nvlinks), ("xgmi", xgmi)):
        if joined.stated or joined.selves:
            facts |= joined.groups(word)
    entries = [entry.attributes for gpu in tree.gpus if gpu.detail for entry in gpu.detail.named("c2c")]
    pairs = [(whole(entry.get("bw", "")), whole(entry.get("count", ""))) for entry in entries]
    sound = [(bw, count) for bw, count in pairs if bw is not None and count is not None]
    if sound:
        bw, count = sound[0]
        facts["c2c"] = {"bw": bw, "count": count, "GBps": bw * count / 1000}
        facts["c2c_links_per_gpu"] = [count for _, count in sound]
    return facts


def _device_facts(tree: Tree) -> dict[str, Any]:
    """Devices by what the file calls them. Physical ones are PCI devices, however many elements each has."""
    classes = [pci.attributes.get("class", "").lower() for pci in tree.pcis]
    nics = sum(said.startswith(NIC_CLASSES) for said in classes)
    unstated = sum(not said and bool(pci.named("nic")) for said, pci in zip(classes, tree.pcis, strict=True))
    speeds = {whole(net.attributes.get("speed", "")) for net in tree.nets}
    switches = [device for device in tree.devices if device.kind is DeviceKind.NVSWITCH]
    visible = all(device.attributes.get("visible", True) for device in switches)
    cards = [
        device
        for device in tree.devices
        if device.kind is DeviceKind.NIC
        and str(device.attributes.get("class", NIC_CLASSES[0])).lower().startswith(NIC_CLASSES)
    ]
    return {
        "gpu_count": None if tree.unclear and not tree.gpus else len(tree.gpus),
        "gpu_elements": sum(gpu.detail is not None for gpu in tree.gpus),
        "gpu_class_pci": sum(said.startswith(GPU_CLASSES) for said in classes),
        "gpu_physical_count": len({(gpu.node, gpu.bus_id) for gpu in tree.gpus}),
        "nic_count": nics + unstated,
        "nic_class_pci": nics,
        "nic_physical_count": card_count(cards),
        "net_elements": len(tree.nets),
        "net_distinct_names": len({net.attributes.get("name") for net in tree.nets}),
        "net_speeds_mbps": sorted(speed for speed in speeds if speed is not None),
        "bridge_pci": sum(said.startswith(BRIDGE_CLASSES) for said in classes),
        "pci_elements": len(tree.pcis),
        "cpu_count": len(tree.cpus),
        "nvswitch_count": len(switches) if switches and visible else None,
        "sm": _distinct(gpu.says("sm") or None for gpu in tree.gpus),
    }


def _host_facts(tree: Tree) -> dict[str, Any]:
    cpu = tree.cpus[0].attributes if tree.cpus else {}
    numa = [element.attributes.get("numaid", "") for element in tree.cpus]
    gpus, nics = ([0] * len(tree.hosts) for _ in range(2))
    for gpu in tree.gpus:
        gpus[gpu.node] += 1
    for device in tree.devices:
        if device.kind is DeviceKind.NIC and str(device.attributes.get("class", "")).startswith(NIC_CLASSES):
            nics[device.node] += 1
    return {
        "hosts": len(tree.hosts),
        "gpu_per_host": one_or_all(gpus),
        "nic_count_per_host": one_or_all(nics),
        "numa_nodes": numa,
        "numa_node_count": len(set(numa)),
        "cpu": {key: cpu[key] for key in ("arch", "vendor", "familyid", "modelid") if key in cpu},
    }


def _pcie_facts(tree: Tree) -> dict[str, Any]:
    """Speed and width as printed, and the slowest of both that any GPU has."""
    above = [gpu.pci.attributes for gpu in tree.gpus]
    printed = _distinct((said.get("link_speed"), said.get("link_width")) for said in above)
    links = [PcieLink(said) for said in above]
    speeds = [link.gigatransfers for link in links if link.gigatransfers is not None]
    return {
        "gpu_pci_link": [{"speed": speed, "width": width} for speed, width in printed],
        "gpu_pci_device_ids": _distinct(said.get("device") for said in above),
        "pcie_gen": GENERATIONS[min(speeds)] if speeds else None,
        "pcie_width": min((link.lanes for link in links if link.lanes is not None), default=None),
    }
