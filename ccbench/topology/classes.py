"""How the GPUs of a machine hang together, told from the ends of their links.

The number of links between two GPUs decides nothing: two A100 with twelve links each may be a bridged pair or
two ports of a switch. Only what the links end at tells them apart.

The shape of direct NVLinks (bridges, mesh, cube mesh) is named here for every source that states both ends:
detection, NCCL and hwloc XML, NCCL logs. nvlink_class has rules of its own, because the NV# of a matrix
counts links without saying what they end at, and a list of links has neither ends nor pairs, only the model.

Tables: what the name of a GPU model says (how many NVLinks, card or module of a board), and what one NVLink
carries in one direction, by its version or by the GPU's compute capability. Versions as in hwloc's
topology-nvml.c: 20, 25, 25, 25 and 50 GB/s for 1 to 5. hwloc_xml has a table of its own by model, because it
divides what hwloc multiplied, which knows no 14.06 GB/s.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping, Sequence, Set
from typing import TypeVar

from ccbench.topology.graph import Device, DeviceKind, Link, LinkKind, LinkState, Topology, TopologyClass

CUBE_MESH_GPUS = 8
CUBE_MESH_PEERS = 4
"""DGX-1: two fully joined groups of four, each GPU joined to its twin too (NVIDIA DGX-1 whitepaper)."""

Vertex = TypeVar("Vertex", bound=Hashable)


def class_of_direct_links(
    gpus: Sequence[str], joined: Iterable[tuple[str, str]], on_board: bool = False, forgiven: int = 0
) -> TopologyClass | None:
    """The class of ``gpus`` with NVLinks between the pairs ``joined``; None where no pair is joined.

    on_board: the links are traces of a board, so that a pair is no bridge: NVLinks reach the CPUs too
        (POWER8, POWER9), or the model is a module.
    forgiven: pairs that may be missing from a cube mesh; 1 where a failing link is not listed (the driver),
        0 where the source lists what there is.

    A shape without a name of its own is a mesh, partly connected.
    """
    peers: dict[str, set[str]] = {gpu: set() for gpu in gpus}
    for left, right in joined:
        if left != right and left in peers and right in peers:
            peers[left].add(right)
            peers[right].add(left)
    most = max(map(len, peers.values()), default=0)
    if most == 0:
        return None
    if most == 1:
        return TopologyClass.NVLINK_MESH if on_board else TopologyClass.NVLINK_BRIDGE
    return TopologyClass.NVLINK_CUBE_MESH if is_cube_mesh(peers, forgiven) else TopologyClass.NVLINK_MESH


def is_cube_mesh(peers: Mapping[Vertex, Set[Vertex]], forgiven: int = 0) -> bool:
    """Two full quads, every GPU joined to one of the other quad; ``forgiven`` (0 or 1) pairs may be missing.

    peers: GPU -> those it has NVLinks to, both ways. Which GPUs form a quad does not matter.
    """
    most = max(map(len, peers.values()), default=0)
    missing = CUBE_MESH_GPUS * CUBE_MESH_PEERS // 2 - sum(map(len, peers.values())) // 2
    if len(peers) != CUBE_MESH_GPUS or most > CUBE_MESH_PEERS or not 0 <= missing <= forgiven:
        return False
    one = next(one for one, near in peers.items() if len(near) == CUBE_MESH_PEERS)
    for twin in peers[one]:
        quad = {one, *peers[one]} - {twin}
        halves = (quad, set(peers) - quad)
        # Four peers each, three of them in the own quad: the fourth is a matching by itself.
        if sum(_gaps(peers, half) for half in halves) <= missing:
            return True
    return False


def _gaps(peers: Mapping[Vertex, Set[Vertex]], quad: Set[Vertex]) -> int:
    """Pairs of ``quad`` that are not joined."""
    return len(quad) * (len(quad) - 1) // 2 - sum(len(peers[one] & quad) for one in quad) // 2


def connected_groups(peers: Mapping[Vertex, Iterable[Vertex]]) -> list[set[Vertex]]:
    """Vertices that reach each other, lone ones too, in the order of their first member."""
    groups: list[set[Vertex]] = []
    seen: set[Vertex] = set()
    for start in peers:
        if start in seen:
            continue
        group, waiting = {start}, [start]
        while waiting:
            new = set(peers[waiting.pop()]) - group
            group |= new
            waiting.extend(new)
        seen |= group
        groups.append(group)
    return groups


MOST_LINKS = 18
"""NVLinks of the GPU with the most, up to Blackwell."""

_NVLINKS: tuple[tuple[str, int], ...] = (
    (r"P100", 4),
    (r"V100", 6),
    (r"A800", 8),
    (r"A100", 12),
    (r"H800", 8),
    (r"H100 NVL|H200 NVL|H100 PCIE", 12),
    (r"GH200|H200|H100|H20", MOST_LINKS),
    (r"GB200|GB300|B100|B200|B300", MOST_LINKS),
)
"""Name -> NVLinks, first match counts. NVIDIA's whitepapers of Pascal, Volta, Ampere, Hopper and Blackwell;
export models: 8 of 12 and of 18 links. Cards with PCIe connectors: three bridges of four links."""

_CARD = re.compile(
    r"PCIE|\bNVL\b|\bRTX\b|GEFORCE|QUADRO|TITAN|\bA[0-9]{4}\b|\bA(?:2|10|16|30|40)\b|\bL[0-9]{1,2}S?\b",
    re.IGNORECASE,
)

_MODULE = re.compile(
    r"SXM|DGXS|\bHBM3\b|\bG?B[123]00\b|\bG?H(?:100|200|800|20)\b",
    re.IGNORECASE,
)


def nvlinks_of_model(model: str) -> int | None:
    """NVLinks of one GPU of ``model`` (a driver's or a catalog's name); None where it is not known."""
    for pattern, links in _NVLINKS:
        if re.search(rf"(?<![A-Z0-9])(?:{pattern})(?![0-9])", model, re.IGNORECASE):
            return links
    return None


def is_card(model: str) -> bool:
    """Whether GPUs of ``model`` are cards, whose NVLinks all rest unless somebody plugs a bridge on."""
    return _CARD.search(model) is not None


def is_module(model: str) -> bool:
    """Whether GPUs of ``model`` are soldered or socketed on a board, whose traces their NVLinks are.

    SXM and its successors; False where the name does not say, as for cards.
    """
    return _MODULE.search(model) is not None and not is_card(model)


AMPERE_CARDS = 14.0625e9
"""GeForce and workstation cards of the Ampere line: 14.062 GB/s in nvidia-smi."""

OF_VERSION: Mapping[int, tuple[str, float]] = {
    1: ("1.0", 20e9),
    2: ("2.0", 25e9),
    3: ("2.2", 25e9),
    4: ("3.0", 25e9),
    5: ("3.1", AMPERE_CARDS),
    6: ("4.0", 25e9),
    7: ("5.0", 50e9),
}
"""NVML's number -> (version, bytes per second)."""

OF_CAPABILITY: Mapping[int, float] = {
    60: 20e9,
    70: 25e9,
    75: 25e9,
    80: 25e9,
    86: AMPERE_CARDS,
    90: 25e9,
    100: 50e9,
    103: 50e9,
}
"""Compute capability x 10 -> bytes per second. 7.5 is from NVIDIA's Turing architecture whitepaper."""


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
