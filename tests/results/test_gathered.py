"""One file of all cases: quicker to read, and never believed when the cases' own files say otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest

from ccbench.results import RunFolder, load_run
from ccbench.results.files import read_row
from ccbench.results.loading import GATHERED_NAME
from tests.results.samples import PREDICTION, measured

CASES = 12


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("ccbench.results.loading.FEWEST_CASES", CASES)
    with RunFolder.create(tmp_path / "run", {}) as run:
        for number in range(1, CASES + 1):
            run.write(measured(number * 1024), PREDICTION)
    return tmp_path / "run"


def reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The case files that are opened from now on."""
    opened: list[Path] = []

    def read(file: Path) -> object:
        opened.append(file)
        return read_row(file)

    monkeypatch.setattr("ccbench.results.loading.read_row", read)
    return opened


def test_the_second_reading_opens_one_file_and_gives_the_same(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = load_run(folder)
    assert (folder / GATHERED_NAME).is_file()
    opened = reads(monkeypatch)
    second = load_run(folder)
    assert opened == []
    assert second.problems == ()
    assert first.table.equals(second.table)


def test_a_case_written_anew_is_read_from_its_own_file(folder: Path) -> None:
    load_run(folder)
    with RunFolder.resume(folder) as run:
        run.write(measured(1024, seconds=0.5), PREDICTION)
    assert max(point.median_seconds or 0.0 for point in load_run(folder).points) > 0.4


def test_a_damaged_one_costs_nothing(folder: Path) -> None:
    whole = load_run(folder)
    content = bytearray((folder / GATHERED_NAME).read_bytes())
    content[len(content) // 2] ^= 0xFF
    (folder / GATHERED_NAME).write_bytes(content)
    again = load_run(folder)
    assert again.problems == ()
    assert whole.table.equals(again.table)
