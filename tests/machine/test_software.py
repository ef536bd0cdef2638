"""Versions from numbers and file names, and how an extra is installed."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from ccbench.machine.software import (
    cuda_version,
)


@given(st.integers(1, 99), st.integers(0, 9))
def test_numbers_of_cuda_become_versions(major: int, minor: int) -> None:
    assert cuda_version(1000 * major + 10 * minor) == f"{major}.{minor}"


def test_nothing_that_is_shown_or_written_down_installs_ccbench_from_an_index() -> None:
    root = Path(__file__).resolve().parents[2]
    texts = [
        *(root / "ccbench").rglob("*.py"),
        *(root / "docs").rglob("*.md"),
        root / "README.md",
    ]
    assert [path.name for path in texts if "ccbench[" in path.read_text()] == []
