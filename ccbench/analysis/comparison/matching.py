"""Which published figures stand for the same work as a run's points.

The same collective, ranks, placement, size and settings, and the same nodes, element type and op as far as
both say, over a network of the kind and rate that the run declares; another element type stands in where none
of the same is there and bytes are all that counts. The library and its choice of algorithm may differ: what
such a machine gives is the question.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence

from ccbench.cases import NO_OP, WORK
from ccbench.collectives import moves_alike
from ccbench.results import Point, Run
from ccbench.results.importers.runs import UNKNOWN_COLLECTIVE
from ccbench.topology.node_nics import is_other_network

Face = tuple[Sequence[Point], Sequence[Point], str]
"""What the base and the new run have of a case, () where nothing, and what to say about the pair."""


class Published:
    """Published points by what they surely have in common with the like of them."""

    def __init__(self, base: Run) -> None:
        """``base``: the published results of one machine."""
        self._points: dict[tuple[object, ...], list[Point]] = defaultdict(list)
        for point in base.points:
            self._points[_surely(point)].append(point)

    def facing(self, cases: Iterable[Sequence[Point]]) -> list[Face]:
        """Every case of a run with the published point that is most like it."""
        return [self._face(points) for points in cases]

    def _face(self, points: Sequence[Point]) -> Face:
        point = points[0]
        found = [other for other in self._points.get(_surely(point), ()) if may_be_alike(other, point)]
        found = [other for other in found if other.dtype in (point.dtype, "")] or found
        if not found:
            return (), points, ""
        middle, others = middle_of(found, point)
        return (middle,), points, _told(middle, point, others + 1)


def _surely(point: Point) -> tuple[object, ...]:
    names = ("collective", "ranks", "in_place", "size_bytes", *(axis.name for axis in WORK))
    return tuple(getattr(point, name) for name in names)


def may_be_alike(other: Point, point: Point) -> bool:
    """Whether nothing that both say of collective, op, nodes, network and type tells the two apart."""
    known = other.collective == point.collective != UNKNOWN_COLLECTIVE
    same_op = other.op == point.op or NO_OP in (other.op, point.op)  # as where an all-reduce names none
    same_nodes = other.nodes == point.nodes or not other.nodes or not point.nodes
    over = 1 in (other.nodes, point.nodes) or not is_other_network(point.network, other.network)
    alike = moves_alike(point.collective, (other.backend, point.backend), (other.dtype, point.dtype))
    return known and same_op and same_nodes and over and alike


def middle_of(found: Sequence[Point], point: Point) -> tuple[Point, int]:
    """The middle one by time, and how many others there are beside it.

    Of those of the same algorithm and protocol, else of those left to the library, else of all.
    """
    alike = [one for one in found if (one.algorithm, one.protocol) == (point.algorithm, point.protocol)]
    left = [one for one in found if (one.algorithm, one.protocol) == ("default", "default")]
    chosen = alike or left or found
    ordered = sorted(chosen, key=lambda one: (one.median_seconds or math.inf, one.source, one.run))
    return ordered[(len(ordered) - 1) // 2], len(ordered) - 1


def library_of(point: Point) -> str:
    """Library, choice of algorithm, and where a point was published or measured."""
    chosen = " ".join(word for word in (point.algorithm, point.protocol) if word != "default")
    words = (point.backend_version or point.backend, chosen, point.source or point.run)
    return ", ".join(filter(None, words))


def _told(other: Point, point: Point, count: int) -> str:
    parts = [f"base: {library_of(other)}"]
    parts += [f"the middle of {count} like it"] * (count > 1)
    parts += ["nodes not stated"] * (not other.nodes or not point.nodes)
    parts += [f"over {other.network}"] * bool(other.network and other.nodes != 1)
    parts += [f"measured with {other.dtype}"] * (other.dtype not in (point.dtype, ""))
    return ", ".join(parts)
