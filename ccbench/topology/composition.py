"""Clusters: N equal nodes and the network between them, as a graph when small, in closed form always.

A message inside a node takes the node's shortest route. Between nodes it goes from the source's GPU to its
NIC, through the network, and from the target's NIC to the target's GPU. In a network of ``rails`` NIC j of
every node is on a switch of its own; messages change rails inside the source's node, as with NCCL's PXN.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ccbench.errors import MachineError
from ccbench.topology.fabrics import (
    MOST_VERTICES,
    Bundle,
    Fabric,
    Ints,
    LevelCut,
    SearchedRoutes,
    Wire,
    check_size,
    full_mesh,
    hypercube,
    routes_by_search,
    single_switch,
    striped,
    torus,
    whole,
    wired,
)
from ccbench.topology.graph import Device, DeviceKind, Topology
from ccbench.topology.networks import dragonfly, dragonfly_plus, fat_tree
from ccbench.topology.node_nics import (
    MOST_NICS,
    RAILS,
    Network,
    check_joined,
    check_rates,
    parse_network,
    port_wire,
    with_nics,
)
from ccbench.units import shown


def cluster(
    node: Topology,
    nodes: int,
    network: Network | str | None = None,
    fabric: Fabric | None = None,
) -> Fabric:
    """``nodes`` copies of ``node``; rank = node * GPUs + GPU.

    network: NICs of each node, text as ``parse_network`` reads it; not needed for one node.
    fabric: how the NICs are joined, its rank q being NIC q % NICs of node q // NICs; by default one switch
        that never blocks, or what the network's shape says.

    NICs that ``node`` has are used if there are as many as the network says and no more than GPUs; otherwise
    NICs are added, see ``node_nics.with_nics``. More NICs than GPUs are one vertex for each GPU, whose links
    have an even share of all. One node with a network has its NICs, which then lead nowhere.
    Raises MachineError, also for links of ``node`` without a rate.
    """
    return _joined(*_parts(node, nodes, network, fabric, most_ports=len(node.gpus)))


def _parts(
    node: Topology,
    nodes: int,
    network: Network | str | None,
    fabric: Fabric | None,
    most_ports: int,
) -> tuple[_Node, int, Fabric | None, bool]:
    """The node ready to be copied, how often, what joins the copies, and whether that has rails."""
    _check(node, nodes, network)
    check_rates(node)
    check_joined(node)
    box = striped(node)
    if network is None:
        return _Node(box, routes_by_search(box), len(box.gpus), ()), 1, None, False
    interconnect = _wanted(network)
    box = with_nics(box, interconnect, min(interconnect.nics, most_ports))
    nics = tuple(device.name for device in box.of_kind(DeviceKind.NIC))
    ends = [*(device.name for device in box.gpus), *nics]
    ready = _Node(box, routes_by_search(box, ends=ends), len(box.gpus), nics)
    if nodes == 1:
        return ready, 1, None, False
    ports = nodes * len(ready.nics)
    port = port_wire(interconnect, len(ready.nics))
    rails = fabric is None and interconnect.shape == RAILS
    if fabric is not None:
        outer = fabric
    elif interconnect.of_any_size:
        outer = single_switch(ports, port, rails=len(ready.nics) if rails else 1)
    else:
        outer = fabric_of(interconnect.shape, port)
    if outer.ranks != ports:
        raise MachineError(
            f"{outer.name}: joins {outer.ranks} ports, but {nodes} nodes have {ports} NICs "
            f"({len(ready.nics)} each); make the fabric as large"
        )
    return ready, nodes, outer, rails


SHAPES = {
    "dragonfly": "<groups>x<routers>x<ports of a router>x<global links of a router>",
    "dragonfly+": "<groups>x<leaves>x<spines>x<ports of a leaf>x<global links of a spine>",
    "hypercube": "<dimensions>",
    "full-mesh": "<ports>",
}
"""Numbers of a network's shape. A fat-tree has ports of a switch level by level, a torus its lengths."""


