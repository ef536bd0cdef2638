"""Connections between processes that did not fork each other: listening, connecting, and who may.

A listener is bound to loopback unless peers may be on other hosts. Whoever connects must prove that it knows
the listener's key before a single byte of it is unpickled (HMAC challenges both ways, as ``multiprocessing``
has them). Then both sides say in plain text which ccbench they are, because pickles of another version mean
other things, and the peer says who it is (``Hello``). For all of it there are a few seconds, in a thread of
its own: an unauthenticated peer neither gets in nor keeps others out.
"""

from __future__ import annotations

import os
import queue
import re
import secrets
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge, wait
from typing import Any, NamedTuple

from ccbench import __version__
from ccbench.errors import UsageError
from ccbench.machine.files import Files
from ccbench.runner.workers.messages import AllGather, Hello, Question, Start, Stop

FIRST_PROCESS = "the run's first process"
"""Name of a hub's listener in messages."""

LOOPBACK = "127.0.0.1"
BACKLOG = 1024
KEY_BYTES = 32
MOST_UNAUTHENTICATED = 256
"""Connections that may be under proof at the same time; others wait in the kernel."""

CONNECT_SECONDS = 10.0
PROOF_SECONDS = 10
"""Time that a peer may take to authenticate itself."""

LISTENER_SECONDS = 20
"""Time for which a listener may leave a peer waiting; its own limit is shorter."""

VANISHED_SECONDS = 60
"""Time for which the other side's host may leave unanswered what was sent to it."""

GREETING = "ccbench"
GREETING_BYTES = 4096


class Peer(NamedTuple):
    """A process that has connected and proven itself."""

    hello: Hello
    connection: Connection


def greeting() -> bytes:
    """Return what each side says of itself in plain text."""
    return f"{GREETING} {__version__} {socket.gethostname()}".encode()


def version_mismatch(theirs: bytes) -> str:
    """Return why the two sides do not understand each other, with the cure; '' when they do."""
    words = theirs.decode(errors="replace").split(" ")
    name, version, host = words if len(words) == 3 else ("", "", "")
    if name != GREETING:
        version, host = "of another version", "a host"
    if version == __version__:
        return ""
    return (
        f"{host} has ccbench {version}, {socket.gethostname()} has {__version__}; install the same version "
        "on all hosts, and let them find that one (PATH, virtual environment)"
    )


class Listener:
    """A listening socket with a key of its own, and a thread for each peer that is under proof.

    address: where to connect and with which key, one line of text. refused: why some who knew the key were
    not let in.
    """

    def __init__(self, several_hosts: bool = False) -> None:
        self._key = secrets.token_bytes(KEY_BYTES)
        self._proven: queue.SimpleQueue[Peer] = queue.SimpleQueue()
        self._places = threading.Semaphore(MOST_UNAUTHENTICATED)
        self.refused: list[str] = []
        made = None
        if several_hosts and socket.has_dualstack_ipv6():
            with suppress(OSError):  # IPv6 is compiled in and switched off
                made = socket.create_server(
                    ("", 0), family=socket.AF_INET6, dualstack_ipv6=True, backlog=BACKLOG
                )
        self._socket = made or socket.create_server(("" if several_hosts else LOOPBACK, 0), backlog=BACKLOG)
        self._socket.setblocking(False)
        port = self._socket.getsockname()[1]
        hosts = own_addresses() if several_hosts else [LOOPBACK]
        self.addresses = tuple(f"[{one}]:{port}" if ":" in one else f"{one}:{port}" for one in hosts)
        self.address = f"{' '.join(self.addresses)}|{self._key.hex()}"

    def peers(self, seconds: float, runner: Connection | None = None) -> list[Peer]:
        """Return those that have proven themselves by now, or wait so long for some to begin.

        Raises EOFError when ``runner``, which says nothing meanwhile, hangs up.
        """
        ready = wait([self._socket, *([runner] if runner else [])], seconds)
        if runner in ready:
            raise EOFError
        while self._socket in ready and self._places.acquire(blocking=False):
            try:
                line, _ = self._socket.accept()
            except OSError:  # nobody is there any more
                self._places.release()
                break
            threading.Thread(target=self._prove, args=(line,), daemon=True).start()
        return [self._proven.get() for _ in range(self._proven.qsize())]

    def _prove(self, line: socket.socket) -> None:
        line.setblocking(True)
        keep_alive(line)
        connection = Connection(line.detach())
        try:
            with hung_up_after(connection, PROOF_SECONDS):
                deliver_challenge(connection, self._key)
                answer_challenge(connection, self._key)
                # Versions before anything is unpickled, which another version's classes may not survive.
                connection.send_bytes(greeting())
                mismatch = version_mismatch(connection.recv_bytes(GREETING_BYTES))
                if mismatch:
                    self.refused.append(mismatch)
                    raise EOFError
                self._proven.put(Peer(connection.recv(), connection))
        except Exception:  # a wrong key, a closed line, and whatever making a pickled value may raise
            connection.close()
        finally:
            self._places.release()

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *_: object) -> None:
        """Let nobody in any more; who is in stays."""
        self._socket.close()


