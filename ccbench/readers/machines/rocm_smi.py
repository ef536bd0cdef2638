"""Reads ``rocm-smi --showtopo`` (weights, hops, link types, NUMA nodes), as text or with ``--json``.

No rates are printed. A weight is 15 per XGMI hop; hops is 1 for XGMI even where packets pass another GPU
(ROCm/rocm-systems issue 5763, open-mpi/hwloc issue 775), so an XGMI label does not prove a direct link.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ccbench.errors import MachineError
from ccbench.findings import SourceWarning
from ccbench.readers.lines import searches, whole
from ccbench.topology.graph import Device, DeviceKind, Link, LinkKind, Topology, TopologyClass

COMMAND = "rocm-smi --showtopo"

_ONE_HOP = 15
"""Weight of a pair with one XGMI hop between them."""

_MOST_DEVICES = 1024
"""Columns a heading may have; more is damage."""

_NAME = re.compile(r"GPU\d{1,4}|card\d{1,4}")
_SECTION = re.compile(r"=+\s?([A-Za-z][A-Za-z \-]{3,60}?)\s?=+$")
_TITLES = {
    "weight between two gpus": "weights",
    "link type between two gpus": "link_types",
}
_NUMA = re.compile(
    r"(?:GPU ?\[?|card)(\d{1,4})\]?\s{0,40}: \(Topology\) Numa Node: (-?\d{1,6})"
)
_JSON = re.compile(
    r"\(Topology\) (Weight|Link type) between DRM devices (\d{1,4}) and (\d{1,4})",
    re.IGNORECASE,
)
_SIGN = re.compile(
    r"(?:Weight|Hops|Link Type) between two GPUs|\(Topology\) Numa "
    r"|\(Topology\) \w{4,6}(?: type)? between DRM"
)

NumaNodes = dict[str, int]
"""GPU -> NUMA node."""


@dataclass
class RocmTable:
    """A square table of labels: rows by name, and the names of the heading."""

    columns: list[str]
    line: int
    rows: dict[str, list[str]] = field(default_factory=dict)

    def labels(self) -> dict[tuple[str, str], str]:
        """(row, column) -> label of every pair off the diagonal that was printed in either direction, by row."""
        printed = {
            (row, column): label
            for row, cells in self.rows.items()
            for column, label in zip(self.columns, cells, strict=False)
        }
        both = {
            (row, column): printed.get((row, column)) or printed.get((column, row))
            for row, column in itertools.permutations(self.columns, 2)
        }
        return {pair: label for pair, label in both.items() if label is not None}

    @property
    def is_whole(self) -> bool:
        """True if every row was printed with all its labels; mirrored ones do not count."""
        width = len(self.columns)
        return all(len(self.rows.get(column, [])) == width for column in self.columns)

    def note_asymmetry(self, warnings: list[SourceWarning]) -> None:
        """Warn of the first pair whose two directions have different labels."""
        labels = self.labels()
        for (row, column), label in labels.items():
            back = labels[column, row]
            if back != label:
                text = f"{row} to {column} is {label}, back it is {back}"
                warnings.append(SourceWarning("contradiction", text, self.line))
                return


def read_table(
    lines: Sequence[tuple[int, str]], names: re.Pattern[str], warnings: list[SourceWarning]
) -> RocmTable | None:
    """Return the first table of ``lines`` (number, text) whose heading and rows are of ``names``.

    A row with too few labels is kept as far as it goes, with a warning; so is a missing row.
    """
    table: RocmTable | None = None
    for number, line in lines:
        words = line.split()
        if table is None:
            columns = list(itertools.takewhile(names.fullmatch, words[:_MOST_DEVICES]))
            # A row starts with a name too, but goes on with labels.
            is_row = (
                len(columns) == 1 and len(words) > 1 and not words[1].startswith(("CPU", "Aff"))
            )
            if columns and not is_row and len(set(columns)) == len(columns):
                table = RocmTable(columns, number)
        elif words and names.fullmatch(words[0]):
            name, width = words[0], len(table.columns)
            cells = words[1 : width + 1]
            if name in table.rows or name not in table.columns:
                text = f"the row {name} appears twice or has no column; left out"
                warnings.append(SourceWarning("damaged_line", text, number))
                continue
            if len(cells) < width:
                text = f"the row {name} has {len(cells)} of {width} labels"
                warnings.append(SourceWarning("truncated", text, number))
            table.rows[name] = cells
        elif table.rows and not words:
            break
    if table is not None:
        missing = [column for column in table.columns if column not in table.rows]
        text = f"no row for {', '.join(missing[:8])}"
        warnings += [SourceWarning("truncated", text, table.line)] if missing else []
    return table


recognises = searches(_SIGN)


def read(text: str) -> Topology:
    """Return the GPUs, their NUMA nodes and the XGMI links between them.

    Raises MachineError when no section can be read.
    """
    warnings: list[SourceWarning] = []
    is_json = text.lstrip().startswith("{")
    sections, numa_nodes = _from_json(text) if is_json else _from_text(text, warnings)
    return topology_of(sections, numa_nodes, warnings, COMMAND)


def topology_of(
    sections: dict[str, RocmTable],
    numa_nodes: NumaNodes,
    warnings: list[SourceWarning],
    command: str,
) -> Topology:
    """Return the machine of the tables ``weights`` and ``link_types`` that ``command`` printed.

    Raises MachineError when there is no table and no NUMA node.
    """
    tool = command.partition(" ")[0]
    # The GPUs of the link types, else of the widest heading, then those that only the NUMA part has.
    types = sections.get("link_types")
    widest = max((table.columns for table in sections.values()), key=len, default=[])
    columns = list(dict.fromkeys([*(types.columns if types else widest), *numa_nodes]))
    for name, table in sections.items():
        extra = [column for column in table.columns if column not in columns]
        if extra:
            section = name.replace("_", " ")
            text = f"the section of {section} has GPUs the others lack: {', '.join(extra[:4])}"
            warnings.append(SourceWarning("contradiction", text, table.line))
    if not columns:
        raise MachineError(
            f"{tool}: no table of GPUs and no NUMA nodes found; give the whole output of '{command}'"
        )
    labels = types.labels() if types else {}
    names = {column: f"gpu{index}" for index, column in enumerate(columns)}
    links = list(_links(sections, names, warnings, f"{command}: XGMI"))
    topology_class = _class(types, set(labels.values()), len(columns))
    gpus = [
        Device(
            name, DeviceKind.GPU, numa_node=numa_nodes.get(column), attributes={"name": column}
        )
        for column, name in names.items()
    ]
    cpu_nodes = sorted({node for node in numa_nodes.values() if node >= 0})
    return Topology(
        name=f"{tool} topo",
        devices=(
            *gpus,
            *(Device(f"cpu{node}", DeviceKind.CPU, numa_node=node) for node in cpu_nodes),
        ),
        links=tuple(links),
        topology_class=topology_class,
        source=tool.replace("-", "_"),
        warnings=tuple(warnings),
        facts={
            "nic_count": None,
            "cpu_count": len(set(numa_nodes.values())) or None,
            "nvswitch_count": 0 if types else None,
            "nvlinks_per_gpu": [0] * len(columns) if types else None,
        },
        matrix={(names[row], names[column]): label for (row, column), label in labels.items()},
    )


def _class(types: RocmTable | None, labels: set[str], gpu_count: int) -> TopologyClass:
    """XGMI anywhere is the class of meshes, partial ones too; PCIe only when every pair says so."""
    if "XGMI" in labels:
        return TopologyClass.XGMI_MESH
    if types is not None and len(types.columns) == gpu_count == 1:
        return TopologyClass.SINGLE_GPU
    return (
        TopologyClass.PCIE
        if types and types.is_whole and labels == {"PCIE"}
        else TopologyClass.UNKNOWN
    )


def _from_text(
    text: str, warnings: list[SourceWarning]
) -> tuple[dict[str, RocmTable], NumaNodes]:
    bodies: dict[str, list[tuple[int, str]]] = {}
    numa_nodes: NumaNodes = {}
    current = ""
    for number, line in enumerate(text.expandtabs().split("\n"), start=1):
        stripped = line.strip()[:4000]
        match = _NUMA.match(stripped)
        if stripped.startswith("=") and stripped.endswith("="):
            title = _SECTION.match(stripped)
            current = _TITLES.get(title[1].strip().lower(), "") if title else ""
        elif match:
            numa_nodes.setdefault(f"GPU{int(match[1])}", int(match[2]))
        elif current:
            bodies.setdefault(current, []).append((number, line))
    tables = {
        name: read_table(bodies.get(name, []), _NAME, warnings)
        for name in ("weights", "link_types")
    }
    return {name: table for name, table in tables.items() if table is not None}, numa_nodes


def json_of(text: str, command: str) -> Any:
    """Return the JSON that ``command`` printed; MachineError where it is damaged or cut off."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MachineError(
            f"{command.partition(' ')[0]} JSON: {str(error)[:80]}; expected the whole output of '{command} --json'"
        ) from None


