"""Small builders of topologies for the tests of bounds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ccbench.topology.graph import Device, DeviceKind, Link, LinkKind, Topology

GB = 1e9


def topology(
    gpus: int, edges: Iterable[tuple[str, str, float]], both_ways: bool = True
) -> Topology:
    """``edges``: (vertex, vertex, GB/s); gpu0.. are GPUs, all other names switches."""
    listed = list(edges)
    names = [f"gpu{rank}" for rank in range(gpus)]
    others = {name: None for edge in listed for name in edge[:2] if name not in names}
    devices = [Device(name, DeviceKind.GPU) for name in names]
    devices += [Device(name, DeviceKind.NETWORK_SWITCH, -1) for name in others]
    links = [Link(a, b, LinkKind.NVLINK, rate * GB) for a, b, rate in listed]
    if both_ways:
        links += [Link(b, a, LinkKind.NVLINK, rate * GB) for a, b, rate in listed]
    return Topology("test", tuple(devices), tuple(links))


def boxes(nodes: int, gpus: int, inside: float, outside: float, switches: int = 1) -> Topology:
    """``nodes`` boxes of ``gpus`` behind one switch each, every GPU with its own link to the network."""
    edges: list[tuple[str, str, float]] = []
    for rank in range(nodes * gpus):
        edges.append((f"gpu{rank}", f"box{rank // gpus}", inside))
        if nodes > 1:
            edges.append((f"gpu{rank}", f"network{rank % switches}", outside))
    made = topology(nodes * gpus, edges)
    devices = tuple(
        Device(
            device.name,
            device.kind,
            int(device.name[3:]) // gpus if device.name.startswith("gpu") else -1,
        )
        for device in made.devices
    )
    return Topology(made.name, devices, made.links)


def meshed(
    rows: Sequence[Sequence[int]], per_link: float, nodes: int = 1, outside: float = 0.0
) -> Topology:
    """``rows``: links between every two GPUs of a node; each GPU also on one network switch."""
    size = len(rows)
    edges = [
        (f"gpu{node * size + a}", f"gpu{node * size + b}", rows[a][b] * per_link)
        for node in range(nodes)
        for a in range(size)
        for b in range(a)
        if rows[a][b]
    ]
    if nodes > 1:
        edges += [(f"gpu{rank}", "network", outside) for rank in range(nodes * size)]
    return topology(nodes * size, edges)


CUBE_MESH = (
    (0, 1, 1, 2, 2, 0, 0, 0),
    (1, 0, 2, 1, 0, 2, 0, 0),
    (1, 2, 0, 2, 0, 0, 1, 0),
    (2, 1, 2, 0, 0, 0, 0, 1),
    (2, 0, 0, 0, 0, 1, 1, 2),
    (0, 2, 0, 0, 1, 0, 2, 1),
    (0, 0, 1, 0, 1, 2, 0, 2),
    (0, 0, 0, 1, 2, 1, 2, 0),
)
"""Links between the GPUs of a DGX-1 with V100, as nvidia-smi topo -m prints them."""

FULL_MESH = tuple(tuple(int(a != b) for b in range(8)) for a in range(8))

MI250_PAIRS = (
    "0-1:4 2-3:4 4-5:4 6-7:4 8-9:4 10-11:4 12-13:4 14-15:4 0-4:2 3-7:2 8-12:2 11-15:2 0-8:1 1-5:1 1-9:1 "
    "1-10:1 2-6:1 2-9:1 2-10:1 3-11:1 4-6:1 5-6:1 5-7:1 9-13:1 10-14:1 12-14:1 13-14:1 13-15:1"
)
"""Infinity Fabric links between the 16 dies of eight MI250."""


def mi250() -> list[list[int]]:
    rows = [[0] * 16 for _ in range(16)]
    for pair in MI250_PAIRS.split():
        ends, count = pair.split(":")
        a, b = map(int, ends.split("-"))
        rows[a][b] = rows[b][a] = int(count)
    return rows