# -- connecting -------------------------------------------------------------------------------------------


class Unreachable(UsageError):
    """Nobody who knows the key answers at any of the addresses."""


def connect(address: str, hello: Hello, whom: str = "the team's leader") -> Connection:
    """Connect to a listener, with its key proven on both sides.

    All addresses are tried at once, and the first that leads to the listener is taken. whom: what messages
    call it. Raises Unreachable when no address leads to it, UsageError when it is of another version.
    """
    addresses, _, key = address.rpartition("|")
    arrivals: queue.SimpleQueue[tuple[Connection, str] | None] = queue.SimpleQueue()
    first = threading.Lock()

    def attempt(place: str) -> None:
        """Put there the connection and why versions differ; None where the address leads nowhere."""
        connection: Connection | None = None
        found: tuple[Connection, str] | None = None
        try:
            host, _, port = place.rpartition(":")
            line = socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS)
            line.settimeout(None)
            keep_alive(line)
            connection = Connection(line.detach())
            # An address of the leader's may be somebody else's here, who takes connections and says nothing.
            with hung_up_after(connection, LISTENER_SECONDS):
                answer_challenge(connection, bytes.fromhex(key))
                deliver_challenge(connection, bytes.fromhex(key))
                # Whatever else leads to the listener closes before it greets, so nobody counts it.
                if first.acquire(blocking=False):
                    connection.send_bytes(greeting())
                    mismatch = version_mismatch(connection.recv_bytes(GREETING_BYTES))
                    if not mismatch:
                        connection.send(hello)
                    found = connection, mismatch
        except (OSError, EOFError, ValueError, AuthenticationError):
            pass
        finally:
            if connection is not None and (found is None or found[1]):
                connection.close()
            arrivals.put(found)

    for one in addresses.split():
        threading.Thread(target=attempt, args=(one,), daemon=True).start()
    for _ in addresses.split():
        arrived = arrivals.get()
        if arrived is not None:
            connection, mismatch = arrived
            if mismatch:
                raise UsageError(f"ccbench: {mismatch}")
            return connection
    raise Unreachable(
        f"ccbench: {socket.gethostname()} reaches {whom} at none of {addresses}; "
        "let TCP connections between these hosts through"
    )


# -- a rank's side ----------------------------------------------------------------------------------------


