from __future__ import annotations

import re
from dataclasses import replace

import pytest

from ccbench.flags import Flag
from ccbench.readers.benchmarks import log_of_text
from ccbench.readers.benchmarks.log import (
    ImportedLog,
    ImportedRow,
    ImportedTable,
    LogOutcome,
    checked,
)
from ccbench.readers.benchmarks.nccl_tests import read, recognises
from ccbench.readers.benchmarks.nccl_tests_columns import header_layout
from tests.readers.benchmarks.nccl_tests_outputs import (
    OLD_TITLES,
    ROWS,
    SIZES,
    TITLES,
    UNITS,
    devices,
    figures,
    output,
    row,
)

WHOLE = output()
BEGUN = WHOLE.split(ROWS[1])[0]


def table_of(text: str) -> ImportedTable:
    (table,) = read(text).tables
    return table


def figures_of(log: ImportedLog) -> list[ImportedRow]:
    """Rows of all tables without the places where they stood."""
    return [replace(row, line=0, extra={}) for table in log.tables for row in table.rows]


def test_a_whole_output_gives_everything_it_says() -> None:
    log = read(WHOLE)
    table = table_of(WHOLE)
    assert recognises(WHOLE)
    assert (log.tool, log.library, log.outcome) == ("nccl-tests", "NCCL", LogOutcome.COMPLETE)
    nccl = {"NCCL": "2.28.9", "NCCL headers": "2.28.9"}
    assert log.versions == {"nccl-tests": "2.17.1", "CUDA": "13.0", **nccl}
    assert (table.collective, table.ranks, table.nodes, table.mode) == (
        "all_reduce",
        8,
        1,
        "streaming",
    )
    assert len(log.devices) == 8
    assert (log.devices[3].host, log.devices[3].device, log.devices[3].bus_id) == (
        "box0",
        3,
        "0000:13:00",
    )
    assert log.devices[3].model == "NVIDIA H100 80GB HBM3"
    assert table.facts["iterations"] == 20
    assert table.facts["warmup_iterations"] == 1
    assert [(row.size_bytes, row.in_place) for row in table.rows] == [
        (s, p) for s in SIZES for p in (False, True)
    ]
    assert checked(log) == log
    assert not log.warnings


@pytest.mark.parametrize(
    "prefix",
    [
        "[1,0]<stdout>:",
        "(head, rank=0, pid=4711) [1,0]<stdout>:",
        "box-1: ",
        "worker-1  | ",
        "[0] ",
    ],
)
def test_what_a_launcher_puts_before_each_line_is_not_read(prefix: str) -> None:
    marked = "\n".join(prefix + line for line in output().rstrip("\n").split("\n"))
    assert figures_of(log_of_text(marked, "log")) == figures_of(read(WHOLE))


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("\n# ", "\n"),  # a web page took the comment marks
        lambda text: text.replace("\n ", "\n# "),  # a script put one before every row
        lambda text: text.replace("\n", "\r\n"),
        lambda text: text.replace("\n", " \x1b[0m\n"),
        lambda text: "```\n" + text + "```\n",
        lambda text: text.replace(
            "\n  ", "\nbox0:21:21 [0] NCCL INFO Launch mode Parallel\n  "
        ),
        lambda text: text.replace("float", "[0] float"),
        lambda text: "\n".join(line[:170].strip() for line in text.split("\n")),
    ],
)
def test_pages_scripts_and_messages_change_no_row(change: object) -> None:
    assert callable(change)
    assert figures_of(read(change(WHOLE))) == figures_of(read(WHOLE))


def test_a_rank_in_brackets_is_a_tag_and_no_message() -> None:
    setting = "[0] NCCL INFO NCCL_ALGO set by environment to Ring\n"
    rows = "".join(f"[0] {line}\n" for line in (TITLES, UNITS, *ROWS))
    log = log_of_text(setting + rows, "log")
    assert [row.size_bytes for table in log.tables for row in table.rows] == [
        s for s in SIZES for _ in range(2)
    ]
    assert log.environment == {"NCCL_ALGO": "Ring"}


def test_the_old_error_column_is_no_count_of_wrong_elements() -> None:
    line = (
        f"{1 << 20:>12}  {1 << 18:>12}   float     sum"
        + figures(1 << 20, 1.75, 50.0, "2e-07") * 2
    )
    for text in ("\n".join([OLD_TITLES, line]), line + "\n"):
        rows = table_of(text).rows
        assert [row.wrong_elements for row in rows] == [None, None]
        assert [row.extra["largest_error"] for row in rows] == [2e-07, 2e-07]
        assert rows[0].root == -1


def test_the_words_of_the_first_versions_mean_the_same() -> None:
    titles = (
        "#     bytes             N    type      op" + "     time  algbw  busbw      res" * 2
    )
    line = (
        f"{1 << 20:>12}  {1 << 18:>12}   float     sum"
        + figures(1 << 20, 1.75, 50.0, "1e-06") * 2
    )
    (first, _) = table_of("\n".join([titles, line])).rows
    assert (first.size_bytes, first.count, first.op, first.seconds) == (
        1 << 20,
        1 << 18,
        "sum",
        50e-6,
    )


def test_per_iteration_columns_and_time_stamps_are_kept_beside_the_figures() -> None:
    placement = "     time   algbw   busbw  #wrong    i_min    i_max    i_p99    i_cv%"
    titles = (
        "#       size         count      type   redop    root"
        + placement * 2
        + "           timestamp"
    )
    extra = "    40.10    70.20    69.90     3.25"
    line = f"{1 << 20:>12}  {1 << 18:>12}     float     sum      -1"
    line += (figures(1 << 20, 1.75, 50.0) + extra) * 2 + "  2026-06-01 10:11:12"
    first, second = table_of("\n".join([titles, UNITS, line])).rows
    assert [first.extra[name] for name in ("i_min", "i_max", "i_p99", "i_cv%")] == [
        40.1,
        70.2,
        69.9,
        3.25,
    ]
    assert first.extra["timestamp"] == "2026-06-01 10:11:12"
    assert (second.in_place, second.busbw, second.flags) == (True, 36.7, ())


def test_a_header_of_one_placement_says_above_which_one_it_is() -> None:
    size = 1 << 20
    titles, line = TITLES[: len(TITLES) - 32], row(size)[: -len(figures(size, 1.75, 50.0))]
    for above, in_place in (
        ("#     in-place", True),
        ("#     out-of-place", False),
        ("#", False),
    ):
        (only,) = table_of("\n".join([above, titles, UNITS, line])).rows
        assert (only.in_place, only.seconds) == (in_place, 50e-6)


@pytest.mark.parametrize(
    ("stated", "instead", "mode"),
    [
        (
            "# Using",
            "# Blocking Enabled: wait and barrier after each inner iteration (-m) \n# Using",
            "isolated",
        ),
        ("graph: 0", "graph: 10", "graph"),
    ],
)
def test_waiting_after_each_launch_and_graphs_are_other_modes(
    stated: str, instead: str, mode: str
) -> None:
    assert table_of(WHOLE.replace(stated, instead)).mode == mode


def test_failed_checks_are_a_fact() -> None:
    assert (
        table_of(WHOLE.replace("values : 0 OK", "values : 3 FAILED")).facts["out_of_bounds"]
        == 3
    )


def test_words_for_no_figure_are_none_and_one_placement_is_enough() -> None:
    size = 1 << 20
    line = f"{size:>12}  {size // 4:>12}     float     sum      -1" + figures(size, 1.75, 50.0)
    line += "      N/A     N/A     N/A    N/A"
    (only,) = table_of("\n".join([TITLES, line])).rows
    assert (only.in_place, only.seconds) == (False, 50e-6)
    both = line.replace(figures(size, 1.75, 50.0), "      N/A     N/A     N/A    N/A")
    (empty,) = table_of("\n".join([TITLES, both])).rows
    assert (empty.seconds, empty.algbw, empty.busbw, empty.wrong_elements) == (
        None,
        None,
        None,
        None,
    )


def test_wrong_elements_are_counted_also_in_powers_of_ten() -> None:
    first, _ = table_of("\n".join([TITLES, row(1 << 20, wrong="1.04858e+06")])).rows
    assert first.wrong_elements == 1_048_580


