"""Maps of a fleet: times of all pairs of nodes that met, over the usual time, racks side by side."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import groupby

from ccbench.analysis.fleet import FleetVerdict
from ccbench.analysis.fleet_causes import JudgedGroup
from ccbench.report.figure import Figure, FigureAxis, Grid
from ccbench.units import format_ratio, plural

MOST_ROWS = 64

DARKEST = 4.0
"""Times the usual one from which all cells are alike: one huge outlier would leave the rest without a shade."""


def fleet_figures(verdict: FleetVerdict, where: str = "", label: str = "") -> list[Figure]:
    """Return a map for each collective, size and library.

    where: host and machine, for the small print. label: of times that are no measurement.
    """
    works: dict[str, list[JudgedGroup]] = defaultdict(list)
    for group in verdict.judged:
        works[group.seen.work].append(group)
    # A row is a node, or where they are too many a rack, or neighbours.
    names, racks = verdict.names, verdict.racks or ("",) * len(verdict.names)
    first = {rack: node for node, rack in reversed([*enumerate(racks)])}
    order = sorted(range(len(names)), key=lambda node: (first[racks[node]], node))
    bands = [(names[node], [node]) for node in order]
    if len(bands) > MOST_ROWS and any(racks):
        by_rack = groupby(order, key=lambda node: racks[node])
        bands = [(rack or "no rack", [*nodes]) for rack, nodes in by_rack]
    step = -(-len(bands) // MOST_ROWS)
    joined = [bands[place : place + step] for place in range(0, len(bands), step)]
    rows = [
        (
            " - ".join(dict.fromkeys((some[0][0], some[-1][0]))),
            [node for _, own in some for node in own],
        )
        for some in joined
    ]
    return [
        _map(f"{label} {work}".strip(), groups, rows, where)
        for work, groups in works.items()
        if any(len(group.seen.nodes) > 1 for group in groups)
    ]


def _map(
    title: str,
    groups: Iterable[JudgedGroup],
    bands: Sequence[tuple[str, Sequence[int]]],
    where: str,
) -> Figure:
    """Return the map of ``groups``; bands: name and nodes of each row."""
    row_of = {node: row for row, (_, nodes) in enumerate(bands) for node in nodes}
    cells: dict[tuple[int, int], float] = {}
    slow: set[tuple[int, int]] = set()
    for group in groups:
        source, target = row_of[group.seen.nodes[0]], row_of[group.seen.nodes[-1]]
        for cell in ((source, target), (target, source)):
            cells[cell] = max(cells.get(cell, 0.0), min(group.ratio, DARKEST))
            slow |= {cell} if group.slow else set()
    rows = range(len(bands))
    several = len(row_of) > len(bands)
    return Figure(
        key=f"pairs-of-nodes-{title}",
        topic="pairs",
        title=f"{title}: pairs of nodes, time over the usual one",
        subtitle=f"{plural(len(row_of), 'node')}"
        + (
            f" · a cell is the slowest of up to {max(len(nodes) for _, nodes in bands)} nodes a row"
            if several
            else ""
        ),
        x=FigureAxis("with node", "rank", "linear"),
        y=FigureAxis("node", "rank", "linear"),
        footnote=tuple(
            note
            for note in (
                where,
                "On the diagonal each by itself; an empty cell is a pair that did not meet or was lost",
                f"Cells of {format_ratio(DARKEST)} and more are alike",
            )
            if note
        ),
        grid=Grid(
            values=tuple(tuple(cells.get((row, column)) for column in rows) for row in rows),
            texts=(),
            marked=tuple(sorted(slow)),
            unit="time over the usual one",
            large_is_good=False,
            names=tuple(name for name, _ in bands),
        ),
    )
