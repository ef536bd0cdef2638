"""Algorithms of the user's own files, from the command line: shown, proven, priced, measured."""

from __future__ import annotations

from pathlib import Path

import pytest

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
