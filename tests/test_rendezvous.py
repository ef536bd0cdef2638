"""Processes of one launcher find the first of them."""

from __future__ import annotations

import os
import stat
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from ccbench import rendezvous
from ccbench.errors import UsageError
from ccbench.launched_by import HYDRA, OPEN_MPI, SRUN, TORCHRUN, Seat
from ccbench.listening import Door
from ccbench.rendezvous import FOLDER_VARIABLE, FileWay, came, way_for


def test_a_file_carries_the_text_and_only_its_owner_may_read_it(tmp_path: Path) -> None:
    found: list[str] = []
    seeker = threading.Thread(target=lambda: found.append(FileWay(tmp_path, "a").find()))
    seeker.start()
    way = FileWay(tmp_path, "a")
    way.offer("10.0.0.1:5|key")
    seeker.join(5)
    assert found == ["10.0.0.1:5|key"]
    (file,) = tmp_path.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    way.close()
    assert not list(tmp_path.iterdir())


def test_a_first_process_that_never_comes_is_named_with_the_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendezvous, "LIMIT_SECONDS", 0.1)
    with pytest.raises(UsageError, match=f"rank 0 wrote nothing.*set {FOLDER_VARIABLE}"):
        FileWay(tmp_path, "a").find()


def test_what_a_killed_start_has_left_is_passed_by_for_what_its_successor_says(tmp_path: Path) -> None:
    FileWay(tmp_path, "a").offer(f"127.0.0.1:9|{bytes(32).hex()}")
    key = bytes(range(32))
    with Door(key) as door:
        came_in: list[Connection] = []
        seat = threading.Thread(target=lambda: came_in.append(came(FileWay(tmp_path, "a"))))
        seat.start()
        time.sleep(0.2)
        FileWay(tmp_path, "a").offer(f"{door.addresses[0]}|{key.hex()}")
        found: list[Connection] = []
        deadline = time.monotonic() + 10
        while not found and time.monotonic() < deadline:
            found = door.let_in()
            time.sleep(0.01)
        seat.join(10)
    assert len(found) == len(came_in) == 1
    for connection in (*found, *came_in):
        connection.close()


def test_an_address_that_nothing_replaces_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "SUCCESSOR_SECONDS", 0.2)
    FileWay(tmp_path, "a").offer(f"127.0.0.1:9|{bytes(32).hex()}")
    with pytest.raises(UsageError, match=r"at none of 127\.0\.0\.1:9"):
        came(FileWay(tmp_path, "a"))


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_what_others_lay_there_instead_of_a_file_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(rendezvous, "LIMIT_SECONDS", 0.2)
    (tmp_path / "text").write_text("10.0.0.1:5|key")
    place = tmp_path / ".ccbench-a"
    place.symlink_to(tmp_path / "text") if kind == "link" else os.mkfifo(place)
    found: list[str] = []

    def seek() -> None:
        with pytest.raises(UsageError, match="rank 0 wrote nothing"):
            found.append(FileWay(tmp_path, "a").find())

    seeker = threading.Thread(target=seek, daemon=True)
    seeker.start()
    seeker.join(5)
    assert not seeker.is_alive(), "it waits for somebody to write"
    assert not found


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"cannot be written.*set {FOLDER_VARIABLE}"):
        FileWay(tmp_path / "absent", "a").offer("x")


def test_a_start_clears_away_what_killed_ones_have_left_and_nothing_else(tmp_path: Path) -> None:
    long_ago = time.time() - 2 * rendezvous.FORGOTTEN_SECONDS
    folder = {FOLDER_VARIABLE: str(tmp_path)}
    way_for(Seat(SRUN, 0, 4, 0, "killed"), folder).offer("key")
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
    FileWay(tmp_path, "new").offer("text")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*users, made, young, ".ccbench-new"])


def test_the_users_folder_comes_first_and_processes_on_one_host_need_none(tmp_path: Path) -> None:
    for seat in (Seat(HYDRA, 0, 2, 2), Seat(OPEN_MPI, 0, 4, 2, "1@1"), Seat(SRUN, 0, 4, 0, "7.0")):
        assert isinstance(way_for(seat, {FOLDER_VARIABLE: str(tmp_path)}), FileWay)
    assert isinstance(way_for(Seat(HYDRA, 0, 2, 2), {}), FileWay)
    # Its store answers everybody who can connect, and the text holds a key.
    assert isinstance(way_for(Seat(TORCHRUN, 0, 2, 2, "none-0-127.0.0.1-29500"), {}), FileWay)


def test_processes_of_one_start_meet_and_those_of_another_do_not(tmp_path: Path) -> None:
    folder = {FOLDER_VARIABLE: str(tmp_path)}
    way_for(Seat(OPEN_MPI, 0, 2, 2, "job 1"), folder).offer("first")
    way_for(Seat(OPEN_MPI, 0, 2, 2, "job 2"), folder).offer("second")
    assert way_for(Seat(OPEN_MPI, 1, 2, 2, "job 1"), folder).find() == "first"
    assert way_for(Seat(OPEN_MPI, 1, 2, 2, "job 2"), folder).find() == "second"


def test_several_hosts_without_anything_in_common_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "mpi_works", lambda: False)
    with pytest.raises(UsageError, match=f"no way to find each other: set {FOLDER_VARIABLE}"):
        way_for(Seat(HYDRA, 0, 4, 2), {})


def test_the_launchers_process_is_found_above_a_script(tmp_path: Path) -> None:
    for number, name, parent in ((os.getppid(), "sh", 70), (70, "mpi rank (sh)", 60), (60, "orted", 1)):
        (tmp_path / str(number)).mkdir(exist_ok=True)
        middle = " ".join(["0"] * 17)
        (tmp_path / str(number) / "stat").write_text(f"{number} ({name}) S {parent} {middle} 4711 0 0\n")
    assert rendezvous._starter(tmp_path) == "60 4711"
