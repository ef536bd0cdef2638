"""Tests of vendors: Huawei's hccl_test, Microsoft's mscclpp, Amazon's nccom-test."""

from __future__ import annotations

import json

import pytest

from ccbench.collectives import COLLECTIVES
from ccbench.readers.benchmarks import readers
from ccbench.readers.benchmarks.log import LogOutcome
from tests.readers.benchmarks import outputs
from tests.readers.benchmarks.logs import text_of

hccl_test = readers()["hccl_test"]


def test_rows_and_command_line_are_read() -> None:
    (table,) = hccl_test.read(outputs.HCCL).tables
    assert (table.collective, table.ranks, table.nodes) == ("all_gather", 16, 2)
    assert [row.size_bytes for row in table.rows] == [8192, 16384, 67108864]
    assert [row.seconds for row in table.rows] == pytest.approx([12.5e-6, 13e-6, 2630.2e-6])
    assert {row.dtype for row in table.rows} == {"float32"}
    rates = [row.size_bytes / (row.seconds or 0.0) / 1e9 for row in table.rows]
    assert [row.algbw for row in table.rows] == pytest.approx(
        rates, abs=2e-5
    )  # of the whole buffer
    assert [row.wrong_elements for row in table.rows] == [0, 1, None]


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
    assert [(warning.kind, warning.line) for warning in log.warnings] == [("damaged_line", 7)]


mscclpp = readers()["mscclpp"]

PUBLISHED = [("awkward_mscclpp_ndmv4.jsonl.txt", 19), ("awkward_mscclpp_ndmv5.jsonl.txt", 10)]


@pytest.mark.parametrize(("name", "count"), PUBLISHED)
def test_every_published_line_is_a_row(name: str, count: int) -> None:
    printed = [json.loads(line) for line in text_of({"file": name}).splitlines()]
    log = mscclpp.read(text_of({"file": name}))
    rows = sorted((row for table in log.tables for row in table.rows), key=lambda row: row.line)
    assert [(r.size_bytes, r.seconds, r.algbw, r.busbw) for r in rows] == [
        (p["size"], p["time"] / 1e6, p["algBw"], p["busBw"]) for p in printed
    ]
    assert len(rows) == count
    for table in (
        log.tables
    ):  # sizes are those that the bus bandwidth stands on, which was rounded by hand
        factor = COLLECTIVES[table.collective].bus_factor(table.ranks or 0)
        rates = [row.size_bytes / (row.seconds or 0.0) / 1e9 * factor for row in table.rows]
        assert rates == pytest.approx([row.busbw for row in table.rows], rel=0.05)
    assert log.warnings == ()


def test_kernels_and_ranks_are_tables_of_their_own() -> None:
    log = mscclpp.read(outputs.MSCCLPP)
    assert [(t.collective, t.algorithm, t.ranks, t.nodes) for t in log.tables] == [
        ("all_reduce", "kernel:6", 8, 1),
        ("all_reduce", "kernel:6", 16, 2),
    ]
    assert log.tables[0].rows[0].half_units == pytest.approx((5e-9, 5e-4, 5e-4))


@pytest.mark.parametrize(
    "broken",
    ['{"name":"allreduce", "ker', '{"name":[1],"ranks":2,"size":3,"time":4,"algBw":5}'],
)
def test_a_line_that_is_no_measurement_is_told(broken: str) -> None:
    log = mscclpp.read(outputs.MSCCLPP + broken)
    assert sum(len(table.rows) for table in log.tables) == 2
    assert [(warning.kind, warning.line) for warning in log.warnings] == [("damaged_line", 3)]


def test_lines_of_the_program_between_are_passed_over() -> None:
    log = mscclpp.read("#   Using devices\n" + outputs.MSCCLPP + "Stop.\n")
    assert log.warnings == ()


nccom = readers()["nccom"]


def test_every_row_of_a_published_table_is_read() -> None:
    text = text_of({"file": "awkward_trn1_nccom_all_reduce.txt"})
    printed = [line.split() for line in text.splitlines()[1:] if not line.startswith("Avg")]
    log = nccom.read(text)
    (table,) = log.tables
    assert [(row.size_bytes, row.dtype, row.seconds) for row in table.rows] == [
        (int(cells[0]), "float32", float(cells[3]) / 1e6) for cells in printed
    ]
    assert len(table.rows) == 17
    assert (log.outcome, log.warnings, table.collective) == (LogOutcome.COMPLETE, (), "")


def test_rates_in_binary_units_become_decimal() -> None:
    table = nccom.read(text_of({"file": "awkward_trn1_nccom_all_reduce.txt"})).tables[0]
    last = table.rows[-1]
    assert last.algbw is not None
    assert last.seconds is not None
    assert last.half_units[1] is not None
    assert abs(last.size_bytes / last.seconds / 1e9 - last.algbw) <= last.half_units[1]


def test_newer_versions_print_decimal_rates_and_the_command_line_says_who_took_part() -> None:
    (table,) = nccom.read(outputs.NCCOM).tables
    assert [(row.algbw, row.busbw) for row in table.rows] == [(1.2, 2.32), (19.06, 36.93)]
    assert (table.collective, table.ranks, table.nodes) == ("all_reduce", 32, 2)
    assert [row.count for row in table.rows] == [262144, 33554432]


def test_the_count_of_the_whole_buffer_is_no_count_of_a_block() -> None:
    (table,) = nccom.read(outputs.NCCOM_BINARY).tables
    (row,) = table.rows
    assert (table.collective, table.ranks) == ("all_gather", 2)
    assert row.count is None
    assert row.algbw is not None
    assert row.busbw == pytest.approx(row.algbw / 2, abs=0.01)


def test_a_table_without_its_average_was_cut() -> None:
    log = nccom.read(outputs.NCCOM.partition("Avg")[0])
    assert log.outcome is LogOutcome.CUT
    assert len(log.tables[0].rows) == 2


def test_columns_of_other_options_are_kept_beside_the_row() -> None:
    text = (
        "size(B) count(elems) total_input_size(B) type time:p50(us) time:p99(us) algbw(GB/s) busbw(GB/s)\n"
        "1024     256           32                   fp32  6.16          7.00          0.17         0.16\n"
    )
    (row,) = nccom.read(text).tables[0].rows
    assert row.seconds == pytest.approx(6.16e-6)
    assert row.extra["time:p99(us)"] == 7.0
    assert row.extra["total_input_size(B)"] == 32


def test_nccl_tests_own_header_is_not_taken() -> None:
    header = (
        "#       size         count      type   redop    root     time   algbw   busbw #wrong\n"
    )
    assert not nccom.recognises(header)
