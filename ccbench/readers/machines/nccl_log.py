"""Reads what NCCL or RCCL writes with ``NCCL_DEBUG=INFO`` (``NCCL_DEBUG_SUBSYS=INIT,GRAPH`` shows most).

The machine is the one that the process with the fullest view drew; rings, trees and names of network devices go into
facts. Where no graph was printed, the class follows from what NCCL did, and only where NCCL's rules leave one answer.

A line may carry the process (``host0:1000:1001 [3] NCCL INFO``), a tag of mpirun (``[1,0]<stdout>:``), a time
stamp, colours, an indentation, or nothing at all when an author removed the prefixes. Ranks interleave, so
what belongs together is found by who speaks. Rings are printed by rank 0 only, through a buffer of 128
characters (NCCL's rings.cc), so that more than some 20 ranks are cut, in old versions without a sign; every
rank prints its own neighbours and its own trees.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ccbench.errors import MachineError
from ccbench.findings import SourceWarning
from ccbench.readers.lines import plain, whole, without_tags
from ccbench.readers.machines.nccl_log_graph import (
    Dump,
    Entry,
    MachineGraph,
    bus_id_of,
    read_dumps,
)
from ccbench.topology.classes import class_of_direct_links
from ccbench.topology.graph import Device, DeviceKind, LinkKind, Topology, TopologyClass

MOST_WARNINGS = 200
"""More than these are counted, not listed: a damaged log of a cluster would fill the screen."""

_MOST_CHARACTERS_OF_A_LINE = 100_000
"""Longer lines are cut: the longest line NCCL writes, a path table of a large node, has some 20,000."""

_RING_PATTERN = 4
"""NCCL_TOPO_PATTERN_RING of NCCL's graph.h."""

_PCI_CHUNK_BYTES = 2**17
"""NCCL_P2P_PCI_CHUNKSIZE: taken on one node exactly when some pair has no NVLink path (NCCL's init.cc)."""

_SWITCH_CHANNELS = 8
"""With PCIe NCCL opens at most half as many channels; meshes give their channels different orders."""

_PCI_PATHS = frozenset({"PIX", "PXB", "P2C", "PXN", "PHB", "SYS", "NODE"})

_ID = r"[A-Z]{3}/[0-9A-Fa-f][0-9A-Fa-f-]{0,32}"
_BEGIN = r"(?m)(?:^|[ \t>:\]])"  # of a line, or behind what a launcher wrote before it
_SIGNS = (
    re.compile(r"NCCL (?:INFO|WARN|TRACE) "),
    re.compile(rf"{_BEGIN}\+ (?:PCI|NVL|SYS|XGMI)\[[\d.]{{1,20}}\] - {_ID}"),
    re.compile(rf"{_BEGIN}{_ID} ?: ?{_ID} \(\d{{1,4}}/[\d.]{{1,20}}/[A-Z]"),
    re.compile(rf"{_BEGIN}Trees \[0\] [\d/>|-]"),
)
_MARKER = re.compile(r"NCCL (?:INFO|TRACE|WARN) ?")
_MOST_CHARACTERS_OF_A_PREFIX = 120
_SPEAKER = re.compile(r"(?:([\w.\-]+):(\d+):(\d+))?\s{0,9}(?:\[(\d{1,6})\])?\s{0,9}$")
_USING = re.compile(r"NET/\w{1,20} : Using ([^;]*)")
_NET_DEVICE = re.compile(r"\[(\d{1,4})\]([\w.\-]{1,64}):\d{1,4}(?:/\w{1,20})?")
_HEAD = re.compile(r"NVLS Head {1,9}\d{1,4}:")
_CHUNK = re.compile(r"P2P Chunksize set to (\d{1,12})")
_VERSION = re.compile(r"(NCCL|RCCL) version ?:? ?[\w.+\-]{1,60}")
_MODEL = re.compile(r"# +Rank .{1,80}device +\d{1,4} +\[([0-9A-Fa-f:]{7,16})\] (.{1,80})")
_CHANNEL = re.compile(r"Channel (\d{1,4})(?:/(\d{1,4}))? ?:")
_TREE_PART = re.compile(r"\[(\d{1,4})\] ([\d/>\-]{1,80})")
_TORN_HOST = re.compile(r":\d+:\d+ \[$", re.ASCII)
_COMMUNICATOR_WORDS = {
    "rank": "rank",
    "nranks": "nranks",
    "nRanks": "nranks",
    "nNodes": "nnodes",
    "busId": "bus_id",
}
_SETTINGS = (
    "NET/",
    "NVLS ",
    "P2P Chunksize",
    "#",
)


