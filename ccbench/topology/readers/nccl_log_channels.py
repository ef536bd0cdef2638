"""The part of an NCCL log that says what NCCL made of the machine: communicators, rings, trees, patterns.

Rings are printed by rank 0 only, through a buffer of 128 characters (NCCL's rings.cc), so that more than some
20 ranks are cut, in old versions without a sign; every rank prints its own neighbours and its own trees.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, field
from typing import Any

from ccbench.topology.graph import Notice
from ccbench.topology.readers.nccl_log_system import Entry, node_of
from ccbench.topology.text import decimal, whole

RING_PATTERN = 4
"""NCCL_TOPO_PATTERN_RING of NCCL's graph.h."""

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


@dataclass(frozen=True)
class TreeEdge:
    """A rank's place in one tree; ``parent`` is None at the root."""

    parent: int | None
    children: tuple[int, ...]


@dataclass
class Channels:
    """What the lines said; of several communicators the first one's."""

    total: int | None = None
    rings: dict[str, list[int]] = field(default_factory=dict)
    cut: set[str] = field(default_factory=set)
    """Channels whose line ends in three dots."""
    neighbours: dict[int, dict[int, int]] = field(default_factory=dict)
    """Channel -> rank -> the next rank of its ring."""
    trees: dict[int, dict[int, TreeEdge]] = field(default_factory=dict)
    """Rank -> tree -> place."""
    tree_lines: int = 0
    patterns: list[dict[str, Any]] = field(default_factory=list)
    hosts: dict[int, str] = field(default_factory=dict)
    """Rank -> host that printed its trees."""
    ranks: list[dict[str, Any]] = field(default_factory=list)
    """What the ``comm`` lines say: rank, nranks, nnodes, device, bus_id, host."""
    transports: dict[str, int] = field(default_factory=dict)
    notices: list[Notice] = field(default_factory=list)
    pattern_speaker: str | None = None

    def read(self, entry: Entry) -> None:
        """Take in one line; lines of other things are left alone."""
        body = entry.body.strip()
        if body.startswith("Channel "):
            self._read_channel(entry, body)
        elif body.startswith("Ring "):
            self._read_ring(body)
        elif body.startswith(("Trees [", "Tree ")):
            self._read_trees(entry, body)
        elif body.startswith("Pattern "):
            self._read_pattern(entry, body)
        elif body.startswith(("comm 0x", "ncclCommInitRank")):
            self._read_communicator(entry, body)
        elif body[:1].isdigit() and self.patterns and entry.speaker == self.pattern_speaker:
            self._read_search_line(body)

    def _read_channel(self, entry: Entry, body: str) -> None:
        found = _CHANNEL.match(body)
        if found is None:
            return
        rest = body[found.end() :]
        if "->" in rest:
            self._count_transport(rest)
            return
        words = rest.split()
        cut = bool(words) and words[-1].startswith("..")
        ranks = [whole(word) for word in (words[:-1] if cut else words)]
        known = [rank for rank in ranks if rank is not None]
        if not known or len(known) != len(ranks):
            if words:
                self.notices.append(Notice("damaged_line", f"no list of ranks: {rest[:60]!r}", entry.number))
            return
        channel = f"{int(found[1]):02d}"
        if channel in self.rings and self.rings[channel] != known:
            self._note_once(
                "unsupported", "several communicators; rings are those of the first", entry.number
            )
            return
        if found[2] is not None and self.total is None:
            self.total = int(found[2])
        self.rings[channel] = known
        if cut:
            self.cut.add(channel)

    def _count_transport(self, rest: str) -> None:
        words = rest.rpartition(" via ")[2].split()
        if " via " in rest and words:
            self.transports[words[0][:60]] = self.transports.get(words[0][:60], 0) + 1

    def _read_ring(self, body: str) -> None:
        found = _RING.match(body)
        if found is not None:
            channel, _, rank, following = (int(number) for number in found.groups())
            self.neighbours.setdefault(channel, {}).setdefault(rank, following)

    def _read_trees(self, entry: Entry, body: str) -> None:
        line = _TREE_LINE.match(body)
        if line is not None:
            parts = [(line[1], f"{line[2]}->{line[3]}->{line[4]}")]
        else:
            parts = _TREE_PART.findall(body)
            self.tree_lines += bool(parts)
        for tree, text in parts:
            place = _tree_place(text)
            if place is None:
                text = f"no place in a tree: {text[:60]!r}"
                self.notices.append(Notice("damaged_line", text, entry.number))
                continue
            rank, edge = place
            self.hosts.setdefault(rank, entry.host)
            mine = self.trees.setdefault(rank, {})
            if mine.setdefault(int(tree), edge) != edge:
                self._note_once(
                    "unsupported", "several communicators; trees are those of the first", entry.number
                )

    def _read_pattern(self, entry: Entry, body: str) -> None:
        if self.pattern_speaker is None:
            self.pattern_speaker = entry.speaker
        if entry.speaker != self.pattern_speaker:
            return
        words = [part.split() for part in body[:400].split(",")]
        values = {part[0]: part[1] for part in words if len(part) == 2}
        pattern, channels = whole(values.get("Pattern", "")), whole(values.get("nChannels", ""))
        if pattern is None or channels is None:
            self.notices.append(Notice("damaged_line", f"no pattern: {body[:60]!r}", entry.number))
            return
        rates = values.get("bw", values.get("speed", "")).partition("/")
        types = values.get("type", "").partition("/")
        self.patterns.append(
            {
                "pattern": pattern,
                "nchannels": channels,
                "bw_intra": decimal(rates[0]),
                "bw_inter": decimal(rates[2]),
                "type_intra": types[0] or None,
                "type_inter": types[2] or None,
                "orders": [],
            }
        )

    def _read_search_line(self, body: str) -> None:
        found = _SEARCH_LINE.match(body)
        nodes = [node_of(word) for word in body[found.end() :].split()] if found else []
        gpus = [node[1].rpartition("-")[2] for node in nodes if node is not None and node[0] == "GPU"]
        last = self.patterns[-1]
        if gpus and None not in nodes and len(last["orders"]) < last["nchannels"]:
            last["orders"].append(gpus)

    def _read_communicator(self, entry: Entry, body: str) -> None:
        words = body[:600].split()
        values: dict[str, Any] = {"host": entry.host}
        for word, following in itertools.pairwise(words):
            meaning = _COMMUNICATOR_WORDS.get(word)
            if meaning is not None:
                values.setdefault(meaning, following if meaning == "bus_id" else whole(following))
        if values.get("rank") is not None:
            self.ranks.append(values)

    def _note_once(self, kind: str, text: str, line: int) -> None:
        if all(notice.text != text for notice in self.notices if notice.kind == kind):
            self.notices.append(Notice(kind, text, line))


