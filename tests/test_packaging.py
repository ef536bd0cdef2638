"""The wheel carries what a user needs away from the checkout."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from ccbench.documents import shipped_folder
from ccbench.errors import CcbenchError

CHECKOUT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def unpacked_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from a copy of the checkout with one new run lying in ``results``."""
    if find_spec("hatchling") is None or find_spec("pip") is None:
        pytest.skip("building a wheel needs hatchling and pip: pip install '.[dev]'")
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE", ".gitignore"):
        shutil.copy(CHECKOUT / name, source / name)
    for name in ("ccbench", "suites", "kernels", "results", "docs"):
        if (CHECKOUT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "20*")
            shutil.copytree(CHECKOUT / name, source / name, ignore=ignored)
    new_run = source / "results" / "20260101T000000Z-quick-somewhere"
    new_run.mkdir(parents=True)
    (new_run / "run.json").write_text("{}")
    (source / "results" / "reference").mkdir(exist_ok=True)
    (source / "results" / "reference" / "planted.json").write_text("{}")
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        ".",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
    ]
    built = subprocess.run([*command, "built"], cwd=source, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    (wheel,) = (source / "built").glob("ccbench-*.whl")
    target = tmp_path_factory.mktemp("site-packages")
    zipfile.ZipFile(wheel).extractall(target)
    return target


def test_suites_published_results_and_machines_are_in_the_wheel(unpacked_wheel: Path) -> None:
    for one, shipped in (
        ("suites/quick.yaml", "_shipped/suites"),
        ("results/published/hgx-h100.parquet", "_shipped/results/published"),
        ("ccbench/topology/catalog/hgx-h100.yaml", "topology/catalog"),
    ):
        file = CHECKOUT / one
        found = {
            other.name
            for other in (unpacked_wheel / "ccbench" / shipped).glob(f"*{file.suffix}")
        }
        assert file.name in found
        assert found == {other.name for other in file.parent.glob(f"*{file.suffix}")}


def test_the_pages_are_in_the_wheel_with_their_pictures(unpacked_wheel: Path) -> None:
    (pages,) = unpacked_wheel.glob("ccbench-*.data/data/share/doc/ccbench")
    assert {page.name for page in pages.rglob("*.*")} == {
        page.name for page in (CHECKOUT / "docs").rglob("*.*")
    }


def test_the_man_page_goes_where_man_looks_beside_the_programs(unpacked_wheel: Path) -> None:
    (page,) = unpacked_wheel.glob("ccbench-*.data/data/share/man/man1/ccbench.1")
    assert page.read_bytes() == (CHECKOUT / "docs/ccbench.1").read_bytes()


def test_reference_results_are_in_the_wheel_and_new_runs_are_not(unpacked_wheel: Path) -> None:
    results = unpacked_wheel / "ccbench/_shipped/results"
    assert (results / "reference" / "planted.json").is_file()
    assert not list(results.glob("20*"))


def test_the_wheel_holds_the_package_its_type_marker_and_its_licence_but_no_tests(
    unpacked_wheel: Path,
) -> None:
    assert (unpacked_wheel / "ccbench" / "py.typed").is_file()
    assert list(unpacked_wheel.glob("ccbench-*.dist-info/licenses/LICENSE"))
    assert {
        entry.name
        for entry in unpacked_wheel.iterdir()
        if not entry.name.endswith((".dist-info", ".data"))
    } == {"ccbench"}


def test_an_unpacked_wheel_finds_its_own_suites(unpacked_wheel: Path, tmp_path: Path) -> None:
    script = "from ccbench.documents import shipped_folder; print(shipped_folder('suites'))"
    # Run elsewhere with this path only, so that the wheel is imported and not the checkout.
    process = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env={"PYTHONPATH": str(unpacked_wheel), "PATH": ""},
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stderr
    assert Path(process.stdout.strip()) == unpacked_wheel / "ccbench/_shipped/suites"
    assert (Path(process.stdout.strip()) / "quick.yaml").is_file()


def test_the_lowest_versions_that_are_tried_are_those_that_pyproject_admits() -> None:
    text = (CHECKOUT / "pyproject.toml").read_text(encoding="utf-8")
    lists = re.findall(
        r"^(?:dependencies|dev) = \[(.*?)^\]", text, flags=re.DOTALL | re.MULTILINE
    )
    floors = dict(re.findall(r'"([\w-]+)>=([\w.]+)', "".join(lists)))
    lowest = (CHECKOUT / "constraints" / "lowest.txt").read_text(encoding="utf-8")
    pins = dict(re.findall(r"^([\w-]+)==([\w.]+)$", lowest, flags=re.MULTILINE))
    assert len(lists) == 2
    assert set(floors) <= set(pins)
    for name, floor in floors.items():
        # 18 admits 18.0.0, which is what a pin calls it.
        assert f"{pins[name]}.".startswith(f"{floor}."), name


def test_the_installed_copy_wins_over_a_folder_beside_the_package(tmp_path: Path) -> None:
    package = tmp_path / "ccbench"
    (package / "_shipped" / "results").mkdir(parents=True)
    (tmp_path / "results").mkdir()
    (tmp_path / "pyproject.toml").touch()
    assert shipped_folder("results", package) == package / "_shipped" / "results"


def test_a_stranger_folder_in_site_packages_is_not_taken_for_ours(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    with pytest.raises(CcbenchError, match="the shipped folder 'results' is missing"):
        shipped_folder("results", tmp_path / "ccbench")
