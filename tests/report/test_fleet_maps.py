"""Maps of pairs of nodes: racks side by side, slow pairs framed, large fleets in fewer rows."""

from __future__ import annotations

import pytest

from ccbench.analysis.fleet import FleetVerdict, fleet_of
from ccbench.analysis.fleet_times import GroupTime
from ccbench.groups import PairingRound
from ccbench.report.drawing import canvas_of
from ccbench.report.figure import Grid
from ccbench.report.figures import every_figure
from ccbench.report.fleet_maps import DARKEST, MOST_ROWS, fleet_figures
from tests.analysis.test_fleet_rounds import Fleet, round_robin


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


def test_nodes_of_a_rack_stand_side_by_side_and_slow_pairs_are_framed() -> None:
    grid = grid_of(fleet(8, racks=2))
    assert grid.names == ("n0", "n2", "n4", "n6", "n1", "n3", "n5", "n7")
    assert len(grid.marked) == 6
    assert all("n1" in {grid.names[row], grid.names[column]} for row, column in grid.marked)
    for row, column in grid.marked:
        assert grid.values[row][column] == grid.values[column][row] == pytest.approx(1.5)
    assert [grid.values[row][row] for row in range(8)] == [1.0] * 8
    met = sum(value is not None for row in grid.values for value in row)
    assert met == 8 + 2 * 3 * 4


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


def test_a_fleet_whose_nodes_were_never_paired_has_no_map() -> None:
    alone = [GroupTime("alone", (node,), 1.0) for node in range(8)]
    assert fleet_figures(fleet_of(alone, [f"n{node}" for node in range(8)])) == []


def test_the_report_of_a_fleet_check_has_the_map_with_the_names_of_hosts() -> None:
    checked = Fleet(8, slow=frozenset({3}))
    run = checked.checked(checked.planned(round_robin(8)))
    (figure,) = (
        figure for figure in every_figure([run], [run.points], [], None) if figure.grid
    )
    assert figure.grid is not None
    assert figure.grid.names == checked.names
    assert {row for cell in figure.grid.marked for row in cell} == set(range(8))
    assert all(3 in cell for cell in figure.grid.marked)
    labels = [text.get_text() for text in canvas_of(figure).figure.axes[0].get_xticklabels()]
    assert labels == list(checked.names)
