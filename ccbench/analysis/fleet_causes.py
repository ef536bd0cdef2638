"""Causes of slow groups of nodes: the smallest set of possible causes that touches everything slow.

A cause is possible if nothing of it that it touches was fast. The set is a minimum set cover, by SciPy's mixed
integer solver.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ccbench.analysis.fleet_times import GroupTime


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
        ends = " and ".join(names[node] for node in self.nodes)
        rail = f"rail {self.number} of " if self.number >= 0 else ""
        match self.kind:
            case "slow_rack":
                return f"rack {self.rack}"
            case "slow_leaf":
                return f"network of rack {self.rack}"
            case "slow_uplinks":
                return f"uplinks of rack {self.rack}"
            case "slow_network":
                return f"network of {ends}"
            case "slow_inside":
                return f"{ends} by itself"
            case "slow_link" | "lost_link":
                return f"{rail}path between {ends}"
        return f"{rail}{ends}"


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
    slow = [group.seen for group in judged if group.slow]
    touched: dict[FleetCause, frozenset[int]] = {}
    for cause in _possible(judged, racks):
        rows = frozenset(place for place, group in enumerate(slow) if cause.touches(group))
        # Two causes of one node or rack that touch the same are told apart by nothing: the wider one stands for both.
        if rows and (rows, cause.nodes) not in {
            (covered, possible.nodes) for possible, covered in touched.items()
        }:
            touched[cause] = rows
    certain: list[FleetCause] = []
    unknown: list[tuple[FleetCause, ...]] = []
    for causes in _components(touched):
        every = {row for cause in causes for row in touched[cause]}
        best = _cover(causes, touched, every) or []
        # What no other set of that size can do without is certain.
        shared = []
        for member in best:
            without = _cover([each for each in causes if each != member], touched, every)
            if without is None or len(without) > len(best):
                shared.append(member)
        certain += shared
        left = every - {row for member in shared for row in touched[member]}
        if left:
            unknown.append(
                tuple(
                    sorted(
                        cause
                        for cause in causes
                        if touched[cause] & left and cause not in shared
                    )
                )
            )
    return tuple(sorted(certain)), tuple(unknown)


def _components(touched: Mapping[FleetCause, Collection[int]]) -> Iterator[list[FleetCause]]:
    """Yield causes that are joined by what they touch; each part is solved on its own."""
    by_row: dict[int, list[FleetCause]] = defaultdict(list)
    for cause, rows in touched.items():
        for row in rows:
            by_row[row].append(cause)
    left = dict.fromkeys(touched)
    while left:
        part, waiting = list[FleetCause](), [next(iter(left))]
        while waiting:
            cause = waiting.pop()
            if cause in left:
                del left[cause]
                part.append(cause)
                waiting += [
                    neighbour
                    for row in touched[cause]
                    for neighbour in by_row[row]
                    if neighbour in left
                ]
        yield part


def _cover(
    causes: Sequence[FleetCause],
    touched: Mapping[FleetCause, Collection[int]],
    rows: Collection[int],
) -> list[FleetCause] | None:
    """Return a smallest set of ``causes`` that touches all ``rows``; None where there is none."""
    if not set(rows) <= {row for cause in causes for row in touched[cause]}:
        return None
    from scipy.optimize import Bounds, LinearConstraint, milp

    places = sorted(rows)
    matrix: NDArray[np.float64] = np.zeros((len(places), len(causes)))
    for column, cause in enumerate(causes):
        matrix[np.searchsorted(places, sorted(touched[cause])), column] = 1.0
    each = np.ones(len(causes), np.int64)
    solved = milp(
        each, constraints=LinearConstraint(matrix, 1.0), integrality=each, bounds=Bounds(0, 1)
    )
    assert solved.x is not None, "taking all of them is a solution"
    return [cause for cause, taken in zip(causes, solved.x, strict=True) if taken > 0.5]


def _of_racks(slow: Sequence[GroupTime], racks: Sequence[str]) -> Iterator[FleetCause]:
    """Yield the causes of racks of which two nodes and more are slow: one alone explains itself."""
    affected = {node for group in slow for node in group.nodes}
    members: dict[str, list[int]] = defaultdict(list)
    for node, rack in enumerate(racks):
        members[rack].append(node)
    for rack, nodes in members.items():
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
