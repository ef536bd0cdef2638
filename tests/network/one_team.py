"""``python -m tests.network.one_team BACKEND HOST,HOST,...``: a team between hosts, measured case by case.

Reads one line for each case from standard input (collective, size in bytes, seconds it may take) or the word
``probe``, and answers with one line of JSON.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace

from benchmarks.hosts import case_of
from ccbench.backends import open_backend
from ccbench.backends.base import TeamRequest
from ccbench.cases import Sampling
from ccbench.model.host_collectives import HostNetwork, predict_host_library
from ccbench.model.machine import load_machine
from ccbench.runner.network_probe import probe_network
from ccbench.runner.workers.launcher import users_launch
from ccbench.runner.workers.team import open_team

QUICK = Sampling(rounds=1, minimum_samples=3, maximum_samples=10, warmup_seconds=0.0, budget_seconds=0.2)


def answer(text: object) -> None:
    """One line."""
    print(json.dumps(text), flush=True)


def main(backend: str, hosts: str) -> None:
    """Serve until standard input ends."""
    ranks = len(hosts.split(","))
    launch = users_launch(f"{sys.executable} -m tests.network.launch {hosts}")
    request = TeamRequest(ranks, load_machine("cpu-shared-memory"), launch=launch)
    team = open_team(open_backend(backend), request)
    network: HostNetwork | None = None
    try:
        answer("open")
        for line in sys.stdin:
            if line.strip() == "probe":
                network = probe_network(team.run, backend, ranks)
                answer({"hosts": network.hosts, "host_of_rank": network.host_of_rank})
                continue
            collective, size, seconds = line.split()
            case = case_of(backend, collective, ranks, int(size))
            found = team.run(case, replace(QUICK, time_limit_seconds=float(seconds)))
            prediction = predict_host_library(case, network) if network else None
            answer(
                {
                    "status": found.status.value,
                    "detail": found.detail,
                    "version": found.backend_version,
                    "hosts": found.hosts,
                    "node_of_rank": found.node_of_rank,
                    "samples": len(found.samples_seconds),
                    "predicted_seconds": prediction.predicted_seconds if prediction else None,
                }
            )
    finally:
        team.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
