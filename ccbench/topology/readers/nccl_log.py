"""Reads what NCCL or RCCL writes with ``NCCL_DEBUG=INFO`` (``NCCL_DEBUG_SUBSYS=INIT,GRAPH`` shows most).

The machine is the one that the process with the fullest view drew; rings, trees, patterns, masks and names
of network devices go into facts. Where no graph was printed, the class follows from what NCCL did, and only
where NCCL's rules leave one answer; ``facts["class_evidence"]`` has the reason.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from ccbench.errors import MachineError
from ccbench.topology.graph import Notice, Topology
from ccbench.topology.readers.nccl_log_channels import Channels, facts_of
from ccbench.topology.readers.nccl_log_class import Evidence, classify
from ccbench.topology.readers.nccl_log_graph import MachineGraph, gpus_of_bus_ids, machine_of
from ccbench.topology.readers.nccl_log_lines import Entry, entries
from ccbench.topology.readers.nccl_log_system import Dump, best_dump, read_dumps

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
