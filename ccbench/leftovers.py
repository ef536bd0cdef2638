"""What libraries leave behind when their process is killed, and who removes it.

An MPI keeps files in shared memory and removes them when it is finalised. A process that is killed, hangs or
has lost its leader never comes to that, and each such file is megabytes of a host's memory.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

ENDING_SECONDS = 5.0
"""How long the sweeper may take."""

CLOCK_STEP_SECONDS = 0.1
"""More than the clock by which kernels date files is behind the one that programs read."""


_SWEEP = """
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


class Sweeper:
    """A process that does nothing until the one that made it has ended, and then removes what it was told.

    It is in a session of its own, so that what ends the other's group leaves it alive.
    """

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-E", "-c", _SWEEP],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._told: set[str] = set()

    def remember(self, paths: Iterable[str]) -> None:
        """Remove these, too."""
        new = [path for path in paths if path not in self._told]
        self._told.update(new)
        assert self._process.stdin is not None, "it was started with a pipe"
        with suppress(OSError):  # it was killed: nobody sweeps
            self._process.stdin.write("".join(f"{path}\n" for path in new).encode())
            self._process.stdin.flush()

    def close(self) -> None:
        """Sweep now."""
        assert self._process.stdin is not None, "it was started with a pipe"
        with suppress(OSError):
            self._process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(ENDING_SECONDS)
        for path in self._told:  # in case it was killed
            if os.path.isdir(path):
                shutil.rmtree(path, ignore_errors=True)
            else:
                with suppress(OSError):
                    os.unlink(path)


class Leftovers:
    """Files that libraries put into shared memory from now on: they go when this process ends, however.

    What was there before, or is of another user, is somebody else's, and stays.
    """

    def __init__(self) -> None:
        self._since_seconds = time.time() - CLOCK_STEP_SECONDS
        self._sweeper: Sweeper | None = None

    def remember(self, pids: Iterable[int]) -> None:
        """What these processes have there by now, and its names after them."""
        files = [path for pid in pids for path in shared_memory_files(pid)]
        self.add(path for path in files if self._is_new(path))

    def add(self, paths: Iterable[str]) -> None:
        """These, too, whatever they are."""
        known = list(paths)
        if not known:
            return
        if self._sweeper is None:
            self._sweeper = Sweeper()
        self._sweeper.remember(known)

    def close(self) -> None:
        """Sweep now."""
        if self._sweeper:
            self._sweeper.close()

    def _is_new(self, path: str) -> bool:
        try:
            found = os.lstat(path)
        except OSError:
            return False
        mine = stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()
        return mine and found.st_ctime >= self._since_seconds


def shared_memory_files(pid: int, proc: Path = Path("/proc")) -> list[str]:
    """Files in shared memory that a process shares with others and writes to, and that still have a name.

    So neither programs nor libraries that somebody has put there, as jobs on clusters do with their Python,
    nor data that are only read.
    """
    try:
        lines = (proc / str(pid) / "maps").read_text().splitlines()
    except OSError:
        return []
    mapped = [fields for line in lines if len(fields := line.split(maxsplit=5)) == 6]
    paths = {path for _, rights, _, _, _, path in mapped if "w" in rights and "s" in rights}
    return sorted(path for path in paths if path.startswith("/dev/shm/") and not path.endswith("(deleted)"))
