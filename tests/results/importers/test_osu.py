from __future__ import annotations

import pytest

from ccbench.machine.flags import Flag
from ccbench.results.importers import readers
from ccbench.results.importers.log import Outcome
from tests.results.importers import outputs
from tests.results.importers.logs import text_of

osu = readers()["osu"]


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("awkward_cpu_osu_allreduce_4n_ring_forced.txt", "5.7.1"),
        ("awkward_cpu_osu_allreduce_archer2.txt", "5.4.1"),
    ],
)
def test_every_row_of_a_published_table_is_read(name: str, version: str) -> None:
    text = text_of({"file": name})
    printed = [line.split() for line in text.splitlines() if line[:1].isdigit()]
    log = osu.read(text)
    (table,) = log.tables
    assert (table.collective, log.versions) == ("all_reduce", {"osu": version})
    assert [(row.size_bytes, row.seconds) for row in table.rows] == [
        (int(size), float(time) / 1e6) for size, time in printed
    ]
    assert len(table.rows) == 19
    assert log.notices == ()


def test_the_full_form_keeps_the_fastest_and_the_slowest_rank() -> None:
    (table,) = osu.read(outputs.OSU_ALL_REDUCE).tables
    assert (table.ranks, table.nodes, table.facts["flavour"]) == (8, 2, "MPI-CUDA")
    last = table.rows[-1]
    assert (last.size_bytes, last.dtype, last.op) == (1048576, "float32", "sum")
    assert last.seconds == pytest.approx(310.55e-6)
    assert last.half_units[0] == pytest.approx(0.005e-6)
    assert last.extra["minimum_seconds"] == pytest.approx(300.1e-6)
    assert last.extra["maximum_seconds"] == pytest.approx(325e-6)
    assert last.extra["iterations"] == 100


@pytest.mark.parametrize(
    ("title", "collective", "times"),
    [
        ("Allreduce", "all_reduce", 1),
        ("Broadcast", "broadcast", 1),
        ("Reduce", "reduce", 1),
        ("Reduce_scatter", "reduce_scatter", 1),
        ("Allgather", "all_gather", 6),
        ("All-to-All Personalized Exchange", "all_to_all", 6),
        ("Gather", "gather", 6),
        ("Scatter", "scatter", 6),
    ],
)
def test_sizes_become_those_of_nccl_tests(title: str, collective: str, times: int) -> None:
    heading = f"# OSU MPI {title} Latency Test v6.2\n# Size       Avg Latency(us)\n"
    (table,) = osu.read(f"srun -n 6 ./osu\n{heading}1024   5.00\n").tables
    assert table.collective == collective
    (row,) = table.rows
    assert (row.size_bytes, row.extra["printed_size_bytes"], row.flags) == (1024 * times, 1024, ())


def test_a_block_stays_one_and_is_flagged_where_ranks_are_not_said() -> None:
    text = outputs.OSU_ALL_GATHER.partition("\n")[2]
    (table,) = osu.read(text).tables
    assert table.ranks is None
    assert [(row.size_bytes, row.flags) for row in table.rows] == [
        (1, (Flag.SIZE_OF_ONE_BLOCK,)),
        (1024, (Flag.SIZE_OF_ONE_BLOCK,)),
    ]


def test_a_barrier_has_one_row_of_no_bytes() -> None:
    (table,) = osu.read(outputs.OSU_BARRIER).tables
    assert [row.size_bytes for row in table.rows] == [0]
    assert table.rows[0].seconds == pytest.approx(8.32e-6)
    assert table.collective == "barrier"


def test_a_bandwidth_test_gives_rates_and_no_times() -> None:
    (table,) = osu.read(outputs.OSU_BANDWIDTH).tables
    assert (table.collective, table.ranks) == ("osu_bw", 2)
    assert [(row.seconds, row.algbw) for row in table.rows] == [(None, 0.0025), (None, 24.50025)]


def test_a_non_blocking_collective_gives_its_time_without_overlap() -> None:
    (table,) = osu.read(outputs.OSU_NON_BLOCKING).tables
    assert (table.collective, table.facts["non_blocking"]) == ("all_reduce", True)
    (row,) = table.rows
    assert row.seconds == pytest.approx(4.5e-6)
    assert row.extra["overlap_percent"] == 11.11


def test_several_tables_and_tags_of_a_launcher_are_read() -> None:
    tagged = "\n".join(f"[1,0]<stdout>:{line}" for line in outputs.OSU_BANDWIDTH.splitlines())
    log = osu.read(f"{outputs.OSU_BARRIER}{tagged}\n{outputs.OSU_ALL_GATHER}")
    assert [(table.collective, len(table.rows)) for table in log.tables] == [
        ("barrier", 1),
        ("osu_bw", 2),
        ("all_gather", 2),
    ]


def test_a_failed_validation_counts_as_wrong() -> None:
    title = "# OSU MPI Reduce Latency Test v7.1\n# Size  Avg Latency(us)  Validation\n"
    text = title + "4  2.00  Pass\n8  2.00  Fail\n"
    (table,) = osu.read(text).tables
    assert [row.wrong_elements for row in table.rows] == [0, 1]


def test_a_last_row_that_lost_digits_is_left_out() -> None:
    log = osu.read(outputs.OSU_ALL_GATHER[:-2])
    assert [row.extra["printed_size_bytes"] for row in log.tables[0].rows] == [1]
    assert [notice.kind for notice in log.notices] == ["truncated"]
    assert log.outcome is Outcome.CUT


def test_a_crash_after_the_table_is_told() -> None:
    said = "mpirun noticed that process rank 3 exited on signal 9 (Killed)."
    log = osu.read(f"{outputs.OSU_ALL_GATHER}{said}\n")
    assert (log.outcome, log.detail) == (Outcome.CRASHED, f"line 7: {said}")
