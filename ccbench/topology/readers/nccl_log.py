"""Reads what NCCL or RCCL writes with ``NCCL_DEBUG=INFO`` (``NCCL_DEBUG_SUBSYS=INIT,GRAPH`` shows most).

The machine is the one that the process with the fullest view drew; rings, trees, patterns, masks and names
of network devices go into facts. Where no graph was printed, the class follows from what NCCL did, and only
where NCCL's rules leave one answer; ``facts["class_evidence"]`` has the reason.

How the GPUs of a node hang together, from the graph NCCL drew or from what it did with them.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from ccbench.errors import MachineError
from ccbench.topology.classes import class_of_direct_links
from ccbench.topology.graph import DeviceKind, LinkKind, Notice, Topology, TopologyClass
from ccbench.topology.readers.nccl_log_channels import Channels, facts_of
from ccbench.topology.readers.nccl_log_graph import MachineGraph, gpus_of_bus_ids, machine_of
from ccbench.topology.readers.nccl_log_system import Dump, Entry, best_dump, entries, read_dumps

MOST_NOTICES = 200
"""More than these are counted, not listed: a damaged log of a cluster would fill the screen."""

_SIGNS = (
    re.compile(r"NCCL (?:INFO|WARN|TRACE) "),
    re.compile(r"=== System : max(?:Bw|Width) [\d.]+ total(?:Bw|Width) "),
    re.compile(r"(?m)^[ \t]{0,200}\+ (?:PCI|NVL|SYS|XGMI)\[[\d.]{1,20}\] - [A-Z]{3}/[0-9A-Fa-f]"),
    re.compile(r"(?m)^[ \t]{0,200}Trees \[0\] [\d/>|-]"),
)
_USING = re.compile(r"NET/(\w{1,20}) : Using ")
_NET_DEVICE = re.compile(r"\[(\d{1,4})\]([\w.\-]{1,64}):(\d{1,4})(?:/(\w{1,20}))?")
_MASK = re.compile(r"Setting affinity for GPU (\d{1,4}) to ([0-9A-Fa-f,\-]{1,4096})$")
_AFFINITY = re.compile(r"ncclTopoGetCpuAffinity: Affinity for GPU (\d{1,4}) is ([\d,\-]{1,4096})\.")
_TOPO_FILE = re.compile(r"NCCL_TOPO_FILE set by environment to (\S{1,400})|Loading topology file (\S{1,400})")
_HEAD = re.compile(r"NVLS Head {1,9}(\d{1,4}):")
_CHUNK = re.compile(r"P2P Chunksize set to (\d{1,12})")
_VERSION = re.compile(r"(NCCL|RCCL) version ?:? ?([\w.+\-]{1,60})")
_MODEL = re.compile(r"# +Rank .{1,80}device +\d{1,4} +\[([0-9A-Fa-f:]{7,16})\] (.{1,80})")


@dataclass
class _Session:
    """Everything besides graph and channels, per host where hosts can differ."""

    net_devices: dict[str, dict[int, str]] = field(default_factory=dict)
    masks: dict[str, dict[str, str]] = field(default_factory=dict)
    affinities: dict[str, dict[str, str]] = field(default_factory=dict)
    models: dict[str, str] = field(default_factory=dict)
    heads: set[int] = field(default_factory=set)
    hosts: dict[str, None] = field(default_factory=dict)
    multicast: bool = False
    topo_file: str | None = None
    chunk_bytes: int | None = None
    version: str | None = None
    library: str | None = None

    def read(self, entry: Entry) -> None:
        """Take in one line; lines of other things are left alone."""
        body = entry.body.strip()
        if entry.host:
            self.hosts.setdefault(entry.host)
        if body.startswith("NET/"):
            self._read_net(entry.host, body)
        elif body.startswith("Setting affinity"):
            self._read_mask(entry.host, body)
        elif body.startswith("ncclTopoGetCpuAffinity"):
            found = _AFFINITY.match(body)
            if found:
                self.affinities.setdefault(entry.host, {}).setdefault(found[1], found[2])
        elif body.startswith("NVLS "):
            head = _HEAD.match(body)
            self.heads.update([int(head[1])] if head else [])
            self.multicast = self.multicast or body.startswith("NVLS multicast support is available")
        elif body.startswith("P2P Chunksize"):
            chunk = _CHUNK.match(body)
            self.chunk_bytes = int(chunk[1]) if chunk and self.chunk_bytes is None else self.chunk_bytes
        elif body.startswith("#"):
            model = _MODEL.match(body)
            if model:
                self.models.setdefault(model[1].lower(), model[2].strip())
        else:
            self._read_settings(body)

    def _read_settings(self, body: str) -> None:
        if self.topo_file is None and "opo" in body[:60].lower():
            found = _TOPO_FILE.search(body[:600])
            self.topo_file = (found[1] or found[2]) if found else None
        if self.version is None and "CCL version" in body[:80]:
            version = _VERSION.search(body[:200])
            if version:
                self.library, self.version = version[1], version[2]

    def _read_net(self, host: str, body: str) -> None:
        found = _USING.match(body)
        if found is None:
            return
        listed = body[found.end() :].partition(";")[0]
        names = {int(index): name for index, name, _, _ in _NET_DEVICE.findall(listed)}
        if names:
            self.net_devices.setdefault(host, names)

    def _read_mask(self, host: str, body: str) -> None:
        found = _MASK.match(body)
        if found:
            kind = self.affinities if "-" in found[2] else self.masks
            kind.setdefault(host, {}).setdefault(found[1], found[2])


def recognises(text: str) -> bool:
    """Whether ``text`` is a log of NCCL or RCCL, or a piece of one."""
    return any(sign.search(text) for sign in _SIGNS)


def read(text: str) -> Topology:
    """The machine and the channels that the log in ``text`` shows.

    Rates are those NCCL prints: GB/s of one direction, all parallel links together, from its own table of
    constants. Raises MachineError when no line is NCCL's.
    """
    if not recognises(text):
        raise MachineError(
            "NCCL log: no line of NCCL found; expected the output of a run with NCCL_DEBUG=INFO and "
            "NCCL_DEBUG_SUBSYS=INIT,GRAPH; check that standard output was kept"
        )
    lines = list(entries(text))
    session, channels = _Session(), Channels()
    for entry in lines:
        session.read(entry)
        channels.read(entry)
    dumps = read_dumps(lines)
    dump = best_dump(dumps) or Dump("", "")
    names = session.net_devices.get(dump.host) or next(iter(session.net_devices.values()), {})
    graph = machine_of(dump, names, session.models)
    facts = {**graph.facts, **facts_of(channels), **_session_facts(session, channels)}
    _complete_node_count(facts)
    if not graph.devices and facts["gpu_count"]:
        graph.devices.extend(gpus_of_bus_ids(facts["bus_ids"], session.models))
    evidence = Evidence(graph, facts, session.multicast or bool(session.heads), session.library)
    topology_class, nvswitch, reason = classify(evidence)
    facts.update(nvswitch=nvswitch, class_evidence=reason, nvlinks_per_gpu=None)
    facts["nvswitch_count"] = 0 if nvswitch is False and graph.facts["complete_graph"] else None
    return Topology(
        name="NCCL log",
        devices=tuple(graph.devices),
        links=tuple(graph.links),
        topology_class=topology_class,
        source="nccl_log",
        notices=_notices(graph, channels, dumps, dump, session),
        facts=facts,
        matrix=graph.matrix,
    )


def _session_facts(session: _Session, channels: Channels) -> dict[str, Any]:
    masks = next(iter(session.masks.values()), {})
    facts: dict[str, Any] = {
        "hosts": list(session.hosts),
        "net_devices": [name for _, name in sorted(next(iter(session.net_devices.values()), {}).items())],
        "affinity_mask": masks,
        "cpu_affinity": next(iter(session.affinities.values()), {}),
        "nvls_heads": len(session.heads),
        "topo_file": session.topo_file,
        "p2p_chunk_bytes": session.chunk_bytes,
        "version": session.version,
        "gpu_models": session.models,
        "numa_nodes": _numa_nodes(masks, channels),
    }
    for host, of_host in session.masks.items():
        if host:
            facts[f"affinity_mask_{host}"] = of_host
    return facts


def _numa_nodes(masks: dict[str, str], channels: Channels) -> int | None:
    """Different masks, when every GPU of the one host has printed its own."""
    devices = {str(rank.get("device")) for rank in channels.ranks}
    ranks = {rank["rank"] for rank in channels.ranks}
    counts = {rank.get("nranks") for rank in channels.ranks}
    if not masks or devices != set(masks) or counts != {len(ranks)}:
        return None
    return len({mask.lower() for mask in masks.values()})


def _complete_node_count(facts: dict[str, Any]) -> None:
    """Ranks over GPUs, where one machine was drawn whole and neither number of nodes nor hosts was said."""
    gpus, ranks = facts["gpu_count"], facts["nranks"]
    if facts["nnodes"] is None and facts["complete_graph"] and gpus and ranks and ranks % gpus == 0:
        facts["nnodes"] = ranks // gpus
    facts["nodes"] = facts["nnodes"]
    one_node = facts["nnodes"] == 1 or len(facts["hosts"]) == 1
    if gpus is None and one_node and ranks and len(facts["bus_ids"]) == ranks:
        facts["gpu_count"] = ranks


def _notices(
    graph: MachineGraph, channels: Channels, dumps: list[Dump], dump: Dump, session: _Session
) -> tuple[Notice, ...]:
    notices = [*graph.notices, *channels.notices]
    hosts = {other.host for other in dumps if other.host}
    if len(hosts) > 1:
        text = f"{len(hosts)} hosts drew their machine; the one read is {dump.host or 'without a name'}"
        notices.append(Notice("several_hosts", text))
    elif len(session.hosts) > 1:
        notices.append(Notice("several_hosts", f"the log comes from {len(session.hosts)} hosts"))
    if dump.is_empty:
        text = "no graph of the machine in this log; run with NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,GRAPH"
        notices.append(Notice("not_visible", text))
    elif not dump.complete and dump.details:
        notices.append(Notice("truncated", "the graph's first or last line is missing; devices may be too"))
    if len(notices) > MOST_NOTICES:
        left_out = len(notices) - MOST_NOTICES
        notices[MOST_NOTICES:] = [Notice("damaged_line", f"{left_out} more notices are not listed")]
    return tuple(notices)


PCI_CHUNK_BYTES = 2**17
"""NCCL_P2P_PCI_CHUNKSIZE: taken on one node exactly when some pair has no NVLink path (NCCL's init.cc)."""

SWITCH_CHANNELS = 8
"""With PCIe NCCL opens at most half as many channels; meshes give their channels different orders."""

_PCI_PATHS = frozenset({"PIX", "PXB", "P2C", "PXN", "PHB", "SYS", "NODE"})

Verdict = tuple[TopologyClass, bool | None, str]
"""The class, whether there is an NVSwitch (None: not said), and why."""

_NOTHING: Verdict = (TopologyClass.UNKNOWN, None, "nothing in this log says how the GPUs are joined")


@dataclass(frozen=True)
class Evidence:
    """What the log showed. multicast: whether NVLS, which only NVSwitches can do, is available."""

    graph: MachineGraph
    facts: dict[str, Any]
    multicast: bool
    library: str | None


def classify(evidence: Evidence) -> Verdict:
    """The class by the strongest evidence there is; UNKNOWN without any."""
    for judge in (_by_graph, _by_table, _by_search, _by_rings, _by_trees):
        verdict = judge(evidence)
        if verdict is not None:
            return verdict
    return _NOTHING


def _by_graph(evidence: Evidence) -> Verdict | None:
    graph = evidence.graph
    gpus = [device.name for device in graph.devices if device.kind is DeviceKind.GPU]
    if any(device.kind is DeviceKind.NVSWITCH for device in graph.devices):
        return TopologyClass.NVSWITCH, True, "NVLinks end in NVS"
    if evidence.multicast:
        return TopologyClass.NVSWITCH, True, "NVLink multicast is available, which needs NVSwitches"
    if any(link.kind is LinkKind.XGMI for link in graph.links):
        return TopologyClass.XGMI_MESH, False, "XGMI links join the GPUs"
    if evidence.facts["complete_graph"] or graph.direct:
        on_board = any(
            link.kind is LinkKind.NVLINK and "cpu" in link.source + link.target for link in graph.links
        )
        shape = class_of_direct_links(gpus, graph.direct, on_board)
        if shape is not None:
            return shape, False, "NVLinks join GPUs directly"
    if not evidence.facts["complete_graph"] or not gpus:
        return None
    if len(gpus) == 1:
        return TopologyClass.SINGLE_GPU, False, "the whole graph has one GPU"
    return TopologyClass.PCIE, False, "the whole graph has no NVLink"


def _by_table(evidence: Evidence) -> Verdict | None:
    """Every pair of GPUs in the table of paths."""
    rows = evidence.facts.get("gpu_matrix")
    kinds = {label for row in rows for label in row if label != "X"} if rows else set()
    if kinds and kinds <= _PCI_PATHS:
        return TopologyClass.PCIE, False, "every path between GPUs runs over PCIe"
    return None


def _by_search(evidence: Evidence) -> Verdict | None:
    """What NCCL's search and its settings admit to."""
    facts = evidence.facts
    pattern = facts.get("ring_pattern") or {}
    if pattern.get("nchannels") and pattern.get("type_intra") in _PCI_PATHS:
        return TopologyClass.PCIE, False, f"rings inside the node use {pattern['type_intra']}"
    if facts["nnodes"] == 1 and facts["p2p_chunk_bytes"] == PCI_CHUNK_BYTES and (facts["nranks"] or 0) > 1:
        return TopologyClass.PCIE, False, "the chunk size is the one NCCL takes without NVLink between all"
    return None


def _by_rings(evidence: Evidence) -> Verdict | None:
    """Rings of one node that load every pair alike in different orders: a direct link per pair.

    NCCL's search takes links away as channels use them, so only direct links force different orders; over a
    switch or PCIe all channels take one order.
    """
    facts = evidence.facts
    rings = list(facts["rings"].values())
    if facts["nnodes"] != 1 or not rings or len(rings) != facts["channels_total"] or len(rings[0]) < 3:
        return None
    pairs = Counter(
        (min(left, right), max(left, right))
        for ring in rings
        for left, right in zip(ring, [*ring[1:], ring[0]], strict=True)
    )
    ranks = sorted(rings[0])
    joined = all(pair in pairs for pair in itertools.combinations(ranks, 2)) if len(ranks) <= 16 else False
    orders = {tuple(ring) for ring in rings}
    if not joined or len(set(pairs.values())) != 1 or len(orders) < 2:
        return None
    if evidence.library == "RCCL":
        return TopologyClass.XGMI_MESH, False, "the rings load every pair of GPUs alike"
    return TopologyClass.NVLINK_MESH, False, "the rings load every pair of GPUs alike"


def _by_trees(evidence: Evidence) -> Verdict | None:
    """Many channels that all form one chain through the GPUs of one process group: a switch.

    A chain of three or more ranks in which each has at most one child cannot come from a mesh, whose channels
    differ, nor from PCIe, which never fills that many channels.
    """
    facts = evidence.facts
    trees = facts["trees"]
    if facts["nnodes"] not in (None, 1) or len(facts["hosts"]) > 1 or len(trees) < 3:
        return None
    for places in trees.values():
        first = next(iter(places.values()))
        same = all(place == first for place in places.values())
        if len(places) < SWITCH_CHANNELS or not same or len(first["children"]) > 1:
            return None
    if evidence.library == "RCCL":
        return None
    return TopologyClass.NVSWITCH, True, "many channels, all of them one chain through the same GPUs"