def entries(text: str) -> Iterator[Entry]:
    """Return every line of ``text`` that is not blank, in order, freed of what stands in front of it."""
    for number, line in enumerate(text.split("\n"), start=1):
        line = plain(line[:_MOST_CHARACTERS_OF_A_LINE]).expandtabs().rstrip()
        # One blank belongs to the marker; more are the indentation of the graph.
        marker = _MARKER.search(line)
        if marker is None and line:
            yield Entry(number, "", "", False, without_tags(line))
        elif marker is not None:
            start = marker.start()
            prefix = line[max(0, start - _MOST_CHARACTERS_OF_A_PREFIX) : start].rstrip()
            match = _SPEAKER.search(prefix)
            # Behind another process's unfinished prefix a host's name has that one's digits in front.
            if match and _TORN_HOST.search(prefix[: match.start()]):
                match = None
            host, *_, device = match.groups() if match else (None, None, None, None)
            speaker = ":".join(match.groups()[:3]) if match and host else ""
            speaker += f"[{device}]" if device is not None else ""
            yield Entry(number, speaker, host or "", True, line[marker.end() :])


@dataclass
class LogSession:
    """Contents of the lines besides the graph; of several communicators the first one's.

    total: channels, where a line says so. trees: rank -> tree -> place (``parent``, None at the root, and
    ``children``). cut: channels whose line ends in three dots. hosts: rank -> host that printed its trees. ranks: what
    the ``comm`` lines say (rank, nranks, nnodes, bus_id). ring_path: kind of path that rings take inside a node.
    multicast: NVLS, which only NVSwitches can do, is available. speakers: hosts in order. torn: numbers of lines that
    hold two messages. Net devices by host.
    """

    total: int | None = None
    rings: dict[str, list[int]] = field(default_factory=dict)
    cut: set[str] = field(default_factory=set)
    trees: dict[int, dict[int, dict[str, Any]]] = field(default_factory=dict)
    ring_path: str = ""
    pattern_speaker: str | None = None
    hosts: dict[int, str] = field(default_factory=dict)
    ranks: list[dict[str, Any]] = field(default_factory=list)
    warnings: list[SourceWarning] = field(default_factory=list)
    net_devices: dict[str, dict[int, str]] = field(default_factory=dict)
    models: dict[str, str] = field(default_factory=dict)
    speakers: dict[str, None] = field(default_factory=dict)
    torn: list[int] = field(default_factory=list)
    multicast: bool = False
    chunk_bytes: int | None = None
    library: str | None = None

    def read(self, entry: Entry) -> None:
        """Take in one line; lines of other things are left alone."""
        body = entry.body.strip()
        if entry.host:
            self.speakers.setdefault(entry.host)
        if entry.marked and _MARKER.search(body):
            self.torn.append(entry.number)
        if body.startswith("Channel "):
            self._channel(entry, body)
        elif body.startswith("Trees ["):
            self._trees(entry, body)
        elif body.startswith("Pattern "):
            self._pattern(entry, body)
        elif body.startswith(("comm 0x", "ncclCommInitRank")):
            self._communicator(entry, body)
        elif body.startswith(_SETTINGS):
            if match := _USING.match(body):
                names = {int(index): name for index, name in _NET_DEVICE.findall(match[1])}
                if names:
                    self.net_devices.setdefault(entry.host, names)
            elif match := _CHUNK.match(body):
                self.chunk_bytes = (
                    int(match[1]) if self.chunk_bytes is None else self.chunk_bytes
                )
            elif match := _MODEL.match(body):
                self.models.setdefault(match[1].lower(), match[2].strip())
            self.multicast |= body.startswith("NVLS multicast support is available")
            self.multicast |= _HEAD.match(body) is not None
        elif (
            self.library is None
            and "CCL version" in body[:80]
            and (match := _VERSION.search(body[:200]))
        ):
            self.library = match[1]

    def _communicator(self, entry: Entry, body: str) -> None:
        """Take rank and bus id of a ``comm`` line; None for a number that another process wrote into."""
        values: dict[str, Any] = {}
        for word, text in itertools.pairwise(body[:600].split()):
            meaning = _COMMUNICATOR_WORDS.get(word)
            if meaning is not None and meaning not in values:
                values[meaning] = text if meaning == "bus_id" else whole(text)
        if None in values.values() and entry.number not in self.torn:
            self.torn.append(entry.number)
        if values.get("rank") is not None:
            self.ranks.append(values)

    def _channel(self, entry: Entry, body: str) -> None:
        match = _CHANNEL.match(body)
        rest = body[match.end() :] if match else ""
        words = rest.split()
        if match is None or "->" in rest or not words:
            return
        cut = words[-1].startswith("..")
        ranks = [whole(word) for word in (words[:-1] if cut else words)]
        order = [rank for rank in ranks if rank is not None]
        if not order or len(order) != len(ranks):
            self._note_damage(f"no ranks: {rest[:60]!r}", entry)
            return
        channel = f"{int(match[1]):02d}"
        if self.rings.get(channel, order) != order:
            self._note_other_communicator("rings", entry.number)
            return
        if match[2] is not None and self.total is None:
            self.total = int(match[2])
        self.rings[channel] = order
        if cut:
            self.cut.add(channel)

    def _trees(self, entry: Entry, body: str) -> None:
        """A rank and its place from ``1/8/-1->0->-1``, the reverse, or both joined by a bar (then the first).

        The side with slashes lists the children; which side that is changed with NCCL 2.5.
        """
        for tree, text in _TREE_PART.findall(body):
            left, middle, right = text.split("->") if text.count("->") == 2 else ("", "", "")
            children, parent = (left, right) if "/" in left else (right, left)
            numbers = [whole(word) for word in (middle, parent, *children.split("/"))]
            places = [number for number in numbers if number is not None]
            if len(places) < len(numbers) or places[0] < 0:
                self._note_damage(f"no place in a tree: {text[:60]!r}", entry)
                continue
            rank, above, *below = places
            edge = {
                "parent": above if above >= 0 else None,
                "children": [child for child in below if child >= 0],
            }
            self.hosts.setdefault(rank, entry.host)
            if self.trees.setdefault(rank, {}).setdefault(int(tree), edge) != edge:
                self._note_other_communicator("trees", entry.number)

    def _note_damage(self, text: str, entry: Entry) -> None:
        self.warnings.append(SourceWarning("damaged_line", text, entry.number))

    def _note_other_communicator(self, what: str, line: int) -> None:
        text = f"several communicators; {what} are those of the first"
        if all(warning.text != text for warning in self.warnings):
            self.warnings.append(SourceWarning("unsupported", text, line))

    def _pattern(self, entry: Entry, body: str) -> None:
        if self.pattern_speaker is None:
            self.pattern_speaker = entry.speaker
        if entry.speaker != self.pattern_speaker:
            return
        values = dict(
            words for part in body[:400].split(",") if len(words := part.split()) == 2
        )
        pattern, channels = whole(values.get("Pattern", "")), whole(values.get("nChannels", ""))
        if pattern is None or channels is None:
            self._note_damage(f"no pattern: {body[:60]!r}", entry)
        elif pattern == _RING_PATTERN and channels and not self.ring_path:
            self.ring_path = values.get("type", "").partition("/")[0]


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
    session = LogSession()
    for entry in lines:
        session.read(entry)
    dumps = read_dumps(lines)

    def shown_by(dump: Dump) -> tuple[int, bool, int]:
        gpus = {node for node in dump.drawn if node[0] == "GPU"}
        gpus |= {node for row in dump.rows.values() for node in row if node[0] == "GPU"}
        return len(gpus), dump.complete, len(dump.edges) + len(dump.rows)

    # The view that shows most counts: GPUs first, then whether it is whole, then links.
    dump = max(dumps, key=shown_by, default=Dump())
    names = session.net_devices.get(dump.host) or next(iter(session.net_devices.values()), {})
    graph = MachineGraph(dump, names, session.models)
    ranks = _rank_count(session)
    nodes = _node_count(session, ranks)
    one_node = nodes == 1 or len(session.speakers) == 1
    if not graph.devices and one_node:
        graph.devices = _gpus_of_ranks(session, ranks)
    warnings = [*graph.warnings, *session.warnings]
    _warn_of_parts(warnings, dump, session)
    facts = {"nranks": ranks, "nnodes": nodes, **_channel_facts(session, ranks)}
    topology_class = _class_of(graph, session, facts)
    maybe_switches = topology_class in (TopologyClass.UNKNOWN, TopologyClass.NVSWITCH)
    # Counts are those of the graph, unless the log does not show such devices.
    kinds = {device.kind for device in graph.devices}
    unseen = {
        "gpu_count": DeviceKind.GPU not in kinds,
        "nic_count": all(word != "NIC" for word, _ in graph.words) and not dump.complete,
        "cpu_count": DeviceKind.CPU not in kinds,
        "nvswitch_count": maybe_switches or not dump.complete,
    }
    counts = dict.fromkeys(name for name, is_unseen in unseen.items() if is_unseen)
    return Topology(
        name="NCCL log",
        devices=tuple(graph.devices),
        links=tuple(graph.links),
        topology_class=topology_class,
        source="nccl_log",
        warnings=tuple(warnings),
        facts={**facts, "nvlinks_per_gpu": None, **counts},
        matrix=graph.matrix,
    )


