"""Launchers small enough to be part of the test, and who is which rank of those that they started."""

from __future__ import annotations

import socket
import sys
import threading
import time
from itertools import groupby
from multiprocessing import Pipe
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.backends.base import TeamLaunch, local_rank
from ccbench.errors import BackendUnavailable, UsageError
from ccbench.runner.workers.channel import Listener, Peer, connect
from ccbench.runner.workers.launcher import (
    AgentLauncher,
    CommandLauncher,
    describe_exit,
    gather,
    private_folder,
    rank_order,
)
from ccbench.runner.workers.messages import LEADER_VARIABLE, Ended, Hello, Place
from ccbench.runner.workers.session import Session
from tests.faults import traces


def hello(host: str, rank: int = -1, ranks: int = -1) -> Hello:
    return Hello(Place(host, 1, host, host), rank, ranks)


@given(st.permutations(range(6)))
def test_ranks_are_those_that_the_launcher_told(order: list[int]) -> None:
    hellos = [hello("a", rank, 6) for rank in order]
    assert [hellos[number].rank for number in rank_order(hellos, "mpi", 6)] == list(range(6))


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=12))
def test_without_numbers_ranks_of_one_host_follow_each_other_as_they_came(
    hosts: list[str],
) -> None:
    order = rank_order([hello(host) for host in hosts], "mpi", len(hosts))
    assert sorted(order) == list(range(len(hosts)))
    in_order = [hosts[number] for number in order]
    assert [host for host, _ in groupby(in_order)] == list(dict.fromkeys(in_order))
    for host in hosts:
        came = [number for number in order if hosts[number] == host]
        assert came == sorted(came)


@pytest.mark.parametrize(
    ("hellos", "ranks", "words"),
    [
        (
            [hello("a", 0, 1), hello("a", 0, 1)],
            2,
            r"mpi: 2 processes came, and each believes it is alone",
        ),
        (
            [hello("a", 0, 2), hello("a", 1, 2)],
            3,
            r"started 2 processes, but 3 ranks are asked for; start 3",
        ),
        (
            [hello("a", 0, 2), hello("a", 1, 3)],
            None,
            r"processes are numbered 0, 1 of 2 and 3: they belong to sev",
        ),
        ([hello("a", 0), hello("a", 0)], 2, r"processes are numbered 0, 0 of 2: "),
    ],
)
def test_processes_that_are_not_one_start_are_refused(
    hellos: list[Hello], ranks: int | None, words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        rank_order(hellos, "mpi", ranks)


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=12))
def test_local_ranks_number_the_ranks_of_each_host(hosts: list[str]) -> None:
    for host in set(hosts):
        ranks = [rank for rank, host_of_rank in enumerate(hosts) if host_of_rank == host]
        assert [local_rank(hosts, rank) for rank in ranks] == list(range(len(ranks)))


def visit(listener: Listener) -> None:
    """Connect and leave, as a scanner of ports does."""
    host, _, port = listener.addresses[-1].rpartition(":")
    socket.create_connection((host, int(port))).close()


def test_strangers_are_noted_where_all_ranks_come(capsys: pytest.CaptureFixture[str]) -> None:
    with Listener() as listener:
        visit(listener)
        listener.peers(1.0)
        while not listener.strangers():
            time.sleep(0.01)
        sessions: list[Session] = []
        rank = threading.Thread(
            target=lambda: sessions.append(connect(listener.address, hello("a", 0, 1)))
        )
        rank.start()
        (peer,) = gather(listener, "mpi", 1, lambda *_: "none came", [])
        rank.join(10)
    assert (
        "ccbench: note: mpi: turned away: 1 connection that did not prove"
        in capsys.readouterr().err
    )
    peer.connection.close()
    sessions[0].close()


def launcher(script: str, *, ranks: int = 1, command: bool = True) -> CommandLauncher:
    words = (sys.executable, "-c", script)
    return CommandLauncher(
        TeamLaunch(words if command else ()), ranks, () if command else words, {}
    )


def printed_line(made: CommandLauncher, pattern: str) -> str:
    deadline = time.monotonic() + 10
    while not made.output(pattern) and time.monotonic() < deadline:
        time.sleep(0.01)
    return made.output(pattern)


OPEN_MPI_REFUSES = """There are not enough slots available in the system to satisfy the 4
slots that were requested by the application:

  python

Either request fewer slots for your application, or make more slots
available for use.
"""


def test_a_sentence_that_a_launcher_wraps_is_kept_whole() -> None:
    made = launcher(f"print({OPEN_MPI_REFUSES!r})")
    made.wait(10)
    printed_line(made, "available for use")
    assert made.output() == (
        "There are not enough slots available in the system to satisfy the 4 slots that were requested by "
        "the application:"
    )
    made.kill()


def test_a_launcher_that_starts_too_few_is_told_with_how_long_it_was_given_or_how_it_ended() -> (
    None
):
    made = launcher("import time; print('not enough slots', flush=True); time.sleep(60)")
    printed_line(made, "slots")
    came = Peer(hello("a", 0, 2), Pipe()[0])
    assert made.why_so_few([came], 2) == (
        f"{made.name} was given 0 s: only 1 of 2 processes had come; rank 1 did not come; "
        "it said: not enough slots"
    )
    made.kill()
    ends = (
        "=   RANK 0 PID 7 RUNNING AT a\\n=   KILLED BY SIGNAL: 9 (Killed)\\nPlease do not wait"
    )
    made = launcher(f"print('{ends}'); raise SystemExit(9)")
    made.wait(10)
    printed_line(made, "wait")
    assert made.why_so_few([came], 2) == (
        f"{made.name} exited with 9: only 1 of 2 processes had come; "
        "it said: RANK 0 PID 7 RUNNING AT a, KILLED BY SIGNAL: 9 (Killed)"
    )
    made = launcher("raise SystemExit(3)")
    made.wait(10)
    assert (
        made.why_so_few([], 2)
        == f"{made.name} exited with 3: no process had come; it said nothing"
    )


