"""Links that a message takes: by search in any topology, in closed form in a fabric.

A fabric is numbered vertices and links as arrays, with a formula that routes between ranks. Here are those in
which every rank has its own ports: switch, full mesh, ring, torus, hypercube. A hundred thousand ranks are no
burden: nothing in a fabric holds one Python object per rank or link.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ccbench.errors import MachineError
from ccbench.topology.graph import Device, DeviceKind, Link, LinkKind, LinkState, Topology
from ccbench.units import shown

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

MOST_VERTICES = 4096
"""Above this, a table of all routes no longer fits comfortably; fabrics have closed forms instead."""

MOST_ENTRIES = 200_000_000
"""Link ids that one answer of ``route`` may hold (1.6 GB)."""


def checked_flows(source: ArrayLike, target: ArrayLike, ranks: int) -> tuple[Ints, Ints]:
    """Both as equally long arrays of ranks. Raises MachineError."""
    sources, targets = np.asarray(source, dtype=np.int64), np.asarray(target, dtype=np.int64)
    sources, targets = (array.ravel() for array in np.broadcast_arrays(sources, targets))
    for array in (sources, targets):
        if len(array) and (int(array.min()) < 0 or int(array.max()) >= ranks):
            raise MachineError(
                f"route: rank {int(array.min())} or {int(array.max())} is not in 0 to {ranks - 1}"
            )
    return sources, targets


def left_aligned(ids: Ints) -> Ints:
    """Each row's links moved to its front, their order kept, columns that no row needs cut off."""
    if not ids.size:
        return ids
    order = np.argsort(ids < 0, axis=1, kind="stable")
    aligned: Ints = np.take_along_axis(ids, order, axis=1)
    return aligned[:, : int((ids >= 0).sum(axis=1).max(initial=0))]


@dataclass(frozen=True, eq=False)
class PathTable:
    """Cheapest paths from some vertices to all: for each the link by which a vertex is reached.

    row: which row of ``arriving_link`` belongs to a start vertex; -1 for vertices that are no start.
    """

    row: Ints
    arriving_link: Ints
    link_source: Ints

    def paths(self, source: Ints, target: Ints) -> Ints:
        """Rows of link ids, -1 padded. Raises MachineError where there is no path."""
        # From the targets backwards, all flows one link a turn.
        rows, here = self.row[source], target.copy()
        backwards: list[Ints] = []
        while bool((here != source).any()):
            moving = here != source
            link = np.where(moving, self.arriving_link[rows, here], -1)
            if bool((moving & (link < 0)).any()):
                lost = int(np.flatnonzero(moving & (link < 0))[0])
                raise MachineError(
                    f"route: no link leads from vertex {int(source[lost])} to {int(target[lost])}; "
                    "give the links that join them"
                )
            backwards.append(link)
            here = np.where(moving, self.link_source[link], here)
        if not backwards:
            return np.full((len(source), 0), -1, dtype=np.int64)
        return left_aligned(np.stack(backwards[::-1], axis=1))


