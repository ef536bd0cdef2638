"""What the matrix of ``nvidia-smi topo -m`` says: paths between GPUs and NICs, and the affinity columns.

Devices and links out of a ``topo -m`` matrix: the PCIe tree as far as the path names tell it, and NVLinks.

PIX and PXB between a GPU and something else: both hang on PCIe switches, drawn as one switch. PHB and NODE:
the same NUMA node. SYS: different ones. The matrix prints no rates, so no link has any.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ccbench.topology.classes import MOST_LINKS, Verdict, linked_groups, links_per_gpu
from ccbench.topology.graph import Device, DeviceKind, Link, LinkKind, Notice, TopologyClass
from ccbench.topology.smi_table import HEADINGS, Row, Table, labels_of
from ccbench.topology.text import overlap, ranges

CPU, NUMA, GPU_NUMA = HEADINGS
_DISTANCE = {"PIX": 0, "PXB": 1, "PHB": 2, "NODE": 3, "SYS": 4, "SOC": 4}
_NVLINKS = re.compile(r"NV([0-9]{1,3})", re.ASCII)


@dataclass(frozen=True)
class Matrix:
    """A table in terms of GPUs and NICs by index.

    labels: (row name, column name) -> cell, both directions where either was printed, without the diagonal.
    cells: GPU name -> its affinity cells by heading, None where empty or damaged; printed rows only.
    """

    gpus: tuple[str, ...]
    nic_columns: list[str]
    nics: tuple[str, ...]
    nic_names: Mapping[str, str]
    labels: Mapping[tuple[str, str], str]
    gpu_rows: list[list[str] | None]
    cells: Mapping[str, Mapping[str, str | None]]
    complete_rows: int
    nic_row_count: int
    line: int

    @property
    def gpu_count(self) -> int:
        """GPUs of the heading."""
        return len(self.gpus)

    @functools.cached_property
    def between_gpus(self) -> dict[tuple[int, int], str]:
        """(GPU, GPU) -> label, by index."""
        index = {name: position for position, name in enumerate(self.gpus)}
        return {
            (index[one], index[other]): label
            for (one, other), label in self.labels.items()
            if one in index and other in index
        }

    @functools.cached_property
    def nvlinks(self) -> dict[tuple[int, int], int]:
        """(GPU, GPU) -> the number that NV# prints, for pairs that have one above 0."""
        found = {pair: _NVLINKS.fullmatch(label) for pair, label in self.between_gpus.items()}
        return {pair: int(match[1]) for pair, match in found.items() if match and int(match[1])}

    def is_open(self, pair: tuple[int, int]) -> bool:
        """Whether neither direction between two GPUs has a word that is known."""
        words = (self.between_gpus.get(pair, ""), self.between_gpus.get(pair[::-1], ""))
        return not any(map(labels_of, words))

    @property
    def nvlink_groups(self) -> list[list[str]]:
        """GPUs that reach each other over NVLinks."""
        return [[self.gpus[gpu] for gpu in group] for group in linked_groups(self.nvlinks)]

    def nvlinks_per_gpu(self, topology_class: TopologyClass) -> list[int | None] | None:
        """NVLinks of each GPU: the sum over its peers, or NV# itself where all lead to switches.

        None for a GPU with a path that could not be read.

        Where the class is open, NV# of two GPUs is the same both ways; of more it is not stated.
        """
        counts = self.nvlinks
        if topology_class is TopologyClass.UNKNOWN and self.gpu_count > 2:
            return None
        if topology_class is TopologyClass.NVSWITCH:
            most = [0] * self.gpu_count
            for (gpu, _), links in counts.items():
                most[gpu] = max(most[gpu], links)
            return [count or (None if gpu in self.unread else 0) for gpu, count in enumerate(most)]
        totals = links_per_gpu(counts, self.gpu_count)
        return [None if gpu in self.unread else total for gpu, total in enumerate(totals)]

    @functools.cached_property
    def unread(self) -> set[int]:
        """GPUs with a path to another GPU whose word is not known in either direction, or in one of both."""
        return {gpu for pair, label in self.between_gpus.items() if not labels_of(label) for gpu in pair}

    def nearest_nics(self) -> dict[str, dict[str, Any]]:
        """GPU -> the shortest path to a NIC and the NIC columns that near; GPUs with whole rows only."""
        nearest: dict[str, dict[str, Any]] = {}
        for gpu in self.gpus:
            paths = [(self.labels.get((gpu, nic), ""), nic) for nic in self.nic_columns]
            if not paths or any(path not in _DISTANCE for path, _ in paths):
                continue
            shortest = min((path for path, _ in paths), key=_DISTANCE.__getitem__)
            nearest[gpu] = {"path": shortest, "nics": [nic for path, nic in paths if path == shortest]}
        return nearest


