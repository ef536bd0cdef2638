"""Reads ``rocm-smi --showtopo`` (weights, hops, link types, NUMA nodes), as text or with ``--json``.

No rates are printed. A weight is 15 per XGMI hop; hops is 1 for XGMI even where packets pass another GPU
(ROCm/rocm-systems issue 5763, open-mpi/hwloc issue 775), so an XGMI label does not prove a direct link.
"""

from __future__ import annotations

import json
import re
from typing import Any

from ccbench.errors import MachineError
from ccbench.topology.graph import Device, DeviceKind, Link, LinkKind, Notice, Topology, TopologyClass
from ccbench.topology.readers.accelerator_tables import Table, read_table, symmetric

_NAME = re.compile(r"GPU\d{1,4}|card\d{1,4}")
_SECTION = re.compile(r"=+\s?([A-Za-z][A-Za-z \-]{3,60}?)\s?=+$")
_TITLES = {
    "weight between two gpus": "weights",
    "hops between two gpus": "hops",
    "link type between two gpus": "link_types",
    "numa nodes": "numa",
}
_NUMA = re.compile(r"(?:GPU ?\[?|card)(\d{1,4})\]?\s{0,40}: \(Topology\) Numa (Node|Affinity): (-?\d{1,6})")
_JSON = re.compile(
    r"\(Topology\) (Weight|Hops|Link type) between DRM devices (\d{1,4}) and (\d{1,4})", re.IGNORECASE
)
ONE_HOP = 15
"""Weight of a pair with one XGMI hop between them."""

_JSON_SECTIONS = {"weight": "weights", "hops": "hops", "link type": "link_types"}
_SIGN = re.compile(
    r"(?:Weight|Hops|Link Type) between two GPUs|\(Topology\) Numa "
    r"|\(Topology\) \w{4,6}(?: type)? between DRM"
)

Sections = dict[str, Table]


def recognises(text: str) -> bool:
    """Whether ``text`` has a section of ``rocm-smi --showtopo``."""
    return _SIGN.search(text) is not None


def read(text: str) -> Topology:
    """The GPUs, their NUMA nodes and the XGMI links between them.

    Raises MachineError when no section can be read.
    """
    notices: list[Notice] = []
    if text.lstrip().startswith("{"):
        sections, numa = _from_json(text)
    else:
        sections, numa = _from_text(text, notices)
    columns = _gpus(sections, numa, notices)
    if not columns:
        raise MachineError(
            "rocm-smi: no table of GPUs and no NUMA nodes found; "
            "give the whole output of 'rocm-smi --showtopo'"
        )
    types = sections.get("link_types")
    if types is None:
        notices.append(Notice("not_visible", "no section 'Link Type between two GPUs': links are not known"))
    else:
        symmetric(types, notices)
        _note_xgmi(types, sections.get("weights"), notices)
    names = {column: f"gpu{index}" for index, column in enumerate(columns)}
    topology_class = _class(types, len(columns))
    return Topology(
        name="rocm-smi topo",
        devices=tuple(_devices(names, numa)),
        links=tuple(_links(types, sections.get("weights"), names)),
        topology_class=topology_class,
        source="rocm_smi",
        notices=tuple(notices),
        facts=_facts(sections, numa, columns, topology_class),
        matrix={
            (names[row], names[column]): label for row, column, label in (types.pairs() if types else ())
        },
    )


def _from_text(text: str, notices: list[Notice]) -> tuple[Sections, dict[str, dict[str, int]]]:
    bodies: dict[str, list[tuple[int, str]]] = {}
    numa: dict[str, dict[str, int]] = {}
    current = ""
    for number, line in enumerate(text.expandtabs().split("\n"), start=1):
        stripped = line.strip()[:4000]
        if stripped.startswith("=") and stripped.endswith("="):
            title = _SECTION.match(stripped)
            current = _TITLES.get(title[1].strip().lower(), "") if title else ""
            continue
        found = _NUMA.match(stripped)
        if found:
            numa.setdefault(f"GPU{int(found[1])}", {}).setdefault(found[2].lower(), int(found[3]))
        elif current:
            bodies.setdefault(current, []).append((number, line))
    sections: Sections = {}
    for name in ("weights", "hops", "link_types"):
        table = read_table(bodies.get(name, []), _NAME, notices)
        if table is not None:
            sections[name] = table
    return sections, numa


def _from_json(text: str) -> tuple[Sections, dict[str, dict[str, int]]]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MachineError(
            f"rocm-smi JSON: {str(error)[:80]}; expected the whole output of 'rocm-smi --showtopo --json'"
        ) from None
    cells: dict[str, dict[tuple[int, int], str]] = {}
    numa: dict[str, dict[str, int]] = {}
    for owner, values in document.items() if isinstance(document, dict) else ():
        for key, value in values.items() if isinstance(values, dict) else ():
            found = _JSON.fullmatch(key[:120])
            if found:
                section = cells.setdefault(_JSON_SECTIONS[found[1].lower()], {})
                left, right = int(found[2]), int(found[3])
                section[left, right] = section[right, left] = str(value)[:40]
            card = re.fullmatch(r"card(\d{1,4})", owner[:20])
            kind = key.lower().removeprefix("(topology) numa ")
            if card and kind in {"node", "affinity"} and re.fullmatch(r"-?\d{1,6}", str(value)):
                numa.setdefault(f"GPU{int(card[1])}", {})[kind] = int(value)
    return {name: _table(section) for name, section in cells.items()}, numa


