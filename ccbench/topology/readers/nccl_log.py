"""Reads what NCCL or RCCL writes with ``NCCL_DEBUG=INFO`` (``NCCL_DEBUG_SUBSYS=INIT,GRAPH`` shows most).

The machine is the one that the process with the fullest view drew; rings, trees, patterns, masks and names
of network devices go into facts. Where no graph was printed, the class follows from what NCCL did, and only
where NCCL's rules leave one answer; ``facts["class_evidence"]`` has the reason.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from typing import Any

from ccbench.errors import MachineError
from ccbench.topology.classes import class_of_direct_links
from ccbench.topology.graph import Device, DeviceKind, LinkKind, Notice, Topology, TopologyClass
from ccbench.topology.pci import card_count
from ccbench.topology.readers.nccl_log_graph import (
    PROCESSOR_LOCAL,
    Dump,
    MachineGraph,
    Path,
    bus_id_of,
    number_of,
    read_dumps,
)
from ccbench.topology.readers.nccl_log_lines import Session, TreeEdge, entries
from ccbench.topology.text import one_or_all

MOST_NOTICES = 200
"""More than these are counted, not listed: a damaged log of a cluster would fill the screen."""

RING_PATTERN = 4
"""NCCL_TOPO_PATTERN_RING of NCCL's graph.h."""

PCI_CHUNK_BYTES = 2**17
"""NCCL_P2P_PCI_CHUNKSIZE: taken on one node exactly when some pair has no NVLink path (NCCL's init.cc)."""

SWITCH_CHANNELS = 8
"""With PCIe NCCL opens at most half as many channels; meshes give their channels different orders."""

