"""``ccbench check``: any tool's output in, a run out, and nothing lost without a word."""

from __future__ import annotations

import io
import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ccbench.cli.output import PacedLines
from ccbench.results import load_run
from ccbench.topology.files import load_catalog, to_plain
from tests.cli.conftest import Command
from tests.readers.benchmarks.nccl_tests_outputs import (
    ALL_RIGHT,
    ONE_WRONG,
    TITLES,
    output,
    row,
)

WORDS = {size: f"{size:>12}  {size // 4:>12}  float  none  0" for size in (1 << 20, 2 << 20)}
BROADCAST = [
    "# broadcast_perf",
    TITLES,
    *(row(size, 1.0, words=words) for size, words in WORDS.items()),
]


@pytest.fixture(autouse=True)
def log(tmp_path: Path) -> None:
    """A log to import."""
    (tmp_path / "log.txt").write_text(ONE_WRONG)


@pytest.fixture
def imported(ccbench: Command) -> None:
    """The run of it."""
    assert ccbench("check", "log.txt", "-o", "run").code == 1


def test_a_log_becomes_a_run_that_reports(ccbench: Command, tmp_path: Path) -> None:
    ended = ccbench("check", "log.txt", "-o", "run")
    assert ended.code == 1
    assert "Read: log.txt as nccl-tests: lines 1-" in ended.out
    assert "wrote run" in ended.out
    assert not (tmp_path / "results").exists()
    run = load_run(tmp_path / "run")
    assert sorted(point.status for point in run.points) == ["ok", "ok", "ok", "wrong"]
    assert ccbench("report", "run", "--format", "svg,md,csv", "-o", "pages").code == 1
    page = (tmp_path / "pages" / "report.md").read_text()
    assert "imported from log.txt (nccl-tests" in page
    picture = next((tmp_path / "pages").glob("bandwidth-*.svg")).read_text()
    assert "imported from log.txt" in picture
    assert "interval of the median" not in picture


def test_a_machine_that_the_log_shows_is_taken_and_said(
    ccbench: Command, tmp_path: Path
) -> None:
    (tmp_path / "log.txt").write_text(ALL_RIGHT)
    ended = ccbench("check", "log.txt", "-o", "run").done
    assert (
        "note: log.txt: taken as --machine hgx-h100: lines 6 to 13 list NVIDIA H100 80GB HBM3"
        in ended.out
    )
    assert None not in [point.predicted_seconds for point in load_run(tmp_path / "run").points]
    (tmp_path / "bare.txt").write_text(ALL_RIGHT.replace("NVIDIA H100 80GB HBM3", ""))
    (reading, *_) = ccbench("check", "bare.txt").done.out.splitlines()
    assert reading.startswith(
        "NORMAL: nccl all_reduce, 8 ranks: middle sizes 72.7 GB/s at 2 MiB; normal for "
    )
    assert reading.endswith("; name it with --machine")
    ended = ccbench("check", "log.txt", "--json")
    assert [file["machine"] for file in ended.json["files"]] == ["hgx-h100"]


@pytest.mark.parametrize(
    ("text", "word", "code"), [(ALL_RIGHT, "NORMAL", 0), (ONE_WRONG, "WRONG", 1)]
)
def test_the_first_sentence_says_whether_the_numbers_are_normal(
    ccbench: Command, tmp_path: Path, text: str, word: str, code: int
) -> None:
    (tmp_path / "log.txt").write_text(text)
    ended = ccbench("check", "log.txt", "-o", "run")
    imported = ended.out.splitlines()
    assert (ended.code, imported[0].split(":")[0]) == (code, word)
    (verdict,) = ccbench("check", "log.txt", "--json").json["verdicts"]
    assert imported[0] == verdict["sentence"]
    assert imported[0].split(":")[0] == verdict["verdict"]
    ended = ccbench("report", "run", "--format", "md")
    assert ended.code == code
    assert imported[0] in ended.out.splitlines()
    reported = ccbench("report", "run", "--format", "md", "--json").json
    assert reported["speed_verdicts"] == {"run": [verdict]}
    assert reported["verdicts"]["run"][0] == verdict["sentence"]
    worst = "1 of 4 cases gave wrong results (at: 2 MiB out of place, 2 wrong elements)"
    assert (worst in imported[0]) is (word == "WRONG")


