"""Reads ``nvidia-smi topo``: the matrix (``-m``, ``-mp``), peer-to-peer (``-p2p``), CPU queries (``-c N``).

The matrix holds, for each pair of GPUs and NICs, the best path between them: NV# (NVLinks, directly or over
switches), else the nearest common part of the PCIe tree. It has no rates and no NVSwitches of its own, so
links carry no bytes per second here, and the class comes from counting links (ccbench.topology.nvlink_class).

Facts (as printed unless said): gpu_count and nic_count (columns of the matrix), nic_columns, nic_rows,
nic_names and nic_legend, gpu_matrix (None for a row that was not printed whole), complete_rows,
link_types_between_gpus, nvlinks_per_gpu, links_per_pair, nvlink_groups, nearest_nics, cpu_affinity,
numa_affinity, gpu_numa_id (by GPU, None for an empty or damaged cell), numa_nodes_seen, numa_nodes (at least:
the nodes named, and node 0, which Linux always has), numa_nodes_with_gpus, cpu_numa_nodes, p2p_matrix,
p2p_access (what was asked of: read, write, nvlink, atomics, prop; None without its command line),
status_values, topology_class_reason, topology_class_candidates, paths ("as printed": what Topology.matrix
leaves out was not printed); and for a CPU query the CPU's number itself.
"""

from __future__ import annotations

import re
from typing import Any

from ccbench.errors import MachineError
from ccbench.topology.classes import FEWEST_TO_SWITCHES, Verdict, class_of_counts
from ccbench.topology.graph import Device, DeviceKind, Notice, Topology, TopologyClass
from ccbench.topology.smi_matrix import Matrix, affinity_facts, graph_of, matrix_of
from ccbench.topology.smi_table import Table, tables_of
from ccbench.topology.text import plain_lines
from ccbench.units import shown

_CELL = r"(?:X|NV[0-9]{1,3}|PIX|PXB|PHB|NODE|SYS|SOC|OK|CNS|GNS|TNS|NS|DR|U)"
_SEEN = re.compile(
    rf"GPU[0-9]{{1,3}}[ \t]+{_CELL}(?:[ \t]|{_CELL}|$)|GPU[0-9]{{1,3}}[ \t]+CPU Affinity"
    r"|GPUs that have an affinity with CPU [0-9]",
    re.ASCII | re.MULTILINE,
)
_LEGEND = re.compile(r"[\s>|#]*(NIC[0-9]{1,3}): ?([\w.:-]{1,64})\s*", re.ASCII)
_QUERY = re.compile(r"The GPUs that have an affinity with CPU ([0-9]{1,6}) are:")
_NUMBERS = re.compile(r"\s*([0-9]{1,3}(?:\s*,\s*[0-9]{1,3}){0,500})\s*,?\s*", re.ASCII)
_P2P_COMMAND = re.compile(r"\btopo\b.{0,40}\s(?:-p2p|--p2pstatus)[\s=]+([a-z])\b", re.ASCII)
P2P_ACCESS = {"r": "read", "w": "write", "n": "nvlink", "a": "atomics", "p": "prop"}
"""What ``topo -p2p`` is asked of, by its letter, as its help says. The table itself does not print it."""

SOURCE = "nvidia-smi topo"


def recognises(text: str) -> bool:
    """Whether the text holds a row or the answer of ``nvidia-smi topo``."""
    return _SEEN.search(text) is not None


def read(text: str) -> Topology:
    """The machine of an ``nvidia-smi topo`` output, however damaged; MachineError when it holds no GPU."""
    lines = plain_lines(text)
    tables, notices = tables_of(lines)
    matrices = [table for table in tables if not table.is_p2p]
    statuses = [table for table in tables if table.is_p2p]
    # A heading alone says how many GPUs there are, but a table with rows says more.
    matrices.sort(key=lambda table: not table.rows)
    queries = _queries(lines, notices)
    if matrices and matrices[0].rows:
        return _machine(matrices, statuses, lines, notices)
    if statuses:
        return _peers(statuses, lines, notices)
    if queries:
        line = next((number for number, said in enumerate(lines, 1) if _QUERY.search(said)), None)
        notices.append(_note_on(queries, line))
        return Topology("", (), source=f"{SOURCE} -c", facts=queries, notices=tuple(notices))
    if matrices and len(matrices[0].affinities) > 0:
        return _machine(matrices, statuses, lines, notices)
    raise MachineError(
        f"{SOURCE}: no row of a GPU in {shown(text.strip())}; expected lines such as "
        "'GPU0  X  NV18  0-55  0'; give it the whole output of 'nvidia-smi topo -m'"
    )


