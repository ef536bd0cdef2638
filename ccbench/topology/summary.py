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
from collections.abc import Sequence
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
        "gpu_matrix": gpu_matrix(topology) if is_whole(topology) else None,
        "nic_matrix": nic_matrix(topology) if is_whole(topology) else None,
        "nvlinks_per_gpu": nvlinks_per_gpu(topology) if is_whole(topology) else None,
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
            name: value for name, value in topology.facts.items() if name not in _ALREADY
        },
    }


_LINE = re.compile(r",? line [0-9]+")
"""Place of a link in its source, by which equal links differ."""

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
    """Return True if every machine is in the graph."""
    return node_count(topology) == _nodes_in_graph(topology) or node_count(topology) <= 1


def _of_all(topology: Topology, number: int) -> int:
    """Number in the whole cluster of equal machines of what is ``number`` times in the graph."""
    return number * node_count(topology) // max(_nodes_in_graph(topology), 1)


def _nodes_in_graph(topology: Topology) -> int:
    return len({device.node for device in topology.devices if device.node >= 0})


def device_count(topology: Topology, kind: DeviceKind) -> int | None:
    """Return the source's count, else that of the graph; None where the source says it does not know."""
    word = next(
        (word for word, counted_kind in _COUNTED.items() if counted_kind is kind), kind.value
    )
    if node_count(topology) <= 1 and f"{word}_count" in topology.facts:
        stated = topology.facts[f"{word}_count"]
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
    stated = topology.facts.get("nvlinks_per_gpu")
    if isinstance(stated, list) and len(stated) == len(topology.gpus):
        if topology.facts.get("paths") != "as printed":
            return stated
        # Behind switches every path shows all links of a GPU; else each path has its own.
        switched = topology.topology_class is TopologyClass.NVSWITCH
        hidden = _hidden(topology)
        counted = zip(topology.gpus, stated, strict=True)
        return [
            None if gpu.name in hidden and not (switched and count) else count
            for gpu, count in counted
        ]
    counts = _counted(topology, LinkKind.NVLINK)
    # A source that states null has links in the graph that stand for an unknown number, or for a part.
    if not counts or topology.facts.get("nvlinks_per_gpu", counts) is None:
        return None
    hidden = _hidden(topology) if any(not counts[gpu.name] for gpu in topology.gpus) else set()
    unseen = _unseen(topology, LinkKind.NVLINK) | _uncounted(topology)
    return [
        None if gpu.name in unseen else counts[gpu.name] or (None if gpu.name in hidden else 0)
        for gpu in topology.gpus
    ]


def _hidden(topology: Topology) -> set[str]:
    """GPUs with a path to another GPU that the source does not show."""
    # PCIe that a description leaves out hides none of the links that it describes.
    if len(topology.gpus) > MOST_MATRIX or topology.facts.get("omits", "nothing") != "nothing":
        return set()
    labels = path_labels(topology, topology.gpus)
    return {source for (source, _), label in labels.items() if label == NOT_VISIBLE}


def _counted(topology: Topology, kind: LinkKind) -> Counter[str]:
    counts: Counter[str] = Counter()
    for link in topology.links:
        if link.kind is kind and link.state is LinkState.UP:
            counts[link.source] += link.count
    return counts


def _unseen(topology: Topology, *kinds: LinkKind) -> set[str]:
    """Devices with a link of one of ``kinds`` of which nobody could see whether it is up."""
    return {
        link.source
        for link in topology.links
        if link.kind in kinds and link.state is LinkState.NOT_VISIBLE
    }


def _uncounted(topology: Topology, *, direct: bool = False) -> set[str]:
    """GPUs with NVLinks or the like whose number the source does not say; ``direct``: to other GPUs."""
    gpus = {gpu.name for gpu in topology.gpus}
    return {
        link.source
        for link in topology.links
        if link.kind in FAST_KINDS
        and not is_counted(link)
        and (not direct or {link.source, link.target} <= gpus)
    }


def links_per_gpu(topology: Topology) -> dict[str, list[int | None]]:
    """xGMI and HCCS links that carry data, by kind, then by GPU; None for a GPU without any that was seen."""
    by_kind = {kind.value: _counted(topology, kind) for kind in (LinkKind.XGMI, LinkKind.HCCS)}
    unknown = _uncounted(topology)
    return {
        kind: [
            None
            if gpu.name in unknown | _unseen(topology, LinkKind(kind))
            else counts[gpu.name] or None
            for gpu in topology.gpus
        ]
        for kind, counts in by_kind.items()
        if any(counts[gpu.name] for gpu in topology.gpus)
    }


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
        or _unseen(topology, *FAST_KINDS)
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
    kinds = {device.name: device.kind.value for device in topology.devices}
    directions: dict[tuple[Any, ...], list[Any]] = {}
    for link in topology.links:
        numbers = (
            link.count if is_counted(link) else None,
            link.bytes_per_second,
            link.latency_seconds,
        )
        ends = tuple(sorted((link.source, link.target)))
        key = (*ends, link.kind.value, *numbers, link.state.value, _LINE.sub("", link.origin))
        words = (kinds.get(link.source, "?"), kinds.get(link.target, "?"))
        # Links that are alike both ways are one entry, whichever way the first of them leads.
        ways = directions.setdefault(key, [words, 0, 0])
        ways[1 if link.source == ends[0] else 2] += 1
    groups: Counter[tuple[Any, ...]] = Counter()
    for key, ((source, target), forth, back) in directions.items():
        kind, *rest = key[2:]
        turned = (kind, target, source, *rest, bool(forth and back))
        same = (kind, source, target, *rest, bool(forth and back))
        groups[turned if turned in groups and forth and back else same] += max(forth, back)
    names = (
        "kind",
        "from",
        "to",
        "count",
        "bytes_per_second",
        "latency_seconds",
        "state",
        "origin",
    )
    whole = is_whole(topology)
    return [
        {
            **dict(zip((*names, "both_ways"), key, strict=True)),
            "pairs": number if whole else _of_all(topology, number),
        }
        for key, number in groups.items()
    ]
