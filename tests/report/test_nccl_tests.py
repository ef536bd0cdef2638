from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ccbench.analysis.findings import provenance
from ccbench.cases.axes import Case
from ccbench.cases.measurement import Measurement, Status
from ccbench.collectives import COLLECTIVES
from ccbench.readers.benchmarks import read_log
from ccbench.readers.benchmarks.log import StatedSystem
from ccbench.report.nccl_tests import NcclTestsTable, nccl_tests_tables
from ccbench.report.wording import points_of
from ccbench.results import Run, load_run
from ccbench.results.imported_runs import import_logs, write_import

from .synthetic import Edit, case, emulated, failed, flagged, sweep, write_run


def _tables(path: Path, *args: object, **kwargs: object) -> tuple[NcclTestsTable, ...]:
    return nccl_tests_tables(points_of(write_run(path / "run", *args, **kwargs)))  # type: ignore[arg-type]  # passed on as given


def _rows(table: NcclTestsTable) -> list[list[str]]:
    return [line.split() for line in table.text.splitlines() if not line.startswith("#")]


def _timed(seconds: float) -> object:
    return lambda measurement: replace(measurement, samples_seconds=(seconds,) * 9)


def wrong(measurement: Measurement) -> Measurement:
    return replace(measurement, status=Status.WRONG, wrong_elements=3, detail="3 differ")


def back_again(folder: Path, run: Run) -> Run:
    """What importing the tables of ``run`` gives."""
    return _imported(folder / "back", nccl_tests_tables(points_of(run)))


def test_a_row_is_laid_out_as_nccl_tests_lays_it_out(tmp_path: Path) -> None:
    measurement = case("all_reduce", "ring", 1048576)
    (table,) = _tables(
        tmp_path,
        [measurement, replace(measurement, in_place=True)],
        {0: _timed(36.1e-6), 1: _timed(34.19e-6)},
    )
    (row,) = [line for line in table.text.splitlines() if not line.startswith("#")]
    assert row == (
        "     1048576        262144     float     sum      -1"
        "    36.10   29.05   43.57      0    34.19   30.67   46.00      0"
    )
    header = [line for line in table.text.splitlines() if "redop" in line]
    placement = ["time", "algbw", "busbw", "#wrong"]
    assert header[0].split()[1:] == [
        "size",
        "count",
        "type",
        "redop",
        "root",
        *placement,
        *placement,
    ]
    assert len(header[0]) == len(row)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (8.5e-7, "0.85"),
        (99.99e-6, "99.99"),
        (123.44e-6, "123.4"),
        (9999.0e-6, "9999.0"),
        (0.067018, "67018"),
    ],
)
def test_times_have_the_digits_nccl_tests_prints(
    tmp_path: Path, seconds: float, text: str
) -> None:
    (table,) = _tables(tmp_path, [case("all_reduce", "ring", 4096)], {0: _timed(seconds)})
    assert _rows(table)[0][5] == text


def test_versions_that_have_several_words_are_told_apart(tmp_path: Path) -> None:
    versions = ("MPICH 5.0.2, mpi4py 4.1.2", "Open MPI 5.0.11, mpi4py 4.1.2")
    edits = {
        number: lambda measurement, version=version: replace(
            measurement, backend_version=version
        )
        for number, version in enumerate(versions)
    }
    (table,) = _tables(
        tmp_path, [case("all_reduce", "ring", size) for size in (4096, 8192)], edits
    )
    assert f"# measured with {'; '.join(versions)}\n" in table.text


def test_cases_without_a_result_have_no_numbers_and_a_remark(tmp_path: Path) -> None:
    edits = {
        0: lambda measurement: failed(measurement, Status.TIMED_OUT, "rank 1 hung"),
        1: wrong,
    }
    (table,) = _tables(tmp_path, sweep(), edits)
    rows = _rows(table)
    assert rows[0][5:] == ["N/A"] * 8
    assert rows[2][9:] == ["N/A"] * 4
    assert rows[1][5:9] == ["N/A", "N/A", "N/A", "3"]
    assert "# 1024 B out of place: timed_out rank 1 hung" in table.text
    assert "# Out of bounds values : 1 FAILED" in table.text


def test_every_series_is_a_table_of_its_own(tmp_path: Path) -> None:
    cases: list[Case] = [
        *sweep(algorithms=("ring", "tree")),
        *sweep(ranks=8),
        *sweep(backend="mpi"),
    ]
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


