"""Rates that no algorithm exceeds on a graph of links: bounds by cuts, each with the links that make it.

All rates are exact fractions of bytes per second, ``algbw`` in the sense of nccl-tests: size over time, where
the size of all_gather and reduce_scatter is the full buffer and that of all_to_all what one rank sends.
They hold for datasheet rates; nothing here knows of protocols.

The optimum of all_gather is that of Zhao et al. (ForestColl, arXiv 2402.06787): the largest rate x per shard
such that for every set S of vertices that lacks a rank, x times the ranks in S can leave S. It is found by
Dinkelbach's iteration over minimum cuts; the last cut is the explanation.

Capacities are exact: rates become whole numbers of one common unit. The solver knows 32-bit numbers only;
where the scaled numbers do not fit they are rounded for the search, while every cut that comes out is counted
again exactly, so that a bound is right in any case and at worst not the tightest.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ccbench.errors import MachineError
from ccbench.topology.graph import DeviceKind, Link, Topology, may_carry

MOST_FLOWS = 256
"""Separating flows that one bound may try; beyond that, links are only added up, which stays safe."""

LARGEST_CAPACITY = 2**31 - 1
"""What scipy's maximum_flow can count to."""

Side = NDArray[np.bool_]
"""One truth per vertex: is it on the source's side?"""


@dataclass(frozen=True, eq=False)
class FlowGraph:
    """Vertices are the devices of a topology, edges its links that carry data.

    compute: vertices of the ranks, in rank order.
    capacity: whole numbers of ``unit_bytes_per_second``, one per link.
    """

    names: tuple[str, ...]
    compute: tuple[int, ...]
    links: tuple[Link, ...]
    source: NDArray[np.int64]
    target: NDArray[np.int64]
    capacity: tuple[int, ...]
    unit_bytes_per_second: Fraction

    def reversed(self) -> FlowGraph:
        """Every link turned round: what is true of gathering here is true of scattering there."""
        return replace(self, source=self.target, target=self.source)

    @cached_property
    def _sizes(self) -> NDArray[np.object_]:
        return np.array(self.capacity, dtype=object)

    def crossing(self, side: Side) -> NDArray[np.int64]:
        """Indices of the links that lead out of ``side``."""
        return np.flatnonzero(side[self.source] & ~side[self.target])

    def capacity_out(self, side: Side) -> int:
        """Capacity of all links out of ``side``, exact."""
        return int(self._sizes[self.crossing(side)].sum())

    def ranks_in(self, side: Side) -> int:
        """How many ranks ``side`` holds."""
        return int(side[list(self.compute)].sum())

    def side_of(self, vertices: Iterable[int]) -> Side:
        """The side that holds exactly ``vertices``."""
        side = np.zeros(len(self.names), dtype=np.bool_)
        side[list(vertices)] = True
        return side

    @cached_property
    def _solver(self) -> _Solver:
        return _Solver(self)

    def cut_below(self, needed: Fraction, supply: Sequence[Fraction | None], sink: int) -> Side | None:
        """A cut that keeps ``needed`` units from reaching ``sink``; None where they can flow.

        supply: units that each rank can offer; None for as many as wanted. The cut is the source's side of a
        minimum cut.
        """
        return self._solver.cut_below(needed, supply, sink)


