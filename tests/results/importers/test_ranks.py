from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from ccbench.collectives import COLLECTIVES
from ccbench.results.importers.log import DeviceLine, ImportedRow, ImportedTable
from ccbench.results.importers.ranks import Given, ranks_that_fit, team_of


def _table(ranks: int, busbw: float = 200.0, **changes: object) -> ImportedTable:
    """Two rows of an all-reduce whose rates are printed with two decimals."""
    factor = COLLECTIVES["all_reduce"].bus_factor(ranks)
    rows = tuple(
        ImportedRow(
            size, size // 4, "float32", "sum", -1, False, 1e-3, round(rate / factor, 2), round(rate, 2),
            half_units=(5e-9, 0.005, 0.005),
        )
        for size, rate in ((1 << 20, busbw / 2), (1 << 24, busbw))
    )  # fmt: skip
    plain: dict[str, object] = {"collective": "all_reduce", "rows": rows}
    return ImportedTable(**{**plain, **changes})  # type: ignore[arg-type]  # fields by name


def fitting(table: ImportedTable) -> tuple[int, ...] | None:
    return ranks_that_fit(table.rows, table.collective)


@given(ranks=st.integers(2, 512), busbw=st.floats(20, 900))
def test_the_true_number_of_ranks_always_fits_the_printed_rates(ranks: int, busbw: float) -> None:
    assert ranks in (fitting(_table(ranks, busbw)) or ())


def test_rates_of_large_busbw_leave_one_number_of_ranks() -> None:
    team = team_of(_table(8, 480.0), (), Given())
    assert (team.ranks, team.reason) == (8, "from busbw / algbw")


def test_a_collective_whose_factor_is_always_one_says_nothing() -> None:
    assert fitting(_table(8, collective="broadcast")) is None
    team = team_of(_table(8, collective="broadcast"), (), Given())
    assert team.ranks == 0
    assert "give --machine and --nodes" in team.reason


def test_what_the_output_says_counts_more_than_what_the_user_gave() -> None:
    team = team_of(replace(_table(8), ranks=8, nodes=1), (), Given("hgx-h100", 8, 2))
    assert (team.ranks, team.nodes, team.reason) == (8, 1, "stated")


def test_machine_and_nodes_fill_in_what_is_not_said() -> None:
    team = team_of(_table(16, collective="broadcast"), (), Given("hgx-h100", 8, 2))
    assert (team.ranks, team.nodes, team.reason) == (16, 2, "given")


def test_options_that_the_printed_rates_exclude_are_refused_with_the_reason() -> None:
    team = team_of(_table(8, 480.0), (), Given("hgx-h100", 8, 2))
    assert team.ranks == 0
    assert "make 16 ranks, but busbw / algbw as printed fits 8" in team.reason


def test_hosts_of_a_whole_device_list_are_the_nodes() -> None:
    devices = tuple(DeviceLine(rank, host=f"n{rank // 2}") for rank in range(4))
    assert team_of(replace(_table(4), ranks=4), devices, Given()).nodes == 2
    assert team_of(replace(_table(4), ranks=4), devices[:3], Given()).nodes == 0


def test_more_ranks_than_the_given_machines_have_need_more_nodes() -> None:
    assert team_of(replace(_table(96), ranks=96), (), Given("", 8, 8)).nodes == 12
    assert team_of(replace(_table(8), ranks=8), (), Given("", 8, 2)).nodes == 2
