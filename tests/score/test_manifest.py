from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.score.manifest import REQUIRED, ManifestEntry, read_manifest
from ccbench.errors import UsageError
from tests.score.corpora import HOPPER


def read(folder: Path, value: Any) -> tuple[ManifestEntry, ...]:
    path = folder / "m.yaml"
    path.write_text(value if isinstance(value, str) else yaml.safe_dump(value))
    return read_manifest(path)


def with_fields(**changes: Any) -> list[dict[str, Any]]:
    return [{"file": "a.txt", **HOPPER, **changes}]


@pytest.mark.parametrize("name", REQUIRED)
def test_a_missing_field_is_named_with_its_place(tmp_path: Path, name: str) -> None:
    fields = {key: value for key, value in with_fields()[0].items() if key != name}
    with pytest.raises(UsageError, match=rf"m\.yaml\[1\]: {name} is missing; give it"):
        read(tmp_path, [*with_fields(), fields])


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ("- {file: [", "is not YAML"),
        ("- &a {file: x}\n- *a", "m.yaml"),
        ("just words", "is not a list of logs"),
        ([], "is not a list of logs"),
        ({"logs": 3}, "is not a list of logs"),
        (["words"], "is not a mapping"),
        (with_fields(file=7), "is not a file name"),
        (with_fields(nodes=1.5), "is not a number"),
        (with_fields(nodes=-1), "out of range"),
        (with_fields(gpus_per_node=True), "is not a number"),
        (with_fields(healthy="perhaps"), "write true, false or unknown"),
        (with_fields(gpu=["H100"]), "is not text"),
    ],
)
def test_damage_is_one_line_with_the_place(tmp_path: Path, value: Any, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint) as caught:
        read(tmp_path, value)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)
    assert "m.yaml" in str(caught.value)


def test_a_file_that_is_not_there_or_not_text_says_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        read_manifest(tmp_path / "absent.yaml")
    with pytest.raises(UsageError, match="cannot be read"):
        read_manifest(tmp_path)
    (tmp_path / "m.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="not UTF-8"):
        read_manifest(tmp_path / "m.yaml")


@given(st.text(max_size=40))
def test_any_words_for_a_number_are_numbers_or_none(tmp_path_factory: Any, words: str) -> None:
    folder = tmp_path_factory.mktemp("manifest")
    try:
        (entry,) = read(folder, with_fields(nodes=words))
    except UsageError:
        return
    assert all(0 <= number <= 1_000_000 for number in entry.nodes)


@pytest.mark.parametrize("again", ["a.txt", "./a.txt", "b/../a.txt"])
def test_a_log_that_is_listed_twice_is_refused(tmp_path: Path, again: str) -> None:
    with pytest.raises(UsageError, match=r"m\.yaml\[1\]: .*a\.txt is there already, as \[0\]"):
        read(tmp_path, [{"file": "a.txt", **HOPPER}, {"file": again, **HOPPER}])


@pytest.mark.parametrize(
    ("written", "meant"),
    [("collectiv", "collective"), ("nccl-version", "nccl_version"), ("force", "forced")],
)
def test_a_misspelt_field_is_refused_with_the_one_that_was_meant(
    tmp_path: Path, written: str, meant: str
) -> None:
    fields = {name: value for name, value in HOPPER.items() if name != meant}
    with pytest.raises(UsageError, match=f"is not a field that is read; did you mean {meant}"):
        read(tmp_path, [{"file": "a.txt", **fields, written: "2.20.5"}])