def _machine(
    matrices: list[Table], statuses: list[Table], lines: list[str], notices: list[Notice]
) -> Topology:
    """The topology of the first matrix; of further tables only the peer-to-peer statuses are kept."""
    extra = [table for table in matrices[1:] if table.rows]
    if extra:
        text = f"{len(extra)} more matrices in the text: not used"
        notices.append(Notice("unsupported", text, extra[0].line))
    legend = {match[1]: match[2] for line in lines if (match := _LEGEND.fullmatch(line))}
    matrix = matrix_of(matrices[0], legend, notices)
    verdict = _class_of(matrix, matrices[0], lines, notices)
    facts = {**_gpu_facts(matrix, verdict), **affinity_facts(matrix), **_nic_facts(matrix, legend)}
    if statuses:
        facts.update(_status_facts(statuses[0], lines))
    devices, links = graph_of(matrix, verdict, notices)
    facts["cpu_count"] = _processors(matrix, devices, matrices[0].line, notices)
    # What the graph is made from loses words (PXB, NODE): the printed ones stand beside it, and all of them.
    facts["paths"] = "as printed"
    names = {gpu: f"gpu{index}" for index, gpu in enumerate(matrix.gpus)}
    names |= {nic: f"nic{index}" for index, nic in enumerate(matrix.nics)}
    labels = {
        (names[one], names[other]): label
        for (one, other), label in matrix.labels.items()
        if one in names and other in names
    }
    return Topology(
        name="",
        devices=devices,
        links=links,
        topology_class=verdict.topology_class,
        source=f"{SOURCE} -m",
        notices=tuple(notices),
        facts=facts,
        matrix=labels,
    )


def _processors(matrix: Matrix, devices: tuple[Device, ...], line: int, notices: list[Notice]) -> int | None:
    """NUMA nodes that the affinity columns name; None where a path leads to one that they do not name."""
    named = sum(device.kind is DeviceKind.CPU for device in devices)
    crossing = sorted({"SYS", "SOC"} & set(matrix.labels.values()))
    if named == 1 and crossing:
        text = f"how many processors there are: {crossing[0]} leads to one that no GPU's affinity names"
        notices.append(Notice("not_visible", text, line))
        return None
    return named or None


def _class_of(matrix: Matrix, table: Table, lines: list[str], notices: list[Notice]) -> Verdict:
    """The class; unknown where a cut matrix leaves pairs open that could change it.

    Without any NVLink among the rows that are there, each GPU seen in at least one of them, it is pcie:
    boards and bridges link every GPU of a machine.
    """
    # The oldest headings, and those that say SOC, come from drivers before NUMA Affinity was printed (2020).
    old = bool(table.affinities) and "NUMA Affinity" not in table.affinities
    old = old or "SOC" in matrix.between_gpus.values()
    verdict = class_of_counts(matrix.nvlinks, matrix.gpu_count, before_2020=old)
    pairs = matrix.gpu_count * (matrix.gpu_count - 1)
    if len(matrix.between_gpus) < pairs and verdict.topology_class is not TopologyClass.NVSWITCH:
        seen_gpus = {one for one, _ in matrix.between_gpus}
        open_rows = matrix.gpu_count - len(seen_gpus)
        if open_rows or not matrix.between_gpus or matrix.nvlinks:
            verdict = Verdict(TopologyClass.UNKNOWN, "the matrix is cut: not every pair of GPUs was printed")
    if any(map(matrix.is_open, matrix.between_gpus)) and verdict.topology_class is not TopologyClass.NVSWITCH:
        verdict = Verdict(TopologyClass.UNKNOWN, "a path between GPUs has a word that is not known")
    if verdict.topology_class is TopologyClass.UNKNOWN:
        notices.append(Notice("not_visible", f"the class of the machine: {verdict.reason}", table.line))
    elif verdict.topology_class is TopologyClass.PCIE and _hides_nvlinks(lines):
        text = "the legend has no NV#: 'topo -mp' hides NVLinks, so the machine may have some"
        notices.append(Notice("not_visible", text, table.line))
    return verdict


def _hides_nvlinks(lines: list[str]) -> bool:
    """Whether a legend of the drivers that know NVLink is there and leaves NV# out, as ``-mp`` does."""
    words = [line.split("=")[0].strip() for line in lines if "=" in line]
    return "NODE" in words and "PIX" in words and "NV#" not in words


def _gpu_facts(matrix: Matrix, verdict: Verdict) -> dict[str, Any]:
    nvswitch = verdict.nvswitch
    if nvswitch is None and matrix.nvlinks and max(matrix.nvlinks.values()) < FEWEST_TO_SWITCHES:
        nvswitch = False
    pairs = set(matrix.nvlinks.values())
    labels = [label for (one, other), label in matrix.between_gpus.items() if one != other]
    return {
        "gpu_count": matrix.gpu_count,
        "nvswitch": nvswitch,
        "nvswitch_count": None if nvswitch is not False else 0,
        "topology_class_reason": verdict.reason,
        "topology_class_candidates": [candidate.value for candidate in verdict.candidates],
        "topology_class_from_matrix_alone": _spoken_class(verdict),
        "nvlinks_per_gpu": matrix.nvlinks_per_gpu(verdict.topology_class),
        "links_per_pair": pairs.pop() if len(pairs) == 1 else None,
        "nvlink_groups": matrix.nvlink_groups,
        "gpu_matrix": matrix.gpu_rows,
        "complete_rows": matrix.complete_rows,
        "link_types_between_gpus": sorted(set(labels)),
    }


