"""``python -m benchmarks.hosts BACKEND HOST,HOST,...``: are predictions of libraries on hosts right?

Started where ssh, or what ``$CCBENCH_AGENT`` names, reaches the hosts; a host that is named twice gets two
ranks. The network is probed, then all_reduce, all_gather and broadcast are measured and predicted from 1 KiB
to 16 MiB; nothing but the probe tells the model of the network. All cases are visited three times, one
after the other, so that what disturbs a host for a second spoils one visit of some; what counts is the median
of the visits' medians, as in the probe. Printed is each point and the median of the errors' sizes. On one
Linux machine, as root, hosts can be had from namespaces:

    python -m tests.network.namespaces --hosts 4 -- python -m benchmarks.hosts mpi h0,h1,h2,h3

With ``--ranks N`` in place of hosts so many ranks run on this one. BACKEND is mpi (Open MPI's mpirun in PATH)
or gloo. What else runs on the processors disturbs small messages much: the load is printed. Exit 0 where the
median is at most 25 %, 3 where it is more, 2 where it cannot run.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from ccbench.backends import open_backend
from ccbench.backends.base import Team, TeamRequest
from ccbench.cases.axes import NO_OP, NO_ROOT, Case
from ccbench.cases.measurement import Sampling, Status
from ccbench.collectives import COLLECTIVES
from ccbench.errors import BackendUnavailable, CcbenchError
from ccbench.model.calibration import quick_machine
from ccbench.model.context import predict_case
from ccbench.model.host_collectives import HostNetwork
from ccbench.model.machine import Machine, load_machine
from ccbench.runner.network_probe import probe_network
from ccbench.runner.workers.launcher import users_launch
from ccbench.runner.workers.team import open_team
from ccbench.units import format_seconds, format_size

JUDGED = ("all_reduce", "all_gather", "broadcast")
SIZES_BYTES = tuple(1 << power for power in range(10, 25, 2))
HIGHEST = 0.25
"""Of the median error."""

SAMPLING = Sampling(
    rounds=1,
    minimum_samples=3,
    maximum_samples=60,
    warmup_seconds=0.02,
    budget_seconds=0.15,
)
"""Of one visit."""

VISITS = 3


@dataclass(frozen=True)
class Point:
    """One case; seconds per launch."""

    collective: str
    size_bytes: int
    measured: float
    predicted: float
    because: str

    @property
    def error(self) -> float:
        """As a fraction of what was measured."""
        return self.predicted / self.measured - 1


def launch_of(backend: str, hosts: Sequence[str], interface: str) -> str:
    """The command that starts one rank for each name; for Open MPI with its messages on one interface."""
    if backend == "gloo":
        return f"{sys.executable} -m tests.network.launch {','.join(hosts)}"
    places = ",".join(f"{host}:{hosts.count(host)}" for host in dict.fromkeys(hosts))
    agent = os.environ.get("CCBENCH_AGENT", "ssh")
    return (
        f"mpirun --mca plm_rsh_agent {agent} --bind-to none --mca mpi_yield_when_idle 1 "
        f"--mca btl tcp,self,vader --mca btl_tcp_if_include {interface} "
        f"--mca oob_tcp_if_include {interface} -H {places} -n {len(hosts)}"
    )


def case_of(backend: str, collective: str, ranks: int, size_bytes: int) -> Case:
    """A plain case of 32-bit floats."""
    row = COLLECTIVES[collective]
    count = row.count_for(size_bytes, ranks, 4)
    return Case(
        suite="hosts",
        backend=backend,
        collective=collective,
        algorithm="default",
        dtype="float32",
        op="sum" if row.reduces else NO_OP,
        size_bytes=row.size_bytes(count, ranks, 4),
        count=count,
        ranks=ranks,
        root=0 if row.rooted else NO_ROOT,
    )


def points_of(
    team: Team, backend: str, ranks: int, network: HostNetwork, host: Machine | None = None
) -> Iterator[Point]:
    """Measured and predicted, case by case; BackendUnavailable where a case does not run."""
    cases = {
        (name, size): case_of(backend, name, ranks, size)
        for name in JUDGED
        for size in SIZES_BYTES
    }
    visits: dict[tuple[str, int], list[float]] = {key: [] for key in cases}
    used: dict[tuple[str, int], str] = {}
    for _ in range(VISITS):
        for key, case in cases.items():
            found = team.run(case, SAMPLING)
            if found.status is not Status.OK:
                raise BackendUnavailable(
                    f"hosts: {case.label}: {found.status.value}: {found.detail}"
                )
            visits[key].append(median(found.samples_seconds))
            used[key] = found.algorithm_used
    for key, case in cases.items():
        prediction = predict_case(case, network, used[key], host=host)
        if prediction is not None:
            yield Point(
                *key, median(visits[key]), prediction.predicted_seconds, prediction.bottleneck
            )


def shown(point: Point) -> str:
    """One line."""
    measured, predicted = format_seconds(point.measured), format_seconds(point.predicted)
    return (
        f"{point.collective:11s} {format_size(point.size_bytes):>8s} measured {measured:>10s} "
        f"predicted {predicted:>10s} {point.error:+.0%} {point.because}"
    )


def median_error(points: Sequence[Point]) -> float:
    """Of the errors' sizes."""
    return median(abs(point.error) for point in points)


def main(arguments: Sequence[str]) -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hosts", description=__doc__)
    parser.add_argument("backend", choices=("mpi", "gloo"))
    parser.add_argument("hosts", nargs="?", default="")
    parser.add_argument(
        "--ranks", type=int, default=0, help="on this host, where no hosts are named"
    )
    parser.add_argument("--interface", default="eth0")
    options = parser.parse_args(arguments)
    if bool(options.hosts) == (options.ranks > 1):
        parser.error("hosts, or --ranks from 2 on")
    hosts = options.hosts.split(",") if options.hosts else ["this host"] * options.ranks
    points, load = [], os.getloadavg()[0]
    try:
        launch, host = None, None
        if options.hosts:
            launch = users_launch(launch_of(options.backend, hosts, options.interface))
        else:
            host = quick_machine()
        request = TeamRequest(
            len(hosts), host or load_machine("cpu-shared-memory"), launch=launch
        )
        team = open_team(open_backend(options.backend), request)
        try:
            network = probe_network(team.run, options.backend, len(hosts))
            print(network)
            for point in points_of(team, options.backend, len(hosts), network, host):
                points.append(point)
                print(shown(point), flush=True)
        finally:
            team.close()
    except CcbenchError as error:
        print(error, file=sys.stderr)
        return 2
    each = ", ".join(
        f"{name} {median_error([point for point in points if point.collective == name]):.0%}"
        for name in JUDGED
    )
    whole = median_error(points)
    print(
        f"{network.library}, {','.join(hosts)}: median error {whole:.0%} ({each}); load {load:.1f} before, "
        f"{os.getloadavg()[0]:.1f} after, {os.cpu_count()} processors"
    )
    return 0 if whole <= HIGHEST else 3


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