def _tree_place(text: str) -> tuple[int, TreeEdge] | None:
    """A rank and its place from ``1/8/-1->0->-1``, the reverse, or both joined by a bar (then the first).

    The side with slashes lists the children; which side that is changed with NCCL 2.5.
    """
    sides = text.split("->")
    if len(sides) != 3:
        return None
    left, middle, right = sides
    children, parent = (left, right) if "/" in left else (right, left)
    numbers = [whole(word) for word in children.split("/")]
    rank, above = whole(middle), whole(parent)
    if rank is None or above is None or None in numbers or rank < 0:
        return None
    below = tuple(number for number in numbers if number is not None and number >= 0)
    return rank, TreeEdge(above if above >= 0 else None, below)


def facts_of(channels: Channels) -> dict[str, Any]:
    """Facts of the lines alone; what also needs the machine's graph is added by the reader."""
    ranks = _rank_count(channels)
    nnodes = _node_count(channels, ranks)
    whole_rings, cut_rings = _rings(channels, ranks)
    tree_count = max((max(trees) + 1 for trees in channels.trees.values()), default=None)
    total = channels.total if channels.total is not None else (tree_count or len(channels.rings) or None)
    facts: dict[str, Any] = {
        "nranks": ranks,
        "nnodes": nnodes,
        "channels_total": total,
        "channels": total,
        "channels_listed": len(channels.rings),
        "rings": whole_rings,
        "tree_lines": channels.tree_lines,
        "bus_ids": {str(rank["rank"]): rank["bus_id"] for rank in channels.ranks if "bus_id" in rank},
        "transports": channels.transports,
        "ring_line_truncated": bool(cut_rings),
    }
    if cut_rings:
        printed = len(next(iter(cut_rings.values())))
        facts.update({"ring_ranks_printed": printed, f"rings_first_{printed}": cut_rings})
    first = {rank: trees[min(trees)] for rank, trees in channels.trees.items()}
    facts["tree_edges_known"] = {str(rank): _as_fact(edge) for rank, edge in first.items()}
    facts["trees"] = {
        str(rank): {str(tree): _as_fact(edge) for tree, edge in trees.items()}
        for rank, trees in channels.trees.items()
    }
    facts["patterns"] = channels.patterns
    ring = next((each for each in channels.patterns if each["pattern"] == RING_PATTERN), None)
    if ring is not None:
        facts["ring_orders"] = ring["orders"]
        facts["ring_pattern"] = {key: value for key, value in ring.items() if key != "orders"}
    return facts