def _spoken_class(verdict: Verdict) -> str:
    if (
        verdict.topology_class is not TopologyClass.UNKNOWN
        or TopologyClass.NVSWITCH not in verdict.candidates
    ):
        return verdict.topology_class.value
    return "nvlink (bridge or nvswitch)" if len(verdict.candidates) > 2 else "nvlink (mesh or nvswitch)"


def _nic_facts(matrix: Matrix, legend: dict[str, str]) -> dict[str, Any]:
    columns = matrix.nic_columns
    return {
        "nic_count": len(columns),
        "nic_columns": columns,
        "nic_rows": matrix.nic_row_count,
        "nic_names": [legend.get(name, name) for name in columns],
        "nic_legend": legend,
        "nearest_nics": matrix.nearest_nics(),
    }


def _access_asked(table: Table, lines: list[str]) -> str | None:
    """What the command line before the table or on its heading asked of (read ...); None without one."""
    for line in reversed(lines[: table.line]):
        match = _P2P_COMMAND.search(line[:1000])
        if match:
            return P2P_ACCESS.get(match[1])
    return None


def _status_facts(table: Table, lines: list[str]) -> dict[str, Any]:
    columns = [name for name in table.columns if name.startswith("GPU")]
    rows = {row.name: row.cells[: len(columns)] for row in table.rows}
    matrix = [rows[name] if len(rows.get(name, ())) == len(columns) else None for name in columns]
    values = {cell for row in table.rows for cell in row.cells} - {"X"}
    return {
        "p2p_matrix": matrix,
        "p2p_access": _access_asked(table, lines),
        "status_values": sorted(values),
    }


def _peers(tables: list[Table], lines: list[str], notices: list[Notice]) -> Topology:
    """GPUs without links: a status says what the driver allows, not what is there."""
    table = tables[0]
    columns = [name for name in table.columns if name.startswith("GPU")]
    devices = tuple(
        Device(f"gpu{index}", DeviceKind.GPU, attributes={"name": name}) for index, name in enumerate(columns)
    )
    text = "links: 'topo -p2p' says what the driver allows between GPUs, 'topo -m' says how they are linked"
    unsaid = ("nvswitch", "nvlinks_per_gpu", "nic_count", "cpu_count", "nvswitch_count")
    facts = {**_status_facts(table, lines), "gpu_count": len(columns), **dict.fromkeys(unsaid)}
    return Topology(
        name="",
        devices=devices,
        source=f"{SOURCE} -p2p",
        notices=(*notices, Notice("not_visible", text, table.line)),
        facts=facts,
    )


def _note_on(queries: dict[str, Any], line: int | None) -> Notice:
    """What answers of ``topo -c`` say, and that they say no more."""
    said = [
        f"GPU {', '.join(map(str, gpus))} near CPU {cpu}" for cpu, gpus in queries.items() if gpus is not None
    ]
    more = f" and {len(said) - 4} more answers" if len(said) > 4 else ""
    text = f"the machine: 'topo -c' says only {'; '.join(said[:4])}{more}; 'topo -m' says how GPUs are linked"
    return Notice("not_visible", text, line)


def _queries(lines: list[str], notices: list[Notice]) -> dict[str, Any]:
    """Answers of ``topo -c N``: the CPU's number -> its GPUs; empty when there are none."""
    answers: dict[str, Any] = {}
    asked: tuple[str, int] | None = None
    for number, line in enumerate(lines, 1):
        match = _QUERY.search(line)
        if match:
            asked = (match[1], number)
            continue
        if asked is None or not line.strip():
            continue
        found = _NUMBERS.fullmatch(line)
        if found:
            answers[asked[0]] = [int(gpu) for gpu in found[1].split(",")]
            asked = None
        else:
            notices.append(
                Notice("damaged_line", f"no GPU numbers after the question for CPU {asked[0]}", number)
            )
            asked = None
    if asked is not None:
        notices.append(Notice("truncated", f"the answer for CPU {asked[0]} is missing", asked[1]))
    unsaid = ("nvswitch", "gpu_count", "nic_count", "cpu_count", "nvswitch_count", "nvlinks_per_gpu")
    return {**answers, **dict.fromkeys(unsaid)} if answers else {}
