"""Small fabrics of every family, one by one and at random."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy.sparse.csgraph import floyd_warshall

from ccbench.topology.composition import cluster
from ccbench.topology.fabrics import (
    Fabric,
    Floats,
    LevelCut,
    Wire,
    full_mesh,
    gpu,
    hypercube,
    single_switch,
    torus,
)
from ccbench.topology.files import load_catalog
from ccbench.topology.graph import Device, DeviceKind, LinkKind, Topology
from ccbench.topology.networks import dragonfly, dragonfly_plus, fat_tree


def ring(ranks: int, wire: Wire) -> Fabric:
    """Each rank linked to the next and the one before, the last to the first."""
    return torus((ranks,), wire, "ring")


def nvswitch(
    gpus: int, links_per_gpu: int, link_bytes_per_second: float, latency: float = 0.0
) -> Fabric:
    """GPUs behind NVSwitches, which act as one: each GPU's traffic is spread over all its links."""
    wire = Wire(links_per_gpu * link_bytes_per_second, latency, LinkKind.NVLINK, links_per_gpu)
    gpus_of = [gpu(rank) for rank in range(gpus)]
    ups = [wire.between(device.name, "nvswitch0") for device in gpus_of]
    links = (*ups, *(link.both_ways()[1] for link in ups))
    devices = (*gpus_of, Device("nvswitch0", DeviceKind.NVSWITCH))
    return Fabric(Topology("nvswitch", devices, links), single_switch(gpus, wire).levels)


def random_fabric(seed: int) -> Fabric:
    """A fabric of 2 to some 40 ranks; rates and latencies of wires at random too."""
    random = np.random.default_rng(seed)

    def small(least: int = 1, most: int = 4) -> int:
        return int(random.integers(least, most + 1))

    def wire() -> Wire:
        latency = float(random.choice([0.0, 1e-7, 1e-6, 5e-6]))
        return Wire(float(random.uniform(1e9, 100e9)), latency)

    match int(random.integers(10)):
        case 0:
            return single_switch(small(2, 33), wire())
        case 1:
            return full_mesh(small(2, 9), wire())
        case 2:
            return ring(small(2, 12), wire())
        case 3:
            return torus([small(2), small(), small()], wire())
        case 4:
            return hypercube(small(1, 5), wire())
        case 5:
            return fat_tree([small(2), small(2)], wire(), float(random.uniform(0.4, 5)))
        case 6:
            return fat_tree(
                [small(), small(2), small(2, 3)], wire(), float(random.uniform(1, 4))
            )
        case 7:
            return dragonfly(small(2), small(2), small(1, 3), 2, wire())
        case 8:
            return dragonfly_plus(small(2), small(1, 2), 2, small(1, 3), 2, wire())
    ranks = small(3, 6)
    links = random.integers(0, 3, size=(ranks, ranks))
    links += links.T
    np.fill_diagonal(links, 0)
    links[np.arange(ranks), (np.arange(ranks) + 1) % ranks] += 1
    links[(np.arange(ranks) + 1) % ranks, np.arange(ranks)] += 1
    return nvlink_mesh(links.tolist(), wire())


def box_cluster(nodes: int, machine: str = "hgx-h100", network: str = "ib-ndr-400x8") -> Fabric:
    """Some equal machines of the catalog."""
    return cluster(load_catalog(machine), nodes, network if nodes > 1 else None)


def nvlink_mesh(links_between: Sequence[Sequence[int]], wire: Wire) -> Fabric:
    """GPUs joined by bundles of links: row a, column b says how many lead from a to b.

    ``wire`` is one link. Neighbours talk directly, others over the fewest and then the widest links.
    """
    counts = np.array(links_between, dtype=np.int64)
    ranks = len(counts)
    links = []
    for source, target in np.argwhere(counts).tolist():
        count = int(counts[source, target])
        rate = wire.bytes_per_second * count
        joined = replace(wire, bytes_per_second=rate, count=wire.count * count)
        links.append(joined.between(f"gpu{source}", f"gpu{target}"))
    # The wider of in and out: what a cut allows must not be understated for either direction.
    widest = np.maximum(counts.sum(axis=0), counts.sum(axis=1))
    groups = ranks if widest.min() == widest.max() else 0
    levels = (LevelCut("rank", 1, float(widest.min()) * wire.bytes_per_second, groups),)
    graph = Topology("nvlink mesh", tuple(map(gpu, range(ranks))), tuple(links))
    return Fabric(graph, levels)


def distances(fabric: Fabric, cost: Floats | None = None) -> Floats:
    """Least cost between all vertices, in links where no costs are given."""
    shape = (fabric.vertices, fabric.vertices)
    least = np.full(shape, np.inf)
    costs = np.ones(fabric.links) if cost is None else cost
    np.minimum.at(least, (fabric.link_source, fabric.link_target), costs)
    return np.asarray(floyd_warshall(np.where(np.isfinite(least), least, 0.0)))
