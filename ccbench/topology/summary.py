"""A topology as the JSON that ``ccbench topo --json`` prints: stable keys, plain values.

======================= ==========================================================================
class                   one of TopologyClass
gpu_count ...           also nic_count, cpu_count, nvswitch_count; null where the source does not say
devices                 name, kind, node, bus_id, numa_node, called (the source's own name: mlx5_0)
gpu_matrix              rows of labels between GPUs: ``-`` not there, ``down`` only links that are down, null
                        not visible; null as a whole above MOST_MATRIX GPUs
nic_matrix              a row for each NIC: labels to the GPUs, then to the NICs; null without NICs
nvlinks_per_gpu         NVLinks that are up, by GPU; null, also of one GPU, where the source does not say
links_per_gpu           the same for xGMI and HCCS, by kind; null for a GPU where the number is not stated
usable_share            part of a GPU's fast links that a group of the first 2, 4, 8 ... GPUs can use;
                        null for a group that these links do not join
links                   one entry per kind, kinds of ends, rate and state; ``pairs`` says how many pairs of
                        devices have them, each ``count`` physical ones (null where the source does not
                        say), ``bytes_per_second`` together
findings                severity, kind, devices, evidence, advice
warnings                 kind, text, line
name, source, nodes     what it is called, where it comes from, how many machines it is
facts                   whatever else the source says
======================= ==========================================================================

Of a cluster too large for a graph the first machines stand for all (fact ``machines``, a warning says so):
counts and links are those of the whole cluster, gpu_matrix and nvlinks_per_gpu are null.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Sequence
from dataclasses import asdict
from typing import Any

from ccbench.findings import Finding
from ccbench.topology.graph import (
    Device,
    DeviceKind,
    LinkKind,
    LinkState,
    Topology,
    TopologyClass,
)
from ccbench.topology.matrix import NOT_VISIBLE, is_counted, path_labels
from ccbench.topology.rings import FAST_KINDS, are_joined, usable_share

MOST_MATRIX = 64
"""GPUs up to which every pair is listed."""

MOST_SHARED = 16
"""GPUs up to which the usable share of smaller groups is worked out."""

_DIRECTLY_LINKED = frozenset(
    {
        TopologyClass.NVLINK_MESH,
        TopologyClass.NVLINK_CUBE_MESH,
        TopologyClass.NVSWITCH,
        TopologyClass.XGMI_MESH,
        TopologyClass.HCCS_FULL_MESH,
    }
)


def summary(topology: Topology, findings: Sequence[Finding]) -> dict[str, Any]:
    """``topology`` and what was found about it, as documented above."""
    whole = is_whole(topology)
    own_keys = {"gpu_matrix", "nvlinks_per_gpu", *(f"{kind.value}_count" for kind in _COUNTED)}
    return {
        "name": topology.name,
        "source": topology.source,
        "class": topology.topology_class.value,
        "nodes": node_count(topology),
        **{f"{kind.value}_count": device_count(topology, kind) for kind in _COUNTED},
        "devices": [
            {
                "name": device.name,
                "kind": device.kind.value,
                "node": device.node,
                "bus_id": device.bus_id or None,
                "numa_node": device.numa_node,
                "called": device.attributes.get("name"),
            }
            for device in topology.devices
        ],
        "gpu_matrix": gpu_matrix(topology) if whole else None,
        "nic_matrix": nic_matrix(topology) if whole else None,
        "nvlinks_per_gpu": nvlinks_per_gpu(topology) if whole else None,
        "links_per_gpu": links_per_gpu(topology),
        "usable_share": usable_shares(topology),
        "links": link_groups(topology),
        "findings": [
            {
                name: getattr(finding, name)
                for name in ("severity", "kind", "devices", "evidence", "advice")
            }
            for finding in findings
        ],
        "warnings": [asdict(warning) for warning in topology.warnings],
        "facts": {
            name: value for name, value in topology.facts.items() if name not in own_keys
        },
    }


_LINE = re.compile(r",? line [0-9]+")
"""Place of a link in its source, by which equal links differ."""

_COUNTED = (DeviceKind.GPU, DeviceKind.NIC, DeviceKind.CPU, DeviceKind.NVSWITCH)


def node_count(topology: Topology) -> int:
    """Machines it is made of; the fact ``machines`` says so where only some of them are in the graph."""
    stated = topology.facts.get("machines")
    if isinstance(stated, int) and stated > 0:
        return stated
    return _nodes_in_graph(topology)


def is_whole(topology: Topology) -> bool:
    """Return True if every machine is in the graph."""
    return node_count(topology) == _nodes_in_graph(topology) or node_count(topology) <= 1


def _of_all(topology: Topology, number: int) -> int:
    """Number in the whole cluster of equal machines of what is ``number`` times in the graph."""
    return number * node_count(topology) // max(_nodes_in_graph(topology), 1)


def _nodes_in_graph(topology: Topology) -> int:
    return len({device.node for device in topology.devices if device.node >= 0})


def device_count(topology: Topology, kind: DeviceKind) -> int | None:
    """Return the source's count, else that of the graph; None where the source says it does not know."""
    if node_count(topology) <= 1 and f"{kind.value}_count" in topology.facts:
        stated = topology.facts[f"{kind.value}_count"]
        # A source may count one way and name more another way: columns and rows, PCI classes and devices.
        named = sum(device.node >= 0 for device in topology.of_kind(kind))
        return max(stated, named) if isinstance(stated, int) else None
    inside = [device for device in topology.of_kind(kind) if device.node >= 0]
    outside = len(topology.of_kind(kind)) - len(inside)
    return _of_all(topology, len(inside)) + outside