def test_tables_of_one_file_stay_apart() -> None:
    second = output([row(1 << 20, 0.875)], range(8), "all_gather_perf").replace("sum", "none")
    log = read(WHOLE + second)
    assert [(table.collective, len(table.rows)) for table in log.tables] == [
        ("all_reduce", 6),
        ("all_gather", 2),
    ]
    assert len(log.devices) == 8
    bare = "\n".join([TITLES, ROWS[0], TITLES, ROWS[1], TITLES, ROWS[2]])
    assert [len(table.rows) for table in read(bare).tables] == [2, 2, 2]


@pytest.mark.parametrize(
    ("count", "op", "root", "inside", "factor", "expected"),
    [
        (1, "sum", -1, "0", 1.75, "all_reduce"),
        (1, "none", 0, "0", 1.0, "broadcast"),
        (1, "sum", 0, "0", 1.0, "reduce"),
        (1, "sum", -1, "N/A", 1.0, "send_recv"),
        (8, "sum", -1, "0", 0.875, "reduce_scatter"),
        (8, "none", -1, "0", 0.875, "all_gather"),
        (8, "none", -1, "N/A", 0.875, "all_to_all"),
        (8, "none", 0, "0", 0.875, ""),
    ],
)
def test_a_table_without_a_name_is_named_by_its_figures(
    count: int, op: str, root: int, inside: str, factor: float, expected: str
) -> None:
    size = 1 << 24
    start = f"{size:>12}  {size // 4 // count:>12}     float  {op:>6}  {root:>6}"
    line = start + figures(size, factor, 100.0) + figures(size, factor, 100.0, inside)
    table = table_of("\n".join([TITLES, line]))
    assert table.collective == expected
    if count == 8:
        assert table.ranks == 8


@pytest.mark.parametrize(
    ("listed", "ranks", "nodes"),
    [
        (range(16), 16, 2),
        ((0, 7, 8, 15), 16, 2),
        ((1439,), 1440, 180),
        ((0,), 1, 1),
        ((0, 10), 11, None),
    ],
)
def test_ranks_and_nodes_of_a_list_with_gaps(
    listed: tuple[int, ...], ranks: int, nodes: int | None
) -> None:
    table = table_of("\n".join([*devices(listed), TITLES, row(64, 1.9)]))
    assert (table.ranks, table.nodes) == (ranks, nodes)


@pytest.mark.parametrize("pid", ["", "2"])
@pytest.mark.parametrize("alternate", [False, True])
def test_two_runs_whose_lines_stand_beside_each_other_have_their_own_ranks_and_rows(
    pid: str, alternate: bool
) -> None:
    copies = []
    for number in "01":
        rows = [row(size, 1.5, 20 + int(number) + size / 1e5) for size in SIZES]
        text = output(rows, range(4)).replace("box0", f"box{number}")
        text = re.sub(r"Pid +\d+", f"Pid 20{number}", text) if pid else text
        copies.append(text.partition("NCCL version "))
    tables = [copy[2].splitlines() for copy in copies]
    if alternate:
        tables = [[line for pair in zip(*tables, strict=True) for line in pair]]
    log = read(
        "\n".join([copies[0][0], copies[1][0], *(line for lines in tables for line in lines)])
    )
    shapes = [(table.ranks, table.nodes, table.outcome) for table in log.tables]
    assert shapes == [(4, 1, LogOutcome.COMPLETE)] * 2
    for start, table in zip((20, 21), log.tables, strict=True):
        times = [(start + size / 1e5) / 1e6 for size in SIZES]
        assert [row.seconds for row in table.rows[::2]] == pytest.approx(times, rel=1e-3)
    assert [warning.text for warning in log.warnings] == [
        "2 runs in this text, started beside each other: 4 ranks on box0; 4 ranks on box1"
    ]


@pytest.mark.parametrize(
    "listed",
    [
        [re.sub("Pid +", f"Pid {number}", line) for number in "12" for line in devices([0])],
        [*devices([0, 1]), *devices([0, 3, 2], 1), *devices([1], 1)],
    ],
)
def test_runs_that_nothing_tells_apart_have_no_ranks_and_nodes(listed: list[str]) -> None:
    table = table_of("\n".join([*listed, TITLES, row(64, 0.0)]))
    assert (table.ranks, table.nodes) == (None, None)


def test_a_split_run_has_the_ranks_of_a_group() -> None:
    lines = [
        line.replace("Group  0", f"Group {i % 2:>2}")
        for i, line in enumerate(devices(range(8)))
    ]
    assert table_of("\n".join([*lines, TITLES, row(1 << 24, 1.5)])).ranks == 4


