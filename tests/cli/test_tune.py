from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Command
from tests.report.synthetic import sweep, write_run


@pytest.fixture(autouse=True)
def run(tmp_path: Path) -> None:
    """Two algorithms to choose between."""
    write_run(tmp_path / "run", sweep(algorithms=("ring", "tree")))


def test_mistakes_are_one_line_with_a_cure(ccbench: Command) -> None:
    for arguments in (
        ("tune", "absent"),
        ("tune", "run", "--minimum-gain", "much"),
        ("tune", "run", "--assume-algorithm", "ring"),
        ("tune", "run", "--json", "--format", "nccl-csv"),
        ("tune", "run", "-o", "absent/file"),
        ("tune", "run", "--tokens", "1,few"),
    ):
        assert ccbench(*arguments).refused