def cheapest_paths(
    link_source: Ints, link_target: Ints, cost: Floats, vertices: int, starts: Sequence[int]
) -> PathTable:
    """Paths of least total cost (Dijkstra). Of links between the same two vertices the cheapest counts."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import dijkstra

    order = np.lexsort((cost, link_source * vertices + link_target))
    keys = (link_source * vertices + link_target)[order]
    # Sorted by ends, then cost: the first of each run of equal ends is the cheapest.
    first = np.ones(len(keys), dtype=np.bool_)
    first[1:] = keys[1:] != keys[:-1]
    chosen = order[first]
    ends = (link_source[chosen], link_target[chosen])
    costs = csr_array((cost[chosen], ends), shape=(vertices, vertices))
    _, before = dijkstra(costs, indices=list(starts), return_predecessors=True)
    # Keys are sorted, so the link between a vertex and the one before it is found by bisection.
    arriving_keys = before.astype(np.int64) * vertices + np.arange(vertices)
    at = np.minimum(np.searchsorted(keys[first], arriving_keys), len(chosen) - 1)
    arriving = (
        np.where(before >= 0, chosen[at], -1)
        if len(chosen)
        else np.full(arriving_keys.shape, -1)
    )
    row = np.full(vertices, -1, dtype=np.int64)
    row[list(starts)] = np.arange(len(starts))
    return PathTable(row, arriving, link_source)


def striped(topology: Topology) -> Topology:
    """NVSwitches that join the same GPUs become one, links of a kind between the same ends too.

    For hardware spreads each message over all of them.
    """
    gpus = {device.name for device in topology.gpus}
    joined: dict[str, set[str]] = {
        device.name: set() for device in topology.of_kind(DeviceKind.NVSWITCH)
    }
    for link in topology.links:
        if link.target in joined and link.source in gpus:
            joined[link.target].add(link.source)
    node = {device.name: device.node for device in topology.devices}
    first: dict[tuple[int, frozenset[str]], str] = {}
    stands_for = {
        name: first.setdefault((node[name], frozenset(members)), name)
        for name, members in joined.items()
    }
    links: dict[tuple[str, str, LinkKind, LinkState], Link] = {}
    for link in topology.links:
        source, target = (stands_for.get(end, end) for end in (link.source, link.target))
        if source != target:
            key = (source, target, link.kind, link.state)
            moved = replace(link, source=source, target=target)
            same = links.get(key)
            if same is not None:
                rates = (same.bytes_per_second, moved.bytes_per_second)
                latencies = (same.latency_seconds, moved.latency_seconds)
                moved = replace(
                    same,
                    bytes_per_second=None
                    if rates[0] is None or rates[1] is None
                    else rates[0] + rates[1],
                    latency_seconds=max(
                        (latency for latency in latencies if latency is not None), default=None
                    ),
                    count=same.count + moved.count,
                )
            links[key] = moved
    kept: tuple[Device, ...] = tuple(
        device
        for device in topology.devices
        if stands_for.get(device.name, device.name) == device.name
    )
    return replace(topology, devices=kept, links=tuple(links.values()))


@dataclass(frozen=True, eq=False)
class SearchedRoutes:
    """Routes on a topology, found once and kept; see ``routes_by_search``.

    topology: the one searched, its NVSwitches striped; ``links`` are those that carry data, in id order.
    """

    topology: Topology
    links: tuple[Link, ...]
    ranks: int
    link_bytes_per_second: Floats
    link_latency_seconds: Floats
    table: PathTable
    vertex_of_rank: Ints

    def route(self, source: ArrayLike, target: ArrayLike) -> Ints:
        """One row of link ids per flow. Raises MachineError for unknown ranks and where no path is."""
        sources, targets = checked_flows(source, target, self.ranks)
        return self.table.paths(self.vertex_of_rank[sources], self.vertex_of_rank[targets])

    def link_name(self, link: int) -> str:
        """``gpu0 -> nvswitch0``."""
        return f"{self.links[link].source} -> {self.links[link].target}"


def routes_by_search(topology: Topology, ends: Sequence[str] | None = None) -> SearchedRoutes:
    """Shortest routes between all GPUs (or ``ends``) of ``topology``.

    Fewest hops, and among equals the fastest links. Only links that carry data are used; of these, one
    without a rate is refused. Raises MachineError.
    """
    merged = striped(topology)
    if len(merged.devices) > MOST_VERTICES:
        raise MachineError(
            f"{topology.name}: {len(merged.devices)} devices; at most {MOST_VERTICES} are searched, "
            "so describe it as a fabric"
        )
    index = {device.name: position for position, device in enumerate(merged.devices)}
    links = tuple(link for link in merged.links if link.carries)
    for link in links:
        if not link.bytes_per_second:
            raise MachineError(
                f"{topology.name}: the link {link.source} -> {link.target} has no rate; "
                "give its bytes_per_second"
            )
    rate = np.array([link.bytes_per_second for link in links], dtype=np.float64)
    latency = np.array([link.latency_seconds or 0.0 for link in links], dtype=np.float64)
    slowness = rate.min(initial=np.inf) / rate
    # Slowness is at most 1 per hop, so that it decides only between routes of equal hops.
    cost = 1.0 + 1e-5 * slowness
    source = np.array([index[link.source] for link in links], dtype=np.int64)
    target = np.array([index[link.target] for link in links], dtype=np.int64)
    names = [device.name for device in merged.gpus] if ends is None else list(ends)
    starts = [index[name] for name in names]
    table = cheapest_paths(source, target, cost, len(merged.devices), starts)
    return SearchedRoutes(
        merged, links, len(starts), rate, latency, table, np.array(starts, dtype=np.int64)
    )


MOST_LINKS = 20_000_000
"""Links that a fabric may have; as arrays they take about 800 MB."""

LINK_KINDS = tuple(LinkKind)
"""A link's kind is kept as its place in this tuple."""


@dataclass(frozen=True)
class Wire:
    """The numbers of one link in one direction; ``count`` physical links of together this rate."""

    bytes_per_second: float
    latency_seconds: float = 0.0
    kind: LinkKind = LinkKind.INFINIBAND
    count: int = 1
    origin: str = ""

    def __post_init__(self) -> None:
        if not (0 < self.bytes_per_second < float("inf")):
            raise MachineError(
                f"bytes_per_second: {self.bytes_per_second} is not a positive number"
            )
        if not (0 <= self.latency_seconds < float("inf")) or self.count < 1:
            raise MachineError(
                f"latency_seconds: {self.latency_seconds} with {self.count} links; write zero or more "
                "seconds and at least one link"
            )


