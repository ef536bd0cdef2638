"""``LAUNCHER -n N ccbench run ...`` is one run: one folder, one voice, one exit code."""

from __future__ import annotations

import errno
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from ccbench.backends.gloo import BACKEND as GLOO
from ccbench.backends.mpi import BACKEND as MPI
from ccbench.backends.mpi.library import OPEN_MPI, as_root, installed
from ccbench.errors import UsageError
from ccbench.results import load_run
from ccbench.runner.workers.agent import LOST_EXIT_CODE, RunAgent
from ccbench.runner.workers.channel import connect
from ccbench.runner.workers.cleanup import FileCleanup, shared_memory_files
from ccbench.runner.workers.hub import join_run
from ccbench.runner.workers.messages import Ended, Hello, Spawn, Stop
from ccbench.runner.workers.rendezvous import LaunchedProcess, Store
from tests.faults.traces import MARK, SHARED_MEMORY, all_gone, marked, state_and_parent, wait_until

FAKE_SRUN = str(Path(__file__).resolve().parents[2] / "fake_srun")
SECONDS = 200

needs_mpi = pytest.mark.skipif(MPI.unavailable() is not None, reason=f"no MPI here: {MPI.unavailable()}")
needs_gloo = pytest.mark.skipif(GLOO.unavailable() is not None, reason=str(GLOO.unavailable()))

SUITE = """\
question: Does it run?
backends: [{backends}]
order: written
sweep: {{collective: all_reduce, size: [{sizes}]}}
sampling: {{rounds: 1, maximum_samples: 20, warmup: 1 ms, budget: 20 ms, time_limit: {limit}}}
"""


def run(
    launcher: Sequence[str],
    folder: Path,
    backends: str,
    sizes: str = "1 KiB",
    limit: str = "60 s",
    more: Sequence[str] = (),
    **variables: str,
) -> subprocess.CompletedProcess[str]:
    suite = folder.parent / "agents.yaml"
    suite.write_text(SUITE.format(backends=backends, sizes=sizes, limit=limit))
    command = [sys.executable, "-m", "ccbench", "run", str(suite), "-o", str(folder), "--no-report", *more]
    return subprocess.run(
        [*launcher, *command],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
        env={**os.environ, **dict(as_root(os.geteuid())), **variables},
    )


def rows_of(folder: Path) -> list[dict[str, Any]]:
    rows = load_run(folder).cases.to_dict("records")
    return [{str(name): value for name, value in row.items()} for row in rows]


def own_mpiexec() -> list[str]:
    library = installed()
    assert not isinstance(library, str), "checked by needs_mpi"
    more = ["--oversubscribe", "--bind-to", "none"] if library.vendor == OPEN_MPI else []
    return [library.launcher, *more]


def test_srun_makes_one_run_of_its_tasks(tmp_path: Path) -> None:
    done = run([FAKE_SRUN, "-n", "2"], tmp_path / "run", "cpu")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("GB/s = 1e9 bytes/s") == 1, done.stdout
    assert done.stderr.count("run folder: ") == 1, done.stderr
    (row,) = rows_of(tmp_path / "run")
    assert (row["status"], row["ranks"], row["nodes"]) == ("ok", 2, 1)


def test_tasks_that_were_told_different_numbers_are_refused(tmp_path: Path) -> None:
    done = run([FAKE_SRUN, "-n", "2"], tmp_path / "run", "cpu", LYING_SRUN="sizes")
    assert done.returncode == 2
    assert "some processes were told that they are 2, others 3" in done.stderr
    assert not (tmp_path / "run").exists()


def test_other_ranks_than_tasks_are_refused(tmp_path: Path) -> None:
    done = run([FAKE_SRUN, "-n", "2"], tmp_path / "run", "cpu", more=["--ranks", "3"])
    assert done.returncode == 2
    assert done.stderr.count("--ranks 3: srun started 2 processes") == 1, done.stderr


def test_a_launcher_inside_a_launcher_is_refused(tmp_path: Path) -> None:
    done = run([FAKE_SRUN, "-n", "2"], tmp_path / "run", "cpu", more=["--launch", "mpirun -n 2"])
    assert done.returncode == 2
    assert done.stderr.count("leave one of them out") == 1, done.stderr


@needs_mpi
def test_mpirun_makes_one_run_of_its_processes(tmp_path: Path) -> None:
    done = run([*own_mpiexec(), "-n", "2"], tmp_path / "run", "mpi, cpu")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("run folder: ") == 1, done.stderr
    rows = rows_of(tmp_path / "run")
    assert {(row["backend"], row["status"], row["ranks"]) for row in rows} == {
        ("mpi", "ok", 2),
        ("cpu", "ok", 2),
    }


