"""Reads ``amd-smi topology`` (access, weights, hops, link types, bandwidths), as text or with ``--json``.

GPUs are named by their PCI address (ROCm 6.1 and later; AMD SMI's CHANGELOG.md shows both forms). What the
tables mean is as with rocm-smi: a weight is 15 per xGMI hop, and hops is 1 for every xGMI path.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from ccbench.findings import SourceWarning
from ccbench.readers.lines import plain_lines, searches
from ccbench.readers.machines.rocm_smi import RocmTable, json_of, read_table, topology_of
from ccbench.topology.graph import Topology
from ccbench.topology.pci import normal_address

COMMAND = "amd-smi topology"

_ADDRESS = re.compile(r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]")
_TITLE = re.compile(r"\s*([A-Z][A-Z -]{2,40}) TABLE:\s*")
_SIGN = re.compile(
    r"^[ \t]*(?:ACCESS|WEIGHT|HOPS|LINK TYPE|NUMA BW) TABLE:[ \t]*\r?$"
    r'|"links": ?\[[^\]]{0,400}"(?:link_type|num_hops|link_status)"',
    re.MULTILINE,
)
_FIELDS = {
    "weight": "weights",
    "link_type": "link_types",
}
_MOST_GPUS = 256
"""GPUs of a JSON list; more is damage."""


recognises = searches(_SIGN)


def read(text: str) -> Topology:
    """Return the GPUs with their PCI addresses, and the xGMI links between them.

    Raises MachineError when no table can be read.
    """
    warnings: list[SourceWarning] = []
    is_json = text.lstrip().startswith("[")
    sections = _from_json(text) if is_json else {}
    bodies: dict[str, list[tuple[int, str]]] = {}
    current = ""
    for number, line in enumerate([] if is_json else plain_lines(text), start=1):
        title = _TITLE.fullmatch(line[:100])
        if title:
            current = _FIELDS.get(title[1].lower().replace(" ", "_"), "")
        elif current:
            bodies.setdefault(current, []).append((number, line))
    for name, body in bodies.items():
        if (table := read_table(body, _ADDRESS, warnings)) is not None:
            sections[name] = table
    topology = topology_of(sections, {}, warnings, COMMAND)
    return dataclasses.replace(
        topology,
        devices=tuple(
            dataclasses.replace(
                device,
                bus_id=normal_address(str(device.attributes["name"])),
                attributes={"name": f"GPU{index}"},
            )
            for index, device in enumerate(topology.devices)
        ),
    )


def _from_json(text: str) -> dict[str, RocmTable]:
    gpus = [gpu for gpu in json_of(text, COMMAND) if isinstance(gpu, dict)][:_MOST_GPUS]
    columns = list(dict.fromkeys(str(gpu.get("bdf"))[:20] for gpu in gpus))
    tables: dict[str, RocmTable] = {}
    for gpu in gpus:
        listed = gpu.get("links")
        links: list[Any] = listed if isinstance(listed, list) else []
        # Links are found by the address they lead to: their order is not that of the GPUs.
        by_address = {str(link.get("bdf")): link for link in links if isinstance(link, dict)}
        for field, name in _FIELDS.items():
            labels = [
                str(by_address.get(column, {}).get(field, "?"))[:40] for column in columns
            ]
            if set(labels) != {"?"}:
                table = tables.setdefault(name, RocmTable(columns, 1))
                table.rows[str(gpu.get("bdf"))[:20]] = labels
    return tables
