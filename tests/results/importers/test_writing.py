from __future__ import annotations

from pathlib import Path

from ccbench.results.importers.writing import each_once, unique_names


def test_a_file_that_is_given_again_is_read_once(tmp_path: Path) -> None:
    first, other, linked = tmp_path / "a.txt", tmp_path / "b.txt", tmp_path / "c.txt"
    first.write_text("a")
    other.write_text("a")
    linked.symlink_to(first)
    again = tmp_path / "." / "folder" / ".." / "a.txt"
    (tmp_path / "folder").mkdir()
    assert each_once([first, other, again, linked]) == ((first, other), (again, linked))


def test_no_name_begins_with_two_slashes(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    names = unique_names([path, path])
    assert len(set(names)) == 2
    assert not any(name.startswith("/") for name in names)
