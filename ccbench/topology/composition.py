"""Clusters: N equal nodes and the network between them, as a graph when small, in closed form always.

A message inside a node takes the node's shortest route. Between nodes it goes from the source's GPU to its
NIC, through the network, and from the target's NIC to the target's GPU. With ``rails`` NIC j of every node
is on a switch of its own, and a message changes rails inside the source's node, as NCCL's PXN does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ccbench.errors import MachineError
from ccbench.topology.fabric import (
    LINK_KINDS,
    Bundle,
    Fabric,
    LevelCut,
    Wire,
    check_size,
    wired,
)
from ccbench.topology.fabrics import single_switch, whole
from ccbench.topology.graph import Device, DeviceKind, Link, LinkKind, LinkState, Topology
from ccbench.topology.networks import Network, parse_network
from ccbench.topology.routing import MOST_VERTICES, Ints, SearchedRoutes, routes_by_search, striped


def cluster(
    node: Topology,
    nodes: int,
    network: Network | str | None = None,
    fabric: Fabric | None = None,
    rails: bool = False,
) -> Fabric:
    """``nodes`` copies of ``node``; rank = node * GPUs + GPU.

    network: NICs of each node, text as ``parse_network`` reads it; not needed for one node.
    fabric: how the NICs are joined, its rank q being NIC q % NICs of node q // NICs; by default one switch
        that never blocks, or one per rail with ``rails``.

    NICs that ``node`` has are used if there are as many as the network says and no more than GPUs; otherwise
    NICs are added: each on the PCIe switch or CPU of its GPU where there is one, else on the GPU itself,
    with links as fast as its port. Several NICs of one GPU are one vertex with that many links.
    Raises MachineError.
    """
    return _joined(*_parts(node, nodes, network, fabric, rails))


def _parts(
    node: Topology, nodes: int, network: Network | str | None, fabric: Fabric | None, rails: bool
) -> tuple[_Node, int, Fabric | None, bool]:
    """The node ready to be copied, how often, what joins the copies, and whether that has rails."""
    whole("nodes", nodes)
    box = striped(node)
    if not box.gpus:
        raise MachineError(f"{node.name}: has no GPU; a cluster is made of nodes with at least one")
    if nodes == 1:
        return _Node(box, routes_by_search(box), len(box.gpus), ()), 1, None, False
    if network is None:
        raise MachineError(f"network: missing for {nodes} nodes; write for example ib-ndr-400x8")
    wanted = _wanted(network)
    ready = _node_with_nics(box, wanted)
    ports = nodes * len(ready.nics)
    port = _port_wire(wanted, len(ready.nics))
    outer = fabric or (_rail_switches(nodes, len(ready.nics), port) if rails else single_switch(ports, port))
    if outer.ranks != ports:
        raise MachineError(
            f"{outer.name}: joins {outer.ranks} ports, but {nodes} nodes have {ports} NICs "
            f"({len(ready.nics)} each); make the fabric as large"
        )
    return ready, nodes, outer, rails


def compose(
    node: Topology,
    nodes: int,
    network: Network | str | None = None,
    fabric: Fabric | None = None,
    rails: bool = False,
) -> Topology:
    """The same cluster as a graph of devices ``n0.gpu0``, ... Raises MachineError above 4,096 vertices.

    ``cluster`` takes NVSwitches of the same GPUs for one, since hardware spreads every message over all of
    them; the graph has each of them, with the links that the node states, those that are down too.
    """
    parts = _parts(node, nodes, network, fabric, rails)
    made, ready = _joined(*parts), parts[0]
    box = node if nodes == 1 or not _is_replaced(node, ready) else _new_nics(node, _wanted(network))
    rest = [device for device in box.devices if device.kind is not DeviceKind.GPU]
    first_outer = nodes * len(ready.topology.devices)
    vertices = made.vertices - first_outer + nodes * len(box.devices)
    if vertices > MOST_VERTICES:
        raise MachineError(
            f"{made.name}: {vertices} vertices; at most {MOST_VERTICES} become a graph; take fewer nodes"
        )
    graph = made.topology()
    copies = range(nodes)
    devices = [
        _copy(device, copy, nodes) for group in (box.gpus, rest) for copy in copies for device in group
    ]
    links = [
        replace(link, source=_named(link.source, copy, nodes), target=_named(link.target, copy, nodes))
        for copy in copies
        for link in box.links
    ]
    # A fabric keeps no origins; the default one has the network's ports and nothing else.
    origin = f"{_wanted(network)}: nominal rate of its ports" if nodes > 1 and fabric is None else ""
    outer = [replace(link, origin=origin) for link in graph.links[nodes * len(ready.routes.links) :]]
    return replace(
        graph,
        devices=(*devices, *graph.devices[first_outer:]),
        links=(*links, *outer),
        topology_class=node.topology_class,
        source=node.source,
    )


def _wanted(network: Network | str | None) -> Network:
    assert network is not None  # several nodes without one are refused
    return parse_network(network) if isinstance(network, str) else network


def _is_replaced(node: Topology, ready: _Node) -> bool:
    """Whether the NICs that ``node`` has make room for those of the network."""
    return node.of_kind(DeviceKind.NIC) != ready.topology.of_kind(DeviceKind.NIC)


def _named(name: str, copy: int, nodes: int) -> str:
    return name if nodes == 1 else f"n{copy}.{name}"


def _copy(device: Device, copy: int, nodes: int) -> Device:
    return device if nodes == 1 else replace(device, name=_named(device.name, copy, nodes), node=copy)


@dataclass(frozen=True, eq=False)
class _Node:
    """One node ready to be copied.

    routes: from and to GPUs, then NICs, in this order of ends. nics: names.
    """

    topology: Topology
    routes: SearchedRoutes
    gpus: int
    nics: tuple[str, ...]

    def nic_of_gpu(self) -> Ints:
        """Nearest NIC of each GPU; among equally near ones neighbours share a NIC."""
        gpus, nics = self.gpus, len(self.nics)
        pairs = np.indices((gpus, nics)).reshape(2, -1)
        hops = (self.routes.route(pairs[0], gpus + pairs[1]) >= 0).sum(axis=1).reshape(gpus, nics)
        share = np.arange(gpus)[:, None] * nics // gpus
        return np.asarray((hops * (nics + 1) + (np.arange(nics) - share) % nics).argmin(axis=1))


def _port_wire(network: Network, ports: int) -> Wire:
    count = max(1, network.nics // ports)
    rate = network.bytes_per_second * network.nics / ports
    return Wire(rate, 0.0, network.kind, count, f"{network}: nominal rate of its ports")


def _node_with_nics(box: Topology, network: Network) -> _Node:
    gpus = [device.name for device in box.gpus]
    own = box.of_kind(DeviceKind.NIC)
    if len(own) != network.nics or len(own) > len(gpus):
        box = _new_nics(box, network)
    nics = [device.name for device in box.of_kind(DeviceKind.NIC)]
    return _Node(box, routes_by_search(box, ends=gpus + nics), len(gpus), tuple(nics))


def _new_nics(box: Topology, network: Network) -> Topology:
    """``box`` without the NICs it has and with those of ``network``, at most one vertex per GPU."""
    gpus = [device.name for device in box.gpus]
    ports = min(network.nics, len(gpus))
    old = {device.name for device in box.of_kind(DeviceKind.NIC)}
    wire = _port_wire(network, ports)
    origin = f"{network}: assumed as fast as its port"
    devices = [device for device in box.devices if device.name not in old]
    links = [link for link in box.links if link.source not in old and link.target not in old]
    above = _host_side(box)
    for port in range(ports):
        name = f"nic{port}"
        devices.append(Device(name, DeviceKind.NIC, box.gpus[0].node))
        homes = [gpu for index, gpu in enumerate(gpus) if index * ports // len(gpus) == port]
        for place in dict.fromkeys(above.get(gpu, gpu) for gpu in homes):
            for source, target in ((place, name), (name, place)):
                links.append(
                    Link(
                        source, target, LinkKind.PCIE, wire.bytes_per_second, None, wire.count, origin=origin
                    )
                )
    return replace(box, devices=tuple(devices), links=tuple(links))


def _host_side(box: Topology) -> dict[str, str]:
    """The PCIe switch or CPU that each GPU hangs on, where the topology shows one."""
    kind = {device.name: device.kind for device in box.devices}
    return {
        link.source: link.target
        for link in reversed(box.links)
        if kind.get(link.source) is DeviceKind.GPU
        and kind.get(link.target) in {DeviceKind.PCIE_SWITCH, DeviceKind.CPU}
        and link.state is not LinkState.DOWN
    }


def _rail_switches(nodes: int, rails: int, wire: Wire) -> Fabric:
    """One switch per rail; nothing joins the rails."""
    ports = nodes * rails
    every = np.arange(ports)

    def router(source: Ints, target: Ints) -> Ints:
        return np.stack([source, ports + target], axis=1)

    def device(vertex: int) -> Device:
        if vertex < ports:
            return Device(f"port{vertex}", DeviceKind.NIC)
        return Device(f"rail{vertex - ports}", DeviceKind.NETWORK_SWITCH, -1)

    bundles = [Bundle(every, ports + every % rails, wire), Bundle(ports + every % rails, every, wire)]
    level = LevelCut("rank", 1, wire.bytes_per_second, ports)
    return wired("rails", ports, ports + rails, bundles, router, device, (level,))


@dataclass(frozen=True, eq=False)
class _Cluster:
    """Numbers of a cluster. Vertices: GPUs of all nodes, then what else is in them, then the network's."""

    node: _Node
    nodes: int
    outer: Fabric | None
    rails: bool

    @property
    def ranks(self) -> int:
        return self.nodes * self.node.gpus

    @property
    def local_links(self) -> int:
        return len(self.node.routes.links)

    @cached_property
    def rest(self) -> tuple[Device, ...]:
        """What a node has besides GPUs."""
        return tuple(d for d in self.node.topology.devices if d.kind is not DeviceKind.GPU)

    @property
    def first_outer(self) -> int:
        return self.ranks + self.nodes * len(self.rest)

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
        made = [
            Bundle(self.vertices_of(link.source), self.vertices_of(link.target), _wire(link))
            for link in self.node.routes.links
        ]
        if self.outer is None:
            return made
        nics = np.stack([self.vertices_of(nic) for nic in self.node.nics], axis=1).ravel()
        vertex = np.arange(self.outer.vertices) - self.outer.ranks + self.first_outer
        vertex[: self.outer.ranks] = nics
        outer = self.outer
        keys = np.stack([outer.link_bytes_per_second, outer.link_latency_seconds], axis=1)
        kinds = outer.link_kind_codes.astype(np.int64) * (1 << 32) + outer.link_counts
        # Runs of equal links are one bundle, which keeps the order and so the ids.
        breaks = np.flatnonzero((keys[1:] != keys[:-1]).any(axis=1) | (kinds[1:] != kinds[:-1])) + 1
        for start, end in zip([0, *breaks.tolist()], [*breaks.tolist(), outer.links], strict=True):
            wire = Wire(
                float(outer.link_bytes_per_second[start]),
                float(outer.link_latency_seconds[start]),
                LINK_KINDS[int(outer.link_kind_codes[start])],
                int(outer.link_counts[start]),
            )
            made.append(
                Bundle(vertex[outer.link_source[start:end]], vertex[outer.link_target[start:end]], wire)
            )
        return made

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


