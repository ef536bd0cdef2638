"""The links that ``<nvlink>``, ``<xgmi>`` and ``<c2c>`` of a topology file name, drawn both ways.

NVLinks and xGMI links name their far end by bus id and PCI class: a GPU of the same host, an NVSwitch, or a
bridge of the CPU (0x068001, POWER). A far end the driver may not show is ``fffffff:ff:ff.0``, an NVSwitch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from ccbench.topology.graph import Device, DeviceKind, Link, LinkKind
from ccbench.topology.readers.nccl_rates import nvlink_rate, xgmi_rate
from ccbench.topology.readers.nccl_xml_tree import GPU_CLASSES, Gpu, Tree, bus_id_of, whole
from ccbench.topology.xml import Element

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
