"""Lines of an NCCL log, and what they say besides the graph: communicators, rings, trees, patterns, names.

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

from ccbench.topology.graph import Notice
from ccbench.topology.readers.nccl_log_graph import Entry, node_of
from ccbench.topology.text import decimal, plain, whole, without_tags

MOST_CHARACTERS_OF_A_LINE = 100_000
"""Longer lines are cut: the longest line NCCL writes, a path table of a large node, has some 20,000."""

_MARKER = re.compile(r"NCCL (?:INFO|TRACE|WARN) ?")
_MOST_CHARACTERS_OF_A_PREFIX = 120
_SPEAKER = re.compile(r"(?:([\w.\-]+):(\d+):(\d+))?\s{0,9}(?:\[(\d{1,6})\])?\s{0,9}$")
_USING = re.compile(r"NET/\w{1,20} : Using ([^;]*)")
_NET_DEVICE = re.compile(r"\[(\d{1,4})\]([\w.\-]{1,64}):\d{1,4}(?:/\w{1,20})?")
_MASK = re.compile(r"Setting affinity for GPU (\d{1,4}) to ([0-9A-Fa-f,\-]{1,4096})$")
_AFFINITY = re.compile(r"ncclTopoGetCpuAffinity: Affinity for GPU (\d{1,4}) is ([\d,\-]{1,4096})\.")
_TOPO_FILE = re.compile(r"NCCL_TOPO_FILE set by environment to (\S{1,400})|Loading topology file (\S{1,400})")
_HEAD = re.compile(r"NVLS Head {1,9}(\d{1,4}):")
_CHUNK = re.compile(r"P2P Chunksize set to (\d{1,12})")
_VERSION = re.compile(r"(NCCL|RCCL) version ?:? ?([\w.+\-]{1,60})")
_MODEL = re.compile(r"# +Rank .{1,80}device +\d{1,4} +\[([0-9A-Fa-f:]{7,16})\] (.{1,80})")
_CHANNEL = re.compile(r"Channel (\d{1,4})(?:/(\d{1,4}))? ?:")
_RING = re.compile(r"Ring (\d{1,4}) : (-?\d{1,7}) -> (-?\d{1,7}) -> (-?\d{1,7})$")
_TREE_PART = re.compile(r"\[(\d{1,4})\] ([\d/>\-]{1,80})")
_TREE_LINE = re.compile(r"Tree (\d{1,4}) : (-?\d{1,7}) -> (-?\d{1,7}) -> (-?\d{1,7}(?:/-?\d{1,7}){0,7})$")
_SEARCH_LINE = re.compile(r"(\d{1,4}) : ")
_COMMUNICATOR_WORDS = {
    "rank": "rank",
    "nranks": "nranks",
    "nRanks": "nranks",
    "nNodes": "nnodes",
    "cudaDev": "device",
    "busId": "bus_id",
}


def entries(text: str) -> Iterator[Entry]:
    """Return every line of ``text`` that is not blank, in order, freed of what stands in front of it."""
    for number, line in enumerate(text.split("\n"), start=1):
        line = plain(line[:MOST_CHARACTERS_OF_A_LINE]).expandtabs().rstrip()
        # One blank belongs to the marker; more are the indentation of the graph.
        marker = _MARKER.search(line)
        if marker is None and line:
            yield Entry(number, "", "", False, without_tags(line))
        elif marker is not None:
            start = marker.start()
            prefix = line[max(0, start - _MOST_CHARACTERS_OF_A_PREFIX) : start].rstrip()
            found = _SPEAKER.search(prefix)
            host, *_, device = found.groups() if found else (None, None, None, None)
            speaker = ":".join(found.groups()[:3]) if found and host else ""
            speaker += f"[{device}]" if device is not None else ""
            yield Entry(number, speaker, host or "", True, line[marker.end() :])


@dataclass(frozen=True)
class TreeEdge:
    """A rank's place in one tree; ``parent`` is None at the root."""

    parent: int | None
    children: tuple[int, ...]

    def as_fact(self) -> dict[str, Any]:
        """As it stands in the facts."""
        return {"parent": self.parent, "children": list(self.children)}