@needs_mpi
def test_a_launcher_of_another_make_than_the_library_is_refused(tmp_path: Path) -> None:
    done = run([FAKE_SRUN, "-n", "2"], tmp_path / "run", "mpi")
    assert done.returncode == 2, done.stderr
    assert "sees a world of 1" in done.stderr
    assert "use that library's own mpiexec" in done.stderr
    assert not (tmp_path / "run").exists()


@needs_mpi
def test_after_a_hang_under_mpirun_the_rest_is_skipped_and_everybody_leaves(tmp_path: Path) -> None:
    launcher = [*own_mpiexec(), "-n", "2"]
    sizes, fault = "1 KiB, 64 KiB, 256 KiB", "stop:rank=1:size=65536"
    done = run(launcher, tmp_path / "run", "mpi", sizes, "3 s", CCBENCH_FAULT=fault)
    assert done.returncode == 4, done.stderr
    rows = {row["size_bytes"]: row for row in rows_of(tmp_path / "run")}
    assert rows[64 << 10]["status"] == "timed_out"
    assert "rank 1" in rows[64 << 10]["detail"]
    others = {rows[size]["status"] for size in (1 << 10, 256 << 10)}
    assert others <= {"ok", "skipped"}
    assert all(
        "cannot be started again" in row["detail"] for row in rows.values() if row["status"] == "skipped"
    )


@pytest.mark.exhaustive
@needs_mpi
def test_after_a_hang_a_launcher_that_the_runner_started_is_started_again(tmp_path: Path) -> None:
    sizes, fault = "1 KiB, 64 KiB, 256 KiB", "stop:rank=1:size=65536"
    launch = " ".join([*own_mpiexec(), "-n", "2"])
    done = run([], tmp_path / "run", "mpi", sizes, "3 s", ["--launch", launch], CCBENCH_FAULT=fault)
    assert done.returncode == 4, done.stderr
    assert "2 ranks: 2 on " in done.stderr
    statuses = {row["size_bytes"]: row["status"] for row in rows_of(tmp_path / "run")}
    assert statuses == {1 << 10: "ok", 64 << 10: "timed_out", 256 << 10: "ok"}


@pytest.mark.exhaustive
@needs_gloo
def test_torchrun_makes_one_run_of_its_processes(tmp_path: Path) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--no-python"]
    done = run(launcher, tmp_path / "run", "gloo")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("run folder: ") == 1, done.stderr
    (row,) = rows_of(tmp_path / "run")
    assert (row["backend"], row["status"], row["ranks"]) == ("gloo", "ok", 2)


@pytest.mark.exhaustive
@needs_gloo
@needs_mpi
def test_under_torchrun_mpi_is_refused_with_what_would_start_it(tmp_path: Path) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--no-python"]
    done = run(launcher, tmp_path / "run", "mpi")
    assert "torchrun started these 2 processes, and no MPI comes up between them" in done.stderr
    assert "start with mpirun, mpiexec or srun" in done.stderr
    assert not (tmp_path / "run").exists()


def start_stopping(
    folder: Path, mark: str, limit: str, before: Sequence[str] = (), after: Sequence[str] = ()
) -> subprocess.Popen[bytes]:
    """A run with MPI whose second rank stands still; its processes carry ``mark``."""
    (folder / "suite.yaml").write_text(SUITE.format(backends="mpi", sizes="1 KiB", limit=limit))
    words = [sys.executable, "-m", "ccbench", "run", "suite.yaml", "-o", "run", "--no-report"]
    told = {"CCBENCH_FAULT": "stop:rank=1:size=1024", MARK: mark}
    return subprocess.Popen(
        [*before, *words, *after],
        cwd=folder,
        env={**os.environ, **dict(as_root(os.geteuid())), **told},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def files_of_the_stopped(mark: str) -> list[Path]:
    """Files in shared memory of the rank that stands still, as soon as it does."""
    stopped = wait_until(lambda: [one for one in marked(mark) if state_and_parent(one)[0] == "T"], 120)
    assert isinstance(stopped, list)
    return [Path(path) for path in shared_memory_files(stopped[0])]


@needs_mpi
@pytest.mark.skipif(not SHARED_MEMORY.is_dir(), reason="no shared memory to leave files in")
def test_a_launcher_that_is_killed_leaves_no_shared_memory_behind(tmp_path: Path) -> None:
    mark = f"agents-{os.getpid()}"
    launcher = start_stopping(tmp_path, mark, "300 s", before=[*own_mpiexec(), "-n", "2"])
    try:
        files = files_of_the_stopped(mark)
    finally:
        launcher.kill()
        for process in marked(mark):
            with suppress(ProcessLookupError):
                if is_agent(process):
                    os.kill(process, signal.SIGKILL)
        launcher.wait()
    assert files, "this MPI keeps nothing in shared memory, so nothing is shown"
    wait_until(lambda: not any(path.exists() for path in files), 10)
    assert all_gone(marked(mark))


@pytest.mark.exhaustive
@needs_mpi
@pytest.mark.skipif(not SHARED_MEMORY.is_dir(), reason="no shared memory to leave files in")
def test_a_team_of_the_users_launcher_that_is_given_up_leaves_no_shared_memory_behind(tmp_path: Path) -> None:
    mark = f"given-up-{os.getpid()}"
    launch = ["--launch", " ".join([*own_mpiexec(), "-n", "2"])]
    process = start_stopping(tmp_path, mark, "3 s", after=launch)
    try:
        files = files_of_the_stopped(mark)
        assert process.wait(SECONDS) == 4
    finally:
        process.kill()
        process.wait()
    assert files, "this MPI keeps nothing in shared memory, so nothing is shown"
    wait_until(lambda: not any(path.exists() for path in files), 10)
    assert all_gone(marked(mark))


def test_an_agent_whose_leader_was_killed_says_so_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr("ccbench.runner.workers.agent.serve", broken)
    hub, agents_end = Pipe()
    agent = RunAgent(LaunchedProcess("mpirun", 1, 2), agents_end, FileCleanup())
    hub.send(Spawn({"CCBENCH_LEADER": ""}, in_process=True, group=1))
    thread = threading.Thread(target=lambda: codes.append(agent.stay()))
    codes: list[int] = []
    thread.start()
    assert hub.poll(10), "the agent says nothing"
    assert hub.recv() == Ended(1, 1, LOST_EXIT_CODE, "the team's leader is gone (Broken pipe)")
    hub.send(Spawn({"CCBENCH_LEADER": ""}, in_process=True, group=2))
    assert "MPI comes up only once" in hub.recv().output
    hub.send(Stop(137))
    thread.join(10)
    assert codes == [137]


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Told]:
    """Where the first process finds itself; signals are let through again afterwards."""
    made = Told()
    monkeypatch.setattr("ccbench.runner.workers.hub.store_for", lambda *_: made)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    yield made
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Told(Store):
    """Keeps what is set."""

    def __init__(self) -> None:
        self.texts: queue.SimpleQueue[str] = queue.SimpleQueue()

    def set(self, text: str) -> None:
        self.texts.put(text)

    def get(self) -> str:
        return self.texts.get(timeout=10)