@pytest.mark.parametrize("printed_whole", [True, False])
def test_rates_on_one_ranks_bytes_are_told_by_their_figures(printed_whole: bool) -> None:
    ranks, block = 4, 1 << 22
    size = block * ranks if printed_whole else block
    start = f"{size:>12}  {block // 4:>12}   float"
    line = start + figures(block, ranks - 1.0, 400.0, "0e+00") * 2
    titles = OLD_TITLES.replace("   redop", "")
    text = "\n".join(["./all_gather_perf -g 4", *devices(range(ranks)), titles, line])
    (first, _) = checked(read(text)).tables[0].rows
    assert first.size_bytes == block * ranks
    assert first.flags == ((Flag.ALGBW_PER_RANK if printed_whole else Flag.SIZE_PER_RANK),)
    assert (first.algbw, first.busbw) == (10.49, 31.46)
    assert first.extra.get("printed_size_bytes", size) == size


def test_variables_force_an_algorithm_only_when_they_name_one() -> None:
    settings = "box0:21:27 [0] NCCL INFO NCCL_ALGO set by environment to Ring\n"
    settings += "NCCL_PROTO=LL,Simple ./all_reduce_perf\n"
    log = read(settings + WHOLE)
    assert log.environment == {"NCCL_ALGO": "Ring", "NCCL_PROTO": "LL,Simple"}
    assert (log.tables[0].algorithm, log.tables[0].protocol) == ("ring", "default")


def test_secrets_beside_the_variables_are_not_taken() -> None:
    log = read(
        "NCCL_DEBUG=INFO AWS_SECRET_ACCESS_KEY=abc TOKEN=def ./all_reduce_perf\n" + WHOLE
    )
    assert log.environment == {"NCCL_DEBUG": "INFO"}


def test_messages_that_show_a_choice_are_hints_once_each() -> None:
    shown = ("NCCL INFO Connected all rings", "NCCL INFO 16 coll channels, 16 nvls channels")
    messages_in = (*shown, "NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>")
    messages = [f"box0:21:{thread} [0] {what}\n" for thread in (27, 28) for what in messages_in]
    assert read("".join(messages) + WHOLE).hints == shown


def test_communicators_tell_ranks_and_nodes() -> None:
    message = "box0:21:27 [0] NCCL INFO comm 0x1 rank 0 nRanks 64 nNodes 8 localRanks 8 localRank 0 MNNVL 0\n"
    table = table_of(message + "\n".join([TITLES, row(64, 1.9)]))
    assert (table.ranks, table.nodes) == (64, 8)


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        (WHOLE.split("# Out of")[0], LogOutcome.CUT),
        (BEGUN, LogOutcome.CUT),
        (WHOLE.replace(ROWS[1], "..."), LogOutcome.CUT),
        (WHOLE.replace(ROWS[1] + "\n", ""), LogOutcome.CUT),
        (WHOLE.replace("\n".join(ROWS), ""), LogOutcome.CUT),
        (
            BEGUN + "box0: Test NCCL failure common.cu:400 'unhandled cuda error'\n",
            LogOutcome.CRASHED,
        ),
        (BEGUN + "box0: Test timeout (30s) common.cu:500\n", LogOutcome.HUNG),
        (
            BEGUN + "slurmstepd: error: *** STEP 1.0 CANCELLED DUE TO TIME LIMIT ***\n",
            LogOutcome.HUNG,
        ),
        (
            "x [0] NCCL INFO connect returned Connection timed out, retrying\n" + WHOLE,
            LogOutcome.COMPLETE,
        ),
        ("nothing of it\n", LogOutcome.UNKNOWN),
    ],
)
def test_the_end_of_a_run_is_told(text: str, outcome: LogOutcome) -> None:
    log = read(text)
    assert log.outcome is outcome
    assert all(table.outcome is outcome for table in log.tables)


def test_an_average_that_the_rows_do_not_have_is_a_contradiction() -> None:
    log = read("\n".join([TITLES, ROWS[0], "# Avg bus bandwidth    : 9.5"]))
    assert log.outcome is LogOutcome.CUT
    assert [warning.kind for warning in log.warnings] == ["contradiction"]


