"""In CI nothing may be skipped unseen."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ALONE, EXHAUSTIVE, PORTABLE

CONFTEST = Path(__file__).parent / "conftest.py"

GPU_SKIP = "import pytest\n@pytest.mark.gpu\ndef test_gpu():\n    pytest.skip('no GPU')\n"
OTHER_SKIP = "import pytest\ndef test_mpi():\n    pytest.skip('no MPI')\n"
MODULE_SKIP = "import pytest\npytest.skip('no torch', allow_module_level=True)\n"
EXPECTED_FAILURE = "import pytest\n@pytest.mark.xfail\ndef test_later():\n    assert False\n"
PASSING = "def test_fine():\n    pass\n"


def session(folder: Path, tests: str, ci: str) -> subprocess.CompletedProcess[str]:
    """One pytest session over ``tests`` with this project's conftest."""
    shutil.copy(CONFTEST, folder / "conftest.py")
    (folder / "test_one.py").write_text(tests)
    (folder / "test_passing.py").write_text(PASSING)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n    gpu: needs a GPU\n")
    environment = {**os.environ, "CCBENCH_CI": ci}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder)


@pytest.mark.exhaustive
@pytest.mark.thinned(1)
@pytest.mark.parametrize("tests", [OTHER_SKIP, MODULE_SKIP])
def test_a_skip_fails_the_session_and_is_named_before_the_closing_line(
    tmp_path: Path, tests: str
) -> None:
    ended = session(tmp_path, tests, ci="1")
    assert ended.returncode == 1, ended.stdout
    assert "skips that are not allowed in CI" in ended.stdout
    assert "1 passed, 1 skipped" in ended.stdout.splitlines()[-1]


FAILING = OTHER_SKIP + "def test_bad():\n    assert 0\n"


@pytest.mark.exhaustive
@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    ("tests", "ci", "code"),
    [(GPU_SKIP + EXPECTED_FAILURE, "1", 0), (OTHER_SKIP, "", 0), (FAILING, "1", 1)],
)
def test_skips_for_want_of_a_gpu_and_outside_ci_are_allowed_and_a_failure_stays_one(
    tmp_path: Path, tests: str, ci: str, code: int
) -> None:
    ended = session(tmp_path, tests, ci)
    assert ended.returncode == code, ended.stdout
    assert ("1 failed, 1 passed" in ended.stdout) == (code == 1)


PROPERTY = """
from hypothesis import given, strategies
@given(strategies.integers())
def test_property(number):
    pass
"""


@pytest.mark.exhaustive
@pytest.mark.thinned(1)
@pytest.mark.parametrize("beside", [[], ["-n", "2"]])
def test_what_one_session_has_passed_the_next_leaves_out_but_for_properties(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beside: list[str]
) -> None:
    monkeypatch.setenv("CCBENCH_TESTED", str(tmp_path / "tested.txt"))
    monkeypatch.setenv("PYTEST_ADDOPTS", " ".join(beside))
    tests = GPU_SKIP + PROPERTY + "def test_bad():\n    assert 0\n"
    assert "1 failed, 2 passed, 1 skipped" in session(tmp_path, tests, ci="1").stdout
    again = session(tmp_path, tests, ci="1")
    assert "1 failed, 1 passed, 1 skipped" in again.stdout, again.stdout


def test_places_that_are_named_are_there() -> None:
    for place in (*ALONE, *EXHAUSTIVE, *PORTABLE):
        assert (CONFTEST.parent / place).exists(), f"tests/conftest.py names {place}"


COMBINED = """
import pytest

@pytest.mark.thinned(3)
@pytest.mark.parametrize("one", "abc")
@pytest.mark.parametrize("other", "de")
def test_combined(one, other):
    pass

def test_plain():
    pass
"""


@pytest.mark.exhaustive
def test_a_thinned_test_keeps_every_value_of_its_parameters_in_the_quick_tier(
    tmp_path: Path,
) -> None:
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nmarkers =\n    thinned: n\n    exhaustive: more\n    alone: by itself\n"
    )
    shutil.copy(CONFTEST, tmp_path / "conftest.py")
    (tmp_path / "test_combined.py").write_text(COMBINED)

    def collected(marks: str) -> set[str]:
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "--co",
            "-p",
            "no:cacheprovider",
            "-m",
            marks,
            ".",
        ]
        shown = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path).stdout
        return {line.partition("::")[2] for line in shown.splitlines() if "::" in line}

    quick, rest = collected("not exhaustive"), collected("exhaustive")
    assert len(quick) == len(rest) + 1 == 4
    assert {
        letter for name in quick for letter in name.partition("[")[2] if letter in "abcde"
    } == set("abcde")
    assert not quick & rest
