"""Messages of a session come from its other side, whole, once and in order, or end it."""

from __future__ import annotations

import os
import socket
from multiprocessing.connection import Connection

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.runner.workers.session import LISTENER, PEER, Session

KEY = bytes(range(32))


def ends() -> tuple[Session, Session]:
    """(the listener's side, the peer's side)."""
    ours, theirs = socket.socketpair()
    return Session(ours.detach(), KEY, LISTENER), Session(theirs.detach(), KEY, PEER)


def frame_of(session: Session, receiving: Session, payload: bytes) -> bytes:
    """What travels when ``session`` sends ``payload``; the other side does not get it."""
    session.send_bytes(payload)
    with Connection(os.dup(receiving.fileno())) as wire:
        return wire.recv_bytes()


def deliver(session: Session, frame: bytes) -> None:
    with Connection(os.dup(session.fileno())) as wire:
        wire.send_bytes(frame)


@given(st.lists(st.binary(max_size=100_000), max_size=4), st.integers(0, 5))
def test_messages_come_as_they_were_sent(payloads: list[bytes], offset: int) -> None:
    listener, peer = ends()
    with listener, peer:
        for payload in payloads:
            peer.send_bytes(payload)
            assert listener.recv_bytes() == payload
            listener.send({"payload": payload})
            assert peer.recv() == {"payload": payload}
            listener.send_bytes(
                payload, min(offset, len(payload)), max(0, len(payload) - offset)
            )
            assert peer.recv_bytes(len(payload)) == payload[offset:]


def flipped(frame: bytes, bit: int) -> bytes:
    changed = bytearray(frame)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


@given(st.binary(min_size=1, max_size=200), st.data())
def test_any_changed_bit_ends_the_session(payload: bytes, data: st.DataObject) -> None:
    listener, peer = ends()
    with listener, peer:
        frame = frame_of(peer, listener, payload)
        deliver(peer, flipped(frame, data.draw(st.integers(0, 8 * len(frame) - 1))))
        with pytest.raises(ConnectionAbortedError, match="changed on its way"):
            listener.recv_bytes()
        with pytest.raises(EOFError):
            peer.recv_bytes()


class _Trap:
    """Its pickle makes a file."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (self.path,)


def test_what_is_injected_is_not_unpickled(tmp_path_factory: pytest.TempPathFactory) -> None:
    proof = tmp_path_factory.mktemp("trap") / "unpickled"
    listener, peer = ends()
    with listener, peer:
        with Connection(os.dup(peer.fileno())) as wire:
            wire.send(_Trap(str(proof)))
        with pytest.raises(ConnectionAbortedError):
            listener.recv()
    assert not proof.exists()