class Channel:
    """Implements ``ccbench.backends.base.ControlChannel`` over the connection to a leader.

    A second thread reads the connection. It sleeps in the kernel while there is nothing to read, so it takes
    no time from what is measured; it answers questions even while the rank's library hangs (``answers``), and
    calls ``broken`` when the leader is gone.
    """

    def __init__(
        self,
        connection: Connection,
        broken: Callable[[], None],
        answers: Mapping[str, Callable[[], object]],
    ) -> None:
        self._connection = connection
        self._broken = broken
        self.answers = dict(answers)
        self._lock = threading.Lock()
        self._messages: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._gathered: queue.SimpleQueue[tuple[bytes, ...]] = queue.SimpleQueue()
        self.rank = self.ranks = -1
        self.hosts: tuple[str, ...] = ()
        self.one_clock = True
        self.oversubscribed = False
        threading.Thread(target=self._read, name="leader", daemon=True).start()

    def _read(self) -> None:
        """Sort what the leader says, until the connection breaks."""
        try:
            while True:
                message = self._connection.recv()
                if isinstance(message, AllGather):
                    self._gathered.put(message.payloads)
                elif isinstance(message, Question):
                    self.tell(self.answers[message.about]())
                else:
                    self._messages.put(message)
        except (EOFError, OSError):
            pass  # the leader is gone
        except Exception as error:  # a pickle names classes, and making them may raise anything
            report_unreadable("its leader", error)
            hang_up(self._connection)  # so that the leader, too, knows that this rank is lost
        self._messages.put(Stop())
        self._broken()

    def recv(self) -> Any:
        """Return the leader's next message; Stop where it is gone."""
        message = self._messages.get()
        if isinstance(message, Start):
            self.rank, self.ranks = message.rank, message.ranks
            self.hosts, self.one_clock = message.hosts, message.one_clock
            here = self.hosts.count(self.hosts[self.rank])
            self.oversubscribed = message.oversubscribed or here > (os.cpu_count() or 1)
        return message

    def send(self, message: Any) -> None:
        """Send the leader a message."""
        with self._lock:
            self._connection.send(message)

    def all_gather(self, mine: bytes) -> list[bytes]:
        """Return what every rank gave, in rank order."""
        self.send(AllGather((mine,)))
        return list(self._gathered.get())

    def broadcast(self, mine: bytes | None, root: int) -> bytes:
        """Return what ``root`` gave, on every rank."""
        return self.all_gather(mine or b"")[root]

    def barrier(self) -> None:
        """Return when every rank has called it."""
        self.all_gather(b"")

    def tell(self, message: object) -> None:
        """Send, where the leader may be gone: the reading thread sees that, too."""
        with suppress(OSError):
            self.send(message)


def report_unreadable(who: str, error: Exception) -> None:
    """Say on standard error, which the launcher hands on, why this process stops listening."""
    text = (
        f"ccbench: process {os.getpid()} on {socket.gethostname()} failed to read what {who} says "
        f"({type(error).__name__}: {error}); is the same ccbench, with the same packages, on all hosts?"
    )
    print(text, file=sys.stderr, flush=True)


def tell_all(connections: Iterable[Connection], message: object) -> None:
    """Send everybody a message; who is gone shows when it is listened to."""
    for connection in connections:
        with suppress(OSError):
            connection.send(message)


# -- sockets ----------------------------------------------------------------------------------------------


@contextmanager
def hung_up_after(connection: Connection, seconds: float) -> Iterator[None]:
    """Break the connection where the whole of what happens meanwhile takes longer."""
    timer = threading.Timer(seconds, hang_up, (connection,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


def hang_up(connection: Connection) -> None:
    """Break a connection that other threads may be using; nobody's reading or writing blocks any more."""
    with suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as line:
        line.shutdown(socket.SHUT_RDWR)


def keep_alive(line: socket.socket) -> None:
    """Send at once, and break about a minute after the other side's host has vanished without a goodbye."""
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    limits = {
        "TCP_KEEPIDLE": 30,
        "TCP_KEEPINTVL": 10,
        "TCP_KEEPCNT": 3,
        # While something that was sent is unanswered the kernel asks nothing, and sends it again for a
        # quarter of an hour: that has a limit of its own, in milliseconds (tcp(7)).
        "TCP_USER_TIMEOUT": VANISHED_SECONDS * 1000,
    }
    for name, value in limits.items():
        if hasattr(socket, name):
            line.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def own_addresses(files: Files | None = None) -> list[str]:
    """Return this host's addresses: IPv4 of every interface, then IPv6, loopback last."""
    files = files or Files()
    # The kernel's table of routes (Linux, net/ipv4/fib_trie.c) names every address that is its own.
    found = re.findall(r"\|-- (\S+)\n +/32 host LOCAL", files.text("/proc/net/fib_trie") or "")
    if not found:
        with suppress(OSError):
            found = socket.gethostbyname_ex(socket.gethostname())[2]
    addresses = [address for address in dict.fromkeys(found) if not address.startswith("127.")]
    for line in (files.text("/proc/net/if_inet6") or "").splitlines() if socket.has_dualstack_ipv6() else ():
        fields = line.split()
        # Global and site-local scopes (net/ipv6.h); a link-local address means nothing without an interface.
        if len(fields) == 6 and int(fields[3], 16) in (0x00, 0x40):
            addresses.append(socket.inet_ntop(socket.AF_INET6, bytes.fromhex(fields[0])))
    return [*addresses, LOOPBACK]