OLD = (
    ALL_RIGHT.replace("#wrong", " error").replace("      0", "  5e-07").replace("-1  ", "    ")
)
FAILED = ("values : 0 OK", "values : 12 FAILED")


@pytest.mark.thinned(5)
@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            ALL_RIGHT.replace(*FAILED),
            "the closing line counts 12 wrong values, no row shows them: 4 of 4",
        ),
        (
            OLD.replace(*FAILED),
            "the closing line counts 12 wrong values, no row shows them: 4 of 4 cases",
        ),
        (
            ALL_RIGHT.replace("      0", "    N/A").replace(*FAILED),
            "12 wrong values, no row shows them: 4",
        ),
        (
            re.sub(r"\n +2097152 .*", "", ALL_RIGHT)
            .replace("OK", "FAILED")
            .replace(" : 0", " : 1,024"),
            "the closing line counts 1024 wrong values, no row shows them: 2 of 2 cases are in doubt",
        ),
        (
            ONE_WRONG.replace(*FAILED),
            "(at: 2 MiB out of place, 2 wrong elements); the closing line counts 12",
        ),
        (
            ALL_RIGHT.replace("      0", "    nan", 1),
            "1 of 4 cases gave wrong results (at: 1 MiB out of",
        ),
        (
            ALL_RIGHT.replace("      0", "  1,024", 1),
            "1 MiB out of place, 1024 wrong elements)",
        ),
        (
            OLD.replace("5e-07", "  nan", 1),
            "1 of 4 cases gave wrong results (at: 1 MiB out of place",
        ),
        (
            OLD.replace("5e-07", "  inf", 2),
            "2 of 4 cases gave wrong results (worst: 1 MiB out of place",
        ),
        (
            OLD.replace("5e-07", "1e+02", 1),
            "1 of 4 cases gave wrong results (at: 1 MiB out of place",
        ),
    ],
)
def test_wrong_data_are_the_first_sentence_wherever_the_log_says_so(
    ccbench: Command, tmp_path: Path, text: str, words: str
) -> None:
    (tmp_path / "log.txt").write_text(OLD)
    assert ccbench("check", "log.txt").code == 0
    (tmp_path / "log.txt").write_text(text)
    ended = ccbench("check", "log.txt", "-o", "run")
    first = ended.out.splitlines()[0]
    assert (ended.code, first.split(":")[0]) == (1, "WRONG")
    assert words in first
    ended = ccbench("report", "run", "--format", "md,nccl-tests")
    assert ended.code == 1
    assert first in ended.out.splitlines()
    tables = [file.read_text() for file in (tmp_path / "run" / "report").glob("*.txt")]
    assert len(tables) == 1
    assert "FAILED" in tables[0]


def test_wrong_data_of_a_table_that_is_left_out_are_in_the_exit_code(
    ccbench: Command, tmp_path: Path
) -> None:
    (tmp_path / "bad.txt").write_text(
        "\n".join([*BROADCAST, "# Out of bounds values : 12 FAILED"])
    )
    (tmp_path / "log.txt").write_text(ALL_RIGHT)
    ended = ccbench("check", "log.txt", "bad.txt")
    assert (ended.code, "bad.txt:2: table 1 (4 rows) left out" in ended.out) == (1, True)
    sentence = (
        "WRONG: bad.txt: the closing lines count 12 wrong values, of rows that are left out"
    )
    assert ended.out.startswith(f"{sentence}\nNORMAL: ")
    ended = ccbench("check", "bad.txt")
    assert (ended.code, ended.out.splitlines()[0]) == (1, sentence)