def _from_json(text: str) -> tuple[dict[str, RocmTable], NumaNodes]:
    document = json_of(text, COMMAND)
    cells: dict[str, dict[tuple[int, int], str]] = {}
    numa_nodes: NumaNodes = {}
    for owner, values in document.items() if isinstance(document, dict) else ():
        for key, value in values.items() if isinstance(values, dict) else ():
            match = _JSON.fullmatch(key[:120])
            if match:
                section = cells.setdefault(_TITLES[f"{match[1].lower()} between two gpus"], {})
                left, right = int(match[2]), int(match[3])
                # JSON names each pair once, the tables of the text both ways.
                section[left, right] = section[right, left] = str(value)[:40]
            card = re.fullmatch(r"card(\d{1,4})", owner[:20])
            node = whole(str(value)) if key.lower() == "(topology) numa node" else None
            if card and node is not None:
                numa_nodes[f"GPU{int(card[1])}"] = node
    tables = {}
    for name, section in cells.items():
        indexes = sorted({index for pair in section for index in pair})[:256]
        rows = {
            f"GPU{row}": [
                "0" if row == column else section.get((row, column), "?") for column in indexes
            ]
            for row in indexes
        }
        tables[name] = RocmTable(list(rows), 1, rows)
    return tables, numa_nodes


