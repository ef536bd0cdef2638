"""How the GPUs of a machine hang together, told from the ends of their links.

The number of links between two GPUs decides nothing: two A100 with twelve links each may be a bridged pair or
two ports of a switch. Only what the links end at tells them apart.
"""

from __future__ import annotations

from ccbench.topology.graph import Device, DeviceKind, Link, LinkKind, LinkState, Topology, TopologyClass
from ccbench.topology.models import is_module
from ccbench.topology.nvlink_shape import class_of_direct_links


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
    between = [link for link in links if link.target in names and link.target != link.source]
    kinds = {link.kind for link in between}
    if LinkKind.XGMI in kinds:
        return TopologyClass.XGMI_MESH
    if LinkKind.HCCS in kinds:
        return TopologyClass.HCCS_FULL_MESH
    if LinkKind.NVLINK in kinds:
        return _nvlink_class(gpus, links, names)
    return TopologyClass.PCIE if _was_looked_at(topology, gpus, links) else TopologyClass.UNKNOWN


def _nvlink_class(gpus: list[Device], links: list[Link], names: set[str]) -> TopologyClass:
    nvlinks = [link for link in links if link.kind is LinkKind.NVLINK]
    modules = any(is_module(str(gpu.attributes.get("model") or "")) for gpu in gpus)
    told = any("nvlinks_to_processor" in gpu.attributes for gpu in gpus)
    drawn = any(link.target not in names for link in nvlinks)  # POWER: NVLinks end at the processor too
    pairs = [(link.source, link.target) for link in nvlinks]
    shape = class_of_direct_links(sorted(names), pairs, on_board=modules or told or drawn, forgiven=1)
    return shape or TopologyClass.NVLINK_MESH


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
