"""A topology as the JSON that ``ccbench topo --json`` prints: stable keys, plain values.

======================= ==========================================================================
class                   one of TopologyClass
gpu_count ...           also nic_count, cpu_count, nvswitch_count; null where the source does not say
gpu_matrix              rows of labels between GPUs; null above MOST_MATRIX GPUs
nvlinks_per_gpu         NVLinks that are up, by GPU; null where the source does not say
links                   one entry per kind, kinds of ends, rate and state; ``links`` says how many there are
                        of them, each of ``count`` physical ones that make ``bytes_per_second`` together
findings                severity, kind, devices, evidence, advice
notices                 kind, text, line
name, source, nodes     what it is called, where it comes from, how many machines it is
facts                   whatever else the source says
======================= ==========================================================================

Of a cluster too large for a graph the first machines stand for all (fact ``machines``, a notice says so):
counts and links are those of the whole cluster, gpu_matrix and nvlinks_per_gpu are null.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ccbench.topology.graph import DeviceKind, Finding, LinkKind, LinkState, Topology
from ccbench.topology.matrix import path_labels

MOST_MATRIX = 64
"""GPUs up to which every pair is listed."""

_ALREADY = frozenset(
    {"gpu_count", "nic_count", "cpu_count", "nvswitch_count", "gpu_matrix", "nvlinks_per_gpu"}
)


def summary(topology: Topology, findings: Sequence[Finding]) -> dict[str, Any]:
    """``topology`` and what was found about it, as documented above."""
    return {
        "name": topology.name,
        "source": topology.source,
        "class": topology.topology_class.value,
        "nodes": node_count(topology),
        **{f"{word}_count": device_count(topology, kind) for word, kind in _COUNTED.items()},
        "gpu_matrix": gpu_matrix(topology) if is_whole(topology) else None,
        "nvlinks_per_gpu": nvlinks_per_gpu(topology) if is_whole(topology) else None,
        "links": link_groups(topology),
        "findings": [{**asdict(finding), "devices": list(finding.devices)} for finding in findings],
        "notices": [asdict(notice) for notice in topology.notices],
        "facts": {name: value for name, value in topology.facts.items() if name not in _ALREADY},
    }


_COUNTED = {
    "gpu": DeviceKind.GPU,
    "nic": DeviceKind.NIC,
    "cpu": DeviceKind.CPU,
    "nvswitch": DeviceKind.NVSWITCH,
}


def node_count(topology: Topology) -> int:
    """Machines it is made of; the fact ``machines`` says so where only some of them are in the graph."""
    stated = topology.facts.get("machines")
    if isinstance(stated, int) and stated > 0:
        return stated
    return _nodes_in_graph(topology)


def is_whole(topology: Topology) -> bool:
    """Whether every machine is in the graph."""
    return node_count(topology) == _nodes_in_graph(topology) or node_count(topology) <= 1


def _of_all(topology: Topology, number: int) -> int:
    """What is ``number`` times in the graph, in the whole cluster of equal machines."""
    return number * node_count(topology) // max(_nodes_in_graph(topology), 1)


def _nodes_in_graph(topology: Topology) -> int:
    return len({device.node for device in topology.devices if device.node >= 0})


def device_count(topology: Topology, kind: DeviceKind) -> int | None:
    """What the source says, else how many are in the graph; None where the source says it does not know."""
    word = next((word for word, one in _COUNTED.items() if one is kind), kind.value)
    if node_count(topology) <= 1 and f"{word}_count" in topology.facts:
        stated = topology.facts[f"{word}_count"]
        return stated if isinstance(stated, int) else None
    inside = [device for device in topology.of_kind(kind) if device.node >= 0]
    outside = len(topology.of_kind(kind)) - len(inside)
    return _of_all(topology, len(inside)) + outside


def gpu_matrix(topology: Topology) -> list[list[str]] | None:
    """Labels between the GPUs: as printed where the source printed them, else worked out from the links."""
    gpus = topology.gpus
    stated = topology.facts.get("gpu_matrix")
    if len(gpus) > MOST_MATRIX or not gpus:
        return None
    if isinstance(stated, list) and len(stated) == len(gpus) and all(isinstance(row, list) for row in stated):
        return [[str(label) for label in row] for row in stated]
    labels = path_labels(topology, gpus)
    return [[labels[(one.name, other.name)] for other in gpus] for one in gpus]


def nvlinks_per_gpu(topology: Topology) -> list[int] | None:
    """NVLinks that carry data, by GPU."""
    stated = topology.facts.get("nvlinks_per_gpu")
    if isinstance(stated, list) and len(stated) == len(topology.gpus):
        return stated
    counts: Counter[str] = Counter()
    for link in topology.links:
        if link.kind is LinkKind.NVLINK and link.state is LinkState.UP:
            counts[link.source] += link.count
    return [counts[gpu.name] for gpu in topology.gpus] if counts else None


def link_groups(topology: Topology) -> list[dict[str, Any]]:
    """Links that are alike, together, of all machines: thousands of a cluster are a handful of kinds."""
    kinds = {device.name: device.kind.value for device in topology.devices}
    groups: Counter[tuple[Any, ...]] = Counter()
    whole = is_whole(topology)
    for link in topology.links:
        ends = (kinds.get(link.source, "?"), kinds.get(link.target, "?"))
        numbers = (link.count, link.bytes_per_second, link.latency_seconds)
        key = (link.kind.value, *ends, *numbers, link.state.value, link.origin)
        groups[key] += 1
    names = ("kind", "from", "to", "count", "bytes_per_second", "latency_seconds", "state", "origin")
    return [
        {**dict(zip(names, key, strict=True)), "links": number if whole else _of_all(topology, number)}
        for key, number in groups.items()
    ]