def _table(cells: dict[tuple[int, int], str]) -> Table:
    indexes = sorted({index for pair in cells for index in pair})[:256]
    table = Table([f"GPU{index}" for index in indexes], 1)
    for row in indexes:
        table.rows[f"GPU{row}"] = [
            "0" if row == column else cells.get((row, column), "?") for column in indexes
        ]
    return table


def _gpus(sections: Sections, numa: dict[str, dict[str, int]], notices: list[Notice]) -> list[str]:
    """The GPUs of the link types, else of the widest heading, then those that only the NUMA part has."""
    widest = max((table.columns for table in sections.values()), key=len, default=[])
    types = sections.get("link_types")
    columns = list(dict.fromkeys([*(types.columns if types else widest), *numa]))
    for name, table in sections.items():
        others = [column for column in table.columns if column not in columns]
        if others:
            text = (
                f"the section of {name.replace('_', ' ')} has GPUs the others lack: {', '.join(others[:4])}"
            )
            notices.append(Notice("contradiction", text, table.line))
    return columns


def _devices(names: dict[str, str], numa: dict[str, dict[str, int]]) -> list[Device]:
    nodes = sorted(
        {node for found in numa.values() for node in (found.get("node"),) if node is not None and node >= 0}
    )
    cpus = [Device(f"cpu{node}", DeviceKind.CPU, numa_node=node) for node in nodes]
    gpus = [
        Device(name, DeviceKind.GPU, numa_node=numa.get(column, {}).get("node"), attributes={"name": column})
        for column, name in names.items()
    ]
    return [*gpus, *cpus]


def _links(types: Table | None, weights: Table | None, names: dict[str, str]) -> list[Link]:
    links = []
    for row, column, label in types.pairs() if types else ():
        weight = _weight(weights, row, column)
        if label != "XGMI" or (weight is not None and weight > ONE_HOP):
            continue  # packets pass another GPU
        # One link or the four inside a package: neither number nor, without weights, directness is printed.
        attributes: dict[str, Any] = {"count_known": False}
        attributes |= {"weight": weight} if weight is not None else {"direct_known": False}
        origin = "rocm-smi --showtopo: XGMI"
        links.append(Link(names[row], names[column], LinkKind.XGMI, origin=origin, attributes=attributes))
    return links


def _weight(weights: Table | None, row: str, column: str) -> int | None:
    printed = weights.label(row, column) if weights is not None and column in weights.positions else None
    return int(printed) if printed and re.fullmatch(r"\d{1,9}", printed) else None


def _note_xgmi(types: Table, weights: Table | None, notices: list[Notice]) -> None:
    """Says what XGMI labels leave open: the number of links, and which pairs are linked directly."""
    pairs = [(row, column) for row, column, label in types.pairs() if label == "XGMI"]
    found = {_weight(weights, row, column) for row, column in pairs}
    if pairs:
        text = "how many xGMI links a pair has"
        if None in found:
            text += ", and whether its path passes another GPU: no weight is printed"
        elif any(weight is not None and weight > ONE_HOP for weight in found):
            text += f"; pairs of a weight above {ONE_HOP} are linked over other GPUs"
        notices.append(Notice("not_visible", text, types.line))


def _class(types: Table | None, gpu_count: int) -> TopologyClass:
    """XGMI anywhere is the class of meshes, partial ones too; PCIe only when every pair says so."""
    if types is None:
        return TopologyClass.UNKNOWN
    labels = [label for _, _, label in types.pairs()]
    if "XGMI" in labels:
        return TopologyClass.XGMI_MESH
    if len(types.columns) == gpu_count == 1:
        return TopologyClass.SINGLE_GPU
    whole = len(labels) == len(types.columns) * (len(types.columns) - 1)
    return TopologyClass.PCIE if whole and set(labels) == {"PCIE"} else TopologyClass.UNKNOWN


def _values(table: Table | None) -> list[int]:
    if table is None:
        return []
    return sorted({int(label) for _, _, label in table.pairs() if re.fullmatch(r"\d{1,9}", label)})


def _facts(
    sections: Sections,
    numa: dict[str, dict[str, int]],
    columns: list[str],
    topology_class: TopologyClass,
) -> dict[str, Any]:
    types = sections.get("link_types")
    return {
        "gpu_count": len(columns),
        "nic_count": None,
        "cpu_count": len({found["node"] for found in numa.values() if "node" in found}) or None,
        "nvswitch_count": 0 if types else None,
        "nvlinks_per_gpu": [0] * len(columns) if types else None,
        "gpu_matrix": [types.rows.get(row) for row in types.columns] if types else None,
        "link_types": sorted({label for _, _, label in types.pairs()}) if types else [],
        "hops": _values(sections.get("hops")),
        "weights": _values(sections.get("weights")),
        "numa_node": {gpu: found["node"] for gpu, found in numa.items() if "node" in found},
        "numa_affinity": {gpu: found["affinity"] for gpu, found in numa.items() if "affinity" in found},
        "nvswitch": False if topology_class is not TopologyClass.UNKNOWN else None,
    }
