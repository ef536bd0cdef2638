from __future__ import annotations

import pytest

from ccbench.results.importers import readers
from ccbench.results.importers.log import Outcome
from tests.results.importers import outputs

imb = readers()["imb"]


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


def test_rows_keep_the_mean_over_ranks_the_buffer_s_bytes_and_what_was_given_up() -> None:
    reduced, exchanged, sent, _ = (table.rows for table in imb.read(outputs.IMB).tables)
    assert reduced[1].seconds == pytest.approx(13.25e-6)
    assert reduced[1].extra["minimum_seconds"] == pytest.approx(12e-6)
    assert reduced[1].extra["maximum_seconds"] == pytest.approx(14.5e-6)
    assert (reduced[1].dtype, reduced[1].op, reduced[1].extra["iterations"]) == ("float32", "sum", 1000)
    # Printed are the bytes of a pair.
    assert (exchanged[0].size_bytes, exchanged[0].extra["printed_size_bytes"]) == (4096, 1024)
    assert (exchanged[0].dtype, exchanged[0].op) == ("uint8", "none")
    assert (exchanged[1].seconds, exchanged[1].extra["given_up"]) == (None, "time-out")
    # The rate is of both directions over the slowest rank's time, which is no algbw.
    rate = 2 * sent[0].size_bytes / sent[0].extra["maximum_seconds"]
    assert sent[0].extra["mbytes_per_second"] * 1e6 == pytest.approx(rate, rel=1e-4)
    assert sent[0].algbw is None


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
