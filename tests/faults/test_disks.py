"""Disks that are full or read-only, two runs that want the same folder, and files that are damaged."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

import pyarrow as pa  # type: ignore[import-untyped]  # ships no types
import pyarrow.parquet as pq  # type: ignore[import-untyped]  # ships no types
import pytest

from ccbench.cases.measurement import Status
from ccbench.errors import RunCutShort
from ccbench.results import load_run
from ccbench.runner.planning import RunOptions
from ccbench.runner.progress import Progress
from ccbench.runner.run import run_suite
from ccbench.suite.model import load_suite
from tests.faults import traces
from tests.faults.conftest import QUIET, Bench, rows_of


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[bool]:
    """A RAM disk at ``folder`` where this process may mount one; False where it may not."""
    folder.mkdir()
    program = shutil.which("mount")
    command = [program or "mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(folder)]
    mounted = (
        program is not None and subprocess.run(command, capture_output=True).returncode == 0
    )
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(folder)], check=True)


def no_file_above_20_kib() -> None:
    """Run in a child: a full disk that needs no rights."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (20 << 10, 20 << 10))


@pytest.mark.parametrize(
    ("where", "output", "size"),
    [
        ("full disk", "disk/out", "20k"),
        pytest.param("file size limit", "out", "1m", marks=pytest.mark.exhaustive),
        ("read-only mount", "disk/out", "1m"),
        pytest.param("below a file", "a-file/out", "1m", marks=pytest.mark.exhaustive),
        pytest.param("in /proc", "/proc/self/out", "1m", marks=pytest.mark.exhaustive),
    ],
)
def test_an_output_that_cannot_be_written_is_told_in_one_line_before_anything_is_measured(
    bench: Bench, where: str, output: str, size: str
) -> None:
    suite = bench.suite({"collective": "barrier"})
    (bench.folder / "a-file").write_text("")
    words = "cannot be written"
    with small_disk(bench.folder / "disk", size) as mounted:
        if where == "full disk" and mounted:
            words = "the disk is full; free some space, or put the run on another disk with -o"
        elif "disk" in where or "limit" in where:
            bench.before_exec = no_file_above_20_kib
        elif where == "read-only mount" and mounted:
            subprocess.run(
                ["mount", "-o", "remount,ro", str(bench.folder / "disk")], check=True
            )
        elif where == "read-only mount":
            (bench.folder / "disk").chmod(
                0o500
            )  # root may write all the same; then /proc stands in
            output = output if os.getuid() else "/proc/sys/out"
        ended = bench.run(suite, output=output)
    assert ended.code == 2
    (line,) = ended.err.strip().splitlines()
    assert line.startswith("ccbench: error: ")
    assert words in line
    assert output.rpartition("/")[0] in line


def test_a_disk_that_fills_up_during_a_run_leaves_finished_cases_whole(
    tmp_path: Path, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite = load_suite(bench.suite({"collective": ["all_reduce", "broadcast", "barrier"]}))
    opened = 0

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def open_log(file: Path, mode: str) -> IO[bytes]:
        nonlocal opened
        opened += 1
        if opened > 2:
            monkeypatch.setattr("os.fsync", full)
            full()
        return cast(IO[bytes], open(file, mode))

    monkeypatch.setattr("ccbench.results.folder.open", open_log, raising=False)
    options = RunOptions(output=tmp_path / "out", machine="cpu-shared-memory")
    with pytest.raises(RunCutShort, match="the disk is full; free some space") as caught:
        run_suite(suite, options, Progress())
    monkeypatch.undo()
    out = tmp_path / "out"
    assert str(caught.value).endswith(
        f"; 2 cases kept in {out}; then go on with --resume {out}"
    )
    assert caught.value.exit_code == 5
    rows = rows_of(tmp_path / "out")
    assert [row["status"] for row in rows] == [Status.OK.value] * 2
    assert sorted(os.listdir(out)) == ["cases.log", "lock", "run.json"]


def test_the_second_run_into_one_folder_is_refused_and_disturbs_nothing(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    process = bench.start_run(bench.long_suite())
    manifest = bench.folder / "out" / "run.json"
    # The machine is measured once the folder is the run's own; then run.json is complete.
    traces.wait_until(
        lambda: manifest.exists() and "machine" in json.loads(manifest.read_text())
    )
    # What it writes meanwhile is its own affair.
    process.send_signal(signal.SIGSTOP)
    before = _contents(bench.folder / "out")
    second = bench.suite({"collective": "barrier"})
    assert bench.here("run", second, *QUIET, "-o", "out") == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("ccbench: error: out: the folder is not empty")
    assert bench.here("run", second, *QUIET, "--resume", "out") == 2
    assert "another run is writing to this folder" in capsys.readouterr().err
    assert _contents(bench.folder / "out") == before
    process.send_signal(signal.SIGCONT)
    process.terminate()
    assert bench.end(process).code == 143


def test_damaged_cases_are_named_the_rest_is_reported_and_resume_heals(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ccbench.results.files.GROUP_CASES", 1)
    suite = bench.suite({"collective": ["all_reduce", "broadcast", "barrier", "all_gather"]})
    assert bench.here("run", suite, *QUIET, "-o", "out") == 0
    folder = bench.folder / "out"
    table, log, foreign = (
        folder / name for name in ("cases.parquet", "cases.log", "cases/notes.parquet")
    )
    content = bytearray(table.read_bytes())
    column = pq.ParquetFile(table).metadata.row_group(0).column(0)
    content[column.data_page_offset + column.total_compressed_size - 3] ^= 4
    table.write_bytes(content)
    log.write_text("cut")
    foreign.parent.mkdir()
    pq.write_table(pa.table({"x": [1, 2]}), foreign)
    run = load_run(folder)
    assert len(run.points) == 3
    assert [Path(problem.partition(": ")[0]) for problem in run.problems] == [
        log,
        table,
        foreign,
    ]
    assert bench.here("report", "out", "--format", "md") == 0
    assert run.points[0].collective in (folder / "report" / "report.md").read_text()
    assert bench.here("run", suite, *QUIET, "--resume", "out") == 0
    assert len(rows_of(folder)) == 4
    assert len(list(folder.glob("*.damaged"))) == 3
    notes = json.loads((folder / "run.json").read_text())["notes"]
    assert {*run.problems} <= {note.replace("out/", f"{folder}/") for note in notes}


def _contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }
