"""MPI's own benchmarks and Gloo's: OSU, IMB, gloo_benchmark."""

from __future__ import annotations

import pytest

from ccbench.flags import Flag
from ccbench.readers.benchmarks import readers
from ccbench.readers.benchmarks.log import LogOutcome
from tests.readers.benchmarks import outputs
from tests.readers.benchmarks.logs import text_of

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
    assert log.warnings == ()


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
    assert (row.size_bytes, row.extra["printed_size_bytes"], row.flags) == (
        1024 * times,
        1024,
        (),
    )


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
    assert [(row.seconds, row.algbw) for row in table.rows] == [
        (None, 0.0025),
        (None, 24.50025),
    ]


def test_a_non_blocking_collective_gives_its_time_without_overlap() -> None:
    (table,) = osu.read(outputs.OSU_NON_BLOCKING).tables
    assert table.collective == "all_reduce"
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
    assert [warning.kind for warning in log.warnings] == ["truncated"]
    assert log.outcome is LogOutcome.CUT


def test_a_crash_after_the_table_is_told() -> None:
    message = "mpirun noticed that process rank 3 exited on signal 9 (Killed)."
    log = osu.read(f"{outputs.OSU_ALL_GATHER}{message}\n")
    assert (log.outcome, log.detail) == (LogOutcome.CRASHED, f"line 7: {message}")


@pytest.mark.parametrize(
    ("ending", "outcome"),
    [
        ("Killed", LogOutcome.CRASHED),
        (
            "./job.sh: line 7: 40112 Terminated              mpirun -np 4 osu_allreduce",
            LogOutcome.CRASHED,
        ),
        ("srun: error: n1: task 1: Killed", LogOutcome.CRASHED),
        (
            "slurmstepd: error: Detected 1 oom_kill event in StepId=12.0. Some tasks were killed.",
            LogOutcome.CRASHED,
        ),
        (
            "slurmstepd: error: *** JOB 12 ON n1 CANCELLED AT 2024-05-05T10:00:00 ***",
            LogOutcome.CRASHED,
        ),
        (
            "slurmstepd: error: *** JOB 12 ON n1 CANCELLED AT 10:00 DUE TO NODE FAILURE ***",
            LogOutcome.CRASHED,
        ),
        (
            "slurmstepd: error: *** STEP 12.0 ON n1 CANCELLED DUE TO TIME LIMIT ***\nKilled",
            LogOutcome.HUNG,
        ),
        ("timeout: sending signal TERM to command 'mpirun'\nTerminated", LogOutcome.HUNG),
        ("=>> PBS: job killed: walltime 3627 exceeded limit 3600", LogOutcome.HUNG),
        ("=>> PBS: job killed: mem 130gb exceeded limit 128gb", LogOutcome.CRASHED),
        ("TERM_RUNLIMIT: job killed after reaching LSF run time limit.", LogOutcome.HUNG),
        ("TERM_OWNER: job killed by owner.", LogOutcome.CRASHED),
        (
            "Abort(15) on node 0 (rank 0 in comm 0): Fatal error in PMPI_Allreduce: Other",
            LogOutcome.CRASHED,
        ),
        (
            "MPICH ERROR [Rank 3] [job id 1.0] - Abort(1) (rank 3 in comm 0): internal",
            LogOutcome.CRASHED,
        ),
        ("[mpiexec@n1] one of the processes terminated badly; aborting", LogOutcome.CRASHED),
        ("double free or corruption (!prev)", LogOutcome.CRASHED),
        ("munmap_chunk(): invalid pointer", LogOutcome.CRASHED),
        (
            "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1",
            LogOutcome.CRASHED,
        ),
        (
            "# the run before was killed by hand and terminated without a table",
            LogOutcome.UNKNOWN,
        ),
    ],
)
def test_whoever_ends_a_program_without_a_closing_line_is_told(
    ending: str, outcome: LogOutcome
) -> None:
    log = osu.read(f"{outputs.OSU_ALL_GATHER}{ending}\n")
    first = ending.splitlines()[0]
    assert (log.outcome, log.detail) == (
        outcome,
        "" if outcome is LogOutcome.UNKNOWN else f"line 7: {first}",
    )


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
    assert (log.outcome, log.warnings) == (LogOutcome.COMPLETE, ())


def test_rows_keep_the_mean_over_ranks_the_buffer_s_bytes_and_what_was_given_up() -> None:
    reduced, exchanged, sent, _ = (table.rows for table in imb.read(outputs.IMB).tables)
    assert reduced[1].seconds == pytest.approx(13.25e-6)
    assert reduced[1].extra["minimum_seconds"] == pytest.approx(12e-6)
    assert reduced[1].extra["maximum_seconds"] == pytest.approx(14.5e-6)
    assert (reduced[1].dtype, reduced[1].op, reduced[1].extra["iterations"]) == (
        "float32",
        "sum",
        1000,
    )
    # Printed are the bytes of a pair.
    assert (exchanged[0].size_bytes, exchanged[0].extra["printed_size_bytes"]) == (4096, 1024)
    assert (exchanged[0].dtype, exchanged[0].op) == ("uint8", "none")
    assert (exchanged[1].seconds, exchanged[1].extra["given_up"]) == (None, "time-out")
    # The rate is of both directions over the slowest rank's time, which is no algbw.
    rate = 2 * sent[0].size_bytes / sent[0].extra["maximum_seconds"]
    assert sent[0].extra["Mbytes/sec"] * 1e6 == pytest.approx(rate, rel=1e-4)
    assert sent[0].algbw is None


