"""Kernels through NVRTC, and the cache of what it made."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from ccbench.backends.kernels import building
from ccbench.backends.kernels.building import (
    CompilationFailed,
    compile_program,
    first_error,
    version_in,
)
from ccbench.backends.kernels.sources import CompilerInput, entries, program
from ccbench.errors import MissingDependency
from tests.backends.kernels.nvrtc import ABSENT as NO_NVRTC
from tests.backends.kernels.nvrtc import library as nvrtc_library


class Counting(building.Nvrtc):
    """Compiles to a text that says how often it was asked."""

    def __init__(self) -> None:
        self.version = "1.2"
        self.full_version = "1.2.3 CL-4"
        self.compiled: list[int] = []

    def compile(self, program: CompilerInput, architecture: int) -> bytes:
        self.compiled.append(architecture)
        return f"{program.text} {architecture}".encode()


PROGRAM = CompilerInput("kernel", {"a.cuh": "a"}, ("-std=c++17",))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CCBENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "cubins"


def test_what_was_compiled_once_comes_from_the_cache_unless_that_is_damaged(
    cache: Path,
) -> None:
    counting = Counting()
    first = compile_program(PROGRAM, 90, compiler=counting)
    assert compile_program(PROGRAM, 90, compiler=counting) == first
    assert counting.compiled == [90]
    (file,) = cache.iterdir()
    assert file.suffix == ".cubin"
    file.write_bytes(file.read_bytes()[:-1])
    assert compile_program(PROGRAM, 90, compiler=counting) == first
    assert counting.compiled == [90, 90]


@pytest.mark.parametrize("anothers", [False, True], ids=["no folder", "another user's folder"])
def test_a_folder_that_cannot_be_used_is_left_alone_and_costs_only_time(
    cache: Path, monkeypatch: pytest.MonkeyPatch, anothers: bool
) -> None:
    counting, owner = Counting(), os.geteuid()
    if anothers:
        compile_program(PROGRAM, 90, compiler=counting)
        counting.compiled.clear()
        monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    else:
        cache.parent.mkdir(parents=True)
        cache.write_text("a file where a folder should be")
    for _ in range(2):
        assert compile_program(PROGRAM, 90, compiler=counting)
    assert counting.compiled == [90, 90]


@pytest.mark.parametrize(
    ("ptx", "version"),
    [
        (
            "//\n// Compiler Build ID: CL-36037853\n// Cuda compilation tools, release 12.9, V12.9.86\n",
            "12.9.86 CL-36037853",
        ),
        ("// Cuda compilation tools, release 14.0, V14.0.1\n.version 10.0\n", "14.0.1"),
        (".version 8.8\n.target sm_90\n", ""),
    ],
)
def test_the_patch_level_is_read_from_the_comment_before_ptx(ptx: str, version: str) -> None:
    assert version_in(ptx) == version


@pytest.mark.exhaustive
@pytest.mark.skipif(nvrtc_library() is None, reason=NO_NVRTC)
def test_the_library_that_is_installed_tells_its_patch_level() -> None:
    installed = building.nvrtc()
    assert installed.full_version.startswith(installed.version + ".")


class Installed:
    """Two NVRTCs that are installed, as ``ctypes.CDLL`` and ``Nvrtc`` show them."""

    supported: ClassVar = {"12.9": (50, 70, 75, 80, 90), "13.0": (75, 80, 90)}

    def __init__(self, path: str) -> None:
        self.version = {"13": "13.0", "12": "12.9"}[path.rpartition(".so.")[2]]
        self.architectures = self.supported[self.version]


@pytest.fixture
def two_installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(building, "candidates", lambda: ["libnvrtc.so.13", "libnvrtc.so.12"])
    monkeypatch.setattr(ctypes, "CDLL", str)
    monkeypatch.setattr(building, "Nvrtc", Installed)
    building.nvrtc.cache_clear()
    yield
    building.nvrtc.cache_clear()


@pytest.mark.usefixtures("two_installed")
@pytest.mark.parametrize(
    ("capability", "cupy", "driver", "version"),
    [
        (90, 13, 13, "13.0"),
        (90, 12, 13, "12.9"),  # as CuPy
        (90, 13, 12, "12.9"),  # a driver of CUDA 12 loads no cubins of CUDA 13
        (70, 13, 13, "12.9"),  # Volta, which the other has left behind
        (0, 0, 0, "13.0"),
    ],
)
def test_of_two_compilers_that_of_cupy_the_driver_and_the_device_is_taken(
    capability: int, cupy: int, driver: int, version: str
) -> None:
    assert building.nvrtc(capability, cupy, driver).version == version


@pytest.mark.usefixtures("two_installed")
def test_where_no_compiler_serves_the_reason_has_the_cure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(building, "candidates", lambda: ["libnvrtc.so.13"])
    with pytest.raises(
        MissingDependency, match=r"NVRTC 13\.0 is too new for this driver, .* CUDA 12; pip"
    ):
        building.nvrtc(90, 12, 12)
    with pytest.raises(CompilationFailed, match=r"sm_70; .* pip install '\.\[cuda12\]'"):
        building.nvrtc(70, 13, 13)


@pytest.mark.parametrize(
    ("log", "line"),
    [
        ("a.cu(1): warning: odd\na.cu(2): error: bad\n1 error", "a.cu(2): error: bad"),
        ("only this", "only this"),
        ("", "it gave no reason"),
    ],
)
def test_the_first_error_is_shown(log: str, line: str) -> None:
    assert first_error(log) == line


def test_without_nvrtc_the_error_has_the_install_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "candidates", lambda: ["/no/such/libnvrtc.so"])
    building.nvrtc.cache_clear()
    try:
        with pytest.raises(MissingDependency, match=r"pip install '\.\[cuda13\]'"):
            building.nvrtc()
    finally:
        building.nvrtc.cache_clear()


@pytest.mark.exhaustive
def test_a_real_kernel_compiles() -> None:
    made = compile_program(program(entries()["barrier"], "uint8", "sum"), 90)
    assert made.startswith(b"\x7fELF")


@pytest.mark.exhaustive
def test_a_real_mistake_is_told_with_its_place() -> None:
    with pytest.raises(CompilationFailed, match=r"sm_90: ccbench\.cu\(1\): error: "):
        compile_program(CompilerInput("nonsense;", {}, ("-std=c++17",)), 90)
