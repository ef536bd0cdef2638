from __future__ import annotations

from pathlib import Path

import pytest

from ccbench.results import Run
from tests.cli.conftest import Command
from tests.report.synthetic import sweep, write_run


@pytest.fixture(autouse=True)
def run(tmp_path: Path) -> Run:
    return write_run(tmp_path / "run", sweep(last=12))


def test_a_report_of_which_no_case_can_be_read_is_no_verdict(
    ccbench: Command, run: Run
) -> None:
    (run.path / "cases.parquet").write_bytes(b"cut")
    assert ccbench("report", "run", "--format", "md").code == 3