def fabric_of(shape: str, wire: Wire) -> Fabric:
    """Return the fabric that ``fat-tree:16x8:2`` and the like name, of links like ``wire``.

    Raises MachineError.
    """
    word, _, rest = shape.partition(":")
    sizes, _, ratio = rest.partition(":")
    numbers = [int(size) for size in sizes.split("x")]
    if ratio and word != "fat-tree":
        raise MachineError(
            f"network: {shown(shape)}: only a fat-tree is oversubscribed; leave out :{ratio}"
        )
    match word, numbers:
        case "fat-tree", _:
            return fat_tree(numbers, wire, float(ratio or 1))
        case "dragonfly", [groups, routers, hosts, far]:
            return dragonfly(groups, routers, hosts, far, wire)
        case "dragonfly+", [groups, leaves, spines, hosts, far]:
            return dragonfly_plus(groups, leaves, spines, hosts, far, wire)
        case "torus", _:
            return torus(numbers, wire)
        case "hypercube", [dimensions]:
            return hypercube(dimensions, wire)
        case "full-mesh", [ports]:
            return full_mesh(ports, wire)
    raise MachineError(f"network: {shown(shape)} does not fit; write {word}:{SHAPES[word]}")


def compose(
    node: Topology,
    nodes: int,
    network: Network | str | None = None,
    fabric: Fabric | None = None,
) -> Topology:
    """Return such a cluster as a graph of devices ``n0.gpu0``, ... Raises MachineError above 4,096 vertices.

    One node is itself, with the NICs of ``network`` where that is given; its links need no rates then.

    ``cluster`` takes NVSwitches of the same GPUs for one, since hardware spreads every message over all of
    them; the graph has each of them, with the links that the node states, those that are down too. Each NIC
    is a device of its own, unless ``fabric`` is given, whose ranks are those of ``cluster``.
    """
    _check(node, nodes, network)
    if nodes == 1:
        if network is None:
            return node
        interconnect = _wanted(network)
        return with_nics(node, interconnect, interconnect.nics)
    # A fabric's ranks are the vertices of ``cluster``; the default network has as many ports as NICs.
    interconnect = _wanted(network)
    shaped = fabric is not None or not interconnect.of_any_size
    most_ports = len(node.gpus) if shaped else MOST_NICS
    parts = _parts(node, nodes, network, fabric, most_ports)
    made, ready = _joined(*parts), parts[0]
    box = with_nics(node, interconnect, len(ready.nics))
    first_outer = nodes * len(ready.topology.devices)
    vertices = made.vertices - first_outer + nodes * len(box.devices)
    if vertices > MOST_VERTICES:
        raise MachineError(
            f"{made.name}: {vertices} vertices; at most {MOST_VERTICES} become a graph; take fewer nodes"
        )
    # The nodes side by side, GPUs of all of them first, then the network's switches and links.
    rest = tuple(device for device in box.devices if device.kind is not DeviceKind.GPU)
    copies = range(nodes)
    inside = [
        _copy(device, copy, nodes)
        for group in (box.gpus, rest)
        for copy in copies
        for device in group
    ]
    links = [
        replace(
            link,
            source=_named(link.source, copy, nodes),
            target=_named(link.target, copy, nodes),
        )
        for copy in copies
        for link in box.links
    ]
    matrix = {
        (_named(row, copy, nodes), _named(column, copy, nodes)): label
        for copy in copies
        for (row, column), label in box.matrix.items()
    }
    graph = made.topology()
    # A fabric keeps no origins; the default one has the network's ports and nothing else.
    origin = f"{interconnect}: nominal rate of its ports" if not shaped else ""
    outer = [
        replace(link, origin=origin) for link in graph.links[nodes * len(ready.routes.links) :]
    ]
    devices = (*inside, *graph.devices[first_outer:])
    facts = {name: box.facts[name] for name in _KEPT_FACTS if name in box.facts}
    return replace(
        box,
        name=graph.name,
        devices=devices,
        links=(*links, *outer),
        matrix=matrix,
        facts=facts,
    )