_ID = r"[A-Z]{3}/[0-9A-Fa-f][0-9A-Fa-f-]{0,32}"
_BEGIN = r"(?m)(?:^|[ \t>:\]])"  # of a line, or behind what a launcher wrote before it
_SIGNS = (
    re.compile(r"NCCL (?:INFO|WARN|TRACE) "),
    re.compile(r"=== System : max(?:Bw|Width) [\d.]+ total(?:Bw|Width) "),
    re.compile(rf"{_BEGIN}\+ (?:PCI|NVL|SYS|XGMI)\[[\d.]{{1,20}}\] - {_ID}"),
    re.compile(rf"{_BEGIN}{_ID} ?: ?{_ID} \(\d{{1,4}}/[\d.]{{1,20}}/[A-Z]"),
    re.compile(rf"{_BEGIN}Trees \[0\] [\d/>|-]"),
)
PATH_WORDS = ("LOC", "NVL", "NVB", "XGMI", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS", "NET", "DIS")
"""Kinds of path from near to far (NCCL graph.h; XGMI is RCCL's word for NVL)."""

_PCI_PATHS = frozenset({"PIX", "PXB", "P2C", "PXN", "PHB", "SYS", "NODE"})


def recognises(text: str) -> bool:
    """Return whether ``text`` is a log of NCCL or RCCL, or a piece of one."""
    return any(sign.search(text) for sign in _SIGNS)


def read(text: str) -> Topology:
    """Return the machine and the channels that the log in ``text`` shows.

    Rates are those NCCL prints: GB/s of one direction, all parallel links together, from its own table of
    constants. Raises MachineError when no line is NCCL's.
    """
    if not recognises(text):
        raise MachineError(
            "NCCL log: no line of NCCL found; expected the output of a run with NCCL_DEBUG=INFO and "
            "NCCL_DEBUG_SUBSYS=INIT,GRAPH; check that standard output was kept"
        )
    lines = list(entries(text))
    session = Session()
    for entry in lines:
        session.read(entry)
    dumps = read_dumps(lines)
    dump = _best_dump(dumps)
    names = session.net_devices.get(dump.host) or next(iter(session.net_devices.values()), {})
    graph = MachineGraph(dump, names, session.models)
    facts = {**_count_facts(graph), **_rate_facts(graph), **_table_facts(graph)}
    facts |= {**_channel_facts(session), **_session_facts(session)}
    _complete_node_count(facts)
    if not graph.devices and facts["gpu_count"]:
        graph.devices.extend(_gpus_of_bus_ids(facts["bus_ids"], session.models))
    topology_class, reason = _class_of(graph, session, facts)
    nvswitch = None if topology_class is TopologyClass.UNKNOWN else topology_class is TopologyClass.NVSWITCH
    facts.update(nvswitch=nvswitch, class_evidence=reason, nvlinks_per_gpu=None)
    facts["nvswitch_count"] = 0 if nvswitch is False and dump.complete else None
    return Topology(
        name="NCCL log",
        devices=tuple(graph.devices),
        links=tuple(graph.links),
        topology_class=topology_class,
        source="nccl_log",
        notices=_notices([*graph.notices, *session.notices], dumps, dump, session),
        facts=facts,
        matrix=graph.matrix,
    )


def _best_dump(dumps: list[Dump]) -> Dump:
    """The view that shows most: GPUs first, then whether it is whole, then links."""

    def shows(dump: Dump) -> tuple[int, bool, int]:
        gpus = {node for node in dump.details if node[0] == "GPU"}
        gpus |= {node for row in dump.rows.values() for node in row if node[0] == "GPU"}
        return len(gpus), dump.complete, len(dump.edges) + len(dump.rows)

    return max(dumps, key=shows, default=Dump())


def _gpus_of_bus_ids(bus_ids: dict[str, str], models: dict[str, str]) -> list[Device]:
    """Return the GPUs of a log that draws no machine: the ranks of its one host, with NCCL's bus ids."""
    gpus = []
    for index, (rank, nccl_id) in enumerate(sorted(bus_ids.items(), key=lambda item: int(item[0]))):
        bus_id = bus_id_of(nccl_id) if re.fullmatch(r"[0-9a-fA-F]{1,16}", nccl_id) else ""
        model = models.get(bus_id.rpartition(".")[0])
        attributes = {"rank": int(rank), "nccl_id": nccl_id, **({"model": model} if model else {})}
        gpus.append(Device(f"gpu{index}", DeviceKind.GPU, bus_id=bus_id, attributes=attributes))
    return gpus


def _count_facts(graph: MachineGraph) -> dict[str, Any]:
    gpus = [device.name for device in graph.devices if device.kind is DeviceKind.GPU]
    nics, nets = (sum(node[0] == word for node in graph.words) for word in ("NIC", "NET"))
    cpus = [node for node in graph.words if node[0] == "CPU"]
    facts: dict[str, Any] = {
        "gpu_count": len(gpus) or None,
        "nic_count": nics if nics or graph.dump.complete else None,
        "nic_physical_count": card_count(one for one in graph.devices if one.kind is DeviceKind.NIC) or None,
        "net_count": nets if nets or graph.dump.edges else None,
        "cpu_count": len(cpus) or None,
        "gpu_count_in_excerpt": len(gpus),
        "nic_count_in_excerpt": nics,
        "net_count_in_excerpt": nets,
        "numa_unknown": any(number_of(node[1]) < 0 for node in cpus) if cpus else None,
        "complete_graph": graph.dump.complete,
    }
    # One pair that is missing ends the search: a damaged table may name thousands of GPUs.
    pairs = ((left, right) for left in gpus for right in gpus if left != right)
    if graph.matrix and all(pair in graph.matrix for pair in pairs):
        facts["gpu_matrix"] = [[graph.matrix.get((one, two), "X") for two in gpus] for one in gpus]
    return facts


def _rate_facts(graph: MachineGraph) -> dict[str, Any]:
    dump = graph.dump
    rates: dict[str, list[float]] = {}
    for edge in dump.edges:
        lower = graph.aliases.get(edge.lower, edge.lower)
        kind = "gpu_pci" if edge.kind == "PCI" and lower[0] == "GPU" else edge.kind
        rates.setdefault(kind, []).append(edge.rate)
    if not any(node[0] == "GPU" for node in dump.details):
        cells = (cell for row in dump.rows.items() if row[0][0] == "GPU" for cell in row[1].items())
        for node, path in cells:
            if node[0] == "CPU" and path.kind in PROCESSOR_LOCAL:
                rates.setdefault("gpu_pci", []).append(path.rate)
            if node[0] == "NVS" and path.kind == "NVL":
                rates.setdefault("NVL", []).append(path.rate)
    xgmi: dict[frozenset[str], list[str]] = {}
    for edge in dump.edges:
        if edge.kind == "XGMI" and edge.upper is not None:
            ends = [node[1].rpartition("-")[2] for node in (edge.upper, edge.lower)]
            xgmi.setdefault(frozenset(ends), ends)
    names = {
        "sys_bw": "SYS",
        "gpu_pci_bw": "gpu_pci",
        "nvlink_bw": "NVL",
        "xgmi_bw": "XGMI",
        "net_bw": "NET",
    }
    return {
        "max_bw": dump.max_bw,
        "total_bw": dump.total_bw,
        "cpu_tuple": next((text for node, text in dump.details.items() if node[0] == "CPU" and text), None),
        **{name: one_or_all(rates.get(kind, [])) for name, kind in names.items()},
        "net_bws": rates.get("NET", []),
        "xgmi_edges": list(xgmi.values()) or None,
    }


def _distance(path: Path) -> tuple[int, int]:
    return (PATH_WORDS.index(path.kind) if path.kind in PATH_WORDS else len(PATH_WORDS)), path.hops


def _table_facts(graph: MachineGraph) -> dict[str, Any]:
    rows = graph.dump.rows
    if not rows:
        return {}
    facts: dict[str, Any] = {
        "rows": len(rows),
        "paths": {
            "/".join(node): {"/".join(other): path.as_fact() for other, path in row.items()}
            for node, row in rows.items()
        },
    }
    gpus = {node: row for node, row in rows.items() if node[0] == "GPU"}
    between = [gpus[one][other] for one in gpus for other in gpus[one] if other[0] == "GPU" and one != other]
    if len(set(between)) == 1:
        facts["gpu_gpu_path"] = between[0].as_fact()
    near: dict[str, Any] = {}
    far: list[Path] = []
    for node, row in gpus.items():
        nets = {f"NET/{other[1]}": path for other, path in row.items() if other[0] == "NET"}
        if nets:
            best = min(_distance(path) for path in nets.values())
            nearest = [net for net, path in nets.items() if _distance(path) == best]
            near["/".join(node)] = nearest[0] if len(nearest) == 1 else nearest
            far.append(max(nets.values(), key=_distance))
    if near:
        facts.update(near_net=near, far_net_path=max(far, key=_distance).as_fact())
    return facts


def _channel_facts(session: Session) -> dict[str, Any]:
    ranks = _rank_count(session)
    rings, cut_rings = _rings(session, ranks)
    tree_count = max((max(trees) + 1 for trees in session.trees.values()), default=None)
    total = session.total if session.total is not None else (tree_count or len(session.rings) or None)
    first = {rank: trees[min(trees)] for rank, trees in session.trees.items()}
    facts: dict[str, Any] = {
        "nranks": ranks,
        "nnodes": _node_count(session, ranks),
        "channels_total": total,
        "channels": total,
        "channels_listed": len(session.rings),
        "rings": rings,
        "tree_lines": session.tree_lines,
        "bus_ids": {str(rank["rank"]): rank["bus_id"] for rank in session.ranks if "bus_id" in rank},
        "transports": dict(session.transports),
        "ring_line_truncated": bool(cut_rings),
        "tree_edges_known": {str(rank): edge.as_fact() for rank, edge in first.items()},
        "trees": {
            str(rank): {str(tree): edge.as_fact() for tree, edge in trees.items()}
            for rank, trees in session.trees.items()
        },
        "patterns": session.patterns,
    }
    if cut_rings:
        printed = len(next(iter(cut_rings.values())))
        facts.update({"ring_ranks_printed": printed, f"rings_first_{printed}": cut_rings})
    ring = next((each for each in session.patterns if each["pattern"] == RING_PATTERN), None)
    if ring is not None:
        facts["ring_orders"] = ring["orders"]
        facts["ring_pattern"] = {key: value for key, value in ring.items() if key != "orders"}
    return facts


def _rank_count(session: Session) -> int | None:
    """As a ``comm`` line says, else when the ranks seen in rings or trees have no gap and no open end."""
    stated = [rank["nranks"] for rank in session.ranks if rank.get("nranks")]
    if stated:
        return int(max(stated))
    edges = [edge for trees in session.trees.values() for edge in trees.values()]
    named = {rank for edge in edges for rank in (*edge.children, edge.parent) if rank is not None}
    speaking = set(session.trees)
    if speaking and named <= speaking and speaking == set(range(len(speaking))):
        return len(speaking)
    rings = [ring for channel, ring in session.rings.items() if channel not in session.cut]
    if rings and all(sorted(ring) == list(range(len(ring))) for ring in rings) and not named - set(rings[0]):
        return len(rings[0])
    return None


def _node_count(session: Session, ranks: int | None) -> int | None:
    """As a ``comm`` line says, else the hosts when every rank has printed its own trees."""
    stated = [rank["nnodes"] for rank in session.ranks if rank.get("nnodes")]
    if stated:
        return int(max(stated))
    every = len(session.trees) == ranks and all(session.hosts.values())
    return len(set(session.hosts.values())) or None if every else None


def _rings(session: Session, ranks: int | None) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
    """Rings that hold every rank, and those that were cut short; a cut one is closed from ``Ring`` lines."""
    full: dict[str, list[int]] = {}
    cut: dict[str, list[int]] = {}
    for channel, ring in session.rings.items():
        if channel not in session.cut and (ranks is None or len(ring) >= ranks):
            full[channel] = ring
            continue
        cut[channel] = ring
        following = session.neighbours.get(int(channel), {})
        closed = ring[:1]
        while ranks and len(closed) <= ranks and following.get(closed[-1], ring[0]) != ring[0]:
            closed.append(following[closed[-1]])
        if ranks == len(closed) == len(set(closed)) and len(following) >= ranks:
            full[channel] = closed
    return full, cut


def _session_facts(session: Session) -> dict[str, Any]:
    masks = next(iter(session.masks.values()), {})
    # Different masks are NUMA nodes when every GPU of the one host has printed its own.
    devices = {str(rank.get("device")) for rank in session.ranks}
    counts = {rank.get("nranks") for rank in session.ranks}
    whole_host = devices == set(masks) and counts == {len({rank["rank"] for rank in session.ranks})}
    return {
        "hosts": list(session.speakers),
        "net_devices": [name for _, name in sorted(next(iter(session.net_devices.values()), {}).items())],
        "affinity_mask": masks,
        "cpu_affinity": next(iter(session.affinities.values()), {}),
        "nvls_heads": len(session.heads),
        "topo_file": session.topo_file,
        "p2p_chunk_bytes": session.chunk_bytes,
        "version": session.version,
        "gpu_models": session.models,
        "numa_nodes": len({mask.lower() for mask in masks.values()}) if masks and whole_host else None,
        **{f"affinity_mask_{host}": of_host for host, of_host in session.masks.items() if host},
    }


def _complete_node_count(facts: dict[str, Any]) -> None:
    """Ranks over GPUs, where one machine was drawn whole and neither number of nodes nor hosts was said."""
    gpus, ranks = facts["gpu_count"], facts["nranks"]
    if facts["nnodes"] is None and facts["complete_graph"] and gpus and ranks and ranks % gpus == 0:
        facts["nnodes"] = ranks // gpus
    facts["nodes"] = facts["nnodes"]
    one_node = facts["nnodes"] == 1 or len(facts["hosts"]) == 1
    if gpus is None and one_node and ranks and len(facts["bus_ids"]) == ranks:
        facts["gpu_count"] = ranks


def _notices(notices: list[Notice], dumps: list[Dump], dump: Dump, session: Session) -> tuple[Notice, ...]:
    hosts = {other.host for other in dumps if other.host}
    if len(hosts) > 1:
        text = f"{len(hosts)} hosts drew their machine; the one read is {dump.host or 'without a name'}"
        notices.append(Notice("several_hosts", text))
    elif len(session.speakers) > 1:
        notices.append(Notice("several_hosts", f"the log comes from {len(session.speakers)} hosts"))
    if dump.is_empty:
        text = "no graph of the machine in this log; run with NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,GRAPH"
        notices.append(Notice("not_visible", text))
    elif not dump.complete and dump.details:
        notices.append(Notice("truncated", "the graph's first or last line is missing; devices may be too"))
    if len(notices) > MOST_NOTICES:
        left_out = len(notices) - MOST_NOTICES
        notices[MOST_NOTICES:] = [Notice("damaged_line", f"{left_out} more notices are not listed")]
    return tuple(notices)


def _class_of(graph: MachineGraph, session: Session, facts: dict[str, Any]) -> tuple[TopologyClass, str]:
    """The class by the strongest evidence there is, and why; UNKNOWN without any."""
    gpus = [device.name for device in graph.devices if device.kind is DeviceKind.GPU]
    kinds = {link.kind for link in graph.links}
    if any(device.kind is DeviceKind.NVSWITCH for device in graph.devices):
        return TopologyClass.NVSWITCH, "NVLinks end in NVS"
    if session.multicast or session.heads:
        return TopologyClass.NVSWITCH, "NVLink multicast is available, which needs NVSwitches"
    if LinkKind.XGMI in kinds:
        return TopologyClass.XGMI_MESH, "XGMI links join the GPUs"
    to_cpus = any(link.kind is LinkKind.NVLINK and "cpu" in link.source + link.target for link in graph.links)
    shape = class_of_direct_links(gpus, graph.direct, on_board=to_cpus)
    if shape is not None:
        return shape, "NVLinks join GPUs directly"
    if graph.dump.complete and len(gpus) == 1:
        return TopologyClass.SINGLE_GPU, "the whole graph has one GPU"
    if graph.dump.complete and gpus:
        return TopologyClass.PCIE, "the whole graph has no NVLink"
    paths = {label for row in facts.get("gpu_matrix", ()) for label in row if label != "X"}
    if paths and paths <= _PCI_PATHS:
        return TopologyClass.PCIE, "every path between GPUs runs over PCIe"
    pattern = facts.get("ring_pattern", {})
    if pattern.get("nchannels") and pattern.get("type_intra") in _PCI_PATHS:
        return TopologyClass.PCIE, f"rings inside the node use {pattern['type_intra']}"
    if facts["nnodes"] == 1 and session.chunk_bytes == PCI_CHUNK_BYTES and (facts["nranks"] or 0) > 1:
        return TopologyClass.PCIE, "the chunk size is the one NCCL takes without NVLink between all"
    if facts["nnodes"] == 1 and _rings_load_pairs_alike(list(facts["rings"].values()), facts["channels"]):
        mesh = TopologyClass.XGMI_MESH if session.library == "RCCL" else TopologyClass.NVLINK_MESH
        return mesh, "the rings load every pair of GPUs alike"
    one_node = facts["nnodes"] in (None, 1) and len(session.speakers) <= 1
    if one_node and session.library != "RCCL" and _trees_are_one_chain(session.trees):
        return TopologyClass.NVSWITCH, "many channels, all of them one chain through the same GPUs"
    return TopologyClass.UNKNOWN, "nothing in this log says how the GPUs are joined"


def _rings_load_pairs_alike(rings: list[list[int]], channels: int | None) -> bool:
    """Whether rings load every pair alike in different orders: then there is a direct link per pair.

    NCCL's search takes links away as channels use them, so only direct links force different orders; over a
    switch or PCIe all channels take one order.
    """
    if not rings or len(rings) != channels or not 3 <= len(rings[0]) <= 16:
        return False
    loads = Counter(
        (min(pair), max(pair)) for ring in rings for pair in zip(ring, [*ring[1:], ring[0]], strict=True)
    )
    every = itertools.combinations(sorted(rings[0]), 2)
    return len(set(map(tuple, rings))) > 1 and len({loads[pair] for pair in every} | set(loads.values())) == 1


def _trees_are_one_chain(trees: dict[int, dict[int, TreeEdge]]) -> bool:
    """Whether many channels all form one chain through the GPUs of one process group: then there is a switch.

    A chain of three or more ranks in which each has at most one child cannot come from a mesh, whose channels
    differ, nor from PCIe, which never fills that many channels.
    """
    return len(trees) >= 3 and all(
        len(places) >= SWITCH_CHANNELS
        and len(set(places.values())) == 1
        and all(len(edge.children) <= 1 for edge in places.values())
        for places in trees.values()
    )
