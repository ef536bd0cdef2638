"""Run folders that are damaged twice, changed by hand, and taken by imports."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq  # type: ignore[import-untyped]  # ships no types
import pytest

from ccbench.errors import RunFolderError
from ccbench.results import RunFolder, load_run
from ccbench.results.imported_runs import replacing_import

from ..results.samples import left_by_a_kill, measured


def test_what_each_resume_found_damaged_stays_noted_and_kept(tmp_path: Path) -> None:
    path, found = left_by_a_kill(tmp_path / "run", measured()), list[str]()
    log = path / "cases.log"
    line = log.read_bytes()
    for content in (line[:-9], line + line[:-9]):
        log.write_bytes(content)
        with RunFolder.resume(path) as folder:
            found += folder.problems
            assert folder.manifest["notes"] == found
    assert len(list(path.glob("cases.log.*.damaged"))) == 2


def test_a_table_that_somebody_changed_is_gone_on_with_and_keeps_its_columns_and_rows(
    tmp_path: Path,
) -> None:
    path = left_by_a_kill(tmp_path / "run", measured(1024), measured(2048))
    RunFolder.resume(path).close()
    file = path / "cases.parquet"
    table = pq.read_table(file).append_column("mine", [["one", "two"]])
    pq.write_table(table.drop_columns(["case_id"]), file)
    with RunFolder.resume(path) as folder:
        folder.write(measured(4096), None)
    assert pq.read_table(file)["mine"].to_pylist() == ["one", "two", None]
    assert len(load_run(path).problems) == 2


def imported_to(folder: Path, name: str) -> None:
    """As ``ccbench check a.txt -o folder``."""
    with replacing_import(folder, ["a.txt"], force=False) as new:
        RunFolder.create(
            new, {"suite": {"name": name}, "imported": [{"source": "a.txt"}]}
        ).close()


def test_an_import_goes_where_a_link_leads_to(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "real")
    for name in ("first", "second"):
        imported_to(tmp_path / "link", name)
        assert load_run(tmp_path / "real").suite == name
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(RunFolderError, match="give another name"):
        imported_to(tmp_path / "loop", "third")


def test_an_import_that_cannot_have_its_place_leaves_the_earlier_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    imported_to(tmp_path / "run", "first")
    rename = Path.rename

    def refuse(path: Path, target: Path) -> Any:
        if path.name == "new":
            raise OSError(errno.EBUSY, "busy")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(RunFolderError, match="a disk, not a folder of one"):
        imported_to(tmp_path / "run", "second")
    monkeypatch.chdir(tmp_path / "run")
    with pytest.raises(RunFolderError, match="you are in this folder"):
        imported_to(Path(), "second")
    assert load_run(tmp_path / "run").suite == "first"
    assert not [*tmp_path.glob(".*")]


def test_a_run_that_came_to_the_place_of_an_import_meanwhile_stays(tmp_path: Path) -> None:
    path = tmp_path / "run"
    importing = replacing_import(path, ["a.txt"], force=True)
    RunFolder.create(importing.__enter__(), {}).close()
    left_by_a_kill(path, measured())
    with pytest.raises(RunFolderError, match="no empty folder"):
        importing.__exit__(None, None, None)
    assert len(load_run(path).points) == 1
