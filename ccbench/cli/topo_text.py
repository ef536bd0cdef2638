"""A topology as people read it on a screen: a line that says what it is, a matrix, links, what is wrong."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from ccbench.report.text import plain, plural
from ccbench.topology.graph import Device, DeviceKind, Finding, Topology
from ccbench.topology.matrix import path_labels
from ccbench.topology.summary import device_count, link_groups, node_count, nvlinks_per_gpu
from ccbench.units import format_rate

MOST_ROWS = 40
"""GPUs and NICs up to which the matrix is printed; more has no room on a screen."""

MOST_NOTICES = 12
WIDTH = 100
_WORDS = {
    DeviceKind.GPU: "GPU",
    DeviceKind.NIC: "NIC",
    DeviceKind.CPU: "processor",
    DeviceKind.NVSWITCH: "NVSwitch",
    DeviceKind.PCIE_SWITCH: "PCIe switch",
    DeviceKind.NETWORK_SWITCH: "network switch",
}


def as_text(topology: Topology, findings: Sequence[Finding]) -> str:
    """Everything ``ccbench topo`` prints."""
    parts = [_head(topology), _matrix(topology), _links(topology), _findings(findings), _notices(topology)]
    return "\n\n".join("\n".join(part) for part in (list(lines) for lines in parts) if part)


def _head(topology: Topology) -> Iterator[str]:
    origin = f" ({plain(topology.source)})" if topology.source and topology.source != topology.name else ""
    yield f"{plain(topology.name)}{origin}: {topology.topology_class.value}"
    counted = []
    for kind, word in _WORDS.items():
        count = device_count(topology, kind)
        if count:
            ending = "es" if word.endswith("ch") else "s"
            counted.append(f"{count} {word}" + ("" if count == 1 else ending))
    nodes = node_count(topology)
    if nodes > 1:
        counted.insert(0, f"{nodes} machines")
    if counted:
        yield ", ".join(counted)
    models = {str(gpu.attributes["model"]): None for gpu in topology.gpus if gpu.attributes.get("model")}
    if models:
        yield "GPUs: " + ", ".join(plain(model) for model in list(models)[:4])
    per_gpu = nvlinks_per_gpu(topology)
    if per_gpu and any(per_gpu):
        numbers = sorted(set(per_gpu))
        yield "NVLinks per GPU: " + (
            str(numbers[0]) if len(numbers) == 1 else " ".join(map(str, per_gpu[:64]))
        )


def _matrix(topology: Topology) -> Iterator[str]:
    gpus, nics = topology.gpus, topology.of_kind(DeviceKind.NIC)
    if node_count(topology) > 1:
        # The machines of a cluster are alike or too many; the first one stands for them.
        first = min(device.node for device in gpus or nics) if gpus or nics else 0
        gpus = tuple(device for device in gpus if device.node == first)
        nics = tuple(device for device in nics if device.node == first)
        yield "the first machine:"
    rows = (*gpus, *nics)
    if len(rows) > MOST_ROWS:
        if len(gpus) > MOST_ROWS:
            yield f"no matrix of {len(gpus)} GPUs: --json lists their links by kind, --draw draws them"
            return
        rows = gpus
    if not rows:
        return
    labels = path_labels(topology, rows)
    heads = [device.name.rpartition(".")[2] for device in rows]
    width = max(4, *(len(label) for label in labels.values()), *map(len, heads)) + 2
    left = max(map(len, heads)) + 2
    placed = any(device.numa_node is not None for device in rows)
    title = "NUMA  about" if placed else ""
    yield (f"{'':{left}}" + "".join(f"{head:{width}}" for head in heads) + title).rstrip()
    for head, device in zip(heads, rows, strict=True):
        cells = "".join(f"{labels[(device.name, other.name)]:{width}}" for other in rows)
        node = "?" if device.numa_node is None else str(device.numa_node)
        yield f"{head:{left}}{cells}{f'{node:4}  ' if placed else ''}{_about(device)}".rstrip()


def _about(device: Device) -> str:
    words: list[Any] = [device.attributes.get("name"), device.bus_id]
    if device.kind is DeviceKind.NIC:
        rate = device.attributes.get("bytes_per_second")
        words.append(f"{rate * 8 / 1e9:g} Gb/s" if isinstance(rate, (int, float)) else None)
        words.append("down" if device.attributes.get("up") is False else None)
    return " ".join(plain(word) for word in words if word)


def _links(topology: Topology) -> Iterator[str]:
    rows = []
    told = set[tuple[object, ...]]()
    for group in link_groups(topology):
        # Links are given in both directions; where both are alike one line says it.
        same = tuple(value for name, value in group.items() if name not in ("from", "to"))
        if group["from"] != group["to"] and (group["to"], group["from"], *same) in told:
            continue
        told.add((group["from"], group["to"], *same))
        rate = group["bytes_per_second"]
        shown = format_rate(rate) if rate is not None and group["state"] != "down" else "rate unknown"
        if group["state"] != "up":
            shown = group["state"].replace("_", " ")
        times = f" (x{group['count']})" if group["count"] > 1 else ""
        ends = f"{group['from']} - {group['to']}".replace("_", " ")
        rows.append((ends, group["kind"].replace("_", " "), shown + times, group["links"], group["origin"]))
    for ends, kind, rate, links, origin in rows[:MOST_ROWS]:
        yield f"  {ends:26} {kind:13} {rate:20} {plural(links, 'link'):10} {plain(origin)}".rstrip()
    if len(rows) > MOST_ROWS:
        yield f"  and {len(rows) - MOST_ROWS} more kinds of links"


def _findings(findings: Sequence[Finding]) -> Iterator[str]:
    for finding in findings:
        mark = "PROBLEM" if finding.severity == "problem" else "note   "
        yield from _hanging(f"{mark}  {finding.kind}: {finding.evidence}", 9)
        yield from _hanging(f"{'':9}-> {finding.advice}", 12)


def _notices(topology: Topology) -> Iterator[str]:
    for notice in topology.notices[:MOST_NOTICES]:
        line = f"line {notice.line}: " if notice.line else ""
        kind = notice.kind.replace("_", " ")
        yield from _hanging(f"source   {kind}: {line}{plain(notice.text, 400)}", 9)
    if len(topology.notices) > MOST_NOTICES:
        yield f"         and {len(topology.notices) - MOST_NOTICES} more; --json lists them"


def _hanging(text: str, indent: int) -> list[str]:
    return textwrap.wrap(text, WIDTH, subsequent_indent=" " * indent, drop_whitespace=True)
