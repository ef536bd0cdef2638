"""Times that no algorithm can undercut, and what stands in its way.

The one door to three kinds: of the memory that processes of a host share (``host_bounds``), of the links of a
fabric at any scale (``graph_bounds``), and of a graph by exact minimum cuts (``cuts``).
"""

from __future__ import annotations

from ccbench.cases import NO_ROOT, Case
from ccbench.collectives import collective
from ccbench.dtypes import item_bytes
from ccbench.model.cluster import Cluster
from ccbench.model.cuts import (
    Cut,
    RateBound,
    all_gather_bound,
    all_reduce_bound,
    all_to_all_bound,
    broadcast_bound,
    reduce_scatter_bound,
)
from ccbench.model.graph_bounds import FabricBound, bound_on_fabric
from ccbench.model.host_bounds import bound_seconds
from ccbench.model.machine import Machine

__all__ = [
    "Cut",
    "FabricBound",
    "RateBound",
    "all_gather_bound",
    "all_reduce_bound",
    "all_to_all_bound",
    "bound",
    "bound_on_fabric",
    "broadcast_bound",
    "reduce_scatter_bound",
]


def bound(case: Case, machine: Machine | Cluster) -> float:
    """Seconds that nothing can undercut for one launch of ``case``. Raises MachineError.

    On a cluster: of links at their nominal rates, with reduction in the network where switches can.
    """
    if isinstance(machine, Cluster):
        root = 0 if case.root == NO_ROOT else case.root
        sizes = (case.size_bytes,)
        found = bound_on_fabric(case.collective, machine.fabric, sizes, root, machine.adds_in_network)
        return float(found.seconds[0])
    seconds = bound_seconds(
        collective(case.collective),
        case.ranks,
        case.count,
        item_bytes(case.dtype),
        machine,
        case.root,
        case.in_place,
    )
    return float(seconds)
