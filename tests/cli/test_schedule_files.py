"""Algorithms of the user's own files, from the command line: shown, proven, priced, measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from ccbench.schedules import added_algorithms
from tests.cli.conftest import Command
from tests.readers.schedules import plans
from tests.readers.schedules.test_program import STAR

SUITE = """
backends: [cpu]
sweep: {collective: [all_reduce, broadcast], size: 1KiB, ranks: 2}
sampling: {rounds: 1, budget: 10ms}
"""


@pytest.fixture(autouse=True)
def _files(tmp_path: Path) -> None:
    (tmp_path / "star.py").write_text(STAR)
    (tmp_path / "wrong.py").write_text(STAR.replace("phase(0, leaves, 0)]", "phase(0, 1, 0)]"))
    (tmp_path / "s.yaml").write_text(SUITE)


def test_schedule_proves_prices_and_draws_a_file(ccbench: Command, tmp_path: Path) -> None:
    ended = ccbench(
        *[
            "schedule",
            "--file",
            "star.py",
            "--ranks",
            "4",
            "--machine",
            "hgx-h100",
            "--draw",
            "s.svg",
        ]
    ).done
    for words in (
        "all_reduce star, 4 ranks\nsource: star.py",
        "proven: every output of 4 ranks holds every contribution exactly once",
        "\n  size      star      ring      NCCL  best of ccbench's others ",
        "wrote s.svg",
    ):
        assert words in ended.out
    assert (tmp_path / "s.svg").exists()
    assert added_algorithms() == ()


def test_schedule_refuses_a_wrong_file_with_what_is_missing(ccbench: Command) -> None:
    ended = ccbench("schedule", "--file", "wrong.py", "--ranks", "3").refused
    assert "missing: A0, A1" in ended.err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            "--ranks 3",
            "COLLECTIVE ALGORITHM: missing; write all_reduce ring, another of 'ccbench list "
            "algorithms', or --file FILE",
        ),
        ("--file star.py", "--ranks: missing"),
        ("reduce --file star.py --ranks 3", "the files have all_reduce star"),
    ],
)
def test_schedule_says_what_is_missing(ccbench: Command, words: str, sentence: str) -> None:
    assert sentence in ccbench("schedule", *words.split()).refused.err


@pytest.mark.thinned(1)
@pytest.mark.parametrize(("backend", "name"), [("cpu", "star"), ("cuda-host", "schedule:star")])
def test_a_run_measures_it_beside_the_default(
    ccbench: Command, tmp_path: Path, backend: str, name: str
) -> None:
    words = f"run s.yaml --schedule star.py --backend {backend} -o r --no-report --json"
    ended = ccbench(*words.split())
    assert ended.json["counts"] == {"ok": 3}
    listing = ccbench(*f"run s.yaml --schedule star.py --backend {backend} --plan".split()).out
    assert listing.count(f"all_reduce {name} ") == 1
    assert listing.count(" default ") == 2


@pytest.mark.exhaustive
def test_a_run_is_resumed_with_the_same_text_alone(ccbench: Command, tmp_path: Path) -> None:
    assert (
        ccbench(
            *["run", "s.yaml", "--schedule", "star.py", "-o", "r", "--no-report", "--json"]
        ).code
        == 0
    )
    (tmp_path / "star.py").write_text(STAR + "# changed\n")
    again = ["run", "s.yaml", "--schedule", "star.py", "--resume", "r", "--no-report", "--json"]
    assert "options.schedules of this run differs" in ccbench(*again).refused.err
    (tmp_path / "star.py").write_text(STAR)
    assert ccbench(*again).json["counts"] == {"ok": 3}


def test_a_run_refuses_a_wrong_file_before_anything_is_measured(
    ccbench: Command, tmp_path: Path
) -> None:
    words = ["run", "s.yaml", "--ranks", "3", "--schedule", "wrong.py", "-o", "r"]
    assert "missing: A0, A1" in ccbench(*words).refused.err
    assert not (tmp_path / "r").exists()


def test_a_suite_names_algorithms_and_no_files(ccbench: Command, tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(SUITE.replace("ranks: 2", "ranks: 2, algorithm: star.py"))
    assert "star.py" in ccbench("run", "s.yaml", "--plan").refused.err
    named = SUITE.replace("ranks: 2", "ranks: 2, algorithm: star")
    (tmp_path / "s.yaml").write_text(named)
    assert "'star' is no algorithm" in ccbench("run", "s.yaml", "--plan").refused.err
    assert (
        ccbench(*["run", "s.yaml", "--plan", "--schedule", "star.py"]).out.count(
            "all_reduce star "
        )
        == 1
    )


@pytest.mark.exhaustive
@pytest.mark.thinned(1)
@pytest.mark.parametrize("backend", ["cpu", "cuda-host"])
def test_a_plan_is_measured_on_its_number_of_ranks(
    ccbench: Command, tmp_path: Path, backend: str
) -> None:
    (tmp_path / "plan.json").write_text(plans.text(plans.two_shot()))
    words = [
        "run",
        "s.yaml",
        "--schedule",
        "plan.json",
        "--backend",
        backend,
        "--no-report",
        "--json",
        "--oversubscribe",
    ]
    assert ccbench(*words, "-o", "r").json["counts"] == {"ok": 3}
    other = ccbench(*words, "-o", "r3", "--ranks", "3")
    assert other.json["counts"] == {"ok": 2, "unsupported": 1}


def test_a_plan_for_other_ranks_says_for_how_many(ccbench: Command, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(plans.text(plans.two_shot()))
    ended = ccbench("schedule", "--file", "plan.json", "--ranks", "3").refused
    assert "plan.json is for 2 ranks; take --ranks 2" in ended.err


def test_a_plan_is_written_and_read_back(ccbench: Command, tmp_path: Path) -> None:
    words = ["schedule", "all_reduce", "ring", "--ranks", "8", "--export"]
    written = "wrote plan.json: all_reduce ring, 8 ranks\n"
    assert ccbench(*words, "plan.json").done.out == written
    proven = ccbench(*words, "plan.json", "--prove").done.out
    assert "proven: " in proven
    assert proven.endswith(written)
    shown = ccbench("schedule", "--file", "plan.json", "all_reduce", "plan_ring").done.out
    assert "all_reduce plan_ring, 8 ranks" in shown
    assert "proven: " in shown
    assert "write plan.json" in ccbench(*words, "plan.xml").refused.err
    words = ["schedule", "gather", "direct", "--ranks", "8", "--export", "plan.json"]
    assert "no such collective" in ccbench(*words).refused.err
