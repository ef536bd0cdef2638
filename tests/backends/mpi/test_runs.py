"""``ccbench run`` with MPI on one host: cases are measured, and nobody predicts them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ccbench.backends.mpi import BACKEND
from ccbench.results import load_run
from tests.backends.measuring import command

SUITE = {
    "suite": "here",
    "backends": ["mpi"],
    "sweep": [{"collective": ["all_reduce", "barrier"], "ranks": 2, "size": "2 KiB"}],
    "sampling": {"rounds": 1, "budget": "20 ms", "warmup": "5 ms", "minimum_sample": "500 us"},
}


@pytest.mark.skipif(
    BACKEND.unavailable() is not None, reason=f"no MPI here: {BACKEND.unavailable()}"
)
def test_cases_on_one_host_are_measured_without_a_prediction(tmp_path: Path) -> None:
    (tmp_path / "here.yaml").write_text(json.dumps(SUITE))  # JSON is YAML
    arguments = ["run", str(tmp_path / "here.yaml"), "-o", str(tmp_path / "run"), "--no-report"]
    assert command(*arguments) == 0
    run = load_run(tmp_path / "run")
    for row in run.table.to_pylist():
        assert row["status"] == "ok", row["detail"]
        assert row["samples_seconds"]
        assert row["predicted_seconds"] is row["bound_seconds"] is None