CRASH = "host-a: Test NCCL failure all_reduce.cu:44 'unhandled cuda error'\n"
LAUNCHING = ALL_RIGHT.replace("   time   algbw", "cputime   algbw")


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        (
            ALL_RIGHT[: ALL_RIGHT.index("# Out of")] + CRASH,
            1,
            "CANNOT SAY: nccl all_reduce, 8 ranks: the program crashed (line",
        ),
        (
            ALL_RIGHT[: ALL_RIGHT.index("# Out of")],
            5,
            "the output is cut off (rows or closing lines are missing)",
        ),
        (ALL_RIGHT + CRASH, 1, "; the program crashed (line"),
        (LAUNCHING, 3, "4 of 4 cases not judged: 4 flagged cpu_time"),
        (
            re.sub(
                r"0\n( +2097152 .*)\n",
                r"0\n\1\n# 2097152 B in place: flags loopback\n",
                ALL_RIGHT,
            ),
            0,
            "1 of 4 cases not judged: 1 flagged loopback",
        ),
    ],
)
def test_what_a_verdict_leaves_out_is_in_the_first_sentence(
    ccbench: Command, tmp_path: Path, text: str, code: int, words: str
) -> None:
    (tmp_path / "log.txt").write_text(text)
    ended = ccbench("check", "log.txt")
    assert ended.code == code
    # The rest of a row that is doubted, and what a cut leaves, are still judged.
    word = "CANNOT SAY: " if words[0] in "4C" else "NORMAL: "
    assert any(line.startswith(word) and words in line for line in ended.out.splitlines())
    assert ended.out.startswith("PROBLEM: NCCL gave up") is (code == 1)


SWEEP = output([row(1 << power, time=45 + 2**power / 2.5e5) for power in range(20, 31, 2)])


@pytest.mark.parametrize(("rows", "word"), [(2, "CANNOT SAY"), (3, "NORMAL"), (5, "NORMAL")])
def test_less_than_half_of_the_announced_sizes_are_no_normal_run(
    ccbench: Command, tmp_path: Path, rows: int, word: str
) -> None:
    lines = SWEEP.splitlines(keepends=True)
    first = lines.index(next(line for line in lines if line.startswith(" ")))
    (tmp_path / "log.txt").write_text("".join(lines[: first + rows]))
    ended = ccbench("check", "log.txt", "-o", "run")
    sentence = ended.out.splitlines()[0]
    assert (ended.code, sentence.split(":")[0]) == (5, word)
    missing = "4 of 6 announced sizes are missing"
    assert (missing in sentence) is (rows == 2)
    assert sentence in ccbench("report", "run", "--format", "md").out.splitlines()


STARTED = ALL_RIGHT[: ALL_RIGHT.index("# Using devices")]
LIMIT = "slurmstepd: error: *** JOB 12 ON n1 CANCELLED AT 2024-05-05T10:00:00 DUE TO TIME LIMIT ***\n"
KILL = "srun: error: n1: task 1: Terminated\n"
BANNER = "# Intel(R) MPI Benchmarks 2021.7, MPI-1 part\n"


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        (CRASH, 1, "NCCL gave up: Test NCCL failure"),
        (STARTED + CRASH, 1, "NCCL gave up: Test NCCL failure"),
        (
            STARTED + LIMIT + KILL,
            1,
            "log.txt: the program hung (line 5: slurmstepd: error: *** JOB 12",
        ),
        (BANNER + KILL, 1, "log.txt: the program crashed (line 2: srun: error"),
        (
            "# OSU MPI Allreduce Latency Test v7.4\n" + LIMIT,
            1,
            "log.txt: the program hung (line 2: slurmstepd",
        ),
    ],
)
def test_a_program_that_ends_before_its_first_row_is_told_though_there_is_no_run(
    ccbench: Command, tmp_path: Path, text: str, code: int, words: str
) -> None:
    (tmp_path / "log.txt").write_text(text)
    ended = ccbench("check", "log.txt", "-o", "run")
    assert ended.code == code
    assert ended.out.startswith(f"PROBLEM: {words}")
    assert not (tmp_path / "run").exists()
    assert ccbench("check", "log.txt", "--json").json["verdicts"][0]["verdict"] == "PROBLEM"