def test_an_empty_run_has_no_table_and_a_failed_one_no_average(tmp_path: Path) -> None:
    assert _tables(tmp_path / "a", []) == ()
    (table,) = _tables(
        tmp_path / "b",
        sweep(last=10),
        {0: lambda measurement: failed(measurement, Status.FAILED, "x")},
    )
    assert "# Avg bus bandwidth    : N/A" in table.text


def test_odd_names_cannot_add_lines(tmp_path: Path) -> None:
    one = replace(case("all_reduce", "ring", 4096), algorithm="x\n 1 2 3", backend="a\r\nb")
    (table,) = _tables(tmp_path, [one])
    assert len(_rows(table)) == 1


def _imported(path: Path, tables: tuple[NcclTestsTable, ...]) -> Run:
    """The run that importing the text of ``tables`` gives."""
    path.mkdir()
    files = [path / f"{number}.txt" for number, _ in enumerate(tables)]
    for file, table in zip(files, tables, strict=True):
        file.write_text(table.text)
    logs = import_logs([(file, read_log(file)) for file in files], StatedSystem())
    assert [line for log in logs for line in log.refused] == []
    write_import(path / "run", logs, StatedSystem(), "round trip")
    return load_run(path / "run")


KEY = [
    "collective",
    "backend",
    "algorithm",
    "protocol",
    "mode",
    "ranks",
    "nodes",
    "dtype",
    "op",
    "root",
    "in_place",
    "size_bytes",
    "count",
]


def _by_case(run: Run) -> dict[tuple[Any, ...], dict[str, Any]]:
    """What was asked of each case -> its row, in order of the former."""
    found = sorted((tuple(row[name] for name in KEY), row) for row in run.table.to_pylist())
    assert len(dict(found)) == len(found)
    return dict(found)


def _same_figures(first: Run, second: Run) -> None:
    """Both runs hold the same cases with the same status and, but for printed digits, the same figures."""
    expected, found = _by_case(first), _by_case(second)
    assert expected.keys() == found.keys()
    for case_key, row in expected.items():
        back = found[case_key]
        assert (back["status"], back["wrong_elements"]) == (
            row["status"],
            row["wrong_elements"],
        ), case_key
        for name, digits in (
            ("median_seconds", 5e-9),
            ("algbw_GB_s", 5e-3),
            ("busbw_GB_s", 5e-3),
        ):
            figure = row[name]
            if figure is not None:
                # Five significant digits of times and two decimals of rates are printed.
                below_one = digits + 5e-3 * figure if figure < 1 else digits
                figure = pytest.approx(figure, rel=0, abs=max(below_one, 5.1e-4 * figure))
            assert back[name] == figure, (case_key, name)


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    "name", [name for name in COLLECTIVES if name not in ("barrier", "all_to_all_v")]
)
def test_importing_the_text_gives_the_same_figures(tmp_path: Path, name: str) -> None:
    cases = sweep(name, algorithms=("ring", "tree"))
    cases += [replace(measurement, in_place=True) for measurement in sweep(name)]
    run = write_run(tmp_path / "run", cases)
    _same_figures(run, back_again(tmp_path, run))


def test_statuses_come_back_with_their_reasons(tmp_path: Path) -> None:
    edits = {
        0: lambda measurement: failed(measurement, Status.TIMED_OUT, "rank 1 hung"),
        1: wrong,
        2: lambda measurement: failed(measurement, Status.OUT_OF_MEMORY, "too large"),
        3: lambda measurement: failed(measurement, Status.UNSUPPORTED, ""),
    }
    both_ways = [
        *sweep(),
        *(replace(measurement, in_place=True) for measurement in sweep(last=12)),
    ]
    run = write_run(tmp_path / "run", both_ways, edits)
    back = back_again(tmp_path, run)
    _same_figures(run, back)
    details = {(point.size_bytes, point.in_place): point.detail for point in back.points}
    assert details[1024, False] == "rank 1 hung"
    assert details[4096, False] == "3 differ"


def test_barriers_come_back_though_nccl_tests_has_no_program_for_them(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [case("barrier", "dissemination", 0)])
    (table,) = nccl_tests_tables(points_of(run))
    assert "barrier_perf: nccl-tests has no such program" in table.text
    assert "Collective test starting" not in table.text
    assert _rows(table)[0][6:8] == ["0.00", "0.00"]
    _same_figures(run, _imported(tmp_path / "back", (table,)))


