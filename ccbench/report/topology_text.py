"""A topology as people read it on a screen: a line that says what it is, a matrix, links, what is wrong."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ccbench.findings import Finding
from ccbench.report.present import Table, aligned, beyond, columns
from ccbench.topology.graph import DeviceKind, Topology, TopologyClass
from ccbench.topology.matrix import (
    BY_A_PEER,
    DOWN,
    NO_PATH,
    NOT_VISIBLE,
    UNCOUNTED,
    path_labels,
)
from ccbench.topology.summary import (
    device_count,
    link_groups,
    links_per_gpu,
    node_count,
    nvlinks_per_gpu,
    usable_shares,
)
from ccbench.units import format_rate, plain, plural

MOST_ROWS = 40
"""GPUs and NICs up to which the matrix is printed; more has no room on a screen."""

MOST_LINES = 8
"""Different rings that are printed."""

MOST_RANKS = 32
"""Ranks of one ring that are printed."""

MOST_WARNINGS = 12
LONGEST_CELL = 16
WIDTH = 100
_LINK_WORDS = {"xgmi": "xGMI", "hccs": "HCCS"}
_LEGEND = {
    NOT_VISIBLE: "? not shown by the source",
    NO_PATH: "- no path",
    DOWN: "down: only links that are down",
    UNCOUNTED: "NVL NVLinks, how many is not stated",
    BY_A_PEER: "PXN over direct links to the GPU of that NIC",
}
_WORDS = {
    DeviceKind.GPU: "GPU",
    DeviceKind.NIC: "NIC",
    DeviceKind.CPU: "processor",
    DeviceKind.NVSWITCH: "NVSwitch",
    DeviceKind.PCIE_SWITCH: "PCIe switch",
    DeviceKind.NETWORK_SWITCH: "network switch",
}


def as_text(topology: Topology, findings: Sequence[Finding]) -> str:
    """Lines that ``ccbench topo`` prints."""
    remarks = []
    for finding in findings:
        mark = "PROBLEM" if finding.severity == "problem" else "note   "
        remarks += _hanging(f"{mark}  {finding.kind}: {plain(finding.evidence, 400)}", 9)
        remarks += _hanging(f"{'':9}-> {plain(finding.advice, 400)}", 12)
    warnings = []
    for warning in topology.warnings[:MOST_WARNINGS]:
        line = f"line {warning.line}: " if warning.line else ""
        kind = warning.kind.replace("_", " ")
        warnings += _hanging(f"source   {kind}: {line}{plain(warning.text, 400)}", 9)
    warnings += beyond(
        topology.warnings, MOST_WARNINGS, "         and {} more; --json lists them"
    )
    parts = [
        _head(topology),
        _matrix(topology),
        _links(topology),
        (plain(line, 400) for line in ring_lines(topology.facts)),
        remarks,
        warnings,
    ]
    return "\n\n".join("\n".join(part) for part in (list(lines) for lines in parts) if part)


def _head(topology: Topology) -> Iterator[str]:
    origin = (
        f" ({plain(topology.source)})"
        if topology.source and topology.source != topology.name
        else ""
    )
    shape = str(topology.topology_class.value)
    if topology.topology_class is TopologyClass.UNKNOWN:
        shape = "how the GPUs are joined is unknown" if topology.gpus else "no GPU is visible"
    yield f"{plain(topology.name)}{origin}: {shape}"
    counted = []
    for kind, word in _WORDS.items():
        count = device_count(topology, kind)
        if count:
            counted.append(plural(count, word))
        elif count is None and topology.of_kind(kind):
            counted.append(f"{plural(len(topology.of_kind(kind)), word)} named")
    nodes = node_count(topology)
    if nodes > 1:
        counted.insert(0, f"{nodes} machines")
    if counted:
        yield ", ".join(counted)
    elif network_line(topology.facts):
        yield plain(network_line(topology.facts), 400)
    # Of a mixed machine a few models are enough to tell.
    if topology.models:
        yield "GPUs: " + ", ".join(map(plain, topology.models[:4]))
    counts = {"NVLinks": nvlinks_per_gpu(topology) or ()}
    counts |= {
        f"{_LINK_WORDS[kind]} links": per_gpu
        for kind, per_gpu in links_per_gpu(topology).items()
    }
    for word, per_gpu in counts.items():
        if any(per_gpu):
            numbers = ["?" if number is None else str(number) for number in per_gpu]
            alike = len(set(numbers)) == 1
            yield f"{word} per GPU: {' '.join(numbers[: 1 if alike else 64])}"
    # How much of its links a GPU uses in groups of each size.
    shares = usable_shares(topology) or {}
    shown = {size: "all" if share == "1" else share for size, share in shares.items() if share}
    apart = [size for size, share in shares.items() if share is None]
    if {*shares.values()} == {"1"}:
        yield "a group of any size uses all of a GPU's links"
    elif shown:
        yield f"groups of {', '.join(shown)} GPUs use {', '.join(shown.values())} of a GPU's links"
    if apart:
        yield f"groups of {', '.join(apart)} GPUs are not all joined by such links"


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
    labels = {
        pair: plain(label, LONGEST_CELL) for pair, label in path_labels(topology, rows).items()
    }
    heads = [plain(device.name.rpartition(".")[2], LONGEST_CELL) for device in rows]
    placed = any(device.numa_node is not None for device in rows)
    cells = []
    for head, device in zip(heads, rows, strict=True):
        words: list[Any] = [device.attributes.get("name"), device.bus_id]
        if device.kind is DeviceKind.NIC:
            rate = device.attributes.get("bytes_per_second")
            words.append(f"{rate * 8 / 1e9:g} Gb/s" if isinstance(rate, (int, float)) else None)
            words.append("down" if device.attributes.get("up") is False else None)
        numa = ["?" if device.numa_node is None else str(device.numa_node)] if placed else []
        links = [labels[device.name, row.name] for row in rows]
        cells.append([head, *links, *numa, " ".join(plain(word) for word in words if word)])
    about = "about" if any(row[-1] for row in cells) else ""
    titles = ("", *heads, *(["NUMA"] if placed else []), about)
    yield from aligned(Table(columns(*(f"<{title}" for title in titles)), cells))
    legend = dict(_LEGEND)
    omits = topology.facts.get("omits", "nothing")
    if omits != "nothing":
        # A description of our own may leave out what no source hides.
        legend[NOT_VISIBLE] = f"? not known: the description leaves out {plain(omits, 200)}"
    used = [meaning for label, meaning in legend.items() if label in labels.values()]
    if used:
        yield "; ".join(used)


def _links(topology: Topology) -> Iterator[str]:
    rows = []
    for group in link_groups(topology):
        arrow = "-" if group["both_ways"] else "->"
        state, rate = group["state"], group["bytes_per_second"]
        shown = "rate unknown" if rate is None else format_rate(rate)
        times = "" if group["count"] is None else f" x {plural(group['count'], 'link')}"
        cells = (
            f"{group['from']} {arrow} {group['to']}",
            group["kind"],
            shown if state == "up" else state,
            f"{plural(group['pairs'], 'pair')}{times}",
        )
        rows.append((*(cell.replace("_", " ") for cell in cells), plain(group["origin"])))
    if rows:
        table = Table(columns("<link", "<kind", "<rate", "<pairs", "<origin"), rows[:MOST_ROWS])
        yield from (f"  {line}" for line in aligned(table))
    yield from beyond(rows, MOST_ROWS, "  and {} more kinds of links")


def _hanging(text: str, indent: int) -> list[str]:
    return textwrap.wrap(text, WIDTH, subsequent_indent=" " * indent, drop_whitespace=True)


def ring_lines(facts: Mapping[str, Any]) -> Iterator[str]:
    """Rings of a topology's facts; those alike once, with how many there are."""
    rings = facts.get("rings")
    orders = rings.values() if isinstance(rings, dict) else ()
    alike = Counter(tuple(map(str, order)) for order in orders if isinstance(order, list))
    for order, times in list(alike.items())[:MOST_LINES]:
        shown = " ".join(order[:MOST_RANKS]) + (" ..." if len(order) > MOST_RANKS else "")
        yield f"ring: {shown}" + (f"  (x{times})" if times > 1 else "")
    yield from beyond(alike, MOST_LINES, "and {} more orders of this sort; --json lists them")


def network_line(facts: Mapping[str, Any]) -> str:
    """Ranks, machines and network devices that a log names without drawing the machine; may be empty."""
    parts = []
    for name, word in (("nranks", "rank"), ("nnodes", "machine")):
        if isinstance(facts.get(name), int):
            parts.append(plural(facts[name], word))
    devices = facts.get("net_devices")
    if isinstance(devices, list) and devices:
        listed = " ".join(map(str, devices[:16]))
        parts.append(f"{plural(len(devices), 'network device')} ({listed})")
    return ", ".join(parts)
