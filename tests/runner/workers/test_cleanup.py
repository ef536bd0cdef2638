"""What killed libraries leave behind goes, and nothing of anybody else's."""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from ccbench.machine.files import Files
from ccbench.runner.workers.cleanup import CLOCK_STEP_SECONDS, FileCleanup, shared_memory_files
from tests.faults.traces import SHARED_MEMORY

needs_shared_memory = pytest.mark.skipif(
    not SHARED_MEMORY.is_dir(), reason="no shared memory here"
)


@pytest.fixture
def name() -> Iterator[Path]:
    """Of a file in shared memory that is not there yet."""
    path = SHARED_MEMORY / f"leftovers-test-{os.getpid()}"
    yield path
    with suppress(OSError):
        path.unlink()


def mapped(path: Path, rights: int = mmap.PROT_READ | mmap.PROT_WRITE) -> mmap.mmap:
    path.write_bytes(bytes(4096))
    with path.open("r+b") as file:
        return mmap.mmap(file.fileno(), 4096, mmap.MAP_SHARED, rights)


def test_files_and_folders_that_were_named_are_removed(tmp_path: Path) -> None:
    (tmp_path / "folder" / "deep").mkdir(parents=True)
    (tmp_path / "file").touch()
    (tmp_path / "kept").touch()
    cleanup = FileCleanup()
    cleanup.add([str(tmp_path / "folder")])
    cleanup.add([str(tmp_path / "file"), str(tmp_path / "never there")])
    cleanup.close()
    assert os.listdir(tmp_path) == ["kept"]


def test_files_in_shared_memory_are_those_that_a_process_writes_and_that_have_a_name(
    tmp_path: Path,
) -> None:
    maps = tmp_path / "proc/7/maps"
    maps.parent.mkdir(parents=True)
    maps.write_text(
        "7f-8f rw-s 00000000 00:17 1    /dev/shm/mpich_shm_1\n"
        "7f-8f rw-s 00000000 00:17 1    /dev/shm/gone (deleted)\n"
        "7f-8f r-xp 00000000 00:17 1    /usr/lib/libmpi.so\n"
        "7f-8f rw-p 00000000 00:00 0\n"
        # Programs, libraries and data that somebody keeps there:
        "7f-8f r-xp 00001000 00:17 1    /dev/shm/venv/lib/numpy/core.so\n"
        "7f-8f rw-p 00002000 00:17 1    /dev/shm/venv/lib/numpy/core.so\n"
        "7f-8f r--s 00000000 00:17 1    /dev/shm/dataset.bin\n"
    )
    assert shared_memory_files(7, Files(tmp_path)) == ["/dev/shm/mpich_shm_1"]
    assert shared_memory_files(8, Files(tmp_path)) == []


@needs_shared_memory
def test_what_a_process_shares_is_swept_once_it_is_over(name: Path) -> None:
    cleanup = FileCleanup()
    with mapped(name):
        cleanup.add_shared_memory([os.getpid()])
        assert name.exists()
    cleanup.close()
    assert not name.exists()


@needs_shared_memory
def test_what_others_had_shared_before_stays(name: Path) -> None:
    with mapped(name):
        time.sleep(2 * CLOCK_STEP_SECONDS)
        cleanup = FileCleanup()
        cleanup.add_shared_memory([os.getpid()])
    cleanup.close()
    assert name.exists()


@needs_shared_memory
def test_what_mpich_has_left_goes_once_nobody_uses_it_and_is_counted_by_what_it_lacks() -> None:
    cleanup = FileCleanup()
    path = SHARED_MEMORY / f"mpich_shm_{os.getpid()}_0"
    foreign = SHARED_MEMORY / f"of_a_program-{os.getpid()}"
    try:
        foreign.touch()
        with path.open("wb") as file:
            file.truncate(1 << 22)
            cleanup.add_abandoned()  # it is open
        with mmap_of(path):
            cleanup.add_abandoned()  # it is shared
        assert cleanup.lacking_bytes() == 0
        cleanup.add_abandoned()
        assert cleanup.lacking_bytes() == 1 << 22
        cleanup.close()
        assert not path.exists()
        assert foreign.exists()
    finally:
        for left in (path, foreign):
            left.unlink(missing_ok=True)


def mmap_of(path: Path) -> mmap.mmap:
    with path.open("r+b") as file:
        return mmap.mmap(file.fileno(), 0)


@needs_shared_memory
def test_what_mpich_had_there_before_stays() -> None:
    path = SHARED_MEMORY / f"mpich_shm_{os.getpid()}_1"
    path.touch()
    try:
        time.sleep(2 * CLOCK_STEP_SECONDS)
        cleanup = FileCleanup()
        cleanup.add_abandoned()
        cleanup.close()
        assert path.exists()
    finally:
        path.unlink()
