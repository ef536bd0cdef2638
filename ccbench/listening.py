"""Where ranks that a launcher started find their leader: one listening socket, opened by a key.

It is bound to loopback unless ranks may be on other hosts. Who connects must prove that it knows the key
before a single byte of it is unpickled (HMAC challenges both ways, as ``multiprocessing`` has them), and then
both sides say in plain text which ccbench they are: what other versions pickle means other things. For all of
it there are a few seconds; strangers neither get in nor keep others from coming.
"""

from __future__ import annotations

import os
import queue
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from pathlib import Path
from types import TracebackType

from ccbench import __version__

LOOPBACK = "127.0.0.1"
PROOF_SECONDS = 10
BACKLOG = 1024
MOST_STRANGERS = 256
"""Connections that may be under proof at the same time; others wait in the kernel."""


VANISHED_SECONDS = 60
"""How long the other side's host may leave unanswered what was sent to it."""

LONGEST_WORDS_BYTES = 4096
"""Of what a side says that it is."""

NAME = "ccbench"


@dataclass(frozen=True)
class Speaker:
    """What one side of a connection says that it is: the version of its ccbench, and its host."""

    version: str
    host: str

    @property
    def words(self) -> bytes:
        """As they are sent."""
        return f"{NAME} {self.version} {self.host}".encode()

    def quarrel(self, other: Speaker) -> str:
        """Why the two do not understand each other, with the cure; '' when they do."""
        if self.version == other.version:
            return ""
        return (
            f"{other.host} has ccbench {other.version}, {self.host} has {self.version}; install the same "
            "version on all hosts, and let them find that one (PATH, virtual environment)"
        )


def here() -> Speaker:
    """This side."""
    return Speaker(__version__, socket.gethostname())


def heard(words: bytes) -> Speaker:
    """Who says this; versions that were older than the custom come with a pickle at once."""
    parts = words.decode(errors="replace").split(" ")
    if len(parts) != 3 or parts[0] != NAME:
        return Speaker("of another version", "a host")
    return Speaker(parts[1], parts[2])


def other_speaker(connection: Connection) -> Speaker:
    """Say who this is and hear who the other side is; OSError or EOFError when it says nothing."""
    connection.send_bytes(here().words)
    return heard(connection.recv_bytes(LONGEST_WORDS_BYTES))


@contextmanager
def hung_up_after(connection: Connection, seconds: float) -> Iterator[None]:
    """The whole of what happens meanwhile may take so long; then the connection breaks."""
    with socket.socket(fileno=os.dup(connection.fileno())) as line:
        timer = threading.Timer(seconds, _hang_up, (line,))
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


def _hang_up(line: socket.socket) -> None:
    with suppress(OSError):  # the other side was quicker
        line.shutdown(socket.SHUT_RDWR)


class Door:
    """A listening socket and a thread for each connection that is not yet proven.

    addresses: ``address:port``, in the order in which a rank should try them. ``fileno`` is readable when
    somebody has connected; ``let_in`` then returns those that have proven themselves since. refused: why
    some who knew the key were not let in.
    """

    def __init__(self, key: bytes, several_hosts: bool = False) -> None:
        self._key = key
        self._proven: queue.SimpleQueue[Connection] = queue.SimpleQueue()
        self._places = threading.Semaphore(MOST_STRANGERS)
        self.refused: list[str] = []
        self._socket = _listening(several_hosts)
        self._socket.setblocking(False)
        port = self._socket.getsockname()[1]
        hosts = own_addresses() if several_hosts else [LOOPBACK]
        self.addresses = tuple(f"[{one}]:{port}" if ":" in one else f"{one}:{port}" for one in hosts)

    def fileno(self) -> int:
        """For ``multiprocessing.connection.wait``."""
        return self._socket.fileno()

    def let_in(self) -> list[Connection]:
        """Accept whoever knocks; the connections proven since the last call."""
        with suppress(OSError):  # nobody is there any more
            while self._places.acquire(blocking=False):
                try:
                    line, _ = self._socket.accept()
                except OSError:
                    self._places.release()
                    raise
                threading.Thread(target=self._prove, args=(line,), daemon=True).start()
        found = []
        with suppress(queue.Empty):
            while True:
                found.append(self._proven.get_nowait())
        return found

    def _prove(self, line: socket.socket) -> None:
        try:
            line.setblocking(True)
            keep_watch(line)
            connection = Connection(line.detach())
            try:
                with hung_up_after(connection, PROOF_SECONDS):
                    deliver_challenge(connection, self._key)
                    answer_challenge(connection, self._key)
                    quarrel = here().quarrel(other_speaker(connection))
            except (AuthenticationError, OSError, EOFError):
                connection.close()
                return
            if quarrel:
                self.refused.append(quarrel)
                connection.close()
            else:
                self._proven.put(connection)
        finally:
            self._places.release()

    def close(self) -> None:
        """Nobody comes in any more; who is in stays."""
        self._socket.close()

    def __enter__(self) -> Door:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def keep_watch(line: socket.socket) -> None:
    """Send at once, and break about a minute after the other side's host has vanished without a goodbye.

    While something that was sent is unanswered the kernel asks nothing, and sends it again for a quarter of
    an hour: that has a limit of its own.
    """
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    limits = {
        "TCP_KEEPIDLE": 30,
        "TCP_KEEPINTVL": 10,
        "TCP_KEEPCNT": 3,
        "TCP_USER_TIMEOUT": VANISHED_SECONDS * 1000,  # in milliseconds (tcp(7))
    }
    for name, value in limits.items():
        if hasattr(socket, name):
            line.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _listening(several_hosts: bool) -> socket.socket:
    """On every interface by IPv4 and IPv6, as far as the kernel has them; or on loopback alone."""
    if several_hosts and socket.has_dualstack_ipv6():
        with suppress(OSError):  # IPv6 is compiled in and switched off
            return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True, backlog=BACKLOG)
    return socket.create_server(("" if several_hosts else LOOPBACK, 0), backlog=BACKLOG)


def own_addresses(proc: Path = Path("/proc")) -> list[str]:
    """This host's addresses: IPv4 of every interface, then IPv6, loopback last."""
    found = []
    try:
        import fcntl

        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
            for _, name in socket.if_nameindex():
                request = struct.pack("256s", name.encode()[:15])
                with suppress(OSError):  # an interface without an address
                    answer = fcntl.ioctl(line.fileno(), _SIOCGIFADDR, request)
                    found.append(socket.inet_ntoa(answer[20:24]))
    except (ImportError, OSError):
        with suppress(OSError):
            found = socket.gethostbyname_ex(socket.gethostname())[2]
    others = [address for address in dict.fromkeys(found) if not address.startswith("127.")]
    return [*others, *(_ipv6_addresses(proc) if socket.has_dualstack_ipv6() else []), LOOPBACK]


def _ipv6_addresses(proc: Path) -> list[str]:
    """Those that other hosts can use as they stand; link-local ones mean nothing without an interface."""
    try:
        lines = [line.split() for line in (proc / "net/if_inet6").read_text().splitlines()]
    except OSError:
        return []
    return [
        socket.inet_ntop(socket.AF_INET6, bytes.fromhex(fields[0]))
        for fields in lines
        if len(fields) == 6 and int(fields[3], 16) in _IPV6_SCOPES
    ]


_IPV6_SCOPES = (0x00, 0x40)
"""Global, and site-local (net/ipv6.h)."""


_SIOCGIFADDR = 0x8915
"""linux/sockios.h."""
