"""Times that no algorithm can undercut on a fabric.

The larger of two limits: what must cross a cut at the rates that the links state, and how long a byte takes
between the two ranks that are farthest apart. Not ceil(log2 ranks) messages: through a switch one step
reaches all. Bandwidth: ForestColl's optimum and its relatives (Zhao et al., arXiv 2402.06787) by maximum flow
on small fabrics, on all in closed form the cuts that a fabric has by construction. On symmetric fabrics these
are the tightest cuts there are (tests compare them with maximum flows); on any fabric what they say holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import ArrayLike

from ccbench.collectives import collective as collective_row
from ccbench.errors import MachineError
from ccbench.model.cuts import cut_bound
from ccbench.topology.fabrics import Fabric, LevelCut
from ccbench.topology.routing import Floats

MOST_FLOW_VERTICES = 160
"""Fabrics up to this size are cut by maximum flow too; some tenths of a second at most, once for each."""

MOST_STARTS = 32
"""Ranks whose distances to all others are looked at, where these all count alike."""

MOST_UNITS = 2**30
GRID = 2**14
"""Steps between zero and the fastest rate where rates have to be rounded."""

ROUNDING = 1e-11
"""Prices are sums of up to millions of terms: a bound that equals one must not exceed it by rounding."""


def _all_gather(level: LevelCut, ranks: int) -> Fraction:
    return _rate(level) * ranks / (ranks - level.ranks)


def _rooted(level: LevelCut, ranks: int) -> Fraction:
    """The root's set must receive what is outside it; every other set must send what is inside it.

    Of a set that does not repeat nobody knows whether the root is in it, so the lesser of the two counts.
    """
    choose = max if level.groups else min
    outside = choose(ranks - level.ranks, level.ranks)
    return _rate(level) * ranks / outside


def _broadcast(level: LevelCut, ranks: int) -> Fraction:
    return _rate(level)


def _all_to_all(level: LevelCut, ranks: int) -> Fraction:
    return _rate(level) * ranks / (level.ranks * (ranks - level.ranks))


def _all_reduce(level: LevelCut, ranks: int) -> Fraction:
    """2 (k - 1) messages per byte leave the k groups; a set that does not repeat makes two with the rest."""
    groups = level.groups or 2
    return _rate(level) * groups / (2 * (groups - 1))


def _rate(level: LevelCut) -> Fraction:
    return Fraction(level.bytes_per_second)


LIMITS: dict[str, Callable[[LevelCut, int], Fraction]] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _all_gather,
    "broadcast": _broadcast,
    "reduce": _broadcast,
    "all_to_all": _all_to_all,
    "all_to_all_v": _all_to_all,
    "gather": _rooted,
    "scatter": _rooted,
    "send_recv": _broadcast,
}
"""What one level allows each collective, as size over time."""


def level_bound(fabric: Fabric, collective: str) -> tuple[Fraction, LevelCut]:
    """The least that any level of ``fabric`` allows, as size over time, and the level.

    Raises MachineError for what has no bound here.
    """
    if collective not in LIMITS:
        raise MachineError(f"collective: {collective!r} moves no data; one of {', '.join(LIMITS)}")
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


_KEPT: WeakKeyDictionary[Fabric, dict[tuple[str, int, bool], tuple[float, float]]] = WeakKeyDictionary()


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
    row = collective_row(collective)
    sizes = np.atleast_1d(np.asarray(size_bytes, dtype=np.float64))
    if sizes.ndim != 1 or not bool(np.all((sizes >= 0) & np.isfinite(sizes))):
        raise MachineError(f"size_bytes: {size_bytes!r} are not sizes; give numbers of bytes, zero or more")
    place = root if row.rooted else 0
    if not 0 <= place < fabric.ranks:
        raise MachineError(f"root: {root} is not a rank; write 0 to {fabric.ranks - 1}")
    kept = _KEPT.setdefault(fabric, {})
    key = (collective, place, in_network_reduction)
    if key not in kept:
        kept[key] = _limits(collective, fabric, place, in_network_reduction)
    latency, algbw = kept[key]
    moved = sizes if row.moves_data else np.zeros_like(sizes)
    return np.asarray(np.maximum(latency, moved / algbw) * (1 - ROUNDING))


def _limits(collective: str, fabric: Fabric, root: int, in_network: bool) -> tuple[float, float]:
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
        topology = _countable(fabric).topology()
        # Every set of ranks holds rank 0 or lacks it: what leaves it is cut by the first or by the second.
        reducing = in_network and collective == "all_reduce"
        names = ("broadcast", "reduce") if reducing else (collective,)
        rates += [cut_bound(name, topology, root) for name in names]
    return latency, float(min(rates))


def _countable(fabric: Fabric) -> Fabric:
    """``fabric``, its rates rounded up a little where they have no large common divisor.

    Maximum flows are found with 32-bit whole numbers. Upwards, so that what the cuts say still holds.
    """
    rates = fabric.link_bytes_per_second
    whole = np.unique(rates)
    if bool(np.all(whole == np.floor(whole))) and whole.sum() < 2**62:
        unit = int(np.gcd.reduce(whole.astype(np.int64)))
        if rates.sum() / unit < MOST_UNITS:
            return fabric
    grid = math.ceil(float(rates.max()) / GRID)
    return replace(fabric, link_bytes_per_second=np.ceil(rates / grid) * grid)


def _farthest_seconds(collective: str, fabric: Fabric, root: int) -> float:
    """Seconds between the farthest pair that must talk, along the cheapest ways, ranks as relays included."""
    if not bool(fabric.link_latency_seconds.any()):
        return 0.0
    ranks = fabric.ranks
    starts = np.array([root])
    if not collective_row(collective).rooted:
        most = MOST_STARTS if fabric.vertices <= 4096 else 1
        starts = np.unique(np.linspace(0, ranks - 1, min(most, ranks)).astype(np.int64))
    # Ranks may relay, so the way is the cheapest there is, not the route.
    seconds = _distances(fabric, starts, collective in {"reduce", "gather"})[:, :ranks]
    if collective == "send_recv":
        seconds = seconds[np.arange(len(starts)), (starts + 1) % ranks]
    return float(seconds.max())


def _distances(fabric: Fabric, starts: np.ndarray[tuple[int], np.dtype[np.int64]], towards: bool) -> Floats:
    """Least sum of link latencies from each start to every vertex (from every vertex where ``towards``)."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import dijkstra

    source, target = fabric.link_source, fabric.link_target
    if towards:
        source, target = target, source
    # Of several links between the same ends the quickest counts; a sparse matrix would add them up.
    order = np.lexsort((fabric.link_latency_seconds, source * fabric.vertices + target))
    keys = (source * fabric.vertices + target)[order]
    first = np.append(True, keys[1:] != keys[:-1])
    chosen = order[first]
    # A sparse matrix has no zero: the smallest number there is stands for it.
    cost = np.maximum(fabric.link_latency_seconds[chosen], 1e-300)
    shape = (fabric.vertices, fabric.vertices)
    graph = csr_array((cost, (source[chosen], target[chosen])), shape=shape)
    found: Floats = dijkstra(graph, indices=starts)
    return found
