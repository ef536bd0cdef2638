"""Tables under nccl-tests' own column names, as wrappers write them, are the tables they were made from."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ccbench.errors import UsageError
from ccbench.readers.benchmarks import log_of_text
from ccbench.readers.benchmarks.log import ImportedRow
from tests.readers.benchmarks.nccl_tests_outputs import output

SIZES = (1 << 20, 1 << 21)
NATIVE = """\
# size count type redop root time algbw busbw #wrong time algbw busbw #wrong
1048576 262144 float sum -1 30.49 34.39 60.19 0 31.02 33.80 59.15 0
2097152 524288 float sum -1 40.11 52.28 91.50 0 41.37 50.69 88.71 2
"""
HEAD = "size,count,type,redop,root"
MEASURED = "time,algbw,busbw,#wrong"


def rows_of(text: str) -> list[ImportedRow]:
    """Rows without the lines they stand on."""
    rows = (row for table in log_of_text(text, "log").tables for row in table.rows)
    return sorted(
        (replace(row, line=0) for row in rows), key=lambda r: (r.size_bytes, r.in_place)
    )


def written(names: str, separator: str = ",") -> str:
    lines = (separator.join(line.split()) for line in NATIVE.splitlines()[1:])
    return "\n".join((names.replace(",", separator), *lines, ""))


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_columns_that_come_twice_are_the_second_placement(separator: str) -> None:
    assert rows_of(written(f"{HEAD},{MEASURED},{MEASURED}", separator)) == rows_of(NATIVE)
    assert len(rows_of(NATIVE)) == 4


def test_columns_stand_in_any_order_and_a_column_tells_the_placement() -> None:
    text = "busbw,inplace,size,algbw,time,type,redop,count,root,wrong\n"
    for line in NATIVE.splitlines()[1:]:
        size, count, dtype, op, root, *figures = line.split()
        for place in (0, 1):
            time, algbw, busbw, wrong = figures[4 * place : 4 * place + 4]
            text += (
                f"{busbw},{place},{size},{algbw},{time},{dtype},{op},{count},{root},{wrong}\n"
            )
    assert rows_of(text) == rows_of(NATIVE)


def test_collectives_and_ranks_of_their_own_columns_are_tables() -> None:
    text = (
        "collective,nranks,size,time,algbw,busbw\n"
        "all_reduce,8,1048576,30.49,34.39,60.19\n"
        "all_gather,8,1048576,30.49,34.39,30.09\n"
        "all_reduce,8,2097152,40.11,52.28,91.50\n"
    )
    tables = log_of_text(text, "log").tables
    assert [(t.collective, t.ranks, len(t.rows)) for t in tables] == [
        ("all_reduce", 8, 2),
        ("all_gather", 8, 1),
    ]
    assert [row.line for row in tables[0].rows] == [2, 4]


def test_lines_above_the_table_count() -> None:
    text = "# all_reduce_perf\nNCCL version 2.21.5+cuda12.4\n" + written(
        f"{HEAD},{MEASURED},{MEASURED}"
    )
    log = log_of_text(text, "log")
    assert log.versions["NCCL"] == "2.21.5"
    assert log.tables[0].collective == "all_reduce"


def test_another_unit_than_nccl_tests_is_refused() -> None:
    with pytest.raises(UsageError):
        log_of_text("size,time_ms,algbw_GBs,busbw_GBs\n1048576,30.49,34.39,60.19\n", "log")


def test_a_log_of_nccl_tests_is_no_csv() -> None:
    assert (
        log_of_text(output(), "log").tables
        == log_of_text(output() + "a,b,busbw\n", "log").tables
    )