def test_a_machine_of_a_file_has_a_verdict_too(ccbench: Command, tmp_path: Path) -> None:
    mine = replace(load_catalog("hgx-h100"), name="mine")
    (tmp_path / "mine.json").write_text(json.dumps(to_plain(mine)))
    ours = ccbench("check", "log.txt", "--machine", "mine.json", "--json", "-o", "ours").json
    named = ccbench("check", "log.txt", "--machine", "hgx-h100", "--json", "-o", "named").json
    assert ours["verdicts"] == named["verdicts"]
    assert load_run(tmp_path / "ours").manifest.machine == "mine"


def test_four_gpus_of_a_node_have_both_nics_that_are_stated(
    ccbench: Command, tmp_path: Path
) -> None:
    # 1.97 of busbw / algbw are 64 ranks: four of each of 16 nodes.
    rows = [
        (1 << 30, 48990, 21.92, 43.15),
        (2 << 30, 92610, 23.19, 45.65),
        (4 << 30, 184970, 23.22, 45.71),
    ]
    table = [
        f"{size} {size // 4} float sum -1 {time} {alg} {bus} 0" for size, time, alg, bus in rows
    ]
    title = "# size count type redop root time algbw busbw #wrong"
    closed = "# Out of bounds values : 0 OK"
    (tmp_path / "log.txt").write_text("\n".join(["# all_reduce_perf", title, *table, closed]))
    machine = (
        "--machine",
        "hgx-h100",
        "--nodes",
        "16",
        "--ranks",
        "64",
        "--network",
        "slingshot-200x2",
    )
    assert ccbench("check", "log.txt", *machine).done.out.startswith(
        "NORMAL: nccl all_reduce, 64 ranks on 16"
    )
    few = ccbench("check", "log.txt", *machine[:-1], "ib-ndr-400x8").ends(1)
    assert "4 of 8 GPUs of a node took part" in few.out
    assert "ib-ndr-400x4 of ib-ndr-400x8" in few.out


LAUNCHES = [
    ("mpirun_rsh -np 2 host host MV2_USE_CUDA=1 ./osu_allreduce -d cuda", 2),
    ("$ /opt/openmpi/bin/mpirun.openmpi -n 4 ./osu_allreduce", 4),
    ("", 8),
]


@pytest.mark.parametrize(("command", "ranks"), LAUNCHES)
def test_ranks_of_the_command_line_in_a_log_count_before_the_machines(
    ccbench: Command, tmp_path: Path, command: str, ranks: int
) -> None:
    title = "# OSU MPI-CUDA Allreduce Latency Test v5.9\n# Size       Avg Latency(us)\n"
    (tmp_path / "osu.txt").write_text(f"{command}\n\n{title}1024  13.87\n2048  14.42\n")
    assert ccbench("check", "osu.txt", "--machine", "dgx-a100", "-o", "run").done
    assert {point.ranks for point in load_run(tmp_path / "run").points} == {ranks}
    stated = ccbench(
        "check", "osu.txt", "--machine", "dgx-a100", "--ranks", "6", "-o", "stated"
    ).done
    held = {point.ranks for point in load_run(tmp_path / "stated").points}
    assert held == ({ranks} if command else {6})
    assert (
        f"is of {ranks} ranks, as the output shows; --ranks 6 is not used" in stated.out
    ) == bool(command)


def test_a_broadcast_of_nccl_tests_has_the_ranks_of_its_command(
    ccbench: Command, tmp_path: Path
) -> None:
    command = "user@host:~$ mpirun --hostfile two -n 2 ./build/broadcast_perf -b 1M -e 2M -f 2 -g 4 -n 30"
    (tmp_path / "bare.txt").write_text(
        "\n".join([command, *BROADCAST, "# Out of bounds values : 0 OK"])
    )
    machine_options = ("--machine", "hgx-h100", "--nodes", "2", "--network", "ib-ndr-400x8")
    assert ccbench("check", "bare.txt", *machine_options, "-o", "run").done
    assert {(point.ranks, point.nodes) for point in load_run(tmp_path / "run").points} == {
        (8, 2)
    }


