from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ccbench.cases import Case, Measurement, Status
from ccbench.report.nccl_tests_format import Table, nccl_tests_tables
from ccbench.report.points import points_of

from .synthetic import case, failed, sweep, write_run


def _tables(path: Path, *args: object, **kwargs: object) -> tuple[Table, ...]:
    return nccl_tests_tables(points_of(write_run(path / "run", *args, **kwargs)))  # type: ignore[arg-type]  # passed on as given


def _rows(table: Table) -> list[list[str]]:
    return [line.split() for line in table.text.splitlines() if not line.startswith("#")]


def _timed(seconds: float) -> object:
    return lambda one: replace(one, samples_seconds=(seconds,) * 9)


def test_a_row_is_laid_out_as_nccl_tests_lays_it_out(tmp_path: Path) -> None:
    one = case("all_reduce", "ring", 1048576)
    (table,) = _tables(
        tmp_path, [one, replace(one, in_place=True)], {0: _timed(36.1e-6), 1: _timed(34.19e-6)}
    )
    (row,) = [line for line in table.text.splitlines() if not line.startswith("#")]
    assert row == (
        "     1048576        262144     float     sum      -1"
        "    36.10   29.05   43.57      0    34.19   30.67   46.00      0"
    )
    header = [line for line in table.text.splitlines() if "redop" in line]
    placement = ["time", "algbw", "busbw", "#wrong"]
    assert header[0].split()[1:] == ["size", "count", "type", "redop", "root", *placement, *placement]
    assert len(header[0]) == len(row)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(8.5e-7, "0.85"), (99.99e-6, "99.99"), (123.44e-6, "123.4"), (9999.0e-6, "9999.0"), (0.067018, "67018")],
)
def test_times_have_the_digits_nccl_tests_prints(tmp_path: Path, seconds: float, text: str) -> None:
    (table,) = _tables(tmp_path, [case("all_reduce", "ring", 4096)], {0: _timed(seconds)})
    assert _rows(table)[0][5] == text


def test_a_placement_that_was_not_measured_is_not_available(tmp_path: Path) -> None:
    (table,) = _tables(tmp_path, sweep())
    for row in _rows(table):
        assert len(row) == 13
        assert row[9:] == ["N/A"] * 4


def test_bandwidths_follow_from_size_and_time(tmp_path: Path) -> None:
    (table,) = _tables(tmp_path, sweep("all_gather"))
    for row in _rows(table):
        size, time, algbw, busbw = float(row[0]), float(row[5]), float(row[6]), float(row[7])
        assert size / time / 1e3 == pytest.approx(algbw, abs=0.006, rel=0.01)
        assert algbw * 0.75 == pytest.approx(busbw, abs=0.01)


def test_cases_without_a_result_have_no_numbers_and_a_remark(tmp_path: Path) -> None:
    def wrong(one: Measurement) -> Measurement:
        return replace(one, status=Status.WRONG, wrong_elements=3, detail="3 differ")

    edits = {0: lambda one: failed(one, Status.TIMED_OUT, "rank 1 hung"), 1: wrong}
    (table,) = _tables(tmp_path, sweep(), edits)
    rows = _rows(table)
    assert rows[0][5:9] == ["N/A"] * 4
    assert rows[1][5:9] == ["N/A", "N/A", "N/A", "3"]
    assert "# 1024 B out of place: timed_out rank 1 hung" in table.text
    assert "# Out of bounds values : 1 FAILED" in table.text


def test_every_series_is_a_table_of_its_own(tmp_path: Path) -> None:
    cases: list[Case] = [*sweep(algorithms=("ring", "tree")), *sweep(ranks=8), *sweep(backend="mpi")]
    tables = _tables(tmp_path, cases)
    assert [table.name for table in tables] == [
        "cpu-all_reduce-ring-4ranks",
        "cpu-all_reduce-ring-8ranks",
        "cpu-all_reduce-tree-4ranks",
        "mpi-all_reduce-ring-4ranks",
    ]
    assert "# Collective test starting: all_reduce_perf" in tables[0].text


def test_the_average_is_over_all_rows_and_placements(tmp_path: Path) -> None:
    (table,) = _tables(tmp_path, sweep())
    average = float(table.text.split("# Avg bus bandwidth    :")[1].split()[0])
    rates = [float(row[7]) for row in _rows(table)]
    assert average == pytest.approx(sum(rates) / len(rates), abs=0.01)


def test_a_simulated_run_says_so_and_barriers_move_nothing(tmp_path: Path) -> None:
    (table,) = _tables(tmp_path, [case("barrier", "dissemination", 0)], simulated=True)
    assert "# SIMULATED: times come from a model" in table.text
    assert _rows(table)[0][6:8] == ["0.00", "0.00"]


def test_an_empty_run_has_no_table_and_a_failed_one_no_average(tmp_path: Path) -> None:
    assert _tables(tmp_path / "a", []) == ()
    (table,) = _tables(tmp_path / "b", sweep(last=10), {0: lambda one: failed(one, Status.FAILED, "x")})
    assert "# Avg bus bandwidth    : N/A" in table.text


def test_odd_names_cannot_add_lines(tmp_path: Path) -> None:
    one = replace(case("all_reduce", "ring", 4096), algorithm="x\n 1 2 3", backend="a\r\nb")
    (table,) = _tables(tmp_path, [one])
    assert len(_rows(table)) == 1
