"""Devices, links and facts of the machine that one NCCL process saw."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from ccbench.topology.graph import Device, DeviceKind, Link, LinkKind, Notice
from ccbench.topology.readers.nccl_log_system import PATH_WORDS, Dump, Edge, Node, Path
from ccbench.topology.text import decimal

NO_LIMIT_GIGABYTES_PER_SECOND = 5000.0
"""NCCL's LOC_BW (graph.h): its word for a link that it does not want to limit; no rate of anything."""

_DIRECT = {"NVL": LinkKind.NVLINK, "XGMI": LinkKind.XGMI, "C2C": LinkKind.C2C}
_KINDS = {**_DIRECT, "PCI": LinkKind.PCIE, "SYS": LinkKind.INTER_SOCKET}
_DEVICE_KINDS = {
    "GPU": DeviceKind.GPU,
    "CPU": DeviceKind.CPU,
    "PCI": DeviceKind.PCIE_SWITCH,
    "DEV": DeviceKind.PCIE_SWITCH,
    "NVS": DeviceKind.NVSWITCH,
    "NIC": DeviceKind.NIC,
}
_NAMES = {
    DeviceKind.GPU: "gpu",
    DeviceKind.CPU: "cpu",
    DeviceKind.PCIE_SWITCH: "pcie",
    DeviceKind.NVSWITCH: "nvswitch",
    DeviceKind.NIC: "nic",
}
_PROCESSOR_LOCAL = ("PIX", "PXB", "P2C", "PHB")
_NO_NUMA_NODE = 2**63
"""Ids from here on are negative numbers printed in hexadecimal: -1, no NUMA node."""


@dataclass
class MachineGraph:
    """What the dump says, as ccbench names it. ``nodes`` maps NCCL's nodes to devices' names."""

    devices: list[Device] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)
    notices: list[Notice] = field(default_factory=list)
    nodes: dict[Node, str] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    direct: set[tuple[str, str]] = field(default_factory=set)
    """Pairs of GPUs with a direct NVLink or XGMI."""
    matrix: dict[tuple[str, str], str] = field(default_factory=dict)


def machine_of(dump: Dump, nic_names: dict[int, str], models: dict[str, str]) -> MachineGraph:
    """The graph of ``dump``.

    nic_names: NCCL's index of a network device -> its name, as printed by ``NET/IB : Using``.
    models: PCI bus id (``0000:0f:00``) -> the GPU's model, where the log has such a list.
    """
    graph = MachineGraph(notices=list(dump.notices))
    words = _with_table_columns(dump)
    aliases = _dev_aliases(dump)
    _add_devices(graph, dump, words, aliases, nic_names, models)
    _add_links(graph, dump, aliases)
    _add_links_of_paths(graph, dump)
    _add_matrix(graph, dump)
    _count(graph, dump, words)
    _rates(graph, dump, words, aliases)
    return graph


def gpus_of_bus_ids(bus_ids: dict[str, str], models: dict[str, str]) -> list[Device]:
    """GPUs of a log that draws no machine: the ranks of its one host, by rank, with NCCL's bus ids."""
    gpus = []
    for index, (rank, nccl_id) in enumerate(sorted(bus_ids.items(), key=lambda item: int(item[0]))):
        known = re.fullmatch(r"[0-9a-fA-F]{1,16}", nccl_id) is not None
        bus_id = _bus_id(nccl_id) if known else ""
        model = models.get(bus_id.rpartition(".")[0])
        attributes = {"rank": int(rank), "nccl_id": nccl_id, **({"model": model} if model else {})}
        gpus.append(Device(f"gpu{index}", DeviceKind.GPU, bus_id=bus_id, attributes=attributes))
    return gpus


def _with_table_columns(dump: Dump) -> list[Node]:
    """Nodes of the tree, then those that only the table of paths knows."""
    return list(
        dict.fromkeys([*dump.details, *dump.rows, *(node for row in dump.rows.values() for node in row)])
    )


