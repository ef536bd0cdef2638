"""A topology as people read it on a screen: a line that says what it is, a matrix, links, what is wrong."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from ccbench.cli.topo_channels import channel_lines, network_line
from ccbench.topology.graph import Device, DeviceKind, Finding, Topology
from ccbench.topology.matrix import BY_A_PEER, DOWN, NO_PATH, NOT_VISIBLE, UNCOUNTED, path_labels
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

MOST_NOTICES = 12
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
    """Everything ``ccbench topo`` prints."""
    parts = [
        _head(topology),
        _matrix(topology),
        _links(topology),
        (plain(line, 400) for line in channel_lines(topology.facts)),
        _findings(findings),
        _notices(topology),
    ]
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
        elif count is None and topology.of_kind(kind):
            counted.append(f"{plural(len(topology.of_kind(kind)), word)} named")
    nodes = node_count(topology)
    if nodes > 1:
        counted.insert(0, f"{nodes} machines")
    if counted:
        yield ", ".join(counted)
    elif network_line(topology.facts):
        yield plain(network_line(topology.facts), 400)
    models = {str(gpu.attributes["model"]): None for gpu in topology.gpus if gpu.attributes.get("model")}
    if models:
        yield "GPUs: " + ", ".join(plain(model) for model in list(models)[:4])
    counts = {"NVLinks": nvlinks_per_gpu(topology) or ()}
    counts |= {f"{_LINK_WORDS[kind]} links": per_gpu for kind, per_gpu in links_per_gpu(topology).items()}
    for word, per_gpu in counts.items():
        if any(per_gpu):
            shown = ["?" if number is None else str(number) for number in per_gpu]
            yield f"{word} per GPU: " + (shown[0] if len(set(shown)) == 1 else " ".join(shown[:64]))
    yield from _shares(topology)


def _shares(topology: Topology) -> Iterator[str]:
    shares = usable_shares(topology) or {}
    known = {size: "all" if share == "1" else share for size, share in shares.items() if share is not None}
    if known and len(known) == len(shares) and set(known.values()) == {"all"}:
        yield "a group of any size uses all of a GPU's links"
    elif known:
        yield f"groups of {', '.join(known)} GPUs use {', '.join(known.values())} of a GPU's links"
    apart = [size for size, share in shares.items() if share is None]
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
    labels = {pair: plain(label, LONGEST_CELL) for pair, label in path_labels(topology, rows).items()}
    heads = [plain(device.name.rpartition(".")[2], LONGEST_CELL) for device in rows]
    width = max(4, *(len(label) for label in labels.values()), *map(len, heads)) + 2
    left = max(map(len, heads)) + 2
    placed = any(device.numa_node is not None for device in rows)
    about = "about" if any(_about(device) for device in rows) else ""
    title = f"NUMA  {about}" if placed else about
    yield (f"{'':{left}}" + "".join(f"{head:{width}}" for head in heads) + title).rstrip()
    for head, device in zip(heads, rows, strict=True):
        cells = "".join(f"{labels[(device.name, other.name)]:{width}}" for other in rows)
        node = "?" if device.numa_node is None else str(device.numa_node)
        yield f"{head:{left}}{cells}{f'{node:4}  ' if placed else ''}{_about(device)}".rstrip()
    used = [_meaning(topology, label) for label in _LEGEND if label in labels.values()]
    if used:
        yield "; ".join(used)


def _meaning(topology: Topology, label: str) -> str:
    """What a label stands for; a description of our own may leave out what no source hides."""
    omits = topology.facts.get("omits", "nothing")
    if label == NOT_VISIBLE and omits != "nothing":
        return f"? not known: the description leaves out {plain(omits, 200)}"
    return _LEGEND[label]


def _about(device: Device) -> str:
    words: list[Any] = [device.attributes.get("name"), device.bus_id]
    if device.kind is DeviceKind.NIC:
        rate = device.attributes.get("bytes_per_second")
        words.append(f"{rate * 8 / 1e9:g} Gb/s" if isinstance(rate, (int, float)) else None)
        words.append("down" if device.attributes.get("up") is False else None)
    return " ".join(plain(word) for word in words if word)


def _links(topology: Topology) -> Iterator[str]:
    rows = []
    for group in link_groups(topology):
        rate = group["bytes_per_second"]
        shown = format_rate(rate) if rate is not None and group["state"] != "down" else "rate unknown"
        if group["state"] != "up":
            shown = group["state"].replace("_", " ")
        times = "" if group["count"] is None else f" x {plural(group['count'], 'link')}"
        ends = f"{group['from']} {'-' if group['both_ways'] else '->'} {group['to']}".replace("_", " ")
        pairs = plural(group["pairs"], "pair") + times
        rows.append((ends, group["kind"].replace("_", " "), shown, pairs, group["origin"]))
    for ends, kind, rate, pairs, origin in rows[:MOST_ROWS]:
        yield f"  {ends:26} {kind:13} {rate:14} {pairs:20} {plain(origin)}".rstrip()
    if len(rows) > MOST_ROWS:
        yield f"  and {len(rows) - MOST_ROWS} more kinds of links"


def _findings(findings: Sequence[Finding]) -> Iterator[str]:
    for finding in findings:
        mark = "PROBLEM" if finding.severity == "problem" else "note   "
        yield from _hanging(f"{mark}  {finding.kind}: {plain(finding.evidence, 400)}", 9)
        yield from _hanging(f"{'':9}-> {plain(finding.advice, 400)}", 12)


def _notices(topology: Topology) -> Iterator[str]:
    for notice in topology.notices[:MOST_NOTICES]:
        line = f"line {notice.line}: " if notice.line else ""
        kind = notice.kind.replace("_", " ")
        yield from _hanging(f"source   {kind}: {line}{plain(notice.text, 400)}", 9)
    if len(topology.notices) > MOST_NOTICES:
        yield f"         and {len(topology.notices) - MOST_NOTICES} more; --json lists them"


def _hanging(text: str, indent: int) -> list[str]:
    return textwrap.wrap(text, WIDTH, subsequent_indent=" " * indent, drop_whitespace=True)
