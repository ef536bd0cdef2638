"""Fabrics in which every rank has its own ports: switch, full mesh, ring, torus, hypercube, cube mesh."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ccbench.errors import MachineError
from ccbench.topology.fabric import Bundle, Fabric, LevelCut, Wire, check_size, wired
from ccbench.topology.graph import Device, DeviceKind, LinkKind
from ccbench.topology.routing import MOST_ENTRIES, Ints, cheapest_paths
from ccbench.units import shown


def whole(name: str, value: object, lowest: int = 1) -> int:
    """``value`` where it is a whole number of at least ``lowest``; MachineError otherwise."""
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < lowest:
        raise MachineError(f"{name}: {shown(value)} is not a whole number, {lowest} or more")
    return int(value)


def gpu(rank: int) -> Device:
    """The device of a rank."""
    return Device(f"gpu{rank}", DeviceKind.GPU)


def single_switch(
    ranks: int, wire: Wire, switch: Device | None = None, name: str = "single switch"
) -> Fabric:
    """Every rank on one switch that never blocks. Links: rank r up is r, down is ranks + r."""
    whole("ranks", ranks)
    check_size(name, 2 * ranks)
    middle = switch or Device("switch0", DeviceKind.NETWORK_SWITCH, -1)
    every, centre = np.arange(ranks), np.full(ranks, ranks)

    def router(source: Ints, target: Ints) -> Ints:
        return np.stack([source, ranks + target], axis=1)

    return wired(
        name,
        ranks,
        ranks + 1,
        [Bundle(every, centre, wire), Bundle(centre, every, wire)],
        router,
        lambda vertex: gpu(vertex) if vertex < ranks else middle,
        (LevelCut("rank", 1, wire.bytes_per_second, ranks),),
    )


def nvswitch(
    gpus: int, links_per_gpu: int, link_bytes_per_second: float, latency_seconds: float = 0.0
) -> Fabric:
    """GPUs behind NVSwitches, which act as one: each GPU's traffic is spread over all its links."""
    whole("links_per_gpu", links_per_gpu)
    wire = Wire(links_per_gpu * link_bytes_per_second, latency_seconds, LinkKind.NVLINK, links_per_gpu)
    return single_switch(gpus, wire, Device("nvswitch0", DeviceKind.NVSWITCH), "nvswitch")


def full_mesh(ranks: int, wire: Wire) -> Fabric:
    """A link from every rank to every other one, and no switch."""
    whole("ranks", ranks, 2)
    check_size("full mesh", ranks * (ranks - 1))
    source = np.repeat(np.arange(ranks), ranks - 1)
    peer = np.tile(np.arange(ranks - 1), ranks)

    def router(sources: Ints, targets: Ints) -> Ints:
        return (sources * (ranks - 1) + targets - (targets > sources))[:, None]

    half = ranks // 2
    levels = (
        LevelCut("rank", 1, (ranks - 1) * wire.bytes_per_second, ranks),
        LevelCut("half", half, half * (ranks - half) * wire.bytes_per_second, 2 if ranks % 2 == 0 else 0),
    )
    bundle = Bundle(source, peer + (peer >= source), wire)
    return wired("full mesh", ranks, ranks, [bundle], router, gpu, levels)


def ring(ranks: int, wire: Wire) -> Fabric:
    """Each rank linked to the next and the one before, the last to the first."""
    return torus((whole("ranks", ranks, 2),), wire, "ring")


def hypercube(dimensions: int, wire: Wire) -> Fabric:
    """2**dimensions ranks; two are linked whose numbers differ in one bit."""
    return torus((2,) * whole("dimensions", dimensions), wire, "hypercube")


