"""The one place that names the shape of GPUs joined by direct NVLinks: bridges, a mesh, a cube mesh.

Used wherever the ends of links are known: detection, NCCL and hwloc XML, NCCL logs. nvlink_class has rules of
its own, because the NV# of a matrix counts links without saying what they end at; nvlink_model too, because
a list of links has neither ends nor pairs, only the model. Both take shape and names of models from here and
from models.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence, Set
from typing import TypeVar

from ccbench.topology.graph import TopologyClass

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
