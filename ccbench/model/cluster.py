"""GPUs that a model can price: one machine's graph, copied over nodes and joined by a network."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from ccbench.errors import MachineError
from ccbench.model.library.clusters import library_system
from ccbench.model.library.system import LibrarySystem
from ccbench.topology.fabrics import Fabric
from ccbench.topology.graph import Topology
from ccbench.topology.node_nics import Network, parse_network


@dataclass(frozen=True)
class Cluster:
    """``nodes`` machines like ``node``, of which every GPU is a rank; rank = node * GPUs of a node + GPU.

    ``system`` is what a collective library's model needs of it, ``fabric`` what schedules and bounds need;
    both are made when first asked for and raise MachineError where the graph does not say enough.
    """

    name: str
    node: Topology
    nodes: int
    network: Network | None

    @property
    def ranks(self) -> int:
        """All GPUs."""
        return len(self.node.gpus) * self.nodes

    @cached_property
    def system(self) -> LibrarySystem:
        """The library's view."""
        return library_system(self.node, self.nodes, self.network)

    @cached_property
    def fabric(self) -> Fabric:
        """Links and routes."""
        from ccbench.topology.composition import cluster

        return cluster(self.node, self.nodes, self.network)

    @cached_property
    def remembered(self) -> dict[Hashable, Any]:
        """What was found about parts of it, so that it is found once; empty at first."""
        return {}

    @property
    def adds_in_network(self) -> bool:
        """Whether switches can combine what passes (NVLink SHARP, SHARP): a bound of its own."""
        network = self.system.network
        return self.system.multicast or (network is not None and network.in_network_reduction)


def open_cluster(
    source: str, nodes: int | None = None, network: str | None = None, ranks: int | None = None
) -> Cluster:
    """The machine that ``source`` names (see ``load_topology``), as many of it as asked for.

    ranks: the first so many GPUs, evenly over the nodes; without ``nodes`` as few nodes as hold them. A node
    of which only some GPUs take part uses their share of its NICs, at least one, as libraries do (a GPU
    talks through the NICs near it).
    Raises MachineError for machines without GPUs, ranks that do not fit, several nodes without a network.
    """
    from ccbench.machine.detection import load_topology

    return cluster_of(load_topology(source), nodes, network, ranks)


def cluster_of(
    node: Topology, nodes: int | None = None, network: str | None = None, ranks: int | None = None
) -> Cluster:
    """The same for a topology at hand."""
    held = len(node.gpus)
    if not held:
        raise MachineError(f"{node.name}: has no GPU to price; name a machine with some, or predict on a CPU")
    if nodes is None:
        nodes = 1 if ranks is None else -(-ranks // held)
    ranks = nodes * held if ranks is None else ranks
    if ranks < 1 or ranks % nodes or ranks // nodes > held:
        raise MachineError(
            f"{node.name}: {ranks} ranks do not spread evenly over {nodes} nodes of {held} GPUs; give "
            f"a multiple of {nodes} up to {nodes * held}, or other --nodes"
        )
    if nodes > 1 and network is None:
        raise MachineError(
            f"{node.name}: {ranks} ranks are {nodes} nodes and need a network; write --network ib-ndr-400x8"
        )
    taken = first_gpus(node, ranks // nodes)
    wanted = None
    if network is not None and nodes > 1:
        whole = parse_network(network)
        wanted = replace(whole, nics=max(1, whole.nics * (ranks // nodes) // held))
    name = node.name if nodes == 1 else f"{nodes} x {node.name} on {wanted}"
    return Cluster(name, taken, nodes, wanted)


def first_gpus(node: Topology, count: int) -> Topology:
    """``node`` with its first ``count`` GPUs only; switches, NICs and processors stay."""
    return without_gpus(node, {gpu.name for gpu in node.gpus[count:]})


def without_gpus(node: Topology, gone: set[str]) -> Topology:
    """``node`` without the GPUs of these names."""
    if not gone:
        return node
    return replace(
        node,
        devices=tuple(device for device in node.devices if device.name not in gone),
        links=tuple(link for link in node.links if link.source not in gone and link.target not in gone),
        matrix={pair: path for pair, path in node.matrix.items() if not gone & set(pair)},
        facts={name: fact for name, fact in node.facts.items() if name not in _FACTS_OF_ALL_GPUS},
    )


_FACTS_OF_ALL_GPUS = frozenset({"gpu_count", "gpu_matrix", "nvlinks_per_gpu", "rings", "p2p_matrix"})
"""What a source said about GPUs that were left out; it would no longer hold."""
