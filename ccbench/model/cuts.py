"""What no algorithm can undercut on a graph of links: bounds by cuts, each with the links that make it.

All rates are exact fractions of bytes per second, ``algbw`` in the sense of nccl-tests: size over time, where
the size of all_gather and reduce_scatter is the full buffer and that of all_to_all what one rank sends.
They hold for datasheet rates; nothing here knows of protocols.

The optimum of all_gather is that of Zhao et al. (ForestColl, arXiv 2402.06787): the largest rate x per shard
such that for every set S of vertices that lacks a rank, x times the ranks in S can leave S. It is found by
Dinkelbach's iteration over minimum cuts; the last cut is the explanation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from ccbench.errors import MachineError
from ccbench.model.flow_graph import FlowGraph, Side, flow_graph, groups_by_node
from ccbench.topology.graph import Link, Topology

MOST_FLOWS = 256
"""Separating flows that one bound may try; beyond that, links are only added up, which stays safe."""


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
    """No algorithm moves more than ``algbw_bytes_per_second``; ``cuts`` say why.

    exact: the optimum itself and not just a limit (only all_gather, reduce_scatter, gather, scatter and
        broadcast have one here). False also where numbers did not fit the solver.
    """

    collective: str
    ranks: int
    algbw_bytes_per_second: Fraction
    cuts: tuple[Cut, ...]
    exact: bool

    def seconds(self, size_bytes: float) -> float:
        """Seconds that ``size_bytes`` take at least."""
        if size_bytes <= 0:
            return 0.0
        rate = float(self.algbw_bytes_per_second)
        return size_bytes / rate if rate else float("inf")


def _cut(graph: FlowGraph, side: Side, inside: Side, turned: bool) -> Cut:
    """Links out of ``side``, told as those of the set ``inside`` (``side`` or its complement)."""
    links = tuple(graph.links[index] for index in graph.crossing(side))
    outward = bool(inside[side].all()) != turned
    ranks = tuple(graph.names[vertex] for vertex in graph.compute if inside[vertex])
    return Cut(ranks, links, graph.capacity_out(side) * graph.unit_bytes_per_second, outward)


def _gather_bound(collective: str, graph: FlowGraph, sinks: Sequence[int], turned: bool) -> RateBound:
    """Largest rate per shard at which every rank of ``sinks`` hears all others; Dinkelbach on cuts."""
    ranks = len(graph.compute)
    side, rate = _poorest(graph, sinks)
    verified: set[int] = set()
    all_exact, pending = True, list(sinks)
    while pending:
        sink = pending[-1]
        # A verified rank lies in every set that is still too tight, so it may as well be the source.
        supply = [None if vertex in verified else rate for vertex in graph.compute]
        found, exact = graph.cut_below(rate * ranks, supply, sink)
        all_exact = all_exact and exact
        if found is not None:
            tighter = Fraction(graph.capacity_out(found), graph.ranks_in(found))
            if tighter < rate:
                side, rate = found, tighter
                continue
        pending.pop()
        if len(sinks) == ranks:
            verified.add(sink)
    algbw = rate * ranks * graph.unit_bytes_per_second
    return RateBound(collective, ranks, algbw, (_cut(graph, side, ~side, turned),), all_exact)


def _poorest(graph: FlowGraph, sinks: Sequence[int]) -> tuple[Side, Fraction]:
    """The cut round the one sink into which least can flow: a first guess that often is the answer."""
    into = dict.fromkeys(range(len(graph.names)), 0)
    for target, capacity in zip(graph.target.tolist(), graph.capacity, strict=True):
        into[target] += capacity
    poorest = min(sinks, key=lambda sink: into[sink])
    return ~graph.side_of([poorest]), Fraction(into[poorest], len(graph.compute) - 1)


def all_gather_bound(topology: Topology, participants: Sequence[str] | None = None) -> RateBound:
    """The optimum of all_gather. Raises MachineError as ``flow_graph`` does."""
    graph = flow_graph(topology, participants)
    return _gather_bound("all_gather", graph, graph.compute, False)


def reduce_scatter_bound(topology: Topology, participants: Sequence[str] | None = None) -> RateBound:
    """The optimum of reduce_scatter without reduction in the network: all_gather with links turned round."""
    graph = flow_graph(topology, participants).reversed()
    return _gather_bound("reduce_scatter", graph, graph.compute, True)


def gather_bound(topology: Topology, root: int = 0, participants: Sequence[str] | None = None) -> RateBound:
    """The optimum of gather to rank ``root``."""
    graph = flow_graph(topology, participants)
    return _gather_bound("gather", graph, [_rank(graph, root)], False)


def scatter_bound(topology: Topology, root: int = 0, participants: Sequence[str] | None = None) -> RateBound:
    """The optimum of scatter from rank ``root``."""
    graph = flow_graph(topology, participants).reversed()
    return _gather_bound("scatter", graph, [_rank(graph, root)], True)


def broadcast_bound(
    topology: Topology, root: int = 0, participants: Sequence[str] | None = None
) -> RateBound:
    """The optimum of broadcast from ``root``: the least maximum flow to any rank (Edmonds)."""
    return _spanning_bound("broadcast", flow_graph(topology, participants), root, False)


def reduce_bound(topology: Topology, root: int = 0, participants: Sequence[str] | None = None) -> RateBound:
    """The optimum of reduce to ``root``: broadcast with links turned round."""
    return _spanning_bound("reduce", flow_graph(topology, participants).reversed(), root, True)


def _spanning_bound(collective: str, graph: FlowGraph, root: int, turned: bool) -> RateBound:
    start = _rank(graph, root)
    side = graph.side_of([start])
    rate, all_exact = Fraction(graph.capacity_out(side)), True
    pending = [vertex for vertex in graph.compute if vertex != start]
    while pending:
        supply = [rate if vertex == start else Fraction(0) for vertex in graph.compute]
        found, exact = graph.cut_below(rate, supply, pending[-1])
        all_exact = all_exact and exact
        if found is not None and found[start] and graph.capacity_out(found) < rate:
            side, rate = found, Fraction(graph.capacity_out(found))
        else:
            pending.pop()
    algbw = rate * graph.unit_bytes_per_second
    return RateBound(collective, len(graph.compute), algbw, (_cut(graph, side, ~side, turned),), all_exact)


def _rank(graph: FlowGraph, root: int) -> int:
    if not 0 <= root < len(graph.compute):
        raise MachineError(f"root: {root} is not a rank; write 0 to {len(graph.compute) - 1}")
    return graph.compute[root]


def all_reduce_bound(topology: Topology, participants: Sequence[str] | None = None) -> RateBound:
    """A limit for every all_reduce that reduces and copies in GPUs only.

    Of each byte, whichever way the ranks are split into k groups, at least 2(k - 1) messages leave a group
    (gossip among k parties takes as many one-way messages), so the time is at least 2(k - 1) size over the
    sum of what can leave the groups. Tried: single ranks, equal runs of consecutive ranks, machines, and the
    two sides of all_gather's cut.
    """
    graph = flow_graph(topology, participants)
    gathered = _gather_bound("all_gather", graph, graph.compute, False)
    inside = set(gathered.cuts[0].ranks)
    two = [[v for v in graph.compute if (graph.names[v] in inside) is chosen] for chosen in (True, False)]
    best: RateBound | None = None
    for groups in (*_equal_runs(graph.compute), groups_by_node(topology, graph), two):
        with_ranks = [group for group in groups if set(group) & set(graph.compute)]
        if len(with_ranks) < 2:
            continue
        sides = [_separating(graph, group, len(with_ranks) <= MOST_FLOWS) for group in with_ranks]
        leaving = sum(graph.capacity_out(side) for side in sides) * graph.unit_bytes_per_second
        algbw = leaving / (2 * (len(sides) - 1))
        if best is None or algbw < best.algbw_bytes_per_second:
            cuts = tuple(_cut(graph, side, side, False) for side in sides)
            best = RateBound("all_reduce", len(graph.compute), algbw, cuts, False)
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
    merged = FlowGraph(
        graph.names,
        (*ranks, others[0]),
        graph.links,
        source,
        target,
        tuple(0 if within else size for within, size in zip(inner, graph.capacity, strict=True)),
        graph.unit_bytes_per_second,
    )
    everything = Fraction(merged.capacity_out(merged.side_of(ranks)) + 1)
    supply: list[Fraction | None] = [None] * len(ranks) + [Fraction(0)]
    side, _ = merged.cut_below(everything, supply, others[0])
    assert side is not None  # more was asked for than can leave
    result = side[alias]
    result[list(ranks)] = True
    return np.asarray(result)


def all_to_all_bound(topology: Topology, participants: Sequence[str] | None = None) -> RateBound:
    """A limit for all_to_all: what s of p ranks owe the others, s (p - s) / p sizes, must leave them.

    The worst set is hard to find; tried are single ranks, machines, and consecutive halves, quarters and so
    on of the ranks, both directions each. Every one of them is a limit, so the least is.
    """
    graph = flow_graph(topology, participants)
    ranks = list(graph.compute)
    best: tuple[Fraction, Cut] | None = None
    for direction, turned in ((graph, False), (graph.reversed(), True)):
        for flows, group in enumerate(_blocks(ranks, groups_by_node(topology, graph))):
            side = _separating(direction, group, flows < MOST_FLOWS)
            inside = direction.ranks_in(side)
            leaving = direction.capacity_out(side) * graph.unit_bytes_per_second
            algbw = leaving * len(ranks) / (inside * (len(ranks) - inside))
            if best is None or algbw < best[0]:
                best = algbw, _cut(direction, side, side, turned)
    assert best is not None  # there are at least two single ranks
    return RateBound("all_to_all", len(ranks), best[0], (best[1],), False)


def _blocks(ranks: Sequence[int], nodes: Sequence[Sequence[int]]) -> list[list[int]]:
    """Sets of vertices whose cuts are worth trying, large ones first."""
    blocks: list[list[int]] = []
    size = len(ranks) // 2
    while size > 1:
        blocks += [list(ranks[start : start + size]) for start in range(0, len(ranks) - size + 1, size)]
        size //= 2
    inside = [list(node) for node in nodes if 0 < len(set(node) & set(ranks)) < len(ranks)]
    return inside + blocks + [[vertex] for vertex in ranks]


def send_recv_bound(topology: Topology, participants: Sequence[str] | None = None) -> RateBound:
    """A limit for the ring shift: each rank sends ``size`` to the next one and receives as much."""
    graph = flow_graph(topology, participants)
    choices = [
        (direction.capacity_out(direction.side_of([vertex])), vertex, direction, turned)
        for direction, turned in ((graph, False), (graph.reversed(), True))
        for vertex in graph.compute
    ]
    capacity, vertex, direction, turned = min(choices, key=lambda choice: choice[0])
    side = direction.side_of([vertex])
    algbw = capacity * graph.unit_bytes_per_second
    return RateBound("send_recv", len(graph.compute), algbw, (_cut(direction, side, side, turned),), False)


BOUNDS: dict[str, Callable[..., RateBound]] = {
    "all_reduce": all_reduce_bound,
    "all_gather": all_gather_bound,
    "reduce_scatter": reduce_scatter_bound,
    "broadcast": broadcast_bound,
    "reduce": reduce_bound,
    "all_to_all": all_to_all_bound,
    "all_to_all_v": all_to_all_bound,
    "gather": gather_bound,
    "scatter": scatter_bound,
    "send_recv": send_recv_bound,
}
"""The bound of each collective that moves data; of all_to_all_v with blocks of one size."""
