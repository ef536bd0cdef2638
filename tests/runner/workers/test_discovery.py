"""Whom a launcher starts is counted, described and refused where it cannot be one run."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from ccbench.backends import open_backend
from ccbench.backends.base import TeamLaunch
from ccbench.errors import UsageError
from ccbench.runner.workers.discovery import discover_ranks, refuse_duplicate_names
from ccbench.runner.workers.messages import Place

FAKE_SRUN = str(Path(__file__).resolve().parents[2] / "fake_srun")


def test_everyone_is_counted_and_their_host_described() -> None:
    launched = discover_ranks(TeamLaunch((FAKE_SRUN, "-n", "2")))
    host = socket.gethostname()
    assert (launched.ranks, launched.nodes, launched.hosts) == (2, 1, (host,) * 2)
    (facts,) = launched.facts
    assert (facts.name, facts.ranks) == (host, 2)
    assert facts.no_gpus == (open_backend("nccl").unavailable() or "")
    assert facts.cores is None or facts.cores >= 1


def test_a_launcher_that_starts_nothing_is_quoted() -> None:
    with pytest.raises(
        UsageError, match="sh exited with 3: no process had come; it said: no hosts"
    ):
        discover_ranks(TeamLaunch(("sh", "-c", "echo no hosts; exit 3")))


@pytest.mark.exhaustive
def test_a_launcher_that_tells_no_numbers_needs_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    twice = TeamLaunch(("sh", "-c", '"$@" & "$@" & wait', "sh"))
    for name in ("RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UsageError, match="say it with --ranks"):
        discover_ranks(twice)
    assert discover_ranks(twice, ranks=2).ranks == 2


def test_two_machines_of_one_name_are_not_taken_for_one() -> None:
    here, there, elsewhere = (
        Place("a", 1, "a boot1", ""),
        Place("a", 1, "a boot2", ""),
        Place("b", 1, "b x", ""),
    )
    refuse_duplicate_names([here, elsewhere, here])
    with pytest.raises(
        UsageError, match="ranks 0 and 2 are on different machines that are both called 'a'"
    ):
        refuse_duplicate_names([here, elsewhere, there])
