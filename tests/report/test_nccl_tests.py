from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ccbench.cases.measurement import Measurement, Status
from ccbench.collectives import COLLECTIVES
from ccbench.readers.benchmarks import read_log
from ccbench.readers.benchmarks.log import StatedSystem
from ccbench.report.nccl_tests import nccl_tests_tables
from ccbench.report.wording import points_of
from ccbench.results import Run, load_run
from ccbench.results.imported_runs import import_logs, write_import

from .synthetic import case, failed, sweep, write_run


def wrong(measurement: Measurement) -> Measurement:
    return replace(measurement, status=Status.WRONG, wrong_elements=3, detail="3 differ")


def back_again(folder: Path, run: Run) -> Run:
    """What importing the tables of ``run`` gives."""
    return _imported(folder / "back", nccl_tests_tables(points_of(run)))


def _imported(path: Path, tables: list[tuple[str, str]]) -> Run:
    """The run that importing the text of ``tables`` gives."""
    path.mkdir()
    files = [path / f"{number}.txt" for number, _ in enumerate(tables)]
    for file, (_, text) in zip(files, tables, strict=True):
        file.write_text(text)
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


def test_uneven_traffic_is_a_table_of_alltoallv_that_says_so_and_comes_back(
    tmp_path: Path,
) -> None:
    cases = [case("all_to_all_v", "direct", 2**power, traffic="hot:0.5") for power in (10, 20)]
    run = write_run(tmp_path / "run", cases)
    ((_, text),) = nccl_tests_tables(points_of(run))
    assert text.splitlines()[0] == "# Collective test starting: alltoallv_perf"
    assert "traffic hot:0.5" in text
    size, count, *_ = next(line for line in text.splitlines() if line.startswith(" ")).split()
    assert (
        int(size) == int(count) * 4 * 4
    )  # what one rank sends to all four; count is one block
    back = back_again(tmp_path, run)
    assert {point.collective for point in back.points} == {"alltoallv"}
    times = [sorted(one.table["median_seconds"].to_pylist()) for one in (run, back)]
    assert times[1] == pytest.approx(times[0], rel=1e-3)
