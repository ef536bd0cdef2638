"""Clusters: N equal nodes and the network between them, as a graph.

A message inside a node takes the node's shortest route. Between nodes it goes from the source's GPU to its
NIC, through the network, and from the target's NIC to the target's GPU. In a network of ``rails`` NIC j of
every node is on a switch of its own; messages change rails inside the source's node, as with NCCL's PXN.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ccbench.errors import MachineError
from ccbench.topology.fabrics import (
    Fabric,
    Ints,
    LevelCut,
    Machines,
    Wire,
    check_size,
    full_mesh,
    hypercube,
    single_switch,
    striped,
    torus,
    whole,
)
from ccbench.topology.graph import DeviceKind, Topology
from ccbench.topology.networks import dragonfly, dragonfly_plus, fat_tree
from ccbench.topology.node_nics import (
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
) -> Fabric:
    """``nodes`` copies of ``node``; rank = node * GPUs + GPU.

    network: NICs of each node and what joins them, text as ``parse_network`` reads it; not needed for one
        node. Port q of the network is NIC q % NICs of node q // NICs.

    NICs that ``node`` has are used if there are as many as the network says and no more than GPUs; otherwise
    NICs are added, see ``node_nics.with_nics``. More NICs than GPUs are one vertex for each GPU, whose links
    have an even share of all. One node with a network has its NICs, which then lead nowhere.
    Raises MachineError, also for links of ``node`` without a rate.
    """
    _check(node, nodes, network)
    check_rates(node)
    check_joined(node)
    box = striped(node)
    if network is not None:
        interconnect = _wanted(network)
        box = with_nics(box, interconnect, min(interconnect.nics, len(box.gpus)))
    if network is None or nodes == 1:
        alone = Fabric(box)
        return replace(alone, levels=_levels(alone, 1, None))
    outer, graph = _copies(box, nodes, interconnect)
    inner = Fabric(box)
    nics = np.array([inner.vertex[nic.name] for nic in box.of_kind(DeviceKind.NIC)])
    rails = interconnect.shape == RAILS
    machines = Machines(inner, outer, nics, _nic_of_gpu(inner, nics), rails)
    return Fabric(graph, _levels(inner, nodes, outer), machines)


def _nic_of_gpu(node: Fabric, nics: Ints) -> Ints:
    """Nearest NIC of each GPU; among equally near ones neighbours share a NIC."""
    gpus, count = node.ranks, len(nics)
    start, end = np.repeat(np.arange(gpus), count), np.tile(nics, gpus)
    hops = (node.paths(start, end) >= 0).sum(axis=1).reshape(gpus, count)
    share = np.arange(gpus)[:, None] * count // gpus
    return np.asarray((hops * (count + 1) + (np.arange(count) - share) % count).argmin(axis=1))


def _levels(node: Fabric, nodes: int, outer: Fabric | None) -> tuple[LevelCut, ...]:
    """Cuts: a GPU's own links, a node's ports, and those of the network that hold whole nodes."""
    gpus, ranks, nics = node.ranks, nodes * node.ranks, node.topology.of_kind(DeviceKind.NIC)
    # Without a network the NICs lead nowhere, so nothing can leave a GPU over them.
    idle = [] if outer else [node.vertex[nic.name] for nic in nics]
    used = ~(np.isin(node.link_source, idle) | np.isin(node.link_target, idle))
    flows = np.stack(
        [
            np.bincount(ends[used], node.link_bytes_per_second[used], node.vertices)[:gpus]
            for ends in (node.link_target, node.link_source)
        ]
    )
    equal = bool((flows == flows[:, :1]).all())
    # The wider of in and out: what a cut allows must not be understated for either direction.
    levels = [LevelCut("GPU", 1, float(flows.max(axis=0).min()), ranks if equal else 0)]
    if outer is not None:
        port = next(level for level in outer.levels if level.ranks == 1)
        levels.append(LevelCut("node", gpus, len(nics) * port.bytes_per_second, nodes))
        levels += (
            replace(level, ranks=level.ranks // len(nics) * gpus)
            for level in outer.levels
            if level.consecutive and level.ranks > len(nics) and level.ranks % len(nics) == 0
        )
    return tuple(level for level in levels if level.ranks < ranks)


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
) -> Topology:
    """Return such a cluster as a graph of devices ``n0.gpu0``, ... Raises MachineError above 4,096 vertices.

    One node is itself, with the NICs of ``network`` where that is given; its links need no rates then.

    ``cluster`` takes NVSwitches of the same GPUs for one, since hardware spreads every message over all of
    them; the graph has each of them, with the links that the node states, those that are down too. Each NIC
    is a device of its own, unless the network's shape has sizes: its ports are then the NICs of ``cluster``.
    """
    _check(node, nodes, network)
    if network is None:
        return node
    interconnect = _wanted(network)
    if nodes == 1:
        return with_nics(node, interconnect, interconnect.nics)
    check_rates(node)
    check_joined(node)
    nics = interconnect.nics
    box = with_nics(
        node, interconnect, nics if interconnect.of_any_size else min(nics, len(node.gpus))
    )
    return _copies(box, nodes, interconnect)[1]


def _copies(box: Topology, nodes: int, network: Network) -> tuple[Fabric, Topology]:
    """What joins the NICs of so many machines, and all of them as a graph."""
    nics = box.of_kind(DeviceKind.NIC)
    name, ports = f"{nodes} x {box.name}", nodes * len(nics)
    vertices = nodes * len(box.devices)
    check_size(name, vertices + 1)
    port = port_wire(network, len(nics))
    if network.of_any_size:
        outer = single_switch(ports, port, rails=len(nics) if network.shape == RAILS else 1)
    else:
        # Links above the ports may have other rates, so that their origin would not hold.
        outer = fabric_of(network.shape, replace(port, origin=""))
    if outer.ranks != ports:
        raise MachineError(
            f"{outer.name}: joins {outer.ranks} ports, but {nodes} nodes have {ports} NICs "
            f"({len(nics)} each); give it as many ports"
        )
    switches = outer.devices[ports:]
    check_size(name, vertices + len(switches), nodes * len(box.links) + outer.links)
    # The nodes side by side, GPUs of all of them first, then the network's switches and links.
    rest = tuple(device for device in box.devices if device.kind is not DeviceKind.GPU)
    copies = range(nodes)
    inside = [
        replace(device, name=f"n{copy}.{device.name}", node=copy)
        for group in (box.gpus, rest)
        for copy in copies
        for device in group
    ]
    links = [
        replace(link, source=f"n{copy}.{link.source}", target=f"n{copy}.{link.target}")
        for copy in copies
        for link in box.links
    ]
    names = {switch.name: switch.name for switch in switches}
    for number, device in enumerate(outer.devices[:ports]):
        copy, nic = divmod(number, len(nics))
        names[device.name] = f"n{copy}.{nics[nic].name}"
    links += (
        replace(link, source=names[link.source], target=names[link.target], attributes={})
        for link in outer.topology.links
    )
    matrix = {
        (f"n{copy}.{row}", f"n{copy}.{column}"): label
        for copy in copies
        for (row, column), label in box.matrix.items()
    }
    facts = {name: box.facts[name] for name in _KEPT_FACTS if name in box.facts}
    return outer, replace(
        box,
        name=name,
        devices=(*inside, *switches),
        links=tuple(links),
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
