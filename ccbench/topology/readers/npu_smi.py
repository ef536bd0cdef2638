"""Reads ``npu-smi info -t topo`` of Ascend NPUs: HCCS, SIO, HCCS_SW and PCIe paths, and CPU affinity.

Rates are not printed. Labels (npu-smi's own legend): HCCS is the direct link between NPUs, SIO joins the two
dies of one package, HCCS_SW is HCCS through a switch; PIX, PXB, PHB and SYS are PCIe as with nvidia-smi.
"""

from __future__ import annotations

import re
from typing import Any

from ccbench.errors import MachineError
from ccbench.topology.graph import Device, DeviceKind, Link, LinkKind, Notice, Topology, TopologyClass
from ccbench.topology.readers.accelerator_tables import Table, read_table, symmetric
from ccbench.topology.text import plain

_NAME = re.compile(r"NPU\d{1,4}|Phy-ID\d{1,4}")
_SIGN = re.compile(r"(?m)^[ \t]{0,40}NPU\d{1,4}[ \t]{1,20}(?:NPU\d{1,4}|CPU[ \t]|X[ \t])")
_DIRECT = frozenset({"HCCS", "SIO"})
_PCI = frozenset({"PIX", "PXB", "PHB", "NODE", "SYS"})
_KNOWN = _DIRECT | _PCI | {"X", "HCCS_SW", "NA", "N/A"}


def recognises(text: str) -> bool:
    """Whether ``text`` has a table between NPUs."""
    return _SIGN.search(text) is not None


def read(text: str) -> Topology:
    """The NPUs of the table and the HCCS and SIO links between them.

    Raises MachineError when there is no heading with NPUs.
    """
    notices: list[Notice] = []
    lines = list(enumerate(plain(text).expandtabs().split("\n"), start=1))
    table = read_table(lines, _NAME, notices, self_label="X")
    if table is None or not table.rows:
        raise MachineError(
            "npu-smi topo: no table of NPUs found; expected a heading NPU0 NPU1 ... and a row for each; "
            "give the whole output of 'npu-smi info -t topo'"
        )
    symmetric(table, notices)
    names = {column: f"gpu{index}" for index, column in enumerate(table.columns)}
    unknown = sorted({label for _, _, label in table.pairs() if label not in _KNOWN})
    if unknown:
        notices.append(
            Notice(
                "unknown_spelling", f"labels that are not known: {', '.join(unknown[:8])[:200]}", table.line
            )
        )
    topology_class = _class(table)
    return Topology(
        name="npu-smi topo",
        devices=tuple(_device(table, column, name) for column, name in names.items()),
        links=tuple(
            Link(
                names[row],
                names[column],
                LinkKind.HCCS,
                origin=f"npu-smi topo: {label}",
                attributes={"label": label, "count_known": False},
            )
            for row, column, label in table.pairs()
            if label in _DIRECT
        ),
        topology_class=topology_class,
        source="npu_smi",
        notices=tuple(notices),
        facts=_facts(table, topology_class),
        matrix={(names[row], names[column]): label for row, column, label in table.pairs()},
    )


def _device(table: Table, column: str, name: str) -> Device:
    affinity = _affinity(table, column)
    attributes = {"name": column, **({"cpu_affinity": affinity} if affinity else {})}
    return Device(name, DeviceKind.GPU, attributes=attributes)


def _affinity(table: Table, row: str) -> str | None:
    """The cores printed behind a row, without what else may stand there."""
    found = re.match(r"[\d,\-]{1,2000}", table.rest.get(row, ""))
    return found[0] if found else None


def _class(table: Table) -> TopologyClass:
    if len(table.columns) == 1:
        return TopologyClass.SINGLE_GPU
    labels = {label for _, _, label in table.pairs()}
    cells = sum(1 for _ in table.pairs())
    complete = cells == len(table.columns) * (len(table.columns) - 1)
    if not complete or not labels <= _KNOWN:
        return TopologyClass.UNKNOWN
    if labels <= _DIRECT and "HCCS" in labels:
        return TopologyClass.HCCS_FULL_MESH
    # HCCS_SW is a switch, and HCCS between some only is several meshes: neither has a class.
    return TopologyClass.PCIE if labels <= _PCI else TopologyClass.UNKNOWN


def _facts(table: Table, topology_class: TopologyClass) -> dict[str, Any]:
    hccs = [sum(label == "HCCS" for label in table.rows.get(row, [])) for row in table.columns]
    return {
        "gpu_count": len(table.columns),
        "nic_count": None,
        "cpu_count": None,
        "nvswitch_count": 0,
        "nvlinks_per_gpu": [0] * len(table.columns),
        "gpu_matrix": [table.rows.get(row) for row in table.columns],
        "matrix": {row: " ".join(cells) for row, cells in table.rows.items()},
        "cpu_affinity": {row: _affinity(table, row) for row in table.rows if _affinity(table, row)},
        "hccs_links_per_npu": hccs,
        "nvswitch": False,
    }
