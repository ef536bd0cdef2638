"""The agent of a rank that the leader did not fork: it is reached over a connection and answers questions.

It first connects to its leader and proves that it knows the key; only then does it load the rank's library,
so that the leader can name it and end it whatever the library does. Then it measures as ``rank`` does. When
the connection breaks, its reading thread ends the process at once. Nothing else is needed to end ranks on
other hosts.

Under ``mpirun -n N ccbench run`` the processes that the launcher started stay for the whole run
(``LaunchedProcessAgent``). They start ranks on their hosts as the hub tells them, but for ranks of MPI,
which they are themselves: a launcher's MPI comes up only in the processes that it started, and only once.
So a team of theirs that hangs cannot be replaced. Its agents stay, in whatever call they hang, until the
run is over, and then leave with the run's exit code: to end them sooner would make the launcher end
everything, the runner with its unwritten cases among it.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection

from ccbench.backends.base import CannotRun, Position
from ccbench.backends.endpoint import open_launched
from ccbench.errors import CannotStart, CcbenchError, UsageError
from ccbench.exit_codes import PARTIAL
from ccbench.machine.files import Files
from ccbench.machine.host import (
    allowed_cpus,
    control_group_limits,
    die_with_parent,
    module_command,
    signals_let_in,
    single_threaded,
)
from ccbench.runner.workers import messages
from ccbench.runner.workers.channel import Channel, connect, report_unreadable
from ccbench.runner.workers.cleanup import FileCleanup
from ccbench.runner.workers.facts import facts_of_this_host
from ccbench.runner.workers.messages import (
    LEADER_VARIABLE,
    LOCAL_VARIABLE,
    RANK_VARIABLE,
    RANKS_VARIABLE,
)
from ccbench.runner.workers.rank import run_rank
from ccbench.runner.workers.rendezvous import LaunchedProcess, rank_and_size
from ccbench.runner.workers.session import hang_up

PARTING_SECONDS = 4.0
LONGEST_OUTPUT = 2000


# -- an agent of one team ----------------------------------------------------------------------------------


ANSWERS: Mapping[str, Callable[[], object]] = {
    messages.POSITION: lambda: Position(0, 0, 0),  # until there is an endpoint, which knows
    messages.PLACE: messages.this_place,
    messages.HOST: facts_of_this_host,
}
"""Replies to what an agent is asked, by what a Question is about."""


def serve_one_team() -> None:
    """Serve one leader in a process of its own."""
    address = os.environ.get(LEADER_VARIABLE, "")
    if not address:
        raise SystemExit(
            f"ccbench: {LEADER_VARIABLE} is not set: the launcher did not hand the environment on; make it "
            "(mpirun of Open MPI: -x NAME), or start 'ccbench run' instead"
        )
    hello = messages.Hello(messages.this_place(), *rank_and_size(os.environ))
    cleanup = FileCleanup()

    def remember() -> None:
        if (
            LOCAL_VARIABLE not in os.environ
        ):  # else the leader removes what this process leaves here
            cleanup.add_shared_memory([os.getpid()])

    def lost() -> None:
        remember()
        os._exit(1)  # at once, whatever its library does

    if LOCAL_VARIABLE in os.environ:
        die_with_parent(os.getppid())  # a rank that is stopped cannot hear its connection break
    try:
        serve(address, hello, lost, remember)
    except UsageError as error:
        raise SystemExit(str(error)) from None
    finally:
        remember()
        cleanup.close()


def serve(
    address: str, hello: messages.Hello, broken: Callable[[], None], ready: Callable[[], None]
) -> None:
    """Connect to a leader, answer it, and measure as its rank until it ends the team.

    broken: called, by another thread, when the leader is gone. ready: called once the library works. Raises
    UsageError when the leader cannot be reached.
    """
    channel = Channel(connect(address, hello), broken, ANSWERS)
    start = channel.recv()
    if isinstance(start, messages.Stop):  # only asked
        return
    if start.processor >= 0:
        # Before the library is loaded, so that its threads stay on the rank's processor too.
        os.sched_setaffinity(0, {start.processor})
    try:
        endpoint = open_launched(start.backend, channel)
    except (CcbenchError, ImportError) as error:
        missing = f"{start.backend}: " if isinstance(error, ImportError) else ""
        refused = CannotStart if isinstance(error, CannotStart) else CannotRun
        channel.send(refused(f"{missing}{error}"))
        channel.recv()  # the leader says that all is over, or hangs up, which ends the process
        raise SystemExit(1) from None
    ready()
    channel.answers[messages.POSITION] = getattr(
        endpoint, "position", ANSWERS[messages.POSITION]
    )
    quota = control_group_limits(Files()).cores
    channel.send(messages.Ready(endpoint.version, tuple(allowed_cpus()), quota))
    run_rank(endpoint, channel)
    endpoint.close()


# -- an agent of a whole run --------------------------------------------------------------------------------


class LaunchedProcessAgent:
    """The agent of a run: the main thread is ranks of MPI, another listens to the hub."""

    def __init__(self, process: LaunchedProcess, hub: Connection, cleanup: FileCleanup) -> None:
        self._process = process
        self._hub = hub
        self._cleanup = cleanup
        self._lock = threading.Lock()
        self._tasks: queue.SimpleQueue[messages.Spawn | messages.Stop] = queue.SimpleQueue()
        self._children: dict[int, subprocess.Popen[str]] = {}
        self._was_rank = False
        self._idle = threading.Event()
        self._idle.set()

    def stay(self) -> int:
        """Serve until the run is over; its exit code."""
        threading.Thread(target=self._listen, name="hub", daemon=True).start()
        while isinstance(task := self._tasks.get(), messages.Spawn):
            output, code = self._be_rank(task.variables[LEADER_VARIABLE])
            self._idle.set()
            self._tell(messages.Ended(task.group, self._process.rank, code, output))
        # Launchers report an error when nobody ends the MPI of a process where one is up.
        mpi = sys.modules.get("mpi4py.MPI")
        if mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized():
            mpi.Finalize()
        self._cleanup.close()
        return task.exit_code

    def _be_rank(self, leader: str) -> tuple[str, int]:
        """Run a rank in this process; (why it could not, exit code)."""
        hello = messages.Hello(
            messages.this_place(), self._process.rank, self._process.ranks, stays=True
        )
        # What this process's MPI has put into shared memory goes with it, whoever is killed. A process that
        # the launcher does not know removes it; that one, too, is ended where the whole group or job is.
        remember = partial(self._cleanup.add_shared_memory, [os.getpid()])
        try:
            serve(leader, hello, lambda: None, remember)
        except CcbenchError as error:
            return str(error), error.exit_code
        except ConnectionError as error:  # its leader was killed
            return f"the team's leader is gone ({error.strerror})", PARTIAL
        except SystemExit:  # its library did not start, which the leader knows
            return "", 1
        return "", 0

    def _tell(self, message: object) -> None:
        with self._lock, suppress(OSError):
            self._hub.send(message)

    def _listen(self) -> None:
        """Do what the hub says; without one the run is lost."""
        over = messages.Stop(PARTIAL)
        try:
            while not isinstance(message := self._hub.recv(), messages.Stop):
                if isinstance(message, messages.Question):
                    self._tell(ANSWERS[message.about]())
                elif isinstance(message, messages.Kill):
                    self._end(message.group)
                elif not message.in_process:
                    self._start_child(message)
                elif self._was_rank:
                    reason = f"MPI comes up only once under {self._process.launcher}"
                    self._tell(messages.Ended(message.group, self._process.rank, 1, reason))
                else:
                    self._was_rank = True
                    self._idle.clear()
                    self._tasks.put(message)
            over = message
        except (EOFError, OSError):
            print(
                f"ccbench: {self._process.launcher}: the run's first process has left without a word to "
                f"process {self._process.rank}; what it says tells why",
                file=sys.stderr,
                flush=True,
            )
        except Exception as error:  # a pickle names classes, and making them may raise anything
            report_unreadable("the first process", error)
            hang_up(self._hub)  # so that the runner, too, knows that the run is lost
        for group in list(self._children):
            self._end(group)
        if not self._idle.wait(PARTING_SECONDS):
            os._exit(over.exit_code)  # it hangs in its library, which no other thread can end
        self._tasks.put(over)

    def _start_child(self, spawn: messages.Spawn) -> None:
        """Start a rank in a process of its own, whose end another thread waits for."""
        rank = self._process.rank
        numbers = {RANK_VARIABLE: str(rank), RANKS_VARIABLE: str(self._process.ranks)}
        try:
            with signals_let_in():
                child = subprocess.Popen(
                    module_command("ccbench.runner.workers", "agent"),
                    env=single_threaded({**os.environ, **spawn.variables, **numbers}),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    errors="replace",
                    start_new_session=True,
                )
        except OSError as error:
            reason = f"{sys.executable} could not be started: {error.strerror}"
            self._tell(messages.Ended(spawn.group, rank, 1, reason))
            return
        self._children[spawn.group] = child

        def wait() -> None:
            output, _ = child.communicate()
            self._tell(
                messages.Ended(spawn.group, rank, child.returncode, output[-LONGEST_OUTPUT:])
            )

        threading.Thread(target=wait, daemon=True).start()

    def _end(self, group: int) -> None:
        child = self._children.pop(group, None)
        if child is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)
