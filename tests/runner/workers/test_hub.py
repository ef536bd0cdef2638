"""Processes of one launcher become one run: the first is told of all, the others stay until it is over."""

from __future__ import annotations

import errno
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from multiprocessing import Pipe

import pytest

from ccbench.errors import UsageError
from ccbench.exit_codes import PARTIAL
from ccbench.runner.workers.agent import LaunchedProcessAgent
from ccbench.runner.workers.channel import connect, tell_all
from ccbench.runner.workers.cleanup import FileCleanup
from ccbench.runner.workers.hub import AgentHub, hub_of, join_run
from ccbench.runner.workers.messages import (
    AGENTS_VARIABLE,
    Ended,
    Hello,
    Kill,
    Spawn,
    Stop,
    this_place,
)
from ccbench.runner.workers.rendezvous import LaunchedProcess, Store
from ccbench.runner.workers.session import received_over


def test_an_agent_whose_leader_was_killed_says_so_and_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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
    assert hub.recv() == Ended(1, 1, PARTIAL, "the team's leader is gone (Broken pipe)")
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


def test_the_first_process_says_who_has_another_version_and_all_others_leave_with_its_code(
    store: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.environ", dict(os.environ))
    heard: list[object] = []

    def come() -> None:
        text = store.get()
        with connect(text, Hello(this_place(), 1, 3)) as connection:
            come_as_another_version(text)
            heard.append(connection.recv())

    thread = threading.Thread(target=come)
    thread.start()
    with pytest.raises(UsageError, match="has ccbench other"):
        join_run(LaunchedProcess("mpirun", 0, 3), [])
    thread.join(10)
    assert heard == [Stop(UsageError.exit_code)]


class EndedRunner:
    """A runner that went well."""

    def wait(self) -> int:
        return 0


def test_an_agent_hears_the_runner_and_then_of_its_end_from_the_first_process(
    store: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both send over the one session that the agent has, whose messages are numbered."""
    heard: list[object] = []

    class Runner(EndedRunner):
        """Asks every agent something, and ends."""

        def __init__(self, *_: object, env: Mapping[str, str], **__: object) -> None:
            lines, launcher = env[AGENTS_VARIABLE].split("|")
            assert launcher == "mpirun"
            for line in lines.split():
                number, *session = line.split(":")
                with received_over(":".join([str(os.dup(int(number))), *session])) as agent:
                    tell_all([agent], Kill(1))
                    tell_all([agent], Kill(2))

    def come() -> None:
        with connect(store.get(), Hello(this_place(), 1, 2)) as hub:
            heard.extend(hub.recv() for _ in range(3))

    monkeypatch.setattr("os.environ", dict(os.environ))
    monkeypatch.setattr("ccbench.runner.workers.hub.subprocess.Popen", Runner)
    monkeypatch.setattr("ccbench.runner.workers.hub.forward_signals_to", lambda _: None)
    thread = threading.Thread(target=come)
    thread.start()
    assert join_run(LaunchedProcess("mpirun", 0, 2), []) == 0
    thread.join(10)
    assert heard == [Kill(1), Kill(2), Stop(0)]


def test_the_first_process_says_how_many_came_in_time(
    store: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("hub", "launcher"):
        monkeypatch.setattr(f"ccbench.runner.workers.{module}.START_LIMIT_SECONDS", 1.0)
    with pytest.raises(
        UsageError,
        match="mpirun: 1 of 2 processes came together in 1 s, rank 1 did not come; do all hosts start",
    ):
        join_run(LaunchedProcess("mpirun", 0, 2), [])


def come_as_another_version(text: str) -> None:
    """In a process of its own: what a version says is of the module."""
    script = (
        "import sys; from ccbench.runner.workers import channel; channel.__version__ = 'other'\n"
        "from ccbench.errors import UsageError\n"
        "try: channel.connect(sys.argv[1], None)\n"
        "except UsageError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, text], capture_output=True, text=True, timeout=30
    )
    assert "has ccbench" in done.stdout


def test_an_agent_whose_run_is_lost_says_so(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("os.environ", dict(os.environ))
    theirs, ours = Pipe()
    monkeypatch.setattr("ccbench.runner.workers.hub.store_for", lambda *_: None)
    monkeypatch.setattr("ccbench.runner.workers.hub.connect_to_first", lambda *_: ours)
    theirs.close()
    assert join_run(LaunchedProcess("srun", 1, 2), []) == PARTIAL
    assert (
        "srun: the run's first process has left without a word to process 1"
        in capfd.readouterr().err
    )


def test_the_hub_hands_on_what_leaders_ask_and_agents_tell_until_an_agent_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    killed: queue.SimpleQueue[tuple[int, int]] = queue.SimpleQueue()
    monkeypatch.setattr("os.kill", lambda *what: killed.put(what))
    ends = [Pipe() for _ in range(2)]
    hub = AgentHub("srun", [end[0] for end in ends])
    agents = [end[1] for end in ends]
    hub.listen()
    leaders = [Pipe() for _ in range(2)]
    for _, runners in leaders:
        hub.serve(runners)
    leaders[1][0].send(Spawn({"CCBENCH_LEADER": "there"}))
    for agent in agents:
        assert agent.recv() == Spawn({"CCBENCH_LEADER": "there"}, group=2)
    agents[1].send(Ended(2, 1, 3, "no device"))
    assert leaders[1][0].recv() == Ended(2, 1, 3, "no device")
    assert not leaders[0][0].poll()
    for leader, _ in leaders:
        leader.close()
    for agent in agents:
        assert {agent.recv(), agent.recv()} == {Kill(1), Kill(2)}
    assert killed.empty()
    agents[0].close()
    assert killed.get(timeout=10) == (os.getpid(), signal.SIGTERM)
    agents[1].close()


def test_a_runner_that_nobody_launched_has_no_hub() -> None:
    assert hub_of({}) is None
