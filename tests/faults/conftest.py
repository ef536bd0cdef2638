"""Runs of tiny suites in processes of their own, and the proof that nothing is left of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from ccbench.cli import main
from ccbench.results import load_run
from tests.faults import traces

ROOT = Path(__file__).resolve().parents[2]

HERE = Path(__file__).resolve().parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Without /proc nobody can tell what a fault has left behind."""
    if sys.platform.startswith("linux"):
        return
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(
                pytest.mark.skip(reason="faults are proven with /proc, which only Linux has")
            )


SAMPLING: dict[str, Any] = {
    "rounds": 1,
    "budget": "20 ms",
    "warmup": "2 ms",
    "minimum_sample": "200 us",
    "time_limit": "20 s",
}


QUIET = ("-q", "--no-report", "--machine", "cpu-shared-memory")


@dataclass(frozen=True)
class Ended:
    """How a command ended, and what it measured."""

    code: int
    out: str
    err: str
    folder: Path

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The cases in the run folder, as every reader sees them."""
        return rows_of(self.folder)

    def row(self, collective: str) -> dict[str, Any]:
        """The only case of a collective."""
        (found,) = (row for row in self.rows if row["collective"] == collective)
        return found


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """All cases of a run folder; none may be unreadable."""
    run = load_run(folder)
    assert run.problems == ()
    rows: list[dict[str, Any]] = run.table.to_pylist()
    return rows


@dataclass
class Bench:
    """``ccbench`` as a user has it, in a folder of its own."""

    folder: Path
    mark: str
    started: list[subprocess.Popen[str]] = field(default_factory=list)
    before_exec: Callable[[], None] | None = None

    def suite(
        self, *sweeps: dict[str, Any], backends: Sequence[str] = ("cpu",), **sampling: Any
    ) -> Path:
        """Write a suite; sampling rules on top of SAMPLING."""
        path = self.folder / "tiny.yaml"
        document = {
            "suite": "tiny",
            "backends": list(backends),
            "sweep": [{"ranks": 2, "size": "4 KiB", **sweep} for sweep in sweeps],
            "sampling": {**SAMPLING, **sampling},
            "order": "written",
        }
        path.write_text(json.dumps(document))  # JSON is YAML
        return path

    def long_suite(self, backend: str = "cpu") -> Path:
        """Two cases that take more than a minute each unless something ends them."""
        return self.suite(
            {"collective": "all_reduce"},
            {"collective": "broadcast", "size": "1 KiB"},
            backends=[backend],
            budget="60 s",
            max_ci_width="0.1%",
            maximum_samples=4000,
            minimum_samples=4000,
            minimum_sample="20 ms",
            time_limit="250 s",
        )

    def start(
        self, *arguments: str | Path, fault: str = "", launcher: Sequence[str] = ()
    ) -> subprocess.Popen[str]:
        """A command under way, in a process group of its own."""
        environment = {**os.environ, "CCBENCH_FAULT": fault} if fault else None
        process = subprocess.Popen(
            [*launcher, sys.executable, "-m", "ccbench", *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder,
            env=environment,
            start_new_session=True,
            preexec_fn=self.before_exec,
        )
        self.started.append(process)
        return process

    def start_run(
        self, suite: Path, *arguments: str, output: str = "out", quiet: bool = True, **how: Any
    ) -> subprocess.Popen[str]:
        """``ccbench run`` under way."""
        where = () if "--resume" in arguments else ("-o", output)
        return self.start("run", suite, *where, *QUIET[not quiet :], *arguments, **how)

    def run(self, suite: Path, *arguments: str, output: str = "out", **how: Any) -> Ended:
        """``ccbench run`` to its end."""
        return self.end(self.start_run(suite, *arguments, output=output, **how), output)

    def here(self, *arguments: str | Path) -> int:
        """The exit code of a command that this process runs in the folder, which costs no start."""
        before = Path.cwd()
        os.chdir(self.folder)
        try:
            main([*map(str, arguments)])
        except SystemExit as leaving:
            return int(leaving.code or 0)
        finally:
            os.chdir(before)
        return 0

    def end(self, process: subprocess.Popen[str], output: str = "out") -> Ended:
        """Wait for a command."""
        out, err = process.communicate(timeout=120)
        assert "Traceback" not in err, err
        return Ended(process.returncode, out, err, self.folder / output)


LAUNCHERS_OWN = ("ompi.", "torchelastic_")
"""Folders that Open MPI and torchrun make in TMPDIR and leave there when they end by force: not ccbench's."""


@pytest.fixture(autouse=True)
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Marks every process that the test causes; afterwards nothing may be left of any of them."""
    value = uuid.uuid4().hex
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv(traces.MARK, value)
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    with traces.own_shared_memory(value, monkeypatch):
        yield value
    processes = traces.left_behind(value)
    for process in processes:  # they must not take other tests with them
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    assert processes == [], f"processes left behind: {processes}"
    assert [name for name in os.listdir(temporary) if not name.startswith(LAUNCHERS_OWN)] == []


@pytest.fixture
def bench(tmp_path: Path, mark: str) -> Iterator[Bench]:
    """See Bench."""
    made = Bench(tmp_path, mark)
    yield made
    alive = [process for process in made.started if process.poll() is None]
    for process in alive:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    for process in made.started:
        process.communicate()
    assert alive == []
