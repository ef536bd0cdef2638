"""Fabrics: graphs with numbered vertices and links, the shortest routes on them, and their cuts.

Here are those in which every rank has its own ports: switch, full mesh, ring, torus, hypercube.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ccbench.errors import MachineError
from ccbench.topology.graph import Device, DeviceKind, Link, LinkKind, LinkState, Topology
from ccbench.units import shown

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

MOST_VERTICES = 4096
"""Larger graphs are not built: a table of all routes would no longer fit comfortably."""

MOST_LINKS = 300_000
"""Links of a graph, each direction counted."""

LINK_KINDS = tuple(LinkKind)
"""A link's kind is kept as its place in this tuple."""

HOPS = "hops"
"""Attribute of a link that counts for several when routes are searched: minimal routes avoid a second one."""


class TooLargeError(MachineError):
    """A graph would have more vertices or links than are built."""


def check_size(name: str, vertices: int, links: int = 0) -> None:
    """TooLargeError where a graph would be too large; before it is made."""
    parts = (vertices, MOST_VERTICES, "vertices"), (links, MOST_LINKS, "links")
    for number, most, word in parts:
        if number > most:
            raise TooLargeError(
                f"{name}: {number} {word}; at most {most} become a graph; take fewer nodes, or predict by the "
                "library's model (--model nccl), which needs none"
            )


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

    def between(self, source: str, target: str) -> Link:
        """Return the link from one device to another."""
        rate, latency = self.bytes_per_second, self.latency_seconds
        return Link(
            source, target, self.kind, rate, latency, self.count, LinkState.UP, self.origin
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
class Machines:
    """Equal machines and the network between them, whose rank q is NIC q % NICs of machine q // NICs.

    nic_of_gpu: through which each GPU of a machine talks. rails: the target's NIC is also the source's.
    """

    node: Fabric
    network: Fabric
    nics: Ints
    nic_of_gpu: Ints
    rails: bool

    def route(self, source: Ints, target: Ints) -> Ints:
        """Link ids, numbered machine by machine, then those of the network."""
        gpus, nics, copies = (
            self.node.ranks,
            len(self.nics),
            self.network.ranks // len(self.nics),
        )
        (node, start), (far_node, end) = np.divmod(source, gpus), np.divmod(target, gpus)
        inside = node == far_node
        nic_in = self.nic_of_gpu[end]
        nic_out = nic_in if self.rails else self.nic_of_gpu[start]
        ports = node * nics + nic_out, far_node * nics + nic_in
        # Inside a machine: to the target, or to the NIC; then through the network, and on to the target.
        parts = (
            (self.node, start, np.where(inside, end, self.nics[nic_out]), node),
            (self.network, np.where(inside, ports[1], ports[0]), ports[1], copies),
            (self.node, np.where(inside, end, self.nics[nic_in]), end, far_node),
        )
        columns = []
        for fabric, begin, finish, copy in parts:
            ids = fabric.paths(begin, finish)
            first = np.broadcast_to(np.asarray(copy) * self.node.links, len(source))
            columns.append(np.where(ids >= 0, ids + first[:, None], -1))
        return np.concatenate(columns, axis=1)


@dataclass(frozen=True, eq=False)
class Fabric:
    """A graph whose first vertices are the ranks, its GPUs; only links that carry data count, in order.

    Links without a rate are refused. levels: cuts that it has by construction. machines: what it is made of,
    where it is a cluster: routes then stay inside a machine or leave it once. Raises MachineError.
    """

    topology: Topology
    levels: tuple[LevelCut, ...] = ()
    machines: Machines | None = None

    def __post_init__(self) -> None:
        check_size(self.name, self.vertices, self.links)
        for link in self._links:
            if not link.bytes_per_second:
                raise MachineError(
                    f"{self.name}: the link {link.source} -> {link.target} has no rate; "
                    "give its bytes_per_second"
                )

    @property
    def name(self) -> str:
        """Name of its graph."""
        return self.topology.name

    @cached_property
    def devices(self) -> tuple[Device, ...]:
        """What stands at each vertex."""
        kind = DeviceKind.GPU
        rest = (device for device in self.topology.devices if device.kind is not kind)
        return (*self.topology.gpus, *rest)

    @cached_property
    def _links(self) -> tuple[Link, ...]:
        return tuple(link for link in self.topology.links if link.carries)

    @cached_property
    def ranks(self) -> int:
        """Number of GPUs."""
        return len(self.topology.gpus)

    @property
    def vertices(self) -> int:
        """Number of devices."""
        return len(self.topology.devices)

    @property
    def links(self) -> int:
        """Number of links, each direction counted."""
        return len(self._links)

    @cached_property
    def vertex(self) -> dict[str, int]:
        """Number of each device by its name."""
        return {device.name: number for number, device in enumerate(self.devices)}

    @cached_property
    def link_source(self) -> Ints:
        """Vertex at which each link begins."""
        return np.array([self.vertex[link.source] for link in self._links], dtype=np.int64)

    @cached_property
    def link_target(self) -> Ints:
        """Vertex at which each link ends."""
        return np.array([self.vertex[link.target] for link in self._links], dtype=np.int64)

    @cached_property
    def link_bytes_per_second(self) -> Floats:
        """Rate of each link."""
        return np.array([link.bytes_per_second for link in self._links], dtype=np.float64)

    @cached_property
    def link_latency_seconds(self) -> Floats:
        """Latency of each link, 0 where nobody says."""
        return np.array([link.latency_seconds or 0.0 for link in self._links], np.float64)

    @cached_property
    def link_kind_codes(self) -> Ints:
        """Kind of each link, as its place in ``LINK_KINDS``."""
        return np.array([LINK_KINDS.index(link.kind) for link in self._links], dtype=np.int64)

    @cached_property
    def link_counts(self) -> Ints:
        """How many physical links each is."""
        return np.array([link.count for link in self._links], dtype=np.int64)

    def link_name(self, link: int) -> str:
        """``gpu3 -> switch0``."""
        return f"{self._links[link].source} -> {self._links[link].target}"

    def route(self, source: ArrayLike, target: ArrayLike) -> Ints:
        """One row of link ids per flow, in travel order, -1 padded. Raises MachineError for unknown ranks."""
        sources, targets = np.asarray(source, np.int64), np.asarray(target, np.int64)
        sources, targets = (array.ravel() for array in np.broadcast_arrays(sources, targets))
        for array in (sources, targets):
            if len(array) and (int(array.min()) < 0 or int(array.max()) >= self.ranks):
                raise MachineError(
                    f"route: rank {int(array.min())} or {int(array.max())} is not in 0 to {self.ranks - 1}"
                )
        ids = self.router(sources, targets)
        # Links moved to the front of their row, their order kept, and columns cut off that no row needs.
        aligned = np.take_along_axis(ids, np.argsort(ids < 0, axis=1, kind="stable"), axis=1)
        return np.asarray(aligned[:, : int((ids >= 0).sum(axis=1).max(initial=0))])

    def router(self, source: Ints, target: Ints) -> Ints:
        """One row of link ids per flow between ranks, -1 anywhere for no link."""
        return (self.machines.route if self.machines else self.paths)(source, target)

    @cached_property
    def _ways(self) -> tuple[Ints, NDArray[np.int32], NDArray[np.int32], Ints]:
        """Row of each vertex at which ways end; by row and vertex how many equal links lead on, and the place
        of the first of them among all; all these links."""
        from scipy.sparse import csr_array
        from scipy.sparse.csgraph import dijkstra

        source, target, rate = self.link_source, self.link_target, self.link_bytes_per_second
        hops = np.array([link.attributes.get(HOPS, 1) for link in self._links], np.float64)
        # Whole numbers, so that sums of equal ways are equal: slowness decides between ways of equal hops.
        cost = np.rint(1e11 * hops + 1e6 * rate.min(initial=np.inf) / rate)
        # Of links between the same two vertices the cheapest counts; a sparse matrix would add them up.
        order = np.lexsort((cost, source, target))
        keys = (target * self.vertices + source)[order]
        chosen = order[np.append(True, keys[1:] != keys[:-1])] if len(order) else order
        shape = (self.vertices, self.vertices)
        backwards = csr_array((cost[chosen], (target[chosen], source[chosen])), shape=shape)
        switches = (DeviceKind.NETWORK_SWITCH, DeviceKind.NVSWITCH)
        switch = np.array([device.kind in switches for device in self.devices])
        ends = [
            number
            for number, device in enumerate(self.devices)
            if device.kind in (DeviceKind.GPU, DeviceKind.NIC)
        ]
        row = np.full(self.vertices, -1, dtype=np.int64)
        row[ends] = np.arange(len(ends))
        out = np.argsort(source, kind="stable")
        count = np.zeros((len(ends), self.vertices), dtype=np.int32)
        first = np.zeros_like(count)
        links, place = [], 0
        for number, end in enumerate(ends):
            (left,) = dijkstra(backwards, indices=[end])
            nearer = np.isfinite(left[source[out]]) & (
                left[source[out]] == cost[out] + left[target[out]]
            )
            leading = out[nearer]
            ways = np.bincount(source[leading], minlength=self.vertices)
            begin = np.cumsum(ways) - ways
            first[number] = begin + place
            # Switches take equal ways in turn; what is no switch goes the first way, dimension by dimension.
            leads = np.flatnonzero(ways)
            ways[leads] = np.where(switch[target[leading[begin[leads]]]], ways[leads], 1)
            count[number] = ways
            links.append(leading)
            place += len(leading)
        return row, count, first, np.concatenate([*links, [-1]]).astype(np.int64)

    def paths(self, source: Ints, target: Ints) -> Ints:
        """Rows of link ids from GPUs or NICs to others, -1 padded. Raises MachineError where there is no way.

        Fewest hops, and among equals the fastest links. Of several such ways the target's number chooses, as
        subnet managers do (d mod k): what it chose by once chooses no more.
        """
        row, count, first, links = self._ways
        rows, here, number = row[target], source, target
        columns: list[Ints] = []
        while bool((here != target).any()):
            moves, ways = here != target, count[rows, here]
            if bool((moves & (ways == 0)).any()):
                lost = int(np.flatnonzero(moves & (ways == 0))[0])
                raise MachineError(
                    f"route: no link leads from {self.devices[source[lost]].name} to "
                    f"{self.devices[target[lost]].name}; give the links that join them"
                )
            ways = np.maximum(ways, 1)
            link = np.where(moves, links[first[rows, here] + number % ways], -1)
            number = number // ways
            here = np.where(moves, self.link_target[link], here)
            columns.append(link)
        if not columns:
            return np.full((len(source), 0), -1, dtype=np.int64)
        return np.stack(columns, axis=1)


def striped(topology: Topology) -> Topology:
    """NVSwitches that join the same GPUs become one, links of a kind between the same ends too.

    For hardware spreads each message over all of them.
    """
    devices, gpus = topology.by_name, {device.name for device in topology.gpus}
    members: dict[str, set[str]] = {
        switch.name: set() for switch in topology.of_kind(DeviceKind.NVSWITCH)
    }
    for link in topology.links:
        if link.target in members and link.source in gpus:
            members[link.target].add(link.source)
    first: dict[tuple[int, frozenset[str]], str] = {}
    stands_for = {
        name: first.setdefault((devices[name].node, frozenset(joined)), name)
        for name, joined in members.items()
    }
    alike: dict[tuple[str, str, LinkKind, LinkState], list[Link]] = {}
    for link in topology.links:
        source, target = (stands_for.get(end, end) for end in (link.source, link.target))
        if source != target:
            alike.setdefault((source, target, link.kind, link.state), []).append(link)
    merged = []
    for (source, target, _, _), links in alike.items():
        rates = [link.bytes_per_second for link in links if link.bytes_per_second is not None]
        latencies = [link.latency_seconds for link in links if link.latency_seconds is not None]
        merged.append(
            replace(
                links[0],
                source=source,
                target=target,
                bytes_per_second=sum(rates) if len(rates) == len(links) else None,
                latency_seconds=max(latencies, default=None),
                count=sum(link.count for link in links),
            )
        )
    replaced = {name for name, kept_name in stands_for.items() if name != kept_name}
    kept = tuple(device for device in topology.devices if device.name not in replaced)
    return replace(topology, devices=kept, links=tuple(merged))


def whole(name: str, value: object, lowest: int = 1) -> int:
    """``value`` where it is a whole number of at least ``lowest``; MachineError otherwise."""
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < lowest:
        raise MachineError(f"{name}: {shown(value)} is not a whole number, {lowest} or more")
    return int(value)


def gpu(rank: int) -> Device:
    """The device of a rank."""
    return Device(f"gpu{rank}", DeviceKind.GPU)


def switch(name: str) -> Device:
    """A switch of the network."""
    return Device(name, DeviceKind.NETWORK_SWITCH, -1)


def single_switch(ranks: int, wire: Wire, rails: int = 1) -> Fabric:
    """Every rank on one switch that never blocks.

    rails: so many switches that nothing joins, rank r on switch r % rails.
    """
    name, word = ("single switch", "switch") if rails == 1 else ("rails", "rail")
    check_size(name, whole("ranks", ranks) + rails, 2 * ranks)
    gpus, switches = (
        list(map(gpu, range(ranks))),
        [switch(f"{word}{rail}") for rail in range(rails)],
    )
    up = [wire.between(end.name, switches[rank % rails].name) for rank, end in enumerate(gpus)]
    links = (*up, *(link.both_ways()[1] for link in up))
    level = LevelCut("rank", 1, wire.bytes_per_second, ranks)
    return Fabric(Topology(name, (*gpus, *switches), links), (level,))


def full_mesh(ranks: int, wire: Wire) -> Fabric:
    """A link from every rank to every other one, and no switch."""
    name = "full mesh"
    check_size(name, whole("ranks", ranks, 2), ranks * (ranks - 1))
    gpus = tuple(map(gpu, range(ranks)))
    links = tuple(wire.between(a.name, b.name) for a, b in itertools.permutations(gpus, 2))
    half, rate = ranks // 2, wire.bytes_per_second
    levels = (
        LevelCut("rank", 1, (ranks - 1) * rate, ranks),
        LevelCut("half", half, half * (ranks - half) * rate, 2 if ranks % 2 == 0 else 0),
    )
    return Fabric(Topology(name, gpus, links), levels)


def hypercube(dimensions: int, wire: Wire) -> Fabric:
    """2**dimensions ranks; two are linked whose numbers differ in one bit."""
    return torus((2,) * whole("dimensions", dimensions), wire, "hypercube")


def torus(sizes: Sequence[int], wire: Wire, name: str = "torus") -> Fabric:
    """A grid with closed rows; rank = coordinate 0 + size 0 * (coordinate 1 + size 1 * ...).

    Routes go along dimension 0 first, then 1 and so on, each the shorter way round (the rising way where
    both are equal), for so its links are listed. In a row of two there is one link each way, in a row of one
    none.
    """
    lengths = [whole("sizes", size) for size in sizes]
    ranks = math.prod(lengths)
    whole("ranks", ranks, 2)
    strides = [math.prod(lengths[:position]) for position in range(len(lengths))]
    steps = [
        (length, stride, step)
        for length, stride in zip(lengths, strides, strict=True)
        for step in ((1, -1) if length > 2 else (1,) if length == 2 else ())
    ]
    check_size(name, ranks, ranks * len(steps))
    gpus = tuple(map(gpu, range(ranks)))
    links = []
    for length, stride, step in steps:
        for rank in range(ranks):
            coordinate = rank // stride % length
            moved = rank + ((coordinate + step) % length - coordinate) * stride
            links.append(wire.between(gpus[rank].name, gpus[moved].name))
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
    return Fabric(Topology(name, gpus, tuple(links)), levels)