@dataclass(frozen=True, eq=False)
class _Router:
    """Routes of a cluster. table[a, b]: a node's link ids from end a to end b, GPUs first, then NICs."""

    shape: _Cluster
    nic_of_gpu: Ints
    table: Ints

    def __call__(self, source: Ints, target: Ints) -> Ints:
        gpus = self.shape.node.gpus
        node, other = source // gpus, target // gpus
        start, end = source % gpus, target % gpus
        inside = node == other
        parts = [np.where(inside[:, None], self._local(node, start, end), -1)]
        outer = self.shape.outer
        if outer is not None:
            nics = len(self.shape.node.nics)
            nic_in = self.nic_of_gpu[end]
            nic_out = nic_in if self.shape.rails else self.nic_of_gpu[start]
            across = outer.router(node * nics + nic_out, other * nics + nic_in)
            across = np.where(across >= 0, across + self.shape.nodes * self.shape.local_links, -1)
            hops = [self._local(node, start, gpus + nic_out), across, self._local(other, gpus + nic_in, end)]
            parts += [np.where(inside[:, None], -1, part) for part in hops]
        return np.concatenate(parts, axis=1)

    def _local(self, node: Ints, start: Ints, end: Ints) -> Ints:
        links = self.table[start, end]
        # Link l of node n stands at l * nodes + n, for bundles hold one link of all nodes.
        return np.where(links >= 0, links * self.shape.nodes + node[:, None], -1)


