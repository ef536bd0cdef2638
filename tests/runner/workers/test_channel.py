"""Who gets in at a listener, and what a rank hears of its leader."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import threading
import time
from multiprocessing import Pipe
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.machine.files import Files
from ccbench.runner.workers import channel
from ccbench.runner.workers.channel import (
    LOOPBACK,
    Channel,
    Listener,
    connect,
    greeting,
    own_addresses,
    version_mismatch,
)
from ccbench.runner.workers.messages import Hello, this_place

HELLO = Hello(this_place(), 3, 4)


def peer_with(listener: Listener, key: bytes) -> Connection:
    """What a peer with ``key`` does, step by step."""
    host, _, port = listener.addresses[0].rpartition(":")
    connection = Connection(socket.create_connection((host, int(port))).detach())
    answer_challenge(connection, key)
    deliver_challenge(connection, key)
    connection.send_bytes(greeting())
    connection.recv_bytes()
    connection.send(HELLO)
    return connection


def let_in(listener: Listener, wanted: int, seconds: float = 5.0) -> list[Connection]:
    found: list[Connection] = []
    deadline = time.monotonic() + seconds
    while len(found) < wanted and time.monotonic() < deadline:
        for peer in listener.peers(0.05):
            assert peer.hello == HELLO
            found.append(peer.connection)
    return found


def joined(listener: Listener, address: str = "") -> tuple[Connection, Connection]:
    """(the listener's end, the peer's end) of a connection made at ``address``."""
    came: list[Connection] = []
    peer = threading.Thread(target=lambda: came.append(connect(address or listener.address, HELLO)))
    peer.start()
    (theirs,) = let_in(listener, 1)
    peer.join(10)
    assert came, "the peer still waits"
    return theirs, came[0]


def key_of(listener: Listener) -> str:
    return listener.address.rpartition("|")[2]


def assert_open(one: Connection, other: Connection) -> None:
    one.send("hello")
    assert other.recv() == "hello"
    one.close()
    other.close()


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


def test_a_listener_is_on_loopback_unless_there_are_several_hosts() -> None:
    with Listener() as listener:
        assert [address.rpartition(":")[0] for address in listener.addresses] == [LOOPBACK]
    with Listener(several_hosts=True) as listener:
        hosts = [address.rpartition(":")[0].strip("[]") for address in listener.addresses]
        assert hosts == own_addresses()
    assert own_addresses()[-1] == LOOPBACK


def test_hosts_are_reached_by_every_address_of_theirs(tmp_path: Path) -> None:
    (tmp_path / "proc/net").mkdir(parents=True)
    (tmp_path / "proc/net/if_inet6").write_text(
        "00000000000000000000000000000001 01 80 10 80       lo\n"
        "20010db8000000000000000000000007 02 40 00 80     eth0\n"
        "fe80000000000000000000000000abcd 02 40 20 80     eth0\n"
    )
    if not socket.has_dualstack_ipv6():
        pytest.skip("this kernel has no IPv6")
    (tmp_path / "proc/net/fib_trie").write_text(
        "Main:\n  |-- 10.0.0.0\n     /24 link UNICAST\n  |-- 10.0.0.7\n     /32 host LOCAL\n"
        "  |-- 10.0.0.255\n     /32 link BROADCAST\n  |-- 127.0.0.1\n     /32 host LOCAL\n"
    )
    assert own_addresses(Files(tmp_path)) == ["10.0.0.7", "2001:db8::7", LOOPBACK]
    with Listener(several_hosts=True) as listener:
        port = listener.addresses[-1].rpartition(":")[2]
        for address in (f"[::1]:{port}", f"127.0.0.1:{port}"):
            assert_open(*joined(listener, f"{address}|{key_of(listener)}"))


def test_a_stranger_at_the_leaders_address_who_says_nothing_is_passed_by(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(channel, "LISTENER_SECONDS", 1)
    with socket.create_server((LOOPBACK, 0)) as stranger, Listener() as listener:
        port = stranger.getsockname()[1]
        theirs, ours = joined(listener, f"{LOOPBACK}:{port} {listener.address}")
        time.sleep(1.2)  # who has proven itself may be silent for longer
        assert_open(theirs, ours)


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="not on this system")
def test_what_a_vanished_host_leaves_unanswered_breaks_the_connection_in_a_minute() -> None:
    with Listener() as listener:
        ends = joined(listener)
    for connection in ends:
        with socket.socket(fileno=os.dup(connection.fileno())) as line:
            idle, often, times = (
                line.getsockopt(socket.IPPROTO_TCP, one)
                for one in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
            )
            assert line.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert idle + often * times == 60
            assert line.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 60_000
        connection.close()


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


def test_addresses_that_lead_nowhere_are_tried_beside_the_right_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "LISTENER_SECONDS", 60)
    strangers = [socket.create_server((LOOPBACK, 0)) for _ in range(4)]
    with Listener() as listener:
        ports = [stranger.getsockname()[1] for stranger in strangers]
        wrong = [*(f"{LOOPBACK}:{port}" for port in ports), "no.such.host:1"]
        assert_open(*joined(listener, " ".join([*wrong, listener.address])))
    for stranger in strangers:
        stranger.close()


def test_a_leader_that_is_reached_twice_sees_one_rank() -> None:
    with Listener() as listener:
        theirs, ours = joined(listener, f"{listener.addresses[0]} {listener.addresses[0]} {listener.address}")
        assert let_in(listener, 1, seconds=0.5) == []
        assert_open(theirs, ours)


OTHER_VERSION = """
import sys
from ccbench.errors import UsageError
from ccbench.runner.workers import channel
from ccbench.runner.workers.messages import Hello, this_place
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
        other = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        deadline = time.monotonic() + 30
        while not listener.refused and time.monotonic() < deadline:
            assert listener.peers(0.05) == []
        said = other.communicate(timeout=30)[1]
    assert f"{socket.gethostname()} has ccbench 99.0" in listener.refused[0]
    assert "install the same version on all hosts" in listener.refused[0]
    assert "install the same version on all hosts" in said
    assert said.startswith("2 ")
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


def test_a_rank_that_cannot_read_its_leader_says_so_and_hangs_up(capfd: pytest.CaptureFixture[str]) -> None:
    with Listener() as listener:
        theirs, ours = joined(listener)
    broken = threading.Event()
    Channel(ours, broken.set, {})
    theirs.send(_Unreadable())
    assert broken.wait(5)
    with pytest.raises((EOFError, OSError)):
        theirs.recv()
    said = capfd.readouterr().err
    assert "failed to read what its leader says (AttributeError" in said
    assert "the same ccbench" in said
    ours.close()
    theirs.close()


def test_an_agent_whom_nobody_told_of_a_leader_says_what_is_missing() -> None:
    variables = {name: value for name, value in os.environ.items() if name != "CCBENCH_LEADER"}
    command = [sys.executable, "-m", "ccbench.runner.workers", "agent"]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "CCBENCH_LEADER is not set: the launcher did not hand the environment on" in done.stderr
