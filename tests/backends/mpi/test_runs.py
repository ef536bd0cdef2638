"""``ccbench run`` with MPI on one host: its cases are predicted from messages that it sends itself first."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ccbench.backends.mpi import BACKEND
from ccbench.cli import main
from ccbench.results import load_run
from ccbench.runner.network_probe import ONE_HOST_SIZES_BYTES

SUITE = {
    "suite": "here",
    "backends": ["mpi"],
    "sweep": [{"collective": ["all_reduce", "barrier"], "ranks": 2, "size": "2 KiB"}],
    "sampling": {"rounds": 1, "budget": "20 ms", "warmup": "5 ms", "minimum_sample": "500 us"},
}


@pytest.mark.skipif(
    BACKEND.unavailable() is not None, reason=f"no MPI here: {BACKEND.unavailable()}"
)
def test_cases_on_one_host_have_predictions_and_bounds(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "here.yaml").write_text(json.dumps(SUITE))  # JSON is YAML
    arguments = ["run", str(tmp_path / "here.yaml"), "-o", str(tmp_path / "run"), "--no-report"]
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 0
    assert "measuring messages between the ranks with mpi" in capfd.readouterr().err
    run = load_run(tmp_path / "run")
    for row in run.table.to_pylist():
        assert row["status"] == "ok", row["detail"]
        assert 0 < row["bound_seconds"] <= row["predicted_seconds"]
        assert "inside the host" in row["bottleneck"]
    (network,) = run.manifest.document["host_networks"]
    assert network["between"] is None
    assert network["inside"]["sizes_bytes"] == [
        size for size in ONE_HOST_SIZES_BYTES if size <= 2048
    ]
