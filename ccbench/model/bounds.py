"""Times that no algorithm can undercut on a fabric, and rates that none exceeds on a graph of links.

The larger of two limits: what must cross a cut at the rates that the links state, and how long a byte takes
between the two ranks that are farthest apart. Not ceil(log2 ranks) messages: through a switch one step
reaches all. Bandwidth: ForestColl's optimum and its relatives (Zhao et al., arXiv 2402.06787) by maximum flow
on small fabrics, on all in closed form the cuts that a fabric has by construction. On symmetric fabrics these
are the tightest cuts there are (tests compare them with maximum flows); on any fabric what they say holds.

Rates of cuts are exact fractions of bytes per second, ``algbw`` in the sense of nccl-tests: size over time,
where the size of all_gather and reduce_scatter is the full buffer and that of all_to_all what one rank sends.
They hold for datasheet rates; nothing here knows of protocols.

The optimum of all_gather is the largest rate x per shard such that for every set S of vertices that lacks a
rank, x times the ranks in S can leave S. It is found by Dinkelbach's iteration over minimum cuts. Capacities
are exact: rates become whole numbers of one common unit. The solver knows 32-bit numbers only; where the
scaled numbers do not fit they are rounded for the search, while every cut that comes out is counted again
exactly, so that a bound is right in any case and at worst not the tightest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ccbench.collectives import collective as collective_row
from ccbench.errors import MachineError
from ccbench.topology.fabrics import Fabric, Floats, LevelCut
from ccbench.topology.graph import DeviceKind, Topology

MOST_FLOW_VERTICES = 160
"""Fabrics up to this size are cut by maximum flow too; some tenths of a second at most, once for each."""

MOST_FLOWS = 256
"""Separating flows that one bound may try; beyond that, links are only added up, which stays safe."""

LARGEST_CAPACITY = 2**31 - 1
"""Largest capacity that scipy's maximum_flow takes."""

MOST_STARTS = 32
"""Ranks whose distances to all others are looked at, where these all count alike."""

MOST_UNITS = 2**30
GRID = 2**14
"""Steps between zero and the fastest rate where rates have to be rounded."""

ROUNDING = 1e-11
"""Prices are sums of up to millions of terms: a bound that equals one must not exceed it by rounding."""

Side = NDArray[np.bool_]
"""One truth per vertex: is it on the source's side?"""


