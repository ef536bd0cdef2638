from __future__ import annotations

import pytest

from ccbench.results.importers import readers
from ccbench.results.importers.log import Outcome
from tests.results.importers import outputs
from tests.results.importers.logs import text_of

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
    assert (log.outcome, log.notices, table.collective) == (Outcome.COMPLETE, (), "")


def test_rates_in_binary_units_become_decimal() -> None:
    table = nccom.read(text_of({"file": "awkward_trn1_nccom_all_reduce.txt"})).tables[0]
    assert table.facts["printed_rate_unit_bytes"] == 2**30
    last = table.rows[-1]
    assert last.algbw is not None
    assert last.seconds is not None
    assert last.half_units[1] is not None
    assert abs(last.size_bytes / last.seconds / 1e9 - last.algbw) <= last.half_units[1]
    assert table.average_busbw == pytest.approx(0.2346 * 2**30 / 1e9)


def test_newer_versions_print_decimal_rates_and_the_command_line_says_who_took_part() -> None:
    (table,) = nccom.read(outputs.NCCOM).tables
    assert table.facts["printed_rate_unit_bytes"] == 10**9
    assert [(row.algbw, row.busbw) for row in table.rows] == [(1.2, 2.32), (19.06, 36.93)]
    assert (table.collective, table.ranks, table.nodes) == ("all_reduce", 32, 2)
    assert [row.count for row in table.rows] == [262144, 33554432]


def test_the_count_of_the_whole_buffer_is_no_count_of_a_block() -> None:
    (table,) = nccom.read(outputs.NCCOM_BINARY).tables
    (row,) = table.rows
    assert (table.collective, table.ranks) == ("all_gather", 2)
    assert (row.count, row.extra["printed_elements"]) == (None, 33554432)
    assert row.algbw is not None
    assert row.busbw == pytest.approx(row.algbw / 2, abs=0.01)


def test_a_table_without_its_average_was_cut() -> None:
    log = nccom.read(outputs.NCCOM.partition("Avg")[0])
    assert log.outcome is Outcome.CUT
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
    header = "#       size         count      type   redop    root     time   algbw   busbw #wrong\n"
    assert not nccom.recognises(header)
