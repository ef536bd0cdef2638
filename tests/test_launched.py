"""Teams whose ranks a launcher starts, with launchers and libraries small enough to be part of the test."""

from __future__ import annotations

import os
import secrets
import socket
import sys
import threading
import time
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.cases import Case, Conditions, Status
from ccbench.errors import BackendUnavailable, UsageError
from ccbench.exchange import Hello, Place, Ready, local_rank, nodes_of_ranks, this_place
from ccbench.launched import LaunchedLeader, crowded, numbered, one_version, signal_name
from ccbench.launching import Launch, Launcher, private_folder
from ccbench.listening import LOOPBACK, Door, Speaker, heard, here, other_speaker, own_addresses
from ccbench.measure import RankResult
from ccbench.rank import Channel, connect, told_by_launcher
from ccbench.worker import RankReport
from tests.faults import traces

KEY = bytes(range(32))


def hello(host: str, rank: int = -1, ranks: int = -1) -> Hello:
    return Hello(Place(host, 1, host, host), rank, ranks)


def knock(door: Door, key: bytes) -> Connection:
    host, _, port = door.addresses[0].rpartition(":")
    connection = Connection(socket.create_connection((host, int(port))).detach())
    answer_challenge(connection, key)
    deliver_challenge(connection, key)
    other_speaker(connection)
    return connection


def let_in(door: Door, wanted: int, seconds: float = 5.0) -> list[Connection]:
    found: list[Connection] = []
    deadline = time.monotonic() + seconds
    while len(found) < wanted and time.monotonic() < deadline:
        found += door.let_in()
        time.sleep(0.01)
    return found


# -- who is which rank ------------------------------------------------------------------------------------


@given(st.permutations(range(6)))
def test_ranks_are_those_that_the_launcher_told(order: list[int]) -> None:
    hellos = [hello("a", rank, 6) for rank in order]
    assert [hellos[number].rank for number in numbered(hellos, 6, "mpi")] == list(range(6))


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=12))
def test_without_numbers_ranks_of_one_host_follow_each_other_as_they_came(hosts: list[str]) -> None:
    order = numbered([hello(host) for host in hosts], len(hosts), "mpi")
    assert sorted(order) == list(range(len(hosts)))
    nodes = nodes_of_ranks([hosts[number] for number in order])
    assert list(nodes) == sorted(nodes)
    for host in hosts:
        came = [number for number in order if hosts[number] == host]
        assert came == sorted(came)


def test_processes_that_each_believe_to_be_alone_are_refused() -> None:
    with pytest.raises(BackendUnavailable, match=r"started 1 ranks, but 2 are asked for; write -n 2"):
        numbered([hello("a", 0, 1), hello("a", 0, 1)], 2, "mpi")
    with pytest.raises(BackendUnavailable, match=r"numbered its processes 0, 0, expected 0 to 1"):
        numbered([hello("a", 0), hello("a", 0)], 2, "mpi")


def test_hosts_with_different_libraries_are_refused_by_name() -> None:
    assert one_version("mpi", ["x 1", "x 1"], ["a", "b"]) == "x 1"
    with pytest.raises(BackendUnavailable, match="rank 0 on a has x 1, rank 1 on b has x 2"):
        one_version("mpi", ["x 1", "x 2"], ["a", "b"])


@pytest.mark.parametrize(
    ("each", "processors", "quota", "is_crowded"),
    [
        (8, 8, None, False),  # more ranks than the leader's host has processors, but none too many anywhere
        (9, 8, None, True),
        (8, 16, 4.0, True),
        (8, 16, 8.5, False),
        (8, 0, None, False),
    ],
)
def test_several_hosts_are_crowded_where_one_has_more_ranks_than_room(
    each: int, processors: int, quota: float | None, is_crowded: bool
) -> None:
    roomy = [Ready("x 1", tuple(range(64)))] * each
    told = [Ready("x 1", tuple(range(processors)), quota)] * each
    assert crowded(["a"] * each + ["b"] * each, [*roomy, *told]) is is_crowded


def test_ranks_that_are_bound_to_a_processor_each_have_the_room_of_all_of_them() -> None:
    bound = [Ready("x 1", (number,)) for number in (0, 1, 0, 1)]
    assert not crowded(["a", "a", "b", "b"], bound)
    assert crowded(["a", "a", "b", "b"], [*bound[:3], Ready("x 1", (0,))])


