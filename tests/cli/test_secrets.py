"""Nothing that people share of a run holds a secret: folder, report, screen, errors."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from tests.cli.conftest import Command

SRUN = Path(__file__).resolve().parents[1] / "fake_srun"
SECRET = "hunter2andmore"
VARIABLES = ("CUDA_CREDS", "MPICH_PASS", "I_MPI_HYDRA_PW", "NCCL_OF_MY_OWN")


@pytest.mark.exhaustive
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="gloo needs torch")
def test_secrets_of_the_launcher_and_of_variables_are_in_nothing_that_a_run_leaves(
    ccbench: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in VARIABLES:
        monkeypatch.setenv(name, SECRET)
    suite = tmp_path / "one.yaml"
    suite.write_text(
        "sweep: [{collective: all_reduce, size: [8 B, 16 B]}]\n"
        "sampling: {rounds: 1, budget: 5 ms, warmup: 1 ms}\n"
    )
    launch = f"env DB_TOKEN={SECRET} NCCL_ALGO=Ring {SRUN} -n 2"
    run = ("run", str(suite), "--backend", "gloo", "--launch", launch)
    ended = ccbench(*run, "-o", "run")
    assert ended.code == 0, ended.err
    reported = ccbench("report", "run")
    printed = ccbench("run", str(suite), "--backend", "gloo", "--launch", launch, "--resume", "run", "--json")
    stopped = ccbench(*run, "-o", "short", "--time-limit", "1 ms")
    assert f"--launch 'env '\"'\"'DB_TOKEN=<redacted>'\"'\"' NCCL_ALGO=Ring {SRUN} -n 2'" in stopped.err
    for one in (ended, reported, printed, stopped):
        assert SECRET not in one.out + one.err
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {"run.json", "report.html", "report.md"} <= {path.name for path in files}
    assert any(path.suffix == ".parquet" for path in files)
    assert [path for path in files if SECRET.encode() in path.read_bytes()] == []
    manifest = json.loads((tmp_path / "run" / "run.json").read_text())
    assert manifest["options"]["launch"] == f"env 'DB_TOKEN=<redacted>' NCCL_ALGO=Ring {SRUN} -n 2"
    assert {manifest["environment"]["variables"][name] for name in VARIABLES} == {"<redacted>"}


@pytest.mark.parametrize(
    "launch",
    [
        f"sh -c 'echo cannot log in with {SECRET} >&2; exit 3' sh DB_TOKEN={SECRET}",
        f"DB_TOKEN={SECRET} mpirun -n 2",
        f"mpirun -x DB_TOKEN={SECRET} 'and no end",
    ],
)
def test_errors_about_a_launcher_do_not_tell_its_secrets(ccbench: Command, launch: str) -> None:
    ended = ccbench("run", "quick", "--backend", "gloo", "--launch", launch)
    assert ended.code in (2, 3)
    assert SECRET not in ended.out + ended.err
