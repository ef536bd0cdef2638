"""NCCL graph XML: the rings and trees NCCL searched (``NCCL_GRAPH_DUMP_FILE``) or is told to use.

A ``<graph>`` is the result of one search, a ``<channel>`` one order of GPUs, with the nets by which it enters
and leaves the node. The file says who follows whom and over what kind of path at worst, not which links
exist: the topology has devices and facts, and no links. Sources: NVIDIA/nccl, src/graph/search.cc and
src/include/graph.h.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ccbench.errors import MachineError
from ccbench.topology.graph import Device, DeviceKind, Notice, Topology, TopologyClass
from ccbench.topology.xml import Element, parse_xml, root_tag
from ccbench.units import shown

NAME = "NCCL graph XML"

RING = "4"
NVLS = "5"
PATTERNS = {
    "1": "balanced_tree",
    "2": "split_tree",
    "3": "tree",
    RING: "ring",
    NVLS: "nvls",
    "6": "collnet_direct",
}
"""The attribute ``pattern`` (NCCL_TOPO_PATTERN_* in src/include/graph.h)."""

_NVLINK_TYPES = frozenset({"LOC", "NVL", "PORT", "NVB"})
_SYSTEM_SHIFT = 56
"""Bits above it name the host in an id (NCCL_TOPO_ID in NVIDIA/nccl, src/graph/topo.h)."""

_AS_PRINTED = ("id", "pattern", "nchannels", "speedintra", "speedinter", "typeintra", "typeinter")


@dataclass(frozen=True)
class _Channel:
    """One order of GPUs; ids as numbers and as printed. ``nets``: the first and the last, None without."""

    gpus: tuple[int, ...]
    printed: tuple[str, ...]
    nets: tuple[int, ...]


@dataclass(frozen=True)
class _Graph:
    element: Element
    channels: tuple[_Channel, ...]

    def says(self, attribute: str) -> str:
        return self.element.attributes.get(attribute, "")


def recognises(text: str) -> bool:
    """Whether ``text`` looks like this format; never raises."""
    return root_tag(text) == "graphs"


def read(text: str) -> Topology:
    """The devices and searched graphs of ``text``.

    Facts besides the common ones: ``graphs`` (one dict each, attributes as printed, ``channels_listed``),
    ``rings`` and ``ring_nets`` of the ring graph, ``chains`` of the others by graph id, ``nvls_heads``.
    Raises MachineError when there is no ``<graphs>``.
    """
    document = parse_xml(text, NAME)
    root = next((element for element in document.root.walk() if element.tag == "graphs"), None)
    if root is None:
        raise MachineError(
            f"{NAME}: line {document.root.line}: <{document.root.tag}> was found, <graphs> was expected; "
            "give a file that NCCL_GRAPH_DUMP_FILE wrote"
        )
    notices = list(document.notices)
    graphs = [_graph(element, notices) for element in root.named("graph")]
    topology_class, nvswitch, evidence = _class(graphs, document.complete)
    devices = _devices(graphs)
    if not graphs:
        raise MachineError(
            f"{NAME}: line {root.line}: <graphs> holds no <graph>; "
            "give the whole of a file that NCCL_GRAPH_DUMP_FILE wrote"
        )
    return Topology(
        name="nccl-graph-xml",
        devices=devices,
        topology_class=topology_class,
        source=NAME,
        notices=tuple(notices),
        facts={**_facts(root, graphs, devices), "nvswitch": nvswitch, "class_evidence": evidence},
    )


def _number(printed: str) -> int | None:
    """``3`` or ``0x3``; None for anything else."""
    try:
        number = int(printed, 16) if printed.lower().startswith("0x") else int(printed)
    except ValueError:
        return None
    return number if 0 <= number < 2**64 else None


def _graph(element: Element, notices: list[Notice]) -> _Graph:
    channels = tuple(_channel(channel, notices) for channel in element.named("channel"))
    pattern, stated = element.attributes.get("pattern", ""), element.attributes.get("nchannels", "")
    if pattern not in PATTERNS:
        notices.append(Notice("unknown_spelling", f"pattern {shown(pattern)} of a graph", element.line))
    if stated != str(len(channels)):
        name = shown(element.attributes.get("id", ""))
        text = f"graph {name} says {shown(stated)} channels and lists {len(channels)}"
        notices.append(Notice("contradiction", text, element.line))
    return _Graph(element, channels)


def _channel(element: Element, notices: list[Notice]) -> _Channel:
    ids: dict[str, list[tuple[int, str]]] = {"gpu": [], "net": []}
    for child in element.children:
        printed = child.attributes.get("dev", "")
        number = _number(printed)
        if child.tag not in ids:
            notices.append(Notice("unsupported", f"<{child.tag[:40]}> in a channel is left out", child.line))
        elif number is None:
            notices.append(
                Notice("damaged_line", f"<{child.tag}> with dev {shown(printed)} is left out", child.line)
            )
        else:
            ids[child.tag].append((number, printed))
    gpus = tuple(number for number, _ in ids["gpu"])
    if len(set(gpus)) != len(gpus):
        notices.append(Notice("contradiction", "a GPU stands twice in one channel", element.line))
    return _Channel(
        gpus, tuple(printed for _, printed in ids["gpu"]), tuple(number for number, _ in ids["net"])
    )


def _devices(graphs: list[_Graph]) -> tuple[Device, ...]:
    """GPUs, then nets, each kind in rising order of id; names carry the host only where there are several."""
    channels = [channel for graph in graphs for channel in graph.channels]
    gpus = sorted({gpu for channel in channels for gpu in channel.gpus})
    nets = sorted({net for channel in channels for net in channel.nets})
    hosts = sorted({number >> _SYSTEM_SHIFT for number in gpus}) or [0]
    node_of = {host: node for node, host in enumerate(hosts)}
    devices: list[Device] = []
    counts: dict[tuple[DeviceKind, int], int] = {}
    for kind, numbers in ((DeviceKind.GPU, gpus), (DeviceKind.NIC, nets)):
        for number in numbers:
            node = node_of.get(number >> _SYSTEM_SHIFT, 0)
            index = counts[kind, node] = counts.get((kind, node), -1) + 1
            prefix = f"n{node}." if len(hosts) > 1 else ""
            dev = number & (2**_SYSTEM_SHIFT - 1)
            devices.append(Device(f"{prefix}{kind.value}{index}", kind, node, attributes={"dev": dev}))
    return tuple(devices)


def _direct_pairs(graphs: list[_Graph]) -> set[tuple[int, int]]:
    """Pairs that must be joined by NVLinks of their own; empty where that does not follow.

    With a switch every order of GPUs is as good as any other, so NCCL repeats one (``samechannels="1"``).
    Rings of several orders inside one node were found by following direct links; where the worst path is
    NVL, each neighbour in each ring is one hop away.
    """
    pairs: set[tuple[int, int]] = set()
    for graph in graphs:
        orders = {channel.gpus for channel in graph.channels}
        follows = (
            graph.says("pattern") == RING
            and graph.says("typeintra") == "NVL"
            and graph.says("samechannels") == "0"
            and len(orders) > 1
            and not any(channel.nets for channel in graph.channels)
        )
        if not follows:
            continue
        for order in orders:
            for here, there in zip(order, order[1:] + order[:1], strict=True):
                pairs.add((min(here, there), max(here, there)))
    return pairs


def _class(graphs: list[_Graph], complete: bool) -> tuple[TopologyClass, bool | None, str]:
    """The class, whether there is an NVSwitch (None: not to be seen), and why."""
    used = [graph for graph in graphs if graph.channels]
    gpus = {gpu for graph in used for channel in graph.channels for gpu in channel.gpus}
    if any(graph.says("pattern") == NVLS for graph in used):
        return TopologyClass.NVSWITCH, True, "a graph for NVLink SHARP, which only an NVSwitch has"
    pairs = _direct_pairs(used)
    every_pair = len(gpus) * (len(gpus) - 1) // 2
    if complete and len(gpus) > 2 and len(pairs) == every_pair:
        return TopologyClass.NVLINK_MESH, False, "rings of several orders, NVL between all pairs of GPUs"
    if len(gpus) > 1 and any(graph.says("typeintra") not in _NVLINK_TYPES for graph in used):
        # Pairs with a bridge and GPUs without any NVLink give the same file.
        return TopologyClass.UNKNOWN, False, "some path is worse than NVLink, so no switch joins all GPUs"
    if complete and len(gpus) == 1 and not any(channel.nets for graph in used for channel in graph.channels):
        return TopologyClass.SINGLE_GPU, None, "one GPU in every channel"
    return TopologyClass.UNKNOWN, None, "a switch and direct links give the same graphs"


def _facts(root: Element, graphs: list[_Graph], devices: tuple[Device, ...]) -> dict[str, Any]:
    rings = [graph for graph in graphs if graph.says("pattern") == RING]
    nvls = [graph for graph in graphs if graph.says("pattern") == NVLS]
    ring_channels = [channel for graph in rings for channel in graph.channels]
    listed = all(graph.says("nchannels") == str(len(graph.channels)) for graph in graphs)
    facts: dict[str, Any] = {
        "root": root.tag,
        "version": root.attributes.get("version"),
        "gpu_count": sum(device.kind is DeviceKind.GPU for device in devices) or None,
        "nic_count": None,
        "cpu_count": None,
        "nvswitch_count": None,
        "nvlinks_per_gpu": None,
        "graphs": [_graph_fact(graph) for graph in graphs],
        "rings": [list(channel.gpus) for channel in ring_channels],
        "chains": {
            graph.says("id"): [list(channel.gpus) for channel in graph.channels]
            for graph in graphs
            if graph.says("pattern") not in (RING, NVLS)
        },
        "channels_listed_complete": listed and root.closed,
        "nvls_heads": [channel.gpus[0] for graph in nvls for channel in graph.channels if channel.gpus],
    }
    if ring_channels and ring_channels[0].nets:
        facts["ring_nets"] = {"in": ring_channels[0].nets[0], "out": ring_channels[0].nets[-1]}
    return facts


def _graph_fact(graph: _Graph) -> dict[str, Any]:
    first = list(graph.channels[0].printed) if graph.channels else []
    printed = {key: graph.element.attributes.get(key) for key in _AS_PRINTED}
    return {**printed, "channels_listed": len(graph.channels), "first_channel_gpus": first}
