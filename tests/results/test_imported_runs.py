from __future__ import annotations

import json
import resource
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ccbench.cases.measurement import Status
from ccbench.errors import RunFolderError
from ccbench.findings import SourceWarning
from ccbench.machine.files import REDACTED
from ccbench.readers.benchmarks.log import (
    DeviceLine,
    ImportedLog,
    ImportedRow,
    ImportedTable,
    LogOutcome,
    StatedSystem,
)
from ccbench.results import load_run
from ccbench.results.imported_runs import (
    described,
    each_once,
    import_logs,
    imported,
    unique_names,
    write_import,
)

MIB = 1 << 20


def row(size: int = MIB, in_place: bool = False, **changes: Any) -> ImportedRow:
    """A row of an all-reduce on eight ranks at 100 GB/s algbw."""
    plain = ImportedRow(
        size,
        size // 4,
        "float32",
        "sum",
        -1,
        in_place,
        size / 100e9,
        100.0,
        175.0,
        0,
        line=7,
        half_units=(size / 100e9 * 1e-3, 0.005, 0.005),
    )
    return replace(plain, **changes)


def empty(size: int = MIB, **changes: Any) -> ImportedRow:
    nothing: dict[str, Any] = {
        "seconds": None,
        "algbw": None,
        "busbw": None,
        "wrong_elements": None,
    }
    return row(size, **nothing, **changes)


def log(*rows: ImportedRow, table: dict[str, Any] | None = None, **changes: Any) -> ImportedLog:
    whole = ImportedTable(
        "all_reduce", rows, ranks=8, nodes=1, outcome=LogOutcome.COMPLETE, line=3
    )
    plain = ImportedLog(
        "nccl-tests",
        "a.txt",
        "NCCL",
        (replace(whole, **(table or {})),),
        outcome=LogOutcome.COMPLETE,
        versions={"NCCL": "2.21.5", "nccl-tests": "2.13.8"},
        devices=(DeviceLine(0, host="n0", model="NVIDIA H100 80GB HBM3"),),
    )
    return replace(plain, **changes)


def written(path: Path, imported_log: ImportedLog, options: StatedSystem | None = None) -> Any:
    options = options or StatedSystem()
    write_import(path, import_logs([(Path("a.txt"), imported_log)], options), options, "a.txt")
    run = load_run(path)
    assert run.problems == ()
    return run


def rows_of(folder: Path, imported_log: ImportedLog) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = written(folder / "run", imported_log).table.to_pylist()
    return rows


def test_a_row_keeps_its_figures_and_says_where_they_are_from(tmp_path: Path) -> None:
    (case_row,) = rows_of(tmp_path, log(row()))
    assert (case_row["backend"], case_row["backend_version"]) == ("nccl", "NCCL 2.21.5")
    assert (case_row["tool"], case_row["tool_version"]) == ("nccl-tests", "2.13.8")
    assert (case_row["source"], case_row["source_table"], case_row["source_line"]) == (
        "a.txt",
        1,
        7,
    )
    assert (case_row["device_model"], case_row["outcome"]) == (
        "NVIDIA H100 80GB HBM3",
        "complete",
    )
    assert (case_row["algbw_GB_s"], case_row["busbw_GB_s"], case_row["median_seconds"]) == (
        100.0,
        175.0,
        MIB / 100e9,
    )
    assert (case_row["printed_algbw_GB_s"], case_row["status"], case_row["time_statistic"]) == (
        100.0,
        "ok",
        "mean",
    )
    assert case_row["samples_seconds"] is None


def test_listed_samples_make_a_median_with_an_interval(tmp_path: Path) -> None:
    samples = (1e-5, 3e-5, 2e-5, 2e-5, 2e-5, 2e-5, 2e-5)
    (case_row,) = rows_of(tmp_path, log(row(samples_seconds=samples)))
    assert (case_row["median_seconds"], case_row["time_statistic"]) == (2e-5, "median")
    assert case_row["low_seconds"] <= 2e-5 <= case_row["high_seconds"]


def test_wrong_elements_take_the_speed_and_leave_what_was_printed(tmp_path: Path) -> None:
    (case_row,) = rows_of(tmp_path, log(row(wrong_elements=3)))
    assert (case_row["status"], case_row["wrong_elements"]) == ("wrong", 3)
    assert case_row["median_seconds"] is None
    assert case_row["printed_busbw_GB_s"] == 175.0


def test_placements_that_print_nothing_are_counted_and_make_no_case() -> None:
    file = imported(log(row(), empty(in_place=True)))
    assert len(file.cases) == 1
    assert "1 placement without a figure" in file.notes[0]


def test_a_collective_that_reduces_nothing_has_no_op_whatever_is_printed() -> None:
    (case,) = imported(log(row(), table={"collective": "send_recv"})).cases
    assert case.measurement.case.op == "none"


def test_figures_of_unknown_meaning_are_kept_without_a_speed(tmp_path: Path) -> None:
    odd = empty(extra={"rate_gb_per_second": 1.2})
    (case_row,) = rows_of(tmp_path, log(odd))
    assert (case_row["status"], case_row["extra"]) == ("skipped", '{"rate_gb_per_second": 1.2}')


def test_a_row_that_no_column_can_hold_is_named() -> None:
    file = imported(log(row(), row(1 << 70), row(seconds=float("nan"))))
    assert len(file.cases) == 1
    assert len(file.refused) == 2
    assert "out of range" in file.refused[0]


