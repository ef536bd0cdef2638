"""The part of an NCCL log that draws the machine: the tree after ``=== System``, and the table of paths.

NCCL's ``topo.cc`` prints every CPU with what hangs below it, one line per link, children indented to the
column where their parent's name starts, rates in GB/s of one direction; ``paths.cc`` prints for every GPU and
NET the path to everything else as (hops/GB/s/type).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ccbench.findings import SourceWarning
from ccbench.readers.lines import decimal
from ccbench.topology.graph import Device, DeviceKind, Link, LinkKind

Node = tuple[str, str]
"""Word and id of a node, which NCCL prints as ``GPU/0-7000``."""

NODE_WORDS = frozenset({"GPU", "PCI", "NVS", "CPU", "NIC", "NET", "DEV", "GIN", "RMA", "CXB"})

_ID = r"[0-9A-Fa-f]{1,16}(?:-[0-9A-Fa-f]{1,16})?"
_NODE = re.compile(rf"([A-Z]{{3}})/({_ID})")
_CPU = re.compile(rf"CPU/({_ID})(?: \([\d/-]{{1,20}}\))?")
_ITEM = re.compile(rf"\+ ([A-Z0-9]{{2,6}})\[([\d.]{{1,20}})\] - ([A-Z]{{3}})/({_ID})")
_HEADER = re.compile(
    r"=== System : max(?:Bw|Width) [\d.]{1,20} total(?:Bw|Width) [\d.]{1,20} ==="
)
_ROW = re.compile(rf"([A-Z]{{3}}/{_ID}) ?:")
_CELL = re.compile(rf"([A-Z]{{3}}/{_ID}) \((\d{{1,4}})/([\d.]{{1,20}})/([A-Z0-9]{{2,6}})\)")

NO_LIMIT_GIGABYTES_PER_SECOND = 5000.0
"""NCCL's LOC_BW (graph.h): its word for a link that it does not want to limit."""

_DIRECT = {"NVL": LinkKind.NVLINK, "XGMI": LinkKind.XGMI, "C2C": LinkKind.C2C}
_KINDS = {**_DIRECT, "PCI": LinkKind.PCIE, "SYS": LinkKind.INTER_SOCKET}
_DEVICES = {
    "GPU": (DeviceKind.GPU, "gpu"),
    "CPU": (DeviceKind.CPU, "cpu"),
    "PCI": (DeviceKind.PCIE_SWITCH, "pcie"),
    "DEV": (DeviceKind.PCIE_SWITCH, "pcie"),
    "NVS": (DeviceKind.NVSWITCH, "nvswitch"),
    "NIC": (DeviceKind.NIC, "nic"),
}
PROCESSOR_LOCAL = ("PIX", "PXB", "P2C", "PHB")
_NO_NUMA_NODE = 2**63
"""Ids from here on are negative numbers printed in hexadecimal: -1, no NUMA node."""


@dataclass(frozen=True)
class Entry:
    """One line. ``body`` is what follows ``NCCL INFO`` (the whole line where that is missing).

    number: 1-based line of the log.
    speaker: what names the process (host, pid, tid and device); empty where the line does not say.
    host: its host as printed; empty where the line does not say.
    marked: True if the line says that NCCL wrote it.
    """

    number: int
    speaker: str
    host: str
    marked: bool
    body: str


@dataclass(frozen=True)
class Edge:
    """A link as printed: below ``upper`` (None where that line is missing) stands ``lower``.

    kind: NCCL's word: PCI, NVL, XGMI, C2C, SYS, NET, LOC. rate: GB/s of one direction.
    """

    upper: Node | None
    lower: Node
    kind: str
    rate: float
    line: int


@dataclass(frozen=True)
class Path:
    """One cell of the path table; the rate in GB/s of one direction."""

    hops: int
    rate: float
    kind: str


