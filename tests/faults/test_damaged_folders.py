"""Files of a run folder that are cut off, or were never ours: named, and the rest is as good as before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]  # ships no types
import pyarrow.parquet as pq  # type: ignore[import-untyped]  # ships no types

from ccbench.results import load_run
from tests.faults.conftest import Bench


def test_damaged_cases_are_named_the_rest_is_reported_and_resume_heals(bench: Bench, figure: Any) -> None:
    suite = bench.suite({"collective": ["all_reduce", "broadcast", "barrier", "all_gather"]})
    ended = bench.run(suite)
    assert ended.code == 0
    cases = ended.folder / "cases"
    first, second, third, _ = sorted(cases.glob("*.parquet"))
    damage_is = _damage(first, second, third)
    (cases / "notes.parquet").write_text("not parquet at all")
    run = load_run(ended.folder)
    assert len(run.cases) == 1
    assert len(run.problems) == 4
    for path in (*damage_is, cases / "notes.parquet"):
        assert any(problem.startswith(f"{path}: ") for problem in run.problems)
    report = bench.command("report", "out", "--format", "md")
    assert report.code == 0
    assert run.cases.iloc[0]["collective"] in (bench.folder / "out" / "report" / "report.md").read_text()
    (cases / "notes.parquet").unlink()
    assert bench.run(suite, "--resume", "out").code == 0
    assert len(ended.rows) == 4
    figure(f"4 of 5 files damaged: {len(run.problems)} named, 1 case loads, resume measures 3 again")


def _damage(truncated: Path, emptied: Path, foreign: Path) -> tuple[Path, Path, Path]:
    truncated.write_bytes(truncated.read_bytes()[:-100])
    emptied.write_bytes(b"")
    pq.write_table(pa.table({"x": [1, 2]}), foreign)
    return truncated, emptied, foreign