def test_equal_rows_of_one_line_are_both_kept(tmp_path: Path) -> None:
    run = written(tmp_path / "run", log(row(), row()))
    assert len(run.points) == 2


def test_the_manifest_holds_what_rows_do_not_and_no_secret(tmp_path: Path) -> None:
    with_variables = log(
        row(),
        environment={"NCCL_ALGO": "Ring", "AWS_SECRET": "x", "NCCL_AUTH_TOKEN": "abc"},
        hints=("Algo Ring proto Simple", "password=hunter2"),
        warnings=(SourceWarning("truncated", "the end is missing", 9),),
    )
    run = written(
        tmp_path / "run", with_variables, StatedSystem("hgx-h100", 8, 2, "ib-ndr-400x8")
    )
    (file,) = run.manifest.mappings("imported")
    assert file["environment"] == {"NCCL_ALGO": "Ring", "NCCL_AUTH_TOKEN": REDACTED}
    assert file["hints"] == ["Algo Ring proto Simple", REDACTED]
    assert file["versions"]["NCCL"] == "2.21.5"
    assert file["warnings"] == [{"kind": "truncated", "text": "the end is missing", "line": 9}]
    assert run.manifest.document["machine"] == {"name": "hgx-h100"}
    assert run.manifest.document["network"] == "ib-ndr-400x8"
    assert file["devices"][0]["model"] == "NVIDIA H100 80GB HBM3"


_figures = st.none() | st.floats(allow_nan=True, allow_infinity=True)
_rows = st.builds(
    ImportedRow,
    size_bytes=st.integers(-5, 2**66),
    count=st.none() | st.integers(0, 2**66),
    dtype=st.sampled_from(["", "float32", "odd"]),
    op=st.sampled_from(["", "sum", "none"]),
    root=st.integers(-1, 9),
    in_place=st.booleans(),
    seconds=_figures,
    algbw=_figures,
    busbw=_figures,
    wrong_elements=st.none() | st.integers(0, 2**66),
    extra=st.dictionaries(st.text(max_size=5), st.text(max_size=5) | st.floats(), max_size=2),
)
_tables = st.builds(
    ImportedTable,
    collective=st.sampled_from(["", "all_reduce", "barrier", "hypercube"]),
    rows=st.lists(_rows, max_size=4).map(tuple),
    ranks=st.none() | st.integers(1, 9),
    nodes=st.none() | st.integers(1, 9),
    outcome=st.sampled_from(LogOutcome),
)
_logs = st.builds(
    ImportedLog,
    tool=st.text(max_size=5),
    source=st.just("a.txt"),
    tables=st.lists(_tables, max_size=3).map(tuple),
    outcome=st.sampled_from(LogOutcome),
    facts=st.dictionaries(st.text(max_size=5), st.floats() | st.text(max_size=5), max_size=2),
)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(imported_log=_logs)
def test_every_row_becomes_a_case_or_is_named_or_counted(
    imported_log: ImportedLog, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = imported(imported_log)
    refused_tables = [
        index
        for index, _ in enumerate(imported_log.tables, 1)
        if any(f" table {index} (" in line for line in file.refused)
    ]
    rows = sum(
        len(table.rows)
        for index, table in enumerate(imported_log.tables, 1)
        if index not in refused_tables
    )
    damaged = sum("row left out" in line for line in file.refused)
    empty_rows = sum(
        int(line.split(": ")[2].split()[0]) for line in file.notes if "without a figure" in line
    )
    # One row more at most: the one in flight when the run crashed or hung.
    assert rows <= len(file.cases) + damaged + empty_rows <= rows + 1
    json.dumps(described(file), allow_nan=False)
    run = written(tmp_path_factory.mktemp("any") / "run", imported_log)
    assert len(run.points) == len(file.cases)
    assert all(
        (point.median_seconds or 0.0) > 0 for point in run.points if point.status is Status.OK
    )


def test_an_import_that_fills_the_disk_is_not_said_to_be_kept(tmp_path: Path) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, -1))
    try:
        with pytest.raises(RunFolderError, match="cannot be written") as caught:
            written(tmp_path / "run", log(*map(row, range(4, 999))))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))
    assert "kept" not in str(caught.value)


def test_a_file_that_is_given_again_is_read_once(tmp_path: Path) -> None:
    first, copy, linked = tmp_path / "a.txt", tmp_path / "b.txt", tmp_path / "c.txt"
    first.write_text("a")
    copy.write_text("a")
    linked.symlink_to(first)
    again = tmp_path / "." / "folder" / ".." / "a.txt"
    (tmp_path / "folder").mkdir()
    assert each_once([first, copy, again, linked]) == ((first, copy), (again, linked))


def test_files_of_one_name_keep_apart_and_none_begins_with_two_slashes(tmp_path: Path) -> None:
    names = unique_names([Path("x/a.txt"), Path("y/a.txt"), Path("y/b.txt"), Path("y/b.txt")])
    assert names[:2] == ["x/a.txt", "y/a.txt"]
    assert len(set(names)) == 4
    names = unique_names([tmp_path / "a.txt"] * 2)
    assert len(set(names)) == 2
    assert not any(name.startswith("/") for name in names)


def test_a_place_whose_line_is_not_known_is_named_without_one() -> None:
    wide = replace(row(), line=0, size_bytes=1 << 70)
    file = imported(
        log(wide, table={"line": 0, "outcome": LogOutcome.CUT}, outcome=LogOutcome.CUT)
    )
    assert file.notes[0].startswith("a.txt: table 1: cut")
    assert file.refused == ("a.txt: row left out: a whole number is out of range",)
