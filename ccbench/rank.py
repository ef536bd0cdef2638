"""``python -m ccbench.rank BACKEND``: what each process runs that a launcher has started.

The process first connects to its team's leader and proves that it knows the team's key; only then does it
load its library, so that the leader can name it and end it whatever the library does. A second thread reads
the connection from then on. It sleeps in the kernel while there is nothing to read, so it takes no time from
what is measured; it answers when the leader asks where this rank is, even while the library hangs; and when
the connection breaks, it ends the process at once. Nothing else is needed to end ranks on other hosts.
"""

from __future__ import annotations

import os
import queue
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from typing import Any

from ccbench.backends.crew import TeamEndpoint, open_launched
from ccbench.errors import CcbenchError, UsageError
from ccbench.exchange import (
    ADDRESSES_VARIABLE,
    KEY_VARIABLE,
    LOCAL_VARIABLE,
    RANK_VARIABLES,
    Contribution,
    Gathered,
    Goodbye,
    Hello,
    Position,
    Question,
    Ready,
    Refusal,
    Welcome,
    this_place,
)
from ccbench.leftovers import Leftovers
from ccbench.listening import hang_up, here, hung_up_after, keep_watch, other_speaker
from ccbench.machine.files import Files
from ccbench.machine.host import control_group_limits
from ccbench.machine.processes import die_with_parent
from ccbench.worker import rank_main

CONNECT_SECONDS = 10.0

PROOF_SECONDS = 20
"""How long a leader may leave a rank waiting; its own limit is shorter."""


def told_by_launcher(variables: Mapping[str, str]) -> tuple[int, int]:
    """(rank, ranks) as the launcher's variables say, -1 for what they do not."""
    for rank_name, ranks_name in RANK_VARIABLES:
        rank, ranks = variables.get(rank_name, ""), variables.get(ranks_name, "")
        if rank.isdigit():
            return int(rank), int(ranks) if ranks.isdigit() else -1
    return -1, -1


class Unreachable(UsageError):
    """Nobody who leads this team answers at any of its addresses."""


class Channel:
    """Implements ``ccbench.exchange.Exchange`` and ``ccbench.worker.Line`` over the leader's connection."""

    def __init__(self, connection: Connection, broken: Callable[[], None]) -> None:
        """broken: called by the reading thread when the leader is gone."""
        self._connection = connection
        self._broken = broken
        self._lock = threading.Lock()
        self._messages: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._gathered: queue.SimpleQueue[tuple[bytes, ...]] = queue.SimpleQueue()
        self.rank = self.ranks = -1
        self.hosts: tuple[str, ...] = ()
        self.one_clock = True
        self.oversubscribed = False
        self.position: Callable[[], Position] = lambda: Position(0, 0, 0)
        threading.Thread(target=self._read, name="leader", daemon=True).start()

    def _read(self) -> None:
        """Sort what the leader says, until the connection breaks."""
        try:
            while True:
                message = self._connection.recv()
                if isinstance(message, Gathered):
                    self._gathered.put(message.payloads)
                elif isinstance(message, Question):
                    self.tell(self.position())
                else:
                    self._messages.put(message)
        except (EOFError, OSError):
            pass  # the leader is gone
        except Exception as error:  # a pickle names classes, and making them may raise anything
            tell_unreadable("its leader", error)
            hang_up(self._connection)  # so that the leader, too, knows that this rank is lost
        self._broken()

    def welcomed(self) -> Welcome:
        """Wait until all ranks have come; this rank's number and the others' hosts."""
        welcome = self._messages.get()
        assert isinstance(welcome, Welcome)
        self.rank, self.ranks = welcome.rank, welcome.ranks
        self.hosts, self.one_clock = welcome.hosts, welcome.one_clock
        here = self.hosts.count(self.hosts[self.rank])
        self.oversubscribed = welcome.oversubscribed or here > (os.cpu_count() or 1)
        return welcome

    # -- ccbench.worker.Line -------------------------------------------------------------------------------

    def recv(self) -> Any:
        """The next case with its sampling; EOFError when the team is over."""
        message = self._messages.get()
        if isinstance(message, Goodbye):
            raise EOFError
        return message

    def send(self, report: Any) -> None:
        """Hand a message on."""
        with self._lock:
            self._connection.send(report)

    # -- ccbench.exchange.Exchange -------------------------------------------------------------------------

    def all_gather(self, mine: bytes) -> list[bytes]:
        """What every rank gave, in rank order."""
        self.send(Contribution(mine))
        return list(self._gathered.get())

    def broadcast(self, mine: bytes | None, root: int) -> bytes:
        """What ``root`` gave, on every rank."""
        return self.all_gather(mine or b"")[root]

    def barrier(self) -> None:
        """Return when every rank has called it."""
        self.all_gather(b"")

    def tell(self, position: Position) -> None:
        """Tell the leader where this rank is."""
        with suppress(OSError):  # the reading thread sees the broken connection, too
            self.send(position)


def tell_unreadable(who: str, error: Exception) -> None:
    """On standard error, which the launcher hands on: why this process stops listening."""
    text = (
        f"ccbench: process {os.getpid()} on {socket.gethostname()} failed to read what {who} says "
        f"({type(error).__name__}: {error}); is the same ccbench, with the same packages, on all hosts?"
    )
    print(text, file=sys.stderr, flush=True)