def _gpus_of_ranks(session: LogSession, ranks: int | None) -> list[Device]:
    """The ranks of the one host of a log that draws no machine, with NCCL's bus ids; empty if one is missing."""
    bus_ids = {rank["rank"]: rank["bus_id"] for rank in session.ranks if "bus_id" in rank}
    devices = []
    for index, rank in enumerate(sorted(bus_ids) if len(bus_ids) == ranks else ()):
        packed = re.fullmatch(r"[0-9a-fA-F]{1,16}", bus_ids[rank])
        bus_id = bus_id_of(packed[0]) if packed else ""
        model = session.models.get(bus_id.rpartition(".")[0])
        stated = {"model": model} if model else {}
        devices.append(Device(f"gpu{index}", DeviceKind.GPU, bus_id=bus_id, attributes=stated))
    return devices


def _channel_facts(session: LogSession, ranks: int | None) -> dict[str, Any]:
    """Rings that hold every rank, those that were cut short, trees and network devices."""
    rings = {
        channel: ring
        for channel, ring in session.rings.items()
        if channel not in session.cut and (ranks is None or len(ring) >= ranks)
    }
    cut = {channel: ring for channel, ring in session.rings.items() if channel not in rings}
    net_devices = next(iter(session.net_devices.values()), {})
    facts: dict[str, Any] = {
        "rings": rings,
        "trees": {
            str(rank): {str(tree): edge for tree, edge in trees.items()}
            for rank, trees in session.trees.items()
        },
        "net_devices": [name for _, name in sorted(net_devices.items())],
    }
    if cut:
        facts[f"rings_first_{len(next(iter(cut.values())))}"] = cut
    return facts