@pytest.mark.thinned(1)
@pytest.mark.parametrize("by_command", [False, True])
def test_a_rank_that_stops_before_it_connects_is_named_and_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, by_command: bool
) -> None:
    """Started by itself, or by a command on this host that numbers its processes."""
    monkeypatch.setattr("ccbench.runner.workers.launcher.STOPPED_SECONDS", 0.2)
    monkeypatch.setattr("ccbench.runner.workers.launcher.LOOK_SECONDS", 0.05)
    script = "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"
    if by_command:
        script = (
            "import os, subprocess, sys\n"
            f"words = [sys.executable, '-c', {script!r}]\n"
            "environment = {**os.environ, 'CCBENCH_RANK': '0', 'CCBENCH_RANKS': '1'}\n"
            "subprocess.run(words, env=environment)"
        )
    with Listener() as listener:
        words = (sys.executable, "-c", script)
        launch, rank = TeamLaunch(words if by_command else ()), () if by_command else words
        made = CommandLauncher(launch, 1, rank, {LEADER_VARIABLE: listener.address})
        with pytest.raises(
            UsageError, match=r"no process had come; rank 0 \(process \d+\) is stopped by a sig"
        ):
            gather(listener, "gloo", 1, made.why_so_few, [], lost=made.lost)
        made.kill()


@pytest.mark.exhaustive
@pytest.mark.thinned(1)
@pytest.mark.parametrize(
    ("script", "state"),
    [
        ("raise SystemExit(0)", "exited with 0"),
        ("import os; os.kill(os.getpid(), 11)", "was killed by SIGSEGV"),
    ],
)
def test_of_ranks_that_do_not_connect_each_is_named_with_how_it_ended_or_that_it_lives(
    monkeypatch: pytest.MonkeyPatch, script: str, state: str
) -> None:
    monkeypatch.setattr("ccbench.runner.workers.launcher.LOOK_SECONDS", 0.05)
    by_rank = f"import os, time\nif os.environ['CCBENCH_RANK'] == '0': time.sleep(60)\n{script}"
    made = launcher(by_rank, ranks=2, command=False)
    lives, ended = (process.pid for process in made.processes)
    words = rf"rank 0 \(process {lives}\) lives and has not connected; rank 1 \(process {ended}\) {state}"
    with Listener() as listener, pytest.raises(UsageError, match=words):
        gather(listener, "gloo", 2, made.why_so_few, [], lost=made.lost)
    made.kill()


def test_an_end_is_told_in_words_and_a_signal_without_a_name_by_its_number() -> None:
    assert describe_exit(3) == "exited with 3"
    assert describe_exit(-9) == "was killed by SIGKILL"
    assert describe_exit(-40) == "was killed by signal 40"


def test_killing_a_launcher_takes_what_it_has_started() -> None:
    made = launcher(
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE)\n"
        "print('child', child.pid, flush=True)\n"
        "child.wait()"
    )
    child = int(printed_line(made, "child").split()[1])
    assert made.ended() == ""
    made.kill()
    assert made.ended() == "was killed by SIGKILL"
    made.kill()
    assert traces.all_gone([child])


def test_without_a_launcher_every_rank_is_a_process_with_its_number() -> None:
    script = "import os; os.write(1, '{CCBENCH_RANK} of {CCBENCH_RANKS}\\n'.format_map(os.environ).encode())"
    made = launcher(script, ranks=3, command=False)
    traces.wait_until(lambda: None not in made.exit_codes(), 20)
    assert [made.rank_ended(rank) for rank in range(3)] == ["exited with 0"] * 3
    assert [bool(printed_line(made, f"{rank} of 3")) for rank in range(3)] == [True] * 3


def test_a_launcher_that_does_not_exist_is_told() -> None:
    with pytest.raises(
        BackendUnavailable, match="--launch: no/such/mpirun could not be started: No such"
    ):
        CommandLauncher(TeamLaunch(("no/such/mpirun",), several_hosts=True), 2, ("true",), {})


def test_agents_are_told_what_the_run_was_started_with_and_the_launcher_what_they_say(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("CCBENCH_FAULT", "CCBENCH_RUNNER", "OTHER"):
        monkeypatch.setenv(name, "x")
    agents, hub = Pipe()
    made = AgentLauncher(
        TeamLaunch(launched_by="srun"), 2, {"CCBENCH_LEADER": "here"}, hub, in_process=True
    )
    spawn = agents.recv()
    assert spawn.in_process
    assert spawn.variables["CCBENCH_FAULT"] == "x"
    assert spawn.variables["CCBENCH_LEADER"] == "here"
    assert not {"CCBENCH_RUNNER", "OTHER"} & set(spawn.variables)
    assert made.ended() == ""
    agents.send(Ended(1, 1, 3, "\nccbench: no route to host\n"))
    traces.wait_until(made.ended, 10)
    assert list(made.exit_codes()) == [None, 3]
    assert made.why_so_few([], 2) == (
        "srun exited with 3: no process had come; it said: ccbench: no route to host"
    )
    made.kill()
    with pytest.raises((EOFError, OSError)):
        agents.recv()
    agents.close()
    hub.close()


def test_a_private_folder_is_elsewhere_when_there_is_no_room_and_without_any_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "file").touch()
    for parent in (tmp_path / "file", tmp_path / "absent"):
        with private_folder(str(parent)) as folder:
            assert Path(folder).parent == tmp_path
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "file"))
    with pytest.raises(BackendUnavailable, match="set TMPDIR"), private_folder(""):
        pass
