from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.cases import Case, Measurement, Status
from ccbench.results import Origin, RunFolder, load_run
from ccbench.results.rows import FINE_ENOUGH, imported_case_id, imported_speed, row_of
from ccbench.results.schema import SCHEMA

CASE = Case("nccl-tests", "nccl", "all_reduce", "default", "float32", "sum", 1 << 20, 1 << 18, 8)
ORIGIN = Origin(
    "log.txt", 1, 12, "nccl-tests", seconds=1e-5, algbw=104.86, busbw=183.5, time_statistic="mean"
)


def _row(origin: Origin = ORIGIN, status: Status = Status.OK, case: Case = CASE) -> dict[str, object]:
    return row_of(Measurement(case, status), None, 0.95, origin)


def test_an_imported_row_has_every_column_and_a_measured_one_has_them_too() -> None:
    names = {column.name for column in SCHEMA}
    assert set(_row()) == names
    measured = row_of(Measurement(CASE, Status.OK, samples_seconds=(1e-5,)), None, 0.95)
    assert set(measured) == names
    assert {name for name, value in measured.items() if value is None} <= {
        column.name for column in SCHEMA if column.null_when
    }


def test_printed_figures_are_kept_and_no_interval_is_made_up() -> None:
    row = _row()
    assert (row["median_seconds"], row["algbw_GB_s"], row["busbw_GB_s"]) == (1e-5, 104.86, 183.5)
    assert row["low_seconds"] is None
    assert row["high_seconds"] is None
    assert row["samples_seconds"] is None


@pytest.mark.parametrize("status", [status for status in Status if status != Status.OK])
def test_only_a_row_that_is_ok_has_a_speed(status: Status) -> None:
    row = _row(status=status)
    assert row["median_seconds"] is None
    assert row["busbw_GB_s"] is None
    assert row["printed_busbw_GB_s"] == 183.5


def test_a_collective_nobody_knows_has_the_bandwidths_that_are_printed() -> None:
    row = _row(case=replace(CASE, collective="hypercube"))
    assert (row["algbw_GB_s"], row["busbw_GB_s"]) == (104.86, 183.5)
    bare = _row(replace(ORIGIN, busbw=None), case=replace(CASE, collective="hypercube"))
    assert bare["busbw_GB_s"] is None


@given(seconds=st.floats(1e-7, 10), ranks=st.integers(2, 4096), size=st.integers(1, 2**40))
def test_where_rates_are_not_printed_they_follow_from_the_time(seconds: float, ranks: int, size: int) -> None:
    case = replace(CASE, ranks=ranks, size_bytes=size)
    origin = replace(ORIGIN, seconds=seconds, algbw=None, busbw=None)
    speed = imported_speed(Measurement(case, Status.OK), origin)
    assert speed["algbw_GB_s"] == pytest.approx(size / seconds / 1e9)
    assert speed["busbw_GB_s"] == pytest.approx(speed["algbw_GB_s"] * 2 * (ranks - 1) / ranks)


@given(rate=st.floats(FINE_ENOUGH, 1e4), ranks=st.integers(2, 64))
def test_where_no_time_is_printed_it_follows_from_a_rate(rate: float, ranks: int) -> None:
    case = replace(CASE, ranks=ranks)
    origin = replace(ORIGIN, seconds=None, algbw=None, busbw=rate)
    speed = imported_speed(Measurement(case, Status.OK), origin)
    factor = 2 * (ranks - 1) / ranks
    assert speed["median_seconds"] == pytest.approx(case.size_bytes / (rate / factor) / 1e9)
    assert speed["time_statistic"] == "from bandwidth"


def test_the_same_case_elsewhere_is_another_file(tmp_path: Path) -> None:
    elsewhere = [ORIGIN, replace(ORIGIN, line=13), replace(ORIGIN, table=2), replace(ORIGIN, source="b.txt")]
    assert len({imported_case_id(CASE, one) for one in elsewhere}) == 4
    with RunFolder.create(tmp_path / "run", {}) as folder:
        for one in elsewhere:
            folder.write(Measurement(CASE, Status.OK), None, origin=one)
    run = load_run(tmp_path / "run")
    assert run.problems == ()
    assert len(run.cases) == 4