def _dev_aliases(dump: Dump) -> dict[Node, Node]:
    """DEV nodes of newer NCCL stand between the PCIe tree and the one GPU they hold: both are one device."""
    held: dict[Node, list[Node]] = {}
    for edge in dump.edges:
        if edge.kind == "LOC" and edge.upper is not None and edge.lower[0] == "GPU":
            held.setdefault(edge.upper, []).append(edge.lower)
    aliases = {upper: gpus[0] for upper, gpus in held.items() if len(gpus) == 1}
    for edge in dump.edges:
        # A DEV whose GPU line was cut off, but which ends a direct link, is a GPU all the same.
        for node in (edge.upper, edge.lower):
            if edge.kind in _DIRECT and node is not None and node[0] == "DEV" and node not in held:
                aliases.setdefault(node, ("GPU", node[1]))
    return aliases


def _number(identity: str) -> int:
    """The last part of ``0-7000`` as a number; -1 where it is a negative one in hexadecimal."""
    value = int(identity.rpartition("-")[2], 16)
    return -1 if value >= _NO_NUMA_NODE else value


def _bus_id(identity: str) -> str:
    """``81000`` is how NCCL packs 0000:81:00.0: the digits without what stands between them."""
    packed = int(identity.rpartition("-")[2], 16)
    return f"{packed >> 20:04x}:{packed >> 12 & 0xFF:02x}:{packed >> 4 & 0xFF:02x}.{packed & 0xF:x}"


def _numa_node(dump: Dump, node: Node) -> int | None:
    for _ in range(64):  # as deep as no PCIe tree is
        if node[0] == "CPU":
            return _number(node[1])
        if node not in dump.above:
            return None
        node = dump.above[node]
    return None


def _systems(words: list[Node]) -> dict[str, int]:
    """Prefix of ``1-7000`` -> index of the machine; several with multi-node NVLink."""
    return {
        prefix: index
        for index, prefix in enumerate(dict.fromkeys(identity.rpartition("-")[0] for _, identity in words))
    }


def _add_devices(
    graph: MachineGraph,
    dump: Dump,
    words: list[Node],
    aliases: dict[Node, Node],
    nic_names: dict[int, str],
    models: dict[str, str],
) -> None:
    counts: dict[DeviceKind, int] = {}
    systems = _systems(words)
    ports = _ports_of_nics(dump, words, nic_names)
    taken: set[str] = set()
    for node in [*words, *dict.fromkeys(aliases.values())]:
        alias = aliases.get(node)
        if alias is not None or node in graph.nodes or (node[0] not in _DEVICE_KINDS and node not in ports):
            continue
        kind = _DEVICE_KINDS.get(node[0], DeviceKind.NIC)
        index = counts[kind] = counts.get(kind, -1) + 1
        system = systems.get(node[1].rpartition("-")[0], 0)
        numa_node = _number(node[1]) if kind is DeviceKind.CPU else _numa_node(dump, node)
        name = f"{_NAMES[kind]}{index}"
        if kind is DeviceKind.CPU:
            name = ("" if system == 0 else f"n{system}.") + f"cpu{max(numa_node or 0, 0)}"
        if name in taken:
            name = f"{name}_{index}"
        taken.add(name)
        graph.nodes[node] = name
        bus_id = _bus_id(node[1]) if kind in _ON_PCI and node[0] != "NET" else ""
        attributes = {"nccl_id": node[1], **_attributes(dump, node, bus_id, models), **ports.get(node, {})}
        graph.devices.append(Device(name, kind, max(system, 0), bus_id, numa_node, attributes))
    for node, gpu in aliases.items():
        if gpu in graph.nodes:
            graph.nodes[node] = graph.nodes[gpu]


_ON_PCI = frozenset({DeviceKind.GPU, DeviceKind.PCIE_SWITCH, DeviceKind.NIC})


