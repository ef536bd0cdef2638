"""Which published figures stand for the same work as a run's points.

The same collective, ranks, placement, size and settings, and the same nodes, element type and op as far as
both say, over a network of the kind and rate that the run declares; another element type stands in where none
of the same is there and bytes are all that counts. The library and its choice of algorithm may differ: what
such a machine gives is the question.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from ccbench.cases import NO_OP, WORK
from ccbench.collectives import moves_alike
from ccbench.comparison.sides import Row
from ccbench.comparison.values import Point
from ccbench.importing.runs import UNKNOWN_COLLECTIVE
from ccbench.runs import Run
from ccbench.topology.node_nics import is_other_network

Face = tuple[Point, list[Row] | None, list[Row] | None, str]
"""A point, the rows of either side, and what to say about the pair."""


class Published:
    """Published rows by what they surely have in common with the like of them."""

    def __init__(self, base: Run, network: str = "") -> None:
        """``network``: that of the run, as it declares it."""
        self._network = network
        self._rows: dict[tuple[object, ...], list[Row]] = defaultdict(list)
        for row in base.cases.to_dict("records"):
            self._rows[_surely({str(name): value for name, value in row.items()})].append(row)

    def facing(self, points: Mapping[Point, list[Row]]) -> list[Face]:
        """Every point of a run with the published row that is most like it, None where there is none."""
        return [(point, *self._like(point, rows)) for point, rows in points.items()]

    def _like(self, point: Point, rows: list[Row]) -> tuple[list[Row] | None, list[Row], str]:
        found = [row for row in self._rows.get(_surely(vars(point)), []) if self._maybe(row, point)]
        found = [row for row in found if row["dtype"] in (point.dtype, "")] or found
        if not found or point.collective == UNKNOWN_COLLECTIVE:
            return None, rows, ""
        chosen = _preferred(point, found)
        row = chosen[(len(chosen) - 1) // 2]
        return [row], rows, _told(row, point, len(chosen))

    def _maybe(self, row: Row, point: Point) -> bool:
        """Whether nothing that both say tells them apart."""
        op = row["op"] == point.op or NO_OP in (row["op"], point.op)
        nodes = not row["nodes"] or not point.nodes or row["nodes"] == point.nodes
        over = 1 in (row["nodes"], point.nodes) or not is_other_network(self._network, row["network"])
        types = (row["dtype"], point.dtype)
        return op and nodes and over and moves_alike(point.collective, (row["backend"], point.backend), types)


def _surely(values: Mapping[str, object]) -> tuple[object, ...]:
    names = ("collective", "ranks", "in_place", "size_bytes", *(axis.name for axis in WORK))
    return tuple(values[name] for name in names)


def _preferred(point: Point, found: Sequence[Row]) -> list[Row]:
    """By time: those of the same algorithm and protocol, else those left to the library, else all."""
    asked = (point.algorithm, point.protocol)
    alike = [row for row in found if (row["algorithm"], row["protocol"]) == asked]
    left = [row for row in found if (row["algorithm"], row["protocol"]) == ("default", "default")]
    return sorted(alike or left or found, key=lambda row: (row["median_seconds"], row["source"]))


def _told(row: Row, point: Point, count: int) -> str:
    chosen = " ".join(str(row[name]) for name in ("algorithm", "protocol") if row[name] != "default")
    parts = [
        f"base: {row['backend_version'] or row['backend']}",
        *[chosen] * bool(chosen),
        str(row["source"]),
    ]
    parts += [f"the middle of {count} like it"] * (count > 1)
    parts += ["nodes not stated"] * (not row["nodes"] or not point.nodes)
    parts += [f"over {row['network']}"] * (row["network"] != "" and row["nodes"] != 1)
    parts += [f"measured with {row['dtype']}"] * (row["dtype"] not in (point.dtype, ""))
    return ", ".join(parts)
