from __future__ import annotations

import errno
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from unittest.mock import Mock

import pyarrow.parquet as pq  # type: ignore[import-untyped]  # ships no types
import pytest

from ccbench.cases.measurement import Status
from ccbench.errors import RunFolderError
from ccbench.results import SCHEMA_VERSION, RunFolder, load_run, new_folder

from .samples import CASE, PREDICTION, failed, left_by_a_kill, measured

MANIFEST = {"suite": "smoke", "machine": {"name": "box"}}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[RunFolder]:
    with RunFolder.create(tmp_path / "run", MANIFEST) as made:
        yield made


def test_a_new_folder_holds_the_manifest_with_schema_version_and_time(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "deep" / "run", MANIFEST) as folder:
        manifest = json.loads((folder.path / "run.json").read_text())
    assert manifest["machine"] == {"name": "box"}
    assert manifest["schema_version"] == SCHEMA_VERSION
    assert datetime.fromisoformat(manifest["created_at"]).tzinfo is not None


@pytest.mark.parametrize("name", ["cases", ".ccbench-probe", "lock"])
def test_what_is_no_leftover_but_has_the_name_of_one_is_refused_and_kept(
    tmp_path: Path, name: str
) -> None:
    mine = tmp_path / name
    if name == "cases":
        mine.write_text("mine")
    else:
        mine.mkdir()
    with pytest.raises(RunFolderError, match=rf"it holds '{name}'"):
        RunFolder.create(tmp_path, MANIFEST)
    assert os.listdir(tmp_path) == [name]


def test_a_folder_without_a_case_goes_and_what_others_put_there_stays(tmp_path: Path) -> None:
    for name in ("empty", "mine", "measured"):
        with RunFolder.create(tmp_path / name, MANIFEST) as folder:
            if name == "mine":
                (folder.path / "notes.txt").write_text("mine")
            if name == "measured":
                folder.write(measured(1024), None)
            folder.remove_if_empty()
    assert sorted(os.listdir(tmp_path)) == ["measured", "mine"]
    assert os.listdir(tmp_path / "mine") == ["notes.txt"]
    assert len(load_run(tmp_path / "measured").points) == 1


def test_a_manifest_that_is_not_json_is_refused_and_the_lock_released(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="manifest is not JSON"):
        RunFolder.create(tmp_path / "run", {"x": object()})
    RunFolder.create(tmp_path / "run", MANIFEST).close()


@pytest.mark.parametrize(
    ("number", "words"),
    [(errno.EROFS, "read-only"), (errno.EACCES, "permission"), (errno.ENOSPC, "disk is full")],
)
def test_a_folder_that_cannot_be_written_fails_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, words: str
) -> None:
    monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError(number, os.strerror(number))))
    with pytest.raises(RunFolderError, match=words):
        RunFolder.create(tmp_path / "run", MANIFEST)
    assert not list((tmp_path / "run").glob(".ccbench-probe*"))


def test_a_disk_that_fills_up_leaves_finished_cases_and_a_signal_what_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RunFolder.create(tmp_path / "run", MANIFEST) as folder:
        folder.write(measured(1024), None)
        full = OSError(errno.ENOSPC, "No space left on device")
        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", Mock(side_effect=[full, KeyboardInterrupt]))
            with pytest.raises(
                RunFolderError, match=r"cases\.log: .*disk is full; free some space"
            ):
                folder.write(measured(2048), PREDICTION)
            run = load_run(folder.path)
            assert (run.problems, run.points[-1].size_bytes) == ((), 1024)
            with pytest.raises(KeyboardInterrupt):
                folder.write(measured(2048), PREDICTION)
    assert [point.size_bytes for point in load_run(folder.path).points] == [1024, 2048]


def test_writing_to_a_folder_that_was_deleted_says_so(folder: RunFolder) -> None:
    shutil.rmtree(folder.path)
    with pytest.raises(RunFolderError, match="folder is gone"):
        folder.write(measured(), None)


def test_a_closed_folder_takes_no_more_cases(folder: RunFolder) -> None:
    folder.close()
    folder.close()
    with pytest.raises(RunFolderError, match="was closed"):
        folder.write(measured(), None)


def test_two_writers_never_share_a_folder(folder: RunFolder) -> None:
    with pytest.raises(RunFolderError, match="another run is writing"):
        RunFolder.resume(folder.path)
    folder.close()
    RunFolder.resume(folder.path).close()


