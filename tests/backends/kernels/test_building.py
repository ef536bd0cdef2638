"""Builds: kept by what they are made of, and clear about what is missing or wrong."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ccbench.backends.kernels import building
from ccbench.backends.kernels.building import Build, built
from ccbench.backends.kernels.cache import DIGEST_BYTES
from ccbench.backends.kernels.host_engine import HostCall, HostOptions, HostWorld
from ccbench.backends.kernels.sources import kernel_folder
from ccbench.errors import MissingDependency, UsageError


def test_a_file_that_is_not_there_lists_those_that_are() -> None:
    with pytest.raises(UsageError, match=r"rings\.cu: no such kernel file; one of .*ring\.cu"):
        built(Build("rings.cu"))


def test_without_a_compiler_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    building.compiler.cache_clear()
    try:
        with pytest.raises(MissingDependency, match=r"'no-such-compiler' was found; install .*g\+\+"):
            built(Build("ring.cu"))
    finally:
        building.compiler.cache_clear()


def test_a_changed_source_is_built_anew_and_a_wrong_one_tells_the_first_error(tmp_path: Path) -> None:
    copy = tmp_path / "kernels"
    shutil.copytree(kernel_folder(), copy)
    same = built(Build("barrier.cu", folder=copy))
    assert same == built(Build("barrier.cu"))
    source = copy / "barrier.cu"
    source.write_text(source.read_text().replace("return rank_barrier(block);", "return rank_barier(block);"))
    with pytest.raises(UsageError, match=r"barrier\.cu: g\+\+ failed: .*rank_barier"):
        built(Build("barrier.cu", folder=copy))


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("CCBENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "host"


def runs(build: Build) -> bool:
    call = HostCall("barrier", "uint8", 0, [0, 0], [0, 0])
    HostWorld(2, 1).run(build, [call], HostOptions(lanes=1))
    return True


@pytest.mark.exhaustive
@pytest.mark.parametrize("sanitize", [False, True], ids=["library", "program"])
def test_damaged_builds_are_made_anew_and_run(cache: Path, sanitize: bool) -> None:
    """A library that was cut short would end the process that loads it."""
    build = Build("barrier.cu", sanitize=sanitize)
    made = built(build)
    right = made.read_bytes()
    made.write_bytes(right[: len(right) // 2])
    for file in cache.glob("*.o"):
        file.write_bytes(b"")
    assert built(build) == made
    assert made.read_bytes()[:-DIGEST_BYTES] == right[:-DIGEST_BYTES]
    assert runs(build)


@pytest.mark.exhaustive
def test_what_is_built_says_nothing_of_where_it_was_built(cache: Path, tmp_path: Path) -> None:
    copy = tmp_path / "somewhere" / "kernels"
    shutil.copytree(kernel_folder(), copy)
    for sanitize in (False, True):
        built(Build("barrier.cu", folder=copy, sanitize=sanitize))
    files = list(cache.iterdir())
    assert len(files) == 13  # four objects of the engine, main, and the kernel, twice; and what they make
    for file in files:
        for place in (copy, tmp_path, Path.cwd(), Path.home() if Path.home() != Path("/") else copy):
            assert str(place).encode() not in file.read_bytes(), file


def test_a_place_that_cannot_be_written_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CCBENCH_CACHE", str(tmp_path / "file"))
    with pytest.raises(UsageError, match=r"file/host: builds cannot be kept here .*CCBENCH_CACHE"):
        built(Build("barrier.cu"))
