"""Times that no algorithm can undercut on a fabric, and rates that none exceeds on a graph of links.

The larger of two limits: what must cross a cut at the rates that the links state, and how long a byte takes
between the two ranks that are farthest apart. Not ceil(log2 ranks) messages: through a switch one step
reaches all. Bandwidth: ForestColl's optimum and its relatives (Zhao et al., arXiv 2402.06787) by maximum flow
on small fabrics, on all by the cuts that a fabric has by construction. On symmetric fabrics these
are the tightest cuts there are (tests compare them with maximum flows); on any fabric what they say holds.

Rates of cuts are exact fractions of bytes per second, ``algbw`` in the sense of nccl-tests: size over time,
where the size of all_gather and reduce_scatter is the full buffer and that of all_to_all what one rank sends.
They hold for datasheet rates; nothing here knows of protocols.

The optimum of all_gather is the largest rate x per shard such that for every set S of vertices that lacks a
rank, x times the ranks in S can leave S. It is found by Dinkelbach's iteration over minimum cuts. The solver
knows 32-bit numbers only, to which rates are rounded for the search, while every cut that comes out is counted
again exactly, so that a bound is right in any case and at worst not the tightest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
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

MOST_STARTS = 32
"""Ranks whose distances to all others are looked at, where these all count alike."""

ROUNDING = 1e-11
"""Prices are sums of up to millions of terms: a bound that equals one must not exceed it by rounding."""

LARGEST_CAPACITY = 2**31 - 1
"""Largest capacity that scipy's maximum_flow takes."""

Vertices = AbstractSet[int]
"""One side of a cut."""