@dataclass
class Session:
    """Everything that the lines say besides the graph; of several communicators the first one's.

    neighbours: channel -> rank -> the next of its ring. trees: rank -> tree -> place. cut: channels whose
    line ends in three dots. hosts: rank -> host that printed its trees. ranks: what the ``comm`` lines say
    (rank, nranks, nnodes, device, bus_id, host). multicast: whether NVLS, which only NVSwitches can do, is
    available. speakers: hosts in order. Net devices, masks and affinities by host.
    """

    total: int | None = None
    rings: dict[str, list[int]] = field(default_factory=dict)
    cut: set[str] = field(default_factory=set)
    neighbours: dict[int, dict[int, int]] = field(default_factory=dict)
    trees: dict[int, dict[int, TreeEdge]] = field(default_factory=dict)
    tree_lines: int = 0
    patterns: list[dict[str, Any]] = field(default_factory=list)
    pattern_speaker: str | None = None
    hosts: dict[int, str] = field(default_factory=dict)
    ranks: list[dict[str, Any]] = field(default_factory=list)
    transports: Counter[str] = field(default_factory=Counter)
    notices: list[Notice] = field(default_factory=list)
    net_devices: dict[str, dict[int, str]] = field(default_factory=dict)
    masks: dict[str, dict[str, str]] = field(default_factory=dict)
    affinities: dict[str, dict[str, str]] = field(default_factory=dict)
    models: dict[str, str] = field(default_factory=dict)
    heads: set[int] = field(default_factory=set)
    speakers: dict[str, None] = field(default_factory=dict)
    multicast: bool = False
    topo_file: str | None = None
    chunk_bytes: int | None = None
    version: str | None = None
    library: str | None = None

    def read(self, entry: Entry) -> None:
        """Take in one line; lines of other things are left alone."""
        body = entry.body.strip()
        if entry.host:
            self.speakers.setdefault(entry.host)
        for beginning, reader in _READERS.items():
            if body.startswith(beginning):
                reader(self, entry, body)
                return
        if body[:1].isdigit() and self.patterns and entry.speaker == self.pattern_speaker:
            self._search_line(body)
        self._settings(body)

    def _channel(self, entry: Entry, body: str) -> None:
        found = _CHANNEL.match(body)
        rest = body[found.end() :] if found else ""
        words = rest.split()
        if found is None or "->" in rest or not words:
            transport = rest.rpartition(" via ")[2].split()
            if "->" in rest and " via " in rest and transport:
                self.transports[transport[0][:60]] += 1
            return
        cut = words[-1].startswith("..")
        ranks = [whole(word) for word in (words[:-1] if cut else words)]
        known = [rank for rank in ranks if rank is not None]
        if not known or len(known) != len(ranks):
            self.notices.append(Notice("damaged_line", f"no list of ranks: {rest[:60]!r}", entry.number))
            return
        channel = f"{int(found[1]):02d}"
        if self.rings.get(channel, known) != known:
            self._note_other_communicator("rings", entry.number)
            return
        if found[2] is not None and self.total is None:
            self.total = int(found[2])
        self.rings[channel] = known
        if cut:
            self.cut.add(channel)

    def _ring(self, entry: Entry, body: str) -> None:
        found = _RING.match(body)
        if found is not None:
            channel, _, rank, following = map(int, found.groups())
            self.neighbours.setdefault(channel, {}).setdefault(rank, following)

    def _tree(self, entry: Entry, body: str) -> None:
        line = _TREE_LINE.match(body)
        parts = [(line[1], f"{line[2]}->{line[3]}->{line[4]}")] if line else _TREE_PART.findall(body)
        self.tree_lines += bool(parts) and line is None
        for tree, text in parts:
            place = _tree_place(text)
            if place is None:
                self.notices.append(
                    Notice("damaged_line", f"no place in a tree: {text[:60]!r}", entry.number)
                )
                continue
            rank, edge = place
            self.hosts.setdefault(rank, entry.host)
            if self.trees.setdefault(rank, {}).setdefault(int(tree), edge) != edge:
                self._note_other_communicator("trees", entry.number)

    def _note_other_communicator(self, what: str, line: int) -> None:
        text = f"several communicators; {what} are those of the first"
        if all(notice.text != text for notice in self.notices):
            self.notices.append(Notice("unsupported", text, line))

    def _pattern(self, entry: Entry, body: str) -> None:
        if self.pattern_speaker is None:
            self.pattern_speaker = entry.speaker
        if entry.speaker != self.pattern_speaker:
            return
        values = dict(words for part in body[:400].split(",") if len(words := part.split()) == 2)
        pattern, channels = whole(values.get("Pattern", "")), whole(values.get("nChannels", ""))
        if pattern is None or channels is None:
            self.notices.append(Notice("damaged_line", f"no pattern: {body[:60]!r}", entry.number))
            return
        intra, _, inter = values.get("bw", values.get("speed", "")).partition("/")
        type_intra, _, type_inter = values.get("type", "").partition("/")
        self.patterns.append(
            {
                "pattern": pattern,
                "nchannels": channels,
                "bw_intra": decimal(intra),
                "bw_inter": decimal(inter),
                "type_intra": type_intra or None,
                "type_inter": type_inter or None,
                "orders": [],
            }
        )

    def _search_line(self, body: str) -> None:
        found, last = _SEARCH_LINE.match(body), self.patterns[-1]
        nodes = [node_of(word) for word in body[found.end() :].split()] if found else []
        gpus = [node[1].rpartition("-")[2] for node in nodes if node is not None and node[0] == "GPU"]
        if gpus and None not in nodes and len(last["orders"]) < last["nchannels"]:
            last["orders"].append(gpus)

    def _communicator(self, entry: Entry, body: str) -> None:
        values: dict[str, Any] = {"host": entry.host}
        for word, following in itertools.pairwise(body[:600].split()):
            meaning = _COMMUNICATOR_WORDS.get(word)
            if meaning is not None:
                values.setdefault(meaning, following if meaning == "bus_id" else whole(following))
        if values.get("rank") is not None:
            self.ranks.append(values)

    def _net(self, entry: Entry, body: str) -> None:
        found = _USING.match(body)
        names = {int(index): name for index, name in _NET_DEVICE.findall(found[1])} if found else {}
        if names:
            self.net_devices.setdefault(entry.host, names)

    def _affinity(self, entry: Entry, body: str) -> None:
        found = _MASK.match(body) or _AFFINITY.match(body)
        if found:
            is_list = "-" in found[2] or found.re is _AFFINITY
            kind = self.affinities if is_list else self.masks
            kind.setdefault(entry.host, {}).setdefault(found[1], found[2])

    def _nvls(self, entry: Entry, body: str) -> None:
        head = _HEAD.match(body)
        self.heads.update([int(head[1])] if head else [])
        self.multicast = self.multicast or body.startswith("NVLS multicast support is available")

    def _chunk(self, entry: Entry, body: str) -> None:
        chunk = _CHUNK.match(body)
        self.chunk_bytes = int(chunk[1]) if chunk and self.chunk_bytes is None else self.chunk_bytes

    def _model(self, entry: Entry, body: str) -> None:
        model = _MODEL.match(body)
        if model:
            self.models.setdefault(model[1].lower(), model[2].strip())

    def _settings(self, body: str) -> None:
        if self.topo_file is None and "opo" in body[:60].lower():
            found = _TOPO_FILE.search(body[:600])
            self.topo_file = (found[1] or found[2]) if found else None
        if self.version is None and "CCL version" in body[:80]:
            version = _VERSION.search(body[:200])
            if version:
                self.library, self.version = version[1], version[2]


