"""Every way a command can end: one line for a person, one exit code for a machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]  # ships no types
import pytest

from ccbench import __version__
from tests.cli.conftest import Command

CHECKOUT = Path(__file__).resolve().parents[2]


def fail_with(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Make ``ccbench doctor`` raise ``error``."""

    def examine(*_: object) -> None:
        raise error

    monkeypatch.setattr("ccbench.machine.doctor.examine", examine)


def test_an_unexpected_exception_says_it_is_a_bug_and_shows_the_traceback(
    ccbench: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_with(monkeypatch, ZeroDivisionError("by zero"))
    ended = ccbench("doctor")
    assert ended.code == 70
    assert ended.err.startswith(
        f"ccbench: this is a bug in ccbench {__version__} (ZeroDivisionError)"
    )
    assert "Traceback" in ended.err


def test_ctrl_c_ends_with_130(ccbench: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_with(monkeypatch, KeyboardInterrupt())
    ended = ccbench("doctor")
    assert (ended.code, ended.err) == (130, "ccbench: interrupted\n")


def test_ctrl_c_while_ccbench_is_loaded_ends_with_130() -> None:
    script = """
import runpy, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "click":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Finder())
runpy.run_module("ccbench", run_name="__main__")
"""
    ended = subprocess.run(
        [sys.executable, "-c", script], cwd=CHECKOUT, capture_output=True, text=True
    )
    assert (ended.returncode, ended.stderr) == (130, "ccbench: interrupted\n")


@pytest.mark.parametrize(
    "error",
    [
        pa.ArrowMemoryError("malloc of size 256 failed"),
        MemoryError(),
        ImportError("libparquet.so: failed to map segment from shared object"),
        RuntimeError("can't start new thread"),
    ],
)
def test_memory_that_runs_out_is_a_sentence(
    error: Exception, ccbench: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_with(monkeypatch, error)
    words = "ccbench: error: out of memory; raise the limit (ulimit -v), or name less at once\n"
    ended = ccbench("doctor")
    assert (ended.code, ended.err) == (2, words)


HOSTILE = "a\x1b]0;owned\x07\x1b[31m\x9b1mb"
"""Name of a file that sets the title and the colours of a terminal."""


@pytest.mark.parametrize(
    "command",
    [
        "check",
        "replay",
        "topo",
        "report",
        "compare",
        "plan",
        "tune",
        "run",
        "predict --machine",
    ],
)
def test_control_characters_of_a_name_never_reach_the_terminal(
    ccbench: Command, command: str
) -> None:
    ended = ccbench(*command.split(), HOSTILE)
    assert ended.code == 2
    assert ended.err
    assert not set("\x1b\x07\x9b") & set(ended.out + ended.err)


@pytest.mark.parametrize(
    "command",
    [
        "check",
        "replay",
        "topo",
        "plan",
        "report",
        "predict --collective all_reduce --machine",
        "run --plan",
    ],
)
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_pipes_and_devices_are_refused_at_once(
    ccbench: Command, tmp_path: Path, kind: str, command: str
) -> None:
    pipe = tmp_path / "pipe.yaml"
    os.mkfifo(pipe)
    ended = ccbench(*command.split(), str(pipe) if kind == "pipe" else "/dev/zero")
    assert (ended.code, ended.out) == (2, "")
    assert "Traceback" not in ended.err


def test_a_pipe_in_place_of_what_a_run_folder_holds_is_passed_over(
    ccbench: Command, tmp_path: Path
) -> None:
    for name in ("run.json", "cases.parquet"):
        os.mkfifo(tmp_path / name)
    ended = ccbench("report", str(tmp_path), "--format", "junit")
    assert ended.code == 3
    assert "run.json: cannot be read" in ended.err
    assert (
        "cases.parquet: cannot be read ([Errno 22] a pipe or a device and no file)" in ended.err
    )


def as_process(*arguments: str, **settings: object) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    return subprocess.Popen(
        [sys.executable, "-m", "ccbench", *arguments],
        env={**environment, **settings.pop("env", {})},  # type: ignore[dict-item] # a dict of text
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_goes_away_ends_it_quietly_with_141(unbuffered: str) -> None:
    process = as_process("list", "collectives", env={"PYTHONUNBUFFERED": unbuffered})
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()  # long before the first line is printed
    errors = process.stderr.read()
    process.stderr.close()
    assert (process.wait(), errors) == (141, "")


needs_full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="/dev/full is Linux's")


def in_shell(line: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a line of sh in which ``ccbench`` is this checkout's."""
    command = f"ccbench() {{ '{sys.executable}' -m ccbench \"$@\"; }}; {line}"
    return subprocess.run(
        ["sh", "-c", command],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_closed_stdout_is_no_mistake(tmp_path: Path) -> None:
    ended = in_shell("ccbench list collectives >&-", tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.thinned(3)
@needs_full
@pytest.mark.parametrize(
    "environment", [{}, {"PYTHONUNBUFFERED": "1"}, {"PYTHONIOENCODING": "ascii"}]
)
@pytest.mark.parametrize("arguments", ["list collectives", "--help"])
def test_a_full_stdout_is_one_line_and_exit_2(
    tmp_path: Path, arguments: str, environment: dict[str, str]
) -> None:
    ended = in_shell(f"ccbench {arguments} > /dev/full", tmp_path, **environment)
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert line.startswith(
        "ccbench: error: stdout: cannot be written (No space left on device)"
    )


@needs_full
def test_a_run_is_kept_and_drawn_before_stdout_fails(tmp_path: Path) -> None:
    line = "ccbench run quick --backend simulated --only barrier -q -o made > /dev/full"
    ended = in_shell(line, tmp_path)
    assert ended.returncode == 2
    assert "Traceback" not in ended.stderr
    assert (tmp_path / "made" / "cases.parquet").is_file()
    assert (tmp_path / "made" / "report" / "report.md").is_file()


def test_the_failure_of_a_file_is_not_taken_for_stdouts(
    ccbench: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_with(monkeypatch, OSError(28, "No space left on device"))
    ended = ccbench("doctor")
    assert ended.code == 70
    assert "Traceback" in ended.err


@pytest.mark.thinned(1)
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_closed_stderr_does_not_change_the_exit_code(unbuffered: str) -> None:
    process = as_process("run", "nosuchsuite", env={"PYTHONUNBUFFERED": unbuffered})
    assert process.stdout is not None
    assert process.stderr is not None
    process.stderr.close()
    process.stdout.close()
    assert process.wait() == 2


def completions(*words: str) -> set[str]:
    environment = {
        "_CCBENCH_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(["ccbench", *words]),
        "COMP_CWORD": str(len(words)),
    }
    text, _ = as_process(env=environment).communicate()
    return {line.split(",", 1)[1] for line in text.splitlines()}


def test_suites_collectives_and_algorithms_are_completed() -> None:
    assert "quick" in completions("run", "qui")
    assert completions("schedule", "all_g") == {"all_gather"}
    assert completions("schedule", "barrier", "d") == {"dissemination"}