def gpu_matrix(topology: Topology) -> list[list[str | None]] | None:
    """Labels between the GPUs: as printed where the source printed them, else worked out from the links."""
    gpus = topology.gpus
    return _rows(topology, gpus, gpus) if 0 < len(gpus) <= MOST_MATRIX else None


def nic_matrix(topology: Topology) -> list[list[str | None]] | None:
    """A row for each NIC: labels to the GPUs, then to the NICs."""
    nics = topology.of_kind(DeviceKind.NIC)
    ends = (*topology.gpus, *nics)
    return _rows(topology, nics, ends) if nics and len(ends) <= 2 * MOST_MATRIX else None


def _rows(
    topology: Topology, rows_of: Sequence[Device], ends: Sequence[Device]
) -> list[list[str | None]]:
    labels = path_labels(topology, ends)
    rows = [[labels[(source.name, target.name)] for target in ends] for source in rows_of]
    return [[None if label == NOT_VISIBLE else label for label in row] for row in rows]


def nvlinks_per_gpu(topology: Topology) -> Sequence[int | None] | None:
    """NVLinks that carry data, by GPU; None for a GPU whose links were not all seen."""
    stated, hidden = topology.stated_nvlinks, _hidden(topology)
    if stated is not None:
        # Behind switches every path shows all links of a GPU; else each path has its own.
        switched = topology.topology_class is TopologyClass.NVSWITCH
        partial = hidden if topology.facts.get("paths") == "as printed" else set()
        return [
            None if name in partial and not (switched and count) else count
            for name, count in stated.items()
        ]
    counts = topology.link_counts(LinkKind.NVLINK)
    # A source that states null has links in the graph that stand for an unknown number, or for a part.
    if not counts or topology.facts.get("nvlinks_per_gpu", counts) is None:
        return None
    unseen = _unseen(topology, {LinkKind.NVLINK}) | _uncounted(topology)
    unseen |= {name for name in hidden if not counts[name]}
    return [None if gpu.name in unseen else counts[gpu.name] for gpu in topology.gpus]


def _hidden(topology: Topology) -> set[str]:
    """GPUs with a path to another GPU that the source does not show."""
    # PCIe that a description leaves out hides none of the links that it describes.
    if len(topology.gpus) > MOST_MATRIX or topology.facts.get("omits", "nothing") != "nothing":
        return set()
    labels = path_labels(topology, topology.gpus)
    return {source for (source, _), label in labels.items() if label == NOT_VISIBLE}


