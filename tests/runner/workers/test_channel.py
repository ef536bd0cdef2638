"""Who gets in at a listener, and what a rank hears of its leader."""

from __future__ import annotations

import os
import pickle
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.machine.files import Files
from ccbench.runner.workers import channel
from ccbench.runner.workers.channel import (
    LOOPBACK,
    Channel,
    Listener,
    Unreachable,
    connect,
    greeting,
    own_addresses,
    version_mismatch,
)
from ccbench.runner.workers.messages import Hello, this_place
from ccbench.runner.workers.session import (
    Session,
    endpoint,
    hang_up,
    session_with_listener,
    session_with_peer,
)

HELLO = Hello(this_place(), 3, 4)


def peer_with(listener: Listener, key: bytes, hello: bytes = HELLO.as_json()) -> Connection:
    """What a peer with ``key`` does, step by step."""
    host, _, port = listener.addresses[0].rpartition(":")
    with (
        socket.create_connection((host, int(port))) as line,
        Connection(os.dup(line.fileno())) as connection,
    ):
        session = session_with_listener(connection, key, endpoint(line.getpeername()))
    session.send_bytes(greeting())
    session.recv_bytes()
    session.send_bytes(hello)
    return session


def let_in(listener: Listener, expected: int, seconds: float = 5.0) -> list[Connection]:
    connections: list[Connection] = []
    deadline = time.monotonic() + seconds
    while len(connections) < expected and time.monotonic() < deadline:
        for peer in listener.peers(0.05):
            assert peer.hello == HELLO
            connections.append(peer.connection)
    return connections


def joined(listener: Listener, address: str = "") -> tuple[Connection, Connection]:
    """(the listener's end, the peer's end) of a connection made at ``address``."""
    came: list[Connection] = []
    peer = threading.Thread(
        target=lambda: came.append(connect(address or listener.address, HELLO))
    )
    peer.start()
    (theirs,) = let_in(listener, 1)
    peer.join(10)
    assert came, "the peer still waits"
    return theirs, came[0]


def key_of(listener: Listener) -> str:
    return listener.address.rpartition("|")[2]


def assert_open(near: Connection, far: Connection) -> None:
    near.send("hello")
    assert far.recv() == "hello"
    near.close()
    far.close()


def test_a_wrong_key_gets_nobody_in_and_silence_keeps_nobody_out() -> None:
    with Listener() as listener:
        host, _, port = listener.addresses[0].rpartition(":")
        with socket.create_connection((host, int(port))):  # says nothing
            failures: list[BaseException] = []

            def stranger() -> None:
                try:
                    peer_with(listener, secrets.token_bytes(32))
                except Exception as error:
                    failures.append(error)

            right = bytes.fromhex(key_of(listener))
            threads = [threading.Thread(target=stranger)]
            threads.append(threading.Thread(target=lambda: peer_with(listener, right)))
            for thread in threads:
                thread.start()
            inside = let_in(listener, 1)
            for thread in threads:
                thread.join()
            assert len(inside) == 1
            assert len(failures) == 1
            assert let_in(listener, 1, seconds=0.2) == []
            inside[0].close()


def test_whoever_waits_for_peers_hears_that_the_runner_is_gone() -> None:
    ours, runner = Pipe()
    with Listener() as listener:
        assert listener.peers(0.0, ours) == []
        runner.close()
        with pytest.raises(EOFError):
            listener.peers(30.0, ours)
    ours.close()


def test_whoever_drips_bytes_is_hung_up_on_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte comes soon enough; all of them do not."""
    monkeypatch.setattr(channel, "PROOF_SECONDS", 0.5)
    with Listener() as listener:
        host, _, port = listener.addresses[0].rpartition(":")
        with socket.create_connection((host, int(port))) as stranger:
            deadline = time.monotonic() + 20
            with pytest.raises((BrokenPipeError, ConnectionResetError)):
                _drip(stranger, listener, deadline)
            assert time.monotonic() < deadline


def _drip(stranger: socket.socket, listener: Listener, deadline: float) -> None:
    while time.monotonic() < deadline:
        assert let_in(listener, 1, seconds=0.05) == []
        stranger.sendall(b"\0")


def test_a_leader_that_is_reached_twice_sees_one_rank() -> None:
    with Listener() as listener:
        theirs, ours = joined(
            listener, f"{listener.addresses[0]} {listener.addresses[0]} {listener.address}"
        )
        assert let_in(listener, 1, seconds=0.5) == []
        assert_open(theirs, ours)


class Trap:
    """Its pickle makes a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)


