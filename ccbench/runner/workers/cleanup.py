"""Removal of what libraries leave behind when their process is killed.

An MPI keeps files in shared memory and removes them when it is finalised. A process that is killed, hangs or
has lost its leader never comes to that, and each such file is megabytes of a host's memory.
"""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from ccbench.machine.files import Files

ENDING_SECONDS = 5.0
"""Time that the removal may take."""

CLOCK_STEP_SECONDS = 0.1
"""More than the clock by which kernels date files is behind the one that programs read."""

SHARED_MEMORY = "/dev/shm"

MPICH_FILES = "mpich_shm_*"
"""Names of what MPICH puts there while it starts, and removes once all ranks have it."""

_SEEN_FROM_OUTSIDE = {"pid": "pid:[4026531836]", "ipc": "ipc:[4026531839]"}
"""Namespaces of the host itself (PROC_PID_INIT_INO and PROC_IPC_INIT_INO of Linux' proc_ns.h)."""

_REMOVE = """
import os, shutil, sys, time
paths = sys.stdin.read().splitlines()
for pause in (0.0, 0.2, 1.0):
    time.sleep(pause)
    for path in paths:
        if os.path.isdir(path):
            shutil.rmtree(path, ignore_errors=True)
        elif os.path.exists(path):
            try: os.unlink(path)
            except OSError: pass
    if not any(map(os.path.exists, paths)):
        break
"""


class FileCleanup:
    """Files and folders that go when this process ends, however it does."""

    def __init__(self) -> None:
        self._since_seconds = time.time() - CLOCK_STEP_SECONDS
        self._process: subprocess.Popen[bytes] | None = None
        self._paths: set[str] = set()

    def add_shared_memory(self, pids: Iterable[int]) -> None:
        """Add what these processes have in shared memory by now, and its names after them.

        What was there before this object, or is of another user, is somebody else's, and stays.
        """
        self.add(
            filter(self._is_new, {path for pid in pids for path in shared_memory_files(pid)})
        )

    def add_abandoned(self) -> None:
        """Add what MPICH has put into shared memory since this object was made, and no process uses.

        A rank that is killed while its library starts is gone before anybody has seen what it shares.
        """
        made = {
            path
            for path in map(str, Path(SHARED_MEMORY).glob(MPICH_FILES))
            if self._is_new(path)
        }
        # A container that has the host's shared memory does not see the processes that use it.
        outside = {
            name: os.readlink(f"/proc/self/ns/{name}") == of
            for name, of in _SEEN_FROM_OUTSIDE.items()
        }
        if made and (outside["pid"] or not outside["ipc"]):
            used = {
                path for pid in Files().matching("/proc", "[0-9]*") for path in used_files(pid)
            }
            self.add(made - used)

    def lacking_bytes(self) -> int:
        """Return what the files in shared memory are still to take when all of them is written to."""
        lacking = 0
        for path in (path for path in self._paths if path.startswith(SHARED_MEMORY)):
            with suppress(OSError):
                status = os.lstat(path)
                if stat.S_ISREG(status.st_mode):
                    lacking += max(0, status.st_size - 512 * status.st_blocks)
        return lacking

    def _is_new(self, path: str) -> bool:
        """Return True for a file of this user that was not there before this object."""
        with suppress(OSError):
            status = os.lstat(path)
            mine = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
            return mine and status.st_ctime >= self._since_seconds
        return False

    def add(self, paths: Iterable[str]) -> None:
        """Add these, whatever they are."""
        new = set(paths) - self._paths
        if not new:
            return
        if self._process is None:
            # It does nothing until this process has ended, which closes the pipe. In a session of its own,
            # so that what ends this one's group leaves it alive.
            self._process = subprocess.Popen(
                [sys.executable, "-S", "-E", "-c", _REMOVE],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        self._paths |= new
        assert self._process.stdin is not None, "it was started with a pipe"
        with suppress(OSError):  # it was killed: nobody removes anything
            self._process.stdin.write("".join(f"{path}\n" for path in new).encode())
            self._process.stdin.flush()

    def close(self) -> None:
        """Remove everything now."""
        if self._process is not None:
            with suppress(OSError, subprocess.TimeoutExpired):
                self._process.communicate(timeout=ENDING_SECONDS)


def shared_memory_files(pid: int) -> list[str]:
    """Return files in shared memory that a process shares with others and writes to, and that have a name.

    So neither programs nor libraries that somebody has put there, as jobs on clusters do with their Python,
    nor data that are only read.
    """
    lines = (Files().text(f"/proc/{pid}/maps") or "").splitlines()
    mapped = [fields for line in lines if len(fields := line.split(maxsplit=5)) == 6]
    paths = {path for _, rights, _, _, _, path in mapped if "w" in rights and "s" in rights}
    return sorted(
        path
        for path in paths
        if path.startswith(f"{SHARED_MEMORY}/") and not path.endswith("(deleted)")
    )


def used_files(process: str) -> set[str]:
    """Return files in shared memory that the process at ``/proc/<number>`` has open or shares."""
    opened = set()
    with suppress(OSError):  # it has ended, or is another user's
        for descriptor in os.scandir(f"{process}/fd"):
            with suppress(OSError):
                opened.add(os.readlink(descriptor.path))
    return opened | set(shared_memory_files(int(process.rpartition("/")[2])))
