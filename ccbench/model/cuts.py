"""Rates that no algorithm exceeds on a graph of links: bounds by cuts.

All rates are exact fractions of bytes per second, ``algbw`` in the sense of nccl-tests: size over time, where
the size of all_gather and reduce_scatter is the full buffer and that of all_to_all what one rank sends.
They hold for datasheet rates; nothing here knows of protocols.

The optimum of all_gather is that of Zhao et al. (ForestColl, arXiv 2402.06787): the largest rate x per shard
such that for every set S of vertices that lacks a rank, x times the ranks in S can leave S. It is found by
Dinkelbach's iteration over minimum cuts.

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
    def _sizes(self) -> NDArray[np.object_]:
        return np.array(self.capacity, dtype=object)

    def capacity_out(self, side: Side) -> int:
        """Capacity of all links out of ``side``, exact."""
        return int(self._sizes[side[self.source] & ~side[self.target]].sum())

    def ranks_in(self, side: Side) -> int:
        """How many ranks ``side`` holds."""
        return int(side[list(self.compute)].sum())

    def side_of(self, vertices: Iterable[int]) -> Side:
        """The side that holds exactly ``vertices``."""
        side = np.zeros(self.vertices, dtype=np.bool_)
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
        vertices, ranks = graph.vertices, len(graph.compute)
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
        # Multiplied up until all are whole numbers, or rounded where those would not fit 32 bits.
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
        side = np.zeros(self.graph.vertices + 2, dtype=np.bool_)
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
    links = tuple(link for link in topology.links if may_carry(link) and link.source != link.target)
    capacity, unit = _whole(topology.name, links)
    return FlowGraph(
        len(index),
        tuple(index[name] for name in ranks),
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


def _gather_bound(graph: FlowGraph, sinks: Sequence[int]) -> tuple[Fraction, Side]:
    """Largest size over time at which every rank of ``sinks`` hears all others, and the cut that limits it.

    Dinkelbach: a rate that some cut does not carry falls to what that cut carries, until no cut is tighter.
    """
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
    return rate * ranks * graph.unit_bytes_per_second, side


def _poorest(graph: FlowGraph, sinks: Sequence[int]) -> tuple[Side, Fraction]:
    """The cut round the one sink into which least can flow: a first guess that often is the answer."""
    # Exact whole numbers: sums of NumPy integers could overflow.
    into = dict.fromkeys(range(graph.vertices), 0)
    for target, capacity in zip(graph.target.tolist(), graph.capacity, strict=True):
        into[target] += capacity
    poorest = min(sinks, key=lambda sink: into[sink])
    return ~graph.side_of([poorest]), Fraction(into[poorest], len(graph.compute) - 1)


def _spanning_bound(graph: FlowGraph, start: int) -> Fraction:
    """The least maximum flow from ``start`` to any rank, which trees can use up (Edmonds)."""
    rate = Fraction(graph.capacity_out(graph.side_of([start])))
    pending = [vertex for vertex in graph.compute if vertex != start]
    while pending:
        supply = [rate if vertex == start else Fraction(0) for vertex in graph.compute]
        found = graph.cut_below(rate, supply, pending[-1])
        if found is not None and found[start] and graph.capacity_out(found) < rate:
            rate = Fraction(graph.capacity_out(found))
        else:
            pending.pop()
    return rate * graph.unit_bytes_per_second


def _all_reduce_bound(graph: FlowGraph, machines: Sequence[Sequence[int]]) -> Fraction:
    """A limit for every all_reduce that reduces and copies in GPUs only.

    Of each byte, whichever way the ranks are split into k groups, at least 2(k - 1) messages leave a group
    (gossip among k parties takes as many one-way messages), so the time is at least 2(k - 1) size over the
    sum of what can leave the groups. Tried: single ranks, equal runs of consecutive ranks, machines, and the
    two sides of all_gather's cut.
    """
    _, cut = _gather_bound(graph, graph.compute)
    two = [[vertex for vertex in graph.compute if cut[vertex] == chosen] for chosen in (False, True)]
    rates = []
    for groups in (*_equal_runs(graph.compute), machines, two):
        with_ranks = [group for group in groups if set(group) & set(graph.compute)]
        if len(with_ranks) >= 2:
            sides = [_separating(graph, group, len(with_ranks) <= MOST_FLOWS) for group in with_ranks]
            leaving = sum(graph.capacity_out(side) for side in sides) * graph.unit_bytes_per_second
            rates.append(leaving / (2 * (len(sides) - 1)))
    return min(rates)  # the single ranks are always at least two groups


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
    if by_flow and graph.vertices <= 4 * MOST_FLOWS:
        candidates.append(_least_cut(graph, ranks))
    return min(candidates, key=graph.capacity_out)


def _least_cut(graph: FlowGraph, ranks: Sequence[int]) -> Side:
    """The minimum cut between ``ranks`` and the other ranks, by one flow from all of one to all of the other.

    The others are merged into one of them, which a flow to a single sink needs.
    """
    others = [vertex for vertex in graph.compute if vertex not in set(ranks)]
    # Vertices that are merged keep their numbers but for the ranks beyond, which become one.
    alias = np.arange(graph.vertices)
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


def _all_to_all_bound(graph: FlowGraph, machines: Sequence[Sequence[int]]) -> Fraction:
    """A limit for all_to_all: what s of p ranks owe the others, s (p - s) / p sizes, must leave them.

    The worst set is hard to find; tried are single ranks, machines, and consecutive halves, quarters and so
    on of the ranks, both directions each. Every one of them is a limit, so the least is.
    """
    ranks = list(graph.compute)
    rates = []
    for direction in (graph, graph.reversed()):
        for flows, group in enumerate(_blocks(ranks, machines)):
            side = _separating(direction, group, flows < MOST_FLOWS)
            inside = direction.ranks_in(side)
            leaving = direction.capacity_out(side) * graph.unit_bytes_per_second
            rates.append(leaving * len(ranks) / (inside * (len(ranks) - inside)))
    return min(rates)


def _blocks(ranks: Sequence[int], nodes: Sequence[Sequence[int]]) -> list[list[int]]:
    """Sets of vertices whose cuts are worth trying, large ones first."""
    blocks: list[list[int]] = []
    size = len(ranks) // 2
    while size > 1:
        blocks += [list(ranks[start : start + size]) for start in range(0, len(ranks) - size + 1, size)]
        size //= 2
    inside = [list(node) for node in nodes if 0 < len(set(node) & set(ranks)) < len(ranks)]
    return inside + blocks + [[vertex] for vertex in ranks]


def _send_recv_bound(graph: FlowGraph) -> Fraction:
    """A limit for the ring shift: each rank sends ``size`` to the next one and receives as much."""
    capacities = (
        direction.capacity_out(direction.side_of([vertex]))
        for direction in (graph, graph.reversed())
        for vertex in graph.compute
    )
    return min(capacities) * graph.unit_bytes_per_second


TURNED = ("reduce_scatter", "scatter", "reduce")
"""Collectives whose bound is that of another with every link turned round; reduction in GPUs only."""


def cut_bound(collective: str, topology: Topology, root: int = 0) -> Fraction:
    """The most bytes per second that a collective moves, size over time; of all_to_all_v with equal blocks.

    Of all_gather, reduce_scatter, gather, scatter, broadcast and reduce it is the optimum, of the others a
    limit. Raises MachineError as ``flow_graph`` does, and for a root that is no rank.
    """
    graph, machines = flow_graph(topology), _machines(topology)
    if not 0 <= root < len(graph.compute):
        raise MachineError(f"root: {root} is not a rank; write 0 to {len(graph.compute) - 1}")
    if collective in TURNED:
        graph = graph.reversed()
    match collective:
        case "all_gather" | "reduce_scatter":
            return _gather_bound(graph, graph.compute)[0]
        case "gather" | "scatter":
            return _gather_bound(graph, [graph.compute[root]])[0]
        case "broadcast" | "reduce":
            return _spanning_bound(graph, graph.compute[root])
        case "all_reduce":
            return _all_reduce_bound(graph, machines)
        case "all_to_all" | "all_to_all_v":
            return _all_to_all_bound(graph, machines)
        case "send_recv":
            return _send_recv_bound(graph)
    raise MachineError(f"collective: {collective!r} moves no data; it has no bound by links")
