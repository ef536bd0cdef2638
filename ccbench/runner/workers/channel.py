"""Connections between processes that did not fork each other: listening, connecting, and who may.

A listener is bound to loopback unless peers may be on other hosts. Whoever connects must prove that it knows
the listener's key (``ccbench.runner.workers.session``). Then both sides say in plain text which ccbench they
are, because pickles of another version mean other things, and the peer says who it is (``Hello``). For all
of it there are a few seconds, in a thread of its own. When all places for those under proof are taken, the
host that holds most of them loses its oldest: an unauthenticated peer neither gets in nor keeps others out.
A peer that has lost its place so tries again.
"""

from __future__ import annotations

import os
import queue
import re
import secrets
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from ipaddress import IPv4Address, IPv4Network, ip_address
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

from ccbench.errors import UsageError
from ccbench.machine.files import Files
from ccbench.runner.workers.messages import (
    AllGather,
    Hello,
    Question,
    Start,
    Stop,
    hello_of,
    this_network,
)
from ccbench.runner.workers.session import (
    Redirected,
    Session,
    endpoint,
    hang_up,
    session_with_listener,
    session_with_peer,
)
from ccbench.units import plural
from ccbench.version import __version__

FIRST_PROCESS = "the run's first process"
"""Name of a hub's listener in messages."""

NET = "/sys/class/net"
LOOPBACK = "127.0.0.1"
BACKLOG = 1024
KEY_BYTES = 32
MOST_UNAUTHENTICATED = 256
"""Places: connections that may be under proof at the same time."""

CONNECT_SECONDS = 10.0
TRY_SECONDS = 60.0
"""Time for which a peer tries again, so that what it says comes before the start's own limit."""

