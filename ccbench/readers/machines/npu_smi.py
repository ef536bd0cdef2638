"""Reads ``npu-smi info -t topo`` of Ascend NPUs: HCCS, SIO, HCCS_SW and PCIe paths.

Rates are not printed. Labels (npu-smi's own legend): HCCS is the direct link between NPUs, SIO joins the two
dies of one package, HCCS_SW is HCCS through a switch; PIX, PXB, PHB and SYS are PCIe as with nvidia-smi.
"""

from __future__ import annotations

import re

from ccbench.errors import MachineError
from ccbench.findings import SourceWarning
from ccbench.readers.lines import plain_lines, searches
from ccbench.readers.machines.rocm_smi import read_table
from ccbench.topology.graph import Device, DeviceKind, Link, LinkKind, Topology, TopologyClass

_NAME = re.compile(r"NPU\d{1,4}|Phy-ID\d{1,4}")
_SIGN = re.compile(r"(?m)^[ \t]{0,40}NPU\d{1,4}[ \t]{1,20}(?:NPU\d{1,4}|CPU[ \t]|X[ \t])")
_DIRECT = frozenset({"HCCS", "SIO"})
_PCI = frozenset({"PIX", "PXB", "PHB", "NODE", "SYS"})
_KNOWN = _DIRECT | _PCI | {"X", "HCCS_SW", "NA", "N/A"}


recognises = searches(_SIGN)


def read(text: str) -> Topology:
    """Return the NPUs of the table and the HCCS and SIO links between them.

    Raises MachineError when there is no heading with NPUs.
    """
    warnings: list[SourceWarning] = []
    table = read_table(list(enumerate(plain_lines(text), start=1)), _NAME, warnings)
    if table is None or not table.rows:
        raise MachineError(
            "npu-smi topo: no table of NPUs found; expected a heading NPU0 NPU1 ... and a row for each; "
            "give the whole output of 'npu-smi info -t topo'"
        )
    table.note_asymmetry(warnings)
    # NPUs are numbered by their place in the heading: numbers of chips may have gaps.
    names = {column: f"gpu{index}" for index, column in enumerate(table.columns)}
    labels = {
        (names[row], names[column]): label for (row, column), label in table.labels().items()
    }
    unknown = sorted(set(labels.values()) - _KNOWN)
    if unknown:
        listed = f"labels that are not known: {', '.join(unknown[:8])[:200]}"
        warnings.append(SourceWarning("unknown_spelling", listed, table.line))
    # HCCS_SW is a switch, and HCCS between some only is several meshes: neither has a class.
    topology_class, words = TopologyClass.UNKNOWN, set(labels.values())
    if len(table.columns) == 1:
        topology_class = TopologyClass.SINGLE_GPU
    elif table.is_whole and words <= _DIRECT and "HCCS" in words:
        topology_class = TopologyClass.HCCS_FULL_MESH
    elif table.is_whole and words <= _PCI:
        topology_class = TopologyClass.PCIE
    links = [
        Link(
            *pair,
            LinkKind.HCCS,
            origin=f"npu-smi topo: {label}",
            attributes={"count_known": False},
        )
        for pair, label in labels.items()
        if label in _DIRECT
    ]
    return Topology(
        name="npu-smi topo",
        devices=tuple(
            Device(name, DeviceKind.GPU, attributes={"name": column})
            for column, name in names.items()
        ),
        links=tuple(links),
        topology_class=topology_class,
        source="npu_smi",
        warnings=tuple(warnings),
        facts={"nic_count": None, "cpu_count": None, "nvlinks_per_gpu": [0] * len(names)},
        matrix=labels,
    )
