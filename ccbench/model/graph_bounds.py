"""Times that no algorithm can undercut on a fabric, with the link or the distance that says so.

The larger of two limits: what must cross a cut at the rates that the links state, and how long a byte takes
between the two ranks that are farthest apart. Not ceil(log2 ranks) messages: through a switch one step
reaches all. Bandwidth: ForestColl's optimum and its relatives (Zhao et al., arXiv 2402.06787) by maximum flow
on small fabrics, on all in closed form the cuts that a fabric has by construction. On symmetric fabrics these
are the tightest cuts there are (tests compare them with maximum flows); on any fabric what they say holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import ArrayLike

from ccbench.collectives import collective as collective_row
from ccbench.errors import MachineError
from ccbench.model.cuts import RateBound, cut_bound
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


@dataclass(frozen=True, eq=False)
class FabricBound:
    """The least time at several sizes; arrays have shape (sizes,).

    latency_seconds: between the ranks that are farthest apart; ``way`` names them. algbw_bytes_per_second:
    the most that the cut ``cut`` allows, size over time; infinite where nothing needs to move.
    """

    size_bytes: Floats
    seconds: Floats
    latency_seconds: float
    way: str
    algbw_bytes_per_second: float
    cut: str

    def explanation(self, index: int) -> str:
        """Which of the two limits holds at ``size_bytes[index]``, and whose it is."""
        if self.seconds[index] <= 0:
            return "nothing to do"
        if self.seconds[index] > self.latency_seconds:
            return f"bandwidth: {self.cut}"
        return f"latency: {self.way}"


@dataclass(frozen=True)
class _Limits:
    latency_seconds: float
    way: str
    algbw: float
    cut: str


_KEPT: WeakKeyDictionary[Fabric, dict[tuple[str, int, bool], _Limits]] = WeakKeyDictionary()


def bound_on_fabric(
    collective: str,
    fabric: Fabric,
    size_bytes: ArrayLike,
    root: int = 0,
    in_network_reduction: bool = False,
) -> FabricBound:
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
    limits = kept[key]
    moved = sizes if row.moves_data else np.zeros_like(sizes)
    seconds = np.maximum(limits.latency_seconds, moved / limits.algbw) * (1 - ROUNDING)
    return FabricBound(sizes, seconds, limits.latency_seconds, limits.way, limits.algbw, limits.cut)


def _limits(collective: str, fabric: Fabric, root: int, in_network: bool) -> _Limits:
    if fabric.ranks < 2:
        return _Limits(0.0, "there is one rank", float("inf"), "there is one rank")
    latency, way = _farthest(collective, fabric, root)
    if not collective_row(collective).moves_data:
        return _Limits(latency, way, float("inf"), "no data")
    # With reduction in the network a cut limits an all-reduce as it limits a broadcast.
    alike = "broadcast" if in_network and collective == "all_reduce" else collective
    algbw, cut = _by_level(alike, fabric)
    if fabric.vertices <= MOST_FLOW_VERTICES:
        for bound in _flow_bounds(collective, fabric, root, in_network):
            if bound.algbw_bytes_per_second < algbw:
                algbw, cut = bound.algbw_bytes_per_second, _narrowest(bound)
    return _Limits(latency, way, float(algbw), cut)


def _by_level(collective: str, fabric: Fabric) -> tuple[float | Fraction, str]:
    """The most that the fabric's own cuts allow, size over time, and the cut."""
    if not any(level.ranks < fabric.ranks for level in fabric.levels):
        return math.inf, "no cut is known"
    algbw, level = level_bound(fabric, collective)
    members = "" if level.ranks == 1 else f" of {level.ranks} ranks"
    return algbw, f"{level.bytes_per_second / 1e9:.4g} GB/s into each {level.name}{members}"


def _flow_bounds(collective: str, fabric: Fabric, root: int, in_network: bool) -> list[RateBound]:
    topology = _countable(fabric).topology()
    if in_network and collective == "all_reduce":
        # Every set of ranks holds rank 0 or lacks it: what leaves it is cut by the first or by the second.
        return [cut_bound("broadcast", topology), cut_bound("reduce", topology)]
    return [cut_bound(collective, topology, root)]


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


def _narrowest(bound: RateBound) -> str:
    cut = min(bound.cuts, key=lambda cut: cut.bytes_per_second if cut.ranks else Fraction(0))
    return str(cut)


def _farthest(collective: str, fabric: Fabric, root: int) -> tuple[float, str]:
    """Seconds between the farthest pair that must talk, along the cheapest ways, ranks as relays included."""
    if not bool(fabric.link_latency_seconds.any()):
        return 0.0, "no link states a latency"
    row = collective_row(collective)
    ranks = fabric.ranks
    if row.rooted:
        starts = np.array([root])
    else:
        most = MOST_STARTS if fabric.vertices <= 4096 else 1
        starts = np.unique(np.linspace(0, ranks - 1, min(most, ranks)).astype(np.int64))
    towards = collective in {"reduce", "gather"}
    seconds = _distances(fabric, starts, towards)[:, :ranks]
    if collective == "send_recv":
        neighbours = (starts + 1) % ranks
        seconds = seconds[np.arange(len(starts)), neighbours]
        at = int(seconds.argmax())
        return float(seconds[at]), _pair(fabric, int(starts[at]), int(neighbours[at]))
    row_at, other = divmod(int(seconds.argmax()), ranks)
    ends = (int(starts[row_at]), other)
    return float(seconds[row_at, other]), _pair(fabric, *(ends[::-1] if towards else ends))


def _pair(fabric: Fabric, source: int, target: int) -> str:
    names = fabric.device(source).name, fabric.device(target).name
    return f"one byte from {names[0]} to {names[1]}"


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