def connect(variables: Mapping[str, str]) -> Connection:
    """A connection to the leader, with its key proven on both sides.

    All addresses are tried at once, and the first that leads to the leader is taken. UsageError when this
    process was started by nobody who leads a team, or its leader cannot be reached or is of another version.
    """
    addresses, key = variables.get(ADDRESSES_VARIABLE, ""), variables.get(KEY_VARIABLE, "")
    if not addresses or not key:
        raise UsageError(
            f"ccbench.rank: {ADDRESSES_VARIABLE} or {KEY_VARIABLE} is not set: the launcher did not hand "
            "the environment on; make it (mpirun of Open MPI: -x NAME), or start 'ccbench run' instead"
        )
    arrivals: queue.SimpleQueue[Connection | None] = queue.SimpleQueue()
    left = addresses.split()
    for address in left:
        threading.Thread(target=_try, args=(address, bytes.fromhex(key), arrivals), daemon=True).start()
    while left:
        left.pop()
        connection = arrivals.get()
        if connection is None:
            continue
        try:
            with hung_up_after(connection, PROOF_SECONDS):
                quarrel = here().quarrel(other_speaker(connection))
        except (OSError, EOFError):
            connection.close()
            continue
        threading.Thread(target=_close_all, args=(arrivals, len(left)), daemon=True).start()
        if quarrel:
            connection.close()
            raise UsageError(f"ccbench.rank: {quarrel}")
        return connection
    raise Unreachable(
        f"ccbench.rank: {socket.gethostname()} reaches the team's leader at none of {addresses}; "
        "let TCP connections between these hosts through"
    )


def _try(address: str, key: bytes, arrivals: queue.SimpleQueue[Connection | None]) -> None:
    """Put there a connection on which both sides have proven the key, or None."""
    found = None
    try:
        with suppress(OSError, EOFError, ValueError, AuthenticationError):
            found = _proven(address, key)
    finally:
        arrivals.put(found)


def _proven(address: str, key: bytes) -> Connection:
    host, _, port = address.rpartition(":")
    with socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS) as line:
        line.settimeout(None)
        keep_watch(line)
        connection = Connection(line.detach())
    try:
        # An address of the leader's may be somebody else's here, who takes connections and says nothing.
        with hung_up_after(connection, PROOF_SECONDS):
            answer_challenge(connection, key)
            deliver_challenge(connection, key)
    except BaseException:
        connection.close()
        raise
    return connection


def _close_all(arrivals: queue.SimpleQueue[Connection | None], count: int) -> None:
    """What else leads to the leader is not needed; it has not said a word yet, so nobody counts it."""
    for _ in range(count):
        connection = arrivals.get()
        if connection is not None:
            connection.close()


def _opened(backend: str, channel: Channel) -> TeamEndpoint:
    try:
        return open_launched(backend, channel)
    except CcbenchError as error:
        reason = str(error)
    except ImportError as error:
        reason = f"{backend}: {error}"
    channel.send(Refusal(reason))
    with suppress(EOFError):
        channel.recv()  # the leader says goodbye, or hangs up, which ends the process
    raise SystemExit(1)


def leave() -> None:
    """End this process at once, whatever its library does."""
    os._exit(1)


def nothing() -> None:
    """What most processes do once their library works."""


def serve(
    backend: str,
    variables: Mapping[str, str],
    broken: Callable[[], None] = leave,
    ready: Callable[[], None] = nothing,
    stays: bool = False,
) -> None:
    """Join the team, measure until the leader ends it, leave the library in peace.

    variables: where the leader is, and this process's number. broken: called, by another thread, when the
    leader is gone. ready: called once the library works. stays: this process goes on without the team.
    Raises UsageError when the leader cannot be reached.
    """
    channel = Channel(connect(variables), broken)
    rank, ranks = told_by_launcher(variables)
    channel.send(Hello(this_place(), rank, ranks, stays=stays))
    welcome = channel.welcomed()
    if welcome.processor >= 0:
        # Before the library is loaded, so that its threads stay on the rank's processor too.
        os.sched_setaffinity(0, {welcome.processor})
    endpoint = _opened(backend, channel)
    ready()
    channel.position = getattr(endpoint, "position", channel.position)
    processors = tuple(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else ()
    quota = control_group_limits(Files()).cores
    channel.send(Ready(str(getattr(endpoint, "version", "")), processors, quota))
    rank_main(endpoint, channel)
    close = getattr(endpoint, "close", None)
    if close:
        close()


def main(arguments: list[str]) -> None:
    """Serve in a process of its own."""
    (backend,) = arguments
    try:
        if LOCAL_VARIABLE in os.environ:
            die_with_parent(os.getppid())  # a rank that is stopped cannot hear its connection break
            serve(backend, os.environ)
        else:
            _serve_and_sweep(backend)
    except UsageError as error:
        raise SystemExit(str(error)) from None


def _serve_and_sweep(backend: str) -> None:
    """The same where the leader may be on another host: it cannot remove what this process leaves here."""
    leftovers = Leftovers()
    remember = partial(leftovers.remember, [os.getpid()])

    def lost() -> None:
        remember()
        leave()

    try:
        serve(backend, os.environ, broken=lost, ready=remember)
    finally:
        remember()
        leftovers.close()


if __name__ == "__main__":
    main(sys.argv[1:])