def _attributes(dump: Dump, node: Node, bus_id: str, models: dict[str, str]) -> dict[str, Any]:
    detail = dump.details.get(node, "")
    if node[0] == "GPU":
        rank = {"rank": int(detail)} if detail.isascii() and detail.isdecimal() and len(detail) < 9 else {}
        model = models.get(bus_id.rpartition(".")[0])
        return {**rank, **({"model": model} if model else {})}
    if node[0] == "NVS":
        return {"stands_for": "all NVSwitches of the machine"}
    if node[0] == "CPU" and detail:
        return {"architecture_vendor_model": detail}
    return {"pci_id": detail} if node[0] in {"PCI", "DEV"} and detail else {}


def _ports_of_nics(dump: Dump, words: list[Node], nic_names: dict[int, str]) -> dict[Node, dict[str, Any]]:
    """What hangs at each NIC: name, and one entry per NET with its rate in bytes per second.

    Where a table of paths names NETs and no tree their NICs, each NET stands for a NIC of its own.
    """
    found: dict[Node, dict[str, Any]] = {}
    no_tree = not any(node[0] == "NIC" for node in words)
    uppers = {edge.lower: edge for edge in dump.edges if edge.kind == "NET"}
    for node in words:
        edge = uppers.get(node)
        holder = edge.upper if edge is not None and edge.upper is not None else (node if no_tree else None)
        if node[0] != "NET" or holder is None:
            continue
        attributes = found.setdefault(holder, {"ports": []})
        port: dict[str, Any] = {"net": f"NET/{node[1]}"}
        detail = dump.details.get(node, "").split("/")
        if len(detail) == 3:
            port.update(guid=detail[0], port=detail[1])
        # The parentheses have six decimals, the link one.
        rate = decimal(detail[2]) if len(detail) == 3 else None
        rate = edge.gigabytes_per_second if rate is None and edge is not None else rate
        if rate is not None:
            port["bytes_per_second"] = rate * 1e9
        name = nic_names.get(_number(node[1]))
        if name:
            port["name"] = name
            attributes.setdefault("name", name)
        attributes["ports"].append(port)
    return found


def _add_links(graph: MachineGraph, dump: Dump, aliases: dict[Node, Node]) -> None:
    found: dict[tuple[str, str, LinkKind], Link] = {}
    stated: set[tuple[str, str, LinkKind]] = set()
    for edge in dump.edges:
        if edge.kind not in _KINDS:
            if edge.kind not in {"LOC", "NET"}:
                graph.notices.append(
                    Notice("unsupported", f"{edge.kind} links are not known; left out", edge.line)
                )
            continue
        ends = _ends(graph, edge)
        if ends is None:
            continue
        kind = _KINDS[edge.kind]
        forth = (*ends, kind)
        if forth in stated:
            _compare(graph, found[forth], edge)
            continue
        stated.add(forth)
        found[forth] = _link(*forth, edge)
        # Only one end of a PCIe link or of a switch's link is printed; NCCL takes the other as equal.
        found.setdefault((ends[1], ends[0], kind), _link(ends[1], ends[0], kind, edge))
        if edge.kind in _DIRECT:
            _note_direct(graph, *ends)
    graph.links.extend(found.values())


def _note_direct(graph: MachineGraph, left: str, right: str) -> None:
    if left.startswith("gpu") and right.startswith("gpu"):
        graph.direct.add((min(left, right), max(left, right)))


def _ends(graph: MachineGraph, edge: Edge) -> tuple[str, str] | None:
    """Names of both ends; None, with a notice, where one is not in the text or both are the same."""
    if edge.upper is None:
        graph.notices.append(
            Notice("truncated", f"the line above {edge.lower[0]}/{edge.lower[1]} is missing", edge.line)
        )
        return None
    upper, lower = graph.nodes.get(edge.upper), graph.nodes.get(edge.lower)
    if upper is None or lower is None:
        return None
    if upper == lower:
        graph.notices.append(Notice("self_link", f"{upper} is linked to itself; left out", edge.line))
        return None
    return upper, lower


