"""Tables of ucc_perftest: sizes of blocks, rates, what is N/A, settings, cut and pasted texts."""

from __future__ import annotations

import pytest

from ccbench.collectives import COLLECTIVES
from ccbench.readers.benchmarks import log_of_text
from ccbench.readers.benchmarks.log import LogOutcome
from tests.readers.benchmarks import outputs


def test_size_is_of_one_block_and_the_rate_is_busbw() -> None:
    log = log_of_text(outputs.UCC_ALL_TO_ALL, "here")
    assert (log.tool, log.library) == ("ucc_perftest", "UCC")
    (table,) = log.tables
    assert (table.collective, table.ranks, table.mode) == ("all_to_all", 4, "isolated")
    assert [row.size_bytes for row in table.rows] == [4 * 262144, 4 * 524288]
    factor = COLLECTIVES["all_to_all"].bus_factor(4)
    for row in table.rows:
        assert row.busbw == pytest.approx(
            row.size_bytes / (row.seconds or 0.0) / 1e9 * factor, abs=0.006
        )
        assert (row.dtype, row.op, row.flags) == ("float32", "none", ())
    assert [row.extra["minimum_seconds"] for row in table.rows] == pytest.approx(
        [78e-6, 118e-6]
    )


def test_an_all_reduce_is_of_the_whole_buffer() -> None:
    (table,) = log_of_text(outputs.UCC_ALL_REDUCE, "here").tables
    (row,) = table.rows
    assert (row.size_bytes, row.op, row.busbw) == (1 << 20, "sum", 15.73)


def test_what_the_tool_does_not_compute_is_none() -> None:
    (table,) = log_of_text(outputs.UCC_BARRIER, "here").tables
    (row,) = table.rows
    assert (table.collective, row.size_bytes, row.busbw) == ("barrier", 0, None)
    assert row.seconds == pytest.approx(5.25e-6)


def test_a_table_without_rates_is_read() -> None:
    lines = [
        line[:60] if line[:12].strip().isdigit() else line.replace("Bandwidth, GB/s", "")
        for line in outputs.UCC_ALL_REDUCE.splitlines()
    ]
    (table,) = log_of_text("\n".join(lines) + "\n", "here").tables
    assert [(row.size_bytes, row.busbw) for row in table.rows] == [(1 << 20, None)]


def test_each_collective_has_its_own_settings() -> None:
    log = log_of_text(outputs.UCC_ALL_REDUCE + outputs.UCC_ALL_TO_ALL, "here")
    assert [(table.collective, table.rows[0].op) for table in log.tables] == [
        ("all_reduce", "sum"),
        ("all_to_all", "none"),
    ]


@pytest.mark.parametrize(
    "dress",
    [
        lambda text: text.replace("\n", "\r\n"),
        lambda text: "".join(f"    {line}\n" for line in text.splitlines()),
        lambda text: "".join(f"[1,0]<stdout>:{line}\n" for line in text.splitlines()),
    ],
)
def test_a_pasted_table_is_the_same(dress: object) -> None:
    assert callable(dress)
    whole, pasted = (
        log_of_text(text, "here")
        for text in (outputs.UCC_ALL_TO_ALL, dress(outputs.UCC_ALL_TO_ALL))
    )
    assert pasted.tables == whole.tables


def test_a_cut_row_is_left_out_with_a_remark() -> None:
    log = log_of_text(outputs.UCC_ALL_TO_ALL[:-20], "here")
    assert [len(table.rows) for table in log.tables] == [1]
    assert log.outcome is not LogOutcome.COMPLETE
    assert {warning.kind for warning in log.warnings} <= {"truncated", "damaged_line"}
    assert log.warnings