class _Solver:
    """The arrays that scipy wants, laid out once: links, then a source, then a sink."""

    def __init__(self, graph: FlowGraph) -> None:
        from scipy.sparse import csr_array

        self.graph = graph
        vertices, ranks = len(graph.names), len(graph.compute)
        self.start, self.end = vertices, vertices + 1
        # Links between the same two vertices are one edge here.
        keys, self.edge_of_link = np.unique(graph.source * vertices + graph.target, return_inverse=True)
        edges: list[int] = [0] * len(keys)
        for edge, capacity in zip(self.edge_of_link.tolist(), graph.capacity, strict=True):
            edges[edge] += capacity
        self.edges = edges
        compute = np.array(graph.compute, dtype=np.int64)
        rows = np.concatenate([keys // vertices, np.full(ranks, self.start), compute])
        columns = np.concatenate([keys % vertices, compute, np.full(ranks, self.end)])
        order = np.lexsort((columns, rows))
        self.place = np.empty(len(order), dtype=np.int64)
        self.place[order] = np.arange(len(order))
        shape = (vertices + 2, vertices + 2)
        ones = np.ones(len(order), dtype=np.int32)
        self.matrix = csr_array((ones, (rows[order], columns[order])), shape=shape)
        self.matrix.sort_indices()
        self.scaled: tuple[Any, NDArray[np.int32]] | None = None

    def _links_scaled(self, scale: Fraction, most: int) -> NDArray[np.int32]:
        """Link capacities times ``scale``; nothing above ``most`` can matter."""
        if self.scaled is None or self.scaled[0] != (scale, most):
            values = [min(most, round(capacity * scale)) for capacity in self.edges]
            self.scaled = ((scale, most), np.array(values, dtype=np.int32))
        return self.scaled[1]

    def cut_below(self, needed: Fraction, supply: Sequence[Fraction | None], sink: int) -> Side | None:
        from scipy.sparse.csgraph import breadth_first_order, maximum_flow

        if needed <= 0:
            return None
        denominator = math.lcm(needed.denominator, *{part.denominator for part in supply if part is not None})
        exact = needed * denominator <= LARGEST_CAPACITY
        scale = Fraction(denominator) if exact else LARGEST_CAPACITY / needed / 2
        most = round(needed * scale)
        data = np.zeros(len(self.place), dtype=np.int32)
        edges, ranks = len(self.edges), len(supply)
        data[self.place[:edges]] = self._links_scaled(scale, most)
        offers = {part: most if part is None else min(most, round(part * scale)) for part in set(supply)}
        data[self.place[edges : edges + ranks]] = [offers[part] for part in supply]
        data[self.place[edges + ranks + self.graph.compute.index(sink)]] = most
        self.matrix.data = data
        result = maximum_flow(self.matrix, self.start, self.end)
        if result.flow_value >= most:
            return None
        residual: Any = self.matrix - result.flow
        residual.data[residual.data < 0] = 0
        residual.eliminate_zeros()
        reached = breadth_first_order(residual, self.start, return_predecessors=False)
        side = np.zeros(len(self.graph.names) + 2, dtype=np.bool_)
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
    names = tuple(device.name for device in topology.devices)
    index = {name: position for position, name in enumerate(names)}
    links = tuple(link for link in topology.links if may_carry(link) and link.source != link.target)
    capacity, unit = _whole(topology.name, links)
    return FlowGraph(
        names,
        tuple(index[name] for name in ranks),
        links,
        np.array([index[link.source] for link in links], dtype=np.int64),
        np.array([index[link.target] for link in links], dtype=np.int64),
        capacity,
        unit,
    )


def _whole(name: str, links: Sequence[Link]) -> tuple[tuple[int, ...], Fraction]:
    for link in links:
        if link.bytes_per_second is None:
            raise MachineError(
                f"{name}: the link {link.source} -> {link.target} has no rate; give its bytes_per_second"
            )
    rates = {link.bytes_per_second: Fraction(link.bytes_per_second or 0) for link in links}
    denominator = math.lcm(1, *(rate.denominator for rate in rates.values()))
    divisor = math.gcd(*(int(rate * denominator) for rate in rates.values())) or 1
    unit = Fraction(divisor, denominator)
    whole = {rate: int(exact / unit) for rate, exact in rates.items()}
    return tuple(whole[link.bytes_per_second] for link in links), unit


def _machines(topology: Topology) -> list[list[int]]:
    """Vertices of each machine: its ranks and all that is in the same box."""
    nodes: dict[int, list[int]] = {}
    for vertex, device in enumerate(topology.devices):
        if device.node >= 0 and device.kind is not DeviceKind.NETWORK_SWITCH:
            nodes.setdefault(device.node, []).append(vertex)
    return list(nodes.values())


@dataclass(frozen=True)
class Cut:
    """A set of devices and the links that lead into it (out of it where ``outward``).

    ranks: GPUs inside; links: all that cross in the direction that counts.
    """

    ranks: tuple[str, ...]
    links: tuple[Link, ...]
    bytes_per_second: Fraction
    outward: bool = False

    def __str__(self) -> str:
        names = [f"{link.source} -> {link.target}" for link in self.links[:3]]
        more = f" and {len(self.links) - 3} more" if len(self.links) > 3 else ""
        inside = ", ".join(self.ranks[:8]) + (", ..." if len(self.ranks) > 8 else "")
        way = "out of" if self.outward else "into"
        rate = f"{float(self.bytes_per_second) / 1e9:.4g} GB/s"
        return f"{rate} {way} {inside} by {', '.join(names) or 'no link at all'}{more}"


@dataclass(frozen=True)
class RateBound:
    """No algorithm moves more than ``algbw_bytes_per_second``; ``cuts`` say why."""

    algbw_bytes_per_second: Fraction
    cuts: tuple[Cut, ...]


def _cut(graph: FlowGraph, side: Side, inside: Side, turned: bool) -> Cut:
    """Links out of ``side``, told as those of the set ``inside`` (``side`` or its complement)."""
    links = tuple(graph.links[index] for index in graph.crossing(side))
    outward = bool(inside[side].all()) != turned
    ranks = tuple(graph.names[vertex] for vertex in graph.compute if inside[vertex])
    return Cut(ranks, links, graph.capacity_out(side) * graph.unit_bytes_per_second, outward)


def _gather_bound(graph: FlowGraph, sinks: Sequence[int], turned: bool = False) -> RateBound:
    """Largest rate per shard at which every rank of ``sinks`` hears all others; Dinkelbach on cuts."""
    ranks = len(graph.compute)
    side, rate = _poorest(graph, sinks)
    verified: set[int] = set()
    pending = list(sinks)
    while pending:
        sink = pending[-1]
        # A verified rank lies in every set that is still too tight, so it may as well be the source.
        supply = [None if vertex in verified else rate for vertex in graph.compute]
        found = graph.cut_below(rate * ranks, supply, sink)
        if found is not None:
            tighter = Fraction(graph.capacity_out(found), graph.ranks_in(found))
            if tighter < rate:
                side, rate = found, tighter
                continue
        pending.pop()
        if len(sinks) == ranks:
            verified.add(sink)
    algbw = rate * ranks * graph.unit_bytes_per_second
    return RateBound(algbw, (_cut(graph, side, ~side, turned),))


def _poorest(graph: FlowGraph, sinks: Sequence[int]) -> tuple[Side, Fraction]:
    """The cut round the one sink into which least can flow: a first guess that often is the answer."""
    into = dict.fromkeys(range(len(graph.names)), 0)
    for target, capacity in zip(graph.target.tolist(), graph.capacity, strict=True):
        into[target] += capacity
    poorest = min(sinks, key=lambda sink: into[sink])
    return ~graph.side_of([poorest]), Fraction(into[poorest], len(graph.compute) - 1)


def _spanning_bound(graph: FlowGraph, start: int, turned: bool) -> RateBound:
    """The least maximum flow from ``start`` to any rank, which trees can use up (Edmonds)."""
    side = graph.side_of([start])
    rate = Fraction(graph.capacity_out(side))
    pending = [vertex for vertex in graph.compute if vertex != start]
    while pending:
        supply = [rate if vertex == start else Fraction(0) for vertex in graph.compute]
        found = graph.cut_below(rate, supply, pending[-1])
        if found is not None and found[start] and graph.capacity_out(found) < rate:
            side, rate = found, Fraction(graph.capacity_out(found))
        else:
            pending.pop()
    return RateBound(rate * graph.unit_bytes_per_second, (_cut(graph, side, ~side, turned),))


def _all_reduce_bound(graph: FlowGraph, machines: Sequence[Sequence[int]]) -> RateBound:
    """A limit for every all_reduce that reduces and copies in GPUs only.

    Of each byte, whichever way the ranks are split into k groups, at least 2(k - 1) messages leave a group
    (gossip among k parties takes as many one-way messages), so the time is at least 2(k - 1) size over the
    sum of what can leave the groups. Tried: single ranks, equal runs of consecutive ranks, machines, and the
    two sides of all_gather's cut.
    """
    gathered = _gather_bound(graph, graph.compute)
    inside = set(gathered.cuts[0].ranks)
    two = [[v for v in graph.compute if (graph.names[v] in inside) is chosen] for chosen in (True, False)]
    best: RateBound | None = None
    for groups in (*_equal_runs(graph.compute), machines, two):
        with_ranks = [group for group in groups if set(group) & set(graph.compute)]
        if len(with_ranks) < 2:
            continue
        sides = [_separating(graph, group, len(with_ranks) <= MOST_FLOWS) for group in with_ranks]
        leaving = sum(graph.capacity_out(side) for side in sides) * graph.unit_bytes_per_second
        algbw = leaving / (2 * (len(sides) - 1))
        if best is None or algbw < best.algbw_bytes_per_second:
            cuts = tuple(_cut(graph, side, side, False) for side in sides)
            best = RateBound(algbw, cuts)
    assert best is not None  # the single ranks are always at least two groups
    return best


def _equal_runs(ranks: Sequence[int]) -> list[list[list[int]]]:
    """``ranks`` one by one, by two, by four, ... as long as the runs are equally long."""
    splits, size = [], 1
    while size < len(ranks) and len(ranks) % size == 0:
        splits.append([list(ranks[start : start + size]) for start in range(0, len(ranks), size)])
        size *= 2
    return splits


def _separating(graph: FlowGraph, group: Sequence[int], by_flow: bool) -> Side:
    """The cheapest known cut that has the ranks of ``group`` on its side and all other ranks beyond."""
    ranks = [vertex for vertex in graph.compute if vertex in set(group)]
    candidates = [graph.side_of(group), graph.side_of(ranks)]
    if by_flow and len(graph.names) <= 4 * MOST_FLOWS:
        candidates.append(_least_cut(graph, ranks))
    return min(candidates, key=graph.capacity_out)


def _least_cut(graph: FlowGraph, ranks: Sequence[int]) -> Side:
    """The minimum cut between ``ranks`` and the other ranks, by one flow from all of one to all of the other.

    The others are merged into one of them, which a flow to a single sink needs.
    """
    others = [vertex for vertex in graph.compute if vertex not in set(ranks)]
    alias = np.arange(len(graph.names))
    alias[others] = others[0]
    source, target = alias[graph.source], alias[graph.target]
    inner = (source == target).tolist()
    merged = replace(
        graph,
        compute=(*ranks, others[0]),
        source=source,
        target=target,
        capacity=tuple(0 if within else size for within, size in zip(inner, graph.capacity, strict=True)),
    )
    everything = Fraction(merged.capacity_out(merged.side_of(ranks)) + 1)
    supply: list[Fraction | None] = [None] * len(ranks) + [Fraction(0)]
    side = merged.cut_below(everything, supply, others[0])
    assert side is not None  # more was asked for than can leave
    result = side[alias]
    result[list(ranks)] = True
    return np.asarray(result)


def _all_to_all_bound(graph: FlowGraph, machines: Sequence[Sequence[int]]) -> RateBound:
    """A limit for all_to_all: what s of p ranks owe the others, s (p - s) / p sizes, must leave them.

    The worst set is hard to find; tried are single ranks, machines, and consecutive halves, quarters and so
    on of the ranks, both directions each. Every one of them is a limit, so the least is.
    """
    ranks = list(graph.compute)
    best: tuple[Fraction, Cut] | None = None
    for direction, turned in ((graph, False), (graph.reversed(), True)):
        for flows, group in enumerate(_blocks(ranks, machines)):
            side = _separating(direction, group, flows < MOST_FLOWS)
            inside = direction.ranks_in(side)
            leaving = direction.capacity_out(side) * graph.unit_bytes_per_second
            algbw = leaving * len(ranks) / (inside * (len(ranks) - inside))
            if best is None or algbw < best[0]:
                best = algbw, _cut(direction, side, side, turned)
    assert best is not None  # there are at least two single ranks
    return RateBound(best[0], (best[1],))


def _blocks(ranks: Sequence[int], nodes: Sequence[Sequence[int]]) -> list[list[int]]:
    """Sets of vertices whose cuts are worth trying, large ones first."""
    blocks: list[list[int]] = []
    size = len(ranks) // 2
    while size > 1:
        blocks += [list(ranks[start : start + size]) for start in range(0, len(ranks) - size + 1, size)]
        size //= 2
    inside = [list(node) for node in nodes if 0 < len(set(node) & set(ranks)) < len(ranks)]
    return inside + blocks + [[vertex] for vertex in ranks]


def _send_recv_bound(graph: FlowGraph) -> RateBound:
    """A limit for the ring shift: each rank sends ``size`` to the next one and receives as much."""
    choices = [
        (direction.capacity_out(direction.side_of([vertex])), vertex, direction, turned)
        for direction, turned in ((graph, False), (graph.reversed(), True))
        for vertex in graph.compute
    ]
    capacity, vertex, direction, turned = min(choices, key=lambda choice: choice[0])
    side = direction.side_of([vertex])
    return RateBound(capacity * graph.unit_bytes_per_second, (_cut(direction, side, side, turned),))


TURNED = ("reduce_scatter", "scatter", "reduce")
"""Collectives whose bound is that of another with every link turned round; reduction in GPUs only."""


def cut_bound(collective: str, topology: Topology, root: int = 0) -> RateBound:
    """The bound of a collective that moves data; of all_to_all_v with blocks of one size.

    Of all_gather, reduce_scatter, gather, scatter, broadcast and reduce it is the optimum, of the others a
    limit. Raises MachineError as ``flow_graph`` does, and for a root that is no rank.
    """
    graph, machines = flow_graph(topology), _machines(topology)
    if not 0 <= root < len(graph.compute):
        raise MachineError(f"root: {root} is not a rank; write 0 to {len(graph.compute) - 1}")
    turned = collective in TURNED
    if turned:
        graph = graph.reversed()
    match collective:
        case "all_gather" | "reduce_scatter":
            return _gather_bound(graph, graph.compute, turned)
        case "gather" | "scatter":
            return _gather_bound(graph, [graph.compute[root]], turned)
        case "broadcast" | "reduce":
            return _spanning_bound(graph, graph.compute[root], turned)
        case "all_reduce":
            return _all_reduce_bound(graph, machines)
        case "all_to_all" | "all_to_all_v":
            return _all_to_all_bound(graph, machines)
        case "send_recv":
            return _send_recv_bound(graph)
    raise MachineError(f"collective: {collective!r} moves no data; it has no bound by links")
