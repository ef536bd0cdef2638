"""The benchmark that lays ccbench's times beside a plain loop's, as far as no GPU is needed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import nccl_fidelity
from benchmarks.nccl_fidelity import (
    GRAPH_LAUNCHES,
    MOST_LAUNCHES,
    Comparison,
    PlainLoop,
    build_command,
    built,
    compared,
    launches_for,
    main,
    table,
)
from ccbench.backends import nccl
from ccbench.errors import CcbenchError, MissingDependency

from .measuring import case_of, opened

LOOP = """#!{python}
import sys
for line in sys.stdin:
    size, launches, mode = line.split()
    print(10e-6 + int(size) / 100e9 if int(size) < 1000000 else 1.0, flush=True)
"""


def test_without_a_gpu_it_ends_with_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(nccl, "driver_missing", lambda: "this machine has no NVIDIA driver; x")
    assert main([]) == 2
    assert "NCCL needs an NVIDIA GPU" in capsys.readouterr().err


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


def test_both_are_asked_by_turns_and_their_medians_compared(tmp_path: Path) -> None:
    program = tmp_path / "loop"
    program.write_text(LOOP.format(python=sys.executable))
    program.chmod(0o755)
    endpoint, _ = opened(2)
    loop = PlainLoop(program, 2)
    comparison = compared(
        endpoint, loop, case_of("all_reduce", 2, 1000, mode="graph"), "graph", 3
    )
    loop.close()
    # The double takes what this loop claims.
    assert comparison.ratio == pytest.approx(1.0)
    assert comparison.kept


@pytest.mark.thinned(1)
@pytest.mark.parametrize("mode", ["graph", "plain"])
def test_the_loop_lets_its_gpus_go_before_a_stream_is_full(tmp_path: Path, mode: str) -> None:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("g++ is not on PATH")
    for header in ("cuda.h", "cuda_runtime.h", "nccl.h", "dlfcn.h"):
        (tmp_path / header).write_text(f'#include "{Path(__file__).parent / "no_gpu.h"}"\n')
    program = tmp_path / "loop"
    command = [
        compiler,
        "-std=c++17",
        "-I",
        str(tmp_path),
        "-x",
        "c++",
        str(nccl_fidelity.SOURCE),
    ]
    subprocess.run([*command, "-o", str(program)], check=True)
    request = f"8 {MOST_LAUNCHES} {mode}\n"
    done = subprocess.run(
        [program, "2", "8"], input=request, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert float(done.stdout) == pytest.approx(1e-3 / MOST_LAUNCHES)


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


@pytest.mark.parametrize(
    ("size", "mode", "seconds", "ratio", "kept"),
    [
        (8, "graph", 1e-5, 1.05, False),
        (8, "plain", 1e-5, 3.0, True),
        (8, "plain", 1e-3, 3.0, True),
        (16 << 20, "plain", 8e-6, 3.0, True),
        (16 << 20, "plain", 1e-4, 1.05, False),
        (1 << 20, "plain", 1e-4, 1.02, True),
        (8, "graph", 1e-5, 0.9, False),
    ],
)
def test_the_promise_covers_graphs_and_plain_launches_that_take_longer_than_the_host(
    size: int, mode: str, seconds: float, ratio: float, kept: bool
) -> None:
    comparison = Comparison(size, mode, seconds, ratio * seconds)
    assert comparison.kept == kept
    assert ("outside of" in table([comparison])) == (not kept)