_KEPT_FACTS = ("omits", "paths")
"""Facts that hold for every copy of a machine: what a source leaves out, that its words for paths stand."""


def _check(node: Topology, nodes: int, network: Network | str | None) -> None:
    whole("nodes", nodes)
    if not node.gpus:
        raise MachineError(
            f"{node.name}: has no GPU; a cluster is made of nodes with at least one, such as hgx-h100"
        )
    machines = len({device.node for device in node.devices if device.node >= 0})
    if machines > 1:
        raise MachineError(
            f"{node.name}: is {machines} machines already; a cluster is made of copies of one, so name that"
        )
    if network is None and nodes > 1:
        raise MachineError(
            f"network: missing for {nodes} nodes; write for example ib-ndr-400x8"
        )


def _wanted(network: Network | str | None) -> Network:
    assert network is not None  # several nodes without one are refused
    return network if isinstance(network, Network) else parse_network(network)


def _named(name: str, copy: int, nodes: int) -> str:
    return name if nodes == 1 else f"n{copy}.{name}"


def _copy(device: Device, copy: int, nodes: int) -> Device:
    return (
        device
        if nodes == 1
        else replace(device, name=_named(device.name, copy, nodes), node=copy)
    )


@dataclass(frozen=True, eq=False)
class _Node:
    """One node ready to be copied.

    routes: from and to GPUs, then NICs, in this order of ends. nics: names.
    """

    topology: Topology
    routes: SearchedRoutes
    gpus: int
    nics: tuple[str, ...]


class _Cluster:
    """Numbers of a cluster. Vertices: GPUs of all nodes, then what else is in them, then the network's.

    rest: devices of a node besides GPUs. first_outer: the first vertex of the network.
    """

    def __init__(self, node: _Node, nodes: int, outer: Fabric | None, rails: bool) -> None:
        self.node, self.nodes, self.outer, self.rails = node, nodes, outer, rails
        self.ranks = nodes * node.gpus
        self.local_links = len(node.routes.links)
        self.rest = [
            device for device in node.topology.devices if device.kind is not DeviceKind.GPU
        ]
        self.first_outer = self.ranks + nodes * len(self.rest)

    def vertices_of(self, name: str) -> Ints:
        """The vertex called ``name`` in every node."""
        every = np.arange(self.nodes)
        for number, device in enumerate(self.node.topology.gpus):
            if device.name == name:
                return every * self.node.gpus + number
        number = [device.name for device in self.rest].index(name)
        return self.ranks + every * len(self.rest) + number

    def bundles(self) -> list[Bundle]:
        """The first link of every node, the second of every node, ..., then the network's links."""
        made = []
        for link in self.node.routes.links:
            # All links that carry data have rates here.
            rate, latency = link.bytes_per_second or 0.0, link.latency_seconds or 0.0
            wire = Wire(rate, latency, link.kind, link.count, link.origin)
            made.append(
                Bundle(self.vertices_of(link.source), self.vertices_of(link.target), wire)
            )
        if self.outer is None:
            return made
        nics = np.stack([self.vertices_of(nic) for nic in self.node.nics], axis=1).ravel()
        vertex = np.arange(self.outer.vertices) - self.outer.ranks + self.first_outer
        vertex[: self.outer.ranks] = nics
        ends = np.cumsum([size for size, _ in self.outer.wires])[:-1]
        sources = np.split(vertex[self.outer.link_source], ends)
        targets = np.split(vertex[self.outer.link_target], ends)
        wires = (wire for _, wire in self.outer.wires)
        return [*made, *map(Bundle, sources, targets, wires)]

    @cached_property
    def nic_of_gpu(self) -> Ints:
        """Nearest NIC of each GPU; among equally near ones neighbours share a NIC."""
        gpus, nics = self.node.gpus, len(self.node.nics)
        hops = (self.table[:gpus, gpus:] >= 0).sum(axis=2)
        share = np.arange(gpus)[:, None] * nics // gpus
        return np.asarray((hops * (nics + 1) + (np.arange(nics) - share) % nics).argmin(axis=1))

    @cached_property
    def table(self) -> Ints:
        """A node's link ids from each end to each end, GPUs first, then NICs."""
        ends = self.node.gpus + len(self.node.nics)
        pairs = np.indices((ends, ends)).reshape(2, -1)
        links = self.node.routes.route(pairs[0], pairs[1])
        return links.reshape(ends, ends, links.shape[1])

    def route(self, source: Ints, target: Ints) -> Ints:
        gpus = self.node.gpus
        node, far_node = source // gpus, target // gpus
        start, end = source % gpus, target % gpus
        inside = node == far_node
        parts = [np.where(inside[:, None], self._local(node, start, end), -1)]
        if self.outer is not None:
            nics = len(self.node.nics)
            nic_in = self.nic_of_gpu[end]
            nic_out = nic_in if self.rails else self.nic_of_gpu[start]
            across = self.outer.router(node * nics + nic_out, far_node * nics + nic_in)
            across = np.where(across >= 0, across + self.nodes * self.local_links, -1)
            hops = [
                self._local(node, start, gpus + nic_out),
                across,
                self._local(far_node, gpus + nic_in, end),
            ]
            parts += [np.where(inside[:, None], -1, part) for part in hops]
        return np.concatenate(parts, axis=1)

    def _local(self, node: Ints, start: Ints, end: Ints) -> Ints:
        links = self.table[start, end]
        # Link l of node n stands at l * nodes + n, for bundles hold one link of all nodes.
        return np.where(links >= 0, links * self.nodes + node[:, None], -1)

    def device(self, vertex: int) -> Device:
        if vertex < self.first_outer:
            if vertex < self.ranks:
                node, number = divmod(vertex, self.node.gpus)
                device = self.node.topology.gpus[number]
            else:
                node, number = divmod(vertex - self.ranks, len(self.rest))
                device = self.rest[number]
            return _copy(device, node, self.nodes)
        assert self.outer is not None  # else there is no such vertex
        return self.outer.device(vertex - self.first_outer + self.outer.ranks)


