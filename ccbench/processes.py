"""Small facts about processes: who dies with whom, who is stopped, how one ended."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path

_PR_SET_PDEATHSIG = 1
"""prctl(2), linux/prctl.h."""


def die_with_parent(parent: int) -> None:
    """Be killed when ``parent`` (this process's parent) ends, however it ends. Linux; elsewhere nothing."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)  # it ended before the request was in place


def state(pid: int, proc: Path = Path("/proc")) -> str:
    """The kernel's one-letter state of a process (R, S, D, T, Z), '' where it cannot be told."""
    try:
        return (proc / str(pid) / "stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


def ending(wait_status: int) -> str:
    """'was killed by SIGKILL' or 'exited with 3', from a status of os.waitpid."""
    code = os.waitstatus_to_exitcode(wait_status)
    if code >= 0:
        return f"exited with {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
