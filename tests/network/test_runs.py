"""``ccbench run`` between hosts: started by a launcher, starting one itself, and with a link cut in it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from ccbench.backends.gloo import BACKEND as GLOO
from ccbench.backends.mpi import BACKEND as MPI
from ccbench.backends.mpi.library import MpiLibrary, installed
from ccbench.machine.mpi import OPEN_MPI, as_root
from ccbench.results import load_run
from ccbench.results.files import has_cases
from tests.faults.conftest import rows_of

from .namespaces import AGENT_VARIABLE, Network

pytestmark = pytest.mark.network

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 280

no_gloo = pytest.mark.skipif(GLOO.unavailable() is not None, reason=str(GLOO.unavailable()))

SUITE = """\
question: Does it run between hosts?
backends: [{backend}]
order: written
sweep: {{collective: all_reduce, size: [{sizes}]}}
sampling: {{rounds: 1, maximum_samples: {samples}, warmup: 1 ms, budget: {budget}, time_limit: {limit}}}
"""


def plain(hosts_of_ranks: str) -> str:
    return f"{sys.executable} -m tests.network.launch {hosts_of_ranks}"


def mpirun(network: Network) -> list[str]:
    library = installed()
    if not isinstance(library, MpiLibrary) or library.vendor != OPEN_MPI:
        pytest.skip(f"hosts are given as Open MPI has it; here is {library}")
    return [
        *(library.launcher, "--mca", "plm_rsh_agent", str(network.agent), "-H", "h0:2,h1:2"),
        *("--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"),
        *("--mca", "btl", "self,vader,tcp", "--mca", "btl_tcp_if_include", "eth0"),
    ]


def suite(
    folder: Path,
    backend: str,
    sizes: str,
    samples: int = 10,
    budget: str = "20 ms",
    limit: str = "60 s",
) -> Path:
    file = folder / "between.yaml"
    file.write_text(
        SUITE.format(backend=backend, sizes=sizes, samples=samples, budget=budget, limit=limit)
    )
    return file


def ccbench(file: Path, folder: Path, *more: str) -> list[str]:
    return [
        sys.executable,
        "-m",
        "ccbench",
        "run",
        str(file),
        "-o",
        str(folder),
        "--no-report",
        *more,
    ]


def started(network: Network, command: Sequence[str]) -> subprocess.Popen[str]:
    variables = {
        AGENT_VARIABLE: str(network.agent),
        "PYTHONPATH": str(ROOT),
        **dict(as_root(os.geteuid())),
    }
    return subprocess.Popen(
        network.command(0, command),
        cwd=ROOT,
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def said(process: subprocess.Popen[str]) -> str:
    try:
        return process.communicate(timeout=SECONDS)[0]
    finally:
        process.kill()


def check_places(folder: Path) -> None:
    (row,) = rows_of(folder)
    assert row["status"] == "ok", row["detail"]
    assert (row["ranks"], row["nodes"]) == (4, 2)
    assert list(row["hosts"]) == ["h0", "h0", "h1", "h1"]
    assert list(row["node_of_rank"]) == [0, 0, 1, 1]
    manifest = load_run(folder).manifest.document
    assert [(host["name"], host["ranks"]) for host in manifest["hosts"]] == [
        ("h0", 2),
        ("h1", 2),
    ]
    for host in manifest["hosts"]:
        assert any(interface.startswith("eth0") for interface in host["interfaces"])


@pytest.mark.exhaustive
@no_gloo
def test_a_launcher_of_the_users_own_starts_ranks_on_two_hosts(
    network: Network, tmp_path: Path
) -> None:
    file = suite(tmp_path, "gloo", "64 KiB")
    process = started(
        network, ccbench(file, tmp_path / "run", "--launch", plain("h0,h0,h1,h1"))
    )
    text = said(process)
    assert process.returncode == 0, text
    check_places(tmp_path / "run")
    (row,) = rows_of(tmp_path / "run")
    assert f"gloo over tcp, eth0 ({network.addresses[0]})" in row["backend_version"]
    assert "hosts have clocks of their own" in row["detail"]


@pytest.mark.exhaustive
@pytest.mark.skipif(MPI.unavailable() is not None, reason=f"no MPI here: {MPI.unavailable()}")
def test_mpirun_starts_one_run_on_two_hosts(network: Network, tmp_path: Path) -> None:
    file = suite(tmp_path, "mpi", "64 KiB")
    process = started(network, [*mpirun(network), *ccbench(file, tmp_path / "run")])
    text = said(process)
    assert process.returncode == 0, text
    assert text.count("run folder: ") == 1, text
    check_places(tmp_path / "run")


@pytest.mark.exhaustive
@no_gloo
def test_a_link_cut_in_a_run_is_a_timeout_and_what_was_measured_stays(
    network: Network, tmp_path: Path
) -> None:
    file = suite(tmp_path, "gloo", "1 KiB, 64 KiB, 1 MiB", 100_000, "2 s", "8 s")
    folder = tmp_path / "run"
    process = started(network, ccbench(file, folder, "--launch", plain("h0,h1")))
    deadline = time.monotonic() + SECONDS
    while not (has_cases(folder) and rows_of(folder)):
        assert time.monotonic() < deadline, "no case was finished"
        assert process.poll() is None, said(process)
        time.sleep(0.05)
    network.cut(1)
    text = said(process)
    assert process.returncode == 4, text
    rows = rows_of(folder)
    statuses = [row["status"] for row in rows]
    assert statuses.count("ok") >= 1, rows
    assert "timed_out" in statuses, rows
    (late,) = [row for row in rows if row["status"] == "timed_out"]
    assert "rank" in late["detail"]