def test_a_crash_counts_after_the_closing_line_too_and_a_time_out_only_before() -> None:
    log = imb.read(outputs.IMB + "n1: rank 3: Segmentation fault (core dumped)\n")
    assert (log.outcome, "Segmentation fault" in log.detail) == (LogOutcome.CRASHED, True)
    log = imb.read("UCX WARN connection to n2 timed out, retrying\n" + outputs.IMB)
    assert (log.outcome, log.detail) == (LogOutcome.COMPLETE, "")


def test_the_form_without_a_closing_line_was_cut() -> None:
    log = imb.read(outputs.IMB_HEADER + outputs.IMB_SWEEP)
    assert log.outcome is LogOutcome.CUT
    assert sum(len(table.rows) for table in log.tables) == 6


def test_a_section_whose_heading_is_lost_does_not_take_that_of_the_section_before() -> None:
    text = outputs.IMB.replace("# Benchmarking Sendrecv", "").replace("# #processes = 4", "")
    assert [(table.collective, table.ranks) for table in imb.read(text).tables] == [
        ("all_reduce", 2),
        ("all_to_all", None),
        ("", None),
        ("barrier", None),
    ]


def test_rows_under_headings_that_are_lost_are_not_of_the_table_before() -> None:
    headings = "       #bytes #repetitions  t_min[usec]  t_max[usec]  t_avg[usec]\n"
    first, _, rest = outputs.IMB.partition(headings)
    log = imb.read(first + headings + rest.replace(headings, "", 1))
    assert [(table.collective, len(table.rows)) for table in log.tables] == [
        ("all_reduce", 2),
        ("send_recv", 1),
        ("barrier", 1),
    ]


def test_an_excerpt_without_a_heading_has_no_name() -> None:
    text = "   #bytes #repetitions      t[usec]   Mbytes/sec\n     1024         1000         2.38       430.25\n"
    log = imb.read(text)
    (table,) = log.tables
    assert (table.collective, log.outcome) == ("", LogOutcome.UNKNOWN)
    assert [row.size_bytes for row in table.rows] == [1024]
    assert table.rows[0].seconds == pytest.approx(2.38e-6)


@pytest.mark.parametrize(
    ("name", "collective"), [("Iallreduce", "all_reduce"), ("Ibcast", "broadcast")]
)
def test_non_blocking_benchmarks_give_the_time_without_overlap(
    name: str, collective: str
) -> None:
    text = (
        f"# Benchmarking {name}\n# #processes = 2\n"
        " #bytes #repetitions t_ovrl[usec] t_pure[usec] t_CPU[usec] overlap[%]\n"
        "  1024         1000         9.00         6.00        5.00      40.00\n"
    )
    (table,) = imb.read(text).tables
    assert table.collective == collective
    assert table.rows[0].seconds == pytest.approx(6e-6)
    assert table.rows[0].extra["overlap[%]"] == 40.0


gloo_benchmark = readers()["gloo_benchmark"]


def test_the_published_table_is_read() -> None:
    (table,) = gloo_benchmark.read(
        text_of({"file": "awkward_cpu_gloo_allreduce_ring_chunked.txt"})
    ).tables
    assert (table.collective, table.algorithm, table.ranks) == ("all_reduce", "ring_chunked", 4)
    (row,) = table.rows
    assert (row.size_bytes, row.count, row.dtype) == (2**30, 268435456, "float32")
    assert row.seconds == pytest.approx(1.443672)
    assert row.extra["iterations"] == 1
    # The printed rate is of the size found, in binary units.
    assert row.extra["rate_gb_per_second"] == pytest.approx(2**30 / 1.443672 / 1e9, abs=6e-4)


def test_the_time_is_the_median_and_the_rate_of_the_mean_stands_beside_it() -> None:
    row = gloo_benchmark.read(outputs.GLOO).tables[0].rows[1]
    assert row.seconds == pytest.approx(3907e-6)
    assert (row.algbw, row.extra["rate_gb_per_second"]) == (None, pytest.approx(2**30 / 1e9))
    assert row.extra["p99_seconds"] == pytest.approx(4400e-6)


def test_half_precision_shows_in_the_rate() -> None:
    rows = (
        gloo_benchmark.read(outputs.GLOO.replace("1.000        500", "0.500        500"))
        .tables[0]
        .rows
    )
    assert [row.size_bytes for row in rows] == [200, 2097152]


def test_nanoseconds_and_a_gathered_buffer_are_converted() -> None:
    (table,) = gloo_benchmark.read(outputs.GLOO_NANOSECONDS).tables
    (row,) = table.rows
    assert (table.collective, table.algorithm, table.ranks) == ("all_gather", "ring", 4)
    assert row.size_bytes == 4 * 4 * 1048576
    assert row.seconds == pytest.approx(2e-3)
    assert row.algbw is None  # the printed rate counts one block


def test_a_size_column_gives_the_bytes_of_an_element() -> None:
    text = (
        "Algorithm:   broadcast_one_to_all\nOptions:     processes=3, inputs=1\n"
        "   size (B)   elements   min (us)   p50 (us)   p99 (us)   max (us)   bandwidth (GB/s)   iterations\n"
        "        800        100        172        172        172        172              0.004            1\n"
    )
    (table,) = gloo_benchmark.read(text).tables
    assert (table.collective, table.ranks) == ("broadcast", 3)
    assert [(row.size_bytes, row.root) for row in table.rows] == [(800, 0)]


def test_an_unknown_algorithm_keeps_its_name() -> None:
    (table,) = gloo_benchmark.read(
        outputs.GLOO.replace("allreduce_halving", "sparse_halving")
    ).tables
    assert (table.collective, table.algorithm) == ("sparse_halving_doubling", "default")
