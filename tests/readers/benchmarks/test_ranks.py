from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.collectives import COLLECTIVES
from ccbench.flags import Flag
from ccbench.readers.benchmarks import readers
from ccbench.readers.benchmarks.log import (
    DeviceLine,
    ImportedLog,
    ImportedRow,
    ImportedTable,
    StatedSystem,
    bus_factor,
    checked,
    ranks_that_fit,
    team_of,
    with_shared_devices,
    with_whole_sizes,
)
from tests.readers.benchmarks import outputs

osu = readers()["osu"]


def _table(ranks: int, busbw: float = 200.0, **changes: object) -> ImportedTable:
    """Two rows of an all-reduce whose rates are printed with two decimals."""
    factor = COLLECTIVES["all_reduce"].bus_factor(ranks)
    rows = tuple(
        ImportedRow(
            size,
            size // 4,
            "float32",
            "sum",
            -1,
            False,
            1e-3,
            round(rate / factor, 2),
            round(rate, 2),
            half_units=(5e-9, 0.005, 0.005),
        )
        for size, rate in ((1 << 20, busbw / 2), (1 << 24, busbw))
    )
    plain: dict[str, object] = {"collective": "all_reduce", "rows": rows}
    return ImportedTable(**{**plain, **changes})  # type: ignore[arg-type]  # fields by name


def fitting(table: ImportedTable) -> tuple[int, ...] | None:
    return ranks_that_fit(table.rows, table.collective)


@given(ranks=st.integers(2, 512), busbw=st.floats(20, 900))
def test_the_true_number_of_ranks_always_fits_the_printed_rates(
    ranks: int, busbw: float
) -> None:
    assert ranks in (fitting(_table(ranks, busbw)) or ())


def test_rates_of_large_busbw_leave_one_number_of_ranks() -> None:
    team = team_of(_table(8, 480.0), StatedSystem())
    assert (team.ranks, team.reason) == (8, "from busbw / algbw")


def test_a_collective_whose_factor_is_always_one_says_nothing() -> None:
    assert fitting(_table(8, collective="broadcast")) is None
    team = team_of(_table(8, collective="broadcast"), StatedSystem())
    assert team.ranks == 0
    assert "give --ranks, or --machine and --nodes" in team.reason


def test_what_the_output_says_counts_more_than_what_the_user_gave() -> None:
    team = team_of(replace(_table(8), ranks=8, nodes=1), StatedSystem("hgx-h100", 8, 2))
    assert (team.ranks, team.nodes, team.reason) == (8, 1, "stated")


def test_options_that_the_printed_rates_exclude_are_refused_with_the_reason() -> None:
    team = team_of(_table(8, 480.0), StatedSystem("hgx-h100", 8, 2))
    assert team.ranks == 0
    assert "make 16 ranks, but busbw / algbw as printed fits 8" in team.reason


def test_more_ranks_than_the_given_machines_have_need_more_nodes() -> None:
    assert team_of(replace(_table(96), ranks=96), StatedSystem("", 8, 8)).nodes == 12
    assert team_of(replace(_table(8), ranks=8), StatedSystem("", 8, 2)).nodes == 2


ROW = ImportedRow(
    1 << 20,
    1 << 18,
    "float32",
    "sum",
    -1,
    False,
    1e-4,
    10.49,
    18.35,
    half_units=(5e-8, 0.005, 0.005),
)
MOVING = sorted(name for name, row in COLLECTIVES.items() if row.moves_data)


def log_of(
    *rows: ImportedRow, collective: str = "all_reduce", ranks: int | None = 8
) -> ImportedLog:
    return ImportedLog("nccl-tests", tables=(ImportedTable(collective, rows, ranks),))


def flags_of(
    row: ImportedRow, collective: str = "all_reduce", ranks: int | None = 8
) -> tuple[str, ...]:
    return checked(log_of(row, collective=collective, ranks=ranks)).tables[0].rows[0].flags


@pytest.mark.parametrize(
    ("changed", "flags"),
    [
        ({"seconds": 1.1e-4}, (Flag.ALGBW_CONTRADICTS_TIME,)),
        ({"size_bytes": 1 << 19}, (Flag.ALGBW_CONTRADICTS_TIME,)),
        ({"busbw": 18.5}, (Flag.BUSBW_CONTRADICTS_ALGBW,)),
        ({"algbw": 11.0}, (Flag.ALGBW_CONTRADICTS_TIME, Flag.BUSBW_CONTRADICTS_ALGBW)),
        ({"seconds": None}, ()),
        ({"algbw": None}, ()),
        ({"busbw": None}, ()),
        ({"size_bytes": 0, "algbw": 0.0, "busbw": 0.0}, ()),
    ],
)
def test_a_contradiction_is_named_and_the_figures_are_kept(
    changed: dict[str, float], flags: tuple[str, ...]
) -> None:
    row = replace(ROW, **changed)  # type: ignore[arg-type]  # each value has its field's type
    after = checked(log_of(row)).tables[0].rows[0]
    assert after.flags == flags
    assert replace(after, flags=()) == row


