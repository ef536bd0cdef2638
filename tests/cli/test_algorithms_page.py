"""docs/algorithms.md: its file, its commands as typed, and its errors."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.cli.conftest import Command
from tests.pages import BLOCKS
from tests.readers.schedules import plans

PAGE = (Path(__file__).parents[2] / "docs" / "algorithms.md").read_text(encoding="utf-8")
(PROGRAM,) = (
    block.text
    for block in BLOCKS
    if (block.page.name, block.language) == ("algorithms.md", "python")
)
COMMANDS = re.findall(r"^ccbench (.*)$", PAGE, flags=re.MULTILINE)
(REFUSAL,) = re.findall(r"^(ccbench: error: .*)$", PAGE, flags=re.MULTILINE)


@pytest.fixture
def _files(tmp_path: Path) -> None:
    (tmp_path / "star.py").write_text(PROGRAM)
    (tmp_path / "allreduce.json").write_text(plans.text(plans.two_shot()))


@pytest.mark.usefixtures("_files")
def test_every_command_does_what_it_says(ccbench: Command, tmp_path: Path) -> None:
    assert len(COMMANDS) == 7
    for command in COMMANDS:
        words = shlex.split(command)
        # Whole sweeps take a minute; that a case is measured is shown in test_schedule_files.
        ended = ccbench(*words, *(["--plan"] if words[0] == "run" else [])).done
        name = (
            "star"
            if "star.py" in words
            else "my_plan"
            if "allreduce.json" in command
            else "ring"
        )
        assert name in ended.out
        assert words[0] == "run" or "--export" in words or "proven: every output" in ended.out
    for name in ("star.svg", "plan.json"):
        assert (tmp_path / name).exists()


@pytest.mark.usefixtures("_files")
def test_a_wrong_star_is_refused_as_the_page_says(ccbench: Command, tmp_path: Path) -> None:
    (tmp_path / "star.py").write_text(PROGRAM.replace("phase(0, leaves, 0)", "phase(0, 1, 0)"))
    assert REFUSAL in ccbench("schedule", "--file", "star.py", "--ranks", "4").refused.err


def test_the_algorithm_takes_six_lines() -> None:
    function = PROGRAM[PROGRAM.index("def star") :]
    assert len([line for line in function.splitlines() if line]) == 6


def test_the_page_says_of_the_bits_of_a_ring_what_the_command_says(ccbench: Command) -> None:
    (sample,) = re.findall(r"^bits: .*\nerror: .*\n", PAGE, flags=re.MULTILINE)
    assert sample in ccbench("schedule", "all_reduce", "ring", "--ranks", "4").done.out