@dataclass(frozen=True, eq=False)
class FlowGraph:
    """Vertices are the devices of a topology, edges its links that carry data.

    compute: vertices of the ranks, in rank order.
    capacity: whole numbers of ``unit_bytes_per_second``, one per link.
    """

    vertices: int
    compute: tuple[int, ...]
    source: NDArray[np.int64]
    target: NDArray[np.int64]
    capacity: tuple[int, ...]
    unit_bytes_per_second: Fraction

    def reversed(self) -> FlowGraph:
        """Every link turned round: what is true of gathering here is true of scattering there."""
        return replace(self, source=self.target, target=self.source)

    @cached_property
    def sizes(self) -> NDArray[np.object_]:
        """Capacities as an array of Python's whole numbers, whose sums cannot overflow."""
        return np.array(self.capacity, dtype=object)

    def capacity_out(self, side: Side) -> int:
        """Capacity of all links out of ``side``, exact."""
        return int(self.sizes[side[self.source] & ~side[self.target]].sum())

    def ranks_in(self, side: Side) -> int:
        """Number of ranks that ``side`` holds."""
        return int(side[list(self.compute)].sum())

    def side_of(self, vertices: Iterable[int]) -> Side:
        """The side that holds exactly ``vertices``."""
        side = np.zeros(self.vertices, dtype=np.bool_)
        side[list(vertices)] = True
        return side

    @cached_property
    def layout(self) -> tuple[list[int], NDArray[np.int64], Any]:
        """Capacities of edges, the place of each in scipy's matrix, and that: links, a source, a sink."""
        from scipy.sparse import csr_array

        vertices, ranks = self.vertices, len(self.compute)
        start, end = vertices, vertices + 1
        # Links between the same two vertices are one edge here.
        keys, edge_of_link = np.unique(
            self.source * vertices + self.target, return_inverse=True
        )
        edges: list[int] = [0] * len(keys)
        for edge, capacity in zip(edge_of_link.tolist(), self.capacity, strict=True):
            edges[edge] += capacity
        compute = np.array(self.compute, dtype=np.int64)
        rows = np.concatenate([keys // vertices, np.full(ranks, start), compute])
        columns = np.concatenate([keys % vertices, compute, np.full(ranks, end)])
        order = np.lexsort((columns, rows))
        place = np.empty(len(order), dtype=np.int64)
        place[order] = np.arange(len(order))
        units = np.ones(len(order), dtype=np.int32)
        matrix = csr_array(
            (units, (rows[order], columns[order])), shape=(vertices + 2, vertices + 2)
        )
        matrix.sort_indices()
        return edges, place, matrix

    def cut_below(
        self, needed: Fraction, supply: Sequence[Fraction | None], sink: int
    ) -> Side | None:
        """A cut that keeps ``needed`` units from reaching ``sink``; None where they can flow.

        supply: units that each rank can offer; None for as many as wanted. The cut is the source's side of a
        minimum cut.
        """
        from scipy.sparse.csgraph import breadth_first_order, maximum_flow

        if needed <= 0:
            return None
        denominator = math.lcm(
            needed.denominator, *{part.denominator for part in supply if part is not None}
        )
        # Multiplied up until all are whole numbers, or rounded where those would not fit 32 bits.
        exact = needed * denominator <= LARGEST_CAPACITY
        scale = Fraction(denominator) if exact else LARGEST_CAPACITY / needed / 2
        most = round(needed * scale)
        edges, place, matrix = self.layout
        data = np.zeros(len(place), dtype=np.int32)
        count, ranks = len(edges), len(supply)
        # Of a link nothing above what is asked for can matter.
        scaled = {capacity: min(most, round(capacity * scale)) for capacity in set(edges)}
        data[place[:count]] = [scaled[capacity] for capacity in edges]
        offers = {
            part: most if part is None else min(most, round(part * scale))
            for part in set(supply)
        }
        data[place[count : count + ranks]] = [offers[part] for part in supply]
        data[place[count + ranks + self.compute.index(sink)]] = most
        matrix.data = data
        result = maximum_flow(matrix, self.vertices, self.vertices + 1)
        if result.flow_value >= most:
            return None
        # What the source still reaches over unused capacity is its side of the cut.
        residual: Any = matrix - result.flow
        residual.data[residual.data < 0] = 0
        residual.eliminate_zeros()
        reached = breadth_first_order(residual, self.vertices, return_predecessors=False)
        side = np.zeros(self.vertices + 2, dtype=np.bool_)
        side[reached] = True
        return side[:-2]


def flow_graph(topology: Topology) -> FlowGraph:
    """The graph of ``topology`` whose ranks are its GPUs.

    Links that are down carry nothing; those that nobody could see may, so they count: a limit must hold.
    Raises MachineError for fewer than two ranks, and for a link without a rate, for a bound that leaves it
    out would be wrong.
    """
    ranks = [device.name for device in topology.gpus]
    if len(ranks) < 2:
        raise MachineError(f"{topology.name}: {len(ranks)} GPUs; a bound needs at least two")
    index = {device.name: position for position, device in enumerate(topology.devices)}
    links = tuple(
        link for link in topology.links if link.may_carry and link.source != link.target
    )
    for link in links:
        if link.bytes_per_second is None:
            raise MachineError(
                f"{topology.name}: the link {link.source} -> {link.target} has no rate; give its "
                "bytes_per_second"
            )
    # The largest unit of which every rate is a whole number.
    rates = {link.bytes_per_second: Fraction(link.bytes_per_second or 0) for link in links}
    denominator = math.lcm(1, *(rate.denominator for rate in rates.values()))
    divisor = math.gcd(*(int(rate * denominator) for rate in rates.values())) or 1
    unit = Fraction(divisor, denominator)
    whole = {rate: int(exact / unit) for rate, exact in rates.items()}
    return FlowGraph(
        len(index),
        tuple(index[name] for name in ranks),
        np.array([index[link.source] for link in links], dtype=np.int64),
        np.array([index[link.target] for link in links], dtype=np.int64),
        tuple(whole[link.bytes_per_second] for link in links),
        unit,
    )


def _gather_bound(graph: FlowGraph, sinks: Sequence[int]) -> tuple[Fraction, Side]:
    """Largest size over time at which every rank of ``sinks`` hears all others, and the cut that limits it.

    Dinkelbach: a rate that some cut does not carry falls to what that cut carries, until no cut is tighter.
    """
    ranks = len(graph.compute)
    # The cut round the one sink into which least can flow is a first guess, and often the answer.
    into = dict.fromkeys(range(graph.vertices), 0)
    for target, capacity in zip(graph.target.tolist(), graph.capacity, strict=True):
        into[target] += capacity
    poorest = min(sinks, key=lambda sink: into[sink])
    side, rate = ~graph.side_of([poorest]), Fraction(into[poorest], ranks - 1)
    verified: set[int] = set()
    pending = list(sinks)
    while pending:
        sink = pending[-1]
        # A verified rank lies in every set that is still too tight, so it may as well be the source.
        supply = [None if vertex in verified else rate for vertex in graph.compute]
        cut = graph.cut_below(rate * ranks, supply, sink)
        if cut is not None:
            tighter = Fraction(graph.capacity_out(cut), graph.ranks_in(cut))
            if tighter < rate:
                side, rate = cut, tighter
                continue
        pending.pop()
        if len(sinks) == ranks:
            verified.add(sink)
    return rate * ranks * graph.unit_bytes_per_second, side


def _all_reduce_bound(graph: FlowGraph, machines: Sequence[Sequence[int]]) -> Fraction:
    """A limit for every all_reduce that reduces and copies in GPUs only.

    Of each byte, whichever way the ranks are split into k groups, at least 2(k - 1) messages leave a group
    (gossip among k parties takes as many one-way messages), so the time is at least 2(k - 1) size over the
    sum of what can leave the groups. Tried: single ranks, equal runs of consecutive ranks, machines, and the
    two sides of all_gather's cut.
    """
    ranks = list(graph.compute)
    _, cut = _gather_bound(graph, ranks)
    splits: list[Sequence[Sequence[int]]] = [
        machines,
        [[vertex for vertex in ranks if cut[vertex] == chosen] for chosen in (False, True)],
    ]
    size = 1
    while size < len(ranks) and len(ranks) % size == 0:
        splits.append([ranks[start : start + size] for start in range(0, len(ranks), size)])
        size *= 2
    rates = []
    for groups in splits:
        with_ranks = [group for group in groups if set(group) & set(ranks)]
        if len(with_ranks) >= 2:
            sides = [
                _separating(graph, group, len(with_ranks) <= MOST_FLOWS) for group in with_ranks
            ]
            leaving = (
                sum(graph.capacity_out(side) for side in sides) * graph.unit_bytes_per_second
            )
            rates.append(leaving / (2 * (len(sides) - 1)))
    return min(rates)  # the single ranks are always at least two groups


def _separating(graph: FlowGraph, group: Sequence[int], by_flow: bool) -> Side:
    """The cheapest known cut that has the ranks of ``group`` on its side and all other ranks beyond."""
    ranks = [vertex for vertex in graph.compute if vertex in set(group)]
    candidates = [graph.side_of(group), graph.side_of(ranks)]
    if by_flow and graph.vertices <= 4 * MOST_FLOWS:
        # The minimum cut, by one flow from all of one to all of the other. The others are merged into one of
        # them, which a flow to a single sink needs; vertices that are merged keep their numbers.
        beyond = [vertex for vertex in graph.compute if vertex not in set(ranks)]
        alias = np.arange(graph.vertices)
        alias[beyond] = beyond[0]
        source, target = alias[graph.source], alias[graph.target]
        inner = zip((source == target).tolist(), graph.capacity, strict=True)
        merged = replace(
            graph,
            compute=(*ranks, beyond[0]),
            source=source,
            target=target,
            capacity=tuple(0 if within else size for within, size in inner),
        )
        everything = Fraction(merged.capacity_out(merged.side_of(ranks)) + 1)
        supply: list[Fraction | None] = [None] * len(ranks) + [Fraction(0)]
        side = merged.cut_below(everything, supply, beyond[0])
        assert side is not None  # more was asked for than can leave
        whole_side = side[alias]
        whole_side[ranks] = True
        candidates.append(whole_side)
    return min(candidates, key=graph.capacity_out)


def _all_to_all_bound(graph: FlowGraph, machines: Sequence[Sequence[int]]) -> Fraction:
    """A limit for all_to_all: what s of p ranks owe the others, s (p - s) / p sizes, must leave them.

    The worst set is hard to find; tried are single ranks, machines, and consecutive halves, quarters and so
    on of the ranks, both directions each. Every one of them is a limit, so the least is.
    """
    ranks = list(graph.compute)
    # Large ones first, for flows are spent on these.
    blocks = [
        list(machine) for machine in machines if 0 < len(set(machine) & set(ranks)) < len(ranks)
    ]
    size = len(ranks) // 2
    while size > 1:
        blocks += [
            ranks[start : start + size] for start in range(0, len(ranks) - size + 1, size)
        ]
        size //= 2
    blocks += [[vertex] for vertex in ranks]
    rates = []
    for direction in (graph, graph.reversed()):
        for flows, group in enumerate(blocks):
            side = _separating(direction, group, flows < MOST_FLOWS)
            inside = direction.ranks_in(side)
            leaving = direction.capacity_out(side) * graph.unit_bytes_per_second
            rates.append(leaving * len(ranks) / (inside * (len(ranks) - inside)))
    return min(rates)


def cut_bound(collective: str, topology: Topology, root: int = 0) -> Fraction:
    """The most bytes per second that a collective moves, size over time; of all_to_all_v with equal blocks.

    Of all_gather, reduce_scatter, gather, scatter, broadcast and reduce it is the optimum where as much can
    leave each switch as enters it, else, and of the others, a limit. Raises MachineError as ``flow_graph``
    does, and for a root that is no rank.
    """
    graph = flow_graph(topology)
    if not 0 <= root < len(graph.compute):
        raise MachineError(f"root: {root} is not a rank; write 0 to {len(graph.compute) - 1}")
    # Vertices of each machine: its ranks and all that is in the same box.
    machines: dict[int, list[int]] = {}
    for vertex, device in enumerate(topology.devices):
        if device.node >= 0 and device.kind is not DeviceKind.NETWORK_SWITCH:
            machines.setdefault(device.node, []).append(vertex)
    if collective in ("reduce_scatter", "scatter", "reduce"):
        # What reduces in GPUs only is what it undoes, with every link turned round.
        graph = graph.reversed()
    match collective:
        case "all_gather" | "reduce_scatter":
            return _gather_bound(graph, graph.compute)[0]
        case "gather" | "scatter":
            return _gather_bound(graph, [graph.compute[root]])[0]
        case "broadcast" | "reduce":
            # The least maximum flow from the root to any rank, which trees can use up (Edmonds).
            start = graph.compute[root]
            rate = Fraction(graph.capacity_out(graph.side_of([start])))
            pending = [vertex for vertex in graph.compute if vertex != start]
            while pending:
                supply = [rate if vertex == start else Fraction(0) for vertex in graph.compute]
                cut = graph.cut_below(rate, supply, pending[-1])
                if cut is not None and cut[start] and graph.capacity_out(cut) < rate:
                    rate = Fraction(graph.capacity_out(cut))
                else:
                    pending.pop()
            return rate * graph.unit_bytes_per_second
        case "all_reduce":
            return _all_reduce_bound(graph, list(machines.values()))
        case "all_to_all" | "all_to_all_v":
            return _all_to_all_bound(graph, list(machines.values()))
        case "send_recv":
            # A ring shift: each rank sends its size to the next one and receives as much.
            ways = (graph, graph.reversed())
            capacities = (
                way.capacity_out(way.side_of([vertex]))
                for way in ways
                for vertex in graph.compute
            )
            return min(capacities) * graph.unit_bytes_per_second
    raise MachineError(f"collective: {collective!r} moves no data; it has no bound by links")


def _whole_size(level: LevelCut, ranks: int) -> Fraction:
    return Fraction(level.bytes_per_second)


def _all_gather(level: LevelCut, ranks: int) -> Fraction:
    return Fraction(level.bytes_per_second) * ranks / (ranks - level.ranks)


def _all_to_all(level: LevelCut, ranks: int) -> Fraction:
    return Fraction(level.bytes_per_second) * ranks / (level.ranks * (ranks - level.ranks))


def _rooted(level: LevelCut, ranks: int) -> Fraction:
    # The root's set must receive what is outside it; every other set must send what is inside it. Of a set
    # that does not repeat nobody knows whether the root is in it, so the lesser of the two counts.
    choose = max if level.groups else min
    return Fraction(level.bytes_per_second) * ranks / choose(ranks - level.ranks, level.ranks)


LIMITS: dict[str, Callable[[LevelCut, int], Fraction]] = {
    # 2 (k - 1) messages per byte leave the k groups; a set that does not repeat makes two with the rest.
    "all_reduce": lambda level, ranks: (
        Fraction(level.bytes_per_second) * (level.groups or 2) / (2 * ((level.groups or 2) - 1))
    ),
    "all_gather": _all_gather,
    "reduce_scatter": _all_gather,
    "broadcast": _whole_size,
    "reduce": _whole_size,
    "all_to_all": _all_to_all,
    "all_to_all_v": _all_to_all,
    "gather": _rooted,
    "scatter": _rooted,
    "send_recv": _whole_size,
}
"""Size over time that one level of a fabric allows each collective."""


def level_bound(fabric: Fabric, collective: str) -> tuple[Fraction, LevelCut]:
    """The least that any level of ``fabric`` allows, as size over time, and the level.

    Raises MachineError for what has no bound here.
    """
    if collective not in LIMITS:
        raise MachineError(
            f"collective: {collective!r} moves no data; one of {', '.join(LIMITS)}"
        )
    # A ring shift within a level need not leave it: only single ranks are sure to.
    levels = [
        level
        for level in fabric.levels
        if level.ranks < fabric.ranks and (collective != "send_recv" or level.ranks == 1)
    ]
    if not levels:
        raise MachineError(f"{fabric.name}: {fabric.ranks} ranks; a bound needs at least two")
    limit = LIMITS[collective]
    level = min(levels, key=lambda level: limit(level, fabric.ranks))
    return limit(level, fabric.ranks), level


_KEPT: WeakKeyDictionary[Fabric, dict[tuple[str, int, bool], tuple[float, float]]] = (
    WeakKeyDictionary()
)


def moved_sizes(collective: str, size_bytes: ArrayLike) -> Floats:
    """Sizes as an array, zeros where no data move. Raises MachineError for what cannot be a size."""
    sizes = np.atleast_1d(np.asarray(size_bytes, dtype=np.float64))
    if sizes.ndim != 1 or not bool(np.all((sizes >= 0) & np.isfinite(sizes))):
        raise MachineError(
            f"size_bytes: {size_bytes!r} are not sizes; give numbers of bytes, zero or more"
        )
    return sizes if collective_row(collective).moves_data else np.zeros_like(sizes)


def bound_on_fabric(
    collective: str,
    fabric: Fabric,
    size_bytes: ArrayLike,
    root: int = 0,
    in_network_reduction: bool = False,
) -> Floats:
    """The least time of ``collective`` on all ranks of ``fabric``, in seconds, at every size.

    in_network_reduction: switches can combine and copy what passes (SHARP, NVLink SHARP, multicast). Then an
        all-reduce must still move its size once out of and once into every rank and every group of ranks,
        and no more; without, 2(k - 1) times between k groups. The other collectives' limits are the same.
    root: of collectives that have one. Raises UsageError for an unknown collective, MachineError for a root
    or sizes that cannot be.
    """
    moved = moved_sizes(collective, size_bytes)
    place = root if collective_row(collective).rooted else 0
    if not 0 <= place < fabric.ranks:
        raise MachineError(f"root: {root} is not a rank; write 0 to {fabric.ranks - 1}")
    kept = _KEPT.setdefault(fabric, {})
    key = (collective, place, in_network_reduction)
    if key not in kept:
        kept[key] = _limits(collective, fabric, place, in_network_reduction)
    latency, algbw = kept[key]
    return np.asarray(np.maximum(latency, moved / algbw) * (1 - ROUNDING))


def _limits(
    collective: str, fabric: Fabric, root: int, in_network: bool
) -> tuple[float, float]:
    """Seconds between the ranks that are farthest apart; most bytes per second, infinite where none move."""
    if fabric.ranks < 2:
        return 0.0, math.inf
    latency = _farthest_seconds(collective, fabric, root)
    if not collective_row(collective).moves_data:
        return latency, math.inf
    rates: list[float | Fraction] = [math.inf]
    if any(level.ranks < fabric.ranks for level in fabric.levels):
        # With reduction in the network a cut limits an all-reduce as it limits a broadcast.
        alike = "broadcast" if in_network and collective == "all_reduce" else collective
        rates.append(level_bound(fabric, alike)[0])
    if fabric.vertices <= MOST_FLOW_VERTICES:
        # Maximum flows are found with 32-bit whole numbers: where rates have no large common divisor they are
        # rounded up a little, so that what the cuts say still holds.
        nominal = fabric.link_bytes_per_second
        unit = 0
        if bool(np.all(nominal == np.floor(nominal))) and np.unique(nominal).sum() < 2**62:
            unit = int(np.gcd.reduce(nominal.astype(np.int64)))
        if not unit or nominal.sum() / unit >= MOST_UNITS:
            grid = math.ceil(float(nominal.max()) / GRID)
            fabric = replace(fabric, link_bytes_per_second=np.ceil(nominal / grid) * grid)
        topology = fabric.topology()
        # Every set of ranks holds rank 0 or lacks it: what leaves it is cut by the first or by the second.
        reducing = in_network and collective == "all_reduce"
        names = ("broadcast", "reduce") if reducing else (collective,)
        rates += [cut_bound(name, topology, root) for name in names]
    return latency, float(min(rates))


def _farthest_seconds(collective: str, fabric: Fabric, root: int) -> float:
    """Seconds between the farthest pair that must talk, along the cheapest ways, ranks as relays included."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import dijkstra

    if not bool(fabric.link_latency_seconds.any()):
        return 0.0
    ranks, starts = fabric.ranks, np.array([root])
    if not collective_row(collective).rooted:
        most = MOST_STARTS if fabric.vertices <= 4096 else 1
        starts = np.unique(np.linspace(0, ranks - 1, min(most, ranks)).astype(np.int64))
    source, target = fabric.link_source, fabric.link_target
    if collective in {"reduce", "gather"}:
        source, target = target, source  # what all others send to the root
    # Of several links between the same ends the quickest counts; a sparse matrix would add them up.
    order = np.lexsort((fabric.link_latency_seconds, source * fabric.vertices + target))
    keys = (source * fabric.vertices + target)[order]
    chosen = order[np.append(True, keys[1:] != keys[:-1])]
    # A sparse matrix has no zero: the smallest number there is stands for it.
    cost = np.maximum(fabric.link_latency_seconds[chosen], 1e-300)
    shape = (fabric.vertices, fabric.vertices)
    # Ranks may relay, so the way is the cheapest there is, not the route.
    ways = dijkstra(
        csr_array((cost, (source[chosen], target[chosen])), shape=shape), indices=starts
    )
    seconds = ways[:, :ranks]
    if collective == "send_recv":
        seconds = seconds[np.arange(len(starts)), (starts + 1) % ranks]
    return float(seconds.max())