def _wire(link: Link) -> Wire:
    return Wire(link.bytes_per_second or 0.0, link.latency_seconds or 0.0, link.kind, link.count, link.origin)


def _joined(node: _Node, nodes: int, outer: Fabric | None, rails: bool) -> Fabric:
    shape = _Cluster(node, nodes, outer, rails)
    check_size("cluster", nodes * shape.local_links + (outer.links if outer else 0))
    ends = node.gpus + len(node.nics)
    pairs = np.indices((ends, ends)).reshape(2, -1)
    links = node.routes.route(pairs[0], pairs[1])
    table = links.reshape(ends, ends, links.shape[1])
    nic_of_gpu = node.nic_of_gpu() if outer else np.zeros(node.gpus, dtype=np.int64)
    vertices = shape.first_outer + (outer.vertices - outer.ranks if outer else 0)
    name = node.topology.name if nodes == 1 else f"{nodes} x {node.topology.name}"
    return wired(
        name,
        shape.ranks,
        vertices,
        shape.bundles(),
        _Router(shape, nic_of_gpu, table),
        shape.device,
        _levels(shape),
    )


def _levels(shape: _Cluster) -> tuple[LevelCut, ...]:
    """A GPU's own links, a node's ports, and those levels of the network that hold whole nodes."""
    flows = {device.name: [0.0, 0.0] for device in shape.node.topology.gpus}
    for link in shape.node.routes.links:
        for end, way in ((link.target, 0), (link.source, 1)):
            if end in flows:
                flows[end][way] += link.bytes_per_second or 0.0
    # The wider of in and out: what a cut allows must not be understated for either direction.
    least = min(max(rates) for rates in flows.values())
    equal = len({tuple(rates) for rates in flows.values()}) == 1
    levels = [LevelCut("GPU", 1, least, shape.ranks if equal else 0)]
    outer, nics = shape.outer, len(shape.node.nics)
    if outer is not None:
        port = next(level for level in outer.levels if level.ranks == 1)
        levels.append(LevelCut("node", shape.node.gpus, nics * port.bytes_per_second, shape.nodes))
        for level in outer.levels:
            if level.consecutive and level.ranks > nics and level.ranks % nics == 0:
                ranks = level.ranks // nics * shape.node.gpus
                levels.append(replace(level, ranks=ranks))
    return tuple(level for level in levels if level.ranks < shape.ranks)