@dataclass(frozen=True, eq=False)
class FlowGraph:
    """Vertices are the devices of a topology, edges its links that may carry data.

    ranks: vertices of the ranks, in rank order. rates: exact bytes per second by source and target.
    """

    vertices: frozenset[int]
    ranks: tuple[int, ...]
    rates: Mapping[tuple[int, int], Fraction]

    def reversed(self) -> FlowGraph:
        """Every link turned round: what is true of gathering here is true of scattering there."""
        turned = {(target, source): rate for (source, target), rate in self.rates.items()}
        return replace(self, rates=turned)

    def out_of(self, side: Vertices) -> Fraction:
        """Bytes per second of all links out of ``side``."""
        crossing = (
            rate
            for (source, target), rate in self.rates.items()
            if source in side and target not in side
        )
        return sum(crossing, Fraction(0))

    @cached_property
    def arrays(self) -> tuple[NDArray[np.int64], Floats]:
        """Sources and targets of all links, and their rates, rounded."""
        ends = np.array(list(self.rates), dtype=np.int64).reshape(-1, 2).T
        return ends, np.array(list(self.rates.values()), dtype=np.float64)

    def near(self, supply: Mapping[int, Fraction | None], sinks: Iterable[int]) -> Vertices:
        """The near side of a least cut between what ranks supply and ``sinks``.

        supply: bytes per second that each rank can offer; None for as many as wanted.
        """
        from scipy.sparse import csr_array
        from scipy.sparse.csgraph import breadth_first_order, maximum_flow

        start, end = len(self.vertices), len(self.vertices) + 1
        ends, rates = self.arrays
        offers = np.array(
            [math.inf if offer is None else float(offer) for offer in supply.values()]
        )
        beyond = list(sinks)
        places = np.concatenate(
            [
                ends,
                [[start] * len(offers), list(supply)],
                [beyond, [end] * len(beyond)],
            ],
            axis=1,
        )
        bytes_per_second = np.concatenate([rates, offers, np.full(len(beyond), math.inf)])
        # All that can reach the sinks is half of the largest capacity, so that what carries as much as wanted
        # is never full.
        at_sinks = sum(supply.get(sink) or 0 for sink in beyond)
        most = float(self.out_of(self.vertices - set(beyond)) + at_sinks) or 1.0
        capacity = np.minimum(bytes_per_second / most, 2) * (LARGEST_CAPACITY // 2)
        matrix = csr_array(
            (np.rint(capacity).astype(np.int32), places), shape=(end + 1, end + 1)
        )
        # What the source still reaches over unused capacity is its side of the cut.
        residual: Any = matrix - maximum_flow(matrix, start, end).flow
        residual.data[residual.data < 0] = 0
        residual.eliminate_zeros()
        reached = breadth_first_order(residual, start, return_predecessors=False)
        return frozenset(reached.tolist()) - {start}


def flow_graph(topology: Topology) -> FlowGraph:
    """The graph of ``topology`` whose ranks are its GPUs.

    Links that are down carry nothing; those that nobody could see may, so they count: a limit must hold.
    Raises MachineError for fewer than two ranks, and for a link without a rate, for a bound that leaves it
    out would be wrong.
    """
    ranks = [device.name for device in topology.gpus]
    if len(ranks) < 2:
        raise MachineError(f"{topology.name}: {len(ranks)} GPUs; a bound needs at least two")
    index = {device.name: vertex for vertex, device in enumerate(topology.devices)}
    rates: dict[tuple[int, int], Fraction] = {}
    for link in topology.links:
        ends = index[link.source], index[link.target]
        if not link.may_carry or link.source == link.target:
            continue
        if link.bytes_per_second is None:
            raise MachineError(
                f"{topology.name}: the link {link.source} -> {link.target} has no rate; give its "
                "bytes_per_second"
            )
        # Links between the same two devices are one edge here.
        rates[ends] = rates.get(ends, Fraction(0)) + Fraction(link.bytes_per_second)
    return FlowGraph(frozenset(index.values()), tuple(index[name] for name in ranks), rates)


def _gather_bound(graph: FlowGraph, sinks: Sequence[int]) -> tuple[Fraction, Vertices]:
    """Largest size over time at which every rank of ``sinks`` hears all others, and the cut that limits it.

    Dinkelbach: a rate that some cut does not carry falls to what that cut carries, until no cut is tighter.
    """
    count = len(graph.ranks)
    # The cut round the one sink into which least can flow is a first guess, and often the answer.
    poorest = min(sinks, key=lambda sink: graph.out_of(graph.vertices - {sink}))
    side: Vertices = graph.vertices - {poorest}
    rate = graph.out_of(side) / (count - 1)
    verified: set[int] = set()
    for sink in sinks:
        while rate:
            # A verified rank lies in every set that is still too tight, so it may as well be the source.
            supply = {rank: None if rank in verified else rate for rank in graph.ranks}
            near = graph.near(supply, [sink])
            inside = len(near & set(graph.ranks))
            if graph.out_of(near) >= rate * inside:
                break
            rate, side = graph.out_of(near) / inside, near
        if len(sinks) == count:
            verified.add(sink)
    return rate * count, side


def _separated(graph: FlowGraph, group: Collection[int], by_flow: bool) -> Fraction:
    """What leaves the ranks of ``group`` through the cheapest known cut that has all other ranks beyond it."""
    inside = [rank for rank in graph.ranks if rank in set(group)]
    least = min(graph.out_of(set(group)), graph.out_of(set(inside)))
    if not by_flow:
        return least
    # The minimum cut, by one flow from all of the ones to all of the others.
    beyond = [rank for rank in graph.ranks if rank not in set(group)]
    return min(least, graph.out_of(graph.near(dict.fromkeys(inside), beyond)))


def _all_reduce_bound(graph: FlowGraph, machines: Sequence[Sequence[int]]) -> Fraction:
    """A limit for every all_reduce that reduces and copies in GPUs only.

    Of each byte, whichever way the ranks are split into k groups, at least 2(k - 1) messages leave a group
    (gossip among k parties takes as many one-way messages), so the time is at least 2(k - 1) size over the
    sum of what can leave the groups. Tried: single ranks, equal runs of consecutive ranks, machines, and the
    two sides of all_gather's cut.
    """
    ranks = graph.ranks
    _, near = _gather_bound(graph, ranks)
    splits: list[Sequence[Collection[int]]] = [machines, [near, graph.vertices - near]]
    size = 1
    while size < len(ranks) and len(ranks) % size == 0:
        splits.append([ranks[start : start + size] for start in range(0, len(ranks), size)])
        size *= 2
    rates = []
    for groups in splits:
        with_ranks = [group for group in groups if set(group) & set(ranks)]
        count = len(with_ranks)
        if count >= 2:
            leaving = (_separated(graph, group, count <= MOST_FLOWS) for group in with_ranks)
            rates.append(sum(leaving, Fraction(0)) / (2 * (count - 1)))
    return min(rates)  # the single ranks are always at least two groups


def _all_to_all_bound(graph: FlowGraph, machines: Sequence[Sequence[int]]) -> Fraction:
    """A limit for all_to_all: what s of p ranks owe the others, s (p - s) / p sizes, must leave them.

    The worst set is hard to find; tried are single ranks, machines, and consecutive halves, quarters and so
    on of the ranks, both directions each. Every one of them is a limit, so the least is.
    """
    ranks, count = graph.ranks, len(graph.ranks)
    # Large ones first, for flows are spent on these.
    blocks: list[Sequence[int]] = [
        machine for machine in machines if 0 < len(set(machine) & set(ranks)) < count
    ]
    size = count // 2
    while size:
        blocks += [ranks[start : start + size] for start in range(0, count - size + 1, size)]
        size //= 2
    rates = []
    for way in (graph, graph.reversed()):
        for place, group in enumerate(blocks):
            inside = len(set(group) & set(ranks))
            leaving = _separated(way, group, place < MOST_FLOWS)
            rates.append(leaving * count / (inside * (count - inside)))
    return min(rates)


def cut_bound(collective: str, topology: Topology, root: int = 0) -> Fraction:
    """The most bytes per second that a collective moves, size over time; of all_to_all_v with equal blocks.

    Of all_gather, reduce_scatter, gather, scatter, broadcast and reduce it is the optimum where as much can
    leave each switch as enters it, else, and of the others, a limit. Raises MachineError as ``flow_graph``
    does, and for a root that is no rank.
    """
    graph = flow_graph(topology)
    if not 0 <= root < len(graph.ranks):
        raise MachineError(f"root: {root} is not a rank; write 0 to {len(graph.ranks) - 1}")
    # Vertices of each machine: its ranks and all that is in the same box.
    machines: dict[int, list[int]] = {}
    for vertex, device in enumerate(topology.devices):
        if device.node >= 0 and device.kind is not DeviceKind.NETWORK_SWITCH:
            machines.setdefault(device.node, []).append(vertex)
    if collective in ("reduce_scatter", "scatter", "reduce"):
        # What reduces in GPUs only is what it undoes, with every link turned round.
        graph = graph.reversed()
    ranks, start = graph.ranks, graph.ranks[root]
    match collective:
        case "all_gather" | "reduce_scatter":
            return _gather_bound(graph, ranks)[0]
        case "gather" | "scatter":
            return _gather_bound(graph, [start])[0]
        case "broadcast" | "reduce":
            # The least maximum flow from the root to any rank, which trees can use up (Edmonds).
            others = (rank for rank in ranks if rank != start)
            return min(graph.out_of(graph.near({start: None}, [rank])) for rank in others)
        case "all_reduce":
            return _all_reduce_bound(graph, list(machines.values()))
        case "all_to_all" | "all_to_all_v":
            return _all_to_all_bound(graph, list(machines.values()))
        case "send_recv":
            # A ring shift: each rank sends its size to the next one and receives as much.
            ways = graph, graph.reversed()
            return min(way.out_of({rank}) for way in ways for rank in ranks)
    raise MachineError(f"collective: {collective!r} moves no data; it has no bound by links")


def _whole_size(level: LevelCut, ranks: int) -> Fraction:
    return Fraction(1)


def _all_gather(level: LevelCut, ranks: int) -> Fraction:
    return Fraction(ranks, ranks - level.ranks)


def _all_to_all(level: LevelCut, ranks: int) -> Fraction:
    return Fraction(ranks, level.ranks * (ranks - level.ranks))


def _all_reduce(level: LevelCut, ranks: int) -> Fraction:
    # 2 (k - 1) messages per byte leave the k groups; a set that does not repeat makes two with the rest.
    groups = level.groups or 2
    return Fraction(groups, 2 * (groups - 1))


def _rooted(level: LevelCut, ranks: int) -> Fraction:
    # The root's set must receive what is outside it; every other set must send what is inside it. Of a set
    # that does not repeat nobody knows whether the root is in it, so the lesser of the two counts.
    choose = max if level.groups else min
    return Fraction(ranks, choose(ranks - level.ranks, level.ranks))


LIMITS: dict[str, Callable[[LevelCut, int], Fraction]] = {
    "all_reduce": _all_reduce,
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
"""Size over time that one level of a fabric allows each collective, in rates of its cut."""


def level_bound(fabric: Fabric, collective: str) -> tuple[Fraction, LevelCut]:
    """The least that any level of ``fabric`` allows, as size over time, and the level.

    Raises MachineError for what has no bound here.
    """
    return least_of(fabric.levels, fabric.ranks, collective)


def least_of(
    levels: Iterable[LevelCut], ranks: int, collective: str
) -> tuple[Fraction, LevelCut]:
    """The least that any of these cuts through so many ranks allows, and the cut; see ``level_bound``."""
    if collective not in LIMITS:
        raise MachineError(
            f"collective: {collective!r} moves no data; one of {', '.join(LIMITS)}"
        )
    # A ring shift within a level need not leave it: only single ranks are sure to.
    kept = [
        level
        for level in levels
        if level.ranks < ranks and (collective != "send_recv" or level.ranks == 1)
    ]
    if not kept:
        raise MachineError(f"{ranks} ranks; a bound needs at least two")
    rates = {
        level: Fraction(level.bytes_per_second) * LIMITS[collective](level, ranks)
        for level in kept
    }
    least = min(rates, key=lambda level: rates[level])
    return rates[least], least


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


def place_of(root: int, collective: str, ranks: int) -> int:
    """Return ``root``, 0 for what has none. Raises MachineError where it is none of so many ranks."""
    place = root if collective_row(collective).rooted else 0
    if not 0 <= place < ranks:
        raise MachineError(f"root: {root} is not a rank; write 0 to {ranks - 1}")
    return place


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
    place = place_of(root, collective, fabric.ranks)
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
        topology = fabric.topology
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
        starts = np.unique(np.linspace(0, ranks - 1, min(MOST_STARTS, ranks)).astype(np.int64))
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
