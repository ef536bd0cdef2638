from __future__ import annotations

import pytest

from ccbench.results.importers import readers
from tests.results.importers import outputs

hccl_test = readers()["hccl_test"]


def test_rows_and_command_line_are_read() -> None:
    (table,) = hccl_test.read(outputs.HCCL).tables
    assert (table.collective, table.ranks, table.nodes) == ("all_gather", 16, 2)
    assert [row.size_bytes for row in table.rows] == [8192, 16384, 67108864]
    assert [row.seconds for row in table.rows] == pytest.approx([12.5e-6, 13e-6, 2630.2e-6])
    assert {row.dtype for row in table.rows} == {"float32"}
    rates = [row.size_bytes / (row.seconds or 0.0) / 1e9 for row in table.rows]
    assert [row.algbw for row in table.rows] == pytest.approx(rates, abs=2e-5)  # of the whole buffer
    assert [row.wrong_elements for row in table.rows] == [0, 1, None]
    assert [row.extra["check_result"] for row in table.rows] == ["success", "failed", "NULL"]
    assert (table.facts["minimum_bytes"], table.facts["maximum_bytes"]) == ("8192", "67108864")


def test_the_spelling_of_the_manual_is_read_too() -> None:
    (table,) = hccl_test.read(outputs.HCCL.replace("aveg_time", "avg_time")).tables
    assert len(table.rows) == 3


def test_without_a_command_line_nothing_is_made_up() -> None:
    text = "".join(line for line in outputs.HCCL.splitlines(True) if "mpirun" not in line)
    (table,) = hccl_test.read(text).tables
    assert (table.collective, table.ranks) == ("", None)
    assert {(row.dtype, row.op) for row in table.rows} == {("", "")}


def test_a_broken_row_is_told() -> None:
    log = hccl_test.read(outputs.HCCL + "134217728 | 52\n")
    assert len(log.tables[0].rows) == 3
    assert [(notice.kind, notice.line) for notice in log.notices] == [("damaged_line", 7)]