def test_what_other_programs_do_on_any_host_makes_a_case_doubtful() -> None:
    leader = LaunchedLeader("mpi", 2, Launch(("launcher",), several_hosts=True))
    leader.hosts = ("a", "b")

    def report(rank: int) -> RankReport:
        stamps = np.cumsum(np.ones((2, 3 if rank == 0 else 0, 2)), axis=2)
        result = RankResult(rank, stamps, (), 0.0, 1, "enough", None, 1.0)
        load = Conditions(foreign_cpu_share=0.5 * rank, steal_share=0.0, watched_cpu_seconds=5.0)
        return RankReport(Status.OK, "", "dissemination", result, conditions=load)

    case = Case("s", "mpi", "barrier", "default", "int8", "sum", 0, 0, 2)
    composed = leader._compose(case, {rank: report(rank) for rank in (0, 1)})
    assert "other_load" in composed.conditions.flags


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4"}, (3, 4)),
        ({"PMI_RANK": "0", "PMI_SIZE": "2", "SLURM_PROCID": "9"}, (0, 2)),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "2"}, (1, 2)),
        ({"RANK": "5", "WORLD_SIZE": "8"}, (5, 8)),
        ({"PMIX_RANK": "2"}, (2, -1)),
        ({"RANK": "first"}, (-1, -1)),
        ({}, (-1, -1)),
    ],
)
def test_every_launcher_tells_ranks_its_own_way(variables: dict[str, str], told: tuple[int, int]) -> None:
    assert told_by_launcher(variables) == told


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=12))
def test_local_ranks_number_the_ranks_of_each_host(hosts: list[str]) -> None:
    for host in set(hosts):
        ranks = [rank for rank, one in enumerate(hosts) if one == host]
        assert [local_rank(hosts, rank) for rank in ranks] == list(range(len(ranks)))


def test_a_process_says_where_it_is() -> None:
    place = this_place()
    assert (place.host, place.pid) == (socket.gethostname(), os.getpid())
    assert place.clock.startswith(place.host)


# -- the door ---------------------------------------------------------------------------------------------


def test_who_knows_the_key_gets_in_and_is_understood() -> None:
    with Door(KEY) as door:
        ours: list[Connection] = []
        caller = threading.Thread(target=lambda: ours.append(knock(door, KEY)))
        caller.start()
        (inside,) = let_in(door, 1)
        caller.join()
        ours[0].send("good morning")
        assert inside.recv() == "good morning"
        ours[0].close()
        inside.close()


def test_a_wrong_key_gets_nobody_in_and_silence_keeps_nobody_out() -> None:
    with Door(KEY) as door:
        host, _, port = door.addresses[0].rpartition(":")
        with socket.create_connection((host, int(port))):  # says nothing
            failures: list[BaseException] = []

            def stranger() -> None:
                try:
                    knock(door, secrets.token_bytes(32))
                except Exception as error:
                    failures.append(error)

            threads = [threading.Thread(target=stranger), threading.Thread(target=lambda: knock(door, KEY))]
            for thread in threads:
                thread.start()
            inside = let_in(door, 1)
            for thread in threads:
                thread.join()
            assert len(inside) == 1
            assert len(failures) == 1
            assert let_in(door, 1, seconds=0.2) == []
            inside[0].close()


def test_the_door_is_on_loopback_unless_there_are_several_hosts() -> None:
    with Door(KEY) as door:
        assert [address.rpartition(":")[0] for address in door.addresses] == [LOOPBACK]
    with Door(KEY, several_hosts=True) as door:
        hosts = [address.rpartition(":")[0].strip("[]") for address in door.addresses]
        assert hosts == own_addresses()
    assert own_addresses()[-1] == LOOPBACK


def test_hosts_without_ipv4_are_reached_by_ipv6(tmp_path: Path) -> None:
    (tmp_path / "net").mkdir()
    (tmp_path / "net/if_inet6").write_text(
        "00000000000000000000000000000001 01 80 10 80       lo\n"
        "20010db8000000000000000000000007 02 40 00 80     eth0\n"
        "fe80000000000000000000000000abcd 02 40 20 80     eth0\n"
    )
    if not socket.has_dualstack_ipv6():
        pytest.skip("this kernel has no IPv6")
    assert own_addresses(tmp_path)[-2:] == ["2001:db8::7", LOOPBACK]
    with Door(KEY, several_hosts=True) as door:
        port = door.addresses[-1].rpartition(":")[2]
        for address in (f"[::1]:{port}", f"127.0.0.1:{port}"):
            came: list[Connection] = []
            rank = threading.Thread(target=_join, args=(address, came))
            rank.start()
            (theirs,) = let_in(door, 1)
            rank.join(5)
            came[0].send("hello")
            assert theirs.recv() == "hello"
            came[0].close()
            theirs.close()


def _join(address: str, came: list[Connection]) -> None:
    came.append(connect({"CCBENCH_LEADER": address, "CCBENCH_LEADER_KEY": KEY.hex()}))


