"""Small facts about processes: who dies with whom, who is stopped, how one ended, who hears signals."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from ccbench.machine.files import Files

_PR_SET_PDEATHSIG = 1
"""prctl(2), linux/prctl.h."""

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Kept out of the threads of a process that others are started by but one, which hands them on."""


def module_command(module: str, *arguments: str) -> list[str]:
    """The command that runs ``module`` in a fresh interpreter with this one's import path and nothing else.

    ``python -m`` would look in the current folder first, and a folder full of results may hold a numpy.py.
    """
    paths = [path for path in sys.path if path and os.path.isabs(path)]
    root = str(Path(__file__).resolve().parents[2])
    if root not in paths:
        paths.insert(0, root)
    start = (
        f"import sys; sys.path[:] = {paths!r}; import runpy; "
        f"runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
    )
    return [sys.executable, "-c", start, *arguments]


def single_threaded(environment: Mapping[str, str]) -> dict[str, str]:
    """``environment`` with numeric libraries held to one thread: who forks must have only one."""
    names = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
    return {**environment, **dict.fromkeys(names, "1")}


def die_with_parent(parent: int, by: int = signal.SIGKILL) -> None:
    """Get signal ``by`` when ``parent`` (this process's parent) ends, however that is. Linux alone does."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(by), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)  # it ended before the request was in place


def state(pid: int, files: Files | None = None) -> str:
    """The kernel's one-letter state of a process (R, S, D, T, Z), '' where it cannot be told."""
    # Its name, in brackets, may hold anything.
    return ((files or Files()).text(f"/proc/{pid}/stat") or "").rpartition(")")[2].strip()[:1]


def ending(wait_status: int) -> str:
    """'was killed by SIGKILL' or 'exited with 3', from a status of os.waitpid."""
    code = os.waitstatus_to_exitcode(wait_status)
    if code >= 0:
        return f"exited with {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def forward_signals_to(runner: subprocess.Popen[bytes]) -> None:
    """What the launcher tells the first seat is meant for the run, which then ends in order."""

    def forward() -> None:
        while runner.poll() is None:
            number = signal.sigwait(FORWARDED)
            with suppress(ProcessLookupError):
                runner.send_signal(number)

    threading.Thread(target=forward, name="signals", daemon=True).start()


@contextmanager
def signals_let_in() -> Iterator[None]:
    """For starting a process, which inherits what this thread keeps out."""
    before = signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Terminated(BaseException):
    """SIGTERM or SIGHUP arrived."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = 128 + number


@contextmanager
def terminated_by_signals(once: bool = False) -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into an exception that unwinds like Ctrl-C.

    once: unwinding is not disturbed by another. A launcher tells a run to end, then ends the process that
    started it, which the run hears as one more signal.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        if once:
            for one in heard:
                signal.signal(one, signal.SIG_IGN)
        raise Terminated(number)

    # nohup has SIGHUP ignored, and means it.
    heard = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) is not signal.SIG_IGN]
    try:
        before = {number: signal.signal(number, stop) for number in heard}
    except ValueError:  # not the main thread: the embedding program handles its signals itself
        before = {}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