@dataclass
class Dump:
    """One process's view of its machine.

    drawn: every node of the tree in order of appearance.
    """

    host: str = ""
    headed: bool = False
    closed: bool = False
    drawn: dict[Node, None] = field(default_factory=dict)
    above: dict[Node, Node] = field(default_factory=dict)
    edges: list[Edge] = field(default_factory=list)
    rows: dict[Node, dict[Node, Path]] = field(default_factory=dict)
    warnings: list[SourceWarning] = field(default_factory=list)
    open_columns: list[tuple[int, Node]] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """True if the first and the last line of the tree were read, and nothing had lost its parent."""
        return (
            self.headed and self.closed and all(edge.upper is not None for edge in self.edges)
        )

    @property
    def is_empty(self) -> bool:
        """True if neither tree nor table was found."""
        return not self.drawn and not self.rows and not self.headed

    def nodes(self) -> list[Node]:
        """Nodes of the tree, then those that only the table of paths knows."""
        columns = (node for row in self.rows.values() for node in row)
        return list(dict.fromkeys([*self.drawn, *self.rows, *columns]))

    def read(self, entry: Entry, body: str) -> None:
        """Take in one line of the tree or of the table."""
        cpu, row = _CPU.fullmatch(body), _ROW.match(body)
        if body.startswith("======"):
            self.closed = self.closed or bool(self.drawn)
            self.open_columns.clear()
        elif body.startswith("+ "):
            self._read_item(entry, body)
        elif row is not None:
            node, rest = node_of(row[1]), body[row.end() :]
            paths: dict[Node, Path] = {}
            for cell, hops, rate_text, kind in _CELL.findall(rest):
                rate, target = decimal(rate_text), node_of(cell)
                if rate is not None and target is not None:
                    paths[target] = Path(int(hops), rate, kind)
            if node is not None and not paths and rest.strip():
                self.warnings.append(
                    SourceWarning("damaged_line", f"no paths: {rest[:60]!r}", entry.number)
                )
            if node is None or not paths:
                return
            if node not in paths:
                text = f"the row of {row[1]} does not reach {row[1]} itself; it is cut"
                self.warnings.append(SourceWarning("truncated", text, entry.number))
            self.rows.setdefault(node, paths)
        elif cpu is not None:
            node = ("CPU", cpu[1])
            self.drawn[node] = None
            self.open_columns = [(-1, node)]

    def _read_item(self, entry: Entry, body: str) -> None:
        match = _ITEM.match(body)
        rate = decimal(match[2]) if match else None
        if match is None or match[3] not in NODE_WORDS or rate is None:
            text = f"no link of NCCL's graph: {body[:60]!r}"
            self.warnings.append(SourceWarning("damaged_line", text, entry.number))
            return
        kind, node = match[1], (match[3], match[4])
        column = len(entry.body) - len(body)
        # Children of an excerpt without its CPU line have no parent; they must not fall to a later one.
        while self.open_columns and self.open_columns[-1][0] >= column:
            self.open_columns.pop()
        upper = self.open_columns[-1][1] if self.open_columns else None
        self.edges.append(Edge(upper, node, kind, rate, entry.number))
        self.drawn[node] = None
        if kind in ("PCI", "LOC", "NET"):
            if upper is not None:
                self.above.setdefault(node, upper)
            self.open_columns.append((column, node))


def read_dumps(entries: Iterable[Entry]) -> list[Dump]:
    """Return the view of every process that printed one, in order; a process may print several."""
    dumps: list[Dump] = []
    current: dict[str, Dump] = {}
    for entry in entries:
        body = entry.body.lstrip()
        header = _HEADER.match(body)
        # Other programs start lines with a plus too; only NCCL's own may be called damaged.
        is_item = body.startswith("+ ") and (entry.marked or _ITEM.match(body))
        if (
            not header
            and not is_item
            and not body.startswith(("CPU/", "======"))
            and not _ROW.match(body)
        ):
            continue
        dump = current.get(entry.speaker)
        if header is not None or dump is None:
            dump = current[entry.speaker] = Dump(entry.host)
            dumps.append(dump)
        if header is not None:
            dump.headed = True
        else:
            dump.read(entry, body)
    return [dump for dump in dumps if dump.warnings or not dump.is_empty]


