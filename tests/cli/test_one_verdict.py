"""One log has one verdict: import, compare against the model and compare against published figures agree."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cli.conftest import Command

LOGS = Path(__file__).resolve().parents[3] / "shared" / "data" / "nccl_logs"

pytestmark = pytest.mark.skipif(not LOGS.is_dir(), reason="no logs beside the checkout")

HEALTHY = (
    ("a100_16g_2n_all_reduce_aks_ib.txt", "dgx-a100", "2", "ib-hdr-200x8"),
    ("a100_32g_4n_all_reduce_dgxa100.txt", "dgx-a100", "4", "ib-hdr-200x8"),
    ("h100sxm_16g_2n_all_reduce_oci.txt", "hgx-h100", "2", "roce-200x16"),
)


@pytest.mark.parametrize(("file", "machine", "nodes", "network"), HEALTHY)
def test_a_healthy_log_is_normal_and_no_comparison_calls_it_slower(
    ccbench: Command, file: str, machine: str, nodes: str, network: str
) -> None:
    stated = ("--machine", machine, "--nodes", nodes, "--network", network)
    imported = ccbench("check", str(LOGS / file), *stated, "-o", "run")
    word = imported.out.partition(":")[0]
    assert word in ("NORMAL", "LOW", "FAST", "CANNOT SAY")
    against_model = ccbench("compare", "model", "run")
    assert re.search(
        r"threshold [\d.]+ %( to [\d.]+ %)?, by point: what 95 %", against_model.out
    )
    # The last lines are the run's own verdict, word for word.
    assert imported.out.splitlines()[0] in " ".join(against_model.out.split())
    assert against_model.code == imported.code % 5


@pytest.mark.exhaustive
def test_a_log_of_an_old_library_is_priced_as_that(ccbench: Command) -> None:
    """NCCL 2.9.9 gave p4d half of what 2.17 does: healthy with it, slow with today's."""
    log = (LOGS / "awkward_a100_16g_2n_all_reduce_p4d_debug.txt").read_text(encoding="utf-8")
    assert "NCCL version 2.9.9+" in log
    for version, word in (("2.9.9", "NORMAL"), ("2.23.4", "SLOW")):
        Path("log.txt").write_text(log.replace("version 2.9.9+", f"version {version}+"))
        assert ccbench("check", "log.txt", "-o", version).out.startswith(f"{word}: ")