def torus(sizes: Sequence[int], wire: Wire, name: str = "torus") -> Fabric:
    """A grid with closed rows; rank = coordinate 0 + size 0 * (coordinate 1 + size 1 * ...).

    Routes go along dimension 0 first, then 1 and so on, each the shorter way round (the rising way where
    both are equal). In a row of two there is one link each way, in a row of one none.
    """
    lengths = [whole("sizes", size) for size in sizes]
    ranks = math.prod(lengths)
    whole("ranks", ranks, 2)
    strides = [math.prod(lengths[:position]) for position in range(len(lengths))]
    # One bundle of ``ranks`` links per dimension and direction, in this order.
    steps = [
        (length, stride, step)
        for length, stride in zip(lengths, strides, strict=True)
        for step in ((1, -1) if length > 2 else (1,) if length == 2 else ())
    ]
    check_size(name, ranks * len(steps))
    every = np.arange(ranks)
    bundles = [Bundle(every, _moved(every, length, stride, step), wire) for length, stride, step in steps]
    first_bundle = {(stride, step): position for position, (_, stride, step) in enumerate(steps)}

    def router(source: Ints, target: Ints) -> Ints:
        here = source.copy()
        columns: list[Ints] = []
        for length, stride in zip(lengths, strides, strict=True):
            ahead = (target // stride - source // stride) % length
            rising = 2 * ahead <= length
            hops = np.where(rising, ahead, length - ahead)
            most = int(hops.max(initial=0))
            if (len(columns) + most) * len(source) > MOST_ENTRIES:
                raise MachineError(f"{name}: {len(source)} routes of {most} hops; ask for fewer at a time")
            falling = first_bundle.get((stride, -1), 0)
            bundle = np.where(rising, first_bundle.get((stride, 1), 0), falling) * ranks
            for hop in range(most):
                moves = hop < hops
                columns.append(np.where(moves, bundle + here, -1))
                here = np.where(moves, _moved(here, length, stride, np.where(rising, 1, -1)), here)
        return np.stack(columns, axis=1) if columns else np.full((len(source), 0), -1, dtype=np.int64)

    return wired(name, ranks, ranks, bundles, router, gpu, _torus_levels(lengths, len(steps), wire))


def _moved(ranks: Ints, length: int, stride: int, step: int | Ints) -> Ints:
    """Each rank's neighbour along one dimension."""
    coordinate = ranks // stride % length
    moved: Ints = ranks + ((coordinate + step) % length - coordinate) * stride
    return moved


def _torus_levels(lengths: Sequence[int], ports: int, wire: Wire) -> tuple[LevelCut, ...]:
    ranks, longest = math.prod(lengths), max(lengths)
    row = ranks // longest
    sides = 2 if longest > 2 else 1
    slab = LevelCut(
        "half",
        row * (longest // 2),
        sides * row * wire.bytes_per_second,
        2 if longest % 2 == 0 else 0,
        consecutive=[length for length in lengths if length > 1][-1] == longest,
    )
    return LevelCut("rank", 1, ports * wire.bytes_per_second, ranks), slab


def nvlink_mesh(links_between: Sequence[Sequence[int]], wire: Wire) -> Fabric:
    """GPUs joined by bundles of links: row a, column b says how many lead from a to b.

    ``wire`` is one link. Neighbours talk directly, others over the fewest and then the widest links; there
    is no formula for that, so a table is made, and a mesh has at most 64 GPUs.
    """
    counts = _square(links_between)
    ranks = len(counts)
    source, target = np.nonzero(counts)
    number = counts[source, target]
    bundles = [
        Bundle(source[at : at + 1], target[at : at + 1], _bundled(wire, int(count)))
        for at, count in enumerate(number)
    ]
    cost = 1.0 + 1e-5 * number.min() / number
    paths = cheapest_paths(source, target, cost, ranks, range(ranks))
    # The wider of in and out: what a cut allows must not be understated for either direction.
    widest = np.maximum(counts.sum(axis=0), counts.sum(axis=1))
    groups = ranks if widest.min() == widest.max() else 0
    levels = (LevelCut("rank", 1, float(widest.min()) * wire.bytes_per_second, groups),)
    return wired("nvlink mesh", ranks, ranks, bundles, paths.paths, gpu, levels)


def _square(links_between: Sequence[Sequence[int]]) -> Ints:
    try:
        counts = np.array(links_between, dtype=np.int64)
    except (TypeError, ValueError, OverflowError):
        counts = np.zeros(0, dtype=np.int64)
    ranks = len(counts)
    if counts.shape != (ranks, ranks) or not 2 <= ranks <= 64 or counts.min() < 0 or counts.diagonal().any():
        raise MachineError(
            f"links_between: {shown(links_between)} is not a square; write 2 to 64 rows of as many counts, "
            "with zeros from corner to corner"
        )
    return counts


def _bundled(wire: Wire, count: int) -> Wire:
    return Wire(
        wire.bytes_per_second * count, wire.latency_seconds, wire.kind, wire.count * count, wire.origin
    )