def _link(source: str, target: str, kind: LinkKind, edge: Edge) -> Link:
    rate = edge.gigabytes_per_second
    limited = rate is not None and rate < NO_LIMIT_GIGABYTES_PER_SECOND
    return Link(
        source,
        target,
        kind,
        rate * 1e9 if rate is not None and limited else None,
        origin=f"NCCL log, line {edge.line}: {edge.kind}[{rate}] GB/s, "
        + ("all parallel links together" if limited else "NCCL's word for no limit"),
        attributes={"count_known": False} if kind in _DIRECT.values() else {},
    )


def _compare(graph: MachineGraph, link: Link, edge: Edge) -> None:
    rate = _link(link.source, link.target, link.kind, edge).bytes_per_second
    if rate != link.bytes_per_second:
        text = f"{link.source} to {link.target} is printed twice with different rates; the first is kept"
        graph.notices.append(Notice("contradiction", text, edge.line))


def _add_links_of_paths(graph: MachineGraph, dump: Dump) -> None:
    """Where the tree is missing, the table tells the links of one hop and the way to the nearest CPU."""
    linked = {link.source for link in graph.links}
    for node, row in dump.rows.items():
        name = graph.nodes.get(node)
        if name is None or node[0] != "GPU" or name in linked:
            continue
        for other, path in row.items():
            target = graph.nodes.get(other)
            if target is None or target == name:
                continue
            if path.hops == 1 and path.kind in _DIRECT and other[0] in {"NVS", "GPU"}:
                kind = _DIRECT[path.kind]
            elif other[0] == "CPU" and path.kind in _PROCESSOR_LOCAL:
                kind = LinkKind.PCIE
            else:
                continue
            if other[0] == "GPU":
                _note_direct(graph, name, target)
            graph.links.extend(_links_of_path(name, target, kind, path))


def _links_of_path(source: str, target: str, kind: LinkKind, path: Path) -> list[Link]:
    rate = path.gigabytes_per_second * 1e9
    origin = f"NCCL log, table of paths: {path.gigabytes_per_second} GB/s over {path.hops} hops"
    attributes: dict[str, Any] = {"hops": path.hops}
    if kind in _DIRECT.values():
        attributes["count_known"] = False
    back = (
        []
        if target.startswith("gpu")
        else [Link(target, source, kind, rate, origin=origin, attributes=attributes)]
    )
    return [Link(source, target, kind, rate, origin=origin, attributes=attributes), *back]


def _add_matrix(graph: MachineGraph, dump: Dump) -> None:
    for node, row in dump.rows.items():
        source = graph.nodes.get(node)
        for other, path in row.items():
            target = graph.nodes.get(other)
            if source and target and source != target and node[0] == other[0] == "GPU":
                graph.matrix[source, target] = path.kind


def _count(graph: MachineGraph, dump: Dump, words: list[Node]) -> None:
    gpus = [device.name for device in graph.devices if device.kind is DeviceKind.GPU]
    nics = sum(node[0] == "NIC" for node in words)
    nets = sum(node[0] == "NET" for node in words)
    cpus = [node for node in words if node[0] == "CPU"]
    has_tree = bool(dump.edges)
    graph.facts.update(
        gpu_count=len(gpus) or None,
        nic_count=nics if nics or dump.complete else None,
        net_count=nets if nets or has_tree else None,
        cpu_count=len(cpus) or None,
        gpu_count_in_excerpt=len(gpus),
        nic_count_in_excerpt=nics,
        net_count_in_excerpt=nets,
        numa_unknown=any(_number(node[1]) < 0 for node in cpus) if cpus else None,
        complete_graph=dump.complete,
    )
    if (
        all((left, right) in graph.matrix for left in gpus for right in gpus if left != right)
        and graph.matrix
    ):
        graph.facts["gpu_matrix"] = [
            ["X" if left == right else graph.matrix[left, right] for right in gpus] for left in gpus
        ]


def _one_or_all(values: list[float]) -> float | list[float] | None:
    """The value all share; where they differ, every one in order; None for none."""
    if not values:
        return None
    return values[0] if len(set(values)) == 1 else values


