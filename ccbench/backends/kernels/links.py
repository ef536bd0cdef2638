"""What the links between the GPUs of a case say to kernels: rings to follow, and what ``default`` should take."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from typing import NamedTuple

from ccbench.errors import MachineError
from ccbench.topology.graph import Topology, TopologyClass


class Links(NamedTuple):
    """Of one rank per GPU; as it stands here where nothing is known, where any order will do, and on one GPU.

    orders: rings for ``plan_for``, best first; one over k links of every GPU comes k times. joined: the GPUs reach
    each other alike, through NVSwitches or over a fast link for every pair.
    """

    orders: tuple[tuple[int, ...], ...] = ()
    joined: bool = True


def links_of(topology: Topology, devices: Sequence[str]) -> Links:
    """Links between ranks of which rank r is the GPU called ``devices[r]``.

    Where nobody could look for NVLinks, not to see any says nothing, and the GPUs count as joined.
    """
    from ccbench.topology.classes import topology_class
    from ccbench.topology.rings import FAST_KINDS, rings_for

    try:
        ring_set = rings_for(topology, devices)
    except MachineError:
        return Links()  # two ranks on one GPU, or one that the topology does not show
    if ring_set.method == "switch":
        return Links()
    direct = {
        (link.source, link.target)
        for link in topology.links
        if link.kind in FAST_KINDS and link.carries
    }
    joined = all(pair in direct for pair in permutations(devices, 2))
    if ring_set.method == "fallback":
        return Links((), joined or topology_class(topology) is TopologyClass.UNKNOWN)
    rank_of = {name: rank for rank, name in enumerate(devices)}
    orders = (tuple(rank_of[name] for name in order) for order in ring_set.orders)
    return Links(tuple(orders), joined)