def node_of(text: str) -> Node | None:
    """Return the node that ``text`` names in full, such as ``NET/1``; None where it names none."""
    match = _NODE.fullmatch(text)
    return (match[1], match[2]) if match and match[1] in NODE_WORDS else None


def number_of(identity: str) -> int:
    """The last part of ``0-7000`` as a number; -1 where it is a negative one in hexadecimal."""
    value = int(identity.rpartition("-")[2], 16)
    return -1 if value >= _NO_NUMA_NODE else value


def bus_id_of(identity: str) -> str:
    """``81000`` is how NCCL packs 0000:81:00.0: the digits without what stands between them."""
    packed = int(identity.rpartition("-")[2], 16)
    return f"{packed >> 20:04x}:{packed >> 12 & 0xFF:02x}:{packed >> 4 & 0xFF:02x}.{packed & 0xF:x}"


class MachineGraph:
    """Devices, links and facts of what ``dump`` shows, as ccbench names them.

    nic_names: NCCL's index of a network device -> its name, as printed by ``NET/IB : Using``.
    models: PCI bus id (``0000:0f:00``) -> the GPU's model, where the log has such a list.
    """

    def __init__(
        self, dump: Dump, nic_names: Mapping[int, str], models: Mapping[str, str]
    ) -> None:
        self.dump, self.models = dump, models
        self.words = dump.nodes()
        self.devices: list[Device] = []
        self.links: list[Link] = []
        self.warnings = list(dump.warnings)
        self.names: dict[Node, str] = {}
        # DEV nodes of newer NCCL stand between the PCIe tree and the one GPU they hold: one device.
        held: dict[Node, list[Node]] = {}
        for edge in dump.edges:
            if edge.kind == "LOC" and edge.upper is not None and edge.lower[0] == "GPU":
                held.setdefault(edge.upper, []).append(edge.lower)
        self.aliases = {
            upper: gpus[0]
            for upper, gpus in held.items()
            if upper[0] == "DEV" and len(gpus) == 1
        }
        self._add_devices(self._net_names(nic_names))
        self._add_links()
        linked = {link.source for link in self.links}
        for node, row in self.dump.rows.items():
            name = self.names.get(node)
            if name is None or node[0] != "GPU" or name in linked:
                continue
            for peer, path in row.items():
                target = self.names.get(peer)
                if target is None or target == name:
                    continue
                attributes: dict[str, Any] = {"hops": path.hops}
                if path.hops == 1 and path.kind in _DIRECT and peer[0] in {"NVS", "GPU"}:
                    kind = _DIRECT[path.kind]
                    attributes["count_known"] = False
                elif peer[0] == "CPU" and path.kind in PROCESSOR_LOCAL:
                    kind = LinkKind.PCIE
                else:
                    continue
                origin = f"NCCL log, table of paths: {path.rate} GB/s over {path.hops} hops"
                link = Link(
                    name, target, kind, path.rate * 1e9, origin=origin, attributes=attributes
                )
                # A GPU at the other end has a row of its own.
                self.links += [link] if peer[0] == "GPU" else link.both_ways()
        self.matrix = {
            (source, target): path.kind
            for node, row in dump.rows.items()
            for peer, path in row.items()
            if node[0] == peer[0] == "GPU" and node != peer
            if (source := self.names.get(node)) and (target := self.names.get(peer))
        }

    def _net_names(self, nic_names: Mapping[int, str]) -> dict[Node, str]:
        """NIC -> name of the first network device that hangs at it; empty where the log has none.

        Where a table of paths names NETs and no tree their NICs, each NET stands for a NIC of its own.
        """
        no_tree = not any(node[0] == "NIC" for node in self.words)
        holders = {edge.lower: edge.upper for edge in self.dump.edges if edge.kind == "NET"}
        names: dict[Node, str] = {}
        for node in self.words:
            holder = holders.get(node) or (node if no_tree else None)
            if node[0] == "NET" and holder is not None:
                name = nic_names.get(number_of(node[1]), "")
                names[holder] = names.get(holder) or name
        return names

    def _add_devices(self, net_names: Mapping[Node, str]) -> None:
        counts: Counter[DeviceKind] = Counter()
        # Prefixes of 1-7000 name machines; there are several with multi-node NVLink.
        systems = list(dict.fromkeys(identity.rpartition("-")[0] for _, identity in self.words))
        taken: set[str] = set()
        for node in self.words:
            word, identity = node
            if node in self.aliases or not (word in _DEVICES or node in net_names):
                continue
            kind, short = _DEVICES.get(word, (DeviceKind.NIC, "nic"))
            index = counts[kind]
            counts[kind] += 1
            prefix = identity.rpartition("-")[0]
            system = systems.index(prefix)
            # The NUMA node is that of the CPU at the top; no PCIe tree is 64 deep.
            top = node
            for _ in range(64):
                top = self.dump.above.get(top, top)
            numa_node = number_of(top[1]) if top[0] == "CPU" else None
            name = f"{short}{index}"
            if kind is DeviceKind.CPU:
                name = ("" if system == 0 else f"n{system}.") + f"cpu{max(numa_node or 0, 0)}"
            name = f"{name}_{index}" if name in taken else name
            taken.add(name)
            self.names[node] = name
            bus_id = bus_id_of(identity) if word in ("GPU", "PCI", "DEV", "NIC") else ""
            model = self.models.get(bus_id.rpartition(".")[0]) if word == "GPU" else None
            stated = {"model": model, "name": net_names.get(node)}
            attributes = {key: value for key, value in stated.items() if value}
            self.devices.append(Device(name, kind, system, bus_id, numa_node, attributes))
        self.names |= {node: self.names[gpu] for node, gpu in self.aliases.items()}

    def _add_links(self) -> None:
        links: dict[tuple[str, str, LinkKind], Link] = {}
        for edge in self.dump.edges:
            kind = _KINDS.get(edge.kind)
            if kind is None:
                if edge.kind not in {"LOC", "NET"}:
                    text = f"{edge.kind} links are not known; left out"
                    self.warnings.append(SourceWarning("unsupported", text, edge.line))
                continue
            if edge.upper is None:
                text = f"the line above {edge.lower[0]}/{edge.lower[1]} is missing"
                self.warnings.append(SourceWarning("truncated", text, edge.line))
                continue
            upper, lower = self.names.get(edge.upper), self.names.get(edge.lower)
            if upper is None or lower is None:
                continue
            if upper == lower:
                self.warnings.append(
                    SourceWarning("self_link", f"{upper} to itself; left out", edge.line)
                )
                continue
            # NCCL's word for no limit is no rate of anything.
            limited = edge.rate < NO_LIMIT_GIGABYTES_PER_SECOND
            rate = edge.rate * 1e9 if limited else None
            rate_note = "all parallel links together" if limited else "NCCL's word for no limit"
            origin = f"NCCL log, line {edge.line}: {edge.kind}[{edge.rate}] GB/s, {rate_note}"
            attributes = {"count_known": False} if edge.kind in _DIRECT else {}
            link, back = Link(
                upper, lower, kind, rate, origin=origin, attributes=attributes
            ).both_ways()
            links[upper, lower, kind] = link
            # Only one end of a PCIe link or of a switch's link is printed; NCCL takes the other as equal.
            links.setdefault((lower, upper, kind), back)
        self.links.extend(links.values())