def _rank_count(session: LogSession) -> int | None:
    """Number of ranks of a ``comm`` line; else, when the ranks of trees or rings have no gap and no open end."""
    stated = [rank["nranks"] for rank in session.ranks if rank.get("nranks")]
    if stated:
        return int(max(stated))
    edges = [edge for trees in session.trees.values() for edge in trees.values()]
    named = {rank for edge in edges for rank in (*edge["children"], edge["parent"])} - {None}
    speaking = set(session.trees)
    if speaking and named <= speaking == set(range(len(speaking))):
        return len(speaking)
    rings = [set(ring) for channel, ring in session.rings.items() if channel not in session.cut]
    if rings and all(named <= ring == set(range(len(rings[0]))) for ring in rings):
        return len(rings[0])
    return None


def _node_count(session: LogSession, ranks: int | None) -> int | None:
    """Number of nodes of a ``comm`` line; else the hosts, when every rank has printed its own trees."""
    stated = [rank["nnodes"] for rank in session.ranks if rank.get("nnodes")]
    if stated:
        return int(max(stated))
    every = session.trees and len(session.trees) == ranks and all(session.hosts.values())
    return len(set(session.hosts.values())) if every else None


def _warn_of_parts(warnings: list[SourceWarning], dump: Dump, session: LogSession) -> None:
    """Add to ``warnings`` what the log shows only in part, and count those above MOST_WARNINGS."""
    if len(session.speakers) > 1:
        text = f"the log comes from {len(session.speakers)} hosts"
        text += f"; the machine is that of {dump.host}" if dump.host else ""
        warnings.append(SourceWarning("several_hosts", text))
    if session.torn:
        number = len(session.torn)
        text = f"{number} line{'' if number == 1 else 's'} torn into each other: two messages in one line"
        cure = "values of the first are kept where their form is whole; give each process a file: NCCL_DEBUG_FILE"
        warnings.append(SourceWarning("damaged_line", f"{text}; {cure}", session.torn[0]))
    if dump.is_empty:
        text = "no graph of the machine in this log; run with NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,GRAPH"
        warnings.append(SourceWarning("not_visible", text))
    elif not dump.complete and dump.drawn:
        warnings.append(SourceWarning("truncated", "the graph's first or last line is missing"))
    if (more := len(warnings) - MOST_WARNINGS) > 0:
        warnings[MOST_WARNINGS:] = [
            SourceWarning("damaged_line", f"{more} more warnings are not listed")
        ]