KILLED = """
import itertools, os, signal, sys
import pandas, pyarrow.parquet  # once, not in every child
from ccbench.results import RunFolder

for number in itertools.count():
    pid = os.fork()
    if pid == 0:
        changes = itertools.count()

        def end_before_change(event, arguments):
            if event in ("open", "os.mkdir", "os.rename", "os.remove") and sys.argv[1] in str(arguments):
                if next(changes) == number:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(end_before_change)
        getattr(RunFolder, sys.argv[2])(*eval(sys.argv[3], {"number": number, "root": sys.argv[1]}))
        os._exit(0)
    status = os.waitpid(pid, 0)[1]
    if not os.WIFSIGNALED(status):
        print(number)
        sys.exit(os.waitstatus_to_exitcode(status))
"""
"""Kills the making of a run folder before its first change of the disk, another before its second, and so on."""


def killed_before_each_change(root: Path, method: str, arguments: str) -> int:
    """How many were killed."""
    command = [sys.executable, "-c", KILLED, str(root), method, arguments]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def test_a_run_that_is_killed_before_its_manifest_can_be_given_again(tmp_path: Path) -> None:
    killed = killed_before_each_change(tmp_path, "create", "(f'{root}/{number}', {})")
    assert killed >= 10
    resumed = 0
    for number in range(killed):
        path = tmp_path / str(number)
        if (path / "run.json").exists():
            RunFolder.resume(path).close()
            resumed += 1
        else:
            RunFolder.create(path, MANIFEST).close()
        assert sorted(os.listdir(path)) == ["lock", "run.json"]
    assert 0 < resumed < killed


def test_a_resume_that_is_killed_anywhere_can_be_given_again(tmp_path: Path) -> None:
    left_by_a_kill(tmp_path / "run", measured(1024))
    assert killed_before_each_change(tmp_path, "resume", "(f'{root}/run',)") >= 8
    RunFolder.resume(tmp_path / "run").close()
    assert sorted(os.listdir(tmp_path / "run")) == ["cases.parquet", "lock", "run.json"]
    assert len(load_run(tmp_path / "run").points) == 1


def test_files_that_only_look_temporary_are_refused_and_kept(tmp_path: Path) -> None:
    (tmp_path / ".mine.tmp").write_text("mine")
    with pytest.raises(RunFolderError, match=r"not empty.*\.mine\.tmp"):
        RunFolder.create(tmp_path, MANIFEST)
    assert (tmp_path / ".mine.tmp").exists()


def test_resume_knows_what_is_finished_and_clears_leftovers(tmp_path: Path) -> None:
    ends = [*Status]
    with RunFolder.create(tmp_path / "run", MANIFEST) as folder:
        for index, status in enumerate(ends):
            measurement = (
                measured(1024) if status == Status.OK else failed(2048 * (index + 1), status)
            )
            folder.write(measurement, None)
        (folder.path / ".cases.parquet.1.tmp").write_bytes(b"half")
    with RunFolder.resume(tmp_path / "run") as folder:
        finished = folder.finished()
        assert not list(folder.path.glob(".*"))
    written = {point.case_id: point.status for point in load_run(tmp_path / "run").points}
    assert sorted(finished.values()) == [Status.OK, Status.UNSUPPORTED, Status.WRONG]
    assert all(written[case_id] == status for case_id, status in finished.items())


def test_a_changed_line_is_named_and_kept_beside_by_who_resumes(tmp_path: Path) -> None:
    path = left_by_a_kill(tmp_path / "run", measured(1024), measured(2048), measured(4096))
    log = path / "cases.log"
    content = log.read_bytes().replace(b'"size_bytes":2048', b'"size_bytes":2049')
    log.write_bytes(content)
    with RunFolder.resume(path) as folder:
        assert len(folder.finished()) == 2
        (problem,) = folder.problems
        assert problem.startswith(f"{log}: line 2 was changed after it was written")
    (kept,) = path.glob("cases.log.*.damaged")
    assert kept.read_bytes() == content
    assert load_run(path).problems == folder.problems == ()


def test_a_line_changed_while_a_run_goes_on_is_named_at_its_end_and_stays(
    tmp_path: Path,
) -> None:
    with RunFolder.create(tmp_path / "run", MANIFEST) as folder:
        folder.write(measured(1024), None)
        log = folder.path / "cases.log"
        log.write_bytes(log.read_bytes().replace(b"all_reduce", b"all-reduce"))
        folder.write(measured(2048), None)
    run = load_run(folder.path)
    assert folder.problems == run.problems
    assert run.problems[0].startswith(f"{log}: line 1 was changed")
    assert [point.size_bytes for point in run.points] == [2048]