_READERS = {
    "Channel ": Session._channel,
    "Ring ": Session._ring,
    "Trees [": Session._tree,
    "Tree ": Session._tree,
    "Pattern ": Session._pattern,
    "comm 0x": Session._communicator,
    "ncclCommInitRank": Session._communicator,
    "NET/": Session._net,
    "Setting affinity": Session._affinity,
    "ncclTopoGetCpuAffinity": Session._affinity,
    "NVLS ": Session._nvls,
    "P2P Chunksize": Session._chunk,
    "#": Session._model,
}
"""Beginning of a line -> what reads it."""


def _tree_place(text: str) -> tuple[int, TreeEdge] | None:
    """A rank and its place from ``1/8/-1->0->-1``, the reverse, or both joined by a bar (then the first).

    The side with slashes lists the children; which side that is changed with NCCL 2.5.
    """
    left, *rest = text.split("->")
    if len(rest) != 2:
        return None
    children, parent = (left, rest[1]) if "/" in left else (rest[1], left)
    numbers = [whole(word) for word in (rest[0], parent, *children.split("/"))]
    known = [number for number in numbers if number is not None]
    if len(known) < len(numbers) or known[0] < 0:
        return None
    rank, above, *below = known
    return rank, TreeEdge(above if above >= 0 else None, tuple(child for child in below if child >= 0))
