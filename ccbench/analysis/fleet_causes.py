"""Causes of slow groups of nodes: the smallest set of possible causes that touches everything slow.

A cause is possible if nothing of it that it touches was fast. The set is a minimum set cover, by SciPy's mixed
integer solver.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ccbench.analysis.fleet_times import GroupTime
from ccbench.results.keys import grouped

NAMES = {
    "slow_rack": "rack {rack}",
    "slow_leaf": "network of rack {rack}",
    "slow_uplinks": "uplinks of rack {rack}",
    "slow_network": "network of {ends}",
    "slow_inside": "{ends} by itself",
    "slow_link": "{rail}path between {ends}",
    "lost_link": "{rail}path between {ends}",
}
"""Of kinds of causes; others are named by their node."""


@dataclass(frozen=True, order=True)
class FleetCause:
    """Something that may be slow.

    nodes: whose. number: of the rail, -1 for all of them. rack: that all of its ``nodes`` share, '' of a node.
    """

    kind: str
    nodes: tuple[int, ...]
    number: int = -1
    rack: str = ""

    def touches(self, group: GroupTime) -> bool:
        """Return whether a fault here slows ``group`` down."""
        if self.rack:
            inside = len({*group.nodes} & {*self.nodes})
            most = len(group.nodes) - (self.kind == "slow_uplinks")
            return 0 < inside <= most and (self.kind == "slow_rack" or len(group.nodes) > 1)
        if self.kind in ("slow_link", "lost_link"):
            return group.nodes == self.nodes and self.number in (-1, group.rail)
        if self.nodes[0] not in group.nodes:
            return False
        match self.kind:
            case "slow_network":
                return len(group.nodes) > 1
            case "slow_inside":
                return len(group.nodes) == 1
            case "slow_rail":
                return group.rail == self.number
        return True

    def named(self, names: Sequence[str]) -> str:
        """Return the cause by the names of its nodes."""
        form = NAMES.get(self.kind, "{rail}{ends}")
        ends = " and ".join(names[node] for node in self.nodes)
        rail = f"rail {self.number} of " if self.number >= 0 else ""
        return form.format(rack=self.rack, ends=ends, rail=rail)


@dataclass(frozen=True)
class JudgedGroup:
    """Observations of the same nodes as one. ratio: its time over the usual one. times: how many they are."""

    seen: GroupTime
    ratio: float
    slow: bool
    times: int


def smallest_causes(
    judged: Sequence[JudgedGroup], racks: Sequence[str] = ()
) -> tuple[tuple[FleetCause, ...], tuple[tuple[FleetCause, ...], ...]]:
    """Return (causes that every smallest set has, alternatives where smallest sets differ).

    racks: of each node, '' where that is not known.
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    slow = [group.seen for group in judged if group.slow]
    # Two causes of one node or rack that touch the same are told apart by nothing: the wider one stands for both.
    widest: dict[tuple[tuple[bool, ...], tuple[int, ...]], FleetCause] = {}
    for cause in _possible(judged, racks):
        if any(touched := tuple(map(cause.touches, slow))):
            widest.setdefault((touched, cause.nodes), cause)
    causes = [*widest.values()]
    certain: list[FleetCause] = []
    unknown: list[tuple[FleetCause, ...]] = []
    if not causes:
        return (), ()
    table = np.array([row for row, _ in widest])
    # Causes that are joined by what they touch are solved on their own.
    sparse = csr_array(table, dtype=np.int64)
    count, labels = connected_components(sparse @ sparse.T)
    for label in range(count):
        part = np.flatnonzero(labels == label)
        parted = table[part][:, table[part].any(axis=0)]
        best = _cover(parted)
        # What no other set of that size can do without is certain.
        shared = [
            place
            for place in np.flatnonzero(best)
            if _cover(np.delete(parted, place, axis=0)).sum() != best.sum()
        ]
        certain += [causes[part[place]] for place in shared]
        left = ~parted[shared].any(axis=0)
        also = [*np.flatnonzero(np.sum(parted[:, left], axis=1))]
        if left.any():
            also = [place for place in also if place not in shared]
            unknown.append(tuple(sorted(causes[place] for place in part[also])))
    return tuple(sorted(certain)), tuple(unknown)


def _cover(touched: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return a smallest set of causes that touches all groups, a row of ``touched`` each; none where there is none."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    each = np.ones(len(touched), np.int64)
    if not touched.any(axis=0).all():
        return each < 1
    every = LinearConstraint(touched.T.astype(float), 1.0)
    solved = milp(each, constraints=every, integrality=each, bounds=Bounds(0, 1))
    assert solved.x is not None, "taking all of them is a solution"
    return np.asarray(solved.x > 0.5)


def _of_racks(slow: Sequence[GroupTime], racks: Sequence[str]) -> Iterator[FleetCause]:
    """Yield the causes of racks of which two nodes and more are slow: one alone explains itself."""
    affected = {node for group in slow for node in group.nodes}
    for rack, nodes in grouped(range(len(racks)), racks.__getitem__).items():
        if rack and len(affected & {*nodes}) > 1:
            for kind in ("slow_rack", "slow_leaf", "slow_uplinks"):
                yield FleetCause(kind, tuple(nodes), rack=rack)


def _possible(judged: Sequence[JudgedGroup], racks: Sequence[str]) -> Iterator[FleetCause]:
    """Yield every cause that touches something slow and nothing fast, the widest of a node or rack first.

    A group's own nodes and rail are among them, so nothing slow is left without a cause.
    """
    slow = [group.seen for group in judged if group.slow]
    fast_of: dict[int, list[GroupTime]] = defaultdict(list)
    for group in judged:
        for node in group.seen.nodes if not group.slow else ():
            fast_of[node].append(group.seen)
    nodes = sorted({node for times in slow for node in times.nodes})
    kinds = ("slow_node", "slow_network", "slow_inside")
    candidates = [FleetCause(kind, (node,)) for node in nodes for kind in kinds]
    candidates += _of_racks(slow, racks)
    rails = [times for times in slow if times.rail >= 0]
    candidates += [
        FleetCause("slow_rail", (node,), rail.rail) for rail in rails for node in rail.nodes
    ]
    candidates += [
        FleetCause("slow_link", times.nodes) for times in slow if len(times.nodes) > 1
    ]
    candidates += [FleetCause("slow_link", rail.nodes, rail.rail) for rail in rails]
    for cause in dict.fromkeys(candidates):
        if not any(cause.touches(times) for node in cause.nodes for times in fast_of[node]):
            yield cause
