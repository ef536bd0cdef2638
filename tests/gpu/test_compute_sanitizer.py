"""NVIDIA's compute-sanitizer finds nothing in small cases; it comes with CUDA toolkits, not wheels."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ccbench.backends.cuda.blocking_kernel import SWITCH
from ccbench.backends.cuda.runtime import Cuda

ROOT = Path(__file__).resolve().parents[2]
FOUND_SOMETHING = 9
LIMIT_SECONDS = 240


def sanitizer() -> str | None:
    """The program, on the path or in a toolkit."""
    toolkits = [os.environ.get("CUDA_PATH"), os.environ.get("CUDA_HOME"), "/usr/local/cuda"]
    places = [os.environ.get("PATH", ""), *(f"{folder}/bin" for folder in toolkits if folder)]
    return shutil.which("compute-sanitizer", path=os.pathsep.join(places))


@pytest.mark.parametrize("tool", ["memcheck", "racecheck", "synccheck"])
def test_a_tool_finds_nothing(cuda: Cuda, tool: str) -> None:
    program = sanitizer()
    if program is None:
        pytest.skip("no compute-sanitizer here: it comes with the CUDA toolkit")
    words = [program, "--tool", tool, "--error-exitcode", str(FOUND_SOMETHING)]
    done = subprocess.run(
        [*words, sys.executable, "-m", "tests.gpu.small_cases"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), SWITCH: "off"},
        timeout=LIMIT_SECONDS,
        check=False,
    )
    report = f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    assert done.returncode == 0, report
    assert re.search(r"SUMMARY: 0 (?:errors|hazards)", report), report  # it did watch