def test_a_stranger_at_the_leaders_address_who_says_nothing_is_passed_by(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ccbench.rank.PROOF_SECONDS", 1)
    with socket.create_server((LOOPBACK, 0)) as stranger, Door(KEY) as door:
        port = stranger.getsockname()[1]
        came: list[Connection] = []
        addresses = f"{LOOPBACK}:{port} {door.addresses[0]}"
        rank = threading.Thread(target=_join, args=(addresses, came), daemon=True)
        rank.start()
        (theirs,) = let_in(door, 1)
        rank.join(5)
        assert came, "it waits for the stranger"
        time.sleep(1.2)  # who has proven itself may be silent for longer
        theirs.send("hello")
        assert came[0].recv() == "hello"
        came[0].close()
        theirs.close()


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="not on this system")
def test_what_a_vanished_host_leaves_unanswered_breaks_the_connection_in_a_minute() -> None:
    came: list[Connection] = []
    with Door(KEY) as door:
        rank = threading.Thread(target=_join, args=(door.addresses[0], came))
        rank.start()
        (leaders_end,) = let_in(door, 1)
        rank.join(5)
    for connection in (*came, leaders_end):
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
    monkeypatch.setattr("ccbench.listening.PROOF_SECONDS", 0.5)
    with Door(KEY) as door:
        host, _, port = door.addresses[0].rpartition(":")
        with socket.create_connection((host, int(port))) as stranger:
            deadline = time.monotonic() + 20
            with pytest.raises((BrokenPipeError, ConnectionResetError)):
                _drip(stranger, door, deadline)
            assert time.monotonic() < deadline


def _drip(stranger: socket.socket, door: Door, deadline: float) -> None:
    while time.monotonic() < deadline:
        assert let_in(door, 1, seconds=0.05) == []
        stranger.sendall(b"\0")


def test_addresses_that_lead_nowhere_are_tried_beside_the_right_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ccbench.rank.PROOF_SECONDS", 60)
    strangers = [socket.create_server((LOOPBACK, 0)) for _ in range(4)]
    with Door(KEY) as door:
        ports = [stranger.getsockname()[1] for stranger in strangers]
        came: list[Connection] = []
        addresses = " ".join([*(f"{LOOPBACK}:{port}" for port in ports), "no.such.host:1", door.addresses[0]])
        rank = threading.Thread(target=_join, args=(addresses, came), daemon=True)
        rank.start()
        (theirs,) = let_in(door, 1)
        rank.join(10)
        assert came, "it waits for strangers, one after the other"
        came[0].close()
        theirs.close()
    for stranger in strangers:
        stranger.close()


def test_a_leader_that_is_reached_twice_sees_one_rank() -> None:
    with Door(KEY) as door:
        came: list[Connection] = []
        rank = threading.Thread(target=_join, args=(" ".join([door.addresses[0]] * 3), came))
        rank.start()
        inside = let_in(door, 2, seconds=1.0)
        rank.join(5)
        assert len(inside) == len(came) == 1
        came[0].send("hello")
        assert inside[0].recv() == "hello"
        came[0].close()
        inside[0].close()


def test_versions_that_differ_are_refused_on_both_sides_before_anything_is_unpickled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failures: list[UsageError] = []

    def other() -> None:
        try:
            connect({"CCBENCH_LEADER": door.addresses[0], "CCBENCH_LEADER_KEY": KEY.hex()})
        except UsageError as error:
            failures.append(error)

    newer = Speaker("99.0", "elsewhere")
    monkeypatch.setattr("ccbench.rank.here", lambda: newer)
    with Door(KEY) as door:
        monkeypatch.setattr("ccbench.listening.other_speaker", lambda connection: _hear_as(newer, connection))
        rank = threading.Thread(target=other)
        rank.start()
        assert let_in(door, 1, seconds=1.0) == []
        rank.join(5)
    assert "install the same version on all hosts" in door.refused[0]
    assert "elsewhere has ccbench 99.0" in door.refused[0]
    assert "install the same version on all hosts" in str(failures[0])
    assert failures[0].exit_code == 2


def _hear_as(speaker: Speaker, connection: Connection) -> Speaker:
    """The door's side, to which the rank's words are those of another version."""
    other_speaker(connection)
    return speaker


@given(st.binary(max_size=200))
def test_what_is_no_greeting_is_of_another_version(words: bytes) -> None:
    assert heard(here().words) == here()
    assert here().quarrel(heard(here().words)) == ""
    if not words.startswith(b"ccbench "):
        assert here().quarrel(heard(words))


class _Unreadable:
    """Its pickle can be made, and not be read."""

    def __reduce__(self) -> tuple[object, tuple[str, ...]]:
        return getattr, ("text", "no_such_attribute")