def test_a_damaged_table_is_kept_beside_and_what_can_be_read_of_it_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ccbench.results.files.GROUP_CASES", 1)
    with RunFolder.create(tmp_path / "run", MANIFEST) as folder:
        for size in (1024, 2048, 4096):
            folder.write(measured(size), PREDICTION)
    file = folder.path / "cases.parquet"
    content = bytearray(file.read_bytes())
    column = pq.ParquetFile(file).metadata.row_group(0).column(0)
    content[column.data_page_offset + column.total_compressed_size - 3] ^= 4
    file.write_bytes(content)
    with RunFolder.resume(folder.path) as folder:
        assert len(folder.finished()) == 2
        assert folder.problems[0].startswith(f"{file}: row group 1 was changed")
    (kept,) = folder.path.glob("cases.parquet.*.damaged")
    assert kept.read_bytes() == content
    assert load_run(folder.path).problems == ()


def test_resuming_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="no run folder"):
        RunFolder.resume(tmp_path)
    (tmp_path / "run.json").write_text('{"schema_version": 99}')
    with pytest.raises(RunFolderError, match="schema version is 99, expected 1,"):
        RunFolder.resume(tmp_path)
    (tmp_path / "run.json").write_text('{"schema_')
    with pytest.raises(RunFolderError, match="cannot be read"):
        RunFolder.resume(tmp_path)


def test_a_new_folder_has_the_number_after_the_highest_and_the_suites_name(
    tmp_path: Path,
) -> None:
    root = tmp_path / "results"
    first = new_folder(root, "all reduce/../x")
    assert first == root / "0001-all-reduce-..-x"
    RunFolder.create(first, MANIFEST).close()
    for name in ("20260304T050607Z-quick-node7", "0041-quick", "mine"):
        (root / name).mkdir()
    (root / ".0042").mkdir()  # of a run that was killed between claim and name
    assert new_folder(root, "quick").name == "0043-quick"


def _take(root: Path, suite: str, count: int) -> list[str]:
    return [new_folder(root, suite).name for _ in range(count)]


def test_runs_of_two_suites_that_start_together_get_two_numbers(tmp_path: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        taken = pool.starmap(_take, [(tmp_path, suite, 10) for suite in ("quick", "health")])
    names = [name[:4] for batch in taken for name in batch]
    assert len(set(names)) == 20


def test_only_a_case_that_is_ok_has_a_speed(tmp_path: Path) -> None:
    wrong = replace(
        measured(8192), status=Status.WRONG, wrong_elements=7, detail="7 elements differ"
    )
    barrier = replace(
        measured(), case=replace(CASE, collective="barrier", op="none", size_bytes=0, count=0)
    )
    with RunFolder.create(tmp_path / "run", MANIFEST) as folder:
        for measurement in (measured(4096, seconds=1e-4), wrong, failed(16384), barrier):
            folder.write(measurement, None)
    rows = load_run(tmp_path / "run").table.to_pylist()
    cases = {(row["collective"], row["status"]): row for row in rows}
    for name in (
        "median_seconds",
        "low_seconds",
        "high_seconds",
        "algbw_GB_s",
        "busbw_GB_s",
        "outliers",
    ):
        assert cases["all_reduce", "wrong"][name] is None
        assert cases["all_reduce", "failed"][name] is None
    assert len(cases["all_reduce", "wrong"]["samples_seconds"]) == 12
    ok = cases["all_reduce", "ok"]
    assert ok["low_seconds"] <= ok["median_seconds"] <= ok["high_seconds"]
    assert ok["algbw_GB_s"] == pytest.approx(4096 / ok["median_seconds"] / 1e9)
    assert ok["busbw_GB_s"] == pytest.approx(1.5 * ok["algbw_GB_s"])
    assert ok["slowest_rank"] == 2
    without_bytes = cases["barrier", "ok"]
    assert without_bytes["algbw_GB_s"] is without_bytes["busbw_GB_s"] is None
    assert without_bytes["median_seconds"] > 0


def test_reading_and_writing_runs_is_light_to_import() -> None:
    program = (
        "import sys, ccbench.results\n"
        "heavy = {'pyarrow', 'pandas', 'matplotlib', 'cupy', 'torch'} & set(sys.modules)\n"
        "sys.exit(', '.join(heavy) or None)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
