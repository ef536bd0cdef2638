"""Versions from headers, file names and variables."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.machine.files import Files
from ccbench.machine.software import (
    cuda_version,
    header_versions,
    install_line,
    loadable_versions,
    version_in_header,
)
from tests.machine.laid_out import lay_out


@given(st.integers(1, 99), st.integers(0, 99), st.integers(0, 99))
def test_an_nccl_header_tells_its_version(major: int, minor: int, patch: int) -> None:
    text = f"#define NCCL_MAJOR {major}\n#define NCCL_MINOR {minor}\n#define NCCL_PATCH {patch}\n"
    assert version_in_header(text) == f"{major}.{minor}.{patch}"


@pytest.mark.parametrize(
    ("text", "version"),
    [("#define CUDA_VERSION 12090\n", "12.9"), ("#define NCCL_MAJOR 2\n", None), ("", None)],
)
def test_a_cuda_header_tells_its_version_and_others_none(text: str, version: str | None) -> None:
    assert version_in_header(text) == version


@given(st.integers(1, 99), st.integers(0, 9))
def test_numbers_of_cuda_become_versions(major: int, minor: int) -> None:
    assert cuda_version(1000 * major + 10 * minor) == f"{major}.{minor}"


def test_headers_and_libraries_of_the_system_are_found_by_their_files(tmp_path: Path) -> None:
    files = {
        "usr/include/nccl.h": "#define NCCL_MAJOR 2\n#define NCCL_MINOR 19\n#define NCCL_PATCH 3\n",
        "usr/local/cuda/include/cuda.h": "#define CUDA_VERSION 12040\n",
        "usr/lib64/libnccl.so.2.19.3": "",
        "usr/lib64/libnccl.so.2": "",
        "usr/lib64/libcudart.so.12.4.127": "",
        "usr/lib64/libz.so.1.3.1": "",
    }
    headers = header_versions(Files(lay_out(tmp_path, files)))
    assert headers["/usr/include/nccl.h"] == "2.19.3"
    assert headers["/usr/local/cuda/include/cuda.h"] == "12.4"
    assert loadable_versions(Files(tmp_path)) == {
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
    texts = [*(root / "ccbench").rglob("*.py"), *(root / "docs").rglob("*.md"), root / "README.md"]
    assert [path.name for path in texts if "ccbench[" in path.read_text()] == []
