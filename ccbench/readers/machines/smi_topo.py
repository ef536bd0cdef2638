"""Reads ``nvidia-smi topo``: the matrix (``-m``, ``-mp``) and peer-to-peer statuses (``-p2p``).

The matrix holds, for each pair of GPUs and NICs, the best path between them: NV# (NVLinks, directly or over
switches), else the nearest common part of the PCIe tree. PIX and PXB between a GPU and something else: both
hang on PCIe switches, drawn as one switch. PHB and NODE: the same NUMA node. SYS: different ones. It has no
rates and no NVSwitches of its own, so links carry no bytes per second here, and the class comes from counting
links (ccbench.topology.classes).

Facts: cpu_count (None where a path leads to a CPU that is not named), nvlinks_per_gpu, p2p_matrix and p2p_access
(what was asked of: read, write, nvlink, atomics, prop; None without its command line), paths ("as printed": what
Topology.matrix leaves out was not printed).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ccbench.errors import MachineError
from ccbench.findings import SourceWarning
from ccbench.readers.lines import plain_lines, ranges, searches
from ccbench.readers.machines.smi_table import (
    CELL,
    CPU,
    GPU_NUMA,
    NUMA,
    LabelMatrix,
    Matrix,
    labels_of,
    tables_of,
)
from ccbench.topology.classes import (
    FEWEST_TO_SWITCHES,
    ClassVerdict,
    class_of_counts,
    connected_groups,
    peers_of,
)
from ccbench.topology.graph import Device, DeviceKind, Link, LinkKind, Topology, TopologyClass
from ccbench.units import shown

SOURCE = "nvidia-smi topo"

_P2P_ACCESS = {"r": "read", "w": "write", "n": "nvlink", "a": "atomics", "p": "prop"}
_SEEN = re.compile(
    rf"GPU[0-9]{{1,3}}[ \t]+{CELL}(?:[ \t]|{CELL}|$)|GPU[0-9]{{1,3}}[ \t]+CPU Affinity",
    re.ASCII | re.MULTILINE,
)
_LEGEND = re.compile(r"[\s>|#]*(NIC[0-9]{1,3}): ?([\w.:-]{1,64})\s*", re.ASCII)
_P2P_COMMAND = re.compile(r"\btopo\b.{0,40}\s(?:-p2p|--p2pstatus)[\s=]+([a-z])\b", re.ASCII)


recognises = searches(_SEEN)


def read(text: str) -> Topology:
    """Return the machine of an ``nvidia-smi topo`` output; MachineError when it holds no GPU."""
    lines = plain_lines(text)
    tables, warnings = tables_of(lines)
    statuses = [table for table in tables if table.is_p2p]
    matrices = [table for table in tables if not table.is_p2p]
    if matrices:
        return _machine(matrices, statuses, lines, warnings)
    if statuses:
        # GPUs without links: a status says what the driver allows, not what is there.
        columns = [name for name in statuses[0].columns if name.startswith("GPU")]
        reason = "links: 'topo -p2p' says what the driver allows between GPUs, 'topo -m' says how they are linked"
        unsaid = ("nvlinks_per_gpu", "nic_count", "cpu_count", "nvswitch_count")
        return Topology(
            name="",
            devices=tuple(
                Device(f"gpu{index}", DeviceKind.GPU, attributes={"name": name})
                for index, name in enumerate(columns)
            ),
            source=f"{SOURCE} -p2p",
            warnings=(*warnings, SourceWarning("not_visible", reason, statuses[0].line)),
            facts=_status_facts(statuses[0], lines) | dict.fromkeys(unsaid),
        )
    raise MachineError(
        f"{SOURCE}: no row of a GPU in {shown(text.strip())}; expected lines such as "
        "'GPU0  X  NV18  0-55  0'; give it the whole output of 'nvidia-smi topo -m'"
    )


def _status_facts(table: LabelMatrix, lines: list[str]) -> dict[str, Any]:
    columns = [name for name in table.columns if name.startswith("GPU")]
    rows = {row.name: row.cells[: len(columns)] for row in table.rows}
    # The table does not print what it was asked of; the command line before it or on its heading does.
    commands = (
        match
        for line in reversed(lines[: table.line])
        if (match := _P2P_COMMAND.search(line[:1000]))
    )
    command = next(commands, None)
    return {
        "p2p_matrix": [
            row if len(row := rows.get(name, [])) == len(columns) else None for name in columns
        ],
        "p2p_access": _P2P_ACCESS.get(command[1]) if command else None,
    }


def _machine(
    matrices: list[LabelMatrix],
    statuses: list[LabelMatrix],
    lines: list[str],
    warnings: list[SourceWarning],
) -> Topology:
    """The topology of the first matrix; of further tables only the peer-to-peer statuses are kept."""
    if len(matrices) > 1:
        text = f"{len(matrices) - 1} more matrices in the text: not used"
        warnings.append(SourceWarning("unsupported", text, matrices[1].line))
    matrix = Matrix(matrices[0], warnings)
    legend = {match[1]: match[2] for line in lines if (match := _LEGEND.fullmatch(line))}
    verdict = _class_of(matrix, lines, warnings)
    devices, links = _graph(matrix, legend, verdict.topology_class, warnings)
    # The affinity columns name processors; a path may lead to one that they do not name.
    cpu_count: int | None = sum(device.kind is DeviceKind.CPU for device in devices)
    crossing = sorted({"SYS", "SOC"} & set(matrix.labels.values()))
    if cpu_count == 1 and crossing:
        text = f"how many processors there are: {crossing[0]} leads to one that no GPU's affinity names"
        warnings.append(SourceWarning("not_visible", text, matrix.table.line))
        cpu_count = None
    nvswitch, counts = verdict.nvswitch, matrix.nvlinks.values()
    if nvswitch is None and 0 < max(counts, default=0) < FEWEST_TO_SWITCHES:
        nvswitch = False
    return Topology(
        name="",
        devices=devices,
        links=links,
        topology_class=verdict.topology_class,
        source=f"{SOURCE} -m",
        warnings=tuple(warnings),
        facts={
            "nvlinks_per_gpu": matrix.nvlinks_per_gpu(verdict.topology_class),
            "nvswitch_count": 0 if nvswitch is False else None,
            **(_status_facts(statuses[0], lines) if statuses else {}),
            "cpu_count": cpu_count or None,
            # The graph loses words (PXB, NODE): the printed ones stand beside it, and all of them.
            "paths": "as printed",
        },
        matrix={
            (matrix.names[row], matrix.names[column]): label
            for (row, column), label in matrix.labels.items()
            if row in matrix.names and column in matrix.names
        },
    )


def _class_of(matrix: Matrix, lines: list[str], warnings: list[SourceWarning]) -> ClassVerdict:
    """The class; unknown where a cut matrix leaves pairs open that could change it.

    Without any NVLink among the rows that are there, each GPU seen in at least one of them, it is pcie:
    boards and bridges link every GPU of a machine.
    """
    affinities, labels, gpu_count = (
        matrix.table.affinities,
        matrix.between_gpus,
        len(matrix.gpus),
    )
    # The oldest headings, and those that say SOC, come from drivers before NUMA Affinity was printed (2020).
    old = (bool(affinities) and set(affinities) <= {CPU, GPU_NUMA}) or "SOC" in labels.values()
    verdict = class_of_counts(matrix.nvlinks, gpu_count, before_2020=old)
    if verdict.topology_class is not TopologyClass.NVSWITCH:
        open_rows = gpu_count > len({row for row, _ in labels})
        cut = len(labels) < gpu_count * (gpu_count - 1)
        if cut and (open_rows or not labels or matrix.nvlinks):
            verdict = ClassVerdict(
                TopologyClass.UNKNOWN, "the matrix is cut: not every pair of GPUs was printed"
            )
        if any(
            not labels_of(label) and not labels_of(labels[pair[::-1]])
            for pair, label in labels.items()
        ):
            verdict = ClassVerdict(
                TopologyClass.UNKNOWN, "a path between GPUs has a word that is not known"
            )
    # A legend of the drivers that know NVLink leaves NV# out with -mp.
    words = {line.split("=")[0].strip() for line in lines if "=" in line}
    text = ""
    if verdict.topology_class is TopologyClass.UNKNOWN or not verdict.certain:
        text = f"the class of the machine: {verdict.reason}"
    elif (
        verdict.topology_class is TopologyClass.PCIE
        and {"NODE", "PIX"} <= words
        and "NV#" not in words
    ):
        text = "the legend has no NV#: 'topo -mp' hides NVLinks, so the machine may have some"
    if text:
        warnings.append(SourceWarning("not_visible", text, matrix.table.line))
    return verdict


def _cpus(matrix: Matrix) -> tuple[dict[str, str], dict[str, Device]]:
    """GPU or NIC name -> CPU device name, and the CPU devices: one for each NUMA node with a GPU.

    Where the output has no NUMA node, GPUs with the same CPU list share a CPU whose number is not a node's.
    """
    numbered: dict[str, int] = {}
    for gpu in matrix.gpus:
        cells = matrix.cells.get(gpu, {})
        named = ranges(cells.get(NUMA) or "")
        # On Grace the cell lists the CPU's node first, then the empty nodes of its GPUs' memory; elsewhere
        # each of several nodes may have the cores.
        own_memory = (cells.get(GPU_NUMA) or "").isdigit()
        if named and (own_memory or (len(named) == 1 and named[0][0] == named[0][1])):
            numbered[gpu] = named[0][0]
    cpu_of: dict[str, str] = {}
    cpus: dict[str, Device] = {}
    by_list: dict[str, str] = {}
    for gpu in matrix.gpus:
        cores = matrix.cells.get(gpu, {}).get(CPU)
        if gpu in numbered:
            name = f"cpu{numbered[gpu]}"
        elif not numbered and cores and ranges(cores):
            name = by_list.setdefault(cores, f"cpu{len(by_list)}")
        else:
            continue
        cpu_of[gpu] = name
        cpus.setdefault(name, Device(name, DeviceKind.CPU, numa_node=numbered.get(gpu)))
    # A NIC is placed by the first GPU that it shares a node with.
    for nic in matrix.nics:
        for gpu in matrix.gpus:
            if matrix.labels.get((gpu, nic)) in ("PIX", "PXB", "PHB", "NODE") and gpu in cpu_of:
                cpu_of[nic] = cpu_of[gpu]
                break
    return cpu_of, cpus


def _graph(
    matrix: Matrix,
    legend: Mapping[str, str],
    topology_class: TopologyClass,
    warnings: list[SourceWarning],
) -> tuple[tuple[Device, ...], tuple[Link, ...]]:
    """The devices (GPUs, NICs, NUMA nodes, switches) and the links between them, both directions."""
    cpu_of, cpus = _cpus(matrix)
    nodes = {name: cpus[cpu].numa_node for name, cpu in cpu_of.items()}
    # Devices under a common PCIe switch. Two functions of one card are PIX to each other as well; without a
    # GPU they tell of no switch.
    order = list(matrix.names)
    near = peers_of(
        order, [pair for pair, label in matrix.labels.items() if label in ("PIX", "PXB")]
    )
    switches = [
        sorted(group, key=order.index)
        for group in connected_groups(near)
        if len(group) > 1 and group & set(matrix.gpus)
    ]

    def as_printed(name: str, kind: DeviceKind) -> Device:
        stated = {"name": legend.get(name, name)}
        return Device(matrix.names[name], kind, numa_node=nodes.get(name), attributes=stated)

    devices = [as_printed(name, DeviceKind.GPU) for name in matrix.gpus]
    devices += cpus.values()
    if topology_class is TopologyClass.NVSWITCH:
        devices.append(Device("nvswitch0", DeviceKind.NVSWITCH))
    devices += [
        Device(f"pcie{index}", DeviceKind.PCIE_SWITCH) for index in range(len(switches))
    ]
    devices += [as_printed(name, DeviceKind.NIC) for name in matrix.nics]
    lost = [nic for nic in matrix.nics if nic not in cpu_of]
    if lost and cpus:
        text = f"the NUMA node of {', '.join(lost[:8])}: no GPU is nearer to them than SYS"
        warnings.append(SourceWarning("not_visible", text, matrix.table.line))

    nvlinks: list[Link] = []
    if topology_class is TopologyClass.NVSWITCH:
        for gpu, count in enumerate(matrix.nvlinks_per_gpu(topology_class) or ()):
            link = _link(f"gpu{gpu}", "nvswitch0", LinkKind.NVLINK, count or 0)
            nvlinks += link.both_ways() if count else ()
    else:
        # With the class open these are paths of that many links, with or without switches on the way.
        for (gpu, peer), count in sorted(matrix.nvlinks.items()):
            nvlinks.append(_link(f"gpu{gpu}", f"gpu{peer}", LinkKind.NVLINK, count))
    return tuple(devices), (*nvlinks, *_tree(matrix, switches, cpu_of))


def _tree(matrix: Matrix, switches: list[list[str]], cpu_of: Mapping[str, str]) -> list[Link]:
    """PCIe below the CPUs, and links between each pair of CPUs that have GPUs."""
    links: list[Link] = []
    below = {name for group in switches for name in group}
    for index, group in enumerate(switches):
        links += [_link(matrix.names[name], f"pcie{index}", LinkKind.PCIE) for name in group]
        root = next((cpu_of[name] for name in group if name in cpu_of), None)
        links += [_link(f"pcie{index}", root, LinkKind.PCIE)] if root is not None else []
    links += [
        _link(matrix.names[name], cpu, LinkKind.PCIE)
        for name, cpu in cpu_of.items()
        if name not in below
    ]
    cpus = list(dict.fromkeys(cpu_of[gpu] for gpu in matrix.gpus if gpu in cpu_of))
    for position, upper in enumerate(cpus):
        links += [_link(earlier, upper, LinkKind.INTER_SOCKET) for earlier in cpus[:position]]
    return [way for link in links for way in link.both_ways()]


def _link(source: str, target: str, kind: LinkKind, count: int = 1) -> Link:
    """A link whose origin says nothing of rates, so that it stays true where people add them to a file."""
    return Link(source, target, kind, count=count, origin=f"{SOURCE} -m")