def _rates(graph: MachineGraph, dump: Dump, words: list[Node], aliases: dict[Node, Node]) -> None:
    rates: dict[str, list[float]] = {}
    for edge in dump.edges:
        lower = aliases.get(edge.lower, edge.lower)
        kind = "gpu_pci" if edge.kind == "PCI" and lower[0] == "GPU" else edge.kind
        if edge.gigabytes_per_second is not None:
            rates.setdefault(kind, []).append(edge.gigabytes_per_second)
    for row_node, row in dump.rows.items():
        for node, path in row.items():
            if row_node[0] != "GPU":
                continue
            if node[0] == "CPU" and path.kind in _PROCESSOR_LOCAL and not dump.nodes("GPU"):
                rates.setdefault("gpu_pci", []).append(path.gigabytes_per_second)
            if node[0] == "NVS" and path.kind == "NVL" and not dump.nodes("GPU"):
                rates.setdefault("NVL", []).append(path.gigabytes_per_second)
    cpu = next((detail for node, detail in dump.details.items() if node[0] == "CPU" and detail), None)
    graph.facts.update(
        max_bw=dump.max_bw,
        total_bw=dump.total_bw,
        cpu_tuple=cpu,
        sys_bw=_one_or_all(rates.get("SYS", [])),
        gpu_pci_bw=_one_or_all(rates.get("gpu_pci", [])),
        nvlink_bw=_one_or_all(rates.get("NVL", [])),
        xgmi_bw=_one_or_all(rates.get("XGMI", [])),
        net_bws=rates.get("NET", []),
        net_bw=_one_or_all(rates.get("NET", [])),
        xgmi_edges=_xgmi_edges(dump),
        **_table_facts(dump),
    )


def _plain(node: Node) -> str:
    return node[1].rpartition("-")[2]


def _xgmi_edges(dump: Dump) -> list[list[str]] | None:
    """Each pair of bus ids once, in the order of the log."""
    edges: dict[frozenset[str], list[str]] = {}
    for edge in dump.edges:
        if edge.kind == "XGMI" and edge.upper is not None:
            ends = [_plain(edge.upper), _plain(edge.lower)]
            edges.setdefault(frozenset(ends), ends)
    return list(edges.values()) or None


def _table_facts(dump: Dump) -> dict[str, Any]:
    if not dump.rows:
        return {}
    rows = {f"{word}/{identity}": row for (word, identity), row in dump.rows.items()}
    facts: dict[str, Any] = {
        "rows": len(rows),
        "paths": {
            name: {f"{node[0]}/{node[1]}": _as_fact(path) for node, path in row.items()}
            for name, row in rows.items()
        },
    }
    between = [
        path
        for node, row in dump.rows.items()
        for other, path in row.items()
        if node[0] == other[0] == "GPU" and node != other
    ]
    if between and len(set(between)) == 1:
        facts["gpu_gpu_path"] = _as_fact(between[0])
    near: dict[str, Any] = {}
    far: list[Path] = []
    for name, row in rows.items():
        nets = {f"NET/{node[1]}": path for node, path in row.items() if node[0] == "NET"}
        if name.startswith("GPU/") and nets:
            best = min(_nearness(path) for path in nets.values())
            nearest = [net for net, path in nets.items() if _nearness(path) == best]
            near[name] = nearest[0] if len(nearest) == 1 else nearest
            far.append(max(nets.values(), key=_nearness))
    if near:
        facts.update(near_net=near, far_net_path=_as_fact(max(far, key=_nearness)))
    return facts


def _nearness(path: Path) -> tuple[int, int]:
    known = PATH_WORDS.index(path.kind) if path.kind in PATH_WORDS else len(PATH_WORDS)
    return known, path.hops


def _as_fact(path: Path) -> dict[str, Any]:
    return {"type": path.kind, "hops": path.hops, "bw": path.gigabytes_per_second}