def test_a_rank_that_cannot_read_its_leader_says_so_and_hangs_up(capfd: pytest.CaptureFixture[str]) -> None:
    with Door(KEY) as door:
        came: list[Connection] = []
        rank = threading.Thread(target=_join, args=(door.addresses[0], came))
        rank.start()
        (theirs,) = let_in(door, 1)
        rank.join(5)
    broken = threading.Event()
    Channel(came[0], broken.set)
    theirs.send(_Unreadable())
    assert broken.wait(5)
    with pytest.raises((EOFError, OSError)):
        theirs.recv()
    said = capfd.readouterr().err
    assert "failed to read what its leader says (AttributeError" in said
    assert "the same ccbench" in said
    came[0].close()
    theirs.close()


def test_a_rank_without_a_leader_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="the launcher did not hand the environment on"):
        connect({})
    with socket.create_server((LOOPBACK, 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(UsageError, match=r"reaches the team's leader at none of 127\.0\.0\.1"):
        connect({"CCBENCH_LEADER": f"{LOOPBACK}:{port}", "CCBENCH_LEADER_KEY": KEY.hex()})


# -- the launcher -----------------------------------------------------------------------------------------


def launcher(script: str, *, ranks: int = 1, command: bool = True) -> Launcher:
    words = (sys.executable, "-c", script)
    return Launcher(Launch(words if command else ()), ranks, () if command else words, {})


def said(made: Launcher, pattern: str) -> str:
    deadline = time.monotonic() + 10
    while not made.words(pattern) and time.monotonic() < deadline:
        time.sleep(0.01)
    return made.words(pattern)


def test_a_launcher_s_last_words_and_its_end_are_kept() -> None:
    made = launcher(
        "import sys; print('banner'); print('Error: not enough slots'); print('bye'); sys.exit(3)"
    )
    assert made.wait(10)
    said(made, "bye")
    assert made.ended() == "exited with 3"
    assert made.words() == "Error: not enough slots"
    made.kill()


def test_of_a_launchers_words_those_of_our_own_processes_come_first() -> None:
    made = launcher("print('ccbench.rank: CCBENCH_LEADER is not set'); print('Primary job failed')")
    assert made.wait(10)
    said(made, "Primary")
    assert made.words() == "ccbench.rank: CCBENCH_LEADER is not set"


def test_killing_a_launcher_takes_what_it_has_started() -> None:
    made = launcher(
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE)\n"
        "print('child', child.pid, flush=True)\n"
        "child.wait()"
    )
    child = int(said(made, "child").split()[1])
    assert made.ended() == ""
    made.kill()
    assert made.ended() == "was killed by SIGKILL"
    made.kill()
    assert traces.all_gone([child])


def test_without_a_launcher_every_rank_is_a_process_with_its_number() -> None:
    script = "import os; os.write(1, '{CCBENCH_RANK} of {CCBENCH_RANKS}\\n'.format_map(os.environ).encode())"
    made = launcher(script, ranks=3, command=False)
    assert made.wait(20)
    assert [made.ended_one(rank) for rank in range(3)] == ["exited with 0"] * 3
    assert [bool(said(made, f"{rank} of 3")) for rank in range(3)] == [True] * 3


def test_a_launcher_that_does_not_exist_is_told() -> None:
    with pytest.raises(BackendUnavailable, match="no/such/mpirun could not be started: No such file"):
        Launcher(Launch(("no/such/mpirun",)), 2, ("true",), {})


def test_what_a_launcher_must_hand_on_is_named_to_it_before_the_program_that_starts_ranks(
    tmp_path: Path,
) -> None:
    shows = tmp_path / "mpirun"
    shows.write_text("#!/bin/sh\necho $*\n")
    shows.chmod(0o755)
    launch = Launch((str(shows), "-n", "2", "numactl", "-l"), (("A", "1"),), passed_by="-x")
    made = Launcher(launch, 1, ("rank",), {"CCBENCH_LEADER": "here"})
    assert made.wait(10)
    said(made, "rank")
    assert made.words() == "-x A -x CCBENCH_LEADER -n 2 numactl -l rank"


def test_signals_have_names() -> None:
    assert signal_name(9) == "SIGKILL"
    assert signal_name(1000) == "signal 1000"


# -- what is left -----------------------------------------------------------------------------------------


def test_private_folders_go_with_what_is_in_them(tmp_path: Path) -> None:
    with private_folder(str(tmp_path)) as path:
        assert Path(path).parent == tmp_path
        (Path(path) / "left").touch()
    assert os.listdir(tmp_path) == []


def test_a_private_folder_is_elsewhere_when_there_is_no_room_and_without_any_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "file").touch()
    for parent in (tmp_path / "file", tmp_path / "absent"):
        with private_folder(str(parent)) as folder:
            assert Path(folder).parent == tmp_path
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "file"))
    with pytest.raises(BackendUnavailable, match="set TMPDIR"), private_folder(""):
        pass
