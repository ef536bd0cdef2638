"""Who dies with whom, and who is stopped."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ccbench.machine.files import Files
from ccbench.machine.host import (
    module_command,
    single_threaded,
    state,
    terminated_by_signals,
)

LINUX = sys.platform.startswith("linux")


def test_a_state_is_the_letter_after_the_name_whatever_the_name(tmp_path: Path) -> None:
    folder = tmp_path / "proc/7"
    folder.mkdir(parents=True)
    (folder / "stat").write_text("7 (a) R (b c) T 1 7 7 0\n")
    assert state(7, Files(tmp_path)) == "T"
    (folder / "stat").write_text("")
    assert state(7, Files(tmp_path)) == ""
    assert state(8, Files(tmp_path)) == ""


PARENT = """
import os, sys, time
from ccbench.machine.host import die_with_parent
pid = os.fork()
if pid == 0:
    die_with_parent({parent})
    print(os.getpid(), flush=True)
    time.sleep(60)
time.sleep(60)
"""


@pytest.mark.skipif(not LINUX, reason="the kernel's parent-death signal is Linux's")
def test_a_child_dies_with_its_parent_however_that_ends() -> None:
    code = PARENT.format(parent="os.getppid()")
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    process.kill()
    process.communicate()
    deadline = time.monotonic() + 10
    while state(child) not in ("", "Z"):
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.skipif(not LINUX, reason="the kernel's parent-death signal is Linux's")
def test_a_child_whose_parent_has_ended_already_ends_too() -> None:
    start = "from ccbench.machine.host import die_with_parent"
    code = f"{start}; die_with_parent(1234567); print('still here')"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (1, "")


def test_a_module_of_the_current_folder_is_not_taken_for_a_library(tmp_path: Path) -> None:
    (tmp_path / "numpy.py").write_text("raise SystemExit('hostile')")
    ended = subprocess.run(
        module_command("ccbench.runner.workers", "leader", "cpu"),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "hostile" not in ended.stderr
    assert "ValueError" in ended.stderr  # it got as far as reading its arguments


def test_numeric_libraries_are_held_to_one_thread() -> None:
    assert single_threaded({"HOME": "/x"})["OMP_NUM_THREADS"] == "1"
    assert single_threaded({"OMP_NUM_THREADS": "8", "HOME": "/x"})["HOME"] == "/x"


def test_a_handler_of_a_c_library_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    really, numbers = signal.signal, (signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    # What Python gives for a handler that was set before it began.
    monkeypatch.setattr(signal, "signal", lambda *words: really(*words) and None)
    try:
        with terminated_by_signals():
            pass
        assert {signal.getsignal(number) for number in numbers} == {signal.SIG_DFL}
    finally:
        for number, handler in before.items():
            really(number, handler)
