"""NCCL topology XML and RCCL's dialect: what ``NCCL_TOPO_DUMP_FILE`` writes and ``NCCL_TOPO_FILE`` reads.

Dumps state everything NCCL saw; the files of clouds are written by hand and leave much to the driver. Both
are trees of ``<cpu>``, ``<pci>``, ``<gpu>`` and ``<nic>`` with the links between GPUs inside ``<gpu>``.
Sources: NVIDIA/nccl src/graph/xml.cc and topo.cc, ROCm/rccl tools/topo_expl/models.

The links that ``<nvlink>``, ``<xgmi>`` and ``<c2c>`` of a topology file name, drawn both ways.

NVLinks and xGMI links name their far end by bus id and PCI class: a GPU of the same host, an NVSwitch, or a
bridge of the CPU (0x068001, POWER). A far end the driver may not show is ``fffffff:ff:ff.0``, an NVSwitch.

What an NCCL or RCCL topology file says about a machine, as facts, and the class that follows from it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ccbench.errors import MachineError
from ccbench.topology.classes import class_of_direct_links, connected_groups
from ccbench.topology.graph import Device, DeviceKind, Link, LinkKind, Notice, Topology, TopologyClass
from ccbench.topology.readers.nccl_xml_tree import (
    BRIDGE_CLASSES,
    GENERATIONS,
    GPU_CLASSES,
    NIC_CLASSES,
    Gpu,
    Tree,
    bus_id_of,
    collect,
    nvlink_rate,
    pcie_link,
    xgmi_rate,
)
from ccbench.topology.text import whole
from ccbench.topology.xml import Element, parse_xml, root_tag

NAME = "NCCL topology XML"


def recognises(text: str) -> bool:
    """Whether ``text`` looks like this format; never raises."""
    return root_tag(text) == "system"


def read(text: str) -> Topology:
    """The machine, or the machines, of ``text``.

    CPUs, PCIe switches, GPUs, NICs and NVSwitches with PCIe, NVLink, xGMI and C2C links in both directions.
    Rates are the file's for PCIe and C2C and the datasheet's for NVLink and xGMI, which the file only counts.
    What looks wrong is kept and noticed, what cannot be drawn is left out and noticed, each with its line.
    Raises MachineError when there is no ``<system>``.
    """
    document = parse_xml(text, NAME)
    system = next((element for element in document.root.walk() if element.tag == "system"), None)
    if system is None:
        raise MachineError(
            f"{NAME}: line {document.root.line}: <{document.root.tag}> was found, <system> was expected; "
            "give a file that NCCL_TOPO_DUMP_FILE wrote"
        )
    tree = collect(system)
    if not tree.devices and not tree.notices:
        raise MachineError(
            f"{NAME}: line {system.line}: <system> holds no processor and no device; "
            "give the whole of a file that NCCL_TOPO_DUMP_FILE wrote"
        )
    nvlinks, xgmi = draw(tree)
    found, evidence = class_of(tree, nvlinks, xgmi, system.closed)
    if found is TopologyClass.UNKNOWN:
        tree.notices.append(
            Notice("not_visible", f"NVLink or not, the file does not tell: {evidence}", system.line)
        )
    facts = facts_of(system, tree, nvlinks, xgmi)
    return Topology(
        name="nccl-xml",
        devices=tuple(tree.devices),
        links=tuple(tree.links),
        topology_class=found,
        source=NAME,
        notices=(*document.notices, *tree.notices),
        facts={**facts, "nvswitch": nvswitch_of(tree, nvlinks, found), "class_evidence": evidence},
    )


SWITCH_CLASS = "0x068000"
PROCESSOR_CLASS = "0x068001"
MOST_LINKS = 36
"""NVLINK_MAX_LINKS of nvml.h; no xGMI or C2C comes near it."""

_UNSEEN = "fffffff:"


@dataclass
class Joined:
    """What one kind of GPU link joins.

    stated: (GPU, GPU) -> links, as each GPU's own entries say. totals: GPU -> links, those to the CPU left
    out. classes: target classes in order of appearance. missing: links whose far end is not in the file.
    """

    stated: Counter[tuple[str, str]] = field(default_factory=Counter)
    totals: Counter[str] = field(default_factory=Counter)
    targets: dict[str, set[str]] = field(default_factory=dict)
    classes: dict[str, None] = field(default_factory=dict)
    to_switch: bool = False
    unseen_switch: bool = False
    to_processor: bool = False
    selves: int = 0
    missing: int = 0
    entries: int = 0


def draw(tree: Tree) -> tuple[Joined, Joined]:
    """Add all links of GPUs to ``tree``; what the NVLinks and what the xGMI links join."""
    nvlinks, xgmi = Joined(), Joined()
    for gpu in tree.gpus:
        for element in gpu.detail.children if gpu.detail is not None else ():
            if element.tag == "c2c":
                _c2c(tree, gpu, element)
            elif element.tag in ("nvlink", "xgmi"):
                _entry(tree, gpu, element, nvlinks if element.tag == "nvlink" else xgmi)
    _draw_pairs(tree, nvlinks, LinkKind.NVLINK)
    _draw_pairs(tree, xgmi, LinkKind.XGMI)
    _compare_gpus(tree, nvlinks)
    _compare_gpus(tree, xgmi)
    return nvlinks, xgmi


def _count(tree: Tree, element: Element) -> int | None:
    printed = element.attributes.get("count", "1")
    count = whole(printed)
    if count is None or not 1 <= count <= MOST_LINKS:
        tree.note("damaged_line", f"<{element.tag}> with count {printed!r} is left out", element)
        return None
    return count


def _both_ways(tree: Tree, one: str, other: str, link: Link) -> None:
    for source, target in ((one, other), (other, one)):
        tree.links.append(
            Link(source, target, link.kind, link.bytes_per_second, count=link.count, origin=link.origin)
        )


def _c2c(tree: Tree, gpu: Gpu, element: Element) -> None:
    """A GPU joined to its CPU: ``count`` links of ``bw`` MB/s each."""
    count, printed = _count(tree, element), element.attributes.get("bw", "")
    if count is None:
        return
    each = whole(printed)
    if each is None or each <= 0:
        tree.note("not_visible", f"C2C bandwidth {printed!r} of {gpu.name} says no rate", element)
        each = None
    rate = each * count * 1e6 if each is not None else None
    origin = f"stated: {count} x {printed} MB/s" if rate is not None else "rate not stated"
    _both_ways(tree, gpu.name, gpu.cpu, Link("", "", LinkKind.C2C, rate, count=count, origin=origin))


def _entry(tree: Tree, gpu: Gpu, element: Element, joined: Joined) -> None:
    count = _count(tree, element)
    if count is None:
        return
    target = bus_id_of(element.attributes.get("target", ""))
    target_class = element.attributes.get("tclass", "").lower()
    joined.entries += 1
    joined.targets.setdefault(gpu.name, set()).add(target)
    if target_class:
        joined.classes[target_class] = None
    kind = LinkKind.NVLINK if element.tag == "nvlink" else LinkKind.XGMI
    if target_class.startswith(PROCESSOR_CLASS):
        joined.to_processor = True
        _both_ways(tree, gpu.name, gpu.cpu, _link(gpu, kind, count))
        return
    joined.totals[gpu.name] += count
    if target_class.startswith(SWITCH_CLASS) or target.startswith(_UNSEEN):
        joined.to_switch = True
        joined.unseen_switch |= target.startswith(_UNSEEN)
        _both_ways(tree, gpu.name, _switch(tree, gpu.node, target, element), _link(gpu, kind, count))
        return
    _to_gpu(tree, gpu, element, joined, count)


def _to_gpu(tree: Tree, gpu: Gpu, element: Element, joined: Joined, count: int) -> None:
    target = bus_id_of(element.attributes.get("target", ""))
    target_class = element.attributes.get("tclass", "").lower()
    peer = tree.buses.get((gpu.node, target), "")
    if target == gpu.bus_id or peer == gpu.name:
        joined.selves += 1
        text = f"{gpu.name}: {count} {element.tag} links to itself ({target}): the true end is not known"
        tree.note("self_link", text, element)
    elif peer not in tree.gpu_names:
        joined.missing += 1
        what = f"is {peer}, no GPU" if peer else "is not in the file"
        tree.note(
            "missing_peer", f"{gpu.name}: {count} {element.tag} links to {target}, which {what}", element
        )
    else:
        if target_class and not target_class.startswith(GPU_CLASSES):
            tree.note("contradiction", f"{target} is a GPU, the link says class {target_class}", element)
        joined.stated[gpu.name, peer] += count


def _switch(tree: Tree, node: int, target: str, element: Element) -> str:
    """The NVSwitch with bus id ``target``; one that nobody may see is the same for all hosts of the file."""
    unseen = target.startswith(_UNSEEN)
    node = -1 if unseen and len(tree.hosts) > 1 else node
    name = tree.buses.get((node, target))
    if name is None:
        name = tree.buses[node, target] = tree.name(node, "nvswitch")
        tree.devices.append(
            Device(name, DeviceKind.NVSWITCH, node, target, attributes={"visible": not unseen})
        )
        if unseen:
            tree.note("not_visible", "NVLinks end at a switch that the driver does not show", element)
    return name


def _link(gpu: Gpu, kind: LinkKind, count: int) -> Link:
    """``count`` links as this GPU has them; ends left open."""
    rate, origin = nvlink_rate(gpu.says("sm")) if kind is LinkKind.NVLINK else xgmi_rate(gpu.says("gcn"))
    return Link("", "", kind, rate * count if rate is not None else None, count=count, origin=origin)


def _draw_pairs(tree: Tree, joined: Joined, kind: LinkKind) -> None:
    """Links between GPUs; a direction that only the other side states is drawn too, and noticed."""
    gpus = {gpu.name: gpu for gpu in tree.gpus}
    for source, target, count, stated in list(_directions(joined)):
        if stated != count:
            element = gpus[source].detail or gpus[source].pci
            text = (
                f"{stated} {kind.value} links from {source} to {target}, {count} back: both should be equal"
            )
            tree.note("contradiction", text, element)
        drawn = _link(gpus[source], kind, stated or count)
        tree.links.append(
            Link(source, target, kind, drawn.bytes_per_second, count=drawn.count, origin=drawn.origin)
        )


def _directions(joined: Joined) -> Iterator[tuple[str, str, int, int]]:
    """(from, to, links the far side states, links this side states) of every pair, both ways."""
    pairs = dict.fromkeys(joined.stated)
    pairs.update(dict.fromkeys((target, source) for source, target in joined.stated))
    for source, target in pairs:
        yield source, target, joined.stated[target, source], joined.stated[source, target]


def _compare_gpus(tree: Tree, joined: Joined) -> None:
    """GPUs of one machine have equally many links; the tools skip failing ones without a word."""
    if not joined.entries:
        return
    most = max(joined.totals.values(), default=0)
    for gpu in tree.gpus:
        found = joined.totals[gpu.name]
        if found < most:
            element = gpu.detail or gpu.pci
            text = f"{gpu.name} has {found} links to GPUs or switches, others have {most}: hidden or down"
            tree.note("contradiction", text, element)


def class_of(tree: Tree, nvlinks: Joined, xgmi: Joined, complete: bool) -> tuple[TopologyClass, str]:
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
    if nvlinks.selves and _one_far_end_each(names, nvlinks):
        return (
            TopologyClass.NVLINK_BRIDGE,
            "all NVLinks of each GPU end at one GPU (wrongly stated as itself)",
        )
    if nvlinks.selves or xgmi.selves:
        return TopologyClass.UNKNOWN, "links are stated to end where they begin"
    if not names or tree.unclear:
        return TopologyClass.UNKNOWN, "which devices are GPUs is not stated"
    if len(names) == 1:
        return TopologyClass.SINGLE_GPU, "one GPU"
    if all(gpu.detail is not None for gpu in tree.gpus):
        return TopologyClass.PCIE, "no GPU has an NVLink or xGMI link"
    return TopologyClass.UNKNOWN, "no <gpu> elements: NVLinks are asked of the driver when NCCL runs"


def _one_far_end_each(names: list[str], nvlinks: Joined) -> bool:
    targets = [nvlinks.targets.get(name, set()) for name in names]
    return len(names) > 1 and nvlinks.selves == len(names) and all(len(ends) == 1 for ends in targets)


def nvswitch_of(tree: Tree, nvlinks: Joined, found: TopologyClass) -> bool | None:
    """Whether there is an NVSwitch; None where the file does not tell."""
    if nvlinks.to_switch:
        return True
    return None if found is TopologyClass.UNKNOWN or any(gpu.detail is None for gpu in tree.gpus) else False


def facts_of(system: Element, tree: Tree, nvlinks: Joined, xgmi: Joined) -> dict[str, Any]:
    """Everything countable; strings where the file prints strings."""
    facts: dict[str, Any] = {
        "root": system.tag,
        "version": system.attributes.get("version"),
        **_devices(tree),
        **_hosts(tree),
        **_pcie(tree),
        "nvlinks_per_gpu": _per_gpu(tree, nvlinks),
        "nvlink_target_classes": list(nvlinks.classes),
        "nvlink_self_targets": nvlinks.selves,
        "gpu_matrix": None,
        **_c2c_facts(tree),
    }
    if xgmi.entries:
        facts["xgmi_links_per_gpu"] = _per_gpu(tree, xgmi)
    for word, joined in (("nvlink", nvlinks), ("xgmi", xgmi)):
        if joined.stated or joined.selves:
            facts.update(_groups(tree, joined, word))
    return facts


def _per_gpu(tree: Tree, joined: Joined) -> list[int] | None:
    return [joined.totals[gpu.name] for gpu in tree.gpus] if joined.entries else None


def _distinct(values: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys(values))


def _devices(tree: Tree) -> dict[str, Any]:
    classes = [pci.attributes.get("class", "").lower() for pci in tree.pcis]
    nics = sum(said.startswith(NIC_CLASSES) for said in classes)
    unstated = sum(not said and bool(pci.named("nic")) for said, pci in zip(classes, tree.pcis, strict=True))
    speeds = {whole(net.attributes.get("speed", "")) for net in tree.nets}
    switches = [device for device in tree.devices if device.kind is DeviceKind.NVSWITCH]
    visible = all(device.attributes.get("visible", True) for device in switches)
    details = [gpu.detail.attributes for gpu in tree.gpus if gpu.detail is not None]
    return {
        "gpu_count": None if tree.unclear and not tree.gpus else len(tree.gpus),
        "gpu_elements": len(details),
        "gpu_class_pci": sum(said.startswith(GPU_CLASSES) for said in classes),
        "nic_count": nics + unstated,
        "nic_class_pci": nics,
        "net_elements": len(tree.nets),
        "net_distinct_names": len({net.attributes.get("name") for net in tree.nets}),
        "net_speeds_mbps": sorted(speed for speed in speeds if speed is not None),
        "bridge_pci": sum(said.startswith(BRIDGE_CLASSES) for said in classes),
        "pci_elements": len(tree.pcis),
        "cpu_count": len(tree.cpus),
        "nvswitch_count": len(switches) if switches and visible else None,
        "sm": _distinct(said["sm"] for said in details if "sm" in said),
    }


def _hosts(tree: Tree) -> dict[str, Any]:
    cpu = tree.cpus[0].attributes if tree.cpus else {}
    numa = [element.attributes.get("numaid", "") for element in tree.cpus]
    nodes = range(len(tree.hosts))
    gpus, nics = [0 for _ in nodes], [0 for _ in nodes]
    for gpu in tree.gpus:
        gpus[gpu.node] += 1
    for device in tree.devices:
        if device.kind is DeviceKind.NIC and str(device.attributes.get("class", "")).startswith(NIC_CLASSES):
            nics[device.node] += 1
    return {
        "hosts": len(tree.hosts),
        "gpu_per_host": gpus[0] if len(set(gpus)) == 1 else gpus,
        "nic_count_per_host": nics[0] if len(set(nics)) == 1 else nics,
        "numa_nodes": numa,
        "numa_node_count": len(set(numa)),
        "cpu": {key: cpu[key] for key in ("arch", "vendor", "familyid", "modelid") if key in cpu},
    }


def _pcie(tree: Tree) -> dict[str, Any]:
    """Speed and width as printed, and the slowest of both that any GPU has."""
    printed = [
        (gpu.pci.attributes.get("link_speed"), gpu.pci.attributes.get("link_width")) for gpu in tree.gpus
    ]
    links = [pcie_link(gpu.pci.attributes) for gpu in tree.gpus]
    speeds = [link.gigatransfers for link in links if link.gigatransfers is not None]
    widths = [link.width for link in links if link.width is not None]
    ids = (gpu.pci.attributes.get("device") for gpu in tree.gpus)
    return {
        "gpu_pci_link": [{"speed": speed, "width": width} for speed, width in _distinct(printed)],
        "gpu_pci_device_ids": _distinct(device for device in ids if device is not None),
        "pcie_gen": GENERATIONS[min(speeds)] if speeds else None,
        "pcie_width": min(widths, default=None),
    }


def _c2c_facts(tree: Tree) -> dict[str, Any]:
    details = [gpu.detail for gpu in tree.gpus if gpu.detail is not None]
    entries = [entry for detail in details for entry in detail.named("c2c")]
    pairs = [
        (whole(entry.attributes.get("bw", "")), whole(entry.attributes.get("count", ""))) for entry in entries
    ]
    sound = [(bw, count) for bw, count in pairs if bw is not None and count is not None]
    if not sound:
        return {}
    bw, count = sound[0]
    return {
        "c2c": {"bw": bw, "count": count, "GBps": bw * count / 1000},
        "c2c_links_per_gpu": [count for _, count in sound],
    }


def _groups(tree: Tree, joined: Joined, word: str) -> dict[str, Any]:
    """GPUs that reach each other over direct links, by their index in the file."""
    index = {gpu.name: number for number, gpu in enumerate(tree.gpus)}
    near: dict[int, set[int]] = {number: set() for number in index.values()}
    for source, target in joined.stated:
        near[index[source]].add(index[target])
        near[index[target]].add(index[source])
    groups = [sorted(group) for group in connected_groups(near)]
    full = all(len(near[number]) == len(group) - 1 for group in groups for number in group)
    symmetric = all(
        joined.stated[target, source] == count for (source, target), count in joined.stated.items()
    )
    return {
        f"{word}_groups": [[str(number) for number in group] for group in groups],
        f"{word}_full_mesh_in_each_group": full,
        f"{word}_symmetric": symmetric,
    }