def test_what_the_output_does_not_say_is_not_checked() -> None:
    wrong = replace(ROW, busbw=1.0)
    assert flags_of(wrong, collective="") == ()
    assert flags_of(wrong, ranks=None) == ()


def test_rates_of_one_ranks_bytes_are_checked_as_such() -> None:
    row = replace(ROW, algbw=10.49 / 8, busbw=10.49 / 8 * 7, flags=(Flag.ALGBW_PER_RANK,))
    assert flags_of(row, "all_gather") == (Flag.ALGBW_PER_RANK,)
    assert flags_of(replace(row, busbw=1.0), "all_gather") == (
        Flag.ALGBW_PER_RANK,
        Flag.BUSBW_CONTRADICTS_ALGBW,
    )
    assert flags_of(row, "all_gather", None) == (Flag.ALGBW_PER_RANK,)


@given(
    size=st.integers(1, 1 << 40),
    seconds=st.floats(1e-7, 1e2),
    collective=st.sampled_from(MOVING),
    ranks=st.integers(2, 4096),
    decimals=st.integers(0, 3),
)
def test_figures_that_a_tool_rounds_are_never_flagged(
    size: int, seconds: float, collective: str, ranks: int, decimals: int
) -> None:
    factor = bus_factor(collective, ranks)
    assert factor is not None
    algbw = size / seconds / 1e9
    half = 0.5 * 10**-decimals
    printed = (round(value, decimals) for value in (seconds * 1e6, algbw, algbw * factor))
    microseconds, algbw, busbw = printed
    row = replace(
        ROW,
        size_bytes=size,
        seconds=microseconds / 1e6,
        algbw=algbw,
        busbw=busbw,
        half_units=(half / 1e6, half, half),
    )
    assert flags_of(row, collective, ranks) == ()


@given(
    st.floats(0.2, 5).filter(lambda factor: abs(factor - 1) > 0.01),
    st.sampled_from(MOVING),
    st.integers(2, 4096),
)
def test_a_rate_that_is_off_by_more_than_its_digits_is_flagged(
    off: float, collective: str, ranks: int
) -> None:
    factor = bus_factor(collective, ranks) or 0.0
    row = replace(
        ROW, algbw=10.48576, busbw=10.48576 * factor * off, half_units=(5e-8, 5e-6, 5e-6)
    )
    assert Flag.BUSBW_CONTRADICTS_ALGBW in flags_of(row, collective, ranks)


@given(
    st.floats(0, 100),
    st.floats(0, 100),
    st.floats(0, 1),
    st.sampled_from([*MOVING, "", "barrier"]),
)
def test_checking_twice_is_checking_once(
    algbw: float, busbw: float, seconds: float, collective: str
) -> None:
    once = checked(
        log_of(replace(ROW, algbw=algbw, busbw=busbw, seconds=seconds), collective=collective)
    )
    assert checked(once) == once
    assert set(once.tables[0].rows[0].flags) <= {*Flag}


def test_a_block_becomes_the_buffer_once_the_ranks_are_known() -> None:
    (unknown,) = osu.read(outputs.OSU_ALL_GATHER.partition("\n")[2]).tables
    (headed,) = osu.read(outputs.OSU_ALL_GATHER).tables
    assert with_whole_sizes(unknown) == unknown
    whole = with_whole_sizes(replace(unknown, ranks=4))
    assert [(r.size_bytes, r.flags) for r in whole.rows] == [
        (r.size_bytes, r.flags) for r in headed.rows
    ]
    assert with_whole_sizes(whole) == whole


@pytest.mark.parametrize(
    ("places", "shared"),
    [
        (((7, "a", 0, "02:00"), (7, "a", 0, "02:00")), True),
        (((7, "a", 0, "02:00"), (8, "a", 0, "02:00")), False),  # each process sees one
        (((7, "a", 0, "0009:01:00"), (8, "a", 0, "0009:01:00")), True),
        (((7, "a", 0, "0009:01:00"), (8, "a", 0, "0019:01:00")), False),
        (((7, "a", 0, "0000:02:00"), (7, "b", 0, "0000:02:00")), False),
        (((None, "a", None, ""), (None, "a", None, "")), False),  # nothing is said
    ],
)
def test_ranks_of_one_host_on_one_device_are_a_loopback(
    places: tuple[tuple[int | None, str, int | None, str], ...], shared: bool
) -> None:
    devices = tuple(DeviceLine(rank, None, *place) for rank, place in enumerate(places))
    tables = (replace(_table(2), ranks=2), replace(_table(4), ranks=4))
    log = ImportedLog("nccl-tests", tables=tables, devices=devices)
    two, four = with_shared_devices(log).tables
    assert {Flag.LOOPBACK in row.flags for row in two.rows} == {shared}
    assert not any(row.flags for row in four.rows)  # of more ranks than are listed
    assert with_shared_devices(with_shared_devices(log)) == with_shared_devices(log)