def relayed(rank: Connection, real: Connection, trap: bytes) -> None:
    """Pass on what both say, but for what the rank says of itself: that becomes ``trap``."""

    def answers() -> None:
        with suppress(EOFError, OSError):
            while True:
                rank.send_bytes(real.recv_bytes())
        hang_up(rank)

    back = threading.Thread(target=answers, daemon=True)
    back.start()
    with suppress(EOFError, OSError):
        while True:
            message = rank.recv_bytes()
            real.send_bytes(
                trap
                if socket.gethostname().encode() in message and b"pid_" in message
                else message
            )
    hang_up(real)
    back.join(10)
    rank.close()
    real.close()


@contextmanager
def relay(listener: Listener, host: str, trap: bytes) -> Iterator[str]:
    """The address of somebody who passes proofs on to the listener and then says ``trap``."""
    _, _, port = listener.addresses[0].rpartition(":")
    with socket.create_server((host, 0)) as server:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    line, _ = server.accept()
                    real = socket.create_connection((LOOPBACK, int(port)))
                    ends = Connection(line.detach()), Connection(real.detach())
                    threading.Thread(target=relayed, args=(*ends, trap), daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        yield f"{host}:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)


@pytest.mark.thinned(1)
@pytest.mark.skipif(sys.platform != "linux", reason="needs a second loopback address")
@pytest.mark.parametrize("same_address", [False, True])
def test_who_relays_a_rank_gets_nothing_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, same_address: bool
) -> None:
    """same_address: the relay has taken over the one that the leader has told."""
    monkeypatch.setattr(channel, "TRY_SECONDS", 0.5, raising=False)
    if same_address:
        monkeypatch.setattr(channel, "endpoint", lambda _: "10.0.0.7 port 4000")
    trap = pickle.dumps(Trap(tmp_path / "unpickled"))
    with Listener() as listener, relay(listener, "127.0.0.2", trap) as place:
        failures: list[BaseException] = []

        def rank() -> None:
            try:
                connect(f"{place}|{key_of(listener)}", HELLO).recv()
            except Exception as error:
                failures.append(error)

        coming = threading.Thread(target=rank)
        coming.start()
        assert let_in(listener, 1, seconds=1.0) == []
        coming.join(10)
        assert not coming.is_alive()
        assert isinstance(failures[0], EOFError if same_address else Unreachable)
        if not same_address:
            assert (
                f"dialled {place.replace(':', ' port ')} but came in at 127.0.0.1"
                in listener.strangers()
            )
    assert not (tmp_path / "unpickled").exists()


@pytest.mark.thinned(2)
@pytest.mark.parametrize("hello", ["pickle", "list", "nothing", "cut"])
def test_the_key_alone_does_not_make_a_pickle_be_read(tmp_path: Path, hello: str) -> None:
    trap = pickle.dumps(Trap(tmp_path / "unpickled"))
    texts = {"pickle": trap, "list": b"[]", "nothing": b"{}", "cut": HELLO.as_json()[:-1]}
    with Listener() as listener:
        key, came = bytes.fromhex(key_of(listener)), list[Connection]()
        peer = threading.Thread(
            target=lambda: came.append(peer_with(listener, key, texts[hello]))
        )
        peer.start()
        assert let_in(listener, 1, seconds=0.5) == []
        peer.join(10)
        with came[0], pytest.raises((EOFError, ConnectionResetError)):
            came[0].recv_bytes()
    assert not (tmp_path / "unpickled").exists()


def test_a_pickle_in_the_place_of_a_proof_is_not_read(tmp_path: Path) -> None:
    host, _, port = (listener := Listener()).addresses[0].rpartition(":")
    with listener, Connection(socket.create_connection((host, int(port))).detach()) as stranger:
        for _ in range(3):
            with suppress(OSError):
                stranger.send(Trap(tmp_path / "unpickled"))
        assert let_in(listener, 1, seconds=0.5) == []
        assert (
            listener.strangers()
            == "turned away: 1 connection that did not prove in time to know the key"
        )
    assert not (tmp_path / "unpickled").exists()


def test_silent_connections_from_one_host_keep_no_rank_out() -> None:
    with Listener() as listener, ExitStack() as held:
        host, _, port = listener.addresses[0].rpartition(":")
        for _ in range(300):
            held.enter_context(socket.create_connection((host, int(port))))
        began = time.monotonic()
        assert_open(*joined(listener))
        assert time.monotonic() - began < channel.PROOF_SECONDS / 2
        assert "that did not prove in time to know the key" in listener.strangers()


def test_a_rank_that_has_lost_its_place_tries_again(monkeypatch: pytest.MonkeyPatch) -> None:
    rest = [EOFError, ConnectionResetError]

    def beset(*arguments: Any) -> Session:
        if rest:
            raise rest.pop()
        return session_with_peer(*arguments)

    monkeypatch.setattr(channel, "session_with_peer", beset)
    with Listener() as listener:
        assert_open(*joined(listener))
        assert listener.strangers().startswith("turned away: 2 connections")