def matrix_of(table: Table, legend: Mapping[str, str], notices: list[Notice]) -> Matrix:
    """The table's meaning; contradictions and damage go to ``notices``."""
    gpus = tuple(dict.fromkeys(name for name in table.columns if name.startswith("GPU")))
    nic_columns = list(dict.fromkeys(name for name in table.columns if not name.startswith("GPU")))
    nic_rows = [row for row in table.rows if not row.name.startswith("GPU")]
    _missing_columns(table, gpus, nic_columns, nic_rows, notices)
    cells = {row.name: _affinity_cells(row, table, notices) for row in table.rows if row.name in gpus}
    _overlapping(cells, table.line, notices)
    nics = tuple(dict.fromkeys([*nic_columns, *(row.name for row in nic_rows)]))
    width = len(gpus)
    by_name = {row.name: row for row in table.rows}
    rows = [by_name[gpu].cells[:width] if gpu in by_name else [] for gpu in gpus]
    return Matrix(
        gpus=gpus,
        nic_columns=nic_columns,
        nics=nics,
        nic_names={name: legend.get(name, name) for name in nics},
        labels=_labels(table, notices),
        gpu_rows=[row if len(row) == width else None for row in rows],
        cells=cells,
        complete_rows=sum(_is_complete(row, table, cells) for row in table.rows),
        nic_row_count=len(nic_rows),
        line=table.line,
    )


def _missing_columns(
    table: Table, gpus: tuple[str, ...], nic_columns: list[str], nic_rows: list[Row], notices: list[Notice]
) -> None:
    for row in table.rows:
        known = row.name in gpus or row.name in nic_columns or not row.name.startswith("GPU")
        if not known:
            notices.append(Notice("contradiction", f"row {row.name} has no column", row.line))
    without = [row.name for row in nic_rows if row.name not in nic_columns]
    if without:
        text = f"NIC columns cut out: rows {', '.join(without[:8])} have none"
        notices.append(Notice("damaged_line", text, table.line))


def _labels(table: Table, notices: list[Notice]) -> dict[tuple[str, str], str]:
    printed: dict[tuple[str, str], str] = {}
    for row in table.rows:
        for column, label in zip(table.columns, row.cells, strict=False):
            if (column == row.name) != (label == "X"):
                text = f"{row.name}: {label} stands in the column of {column}"
                notices.append(Notice("contradiction", text, row.line))
            elif column != row.name:
                printed[row.name, column] = label
        whole = len(row.cells) >= len(table.columns) or row.cut
        if not whole and not row.name.startswith("NIC"):
            text = f"row {row.name} has {len(row.cells)} of {len(table.columns)} cells"
            notices.append(Notice("damaged_line", text, row.line))
    _note_impossible(table, notices)
    both = dict(printed)
    for (one, other), label in printed.items():
        back = both.setdefault((other, one), label)
        if back != label and one < other:
            text = f"{one} to {other} is {label}, back it is {back}"
            notices.append(Notice("contradiction", text, table.line))
    return both


