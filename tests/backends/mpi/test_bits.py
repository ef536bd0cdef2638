"""Bits of an MPI library's sums, through the whole of ``ccbench run``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ccbench.analysis.bits import bit_rows
from ccbench.backends.mpi import BACKEND
from ccbench.results import load_run
from tests.backends.measuring import command

MISSING = BACKEND.unavailable()


@pytest.mark.exhaustive
@pytest.mark.skipif(MISSING is not None, reason=f"no MPI here: {MISSING}")
def test_the_default_keeps_bits_at_all_sizes_and_a_ring_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of Open MPI the ring can be asked for; of other libraries the default alone is looked at."""
    suite = {
        "backends": ["mpi"],
        "sweep": {
            "collective": "all_reduce",
            "algorithm": ["default", *["mpi:ring"] * ("Open MPI" in BACKEND.version())],
            "ranks": 4,
            "size": ["4 KiB", "16 KiB"],
            "accuracy": "bits",
        },
        "sampling": {"rounds": 1, "budget": "20 ms", "warmup": "5 ms", "minimum_samples": 2},
    }
    (tmp_path / "bits.yaml").write_text(json.dumps(suite))  # JSON is YAML
    monkeypatch.chdir(tmp_path)
    assert command("run", "bits.yaml", "-o", "run", "--no-report", "--oversubscribe") == 0
    for row in bit_rows(load_run(tmp_path / "run").points):
        assert row.shares["launches"] == row.shares["ranks"] == 0
        rings = row.point.algorithm == "mpi:ring"
        assert (row.shares["sizes"] > 0.1) == rings
        assert ("the size of messages" in row.pins) == rings
