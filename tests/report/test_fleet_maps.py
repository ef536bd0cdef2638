"""Maps of pairs of nodes: racks side by side, slow pairs framed, large fleets in fewer rows."""

from __future__ import annotations

from ccbench.analysis.fleet import FleetVerdict, fleet_of
from ccbench.analysis.fleet_times import GroupTime
from ccbench.groups import PairingRound
from ccbench.report.figure import Grid
from ccbench.report.fleet_maps import DARKEST, MOST_ROWS, fleet_figures


def fleet(nodes: int, racks: int = 0, slow: int = 1, factor: float = 1.5) -> FleetVerdict:
    """Three rounds of pairs and each node alone; nodes take turns in the racks."""
    times = [GroupTime("alone", (node,), 1.0, work="w") for node in range(nodes)]
    times += [
        GroupTime("pairs", pair, factor if slow in pair else 1.0, work="w")
        for number in range(3)
        for pair in PairingRound("matching", number, 3).pairs(nodes)
    ]
    names = [f"n{node}" for node in range(nodes)]
    return fleet_of(
        times, names, [f"r{node % racks}" for node in range(nodes)] if racks else ()
    )


def grid_of(verdict: FleetVerdict) -> Grid:
    (figure,) = fleet_figures(verdict, "host a")
    assert figure.grid is not None
    assert figure.title.startswith("w: pairs of nodes")
    assert figure.footnote[0] == "host a"
    return figure.grid


def test_a_large_fleet_has_a_row_a_rack_and_without_racks_one_for_neighbours() -> None:
    grid = grid_of(fleet(128, racks=8, factor=9.0))
    assert grid.names == tuple(f"r{rack}" for rack in range(8))
    assert {row for cell in grid.marked for row in cell} > {1}
    assert max(value or 0.0 for row in grid.values for value in row) == DARKEST
    assert all(1 in cell for cell in grid.marked)
    grid = grid_of(fleet(160))
    assert len(grid.values) == 54 <= MOST_ROWS
    assert grid.names[:2] == ("n0 - n2", "n3 - n5")
    assert grid.names[-1] == "n159"