@dataclass(frozen=True)
class LevelCut:
    """A cut that a fabric has by construction: a set of ``ranks`` ranks and what can enter or leave it.

    groups: how many such sets make up the whole fabric, 0 where they do not.
    consecutive: the sets are runs of consecutive ranks.
    """

    name: str
    ranks: int
    bytes_per_second: float
    groups: int
    consecutive: bool = True


@dataclass(frozen=True, eq=False)
class Fabric:
    """Routes in closed form. Vertices 0 to ranks - 1 are the ranks, the rest are switches.

    router: rows of link ids for sources and targets that differ, -1 anywhere for "no link".
    device: what stands at a vertex. levels: cuts for bounds in closed form. wires: (number of links, their
    wire), in the order of ids.
    """

    name: str
    ranks: int
    vertices: int
    link_source: Ints
    link_target: Ints
    link_bytes_per_second: Floats
    link_latency_seconds: Floats
    link_kind_codes: NDArray[np.int8]
    link_counts: NDArray[np.int32]
    router: Callable[[Ints, Ints], Ints]
    device: Callable[[int], Device]
    levels: tuple[LevelCut, ...] = ()
    wires: tuple[tuple[int, Wire], ...] = ()

    @property
    def links(self) -> int:
        """Number of links, each direction counted."""
        return len(self.link_source)

    def route(self, source: ArrayLike, target: ArrayLike) -> Ints:
        """One row of link ids per flow, in travel order, -1 padded. Raises MachineError for unknown ranks."""
        sources, targets = checked_flows(source, target, self.ranks)
        if not len(sources):
            return np.full((0, 0), -1, dtype=np.int64)
        ids = self.router(sources, targets)
        # Routers answer for ranks that differ; a message to itself takes no link.
        ids[sources == targets] = -1
        return left_aligned(ids)

    def link_name(self, link: int) -> str:
        """``gpu3 -> switch0``."""
        ends = self.link_source[link], self.link_target[link]
        return " -> ".join(self.device(int(end)).name for end in ends)

    def topology(self) -> Topology:
        """Return the fabric as a graph of devices. Raises MachineError above 4,096 vertices."""
        if self.vertices > MOST_VERTICES:
            raise MachineError(
                f"{self.name}: {self.vertices} vertices; at most {MOST_VERTICES} become a graph, "
                "so use the fabric's own routes"
            )
        devices = tuple(self.device(vertex) for vertex in range(self.vertices))
        links = tuple(
            Link(
                devices[source].name,
                devices[target].name,
                LINK_KINDS[kind],
                rate,
                latency,
                count,
            )
            for source, target, kind, rate, latency, count in zip(
                self.link_source.tolist(),
                self.link_target.tolist(),
                self.link_kind_codes.tolist(),
                self.link_bytes_per_second.tolist(),
                self.link_latency_seconds.tolist(),
                self.link_counts.tolist(),
                strict=True,
            )
        )
        return Topology(self.name, devices, links)


@dataclass(frozen=True, eq=False)
class Bundle:
    """Links of one kind: from ``source[i]`` to ``target[i]``, ids in this order."""

    source: Ints
    target: Ints
    wire: Wire


def check_size(name: str, links: int) -> None:
    """MachineError where a fabric would have too many links; before its arrays are made."""
    if links > MOST_LINKS:
        raise MachineError(
            f"{name}: {links} links; at most {MOST_LINKS}, so describe fewer ranks"
        )


def wired(
    name: str,
    ranks: int,
    vertices: int,
    bundles: Iterable[Bundle],
    router: Callable[[Ints, Ints], Ints],
    device: Callable[[int], Device],
    levels: tuple[LevelCut, ...],
) -> Fabric:
    """A fabric whose link ids count through ``bundles`` one after the other."""
    listed = list(bundles)
    # Links of a bundle share one wire, whose numbers are repeated rather than kept link by link.
    sizes, wires = [len(bundle.source) for bundle in listed], [bundle.wire for bundle in listed]

    return Fabric(
        name,
        ranks,
        vertices,
        np.concatenate([bundle.source for bundle in listed]),
        np.concatenate([bundle.target for bundle in listed]),
        np.repeat(np.array([wire.bytes_per_second for wire in wires], np.float64), sizes),
        np.repeat(np.array([wire.latency_seconds for wire in wires], np.float64), sizes),
        np.repeat(np.array([LINK_KINDS.index(wire.kind) for wire in wires], np.int8), sizes),
        np.repeat(np.array([wire.count for wire in wires], np.int32), sizes),
        router,
        device,
        levels,
        tuple(zip(sizes, wires, strict=True)),
    )


