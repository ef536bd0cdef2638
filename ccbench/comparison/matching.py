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
from ccbench.importing.runs import UNKNOWN_COLLECTIVE
from ccbench.results import Point, Run
from ccbench.topology.node_nics import is_other_network

Face = tuple[Sequence[Point], Sequence[Point], str]
"""What the base and the new run have of a case, () where nothing, and what to say about the pair."""


class Published:
    """Published points by what they surely have in common with the like of them."""

    def __init__(self, base: Run, network: str = "") -> None:
        """``network``: that of the run, as it declares it."""
        self._network = network
        self._points: dict[tuple[object, ...], list[Point]] = defaultdict(list)
        for point in base.points:
            self._points[_surely(point)].append(point)

    def facing(self, cases: Iterable[Sequence[Point]]) -> list[Face]:
        """Every case of a run with the published point that is most like it."""
        faces = []
        for points in cases:
            like, told = self._like(points[0])
            faces.append((like, points, told))
        return faces

    def _like(self, point: Point) -> tuple[Sequence[Point], str]:
        found = [other for other in self._points.get(_surely(point), ()) if self._maybe(other, point)]
        found = [other for other in found if other.dtype in (point.dtype, "")] or found
        if not found or point.collective == UNKNOWN_COLLECTIVE:
            return (), ""
        chosen = _preferred(point, found)
        middle = chosen[(len(chosen) - 1) // 2]
        return (middle,), _told(middle, point, len(chosen))

    def _maybe(self, other: Point, point: Point) -> bool:
        """Whether nothing that both say tells them apart."""
        op = other.op == point.op or NO_OP in (other.op, point.op)
        nodes = not other.nodes or not point.nodes or other.nodes == point.nodes
        over = 1 in (other.nodes, point.nodes) or not is_other_network(self._network, other.network)
        backends, types = (other.backend, point.backend), (other.dtype, point.dtype)
        return op and nodes and over and moves_alike(point.collective, backends, types)


def _surely(point: Point) -> tuple[object, ...]:
    names = ("collective", "ranks", "in_place", "size_bytes", *(axis.name for axis in WORK))
    return tuple(getattr(point, name) for name in names)


def _preferred(point: Point, found: Sequence[Point]) -> list[Point]:
    """By time: those of the same algorithm and protocol, else those left to the library, else all."""
    alike = [one for one in found if (one.algorithm, one.protocol) == (point.algorithm, point.protocol)]
    left = [one for one in found if (one.algorithm, one.protocol) == ("default", "default")]
    return sorted(alike or left or found, key=lambda one: (one.median_seconds or math.inf, one.source))


def _told(other: Point, point: Point, count: int) -> str:
    chosen = " ".join(word for word in (other.algorithm, other.protocol) if word != "default")
    parts = [f"base: {other.backend_version or other.backend}", *[chosen] * bool(chosen), other.source]
    parts += [f"the middle of {count} like it"] * (count > 1)
    parts += ["nodes not stated"] * (not other.nodes or not point.nodes)
    parts += [f"over {other.network}"] * bool(other.network and other.nodes != 1)
    parts += [f"measured with {other.dtype}"] * (other.dtype not in (point.dtype, ""))
    return ", ".join(parts)
