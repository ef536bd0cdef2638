"""Versions from numbers and file names, and how an extra is installed."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.machine.files import Files
from ccbench.machine.software import (
    cuda_version,
    install_line,
    loadable_versions,
)
from tests.machine.laid_out import lay_out


@given(st.integers(1, 99), st.integers(0, 9))
def test_numbers_of_cuda_become_versions(major: int, minor: int) -> None:
    assert cuda_version(1000 * major + 10 * minor) == f"{major}.{minor}"


def test_libraries_of_the_system_are_found_by_their_files(tmp_path: Path) -> None:
    files = {
        "usr/lib64/libnccl.so.2.19.3": "",
        "usr/lib64/libnccl.so.2": "",
        "usr/lib64/libcudart.so.12.4.127": "",
        "usr/lib64/libz.so.1.3.1": "",
    }
    assert loadable_versions(Files(lay_out(tmp_path, files))) == {
        "/usr/lib64/libnccl.so.2.19.3": "2.19.3",
        "/usr/lib64/libcudart.so.12.4.127": "12.4.127",
    }


def test_an_extra_is_installed_from_the_checkout_for_ccbench_is_on_no_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    (checkout / "pyproject.toml").write_text('[project]\nname = "ccbench"\n')
    monkeypatch.chdir(tmp_path)
    assert install_line("mpi", tmp_path / "site-packages") == "pip install 'ccbench[mpi]'"
    assert install_line("mpi", checkout) == "pip install '.[mpi]' in ccbench's checkout"
    monkeypatch.chdir(checkout)
    for place in (checkout, tmp_path / "site-packages"):
        assert install_line("mpi", place) == "pip install '.[mpi]'"


def test_nothing_that_is_shown_or_written_down_installs_ccbench_from_an_index() -> None:
    root = Path(__file__).resolve().parents[2]
    texts = [
        *(root / "ccbench").rglob("*.py"),
        *(root / "docs").rglob("*.md"),
        root / "README.md",
    ]
    assert [path.name for path in texts if "ccbench[" in path.read_text()] == []