def _class_of(graph: MachineGraph, session: LogSession, facts: dict[str, Any]) -> TopologyClass:
    """The class by the strongest evidence there is; UNKNOWN without any."""
    gpus = [device.name for device in graph.devices if device.kind is DeviceKind.GPU]
    kinds = {link.kind for link in graph.links}
    if session.multicast or any(d.kind is DeviceKind.NVSWITCH for d in graph.devices):
        return TopologyClass.NVSWITCH
    if LinkKind.XGMI in kinds:
        return TopologyClass.XGMI_MESH
    to_cpus = any(
        link.kind is LinkKind.NVLINK and "cpu" in link.source + link.target
        for link in graph.links
    )
    direct = {
        (link.source, link.target)
        for link in graph.links
        if link.kind in (LinkKind.NVLINK, LinkKind.C2C)
    }
    shape = class_of_direct_links(gpus, direct, on_board=to_cpus)
    if shape is not None:
        return shape
    if graph.dump.complete and gpus:  # and no NVLink
        return TopologyClass.SINGLE_GPU if len(gpus) == 1 else TopologyClass.PCIE
    # A path that is missing may be any: the table must have all.
    pairs = len(gpus) * (len(gpus) - 1)
    paths = set(graph.matrix.values()) if len(graph.matrix) == pairs else set()
    if (paths and paths <= _PCI_PATHS) or session.ring_path in _PCI_PATHS:
        return TopologyClass.PCIE
    # The chunk size that NCCL takes without NVLink between all.
    one_node = facts["nnodes"] == 1
    if one_node and session.chunk_bytes == _PCI_CHUNK_BYTES and (facts["nranks"] or 0) > 1:
        return TopologyClass.PCIE
    # NCCL's search takes links away as channels use them, so only direct links force different orders; over a
    # switch or PCIe all channels take one order. Rings that load every pair alike in different orders: then
    # there is a direct link per pair.
    rings = list(facts["rings"].values())
    tree_count = max((max(trees) + 1 for trees in session.trees.values()), default=None)
    channels = session.total or tree_count or len(session.rings)
    if one_node and rings and len(rings) == channels and 3 <= len(rings[0]) <= 16:
        loads = Counter(
            (min(pair), max(pair))
            for ring in rings
            for pair in zip(ring, [*ring[1:], ring[0]], strict=True)
        )
        of_pairs = {loads[pair] for pair in itertools.combinations(sorted(rings[0]), 2)}
        if len(set(map(tuple, rings))) > 1 and len(of_pairs | set(loads.values())) == 1:
            return (
                TopologyClass.XGMI_MESH
                if session.library == "RCCL"
                else TopologyClass.NVLINK_MESH
            )
    # A chain of three or more ranks in which each has at most one child cannot come from a mesh, whose
    # channels differ, nor from PCIe, which never fills that many channels.
    chains = len(session.trees) >= 3 and all(
        len(places) >= _SWITCH_CHANNELS
        and all(
            edge == first and len(edge["children"]) <= 1
            for first in list(places.values())[:1]
            for edge in places.values()
        )
        for places in session.trees.values()
    )
    maybe_one_node = facts["nnodes"] in (None, 1) and len(session.speakers) <= 1
    if chains and maybe_one_node and session.library != "RCCL":
        return TopologyClass.NVSWITCH
    return TopologyClass.UNKNOWN
