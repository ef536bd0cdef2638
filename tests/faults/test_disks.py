"""Disks that are full or read-only, and two runs that want the same folder."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ccbench.cases import Status
from ccbench.errors import RunFolderError
from ccbench.runner.planning import RunOptions
from ccbench.runner.progress import Progress
from ccbench.runner.run import run_suite
from ccbench.suite.model import load_suite
from tests.faults import traces
from tests.faults.conftest import Bench, rows_of


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[bool]:
    """A RAM disk at ``folder`` where this process may mount one; False where it may not."""
    folder.mkdir()
    program = shutil.which("mount")
    command = [program or "mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(folder)]
    mounted = program is not None and subprocess.run(command, capture_output=True).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(folder)], check=True)


def largest_file(size: int) -> Any:
    """Run in a child: no file may grow beyond ``size`` bytes (a full disk that needs no rights)."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    return limit


def test_a_full_disk_is_told_before_anything_is_measured(bench: Bench, figure: Any) -> None:
    suite = bench.suite({"collective": "barrier"})
    with small_disk(bench.folder / "disk", "20k") as mounted:
        if mounted:
            ended = bench.run(suite, output="disk/out")
            assert "the disk is full; free some space, or put the run on another disk with -o" in ended.err
        else:
            bench.before_exec = largest_file(20 * 1024)
            ended = bench.run(suite, output="out")
            assert "cannot be written" in ended.err
    assert ended.code == 2
    assert len(ended.err.strip().splitlines()) == 1
    figure(f"full disk ({'tmpfs' if mounted else 'file size limit'}): {ended.err.strip()[:90]}...")


def test_a_file_size_limit_is_told_before_anything_is_measured(bench: Bench) -> None:
    bench.before_exec = largest_file(20 * 1024)
    ended = bench.run(bench.suite({"collective": "barrier"}))
    assert ended.code == 2
    assert "cannot be written" in ended.err
    assert len(ended.err.strip().splitlines()) == 1


def test_a_disk_that_fills_up_during_a_run_leaves_finished_cases_whole(
    tmp_path: Path, bench: Bench, monkeypatch: pytest.MonkeyPatch, figure: Any
) -> None:
    suite = load_suite(bench.suite({"collective": ["all_reduce", "broadcast", "barrier"]}))
    really_replace = os.replace
    written = set()

    def replace(source: Path, target: Path) -> None:
        written.add(target)
        if len(written) > 3:  # run.json and two cases
            raise OSError(errno.ENOSPC, "No space left on device")
        really_replace(source, target)

    monkeypatch.setattr("os.replace", replace)
    options = RunOptions(output=tmp_path / "out", machine="cpu-shared-memory")
    with pytest.raises(RunFolderError, match="the disk is full; free some space"):
        run_suite(suite, options, Progress())
    monkeypatch.undo()
    rows = rows_of(tmp_path / "out")
    assert [row["status"] for row in rows] == [Status.OK.value] * 2
    assert not list((tmp_path / "out" / "cases").glob(".*"))
    figure("disk full in the third case: the first two are whole, no half-written file")


@pytest.mark.thinned(1)
@pytest.mark.parametrize("where", ["below a file", "in /proc", "read-only mount"])
def test_an_output_that_cannot_be_written_is_told_in_one_line(bench: Bench, where: str, figure: Any) -> None:
    suite = bench.suite({"collective": "barrier"})
    (bench.folder / "a-file").write_text("")
    paths = {"below a file": "a-file/out", "in /proc": "/proc/self/out", "read-only mount": "disk/out"}
    with small_disk(bench.folder / "disk", "1m") as mounted:
        if mounted:
            subprocess.run(["mount", "-o", "remount,ro", str(bench.folder / "disk")], check=True)
        elif where == "read-only mount":
            (bench.folder / "disk").chmod(0o500)  # root may write all the same; then /proc stands in
            if os.getuid() == 0:
                paths[where] = "/proc/sys/out"
        ended = bench.run(suite, output=paths[where])
    assert ended.code == 2
    (line,) = ended.err.strip().splitlines()
    assert line.startswith("ccbench: error: ")
    assert "cannot be written" in line
    assert paths[where].rpartition("/")[0] in line
    figure(f"{where}: {line}")


def test_two_runs_at_once_into_one_root_get_two_folders(bench: Bench, figure: Any) -> None:
    suite = bench.suite({"collective": ["all_reduce", "barrier"]})
    machine = ("--machine", "cpu-shared-memory")
    both = [bench.start("run", suite, "-q", "--no-report", *machine) for _ in range(2)]
    for process in both:
        assert bench.end(process, time.monotonic()).code == 0
    folders = sorted((bench.folder / "results").iterdir())
    assert len(folders) == 2
    for folder in folders:
        rows = rows_of(folder)
        assert sorted(row["collective"] for row in rows) == ["all_reduce", "barrier"]
        assert {row["status"] for row in rows} == {Status.OK.value}
    figure(f"two runs at once: {len(folders)} folders, each with its own two cases")


def test_the_second_run_into_one_folder_is_refused_and_disturbs_nothing(bench: Bench, figure: Any) -> None:
    process = bench.start_run(bench.long_suite())
    manifest = bench.folder / "out" / "run.json"
    # The machine is measured once the folder is the run's own; then run.json is complete.
    traces.wait_until(lambda: manifest.exists() and "machine" in json.loads(manifest.read_text()))
    before = _contents(bench.folder / "out")
    second = bench.run(bench.suite({"collective": "barrier"}))
    assert second.code == 2
    (line,) = second.err.strip().splitlines()
    assert line.startswith("ccbench: error: out: the folder is not empty")
    third = bench.run(bench.suite({"collective": "barrier"}), "--resume", "out")
    assert third.code == 2
    assert "another run is writing to this folder" in third.err
    assert _contents(bench.folder / "out") == before
    process.terminate()
    assert bench.end(process, time.monotonic()).code == 143
    figure(line)


def _contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