def _note_impossible(table: Table, notices: list[Notice]) -> None:
    """A notice for the first NV# of a row that is more than the links of any GPU known."""
    for row in table.rows:
        counts = (_NVLINKS.fullmatch(cell) for cell in row.cells)
        most = max((int(match[1]) for match in counts if match), default=0)
        if most > MOST_LINKS:
            text = f"{row.name}: NV{most}, where no GPU known has more than {MOST_LINKS} NVLinks"
            notices.append(Notice("contradiction", text, row.line))


def _affinity_cells(row: Row, table: Table, notices: list[Notice]) -> dict[str, str | None]:
    """The cells behind the matrix by heading. An empty cell shows only where tabs were kept."""
    tokens: list[str | None] = list(row.rest.split())
    wanted = table.affinities
    if not wanted or len(row.cells) < len(table.columns):
        return dict.fromkeys(wanted)
    before = row.rest[: len(row.rest) - len(row.rest.lstrip())]
    if tokens and before.count("\t") >= 2 and len(tokens) < len(wanted):
        tokens.insert(0, None)
    if len(tokens) > len(wanted):
        text = f"{row.name}: {len(tokens)} cells behind the matrix under {len(wanted)} headings"
        notices.append(Notice("damaged_line", text, row.line))
    if len(tokens) == 2 and len(wanted) == 3 and re.search(r"\S[ ]*\t[ ]*\t[ ]*\t", row.rest.rstrip()):
        tokens.insert(1, None)
    padded = [*tokens, *[None] * len(wanted)]
    cells = dict(zip(wanted, padded, strict=False))
    for heading, cell in cells.items():
        if cell is not None and cell != "N/A" and ranges(cell) is None:
            notices.append(Notice("damaged_line", f"{row.name}: {heading} {cell!r} is no list", row.line))
            cells[heading] = None
    return cells


def _overlapping(cells: Mapping[str, Mapping[str, str | None]], line: int, notices: list[Notice]) -> None:
    """Different CPU lists name different NUMA nodes and so no CPU twice, unless one was damaged."""
    lists = {text: ranges(text) for row in cells.values() if (text := row.get(CPU)) and text != "N/A"}
    # Bounded, because every two lists are compared: no machine has more NUMA nodes with GPUs.
    found = [(text, numbers) for text, numbers in lists.items() if numbers and len(numbers) <= 512][:64]
    for position, (text, numbers) in enumerate(found):
        for other, others in found[:position]:
            if overlap(numbers, others):
                message = f"CPU Affinity {other} and {text} share CPUs: one of them is damaged"
                notices.append(Notice("damaged_line", message, line))


def _is_complete(row: Row, table: Table, cells: Mapping[str, Mapping[str, str | None]]) -> bool:
    if row.cut or len(row.cells) < len(table.columns):
        return False
    return (
        row.name not in cells or not table.affinities or cells[row.name].get(table.affinities[0]) is not None
    )


def affinity_facts(matrix: Matrix) -> dict[str, Any]:
    """cpu_affinity, numa_affinity, gpu_numa_id by GPU, and the NUMA nodes they name."""
    facts: dict[str, Any] = {}
    for key, heading in (("cpu_affinity", CPU), ("numa_affinity", NUMA), ("gpu_numa_id", GPU_NUMA)):
        printed = {gpu: row[heading] for gpu, row in matrix.cells.items() if heading in row}
        facts[key] = printed or None
    cpus, nodes, own = (_values(facts[key]) for key in ("cpu_affinity", "numa_affinity", "gpu_numa_id"))
    facts["numa_nodes_seen"] = sorted(nodes) or None
    facts["numa_nodes"] = _node_count(nodes | own) or (len(cpus) if facts["numa_affinity"] is None else None)
    facts["numa_nodes_with_gpus"] = len(nodes - {"N/A"}) or None
    facts["cpu_numa_nodes"] = len(cpus) or None
    return facts


def _values(by_gpu: Mapping[str, str | None] | None) -> set[str]:
    return {cell for cell in (by_gpu or {}).values() if cell is not None}


def _node_count(cells: set[str]) -> int | None:
    """Nodes named and node 0, where any is named."""
    named: set[int] = set()
    for cell in cells:
        for first, last in ranges(cell) or ():
            named.update(range(first, min(last, first + 4096) + 1))
    return len(named | {0}) if named else None


ORIGIN = "nvidia-smi topo -m"
"""Says nothing of rates, so that it stays true where people write them into a saved file."""
_UNDER_A_SWITCH = ("PIX", "PXB")
_IN_A_NODE = ("PIX", "PXB", "PHB", "NODE")


def graph_of(
    matrix: Matrix, verdict: Verdict, notices: list[Notice]
) -> tuple[tuple[Device, ...], tuple[Link, ...]]:
    """The devices (GPUs, NICs, NUMA nodes, switches) and the links between them, both directions."""
    names = {gpu: f"gpu{index}" for index, gpu in enumerate(matrix.gpus)}
    names |= {nic: f"nic{index}" for index, nic in enumerate(matrix.nics)}
    cpu_of, cpus = _cpus(matrix)
    gpus = [
        Device(
            names[gpu],
            DeviceKind.GPU,
            numa_node=cpus[cpu_of[gpu]].numa_node if gpu in cpu_of else None,
            attributes=_gpu_attributes(matrix, gpu),
        )
        for gpu in matrix.gpus
    ]
    nics = [
        Device(
            names[nic],
            DeviceKind.NIC,
            numa_node=cpus[cpu_of[nic]].numa_node if nic in cpu_of else None,
            attributes={"name": matrix.nic_names[nic], "column": nic},
        )
        for nic in matrix.nics
    ]
    switches = _switch_groups(matrix)
    pcie = [Device(f"pcie{index}", DeviceKind.PCIE_SWITCH) for index in range(len(switches))]
    nvswitches = []
    if verdict.topology_class is TopologyClass.NVSWITCH:
        attributes = {"stands_for": "all NVSwitches of the machine"}
        nvswitches = [Device("nvswitch0", DeviceKind.NVSWITCH, attributes=attributes)]
    links = [
        *_nvlinks(matrix, verdict),
        *_tree(switches, cpu_of, names),
        *_between_cpus(matrix, cpu_of),
    ]
    lost = [nic for nic in matrix.nics if nic not in cpu_of]
    if lost and cpus:
        text = f"the NUMA node of {', '.join(lost[:8])}: no GPU is nearer to them than SYS"
        notices.append(Notice("not_visible", text, matrix.line))
    return (*gpus, *cpus.values(), *nvswitches, *pcie, *nics), tuple(links)


def _gpu_attributes(matrix: Matrix, gpu: str) -> dict[str, str]:
    cells = matrix.cells.get(gpu, {})
    keys = (("cpu_affinity", CPU), ("numa_affinity", NUMA), ("gpu_numa_id", GPU_NUMA))
    return {"name": gpu} | {key: cell for key, heading in keys if (cell := cells.get(heading))}


def _cpus(matrix: Matrix) -> tuple[dict[str, str], dict[str, Device]]:
    """GPU or NIC name -> CPU device name, and the CPU devices: one for each NUMA node with a GPU.

    Where the output has no NUMA node, GPUs with the same CPU list share a CPU whose number is not a node's.
    """
    cpu_of: dict[str, str] = {}
    cpus: dict[str, Device] = {}
    numbered = {gpu: _node(matrix, gpu) for gpu in matrix.gpus}
    by_list: dict[str, str] = {}
    for gpu in matrix.gpus:
        node, cores = numbered[gpu], matrix.cells.get(gpu, {}).get(CPU)
        if node is not None:
            name = f"cpu{node}"
        elif not any(known is not None for known in numbered.values()) and cores and ranges(cores):
            name = by_list.setdefault(cores, f"cpu{len(by_list)}")
        else:
            continue
        cpu_of[gpu] = name
        attributes = {"cores": cores} if cores and cores != "N/A" else {}
        cpus.setdefault(name, Device(name, DeviceKind.CPU, numa_node=node, attributes=attributes))
    for nic in matrix.nics:
        for gpu in matrix.gpus:
            if matrix.labels.get((gpu, nic)) in _IN_A_NODE and gpu in cpu_of:
                cpu_of[nic] = cpu_of[gpu]
                break
    return cpu_of, cpus


