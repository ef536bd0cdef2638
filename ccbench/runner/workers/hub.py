"""``mpirun -n N ccbench run ...``: N processes that become one run.

Every process becomes an agent. The first also starts the run's own process, which plans, writes and prints as
ever, and keeps the hub: whenever the runner needs a team, its leader connects to the hub and has all agents
start a rank, each on its host and with its number.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection

from ccbench.errors import UsageError
from ccbench.machine.host import (
    FORWARDED,
    forward_signals_to,
    module_command,
    signals_let_in,
    single_threaded,
)
from ccbench.runner.workers.agent import LaunchedProcessAgent
from ccbench.runner.workers.channel import PROOF_SECONDS, Listener, Peer, connect
from ccbench.runner.workers.cleanup import FileCleanup
from ccbench.runner.workers.launcher import POLL_SECONDS, START_LIMIT_SECONDS, gather, rank_order
from ccbench.runner.workers.messages import (
    AGENTS_VARIABLE,
    HUB_VARIABLE,
    Ended,
    Hello,
    Joined,
    Kill,
    Refusal,
    Spawn,
    Stop,
    this_place,
)
from ccbench.runner.workers.rendezvous import (
    FOLDER_VARIABLE,
    LaunchedProcess,
    Store,
    connect_to_first,
    store_for,
    without_launcher,
)

TURN_AWAY_SECONDS = PROOF_SECONDS + 2.0


def join_run(process: LaunchedProcess, arguments: Sequence[str]) -> int:
    """Be one of the processes of a run; the run's exit code, the same in every process.

    arguments: of the command line, which the runner gets. UsageError in the first process, SystemExit in the
    others that hear of it, when they cannot become one run.
    """
    os.environ.update(single_threaded({}))
    cleanup = FileCleanup()  # from before the library comes up, which processes may meet over
    if process.rank == 0:
        signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)  # before there are threads, which inherit it
    store = store_for(process, os.environ)
    hello = Hello(this_place(), process.rank, process.ranks)
    if process.rank == 0:
        connection = connect(AgentHub(process, store, arguments).address, hello)
    else:
        connection = connect_to_first(store, hello)
    try:
        answer = connection.recv()
    except (EOFError, OSError):
        raise UsageError(
            f"{process.launcher}: the first process has left before all had come; what it says tells why"
        ) from None
    if isinstance(answer, Refusal):
        if process.rank == 0:
            raise UsageError(answer.reason)
        raise SystemExit(UsageError.exit_code)
    return LaunchedProcessAgent(process, connection, cleanup).stay()


class AgentHub:
    """All agents' connections, and the runner's process, served by a thread of the first process.

    address: where to connect and with which key, one line of text.
    """

    def __init__(self, process: LaunchedProcess, store: Store, arguments: Sequence[str]) -> None:
        self._process, self._store = process, store
        self._arguments = list(arguments)
        self._listener = Listener(several_hosts=not process.one_host)
        self.address = self._listener.address
        self._agents: list[Connection] = []
        self._leaders: dict[int, Connection] = {}
        store.set(self.address)
        threading.Thread(target=self._work, name="hub", daemon=True).start()

    def _work(self) -> None:
        refusal = self._gather()
        self._store.close()
        if refusal:
            # Whoever is here or still under proof hears why; the first process's own may be the last. What
            # is closed may take the words along, so all stay open.
            deadline = time.monotonic() + TURN_AWAY_SECONDS
            told: list[Connection] = []
            while time.monotonic() < deadline:
                self._tell_agents(Refusal(refusal))
                told += self._agents
                self._agents = [peer.connection for peer in self._listener.wait([], POLL_SECONDS)[1]]
            self._listener.close()
            return
        self._tell_agents(Joined())
        runner = self._start_runner()
        forward_signals_to(runner)
        self._pass_on(runner)
        code = runner.wait()
        self._tell_agents(Stop(code if code >= 0 else 128 - code))

    def _gather(self) -> str:
        """Wait for all agents; why they are not one run, or ''."""
        who, ranks = self._process.launcher, self._process.ranks
        arrived: list[Peer] = []

        def why(came: int, wanted: int) -> str:
            return (
                f"{came} of {wanted} processes came together in {START_LIMIT_SECONDS:.0f} s; do all hosts "
                f"start ccbench, and let TCP connections through? ({FOLDER_VARIABLE} names a folder to meet)"
            )

        try:
            gather(self._listener, who, lambda _: ranks, why, enrol=arrived.append)
            rank_order([peer.hello for peer in arrived], who)
        except UsageError as error:
            return str(error)
        finally:
            # The first process's own comes last: once it has heard that all is over, it leaves.
            arrived.sort(key=lambda peer: peer.hello.rank, reverse=True)
            self._agents = [peer.connection for peer in arrived]
        return ""

    def _start_runner(self) -> subprocess.Popen[bytes]:
        variables = {
            **without_launcher(os.environ),
            HUB_VARIABLE: self.address,
            AGENTS_VARIABLE: f"{self._process.ranks} {self._process.launcher}",
        }
        variables.pop(FOLDER_VARIABLE, None)
        command = module_command("ccbench.__main__", *self._arguments)
        with signals_let_in():
            runner = subprocess.Popen(
                command, env=variables, stdin=subprocess.DEVNULL, start_new_session=True
            )
        with suppress(AttributeError, OSError):  # launchers bind the first rank, which the runner is not
            os.sched_setaffinity(runner.pid, range(os.cpu_count() or 1))
        return runner

    def _pass_on(self, runner: subprocess.Popen[bytes]) -> None:
        """Between leaders and agents, until the runner has ended; asleep while nobody says anything."""
        pid_file = os.pidfd_open(runner.pid) if hasattr(os, "pidfd_open") else None
        ended = [pid_file] if pid_file is not None else []
        groups = 0
        while runner.poll() is None:
            lines = [*ended, *self._agents, *self._leaders.values()]
            ready, leaders = self._listener.wait(lines, None if ended else POLL_SECONDS)
            for leader in leaders:
                groups += 1
                self._leaders[groups] = leader.connection
            for line in ready:
                if isinstance(line, Connection):
                    self._receive(line, runner)
        if pid_file is not None:
            os.close(pid_file)

    def _receive(self, line: Connection, runner: subprocess.Popen[bytes]) -> None:
        group = next((number for number, one in self._leaders.items() if one is line), 0)
        try:
            message = line.recv()
        except (EOFError, OSError):
            if group:
                del self._leaders[group]
                self._tell_agents(Kill(group))
            else:
                self._agents.remove(line)
                runner.terminate()  # its launcher is about to end all others, too
            return
        if isinstance(message, Spawn):
            self._tell_agents(Spawn(message.variables, message.in_process, group))
        elif isinstance(message, Ended) and message.group in self._leaders:
            with suppress(OSError):
                self._leaders[message.group].send(message)

    def _tell_agents(self, message: object) -> None:
        for agent in self._agents:
            with suppress(OSError):  # who is gone shows when it is listened to
                agent.send(message)