CARDS = [
    f"#  Rank {rank} Group  0 Pid 900 on host device  {rank} [0x8{rank}] NVIDIA GeForce RTX 4090"
    for rank in range(4)
]
HEADER = "# size count type redop root time algbw busbw #wrong time algbw busbw #wrong"


@pytest.mark.parametrize("shown", [True, False])
def test_slow_host_memory_is_laid_to_its_kernels_and_not_to_clocks(
    ccbench: Command, tmp_path: Path, shown: bool
) -> None:
    channel = "host:900:900 [0] NCCL INFO Channel 00 : 0[0] -> 1[1] via SHM/direct/direct"
    row = "268435456 67108864 float sum -1 184100 1.46 2.19 0 184900 1.45 2.18 0"
    closed = "# Out of bounds values : 0 OK"
    lines = ["# all_reduce_perf", *CARDS, *[channel] * shown, HEADER, row, closed]
    (tmp_path / "log.txt").write_text("\n".join(lines))
    finding = ccbench("check", "log.txt", "--machine", "rtx-pcie").ends(1).out
    assert finding.startswith("SLOW: ")
    how = "likely" if shown else "fits, unproven"
    assert f"{how}: host memory written by kernels instead of copy engines (SHM)" in finding
    assert "NCCL_SHM_USE_CUDA_MEMCPY=1" in finding
    assert "clocks" not in finding


