"""Bits from suite to report, comparison and advice, on the CPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from ccbench.cli import main
from tests.cli.conftest import Command

SUITE = """
sweep:
  collective: all_reduce
  algorithm: [ring, recursive_doubling]
  size: [16 KiB, 64 KiB]
  ranks: 3
  accuracy: {{data: normal, seed: {seed}}}
sampling: {{rounds: 2, start_ranks: {starts}, budget: 5 ms, warmup: 1 ms, minimum_samples: 2}}
"""


def measure(folder: Path, name: str, starts: str = "once", seed: int = 1) -> str:
    (folder / f"{name}.yaml").write_text(SUITE.format(starts=starts, seed=seed))
    words = ["--backend=cpu", "--oversubscribe", "-o", str(folder / name)]
    with pytest.raises(SystemExit) as leaving:
        main(["run", str(folder / f"{name}.yaml"), *words])
    assert leaving.value.code == 0
    return str(folder / name)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A ring, whose bits depend on the size, and recursive doubling, twice with fresh ranks."""
    return measure(tmp_path_factory.mktemp("bits"), "run", "each_round")


@pytest.fixture(scope="module")
def again(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The same once more."""
    return measure(tmp_path_factory.mktemp("bits"), "again")


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The same on other numbers."""
    return measure(tmp_path_factory.mktemp("bits"), "other", seed=2)


def test_page_and_markdown_have_the_table(ccbench: Command, run: str) -> None:
    assert ccbench("report", run, "--format", "html,md").code == 0
    for name in ("report.html", "report.md"):
        text = (Path(run) / "report" / name).read_text()
        assert "Elements whose bits differ" in text
        assert "float32, chain 1+2+0" in text


@pytest.mark.exhaustive
def test_bits_that_changed_are_told_and_fail_where_they_must_be_the_same(
    ccbench: Command, run: str, again: str
) -> None:
    same = ccbench("compare", run, again, "--json").json
    assert same["verdict"].endswith("the same bits in 4")
    assert [point["changed_bits"] for point in same["points"]] == [0.0] * 4
    by_algorithm = ccbench("compare", run, "--by", "algorithm", "--same-bits")
    assert "BITS CHANGED in 2 of 2, up to" in by_algorithm.out
    assert by_algorithm.code == 1
    alone = ccbench("compare", run, again, "--same-bits", "--json")
    assert alone.json["verdict"].startswith(
        "no regression of bits: the same bits in 4; times: "
    )
    assert alone.code == 0


@pytest.mark.exhaustive
def test_bits_of_other_data_are_not_compared(ccbench: Command, run: str, other: str) -> None:
    ended = ccbench("compare", run, other, "--same-bits", "--json")
    assert (
        "bits of 4 not compared: other inexact data (normal / normal, seed 2)"
        in ended.json["verdict"]
    )
    assert ended.code == 3


def test_advice_that_keeps_bits_names_what_gives_equal_ones(ccbench: Command, run: str) -> None:
    ended = ccbench("tune", run, "--reproducible").done
    assert "cpu recursive_doubling  instead of cpu ring" in ended.out
    (situation,) = ccbench("tune", run, "--reproducible", "--json").json["situations"]
    assert {band["choice"]["algorithm"] for band in situation["bands"]} == {
        "recursive_doubling"
    }


@pytest.mark.thinned(1)
@pytest.mark.parametrize(
    ("fault", "word"), [("flipped", "from launch to launch"), ("reordered", "between ranks")]
)
def test_bits_that_differ_where_nothing_changed_end_run_and_report_with_1(
    ccbench: Command, monkeypatch: pytest.MonkeyPatch, fault: str, word: str
) -> None:
    monkeypatch.setenv("CCBENCH_FAULT", f"{fault}:rank=1")
    sizes = ("--sizes=32K", "--ranks=3", "--rounds=1", "--backend=cpu", "--oversubscribe")
    ended = ccbench(
        "run", "all_reduce", *sizes, "--accuracy", "bits", "-o", "out", "--no-report"
    )
    assert ended.code == 1
    assert ended.out.startswith(f"BITS DIFFER {word} in 1 of 1 configuration")
    assert ccbench("report", "out", "--format", "csv").code == 1
    plain = ccbench("run", "all_reduce", *sizes, "-o", "plain", "--no-report")
    assert plain.code == 0
    assert "bits" not in plain.out.lower()


def test_a_suite_that_asks_for_bits_where_there_are_none_is_told(ccbench: Command) -> None:
    sizes = ("--sizes", "32K", "--ranks", "2", "--rounds", "1", "--backend", "cpu")
    ended = ccbench(
        "run", "all_gather", *sizes, "--accuracy", "bits", "-o", "out", "--no-report"
    )
    assert ended.done.out.startswith("No bits: the suite asks for accuracy, but no case")
