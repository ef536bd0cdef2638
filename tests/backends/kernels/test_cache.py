"""The cache: only what this user wrote, and only as it was written."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from ccbench.backends.kernels import cache
from ccbench.backends.kernels.cache import cache_folder, content, intact, kept, private_folder
from ccbench.errors import UsageError

TEXT = b"what was compiled"


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CCBENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def write(path: Path) -> None:
    path.write_bytes(TEXT)


def refuse(_: Path) -> None:
    raise AssertionError("made anew")


def test_it_lies_where_the_user_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CCBENCH_CACHE", str(tmp_path / "named"))
    assert cache_folder() == tmp_path / "named"
    monkeypatch.delenv("CCBENCH_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "ccbench"


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o066, 0o077])
def test_folders_and_files_are_the_users_alone_whatever_the_umask(place: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        file = kept(private_folder("host") / "a", write)
    finally:
        os.umask(before)
    for one in (place, place / "host", file):
        assert stat.S_IMODE(one.stat().st_mode) == 0o700


def test_a_folder_that_others_may_enter_is_closed(place: Path) -> None:
    (place / "host").mkdir(parents=True)
    (place / "host").chmod(0o777)
    assert stat.S_IMODE(private_folder("host").stat().st_mode) == 0o700


def test_what_is_kept_is_not_made_again() -> None:
    file = kept(private_folder("host") / "a", write)
    assert kept(file, refuse) == file
    assert content(file) == TEXT
    cache._INTACT.clear()  # as another process finds it
    assert kept(file, refuse) == file


@pytest.mark.parametrize(
    "damage",
    [
        lambda stored: b"",
        lambda stored: stored[:-1],
        lambda stored: stored[:40],
        lambda stored: b"x" + stored[1:],
        lambda stored: stored + b"x",
        lambda stored: TEXT,
    ],
    ids=["empty", "cut", "cut short", "one byte", "longer", "no digest"],
)
def test_what_is_damaged_is_made_anew(damage) -> None:  # type: ignore[no-untyped-def]
    file = kept(private_folder("host") / "a", write)
    file.write_bytes(damage(file.read_bytes()))
    assert not intact(file)
    assert content(kept(file, write)) == TEXT


def test_what_others_might_have_written_is_made_anew() -> None:
    file = kept(private_folder("host") / "a", write)
    file.chmod(0o722)
    assert content(file) is None
    assert content(kept(file, write)) == TEXT
    other = file.with_name("other")
    file.rename(other)
    file.symlink_to(other)
    assert not intact(file)
    assert not kept(file, write).is_symlink()


def test_what_belongs_to_another_user_is_refused_or_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    file = kept(private_folder("host") / "a", write)
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    assert not intact(file)
    assert content(file) is None
    with pytest.raises(UsageError, match=rf"host: is no folder of user {owner + 1} .*CCBENCH_CACHE"):
        private_folder("host")


def test_a_link_in_place_of_the_folder_is_refused(place: Path, tmp_path: Path) -> None:
    place.mkdir()
    (tmp_path / "elsewhere").mkdir()
    (place / "host").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="host: is no folder of user"):
        private_folder("host")


def test_what_fails_leaves_nothing_behind() -> None:
    folder = private_folder("host")

    def fail(path: Path) -> None:
        path.write_bytes(b"half of it")
        raise UsageError("no")

    with pytest.raises(UsageError, match="no"):
        kept(folder / "a", fail)
    assert list(folder.iterdir()) == []


def test_a_folder_that_vanished_is_named_and_not_a_traceback() -> None:
    folder = private_folder("host")
    folder.rmdir()
    with pytest.raises(UsageError, match=r"host: builds cannot be kept here .*CCBENCH_CACHE"):
        kept(folder / "a", write)


def test_readers_never_see_a_file_that_is_half_written() -> None:
    """Twenty times anew in one thread, while another reads."""
    file = kept(private_folder("host") / "a", write)
    done = threading.Event()

    def fill() -> None:
        for _ in range(20):
            cache._fill(file, write)
        done.set()

    writer = threading.Thread(target=fill)
    writer.start()
    while not done.is_set():
        assert content(file) == TEXT
    writer.join()
