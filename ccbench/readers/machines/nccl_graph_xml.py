"""NCCL graph XML: the rings and trees NCCL searched (``NCCL_GRAPH_DUMP_FILE``) or is told to use.

A ``<graph>`` is the result of one search, a ``<channel>`` one order of GPUs, with the nets by which it enters
and leaves the node. The file says who follows whom and over what kind of path at worst, not which links
exist: the topology has devices and facts, and no links. Sources: NVIDIA/nccl, src/graph/search.cc and
src/include/graph.h.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from ccbench.errors import MachineError
from ccbench.findings import SourceWarning
from ccbench.readers.xml import Element, parse_below, root_tag
from ccbench.topology.graph import Device, DeviceKind, Topology, TopologyClass
from ccbench.units import shown

NAME = "NCCL graph XML"

RING = "4"
NVLS = "5"
PATTERNS = frozenset({"1", "2", "3", RING, NVLS, "6"})
"""The attribute ``pattern`` (NCCL_TOPO_PATTERN_* in src/include/graph.h): balanced tree, split tree, tree,
ring, NVLink SHARP, CollNet direct."""

_NVLINK_TYPES = frozenset({"LOC", "NVL", "PORT", "NVB"})
_SYSTEM_SHIFT = 56
"""Bits above it name the host in an id (NCCL_TOPO_ID in NVIDIA/nccl, src/graph/topo.h)."""

_ID = re.compile(r"0[xX][0-9a-fA-F]{1,16}|[0-9]{1,19}", re.ASCII)
_AS_PRINTED = (
    "id",
    "pattern",
    "nchannels",
    "speedintra",
    "speedinter",
    "typeintra",
    "typeinter",
)


@dataclass(frozen=True)
class _Search:
    """One search: the orders of GPUs and the nets of each channel, ids as numbers; ``attributes``: as printed."""

    attributes: dict[str, str]
    orders: list[tuple[int, ...]]
    nets: list[tuple[int, ...]]
    first_printed: list[str]


def recognises(text: str) -> bool:
    """Return whether ``text`` looks like this format; never raises."""
    return root_tag(text) == "graphs"


def read(text: str) -> Topology:
    """Return the devices and searched graphs of ``text``.

    Facts besides the common ones: ``graphs`` (one dict each, attributes as printed, ``channels_listed``),
    ``rings`` and ``ring_nets`` of the ring graph, ``chains`` of the others by graph id, ``nvls_heads``.
    Raises MachineError when there is no ``<graphs>``.
    """
    document, root = parse_below(text, NAME, "graphs", "NCCL_GRAPH_DUMP_FILE")
    warnings = list(document.warnings)
    graphs = [_graph(element, warnings) for element in root.named("graph")]
    if not graphs:
        raise MachineError(
            f"{NAME}: line {root.line}: <graphs> holds no <graph>; "
            "give the whole of a file that NCCL_GRAPH_DUMP_FILE wrote"
        )
    topology_class, nvswitch, evidence = _class(
        [graph for graph in graphs if graph.orders], document.complete
    )
    # GPUs, then nets, each kind in rising order of id; names carry the host only where there are several.
    gpus = {gpu for graph in graphs for order in graph.orders for gpu in order}
    nets = {net for graph in graphs for nets in graph.nets for net in nets}
    hosts = sorted({number >> _SYSTEM_SHIFT for number in gpus}) or [0]
    devices: list[Device] = []
    for kind, numbers in ((DeviceKind.GPU, gpus), (DeviceKind.NIC, nets)):
        counts = [0] * len(hosts)
        for number in sorted(numbers):
            host = number >> _SYSTEM_SHIFT
            node = hosts.index(host) if host in hosts else 0
            prefix = f"n{node}." if len(hosts) > 1 else ""
            name = f"{prefix}{kind.value}{counts[node]}"
            counts[node] += 1
            devices.append(
                Device(name, kind, node, attributes={"dev": number & (2**_SYSTEM_SHIFT - 1)})
            )
    return Topology(
        name="nccl-graph-xml",
        devices=tuple(devices),
        topology_class=topology_class,
        source=NAME,
        warnings=tuple(warnings),
        facts={
            **_facts(root, graphs, len(gpus)),
            "nvswitch": nvswitch,
            "class_evidence": evidence,
        },
    )


def _graph(element: Element, warnings: list[SourceWarning]) -> _Search:
    graph = _Search(element.attributes, [], [], [])
    for channel in element.named("channel"):
        ids: dict[str, list[int]] = {"gpu": [], "net": []}
        printed = []
        for child in channel.children:
            dev = child.attributes.get("dev", "")
            # An id is written as 3 or as 0x3.
            number = (
                int(dev, 16 if dev[:2] in ("0x", "0X") else 10) if _ID.fullmatch(dev) else None
            )
            if child.tag not in ids:
                text = f"<{child.tag[:40]}> in a channel is left out"
                warnings.append(SourceWarning("unsupported", text, child.line))
            elif number is None:
                text = f"<{child.tag}> with dev {shown(dev)} is left out"
                warnings.append(SourceWarning("damaged_line", text, child.line))
            else:
                ids[child.tag].append(number)
                printed += [dev] if child.tag == "gpu" else []
        if len(set(ids["gpu"])) != len(ids["gpu"]):
            warnings.append(
                SourceWarning(
                    "contradiction", "a GPU stands twice in one channel", channel.line
                )
            )
        graph.first_printed.extend(printed if not graph.orders else [])
        graph.orders.append(tuple(ids["gpu"]))
        graph.nets.append(tuple(ids["net"]))
    pattern, stated = graph.attributes.get("pattern", ""), graph.attributes.get("nchannels", "")
    if pattern not in PATTERNS:
        warnings.append(
            SourceWarning("unknown_spelling", f"pattern {shown(pattern)}", element.line)
        )
    if stated != str(len(graph.orders)):
        name = shown(graph.attributes.get("id", ""))
        text = f"graph {name} says {shown(stated)} channels and lists {len(graph.orders)}"
        warnings.append(SourceWarning("contradiction", text, element.line))
    return graph


def _class(used: list[_Search], complete: bool) -> tuple[TopologyClass, bool | None, str]:
    """The class, if there is an NVSwitch (None: not to be seen), and the reason."""
    gpus = {gpu for graph in used for order in graph.orders for gpu in order}
    # With a switch every order of GPUs is as good as any other, so NCCL repeats one (``samechannels="1"``).
    # Rings of several orders inside one node were found by following direct links; where the worst path is
    # NVL, each neighbour in each ring is one hop away.
    by_links = {"pattern": RING, "typeintra": "NVL", "samechannels": "0"}.items()
    direct = {
        frozenset(pair)
        for graph in used
        if by_links <= graph.attributes.items()
        and len(set(graph.orders)) > 1
        and not any(graph.nets)
        for order in graph.orders
        for pair in zip(order, order[1:] + order[:1], strict=True)
    }
    if any(graph.attributes.get("pattern") == NVLS for graph in used):
        return (
            TopologyClass.NVSWITCH,
            True,
            "a graph for NVLink SHARP, which only an NVSwitch has",
        )
    if complete and len(gpus) > 2 and len(direct) == len(gpus) * (len(gpus) - 1) // 2:
        return (
            TopologyClass.NVLINK_MESH,
            False,
            "rings of several orders, NVL between all pairs of GPUs",
        )
    if len(gpus) > 1 and any(
        graph.attributes.get("typeintra") not in _NVLINK_TYPES for graph in used
    ):
        # Pairs with a bridge and GPUs without any NVLink give the same file.
        return (
            TopologyClass.UNKNOWN,
            False,
            "some path is worse than NVLink, so no switch joins all GPUs",
        )
    if complete and len(gpus) == 1 and not any(nets for graph in used for nets in graph.nets):
        return TopologyClass.SINGLE_GPU, None, "one GPU in every channel"
    return TopologyClass.UNKNOWN, None, "a switch and direct links give the same graphs"


def _facts(root: Element, graphs: list[_Search], gpu_count: int) -> dict[str, Any]:
    of_pattern: dict[str, list[_Search]] = {RING: [], NVLS: []}
    for graph in graphs:
        of_pattern.setdefault(graph.attributes.get("pattern", ""), []).append(graph)
    rings = [order for graph in of_pattern[RING] for order in graph.orders]
    nets = [nets for graph in of_pattern[RING] for nets in graph.nets]
    listed = all(
        graph.attributes.get("nchannels") == str(len(graph.orders)) for graph in graphs
    )
    unsaid = ("nic_count", "cpu_count", "nvswitch_count", "nvlinks_per_gpu")
    return {
        "root": root.tag,
        "version": root.attributes.get("version"),
        "gpu_count": gpu_count or None,
        **dict.fromkeys(unsaid),
        "graphs": [
            {
                **{key: graph.attributes.get(key) for key in _AS_PRINTED},
                "channels_listed": len(graph.orders),
                "first_channel_gpus": graph.first_printed,
            }
            for graph in graphs
        ],
        "rings": [list(order) for order in rings],
        "chains": {
            graph.attributes.get("id", ""): [list(order) for order in graph.orders]
            for graph in graphs
            if graph.attributes.get("pattern") not in (RING, NVLS)
        },
        "channels_listed_complete": listed and root.closed,
        "nvls_heads": [
            order[0] for graph in of_pattern[NVLS] for order in graph.orders if order
        ],
        **({"ring_nets": {"in": nets[0][0], "out": nets[0][-1]}} if nets and nets[0] else {}),
    }