def _as_fact(edge: TreeEdge) -> dict[str, Any]:
    return {"parent": edge.parent, "children": list(edge.children)}


def _rank_count(channels: Channels) -> int | None:
    """As a ``comm`` line says, else when the ranks seen in rings or trees have no gap and no open end."""
    stated = [rank["nranks"] for rank in channels.ranks if rank.get("nranks")]
    if stated:
        return int(max(stated))
    speaking = set(channels.trees)
    named = {
        rank
        for trees in channels.trees.values()
        for edge in trees.values()
        for rank in (*edge.children, *([] if edge.parent is None else [edge.parent]))
    }
    if speaking and named <= speaking and speaking == set(range(len(speaking))):
        return len(speaking)
    rings = [ring for channel, ring in channels.rings.items() if channel not in channels.cut]
    if rings and all(sorted(ring) == list(range(len(ring))) for ring in rings) and not named - set(rings[0]):
        return len(rings[0])
    return None


def _node_count(channels: Channels, ranks: int | None) -> int | None:
    """As a ``comm`` line says, else the hosts when every rank has printed its own trees."""
    stated = [rank["nnodes"] for rank in channels.ranks if rank.get("nnodes")]
    if stated:
        return int(max(stated))
    hosts = {host for host in channels.hosts.values() if host}
    if ranks is not None and len(channels.trees) == ranks and hosts and all(channels.hosts.values()):
        return len(hosts)
    return None


def _rings(channels: Channels, ranks: int | None) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
    """Rings that hold every rank, and those that were cut short; a cut one is closed from ``Ring`` lines."""
    full: dict[str, list[int]] = {}
    cut: dict[str, list[int]] = {}
    for channel, ring in channels.rings.items():
        short = channel in channels.cut or (ranks is not None and len(ring) < ranks)
        if not short:
            full[channel] = ring
            continue
        cut[channel] = ring
        closed = _closed_ring(channels.neighbours.get(int(channel), {}), ring[0], ranks)
        if closed:
            full[channel] = closed
    return full, cut


def _closed_ring(following: dict[int, int], start: int, ranks: int | None) -> list[int]:
    if ranks is None or len(following) < ranks:
        return []
    ring = [start]
    while len(ring) <= ranks and following.get(ring[-1], start) != start:
        ring.append(following[ring[-1]])
    return ring if len(ring) == ranks == len(set(ring)) else []
