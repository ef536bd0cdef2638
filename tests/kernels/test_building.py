"""Builds: kept by what they are made of, and clear about what is missing or wrong."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ccbench.errors import MissingDependency, UsageError
from ccbench.kernels import building
from ccbench.kernels.building import Build, built, cache_folder
from ccbench.kernels.sources import kernel_folder


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


def test_builds_are_kept_where_the_user_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "ccbench"
    monkeypatch.setenv("CCBENCH_CACHE", str(tmp_path / "named"))
    assert cache_folder() == tmp_path / "named"


def test_a_place_that_cannot_be_written_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CCBENCH_CACHE", str(tmp_path / "file"))
    with pytest.raises(UsageError, match=r"file/host: builds cannot be kept here .*CCBENCH_CACHE"):
        built(Build("barrier.cu"))
