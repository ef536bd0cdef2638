"""Builds: kept by what they are made of, and clear about what is missing or wrong."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

import pytest

from ccbench.backends.kernels import building
from ccbench.backends.kernels.building import (
    DIGEST_BYTES,
    Build,
    built,
    content,
    kept,
    private_folder,
)
from ccbench.backends.kernels.host_engine import HostCall, HostOptions
from ccbench.backends.kernels.sources import kernel_folder
from ccbench.errors import UsageError
from tests.backends.kernels.checked import CheckedWorld


def test_a_changed_source_is_built_anew_and_a_wrong_one_tells_the_first_error(
    tmp_path: Path,
) -> None:
    copy = tmp_path / "kernels"
    shutil.copytree(kernel_folder(), copy)
    same = built(Build("barrier.cu", folder=copy))
    assert same == built(Build("barrier.cu"))
    source = copy / "barrier.cu"
    source.write_text(
        source.read_text().replace("return rank_barrier(block);", "return rank_barier(block);")
    )
    with pytest.raises(UsageError, match=r"barrier\.cu: g\+\+ failed: .*rank_barier"):
        built(Build("barrier.cu", folder=copy))


TEXT = b"what was compiled"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache that is empty."""
    monkeypatch.setenv("CCBENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def folder(place: Path) -> Path:
    return private_folder("host")


@pytest.fixture
def file(folder: Path) -> Path:
    """What was kept."""
    return kept(folder / "a", write)


def write(path: Path) -> None:
    path.write_bytes(TEXT)


def runs(build: Build) -> bool:
    call = HostCall("barrier", "uint8", 0, [0, 0], [0, 0])
    CheckedWorld(2, 1).run(build, [call], HostOptions(lanes=1))
    return True


@pytest.mark.exhaustive
@pytest.mark.parametrize("sanitize", [False, True], ids=["library", "program"])
def test_damaged_builds_are_made_anew_and_run(place: Path, sanitize: bool) -> None:
    """A library that was cut short would end the process that loads it."""
    build = Build("barrier.cu", sanitize=sanitize)
    made = built(build)
    right = made.read_bytes()
    made.write_bytes(right[: len(right) // 2])
    for object_file in place.glob("host/*.o"):
        object_file.write_bytes(b"")
    building._shipped_built.cache_clear()  # as another process finds it
    assert built(build) == made
    assert made.read_bytes()[:-DIGEST_BYTES] == right[:-DIGEST_BYTES]
    assert runs(build)


@pytest.mark.exhaustive
def test_what_is_built_says_nothing_of_where_it_was_built(place: Path, tmp_path: Path) -> None:
    copy = tmp_path / "somewhere" / "kernels"
    shutil.copytree(kernel_folder(), copy)
    for sanitize in (False, True):
        built(Build("barrier.cu", folder=copy, sanitize=sanitize))
    files = list((place / "host").iterdir())
    assert (
        len(files) == 13
    )  # four objects of the engine, main, and the kernel, twice; and what they make
    for built_file in files:
        for there in (
            copy,
            tmp_path,
            Path.cwd(),
            Path.home() if Path.home() != Path("/") else copy,
        ):
            assert str(there).encode() not in built_file.read_bytes(), built_file


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_folders_and_files_are_the_users_alone_whatever_the_umask(
    place: Path, umask: int
) -> None:
    before = os.umask(umask)
    try:
        file = kept(private_folder("host") / "a", write)
    finally:
        os.umask(before)
    for path in (place, place / "host", file):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700


def test_a_folder_that_others_may_enter_is_closed(folder: Path) -> None:
    folder.chmod(0o777)
    assert stat.S_IMODE(private_folder("host").stat().st_mode) == 0o700


def test_what_belongs_to_another_user_is_refused_or_made_anew(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    assert content(file) is None
    with pytest.raises(
        UsageError, match=rf"host: is no folder of user {owner + 1} .*CCBENCH_CACHE"
    ):
        private_folder("host")


def test_a_link_in_place_of_the_folder_is_refused(folder: Path, tmp_path: Path) -> None:
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="host: is no folder of user"):
        private_folder("host")


def test_a_folder_that_vanished_is_named_and_not_a_traceback(folder: Path) -> None:
    folder.rmdir()
    with pytest.raises(UsageError, match=r"host: builds cannot be kept here .*CCBENCH_CACHE"):
        kept(folder / "a", write)