def test_times_of_a_model_come_back_as_such(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", sweep(backend="simulated"), simulated=True)
    assert "# SIMULATED: times come from a model" in nccl_tests_tables(points_of(run))[0].text
    back = back_again(tmp_path, run)
    assert all(point.simulated for point in back.points)
    measured = write_run(tmp_path / "measured", sweep())
    again = _imported(tmp_path / "again", nccl_tests_tables(points_of(measured)))
    assert not any(point.simulated for point in again.points)


def _flags(run: Run) -> list[tuple[str, ...]]:
    return [tuple(row["flags"]) for row in _by_case(run).values()]


def test_emulated_times_come_back_as_emulated_not_as_a_model_s(tmp_path: Path) -> None:
    cases = [
        measurement
        for place in (False, True)
        for measurement in sweep(backend="cuda-host", in_place=place)
    ]
    run = write_run(tmp_path / "run", cases, dict.fromkeys(range(len(cases)), emulated))
    back = back_again(tmp_path, run)
    assert provenance(points_of(back)) == provenance(points_of(run)) == "EMULATION"
    assert _flags(back) == _flags(run)
    assert all(point.simulated for point in back.points)


def test_tables_of_emulations_that_list_no_flags_come_back_as_emulated_too(
    tmp_path: Path,
) -> None:
    run = write_run(tmp_path / "run", sweep(backend="cuda-host"))
    back = back_again(tmp_path, run)
    assert provenance(points_of(back)) == "EMULATION"


def test_every_case_comes_back_with_its_own_flags(tmp_path: Path) -> None:
    edits: dict[int, Edit] = {
        0: lambda measurement: flagged(measurement, "other_load", "steal"),
        2: lambda measurement: flagged(measurement, "loopback"),
        3: lambda one: replace(
            flagged(one, "loopback"), status=Status.WRONG, wrong_elements=2, detail="2 off"
        ),
    }
    cases = [one for size in sweep(last=14) for one in (size, replace(size, in_place=True))]
    run = write_run(tmp_path / "run", cases, edits)
    back = back_again(tmp_path, run)
    assert _flags(back) == _flags(run)
    assert sorted(filter(None, _flags(run))) == [
        ("loopback",),
        ("loopback",),
        ("other_load", "steal"),
    ]
    _same_figures(run, back)


def test_uneven_traffic_is_a_table_of_alltoallv_that_says_so_and_comes_back(
    tmp_path: Path,
) -> None:
    cases = [case("all_to_all_v", "direct", 2**power, traffic="hot:0.5") for power in (10, 20)]
    run = write_run(tmp_path / "run", cases)
    (table,) = nccl_tests_tables(points_of(run))
    assert table.text.splitlines()[0] == "# Collective test starting: alltoallv_perf"
    assert "traffic hot:0.5" in table.text
    size, count, *_ = next(
        line for line in table.text.splitlines() if line.startswith(" ")
    ).split()
    assert (
        int(size) == int(count) * 4 * 4
    )  # what one rank sends to all four; count is one block
    back = back_again(tmp_path, run)
    assert {point.collective for point in back.points} == {"alltoallv"}
    times = [sorted(one.table["median_seconds"].to_pylist()) for one in (run, back)]
    assert times[1] == pytest.approx(times[0], rel=1e-3)


def test_an_imported_run_prints_its_figures_again(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", sweep())
    once = nccl_tests_tables(points_of(run))
    again = nccl_tests_tables(points_of(_imported(tmp_path / "back", once)))
    rows = [
        [line for line in table.text.splitlines() if not line.startswith("#")]
        for table in (*once, *again)
    ]
    assert rows[0] == rows[1]
    assert "imported from 0.txt" in again[0].text
    assert "times are means as printed" in again[0].text


def test_a_computation_and_a_collective_together_have_a_time_and_no_bandwidth(
    tmp_path: Path,
) -> None:
    together = case("all_reduce", "ring", 4096, mode="overlap", overlap_with="matmul")
    in_groups = case("all_reduce", "ring", 4096, groups="rank // 2")
    run = write_run(tmp_path / "run", [together, in_groups])
    tables = nccl_tests_tables(points_of(run))
    (table,) = (table for table in tables if "mode overlap, computing matmul" in table.text)
    assert _rows(table)[0][6:8] == ["N/A", "N/A"]
    assert "Avg bus bandwidth    : N/A" in table.text
    back = _imported(tmp_path / "back", tables).points
    assert all(point.is_timed for point in back)
    assert sorted((point.mode, point.busbw is None) for point in back) == [
        ("overlap", True),
        ("streaming", False),
    ]
