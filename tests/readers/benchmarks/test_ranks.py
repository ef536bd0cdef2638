from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.collectives import COLLECTIVES
from ccbench.flags import Flag
from ccbench.readers.benchmarks.log import (
    ImportedLog,
    ImportedRow,
    ImportedTable,
    bus_factor,
    checked,
    ranks_that_fit,
)


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
