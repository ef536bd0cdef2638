from __future__ import annotations

from pathlib import Path

import pytest

from ccbench.comparison.loading import COLUMNS, load_compared
from ccbench.errors import RunFolderError, UsageError
from ccbench.runs import RunFolder, load_run

from .synthetic import MANIFEST, case, measured


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with RunFolder.create(tmp_path / "run", MANIFEST) as folder:
        for place in (3, 1, 2):
            folder.write(measured(case(place), [[1e-5, 2e-5], [3e-5]]), None)
    return tmp_path / "run"


def test_what_is_read_is_what_the_whole_run_has_in_its_order_and_types(folder: Path) -> None:
    import pandas as pd

    whole, found = load_run(folder), load_compared(folder)
    assert found.manifest == whole.manifest
    pd.testing.assert_frame_equal(found.cases, whole.cases[list(COLUMNS)])


def test_a_run_with_a_damaged_file_is_read_and_the_file_named(folder: Path) -> None:
    file = next((folder / "cases").glob("*.parquet"))
    file.write_bytes(file.read_bytes()[:-100])
    found = load_compared(folder)
    assert len(found.cases) == 2
    assert file.name in found.problems[0]


def test_a_file_under_another_name_is_no_case_of_the_run(folder: Path) -> None:
    file = next((folder / "cases").glob("*.parquet"))
    file.rename(file.with_name("0123456789abcdef.parquet"))
    assert len(load_compared(folder).problems) == 1


def test_a_run_without_its_manifest_is_read_with_a_note(folder: Path) -> None:
    (folder / "run.json").unlink()
    found = load_compared(folder)
    assert len(found.cases) == 3
    assert "run.json" in found.problems[0]


def test_no_run_and_no_published_name_are_errors(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError):
        load_compared(tmp_path / "nowhere")
    with pytest.raises(UsageError):
        load_compared("published:abacus")
    assert len(load_compared("published:hgx-h100").cases)


def test_a_large_run_is_read_from_one_file_the_second_time(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pandas as pd

    monkeypatch.setattr("ccbench.runs.loading.FEWEST_CASES", 3)
    monkeypatch.setattr("ccbench.comparison.loading.FEWEST_CASES", 3)
    first = load_compared(folder)
    monkeypatch.setattr("ccbench.runs.loading.read_case", None)  # whoever opens a case's own file fails
    pd.testing.assert_frame_equal(load_compared(folder).cases, first.cases)


def test_a_large_run_with_a_damaged_file_names_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ccbench.runs.loading.FEWEST_CASES", 3)
    monkeypatch.setattr("ccbench.comparison.loading.FEWEST_CASES", 3)
    file = next((folder / "cases").glob("*.parquet"))
    file.write_bytes(file.read_bytes()[:-100])
    found = load_compared(folder)
    assert len(found.cases) == 2
    assert file.name in found.problems[0]