def _node(matrix: Matrix, gpu: str) -> int | None:
    """The NUMA node with the GPU's cores; None where the cell names none, or several that have cores.

    On Grace the cell lists the CPU's node first, then the empty nodes of its GPUs' memory.
    """
    cells = matrix.cells.get(gpu, {})
    named = ranges(cells.get(NUMA) or "")
    if not named:
        return None
    own_memory = (cells.get(GPU_NUMA) or "").isdigit()
    single = len(named) == 1 and named[0][0] == named[0][1]
    return named[0][0] if single or own_memory else None


def _switch_groups(matrix: Matrix) -> list[list[str]]:
    """Devices under a common PCIe switch, groups with a GPU and something else.

    Two functions of one card are PIX to each other as well; without a GPU they tell of no switch.
    """
    group_of: dict[str, list[str]] = {name: [name] for name in (*matrix.gpus, *matrix.nics)}
    for (one, other), label in matrix.labels.items():
        if label not in _UNDER_A_SWITCH or one not in group_of or other not in group_of:
            continue
        first, second = group_of[one], group_of[other]
        if first is not second:
            small, large = sorted((first, second), key=len)
            large += small
            for name in small:
                group_of[name] = large
    order = {name: index for index, name in enumerate((*matrix.gpus, *matrix.nics))}
    distinct = {id(group): group for group in group_of.values()}.values()
    gpus = set(matrix.gpus)
    found = [
        sorted(group, key=order.__getitem__) for group in distinct if len(group) > 1 and gpus & set(group)
    ]
    return sorted(found, key=lambda group: order[group[0]])


def _nvlinks(matrix: Matrix, verdict: Verdict) -> list[Link]:
    counts = matrix.nvlinks
    if verdict.topology_class is TopologyClass.NVSWITCH:
        links: list[Link] = []
        for gpu, count in enumerate(matrix.nvlinks_per_gpu(TopologyClass.NVSWITCH) or ()):
            if count:
                links += _both(f"gpu{gpu}", "nvswitch0", LinkKind.NVLINK, count)
        return links
    # With the class open these are paths of that many links, with or without switches on the way.
    return [
        Link(f"gpu{gpu}", f"gpu{peer}", LinkKind.NVLINK, count=count, origin=ORIGIN)
        for (gpu, peer), count in sorted(counts.items())
    ]


def _tree(switches: list[list[str]], cpu_of: dict[str, str], names: dict[str, str]) -> list[Link]:
    links: list[Link] = []
    below: set[str] = set()
    for index, group in enumerate(switches):
        for name in group:
            links += _both(names[name], f"pcie{index}", LinkKind.PCIE)
            below.add(name)
        root = next((cpu_of[name] for name in group if name in cpu_of), None)
        if root is not None:
            links += _both(f"pcie{index}", root, LinkKind.PCIE)
    for name, cpu in cpu_of.items():
        if name not in below:
            links += _both(names[name], cpu, LinkKind.PCIE)
    return links


def _between_cpus(matrix: Matrix, cpu_of: dict[str, str]) -> list[Link]:
    """Sockets or NUMA nodes that have a SYS path, or NVLinked GPUs, between them: every pair is linked."""
    cpus: Iterable[str] = dict.fromkeys(cpu_of[gpu] for gpu in matrix.gpus if gpu in cpu_of)
    found = list(cpus)
    return [
        link
        for position, one in enumerate(found)
        for other in found[:position]
        for link in _both(other, one, LinkKind.INTER_SOCKET)
    ]


def _both(one: str, other: str, kind: LinkKind, count: int = 1) -> list[Link]:
    return [
        Link(source, target, kind, count=count, origin=ORIGIN)
        for source, target in ((one, other), (other, one))
    ]
