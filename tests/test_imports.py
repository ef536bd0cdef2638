"""``import ccbench`` and ``ccbench --help`` are cheap, and the public names are the promised ones."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import ccbench

HEAVY = (
    "cupy",
    "matplotlib",
    "mpi4py",
    "numpy",
    "pandas",
    "pyarrow",
    "pydantic",
    "rich",
    "scipy",
    "torch",
    "yaml",
)


def test_heavy_libraries_stay_out() -> None:
    script = f"""
import sys
import ccbench.cases.axes, ccbench.errors
from ccbench.cli import main
for words in ([], ["--help"], ["--version"], ["run", "--help"]):
    try:
        words and main(words)
    except SystemExit as end:
        assert end.code in (0, None), end.code
    heavy = sorted(set({HEAVY!r}) & set(sys.modules))
    assert not heavy, (words, heavy)
print("loaded:")
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[-1].split() == ["loaded:"]


def test_a_run_and_its_ranks_do_without_pandas(tmp_path: Path) -> None:
    """The ranks of the cpu backend are forked: what they have, the process that runs the suite has."""
    script = f"""
import sys
from ccbench.cli import main
try:
    main(["run", "quick", "--only", "broadcast default float32 64 B", "--time-limit", "10s", "-q",
          "--no-report", "--machine", "cpu-shared-memory", "-o", {str(tmp_path / "run")!r}])
except SystemExit as end:
    print(end.code, "pandas" in sys.modules)
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert ended.stdout.splitlines()[-1] == "0 False", ended.stdout + ended.stderr


def test_public_names_are_complete() -> None:
    assert set(ccbench.__all__) == set(ccbench._HOMES)
    assert set(ccbench.__all__) <= set(dir(ccbench))


@pytest.mark.parametrize("name", ccbench.__all__)
def test_every_public_name_resolves_to_the_one_its_home_has(name: str) -> None:
    assert getattr(ccbench, name) is getattr(
        importlib.import_module(ccbench._HOMES[name]), name
    )


def test_a_name_that_is_not_public_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'fastest'"):
        _ = ccbench.fastest
