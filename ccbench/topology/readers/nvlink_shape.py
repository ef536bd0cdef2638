"""What GPUs joined by direct links form: bridges, a mesh, or the cube mesh of eight.

A switch is not asked for here: whoever sees one knows the class already.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ccbench.topology.graph import TopologyClass

CUBE_MESH_GPUS = 8
CUBE_MESH_PEERS = 4
"""DGX-1: two fully joined groups of four, each GPU joined to its twin too (NVIDIA DGX-1 whitepaper)."""


def class_of_direct_links(
    gpus: Sequence[str], joined: Iterable[tuple[str, str]], on_board: bool = False
) -> TopologyClass | None:
    """The class of ``gpus`` with NVLinks between the pairs ``joined``; None where no pair is joined.

    on_board: NVLinks reach the CPUs too, so pairs hang together by the board and not by a bridge (POWER8,
        POWER9). A shape without a name of its own is a mesh, partly connected.
    """
    peers: dict[str, set[str]] = {gpu: set() for gpu in gpus}
    for left, right in joined:
        if left != right and left in peers and right in peers:
            peers[left].add(right)
            peers[right].add(left)
    if not any(peers.values()):
        return None
    groups = _groups(peers)
    if all(len(peers[gpu]) == len(group) - 1 for group in groups for gpu in group):
        largest = max(len(group) for group in groups)
        return TopologyClass.NVLINK_MESH if on_board or largest > 2 else TopologyClass.NVLINK_BRIDGE
    if len(gpus) == CUBE_MESH_GPUS and all(len(others) == CUBE_MESH_PEERS for others in peers.values()):
        return TopologyClass.NVLINK_CUBE_MESH
    return TopologyClass.NVLINK_MESH


def _groups(peers: dict[str, set[str]]) -> list[set[str]]:
    groups: list[set[str]] = []
    seen: set[str] = set()
    for gpu in peers:
        if gpu in seen:
            continue
        group, waiting = {gpu}, [gpu]
        while waiting:
            for other in peers[waiting.pop()] - group:
                group.add(other)
                waiting.append(other)
        seen |= group
        groups.append(group)
    return groups
