from __future__ import annotations

import pytest

from ccbench.results.importers import imb
from ccbench.results.importers.log import Outcome
from tests.results.importers import outputs


def test_every_section_is_a_table_on_its_own_number_of_processes() -> None:
    log = imb.read(outputs.IMB)
    assert [(table.collective, table.ranks, len(table.rows)) for table in log.tables] == [
        ("all_reduce", 2, 2),
        ("all_to_all", 4, 2),
        ("send_recv", 4, 1),
        ("barrier", 4, 1),
    ]
    assert log.versions == {"imb": "2021.7", "MPI": "3.1"}
    assert (log.outcome, log.notices) == (Outcome.COMPLETE, ())


def test_the_time_is_the_mean_over_ranks_and_the_others_stay() -> None:
    row = imb.read(outputs.IMB).tables[0].rows[1]
    assert row.seconds == pytest.approx(13.25e-6)
    assert row.extra["minimum_seconds"] == pytest.approx(12e-6)
    assert row.extra["maximum_seconds"] == pytest.approx(14.5e-6)
    assert (row.dtype, row.op, row.extra["iterations"]) == ("float32", "sum", 1000)


def test_the_bytes_of_a_pair_become_those_of_a_buffer() -> None:
    table = imb.read(outputs.IMB).tables[1]
    assert (table.rows[0].size_bytes, table.rows[0].extra["printed_size_bytes"]) == (4096, 1024)
    assert (table.rows[0].dtype, table.rows[0].op) == ("uint8", "none")


def test_a_size_that_was_given_up_is_a_row_without_a_time() -> None:
    row = imb.read(outputs.IMB).tables[1].rows[1]
    assert (row.seconds, row.extra["given_up"]) == (None, "time-out")


def test_the_rate_of_a_send_and_receive_is_no_algbw() -> None:
    row = imb.read(outputs.IMB).tables[2].rows[0]
    # Printed: both directions over the slowest rank's time.
    assert row.extra["mbytes_per_second"] * 1e6 == pytest.approx(
        2 * row.size_bytes / row.extra["maximum_seconds"], rel=1e-4
    )
    assert row.algbw is None


def test_the_form_without_a_closing_line_was_cut() -> None:
    log = imb.read(outputs.IMB_HEADER + outputs.IMB_SWEEP)
    assert log.outcome is Outcome.CUT
    assert sum(len(table.rows) for table in log.tables) == 6


def test_an_excerpt_without_a_heading_has_no_name() -> None:
    text = (
        "   #bytes #repetitions      t[usec]   Mbytes/sec\n     1024         1000         2.38       430.25\n"
    )
    log = imb.read(text)
    (table,) = log.tables
    assert (table.collective, log.outcome) == ("", Outcome.UNKNOWN)
    assert [row.size_bytes for row in table.rows] == [1024]
    assert table.rows[0].seconds == pytest.approx(2.38e-6)


@pytest.mark.parametrize(("name", "collective"), [("Iallreduce", "all_reduce"), ("Ibcast", "broadcast")])
def test_non_blocking_benchmarks_give_the_time_without_overlap(name: str, collective: str) -> None:
    text = (
        f"# Benchmarking {name}\n# #processes = 2\n"
        " #bytes #repetitions t_ovrl[usec] t_pure[usec] t_CPU[usec] overlap[%]\n"
        "  1024         1000         9.00         6.00        5.00      40.00\n"
    )
    (table,) = imb.read(text).tables
    assert table.collective == collective
    assert table.rows[0].seconds == pytest.approx(6e-6)
    assert table.rows[0].extra["overlap_percent"] == 40.0


def test_simultaneous_groups_are_told() -> None:
    text = (
        "# Benchmarking Multi-Allreduce\n# ( 2 groups of 4 processes each running simultaneous )\n"
        " #bytes #repetitions  t_min[usec]  t_max[usec]  t_avg[usec]\n"
        "      0         1024         1000         5.00         7.00         6.00\n"
    )
    (table,) = imb.read(text).tables
    assert (table.ranks, table.facts["simultaneous_groups"]) == (4, "2")
    assert [(row.size_bytes, row.extra["group"]) for row in table.rows] == [(1024, 0)]
