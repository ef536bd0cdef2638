"""``mpirun -n N ccbench run ...``: N processes that become one run.

Every process becomes an agent. The first gathers a connection to each, then starts the run's own process,
the runner, which inherits them and is the hub: it plans, writes and prints as ever, asks agents for facts,
and has them start ranks for the leaders of its teams. The first process keeps the connections, too, and tells
all agents the run's exit code, however the runner has ended.
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import threading
from collections.abc import MutableMapping, Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait

from ccbench.errors import UsageError
from ccbench.machine.host import (
    FORWARDED,
    die_with_parent,
    forward_signals_to,
    module_command,
    signals_let_in,
    single_threaded,
)
from ccbench.runner.workers.agent import LaunchedProcessAgent
from ccbench.runner.workers.channel import Listener, Peer, tell_all
from ccbench.runner.workers.cleanup import FileCleanup
from ccbench.runner.workers.launcher import START_LIMIT_SECONDS, gather, not_among
from ccbench.runner.workers.messages import (
    AGENTS_VARIABLE,
    Ended,
    Hello,
    Kill,
    Spawn,
    Stop,
    this_place,
)
from ccbench.runner.workers.rendezvous import (
    FOLDER_VARIABLE,
    LaunchedProcess,
    connect_to_first,
    store_for,
    without_launcher,
)
from ccbench.runner.workers.session import Session, received_over


def join_run(process: LaunchedProcess, arguments: Sequence[str]) -> int:
    """Be one of the processes of a run; the run's exit code, the same in every process.

    arguments: of the command line, which the runner gets. Raises UsageError in the first process when they
    cannot become one run; the others leave with its exit code.
    """
    os.environ.update(single_threaded({}))
    cleanup = FileCleanup()  # from before the library comes up, which processes may meet over
    hello = Hello(this_place(), process.rank, process.ranks)
    if process.rank:
        connection = connect_to_first(store_for(process, os.environ), hello)
        return LaunchedProcessAgent(process, connection, cleanup).stay()
    signal.pthread_sigmask(
        signal.SIG_BLOCK, FORWARDED
    )  # before there are threads, which inherit it
    own, runners = Pipe()
    agents = _gathered(process, Peer(hello, runners))
    runner = _start_runner(process, arguments, agents)
    forward_signals_to(runner)

    def see_out() -> None:
        code = runner.wait()
        # This process's own agent comes last: it ends the process, and this thread with it.
        tell_all(reversed(agents), Stop(code if code >= 0 else 128 - code))

    threading.Thread(target=see_out, name="runner", daemon=True).start()
    return LaunchedProcessAgent(process, own, cleanup).stay()


def _gathered(process: LaunchedProcess, first: Peer) -> list[Connection]:
    """Wait for all others; return everybody's connections in rank order, or turn all away by UsageError."""

    def why(came: Sequence[Peer], expected: int) -> str:
        absent = not_among(came, expected)
        return (
            f"{len(came)} of {expected} processes came together in {START_LIMIT_SECONDS:.0f} s"
            f"{', ' if absent else ''}{absent}; do all hosts start ccbench, and let TCP connections through? "
            f"({FOLDER_VARIABLE} names a folder to meet)"
        )

    store = store_for(process, os.environ)
    arrived = [first]
    with Listener(several_hosts=not process.one_host) as listener:
        store.set(listener.address)
        try:
            peers = gather(listener, process.launcher, process.ranks, why, arrived)
            return [peer.connection for peer in peers]
        except UsageError:
            tell_all([peer.connection for peer in arrived], Stop(UsageError.exit_code))
            raise
        finally:
            store.close()


def _start_runner(
    process: LaunchedProcess, arguments: Sequence[str], agents: Sequence[Connection]
) -> subprocess.Popen[bytes]:
    """Start the run's own process, which inherits the connections."""
    lines = [
        agent.hand_over() if isinstance(agent, Session) else str(agent.fileno())
        for agent in agents
    ]
    with signals_let_in():
        runner = subprocess.Popen(
            module_command("ccbench.__main__", *arguments),
            env={
                **without_launcher(os.environ),
                AGENTS_VARIABLE: f"{' '.join(lines)}|{process.launcher}",
            },
            pass_fds=[agent.fileno() for agent in agents],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    with suppress(
        AttributeError, OSError
    ):  # launchers bind the first rank, which the runner is not
        os.sched_setaffinity(runner.pid, range(os.cpu_count() or 1))
    return runner


class AgentHub:
    """Connections of the runner to the agents of its run, in rank order. launcher: who started these."""

    def __init__(self, launcher: str, agents: Sequence[Connection]) -> None:
        self.launcher, self.agents = launcher, agents
        self._groups: dict[int, Connection] = {}
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()

    def listen(self) -> None:
        """Begin to listen to the agents; before, whoever asks them questions reads the answers."""
        threading.Thread(target=self._listen, name="agents", daemon=True).start()

    def _listen(self) -> None:
        """Tell leaders which ranks have ended; an agent that is gone ends the run."""
        with suppress(EOFError, OSError):
            while True:
                for agent in wait(self.agents):
                    assert isinstance(agent, Connection)
                    ended: Ended = agent.recv()
                    if leader := self._groups.get(ended.group):
                        tell_all([leader], ended)
        os.kill(os.getpid(), signal.SIGTERM)  # its launcher is about to end all others, too

    def serve(self, leader: Connection) -> None:
        """Have agents start ranks as ``leader`` says, and end them once it hangs up; returns at once."""
        group = next(self._numbers)
        self._groups[group] = leader

        def work() -> None:
            with suppress(EOFError, OSError):
                while True:
                    spawn: Spawn = leader.recv()
                    self._tell(replace(spawn, group=group))
            del self._groups[group]
            self._tell(Kill(group))

        threading.Thread(target=work, name=f"group {group}", daemon=True).start()

    def _tell(self, message: object) -> None:
        with self._lock:
            tell_all(self.agents, message)


def hub_of(variables: MutableMapping[str, str]) -> AgentHub | None:
    """Return the hub of the agents that this process has inherited, and die with the first of these."""
    lines, _, launcher = variables.pop(AGENTS_VARIABLE, "").partition("|")
    if not lines:
        return None
    die_with_parent(os.getppid(), by=signal.SIGTERM)
    return AgentHub(launcher, [received_over(line) for line in lines.split()])
