"""Sessions: connections whose two sides have proven that they know one key, as then does every message.

The listener sends a nonce; the peer answers with its own and a proof, the listener with its proof. A proof is
HMAC-SHA256, under the key, over who gives it, both nonces and the address that the peer has dialled. Where
that is not the one at which the connection came in, somebody between relays it, and it is refused. Both sides
derive a key of the session in the same way, and every message carries a MAC under it over who sends it, its
number and its bytes. So whoever relays a connection can read it and break it, but add or change nothing.
Nothing is unpickled before its MAC is verified. There is no encryption.
"""

from __future__ import annotations

import hmac
import ipaddress
import os
import pickle
import secrets
import socket
from contextlib import suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Buffer

LISTENER, PEER = b"ccbench control 1: listener", b"ccbench control 1: peer"
"""The two sides, as their proofs and messages name them; of equal protocols only."""

SESSION = b"ccbench control 1: session"

NONCE_BYTES = MAC_BYTES = 32
ADDRESS_BYTES = 64

LAST_NUMBER = 1 << 63
"""Number of the message that ends a session, whatever was sent before."""


class Redirected(AuthenticationError):
    """A peer that knows the key has dialled another address than the one at which it came in."""


class Session(Connection):
    """A connection with a session's key; one thread at a time may send, and one receive.

    Its methods raise as a connection's do, and ConnectionAbortedError where a message is not what the other
    side sent; the connection is broken then.
    """

    def __init__(self, handle: int, key: bytes, role: bytes) -> None:
        """role: of this side, LISTENER or PEER."""
        super().__init__(handle)
        self._key = key
        self._own_mac, self._others_mac = (
            hmac.new(key, side, "sha256")
            for side in (role, PEER if role == LISTENER else LISTENER)
        )
        self._sent = self._received = 0

    def send_bytes(self, buf: Buffer, offset: int = 0, size: int | None = None) -> None:
        """See Connection."""
        payload = memoryview(buf)[offset : None if size is None else offset + size]
        mac = _continued(self._own_mac, self._sent, payload)
        self._sent += 1
        super().send_bytes(b"".join((mac, payload)))

    def _verified(self, maxlength: int | None = None) -> memoryview:
        """Return the next message, which only the other side can have sent."""
        frame = super().recv_bytes(None if maxlength is None else maxlength + MAC_BYTES)
        mac, payload = frame[:MAC_BYTES], memoryview(frame)[MAC_BYTES:]
        for number in (self._received, LAST_NUMBER):
            if hmac.compare_digest(mac, _continued(self._others_mac, number, payload)):
                self._received = number + 1
                return payload
        hang_up(self)
        raise ConnectionAbortedError("a message was changed on its way")

    def recv_bytes(self, maxlength: int | None = None) -> bytes:
        """See Connection."""
        return bytes(self._verified(maxlength))

    def send(self, obj: Any) -> None:
        """See Connection."""
        self.send_bytes(pickle.dumps(obj))

    def recv(self) -> Any:
        """See Connection."""
        return pickle.loads(self._verified())

    def hand_over(self) -> str:
        """Return what ``received_over`` makes this session of in a process that inherits the open file.

        That process then sends and receives. This one may still end the session, by one message.
        """
        text = f"{self.fileno()}:{self._sent}:{self._received}:{self._key.hex()}"
        self._sent = LAST_NUMBER
        return text


def _continued(sender: hmac.HMAC, number: int, payload: Buffer) -> bytes:
    """Return the MAC of a sender's message."""
    mac = sender.copy()
    mac.update(number.to_bytes(8, "big"))
    mac.update(payload)
    return mac.digest()


def received_over(text: str) -> Connection:
    """Return the listener's side of a session that was handed over, or a pipe, which is its number alone."""
    file, *rest = text.split(":")
    if not rest:
        return Connection(int(file))
    sent, received, key = rest
    session = Session(int(file), bytes.fromhex(key), LISTENER)
    session._sent, session._received = int(sent), int(received)
    return session


# -- proof ------------------------------------------------------------------------------------------------


def endpoint(name: tuple[Any, ...]) -> str:
    """Return a socket's name as both sides write it: '10.0.0.7 port 4000'."""
    address = ipaddress.ip_address(name[0])
    # A socket for both families names IPv4 addresses as ::ffff:10.0.0.7.
    return f"{getattr(address, 'ipv4_mapped', None) or address} port {name[1]}"


def _derived(key: bytes, purpose: bytes, nonces: bytes, dialled: bytes) -> bytes:
    return hmac.digest(key, b"\0".join((purpose, nonces, dialled)), "sha256")


def session_with_peer(connection: Connection, key: bytes, address: str) -> Session:
    """Return the session with whoever has connected; ``connection`` is not used any more.

    address: the endpoint at which it came in. Raises AuthenticationError when the peer does not know the key,
    Redirected when it has dialled another address, EOFError and OSError when it hangs up or says too much.
    """
    nonce = secrets.token_bytes(NONCE_BYTES)
    connection.send_bytes(nonce)
    answer = connection.recv_bytes(NONCE_BYTES + MAC_BYTES + ADDRESS_BYTES)
    nonces, proof = nonce + answer[:NONCE_BYTES], answer[NONCE_BYTES : NONCE_BYTES + MAC_BYTES]
    dialled = answer[NONCE_BYTES + MAC_BYTES :]
    if not hmac.compare_digest(proof, _derived(key, PEER, nonces, dialled)):
        raise AuthenticationError("the peer does not know the key")
    if dialled != address.encode():
        raise Redirected(f"dialled {dialled.decode()} but came in at {address}")
    connection.send_bytes(_derived(key, LISTENER, nonces, dialled))
    return Session(
        os.dup(connection.fileno()), _derived(key, SESSION, nonces, dialled), LISTENER
    )


def session_with_listener(connection: Connection, key: bytes, address: str) -> Session:
    """Return the session with the listener; ``connection`` is not used any more.

    address: the endpoint that was dialled. Raises AuthenticationError when nobody there knows the key,
    EOFError and OSError when they hang up or say too much.
    """
    nonce, dialled = secrets.token_bytes(NONCE_BYTES), address.encode()
    nonces = connection.recv_bytes(NONCE_BYTES) + nonce
    connection.send_bytes(nonce + _derived(key, PEER, nonces, dialled) + dialled)
    proof = connection.recv_bytes(MAC_BYTES)
    if not hmac.compare_digest(proof, _derived(key, LISTENER, nonces, dialled)):
        raise AuthenticationError("does not know the key")
    return Session(os.dup(connection.fileno()), _derived(key, SESSION, nonces, dialled), PEER)


def hang_up(connection: Connection) -> None:
    """Break a connection that other threads may be using; nobody's reading or writing blocks any more."""
    with suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as line:
        line.shutdown(socket.SHUT_RDWR)
