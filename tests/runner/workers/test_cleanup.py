"""What killed libraries leave behind goes, and nothing of anybody else's."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from ccbench.runner.workers.cleanup import FileCleanup
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


@needs_shared_memory
def test_what_a_process_shares_is_swept_once_it_is_over(name: Path) -> None:
    cleanup = FileCleanup()
    with mapped(name):
        cleanup.add_shared_memory([os.getpid()])
        assert name.exists()
    cleanup.close()
    assert not name.exists()


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