def _joined(node: _Node, nodes: int, outer: Fabric | None, rails: bool) -> Fabric:
    shape = _Cluster(node, nodes, outer, rails)
    check_size("cluster", nodes * shape.local_links + (outer.links if outer else 0))
    vertices = shape.first_outer + (outer.vertices - outer.ranks if outer else 0)
    name = node.topology.name if nodes == 1 else f"{nodes} x {node.topology.name}"
    # Levels of cuts: a GPU's own links, a node's ports, and those of the network that hold whole nodes.
    flows = {device.name: [0.0, 0.0] for device in node.topology.gpus}
    # Without a network the NICs lead nowhere, so nothing can leave a GPU over them.
    idle = set() if outer else set(node.nics)
    for link in node.routes.links:
        if {link.source, link.target} & idle:
            continue
        for end, way in ((link.target, 0), (link.source, 1)):
            if end in flows:
                flows[end][way] += link.bytes_per_second or 0.0
    # The wider of in and out: what a cut allows must not be understated for either direction.
    least = min(max(rates) for rates in flows.values())
    equal = len({tuple(rates) for rates in flows.values()}) == 1
    levels = [LevelCut("GPU", 1, least, shape.ranks if equal else 0)]
    nics = len(node.nics)
    if outer is not None:
        port = next(level for level in outer.levels if level.ranks == 1)
        levels.append(LevelCut("node", node.gpus, nics * port.bytes_per_second, nodes))
        for level in outer.levels:
            if level.consecutive and level.ranks > nics and level.ranks % nics == 0:
                ranks = level.ranks // nics * node.gpus
                levels.append(replace(level, ranks=ranks))
    below = tuple(level for level in levels if level.ranks < shape.ranks)
    return wired(name, shape.ranks, vertices, shape.bundles(), shape.route, shape.device, below)