def _links(
    sections: dict[str, RocmTable],
    names: dict[str, str],
    warnings: list[SourceWarning],
    origin: str,
) -> Iterator[Link]:
    """Links of the pairs with XGMI labels; warnings of what these leave open."""
    types, weight_table = sections.get("link_types"), sections.get("weights")
    if types is None:
        warnings.append(
            SourceWarning("not_visible", "links: no table of link types between GPUs")
        )
        return
    types.note_asymmetry(warnings)
    printed = weight_table.labels() if weight_table else {}
    weights = {
        pair: whole(printed.get(pair, ""))
        for pair, label in types.labels().items()
        if label == "XGMI"
    }
    if weights:
        text = "how many xGMI links a pair has"
        if None in weights.values():
            text += ", and whether its path passes another GPU: no weight is printed"
        elif any((weight or 0) > _ONE_HOP for weight in weights.values()):
            text += f"; pairs of a weight above {_ONE_HOP} are linked over other GPUs"
        warnings.append(SourceWarning("not_visible", text, types.line))
    for (row, column), weight in weights.items():
        if (weight or 0) <= _ONE_HOP:
            # One link or the four inside a package: the number is not said.
            attributes = {"count_known": False}
            yield Link(
                names[row], names[column], LinkKind.XGMI, origin=origin, attributes=attributes
            )