def test_bridges_inside_a_host_are_no_way_to_it_and_those_on_a_card_are(tmp_path: Path) -> None:
    """docker0 has only containers on it; vmbr0 stands on a VLAN of a card, and has the host's address."""
    for folder in (
        "docker0/brif/veth1",
        "vmbr0/brif/veth2",
        "vmbr0/brif/eth0.7",
        "veth1",
        "veth2",
    ):
        (tmp_path / "sys/class/net" / folder).mkdir(parents=True)
    for name in ("docker0", "vmbr0"):
        (tmp_path / "sys/class/net" / name / "bridge").mkdir()
    (tmp_path / "sys/class/net/eth0.7/lower_eth0").mkdir(parents=True)
    (tmp_path / "proc/net").mkdir(parents=True)
    route = "{}\t{}\t{}\t0001\t0\t0\t0\t{}\t0\t0\t0\n"
    words = {"docker0": ("172.17.0.0", "255.255.0.0"), "vmbr0": ("10.0.0.0", "255.255.255.0")}

    def word(address: str) -> str:
        return f"{int.from_bytes(socket.inet_aton(address), sys.byteorder):08X}"

    rows = [
        route.format(name, word(to), "00000000", word(mask))
        for name, (to, mask) in words.items()
    ]
    rows.append(route.format("vmbr0", "00000000", word("10.0.0.1"), "00000000"))
    (tmp_path / "proc/net/route").write_text("Iface\tDestination\n" + "".join(rows))
    trie = "  |-- 172.17.0.1\n     /32 host LOCAL\n"
    (tmp_path / "proc/net/fib_trie").write_text(trie)
    assert own_addresses(Files(tmp_path)) == [
        "172.17.0.1"
    ]  # containers of this host find nothing else
    (tmp_path / "proc/net/fib_trie").write_text(trie + "  |-- 10.0.0.7\n     /32 host LOCAL\n")
    assert own_addresses(Files(tmp_path)) == ["10.0.0.7"]


OTHER_VERSION = """
import sys
from ccbench.errors import UsageError
from ccbench.runner.workers import channel
from ccbench.runner.workers.messages import Hello, this_network, this_place
from ccbench.runner.workers.session import (
    Session,
    endpoint,
    hang_up,
    session_with_listener,
    session_with_peer,
)
channel.__version__ = "99.0"
class Trap:
    def __reduce__(self):
        return print, ("unpickled",)
try:
    channel.connect(sys.argv[1], Trap())
except UsageError as error:
    sys.exit(f"{error.exit_code} {error}")
"""


def test_versions_that_differ_are_refused_on_both_sides_before_anything_is_unpickled(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with Listener() as listener:
        command = [sys.executable, "-c", OTHER_VERSION, listener.address]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        deadline = time.monotonic() + 30
        while not listener.refused and time.monotonic() < deadline:
            assert listener.peers(0.05) == []
        printed = process.communicate(timeout=30)[1]
    assert f"{socket.gethostname()} has ccbench 99.0" in listener.refused[0]
    assert "install the same version on all hosts" in listener.refused[0]
    assert "install the same version on all hosts" in printed
    assert printed.startswith("2 ")
    assert "unpickled" not in capfd.readouterr().out


@given(st.binary(max_size=200))
def test_what_is_no_greeting_is_of_another_version(words: bytes) -> None:
    assert version_mismatch(greeting()) == ""
    if not words.startswith(b"ccbench "):
        assert version_mismatch(words)


class _Unreadable:
    """Its pickle can be made, and not be read."""

    def __reduce__(self) -> tuple[object, tuple[str, ...]]:
        return getattr, ("text", "no_such_attribute")


def test_a_rank_that_cannot_read_its_leader_says_so_and_hangs_up(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with Listener() as listener:
        theirs, ours = joined(listener)
    broken = threading.Event()
    Channel(ours, broken.set, {})
    theirs.send(_Unreadable())
    assert broken.wait(5)
    with pytest.raises((EOFError, OSError)):
        theirs.recv()
    printed = capfd.readouterr().err
    assert "failed to read what its leader says (AttributeError" in printed
    assert "the same ccbench" in printed
    ours.close()
    theirs.close()


def test_an_agent_whom_nobody_told_of_a_leader_says_what_is_missing() -> None:
    variables = {name: value for name, value in os.environ.items() if name != "CCBENCH_LEADER"}
    command = [sys.executable, "-m", "ccbench.runner.workers", "agent"]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert (
        "CCBENCH_LEADER is not set: the launcher did not hand the environment on" in done.stderr
    )
