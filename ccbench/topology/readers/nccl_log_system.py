"""The part of an NCCL log that draws the machine: the tree after ``=== System`` and the table of paths.

NCCL's ``topo.cc`` prints every CPU with what hangs below it, one line per link, children indented to the
column where their parent's name starts, rates in GB/s of one direction; ``paths.cc`` prints for every GPU and
NET the path to everything else as (hops/GB/s/type).

Lines of a log that NCCL or RCCL writes, freed of whatever stands in front of them.

A line may carry the process (``host0:1000:1001 [3] NCCL INFO``), a tag of mpirun (``[1,0]<stdout>:``), a time
stamp, colours, an indentation, or nothing at all when an author removed the prefixes. Ranks interleave, so
what belongs together is found by who speaks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from ccbench.topology.graph import Notice
from ccbench.topology.text import decimal, plain, without_tags

MOST_CHARACTERS_OF_A_LINE = 100_000
"""Longer lines are cut: the longest line NCCL writes, a path table of a large node, has some 20,000."""

_MOST_CHARACTERS_OF_A_PREFIX = 120
_MARKERS = ("NCCL INFO", "NCCL TRACE", "NCCL WARN")
_SPEAKER = re.compile(r"(?:([\w.\-]+):(\d+):(\d+))?\s{0,9}(?:\[(\d{1,6})\])?\s{0,9}$")


@dataclass(frozen=True)
class Entry:
    """One line. ``body`` is what follows ``NCCL INFO`` (the whole line where that is missing).

    number: 1-based line of the log.
    speaker: what names the process (host, pid, tid and device); empty where the line does not say.
    host: its host as printed; empty where the line does not say.
    marked: whether the line says that NCCL wrote it.
    """

    number: int
    speaker: str
    host: str
    marked: bool
    body: str


def entries(text: str) -> Iterator[Entry]:
    """Every line of ``text`` that is not blank, in order."""
    for number, line in enumerate(text.split("\n"), start=1):
        line = line[:MOST_CHARACTERS_OF_A_LINE]
        line = plain(line).expandtabs().rstrip()
        if line:
            yield _entry(number, line)


def _entry(number: int, line: str) -> Entry:
    for marker in _MARKERS:
        start = line.find(marker)
        if start >= 0:
            break
    else:
        return Entry(number, "", "", False, without_tags(line))
    prefix = line[max(0, start - _MOST_CHARACTERS_OF_A_PREFIX) : start].rstrip()
    body = line[start + len(marker) :]
    found = _SPEAKER.search(prefix)
    host, process, thread, device = found.groups() if found else (None, None, None, None)
    speaker = f"{host}:{process}:{thread}" if host else ""
    if device is not None:
        speaker += f"[{device}]"
    # One blank belongs to the marker; more are the indentation of the graph.
    return Entry(number, speaker, host or "", True, body[1:] if body.startswith(" ") else body)


Node = tuple[str, str]
"""What NCCL prints as ``GPU/0-7000``: the word and the id."""

NODE_WORDS = frozenset({"GPU", "PCI", "NVS", "CPU", "NIC", "NET", "DEV", "GIN", "RMA", "CXB"})

PATH_WORDS = ("LOC", "NVL", "NVB", "XGMI", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS", "NET", "DIS")
"""Kinds of path from near to far (NCCL graph.h; XGMI is RCCL's word for NVL)."""

_ID = r"[0-9A-Fa-f]{1,16}(?:-[0-9A-Fa-f]{1,16})?"
_NODE = re.compile(rf"([A-Z]{{3}})/({_ID})")
_CPU = re.compile(rf"CPU/({_ID})(?: \((-?\d{{1,4}}/-?\d{{1,4}}/-?\d{{1,4}})\))?")
_ITEM = re.compile(
    rf"\+ ([A-Z0-9]{{2,6}})\[([\d.]{{1,20}})\] - ([A-Z]{{3}})/({_ID})(?: \(([^()]{{0,80}})\))?"
)
_HEADER = re.compile(r"=== System : max(?:Bw|Width) ([\d.]{1,20}) total(?:Bw|Width) ([\d.]{1,20}) ===")
_ROW = re.compile(rf"([A-Z]{{3}}/{_ID}) ?:")
_CELL = re.compile(rf"([A-Z]{{3}}/{_ID}) \((\d{{1,4}})/([\d.]{{1,20}})/([A-Z0-9]{{2,6}})\)")
_OWNING = frozenset({"PCI", "LOC", "NET"})


@dataclass(frozen=True)
class Edge:
    """A link as printed: below ``upper`` (None where that line is missing) stands ``lower``.

    kind: NCCL's word: PCI, NVL, XGMI, C2C, SYS, NET, LOC. gigabytes_per_second: one direction.
    """

    upper: Node | None
    lower: Node
    kind: str
    gigabytes_per_second: float | None
    line: int


@dataclass(frozen=True)
class Path:
    """One cell of the path table; the rate in GB/s of one direction."""

    hops: int
    gigabytes_per_second: float
    kind: str


@dataclass
class Dump:
    """One process's view of its machine."""

    speaker: str
    host: str
    max_bw: float | None = None
    total_bw: float | None = None
    headed: bool = False
    closed: bool = False
    details: dict[Node, str] = field(default_factory=dict)
    """Every node in order of appearance, with what stands behind it in parentheses."""
    above: dict[Node, Node] = field(default_factory=dict)
    edges: list[Edge] = field(default_factory=list)
    rows: dict[Node, dict[Node, Path]] = field(default_factory=dict)
    notices: list[Notice] = field(default_factory=list)
    open_columns: list[tuple[int, Node]] = field(default_factory=list)
    last: dict[str, tuple[int, Node]] = field(default_factory=dict)
    """The latest node of each word that may have children, and the line it stands in."""

    @property
    def complete(self) -> bool:
        """Whether both the first and the last line of the tree were read, and nothing had lost its parent."""
        return self.headed and self.closed and all(edge.upper is not None for edge in self.edges)

    @property
    def is_empty(self) -> bool:
        """Whether neither tree nor table was found."""
        return not self.details and not self.rows and not self.headed

    def nodes(self, word: str) -> list[Node]:
        """The nodes called ``word``, in order of appearance."""
        return [node for node in self.details if node[0] == word]

    def note(self, node: Node, detail: str = "") -> None:
        """Remember that ``node`` exists and what stands behind it."""
        if detail or node not in self.details:
            self.details[node] = detail


def read_dumps(entries: Iterable[Entry]) -> list[Dump]:
    """The view of every process that printed one, in order; a process may print several."""
    dumps: list[Dump] = []
    current: dict[str, Dump] = {}
    for entry in entries:
        body = entry.body.lstrip()
        header = _HEADER.match(body)
        if header is None and not _may_belong(body, entry.marked):
            continue
        dump = current.get(entry.speaker)
        if header is not None or dump is None or (dump.closed and body.startswith(("CPU/", "+ "))):
            dump = current[entry.speaker] = Dump(entry.speaker, entry.host)
            dumps.append(dump)
        if header is not None:
            dump.headed = True
            dump.max_bw, dump.total_bw = decimal(header[1]), decimal(header[2])
        else:
            _read_line(dump, entry, body)
    return [dump for dump in dumps if dump.notices or not dump.is_empty]


def _may_belong(body: str, marked: bool) -> bool:
    if body.startswith("+ "):
        # Other programs start lines with a plus too; only NCCL's own may be called damaged.
        return marked or _ITEM.match(body) is not None
    return body.startswith(("CPU/", "======")) or _ROW.match(body) is not None


def _read_line(dump: Dump, entry: Entry, body: str) -> None:
    if body.startswith("======"):
        dump.closed = dump.closed or bool(dump.details)
        dump.open_columns.clear()
        return
    if body.startswith("+ "):
        _read_item(dump, entry, body)
        return
    row = _ROW.match(body)
    if row is not None:
        _read_row(dump, entry, row[1], body[row.end() :])
        return
    cpu = _CPU.match(body)
    if cpu is not None and cpu.end() == len(body):
        node = ("CPU", cpu[1])
        dump.note(node, cpu[2] or "")
        dump.open_columns = [(-1, node)]


def _read_item(dump: Dump, entry: Entry, body: str) -> None:
    found = _ITEM.match(body)
    rate = decimal(found[2]) if found else None
    if found is None or found[3] not in NODE_WORDS or rate is None:
        dump.notices.append(Notice("damaged_line", f"no link of NCCL's graph: {body[:60]!r}", entry.number))
        return
    kind, node = found[1], (found[3], found[4])
    column = len(entry.body) - len(body)
    # Children of an excerpt without its CPU line have no parent; they must not fall to a later one.
    while dump.open_columns and dump.open_columns[-1][0] >= column:
        dump.open_columns.pop()
    upper = _upper(dump, kind, node)
    if upper == node:
        dump.notices.append(
            Notice("self_link", f"{node[0]}/{node[1]} is linked to itself; left out", entry.number)
        )
        return
    dump.edges.append(Edge(upper, node, kind, rate, entry.number))
    dump.note(node, (found[5] or "").strip())
    if kind in _OWNING:
        if upper is not None:
            dump.above.setdefault(node, upper)
        dump.open_columns.append((column, node))
        dump.last[node[0]] = (entry.number, node)


def _upper(dump: Dump, kind: str, node: Node) -> Node | None:
    """The parent by column; where blanks were lost, the last node that can have such a child."""
    upper = dump.open_columns[-1][1] if dump.open_columns else None
    wanted = {"NET": ("NIC", "DEV", "GPU"), "LOC": ("DEV",)}.get(kind)
    if node[0] == "NVS":
        wanted = ("GPU", "DEV")
    if wanted is None or upper is None or upper[0] in wanted:
        return upper
    candidates = [dump.last[word] for word in wanted if word in dump.last]
    return max(candidates)[1] if candidates else upper


def _read_row(dump: Dump, entry: Entry, name: str, rest: str) -> None:
    row: dict[Node, Path] = {}
    for cell, hops, rate_text, kind in _CELL.findall(rest):
        rate = decimal(rate_text)
        if rate is not None and cell[:3] in NODE_WORDS:
            row[_node(cell)] = Path(int(hops), rate, kind)
    node = _node(name)
    if not row or node[0] not in NODE_WORDS:
        if node[0] in NODE_WORDS and rest.strip():
            dump.notices.append(Notice("damaged_line", f"no row of paths: {rest[:60]!r}", entry.number))
        return
    if node not in row:
        dump.notices.append(
            Notice("truncated", f"the row of {name} does not reach {name} itself; it is cut", entry.number)
        )
    dump.rows.setdefault(node, row)


def _node(text: str) -> Node:
    word, _, identity = text.partition("/")
    return word, identity


def node_of(text: str) -> Node | None:
    """The node that ``text`` names in full, such as ``NET/1``; None where it names none."""
    found = _NODE.fullmatch(text)
    return (found[1], found[2]) if found and found[1] in NODE_WORDS else None


def best_dump(dumps: list[Dump]) -> Dump | None:
    """The view that shows most: GPUs first, then whether it is whole, then links; the earliest of equals."""
    if not dumps:
        return None
    return max(
        dumps,
        key=lambda dump: (
            len(
                {
                    *dump.nodes("GPU"),
                    *(node for row in dump.rows.values() for node in row if node[0] == "GPU"),
                }
            ),
            dump.complete,
            len(dump.edges) + len(dump.rows),
        ),
    )
