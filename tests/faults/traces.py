"""What a process may leave behind: other processes, files in the temp directory, shared memory."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from ccbench.backends.base import TeamRequest
from ccbench.runner.workers.team import WorkerTeam

PROC = Path("/proc")
SHARED_MEMORY = Path("/dev/shm")
MARK = "FAULT_TEST_MARK"
"""Environment variable by which a test knows every process that it caused, adopted ones included."""

BACKING_FOLDERS = (
    "OMPI_MCA_btl_vader_backing_directory",
    "OMPI_MCA_btl_sm_backing_directory",
)
"""Variables by which Open MPI 4 and 5 are told where their shared memory is."""

GONE_WITHIN_SECONDS = 5.0


def wait_until(condition: object, seconds: float = 30.0) -> object:
    """The first true value that calling ``condition`` gives; fails after ``seconds``."""
    assert callable(condition)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.01)
    raise AssertionError(f"not within {seconds:.0f} s")


def processes() -> Iterator[int]:
    """All living processes that may be looked at, zombies left out."""
    for entry in os.listdir(PROC):
        if entry.isdigit() and state_and_parent(int(entry))[0] not in ("Z", ""):
            yield int(entry)


def state_and_parent(pid: int) -> tuple[str, int]:
    """('S', 1) and the like; ('', 0) when there is no such process."""
    try:
        words = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
        return words[0], int(words[1])
    except (OSError, IndexError):
        return "", 0


def all_gone(pids: Iterable[int], seconds: float = 5.0) -> bool:
    """True as soon as none of the processes lives; a zombie that waits for its parent does not."""
    wait_until(
        lambda: not any(state_and_parent(pid)[0] not in ("", "Z") for pid in pids), seconds
    )
    return True


def marked(mark: str) -> list[int]:
    """Processes whose environment carries ``mark``, in the order of their numbers."""
    found = []
    for pid in processes():
        with suppress(OSError):
            if f"{MARK}={mark}".encode() in (PROC / str(pid) / "environ").read_bytes().split(
                b"\0"
            ):
                found.append(pid)
    return sorted(found)


def children(parent: int) -> list[int]:
    """Living children of a process; forks in order of their numbers."""
    return sorted(pid for pid in processes() if state_and_parent(pid)[1] == parent)


def is_leader(pid: int) -> bool:
    """True for a team's leader (its ranks, forked from it, look the same)."""
    with suppress(OSError):
        return role(pid) == b"leader"
    return False


def role(pid: int) -> bytes:
    """``leader`` or ``agent`` of a process that ccbench started as such."""
    words = (PROC / str(pid) / "cmdline").read_bytes().split(b"\0")
    return (
        words[3]
        if len(words) > 3 and b"run_module('ccbench.runner.workers'" in words[2]
        else b""
    )


def leader_of(runner: int) -> int:
    """The leader that a runner has started; waits for one whose ranks are there."""

    def look() -> int:
        assert state_and_parent(runner)[0] not in ("", "Z"), "the runner has ended"
        return next(
            (pid for pid in children(runner) if is_leader(pid) and len(children(pid)) > 1), 0
        )

    found = wait_until(look)
    assert isinstance(found, int)
    return found


@contextmanager
def own_shared_memory(mark: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have Open MPI's segments in a folder of /dev/shm with the mark in its name; afterwards it is empty.

    What other programs of the machine leave in /dev/shm is theirs.
    """
    folder = SHARED_MEMORY / f"ccbench-test-{mark}"
    try:
        folder.mkdir()
    except OSError:  # no shared memory here, or none that can be written
        yield
        return
    for variable in BACKING_FOLDERS:
        monkeypatch.setenv(variable, str(folder))
    yield
    deadline = time.monotonic() + GONE_WITHIN_SECONDS
    while (left := os.listdir(folder)) and time.monotonic() < deadline:
        time.sleep(0.05)
    shutil.rmtree(folder)
    assert left == []


def left_behind(mark: str) -> list[int]:
    """Marked processes that are still there after a grace time."""
    deadline = time.monotonic() + GONE_WITHIN_SECONDS
    while (found := marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return found


def cpu_team(ranks: int = 3) -> WorkerTeam:
    return WorkerTeam(TeamRequest("cpu", ranks))
