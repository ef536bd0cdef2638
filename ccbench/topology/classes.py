"""How the GPUs of a machine hang together, told from the ends of their links.

The number of links between two GPUs decides nothing: two A100 with twelve links each may be a bridged pair or
two ports of a switch. Only what the links end at tells them apart.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ccbench.topology.graph import Device, DeviceKind, Link, LinkKind, LinkState, Topology, TopologyClass

_SOLDERED = re.compile(r"\bSXM|\bP100(?!-PCIE)|\bV100(?!S?-PCIE)|\bGB?[0-9]00\b", re.IGNORECASE)
"""Models whose NVLinks are traces of a board; a pair of others is joined by a bridge one plugs on."""

_CUBE = 8
_CUBE_NEIGHBOURS = 4


def topology_class(topology: Topology) -> TopologyClass:
    """The class of the GPUs of one machine; of a cluster, the one that all its machines share.

    Links that are down count: a machine with a broken NVLink is still an NVLink machine. UNKNOWN where
    there is no GPU, where machines differ, and where nobody could look for NVLinks.
    """
    by_node: dict[int, list[Device]] = {}
    for gpu in topology.gpus:
        by_node.setdefault(gpu.node, []).append(gpu)
    switches = {device.name for device in topology.of_kind(DeviceKind.NVSWITCH)}
    names = {device.name: device.node for device in topology.gpus}
    of_node: dict[int, list[Link]] = {node: [] for node in by_node}
    for link in topology.links:
        if link.source in names:
            of_node[names[link.source]].append(link)
    classes = {_class_of_node(topology, gpus, of_node[node], switches) for node, gpus in by_node.items()}
    return classes.pop() if len(classes) == 1 else TopologyClass.UNKNOWN


def _class_of_node(
    topology: Topology, gpus: list[Device], links: list[Link], switches: set[str]
) -> TopologyClass:
    if any(link.kind is LinkKind.NVLINK and link.target in switches for link in links):
        return TopologyClass.NVSWITCH
    if len(gpus) == 1:
        return TopologyClass.SINGLE_GPU
    names = {gpu.name for gpu in gpus}
    neighbours: dict[str, set[str]] = {name: set() for name in names}
    between = [link for link in links if link.target in names and link.target != link.source]
    for link in between:
        if link.kind is LinkKind.NVLINK:
            neighbours[link.source].add(link.target)
            neighbours[link.target].add(link.source)
    kinds = {link.kind for link in between}
    if LinkKind.XGMI in kinds:
        return TopologyClass.XGMI_MESH
    if LinkKind.HCCS in kinds:
        return TopologyClass.HCCS_FULL_MESH
    if LinkKind.NVLINK in kinds:
        return _nvlink_class(gpus, links, neighbours)
    return TopologyClass.PCIE if _was_looked_at(topology, gpus, links) else TopologyClass.UNKNOWN


def _nvlink_class(gpus: list[Device], links: list[Link], neighbours: Mapping[str, set[str]]) -> TopologyClass:
    most = max(map(len, neighbours.values()))
    if most == 1:
        soldered = any(_SOLDERED.search(str(gpu.attributes.get("model") or "")) for gpu in gpus)
        told = any("nvlinks_to_processor" in gpu.attributes for gpu in gpus)
        drawn = any(link.kind is LinkKind.NVLINK and link.target not in neighbours for link in links)
        on_board = soldered or told or drawn  # POWER: NVLinks end at the processor too
        return TopologyClass.NVLINK_MESH if on_board else TopologyClass.NVLINK_BRIDGE
    if len(gpus) == _CUBE and _is_cube_mesh(neighbours):
        return TopologyClass.NVLINK_CUBE_MESH
    return TopologyClass.NVLINK_MESH


def _is_cube_mesh(neighbours: Mapping[str, set[str]]) -> bool:
    """Two full quads, every GPU joined to one of the other quad; one missing edge is forgiven."""
    edges = sum(map(len, neighbours.values())) // 2
    if max(map(len, neighbours.values())) > _CUBE_NEIGHBOURS or edges < 2 * _CUBE - 1:
        return False
    for name, near in neighbours.items():
        if len(near) < _CUBE_NEIGHBOURS:
            continue
        for other in near:
            quad = {name, *near} - {other}
            if _is_full_but_for(neighbours, quad, 1):
                return _is_full_but_for(neighbours, set(neighbours) - quad, 1)
    return False


def _is_full_but_for(neighbours: Mapping[str, set[str]], quad: set[str], missing: int) -> bool:
    edges = sum(len(neighbours[name] & quad) for name in quad) // 2
    return edges >= len(quad) * (len(quad) - 1) // 2 - missing


def _was_looked_at(topology: Topology, gpus: list[Device], links: list[Link]) -> bool:
    """Whether the absence of NVLinks and the like is an answer and not a gap."""
    if any(notice.kind == "not_visible" and "NVLink" in notice.text for notice in topology.notices):
        return False
    if any(gpu.attributes.get("nvlinks_up_unknown_end") for gpu in gpus):
        return False
    if topology.facts.get("nvlinks_per_gpu") is not None:
        return True
    if topology.matrix:
        names = {gpu.name for gpu in gpus}
        return all((one, other) in topology.matrix for one in names for other in names - {one})
    return any(link.kind is LinkKind.PCIE and link.state is not LinkState.NOT_VISIBLE for link in links)
