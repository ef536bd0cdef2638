"""docs/kernels.md on algorithms of one's own: its file, its commands as typed, and its errors."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.cli.conftest import Command
from tests.pages import BLOCKS
from tests.readers.schedules import plans

PAGE = (Path(__file__).parents[2] / "docs" / "kernels.md").read_text(encoding="utf-8")
PART = PAGE[PAGE.index("## Your own algorithms") : PAGE.index("## What one H100 showed")]
(PROGRAM,) = (
    block.text
    for block in BLOCKS
    if (block.page.name, block.language) == ("kernels.md", "python")
)
COMMANDS = re.findall(r"^ccbench (.*)$", PART, flags=re.MULTILINE)


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


def test_the_algorithm_takes_six_lines() -> None:
    function = PROGRAM[PROGRAM.index("def star") :]
    assert len([line for line in function.splitlines() if line]) == 6