def whole(name: str, value: object, lowest: int = 1) -> int:
    """``value`` where it is a whole number of at least ``lowest``; MachineError otherwise."""
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < lowest:
        raise MachineError(f"{name}: {shown(value)} is not a whole number, {lowest} or more")
    return int(value)


def gpu(rank: int) -> Device:
    """The device of a rank."""
    return Device(f"gpu{rank}", DeviceKind.GPU)


def single_switch(ranks: int, wire: Wire, rails: int = 1) -> Fabric:
    """Every rank on one switch that never blocks. Links: rank r up is r, down is ranks + r.

    rails: so many switches that nothing joins, rank r on switch r % rails.
    """
    name = "single switch" if rails == 1 else "rails"
    whole("ranks", ranks)
    check_size(name, 2 * ranks)
    every = np.arange(ranks)
    switch = ranks + every % rails

    def router(source: Ints, target: Ints) -> Ints:
        return np.stack([source, ranks + target], axis=1)

    def device(vertex: int) -> Device:
        if vertex < ranks:
            return gpu(vertex)
        word = "switch" if rails == 1 else "rail"
        return Device(f"{word}{vertex - ranks}", DeviceKind.NETWORK_SWITCH, -1)

    bundles = [Bundle(every, switch, wire), Bundle(switch, every, wire)]
    level = LevelCut("rank", 1, wire.bytes_per_second, ranks)
    return wired(name, ranks, ranks + rails, bundles, router, device, (level,))


def full_mesh(ranks: int, wire: Wire) -> Fabric:
    """A link from every rank to every other one, and no switch."""
    whole("ranks", ranks, 2)
    check_size("full mesh", ranks * (ranks - 1))
    source = np.repeat(np.arange(ranks), ranks - 1)
    peer = np.tile(np.arange(ranks - 1), ranks)

    def router(sources: Ints, targets: Ints) -> Ints:
        # A rank skips itself in its own row of peers.
        return (sources * (ranks - 1) + targets - (targets > sources))[:, None]

    half = ranks // 2
    levels = (
        LevelCut("rank", 1, (ranks - 1) * wire.bytes_per_second, ranks),
        LevelCut(
            "half",
            half,
            half * (ranks - half) * wire.bytes_per_second,
            2 if ranks % 2 == 0 else 0,
        ),
    )
    bundle = Bundle(source, peer + (peer >= source), wire)
    return wired("full mesh", ranks, ranks, [bundle], router, gpu, levels)


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
    bundles = [
        Bundle(every, _moved(every, length, stride, step), wire)
        for length, stride, step in steps
    ]
    first_bundle = {
        (stride, step): position for position, (_, stride, step) in enumerate(steps)
    }

    def router(source: Ints, target: Ints) -> Ints:
        # Flows of one call have unequal ways, so that each step moves only those that have not arrived.
        here = source.copy()
        columns: list[Ints] = []
        for length, stride in zip(lengths, strides, strict=True):
            ahead = (target // stride - source // stride) % length
            rising = 2 * ahead <= length
            hops = np.where(rising, ahead, length - ahead)
            most = int(hops.max(initial=0))
            if (len(columns) + most) * len(source) > MOST_ENTRIES:
                raise MachineError(
                    f"{name}: {len(source)} routes of {most} hops; ask for fewer at a time"
                )
            falling = first_bundle.get((stride, -1), 0)
            bundle = np.where(rising, first_bundle.get((stride, 1), 0), falling) * ranks
            for hop in range(most):
                moves = hop < hops
                columns.append(np.where(moves, bundle + here, -1))
                here = np.where(
                    moves, _moved(here, length, stride, np.where(rising, 1, -1)), here
                )
        return (
            np.stack(columns, axis=1)
            if columns
            else np.full((len(source), 0), -1, dtype=np.int64)
        )

    # The narrowest even cut halves the longest dimension; rows of two have one link each way.
    longest = max(lengths)
    row = ranks // longest
    half = LevelCut(
        "half",
        row * (longest // 2),
        (2 if longest > 2 else 1) * row * wire.bytes_per_second,
        2 if longest % 2 == 0 else 0,
        consecutive=[length for length in lengths if length > 1][-1] == longest,
    )
    levels = (LevelCut("rank", 1, len(steps) * wire.bytes_per_second, ranks), half)
    return wired(name, ranks, ranks, bundles, router, gpu, levels)


def _moved(ranks: Ints, length: int, stride: int, step: int | Ints) -> Ints:
    """Each rank's neighbour along one dimension."""
    coordinate = ranks // stride % length
    moved: Ints = ranks + ((coordinate + step) % length - coordinate) * stride
    return moved