def test_rates_that_other_sizes_reach_rule_sockets_out_and_a_dip_is_named(
    ccbench: Command, tmp_path: Path
) -> None:
    rates = [30.1, 34.3, 0.9, 1.2, 1.3, 2.4, 4.4, 7.2, 13.9, 27.8, 37.3]
    device = (
        "#  Rank {0} Group  0 Pid {0} on host{1} device  {2} [0000:0{2}:00] NVIDIA RTX 6000D"
    )
    devices = [device.format(rank, rank // 8, rank % 8) for rank in range(16)]
    rows = []
    for place, rate in enumerate(rates):
        size, algbw = 2 ** (23 + place), rate * 16 / 15
        rows.append(
            f"{size} {size // 64} float none -1 {size / algbw / 1e3:.2f} {algbw:.2f} {rate:.2f} 0"
        )
    closed = "# Out of bounds values : 0 OK"
    title = "# size count type redop root time algbw busbw #wrong"
    (tmp_path / "log.txt").write_text(
        "\n".join(["# alltoall_perf", *devices, title, *rows, closed])
    )
    machine = ("--machine", "pcie5-x16", "--nodes", "2", "--network", "roce-400x8")
    out = ccbench("check", "log.txt", *machine).ends(1).out
    assert out.startswith("SLOW: ")
    assert "sockets" not in out
    assert "slower from 32 MiB to 2 GiB than its own other sizes imply" in out
    assert "drops or reorders packets" in out


@pytest.mark.thinned(3)
@pytest.mark.parametrize(
    ("line", "is_sign"),
    [
        ("NCCL_IB_DISABLE=1 was NOT set", False),
        ("we ran without NCCL_IB_DISABLE=1", False),
        ("MY-NCCL_IB_DISABLE=1", False),
        ("NCCL_IB_DISABLE=10", False),
        ("mpirun -np 16 -x NCCL_IB_DISABLE=1 ./all_reduce_perf", True),
        ("export NCCL_IB_DISABLE=1", True),
    ],
)
def test_a_variable_is_a_sign_where_it_is_set_and_not_where_prose_denies_it(
    ccbench: Command, tmp_path: Path, line: str, is_sign: bool
) -> None:
    rows = [row(1 << power, 1.875, time=2**power / 1e4) for power in range(28, 33, 2)]
    (tmp_path / "log.txt").write_text(f"{line}\n{output(rows, range(16))}")
    out = ccbench("check", "log.txt", "--network", "ib-ndr-400x8").ends(1).out
    assert out.startswith("SLOW: ")
    assert ("NCCL_IB_DISABLE=1 was seen" in out) is is_sign


def test_flagged_times_are_the_basis_of_no_advice(ccbench: Command, tmp_path: Path) -> None:
    # Slow where times are the collective's; nothing is said where -C was set.
    rows = [row(8 << 20, time=900.0), row(16 << 20, time=400.0)]
    for text, advised, code in (
        (output(rows), True, 1),
        (output(rows).replace("   time   algbw", "cputime   algbw"), False, 3),
    ):
        (tmp_path / "log.txt").write_text(text)
        assert ccbench("check", "log.txt", "-o", f"run-{advised}").code == code
        page = ccbench("report", f"run-{advised}", "--format", "md").ends(code).out
        assert page.startswith("CANNOT SAY: ") is not advised


def test_json_tells_a_script_what_became_of_every_file(
    ccbench: Command, tmp_path: Path
) -> None:
    (tmp_path / "other.txt").write_text("nothing of the sort\n")
    ended = ccbench("check", "log.txt", "other.txt", "--json", "-o", "run")
    assert ended.code == 1, "wrong results are graver than a file that is none"
    (file,) = ended.json["files"]
    assert (file["tool"], file["rows"], file["statuses"]) == (
        "nccl-tests",
        4,
        {"ok": 3, "wrong": 1},
    )
    assert [part["file"] for part in ended.json["not_read"]] == ["other.txt"]
    assert ended.json["run"] == "run"


def test_a_table_on_unknown_ranks_is_left_out_and_options_rescue_it(
    ccbench: Command, tmp_path: Path
) -> None:
    (tmp_path / "log.txt").write_text(ALL_RIGHT)
    (tmp_path / "bare.txt").write_text("\n".join([*BROADCAST, "# Out of bounds values : 0 OK"]))
    partial = ccbench("check", "log.txt", "bare.txt", "-o", "partial")
    assert partial.code == 5
    assert "bare.txt:" in partial.out
    assert "give --ranks, or --machine and --nodes" in partial.out
    machine_options = ("--machine", "hgx-h100", "--nodes", "2", "--network", "ib-ndr-400x8")
    assert ccbench("check", "bare.txt", *machine_options, "-o", "whole").done
    run = load_run(tmp_path / "whole")
    assert {(point.ranks, point.nodes) for point in run.points} == {(16, 2)}
    assert run.manifest.document["network"] == "ib-ndr-400x8"


def test_nothing_to_import_is_an_error_and_leaves_no_folder(
    ccbench: Command, tmp_path: Path
) -> None:
    (tmp_path / "other.txt").write_text("nothing of the sort\n")
    ended = ccbench("check", "other.txt", "absent.txt").ends(2)
    assert ccbench("check", "other.txt").code == 3, "no mistake of who typed it"
    assert "absent.txt" in ended.out
    assert not (tmp_path / "results").exists()


def test_a_folder_gives_its_logs_and_not_its_runs_descriptions_or_binary_files(
    ccbench: Command, tmp_path: Path
) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "log.txt").write_text(ALL_RIGHT)
    (logs / "wide.txt").write_bytes(ALL_RIGHT.encode("utf-16"))
    (logs / "state.bin").write_bytes(b"NCCL INFO\0timed out")
    (logs / "manifest.yaml").write_text(
        "- file: log.txt\n  why: all_reduce_bench hung, connection timed out\n"
    )
    assert ccbench("check", "logs/log.txt", "-o", "logs/runs/one").done
    ended = ccbench("check", "logs", "-o", "both", "--json").done
    assert [Path(file["file"]).name for file in ended.json["files"]] == ["log.txt", "wide.txt"]
    assert ended.json["left_out"] == []
    notes = [line for line in ended.err.splitlines() if "passed over" in line]
    assert notes == [
        "note: 1 run folder passed over: use 'ccbench report' or 'ccbench compare'"
    ]
    assert ccbench("check", "logs/manifest.yaml", "-o", "none").code == 3


def test_a_long_import_says_how_far_it_is(
    ccbench: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ccbench.cli.output.PacedLines.SECONDS", 0.0)
    monkeypatch.setattr("ccbench.cli.checking.LONG_BYTES", 100)
    (tmp_path / "log.txt").write_text(ALL_RIGHT)
    ended = ccbench("check", "log.txt", "-o", "run").done
    assert ended.err.startswith("check: reading log.txt\n")
    lines = re.findall(r"^check: (\d+) of (\d+) cases written$", ended.err, re.MULTILINE)
    assert lines == [(str(number), str(len(lines))) for number in range(len(lines))]
    assert len(lines) > 1


def test_on_a_terminal_progress_takes_one_line_and_leaves_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setattr(PacedLines, "TERMINAL_SECONDS", 0.0)
    lines = PacedLines()
    lines.show("99 files")
    lines.show("1 file")
    lines.end()
    assert terminal.getvalue() == "\r99 files\r1 file  \r      \r"


def test_an_empty_stdin_is_named_so(ccbench: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    assert "note: stdin: is empty;" in ccbench("check", "-").ends(3).err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--machine", "hgx-h10"), "Did you mean"),
        (("--network", "fast"), "ib-ndr-400x8"),
        (("--nodes", "0"), "--nodes"),
        (("--dtype", "float31"), "--dtype float31: no element type"),
        (("--dtype", "bf16"), "names float32, not --dtype bfloat16; leave the option out"),
        (("--library", "rccl"), "names nccl, not --library rccl; leave the option out"),
        (("--library", "rccl 2.18"), "names nccl, not --library rccl; leave the option out"),
        (("--library", "a\nb"), "names nccl, not --library"),
        (("--library", "nccl abc"), "names nccl, not --library nccl abc; leave the option out"),
    ],
)
def test_a_wrong_option_is_refused(
    ccbench: Command, tmp_path: Path, options: tuple[str, ...], words: str
) -> None:
    assert words in ccbench("check", "log.txt", *options).refused.err


@pytest.mark.usefixtures("imported")
def test_published_results_lie_beside_the_points_they_are_like(
    ccbench: Command, tmp_path: Path
) -> None:
    ended = ccbench(
        "report",
        "run",
        "--baseline",
        "published:hgx-h100",
        "--format",
        "svg,csv,md",
        "-o",
        "out",
    )
    assert ended.code == 1
    assert "Compared with published:hgx-h100" in ended.out
    assert "[1] " in ended.out
    pairs = (tmp_path / "out" / "baseline-pairs.csv").read_text().splitlines()
    assert len(pairs) == 1 + 3  # the wrong case has no speed to compare
    assert "## Compared with the baseline" in (tmp_path / "out" / "report.md").read_text()
    assert "published" in next((tmp_path / "out").glob("bandwidth-*.svg")).read_text()


@pytest.mark.usefixtures("imported")
def test_what_is_published_is_listed_and_an_unknown_name_gets_the_cure(
    ccbench: Command, tmp_path: Path
) -> None:
    assert "published:hgx-h100: " in ccbench("report", "--baseline", "published:").done.out
    names = [
        entry["name"]
        for entry in ccbench("report", "--baseline", "published:", "--json").json["published"]
    ]
    assert "dgx-a100" in names
    ended = ccbench("report", "run", "--baseline", "published:hgx-h1000").refused
    assert "did you mean hgx-h100" in ended.err


def test_library_and_type_of_a_table_that_names_none_are_stated(
    ccbench: Command, tmp_path: Path
) -> None:
    (tmp_path / "comms.txt").write_text(
        "world_size: 4\n\tCOMMS-RES-all_reduce 67108864 1.6 2.4\n"
    )
    for options, backend, dtype in (
        ((), "param", ""),
        (("--library", "nccl", "--dtype", "bf16"), "nccl", "bfloat16"),
        (("--library", "RCCL", "--dtype", "float"), "rccl", "float32"),
        (("--library", "Open MPI 4.1.2", "--dtype", "float"), "mpi", "float32"),
        (("--library", "Intel MPI", "--dtype", "float"), "mpi", "float32"),
    ):
        folder = tmp_path / "-".join((backend, "run", *options))
        ccbench("check", "comms.txt", *options, "-o", str(folder)).ends(
            3 * (backend[1:] == "ccl")
        )
        (point,) = load_run(folder).points
        assert (point.backend, point.dtype, point.ranks) == (backend, dtype, 4)
