from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Command
from tests.report.synthetic import sweep, write_run


@pytest.fixture(autouse=True)
def run(tmp_path: Path) -> None:
    """Two algorithms to choose between."""
    write_run(tmp_path / "run", sweep(algorithms=("ring", "tree")))


def test_the_table_names_the_fastest_and_its_gain(ccbench: Command) -> None:
    ended = ccbench("tune", "run").done
    assert "cpu ring" in ended.out
    assert "instead of cpu tree, +" in ended.out


def test_json_has_sizes_in_bytes_and_gains_as_fractions(ccbench: Command) -> None:
    ended = ccbench("tune", "run", "--json")
    (situation,) = ended.json["situations"]
    assert ended.json["version"] == 1
    assert situation["bands"][-1]["high_bytes"] == 2**26
    gain = situation["bands"][-1]["smallest_gain"]
    assert gain["low"] <= gain["median"] <= gain["high"]


def test_files_are_written_where_o_says(ccbench: Command, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    assert ccbench("tune", "run", "--format", "nccl-csv", "-o", "out").code == 0
    assert ccbench("tune", "run", "--format", "nccl-env", "-o", "mine.sh").code == 0
    assert (tmp_path / "out/nccl_tuner.conf").read_text().startswith("# made by ccbench")
    assert (tmp_path / "mine.sh").read_text().startswith("# made by ccbench")


def test_every_situation_that_was_compared_is_told(ccbench: Command, tmp_path: Path) -> None:
    algorithms = ("default", "halving_doubling", "tree")
    write_run(
        tmp_path / "more", [*sweep("all_reduce", algorithms), *sweep("all_gather", algorithms)]
    )
    ended = ccbench("tune", "more", "--minimum-gain", "90%").done
    assert ["all_gather," in ended.out, "all_reduce," in ended.out] == [True, True]


def test_a_run_with_nothing_to_compare_is_no_verdict(ccbench: Command, tmp_path: Path) -> None:
    write_run(tmp_path / "one", sweep())
    ended = ccbench("tune", "one")
    assert ended.code == 3
    assert "nothing to compare" in ended.out


def test_files_that_cannot_be_read_are_named(ccbench: Command, tmp_path: Path) -> None:
    for file in sorted((tmp_path / "run/cases").glob("*.parquet"))[:7]:
        file.write_bytes(file.read_bytes()[:50])
    ended = ccbench("tune", "run")
    assert len([line for line in ended.err.splitlines() if line.startswith("note: ")]) == 6
    assert "note: 2 more files could not be read" in ended.err


def test_mistakes_are_one_line_with_a_cure(ccbench: Command) -> None:
    for arguments in (
        ("tune", "absent"),
        ("tune", "run", "--minimum-gain", "much"),
        ("tune", "run", "--assume-algorithm", "ring"),
        ("tune", "run", "--json", "--format", "nccl-csv"),
        ("tune", "run", "-o", "absent/file"),
    ):
        assert ccbench(*arguments).refused