@pytest.mark.parametrize("quicker", ["first", "other"])
def test_the_first_process_hears_of_another_version_whoever_came_before_it(
    store: Told, monkeypatch: pytest.MonkeyPatch, quicker: str
) -> None:
    monkeypatch.setattr("os.environ", dict(os.environ))

    def connected(text: str, hello: Hello) -> Connection:
        if quicker == "other":
            with pytest.raises(UsageError, match="has ccbench"):
                come_as_another_version(text)
            time.sleep(0.2)
        made = connect(text, hello)
        store.texts.put(text)
        return made

    monkeypatch.setattr("ccbench.runner.workers.hub.connect", connected)
    if quicker == "first":
        threading.Thread(target=lambda: come_late_as_another_version(store), daemon=True).start()
    with pytest.raises(UsageError, match="has ccbench other"):
        join_run(LaunchedProcess("mpirun", 0, 2), [])


def test_the_first_process_says_how_many_came_in_time(store: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "ccbench.runner.workers.hub.connect_to_first", lambda _, hello: connect(store.get(), hello)
    )
    for module in ("hub", "launcher"):
        monkeypatch.setattr(f"ccbench.runner.workers.{module}.START_LIMIT_SECONDS", 1.0)
    with pytest.raises(UsageError, match="mpirun: 1 of 2 processes came together in 1 s; do all hosts start"):
        join_run(LaunchedProcess("mpirun", 0, 2), [])


def come_late_as_another_version(store: Told) -> None:
    store.get()  # the first process's own
    text = store.get()
    time.sleep(0.2)
    with suppress(UsageError):
        come_as_another_version(text)


def come_as_another_version(text: str) -> None:
    """In a process of its own: what a version says is of the module."""
    script = (
        "import sys; from ccbench.runner.workers import channel; channel.__version__ = 'other'\n"
        "from ccbench.errors import UsageError\n"
        "try: channel.connect(sys.argv[1], None)\n"
        "except UsageError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, text], capture_output=True, text=True, timeout=30)
    if done.stdout:
        raise UsageError(done.stdout)


def test_an_agent_whose_first_process_is_killed_before_all_came_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("os.environ", dict(os.environ))
    theirs, ours = Pipe()
    monkeypatch.setattr("ccbench.runner.workers.hub.store_for", lambda *_: None)
    monkeypatch.setattr("ccbench.runner.workers.hub.connect_to_first", lambda *_: ours)
    theirs.close()
    with pytest.raises(UsageError, match="srun: the first process has left before all had come"):
        join_run(LaunchedProcess("srun", 1, 2), [])


def is_agent(process: int) -> bool:
    """Whether it is one that the launcher started, and not one of its helpers."""
    words = Path("/proc", str(process), "cmdline").read_bytes().split(b"\0")
    return b"run" in words and b"--no-report" in words
