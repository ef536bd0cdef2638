"""Gloo between hosts of their own names, addresses and links: measured, probed, predicted, and cut off."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ccbench.backends.gloo import BACKEND

from .namespaces import AGENT_VARIABLE, Network, hosts
from .test_namespaces import reason

pytestmark = [
    pytest.mark.network,
    pytest.mark.skipif(BACKEND.unavailable() is not None, reason=str(BACKEND.unavailable())),
]

ROOT = Path(__file__).resolve().parents[2]


class Conversation:
    """Asks ``tests.network.one_team`` for one case after the other."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        assert self.hear() == "open"

    def hear(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the team's program ended; its error is above"
        return json.loads(line)

    def ask(self, line: str) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return self.hear()


@contextmanager
def team(network: Network, ranks_on: str) -> Iterator[Conversation]:
    command = network.command(0, [sys.executable, "-m", "tests.network.one_team", "gloo", ranks_on])
    environment = {**os.environ, AGENT_VARIABLE: str(network.agent), "PYTHONPATH": str(ROOT)}
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment, cwd=ROOT, **pipes) as process:
        try:
            yield Conversation(process)
        finally:
            process.stdin.close()  # type: ignore[union-attr]
            process.wait(60)


@pytest.fixture
def network() -> Iterator[Network]:
    if reason():
        pytest.skip(reason())
    with hosts(2) as made:
        yield made


def test_two_hosts_of_two_ranks_are_measured_probed_and_predicted(network: Network) -> None:
    with team(network, "h0,h0,h1,h1") as asked:
        found = asked.ask("all_reduce 65536 60")
        assert (found["status"], found["hosts"]) == ("ok", ["h0", "h0", "h1", "h1"]), found["detail"]
        assert found["node_of_rank"] == [0, 0, 1, 1]
        assert "gloo over tcp, eth0 (10.99.0.1)" in found["version"]
        assert "hosts have clocks of their own" in found["detail"]
        assert asked.ask("probe") == {"hosts": ["h0", "h1"], "host_of_rank": [0, 0, 1, 1]}
        for collective in ("all_reduce", "all_gather", "broadcast"):
            found = asked.ask(f"{collective} 4096 60")
            assert found["status"] == "ok", found["detail"]
            assert found["predicted_seconds"] > 0


def test_a_cut_link_ends_in_a_timeout_and_leaves_nothing_running(network: Network) -> None:
    with team(network, "h0,h1") as asked:
        assert asked.ask("all_reduce 65536 60")["status"] == "ok"
        network.cut(1)
        found = asked.ask("all_reduce 65536 3")
        assert found["status"] in ("timed_out", "failed"), found
        assert found["samples"] == 0
        assert "rank" in found["detail"]
