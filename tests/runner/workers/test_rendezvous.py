"""Processes of one launcher find the first of them."""

from __future__ import annotations

import os
import stat
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from ccbench.errors import UsageError
from ccbench.machine.files import Files
from ccbench.runner.workers import rendezvous
from ccbench.runner.workers.channel import Listener
from ccbench.runner.workers.messages import Hello, this_place
from ccbench.runner.workers.rendezvous import (
    FOLDER_VARIABLE,
    HYDRA,
    OPEN_MPI,
    SRUN,
    TORCHRUN,
    FileStore,
    LaunchedProcess,
    connect_to_first,
    store_for,
)

HELLO = Hello(this_place())


def test_a_file_carries_the_text_and_only_its_owner_may_read_it(tmp_path: Path) -> None:
    texts: list[str] = []
    seeker = threading.Thread(target=lambda: texts.append(FileStore(tmp_path, "a").get()))
    seeker.start()
    way = FileStore(tmp_path, "a")
    way.set("10.0.0.1:5|key")
    seeker.join(5)
    assert texts == ["10.0.0.1:5|key"]
    (file,) = tmp_path.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    way.close()
    assert not list(tmp_path.iterdir())


def test_a_first_process_that_never_comes_is_named_with_the_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendezvous, "LIMIT_SECONDS", 0.1)
    with pytest.raises(UsageError, match=f"rank 0 wrote nothing.*set {FOLDER_VARIABLE}"):
        FileStore(tmp_path, "a").get()


def test_what_a_killed_start_has_left_is_passed_by_for_what_its_successor_says(
    tmp_path: Path,
) -> None:
    FileStore(tmp_path, "a").set(f"127.0.0.1:9|{bytes(32).hex()}")
    with Listener() as listener:
        came_in: list[Connection] = []
        agent = threading.Thread(
            target=lambda: came_in.append(connect_to_first(FileStore(tmp_path, "a"), HELLO))
        )
        agent.start()
        time.sleep(0.2)
        FileStore(tmp_path, "a").set(listener.address)
        connections: list[Connection] = []
        deadline = time.monotonic() + 10
        while not connections and time.monotonic() < deadline:
            connections = [peer.connection for peer in listener.peers(0.1)]
        agent.join(10)
    assert len(connections) == len(came_in) == 1
    for connection in (*connections, *came_in):
        connection.close()


def test_an_address_that_nothing_replaces_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendezvous, "SUCCESSOR_SECONDS", 0.2)
    FileStore(tmp_path, "a").set(f"127.0.0.1:9|{bytes(32).hex()}")
    with pytest.raises(UsageError, match=r"at none of 127\.0\.0\.1:9"):
        connect_to_first(FileStore(tmp_path, "a"), HELLO)


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_what_others_lay_there_instead_of_a_file_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(rendezvous, "LIMIT_SECONDS", 0.2)
    (tmp_path / "text").write_text("10.0.0.1:5|key")
    place = tmp_path / ".ccbench-a"
    place.symlink_to(tmp_path / "text") if kind == "link" else os.mkfifo(place)
    texts: list[str] = []

    def seek() -> None:
        with pytest.raises(UsageError, match="rank 0 wrote nothing"):
            texts.append(FileStore(tmp_path, "a").get())

    seeker = threading.Thread(target=seek, daemon=True)
    seeker.start()
    seeker.join(5)
    assert not seeker.is_alive(), "it waits for somebody to write"
    assert not texts


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"cannot be written.*set {FOLDER_VARIABLE}"):
        FileStore(tmp_path / "absent", "a").set("x")


def test_a_start_clears_away_what_killed_ones_have_left_and_nothing_else(
    tmp_path: Path,
) -> None:
    long_ago = time.time() - 2 * rendezvous.FORGOTTEN_SECONDS
    folder = {FOLDER_VARIABLE: str(tmp_path)}
    store_for(LaunchedProcess(SRUN, 0, 4, 0, "killed"), folder).set("key")
    (killed,) = tmp_path.iterdir()
    (tmp_path / f"{killed.name}-x7_d3kq0").write_text("draft")
    users = [".ccbench-notes", ".ccbench-suites.yaml", "ccbench-old", ".other-old"]
    for name in users:
        (tmp_path / name).write_text("the user's own")
    made = f".ccbench-{'0a' * 10}"
    (tmp_path / made).mkdir()
    for path in tmp_path.iterdir():
        os.utime(path, (long_ago, long_ago))
    young = f".ccbench-{'1b' * 10}"
    (tmp_path / young).write_text("key")
    FileStore(tmp_path, "new").set("text")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        [*users, made, young, ".ccbench-new"]
    )


def test_the_users_folder_comes_first_and_processes_on_one_host_need_none(
    tmp_path: Path,
) -> None:
    for process in (
        LaunchedProcess(HYDRA, 0, 2, 2),
        LaunchedProcess(OPEN_MPI, 0, 4, 2, "1@1"),
        LaunchedProcess(SRUN, 0, 4, 0, "7.0"),
    ):
        assert isinstance(store_for(process, {FOLDER_VARIABLE: str(tmp_path)}), FileStore)
    assert isinstance(store_for(LaunchedProcess(HYDRA, 0, 2, 2), {}), FileStore)
    # Its store answers everybody who can connect, and the text holds a key.
    assert isinstance(
        store_for(LaunchedProcess(TORCHRUN, 0, 2, 2, "none-0-127.0.0.1-29500"), {}), FileStore
    )


def test_processes_of_one_start_meet_and_those_of_another_do_not(tmp_path: Path) -> None:
    folder = {FOLDER_VARIABLE: str(tmp_path)}
    store_for(LaunchedProcess(OPEN_MPI, 0, 2, 2, "job 1"), folder).set("first")
    store_for(LaunchedProcess(OPEN_MPI, 0, 2, 2, "job 2"), folder).set("second")
    assert store_for(LaunchedProcess(OPEN_MPI, 1, 2, 2, "job 1"), folder).get() == "first"
    assert store_for(LaunchedProcess(OPEN_MPI, 1, 2, 2, "job 2"), folder).get() == "second"


def test_several_hosts_without_anything_in_common_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rendezvous, "mpi_works", lambda: False)
    with pytest.raises(UsageError, match=f"no way to find each other: set {FOLDER_VARIABLE}"):
        store_for(LaunchedProcess(HYDRA, 0, 4, 2), {})


def test_the_launchers_process_is_found_above_a_script(tmp_path: Path) -> None:
    for number, name, parent in (
        (os.getppid(), "sh", 70),
        (70, "mpi rank (sh)", 60),
        (60, "orted", 1),
    ):
        folder = tmp_path / "proc" / str(number)
        folder.mkdir(parents=True)
        middle = " ".join(["0"] * 17)
        (folder / "stat").write_text(f"{number} ({name}) S {parent} {middle} 4711 0 0\n")
    assert rendezvous._starter(Files(tmp_path)) == "60 4711"
