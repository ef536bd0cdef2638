"""The benchmark that lays ccbench's times beside a plain loop's, as far as no GPU is needed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from benchmarks import nccl_fidelity
from benchmarks.nccl_fidelity import (
    GRAPH_LAUNCHES,
    MOST_LAUNCHES,
    PlainLoop,
    build_command,
    built,
    launches_for,
)
from ccbench.errors import CcbenchError, MissingDependency


def test_without_a_compiler_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name, path=None: None)
    with pytest.raises(MissingDependency, match="nvcc is not on PATH"):
        built(tmp_path)


def test_a_failing_compiler_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "nvcc"
    compiler.write_text("#!/bin/sh\necho no such header >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setattr(shutil, "which", lambda name, path=None: str(compiler))
    with pytest.raises(
        CcbenchError, match=r"nvcc cannot build nccl_fidelity\.cu: no such header"
    ):
        built(tmp_path)


def test_the_loop_links_the_library_that_the_wheel_brings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = ([tmp_path / "include"], [tmp_path / "lib"])
    monkeypatch.setattr(nccl_fidelity, "library_folders", lambda: folders)
    command = build_command("nvcc", tmp_path / "out")
    assert f"-I{tmp_path}/include" in command
    assert f"-Xlinker=-rpath={tmp_path}/lib" in command
    assert command[-1] == "-l:libnccl.so.2"


def test_a_loop_that_ended_is_said(tmp_path: Path) -> None:
    program = tmp_path / "loop"
    program.write_text("#!/bin/sh\necho no device >&2\nexit 1\n")
    program.chmod(0o755)
    loop = PlainLoop(program, 2)
    with pytest.raises(CcbenchError, match="the C\\+\\+ loop ended: no device"):
        loop.seconds(8, 1, "plain")
    loop.close()


@pytest.mark.parametrize(
    ("seconds", "launches"), [(1.0, GRAPH_LAUNCHES), (1e-9, MOST_LAUNCHES), (1e-4, 192)]
)
def test_samples_are_whole_graphs(seconds: float, launches: int) -> None:
    assert launches_for(seconds) == launches