def test_an_average_without_rows_and_a_header_without_rows_are_tables_without_rows() -> None:
    for text in (
        "# Avg bus bandwidth    : 9.5\n",
        "\n".join([TITLES, UNITS]),
        WHOLE.split(TITLES)[0],
    ):
        assert table_of(text).rows == ()


def test_a_row_that_ends_early_keeps_its_whole_placement_and_says_so() -> None:
    cut = ROWS[0][:95]
    for rows in (
        table_of("\n".join([TITLES, cut])).rows,
        table_of("\n".join([TITLES, cut, ROWS[1]])).rows,
    ):
        assert (rows[0].in_place, rows[0].flags) == (False, (Flag.INCOMPLETE,))
        assert rows[0].seconds == pytest.approx(30.49e-6)
    long = table_of("\n".join([TITLES, ROWS[0] + "   7.77"])).rows
    assert [row.flags for row in long] == [(Flag.SURPLUS_COLUMNS,)] * 2


def test_the_rest_of_a_row_is_no_row() -> None:
    rest = "    579.3    0.00    0.00      0    137.0    0.00    0.00      0"
    log = read("\n".join([TITLES, rest, ROWS[0]]))
    assert len(log.tables[0].rows) == 2
    assert [(warning.kind, warning.line) for warning in log.warnings] == [("damaged_line", 2)]


def test_tables_that_ccbench_wrote_say_what_was_measured() -> None:
    written = [
        "# Collective test starting: gather_perf",
        "# nThread 1 nGpus 4 minBytes 1048576 maxBytes 4194304",
        "#",
        "# written by ccbench: backend cpu 1.2.3, algorithm binomial, protocol default, mode isolated",
        "# 4 ranks on 2 nodes; host unknown, machine unknown; times are medians",
        "#",
        TITLES,
        ROWS[0],
        f"{1 << 22:>12}  {1 << 20:>12}     float     sum      -1      N/A     N/A     N/A    N/A"
        + figures(1 << 22, 1.75, 60.0),
        "# 4194304 B out of place: timed_out rank 3 stood still",
    ]
    table = table_of("\n".join(written))
    assert (table.collective, table.ranks, table.nodes) == ("gather", 4, 2)
    assert (table.algorithm, table.protocol, table.mode) == ("binomial", "default", "isolated")
    assert (table.facts["backend"], table.facts["backend_version"]) == ("cpu", "1.2.3")
    failed = [row for row in table.rows if row.extra.get("status")]
    assert [(row.size_bytes, row.in_place, row.extra["detail"]) for row in failed] == [
        (1 << 22, False, "rank 3 stood still")
    ]


def test_ports_to_rocm_are_told_by_their_own_lines() -> None:
    lines = ["rccl-tests: Version develop:a52452e", "ROCm version : 6.4.2.0-120"]
    log = read("\n".join([*lines, TITLES, ROWS[0]]))
    assert (log.tool, log.library) == ("rccl-tests", "RCCL")
    assert log.versions == {"rccl-tests": "develop:a52452e", "ROCm": "6.4.2.0-120"}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hello",
        "# OSU MPI Allreduce Latency Test v7.4\n# Size       Avg Latency(us)\n4        9.10\n",
        " size(B) count(elems) type time:avg(us) algbw(GB/s) busbw(GB/s)\n 8 2 fp32 63.52 0.00 0.00\n",
        "| payload | busbw | algbw |\n| ---: | ---: | ---: |\n| 32KiB | 1.44GBps | 0.82GBps |\n",
        '{"name":"allgather", "kernel":1, "algBw":291.52, "busBw":255.08, "size":1073741824, "time":3683}\n',
    ],
)
def test_other_texts_are_not_recognised_and_give_a_warning(text: str) -> None:
    assert not recognises(text)
    log = read(text)
    assert log.outcome in (LogOutcome.UNKNOWN, LogOutcome.COMPLETE, LogOutcome.CUT)
    assert log.tables or [warning.kind for warning in log.warnings] == ["unsupported"]


@pytest.mark.parametrize(
    "words", ["size size algbw busbw", "size size time algbw busbw", "size algbw size busbw"]
)
def test_a_header_that_begins_a_second_table_before_its_figures_is_none(words: str) -> None:
    assert header_layout(words.split()) is None