PAUSE_SECONDS = 0.2
"""Time between two tries."""

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
    not let in. turned_away: how many others were not, by what they did.
    """

    def __init__(self, several_hosts: bool = False) -> None:
        self._key = secrets.token_bytes(KEY_BYTES)
        self._proven: queue.SimpleQueue[Peer] = queue.SimpleQueue()
        # Who is under proof, longest first, and from which host.
        self._under_proof: dict[Connection, str] = {}
        self._lock = threading.Lock()
        self.refused: list[str] = []
        self.turned_away: Counter[str] = Counter()
        made = None
        if several_hosts and socket.has_dualstack_ipv6():
            with suppress(OSError):  # IPv6 is compiled in and switched off
                made = socket.create_server(
                    ("", 0), family=socket.AF_INET6, dualstack_ipv6=True, backlog=BACKLOG
                )
        self._socket = made or socket.create_server(
            ("" if several_hosts else LOOPBACK, 0), backlog=BACKLOG
        )
        self._socket.setblocking(False)
        port = self._socket.getsockname()[1]
        hosts = [*(own_addresses() if several_hosts else ()), LOOPBACK]
        self.addresses = tuple(
            f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host in hosts
        )
        # On another host, whoever likes may listen at the same port of its loopback.
        self.address = f"{' '.join(self.addresses)}@{this_network()}|{self._key.hex()}"

    def peers(self, seconds: float, runner: Connection | None = None) -> list[Peer]:
        """Return those that have proven themselves by now, or wait so long for some to begin.

        Raises EOFError when ``runner``, which says nothing meanwhile, hangs up.
        """
        ready = wait([self._socket, *([runner] if runner else [])], seconds)
        if runner in ready:
            raise EOFError
        for _ in range(MOST_UNAUTHENTICATED if self._socket in ready else 0):
            try:
                line, origin = self._socket.accept()
                line.setblocking(True)
                keep_alive(line)
                arrived = endpoint(line.getsockname())
            except OSError:  # nobody is there any more
                break
            connection = Connection(line.detach())
            with self._lock:
                if len(self._under_proof) >= MOST_UNAUTHENTICATED:
                    ((crowd, _),) = Counter(self._under_proof.values()).most_common(1)
                    longest = next(
                        each for each, host in self._under_proof.items() if host == crowd
                    )
                    del self._under_proof[longest]
                    hang_up(longest)
                self._under_proof[connection] = origin[0]
            threading.Thread(
                target=self._prove, args=(connection, arrived), daemon=True
            ).start()
        return [self._proven.get() for _ in range(self._proven.qsize())]

    def _prove(self, connection: Connection, arrived: str) -> None:
        """Let a peer in, or count it. arrived: the endpoint at which its connection came in."""
        stranger = "did not prove in time to know the key"
        session = peer = None
        try:
            with hung_up_after(connection, PROOF_SECONDS):
                session = session_with_peer(connection, self._key, arrived)
                stranger = ""
                with self._lock:
                    if self._under_proof.pop(connection, None) is None:
                        raise EOFError  # hung up on for its place
                # Versions before anything is unpickled, which another version's classes may not survive.
                session.send_bytes(greeting())
                mismatch = version_mismatch(session.recv_bytes(GREETING_BYTES))
                if mismatch:
                    self.refused.append(mismatch)
                    raise EOFError
                peer = Peer(hello_of(session.recv_bytes(GREETING_BYTES)), session)
        except Redirected as error:
            stranger = str(error)
        except Exception:  # a wrong key, a closed line, no JSON
            pass
        with self._lock:
            self._under_proof.pop(connection, None)
            connection.close()
            self.turned_away[stranger] += bool(stranger)
        if peer:
            self._proven.put(peer)
        elif session:
            session.close()

    def strangers(self) -> str:
        """Say how many were turned away that are no part of the run, and why; '' where nobody was."""
        with self._lock:
            counts = [
                f"{plural(count, 'connection')} that {why}"
                for why, count in self.turned_away.items()
                if why
            ]
        return f"turned away: {', '.join(counts)}" if counts else ""

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *_: object) -> None:
        """Stop accepting connections; keep those that exist."""
        self._socket.close()


# -- connecting -------------------------------------------------------------------------------------------


class Unreachable(UsageError):
    """Raised where no process that knows the key answers at any of the addresses."""


Outcome = Session | UsageError | str
"""Result of an address: the way to the listener, that its version differs, or why there is none."""

PASSING = (
    ConnectionAbortedError,
    ConnectionResetError,
    BrokenPipeError,
    TimeoutError,
    EOFError,
)
"""Errors where somebody is there, perhaps beset by strangers."""


def connect(address: str, hello: Hello, whom: str = "the team's leader") -> Session:
    """Connect to a listener, with its key proven on both sides.

    All addresses are tried at once, and the first that leads to the listener is taken. Where somebody hangs
    up or does not answer, it is tried again. whom: what messages call it. Raises Unreachable when no address
    leads to it, UsageError when it is of another version.
    """
    places, _, key = address.rpartition("|")
    outcomes: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
    failures: list[str] = []
    first = threading.Lock()
    deadline = time.monotonic() + TRY_SECONDS

    def attempt(place: str) -> None:
        """Put there the session, that versions differ, or why the address leads nowhere."""
        outcome: Outcome | None = None
        while outcome is None:
            try:
                outcome = _session_at(place, bytes.fromhex(key), hello, first)
            except UsageError as error:  # noqa: PERF203  # the next try may end otherwise
                outcome = error
            except (OSError, EOFError, ValueError, AuthenticationError) as error:
                may_pass = isinstance(error, PASSING) and not first.locked()
                if may_pass and time.monotonic() < deadline:
                    time.sleep(PAUSE_SECONDS)
                else:
                    outcome = f"{place} ({error.args[-1] if error.args else 'hung up'})"
        outcomes.put(outcome)

    network = this_network()
    dialled = [
        place
        for place, _, only in (text.partition("@") for text in places.split())
        if only in ("", network)
    ]
    for place in dialled:
        threading.Thread(target=attempt, args=(place,), daemon=True).start()
    for _ in dialled:
        outcome = outcomes.get()
        if isinstance(outcome, Session):
            return outcome
        if isinstance(outcome, UsageError):
            raise outcome
        failures.append(outcome)
    tried = ", ".join(failures) or "its addresses: other hosts have no way to 127.0.0.1"
    raise Unreachable(
        f"ccbench: {socket.gethostname()} reaches {whom} at none of {tried}; "
        "let TCP connections between these hosts through"
    )


def _session_at(place: str, key: bytes, hello: Hello, first: threading.Lock) -> Session:
    """Return the session with the listener at one address.

    first: held by whoever has come to the listener first. Raises EOFError where another has, or somebody
    hangs up, UsageError when versions differ, and what sockets and proofs raise.
    """
    host, _, port = place.rpartition(":")
    line = socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS)
    line.settimeout(None)
    keep_alive(line)
    dialled = endpoint(line.getpeername())
    connection = Connection(line.detach())
    # An address of the leader's may be somebody else's here, who takes connections and says nothing.
    with connection, hung_up_after(connection, LISTENER_SECONDS):
        session = session_with_listener(connection, key, dialled)
        # Whatever else leads to the listener closes before it greets, so nobody counts it.
        if not first.acquire(blocking=False):
            session.close()
            raise EOFError
        try:
            session.send_bytes(greeting())
            mismatch = version_mismatch(session.recv_bytes(GREETING_BYTES))
            if mismatch:
                raise UsageError(f"ccbench: {mismatch}")
            session.send_bytes(hello.as_json())
        except Exception:
            first.release()
            session.close()
            raise
        return session


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
    """Return the addresses by which other hosts may reach this one: IPv4 of every interface, then IPv6.

    Loopback is none, nor are addresses of bridges that lead to containers or virtual machines of this host
    alone (docker0, virbr0), unless there are no others: other hosts have bridges with the same addresses.
    """
    files = files or Files()
    # The kernel's table of routes (Linux, net/ipv4/fib_trie.c) names every address that is its own.
    own = re.findall(r"\|-- (\S+)\n +/32 host LOCAL", files.text("/proc/net/fib_trie") or "")
    if not own:
        with suppress(OSError):
            own = socket.gethostbyname_ex(socket.gethostname())[2]
    inside, networks = inner_bridges(files)
    addresses = [address for address in dict.fromkeys(own) if not address.startswith("127.")]
    bridged = {
        address
        for address in addresses
        if any(ip_address(address) in network for network in networks)
    }
    for line in (
        (files.text("/proc/net/if_inet6") or "").splitlines()
        if socket.has_dualstack_ipv6()
        else ()
    ):
        fields = line.split()
        # Global and site-local scopes (net/ipv6.h); a link-local address means nothing without an interface.
        if len(fields) == 6 and int(fields[3], 16) in (0x00, 0x40):
            addresses.append(socket.inet_ntop(socket.AF_INET6, bytes.fromhex(fields[0])))
            bridged |= {addresses[-1]} if fields[5] in inside else set()
    return [address for address in addresses if address not in bridged] or addresses


def inner_bridges(files: Files) -> tuple[set[str], list[IPv4Network]]:
    """Return the bridges of which no port is a card or stands on one (a bond, a VLAN), and their networks."""

    def leads_out(port: str) -> bool:
        return files.exists(f"{NET}/{port}/device") or bool(
            files.matching(f"{NET}/{port}", "lower_*")
        )

    names = {path.split("/")[-2] for path in files.matching(NET, "*/bridge")}
    for port in files.matching(NET, "*/brif/*"):
        if leads_out(port.split("/")[-1]):
            names.discard(port.split("/")[-3])
    networks = []
    for row in (files.text("/proc/net/route") or "").splitlines()[1:]:
        name, network, gateway, *_, mask, _, _, _ = row.split()
        if name in names and not int(gateway, 16) and int(mask, 16):
            # Numbers are in the network's order of bytes, printed as one of the processor's (proc_net(5)).
            first, bits = (int(word, 16).to_bytes(4, sys.byteorder) for word in (network, mask))
            networks.append(IPv4Network((first, str(IPv4Address(bits)))))
    return names, networks
