"""Processes of one launcher become one run: the first is told of all, the others stay until it is over."""

from __future__ import annotations

import errno
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection

import pytest

from ccbench.errors import UsageError
from ccbench.runner.workers.agent import LOST_EXIT_CODE, LaunchedProcessAgent
from ccbench.runner.workers.channel import connect
from ccbench.runner.workers.cleanup import FileCleanup
from ccbench.runner.workers.hub import join_run
from ccbench.runner.workers.messages import Ended, Hello, Spawn, Stop
from ccbench.runner.workers.rendezvous import LaunchedProcess, Store


def test_an_agent_whose_leader_was_killed_says_so_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr("ccbench.runner.workers.agent.serve", broken)
    hub, agents_end = Pipe()
    agent = LaunchedProcessAgent(LaunchedProcess("mpirun", 1, 2), agents_end, FileCleanup())
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