def _unseen(topology: Topology, kinds: Container[LinkKind]) -> set[str]:
    """Devices with a link of one of ``kinds`` of which nobody could see whether it is up."""
    links = (link for link in topology.links if link.state is LinkState.NOT_VISIBLE)
    return {link.source for link in links if link.kind in kinds}


def _uncounted(topology: Topology, *, direct: bool = False) -> set[str]:
    """GPUs with NVLinks or the like whose number the source does not say; ``direct``: to other GPUs."""
    gpus = {gpu.name for gpu in topology.gpus}
    links = (
        link for link in topology.links if link.kind in FAST_KINDS and not is_counted(link)
    )
    return {link.source for link in links if not direct or {link.source, link.target} <= gpus}


def links_per_gpu(topology: Topology) -> dict[str, list[int | None]]:
    """xGMI and HCCS links that carry data, by kind, then by GPU; None for a GPU without any that was seen."""
    by_kind: dict[str, list[int | None]] = {}
    for kind in (LinkKind.XGMI, LinkKind.HCCS):
        counts = topology.link_counts(kind)
        unknown = _uncounted(topology) | _unseen(topology, {kind})
        row = [
            None if gpu.name in unknown else counts[gpu.name] or None for gpu in topology.gpus
        ]
        if any(counts[gpu.name] for gpu in topology.gpus):
            by_kind[kind.value] = row
    return by_kind


def usable_shares(topology: Topology) -> dict[str, str | None] | None:
    """Number of GPUs -> part of its fast links that the worst-off of the first so many can use, as 3/7.

    None for a number whose GPUs such links do not join all, as two separate squares of four are not.
    None for several machines, more than MOST_SHARED GPUs, and GPUs that no mesh or switch joins.
    """
    gpus = [gpu.name for gpu in topology.gpus]
    if (
        topology.topology_class not in _DIRECTLY_LINKED
        or node_count(topology) > 1
        or not 2 <= len(gpus) <= MOST_SHARED
        or not topology.links
        or _hidden(topology)
        or _unseen(topology, FAST_KINDS)
        or _uncounted(topology, direct=True)
    ):
        return None
    sizes = sorted({size for size in (2, 4, 8, 16) if size < len(gpus)} | {len(gpus)})
    shares = {size: min(usable_share(topology, gpus[:size]).values()) for size in sizes}
    if not shares[len(gpus)]:
        return None  # the graph does not hold the links between them, such as those between two boards
    joined = {size for size in sizes if are_joined(topology, gpus[:size])}
    return {str(size): str(share) if size in joined else None for size, share in shares.items()}


def link_groups(topology: Topology) -> list[dict[str, Any]]:
    """Links that are alike, together, of all machines: thousands of a cluster are a handful of kinds.

    A pair of devices whose links are alike both ways counts once.
    """
    devices = topology.by_name
    directions: dict[tuple[Any, ...], tuple[list[str], Counter[bool]]] = {}
    for link in topology.links:
        ends = (link.source, link.target)
        count = link.count if is_counted(link) else None
        numbers = (count, link.bytes_per_second, link.latency_seconds, link.state.value)
        key = (frozenset(ends), link.kind.value, *numbers, _LINE.sub("", link.origin))
        # Links that are alike both ways are one entry, whichever way the first of them leads.
        words = [devices[end].kind.value for end in ends]
        _, ways = directions.setdefault(key, (words, Counter()))
        ways[ends == tuple(sorted(ends))] += 1
    groups: Counter[tuple[Any, ...]] = Counter()
    for (_, kind, *rest), (words, ways) in directions.items():
        both_ways = len(ways) == 2
        same, turned = ((kind, *pair, *rest, both_ways) for pair in (words, words[::-1]))
        groups[turned if turned in groups and both_ways else same] += max(ways.values())
    ends_and_numbers = ("from", "to", "count", "bytes_per_second", "latency_seconds")
    names = ("kind", *ends_and_numbers, "state", "origin", "both_ways")
    whole = is_whole(topology)
    return [
        {
            **dict(zip(names, key, strict=True)),
            "pairs": number if whole else _of_all(topology, number),
        }
        for key, number in groups.items()
    ]
