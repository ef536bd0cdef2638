"""Messages of a session come from its other side, whole, once and in order, or end it."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from multiprocessing.connection import Connection

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.runner.workers.session import LISTENER, PEER, Session, endpoint, received_over

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


FORGERIES: dict[str, Callable[[Session, Session, bytes], bytes]] = {
    "replayed": lambda peer, listener, first: first,
    "reflected": lambda peer, listener, first: frame_of(listener, peer, b"from the listener"),
    "after one that was left out": lambda peer, listener, first: [
        frame_of(peer, listener, b"left out"),
        frame_of(peer, listener, b"too early"),
    ][1],
    "cut": lambda peer, listener, first: frame_of(peer, listener, b"second")[:-1],
    "shorter than a MAC": lambda peer, listener, first: b"short",
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_message_that_is_not_the_next_of_the_other_side_ends_the_session(
    forgery: str,
) -> None:
    listener, peer = ends()
    with listener, peer:
        first = frame_of(peer, listener, b"first")
        deliver(peer, first)
        assert listener.recv_bytes() == b"first"
        deliver(peer, FORGERIES[forgery](peer, listener, first))
        with pytest.raises(ConnectionAbortedError):
            listener.recv_bytes()


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


def test_a_session_that_is_handed_over_goes_on_there_and_is_ended_from_here() -> None:
    listener, peer = ends()
    listener.send("before")
    assert peer.recv() == "before"
    file, rest = listener.hand_over().split(":", 1)
    with peer, listener, received_over(f"{os.dup(int(file))}:{rest}") as runner:
        for number in range(3):
            runner.send(number)
            assert peer.recv() == number
            peer.send(-number)
            assert runner.recv() == -number
        listener.send("over")
        assert peer.recv() == "over"
        runner.send("too late")
        with pytest.raises(ConnectionAbortedError):
            peer.recv()


def test_both_ends_name_an_address_alike() -> None:
    assert (
        endpoint(("10.0.0.7", 4000))
        == endpoint(("::ffff:10.0.0.7", 4000, 0, 0))
        == "10.0.0.7 port 4000"
    )
    assert endpoint(("2001:db8:0::7", 1, 0, 0)) == "2001:db8::7 port 1"
