"""``python -m tests.network.fleet_namespaces --trials 20``: does a fleet check name the bad one of eight hosts?

Hosts are network namespaces on one machine (tests/network/namespaces.py), one rank of Gloo on each, links of
200 Mbit/s. In each trial another host or link is bad, drawn by the trial's number:

    healthy    nothing is
    slow-host  the host's port has half of the rate, both ways
    slow-link  two hosts talk over a cable of their own, which has half of the rate
    hang       the host's port drops frames above 3000 bytes, as where a path's MTU is set wrong: small
               messages pass, so that ranks start and meet, and larger ones never arrive

A trial is right where the verdict, its exit code and the list for ``--exclude`` name what was planted and
nothing else. Needs Linux, root, iproute2 and torch. Exit 0 where all trials were right, else 1; a line for
each goes to stdout at once, so that a log of a run that was cut short holds what was reached.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.network.fleet_hosts import READY
from tests.network.namespaces import AGENT_VARIABLE, BURST_BYTES, Network, hosts, why_not

HOSTS = 8
RATE = 200e6
SLOW_RATE = RATE / 2
QUEUE_BYTES = 1_250_000
HOLE_BYTES = 3000
SECONDS = 120.0
"""Of a trial, at most."""

SUITE = """\
question: Which of these hosts or links is bad?
backends: [gloo]
verdict: fleet
order: written
sweep:
  - {collective: all_reduce, size: 256 KiB, groups: round_robin, per: node}
sampling: {rounds: 1, maximum_samples: 40, warmup: 10 ms, budget: 800 ms, time_limit: 6 s}
"""

SCENARIOS = ("healthy", "slow-host", "slow-link", "hang")


def tc(
    network: Network, namespace: str, device: str, rate: float, burst: int, verb: str = "change"
) -> None:
    """Shape a device."""
    subprocess.run(
        [
            *(
                "tc",
                "-n",
                f"{network.prefix}-{namespace}",
                "qdisc",
                verb,
                "dev",
                device,
                "root",
                "tbf",
            ),
            *("rate", f"{rate:.0f}bit", "burst", str(burst), "limit", str(QUEUE_BYTES)),
        ],
        check=True,
    )


def port(network: Network, number: int, rate: float, burst: int = BURST_BYTES) -> None:
    """Shape both ends of a host's link."""
    tc(network, f"h{number}", "eth0", rate, burst)
    tc(network, "switch", f"port{number}", rate, burst)


@contextmanager
def cable(network: Network, one: int, two: int, rate: float) -> Iterator[None]:
    """Join two hosts by a link of their own, which carries all that they send each other."""
    names = [f"{network.prefix}-h{host}" for host in (one, two)]
    made = (
        "link",
        "add",
        "cable",
        "mtu",
        "9000",
        "type",
        "veth",
        "peer",
        "name",
        "cable",
        "mtu",
        "9000",
    )
    subprocess.run(["ip", "-n", names[0], *made, "netns", names[1]], check=True)
    try:
        for host, other in ((one, two), (two, one)):
            route = ("route", "add", f"{network.addresses[other]}/32", "dev", "cable", "src")
            name = f"{network.prefix}-h{host}"
            subprocess.run(["ip", "-n", name, "link", "set", "cable", "up"], check=True)
            tc(network, f"h{host}", "cable", rate, BURST_BYTES, "add")
            subprocess.run(["ip", "-n", name, *route, network.addresses[host]], check=True)
        yield
    finally:
        subprocess.run(["ip", "-n", names[0], "link", "delete", "cable"], check=True)


@contextmanager
def planted(network: Network, scenario: str, one: int, two: int) -> Iterator[None]:
    """Make what the scenario says bad, and mend it again."""
    if scenario == "slow-link":
        with cable(network, one, two, SLOW_RATE):
            yield
        return
    if scenario == "slow-host":
        port(network, one, SLOW_RATE)
    if scenario == "hang":
        port(network, one, RATE, HOLE_BYTES)
    yield
    port(network, one, RATE)


@contextmanager
def warm(network: Network, folder: Path) -> Iterator[str]:
    """Have each host ready to fork ranks; the launcher that has them do it."""
    environment = {**os.environ, "PYTHONPATH": os.getcwd(), "OMP_NUM_THREADS": "1"}
    servers = [
        subprocess.Popen(
            network.command(
                host,
                [sys.executable, "-m", "tests.network.fleet_hosts", "host", str(folder / name)],
            ),
            env=environment,
        )
        for host, name in enumerate(network.names)
    ]
    try:
        while not all((folder / (name + READY)).exists() for name in network.names):
            if any(server.poll() is not None for server in servers):
                raise OSError("a host has ended before it was ready")
            time.sleep(0.1)
        launcher = [
            "-m",
            "tests.network.fleet_hosts",
            "launch",
            str(folder),
            ",".join(network.names),
        ]
        yield shlex.join([sys.executable, *launcher])
    finally:
        for server in servers:
            server.kill()
            server.wait()


def trial(
    network: Network, launcher: str, scenario: str, number: int, folder: Path
) -> tuple[bool, str]:
    """Plant, run and compare; (right, a line that says what came out)."""
    chosen = random.Random(number).sample(range(HOSTS), 2)
    one, two = sorted(chosen) if scenario == "slow-link" else chosen
    output = folder / f"{scenario}-{number}"
    suite = folder / "fleet.yaml"
    suite.write_text(SUITE)
    command = [
        sys.executable,
        "-m",
        "ccbench",
        "run",
        str(suite),
        "-o",
        str(output),
        "--no-report",
        "--json",
    ]
    began = time.monotonic()
    with planted(network, scenario, one, two):
        done = subprocess.run(
            network.command(0, [*command, "--launch", launcher]),
            env={**os.environ, AGENT_VARIABLE: str(network.agent), "PYTHONPATH": os.getcwd()},
            capture_output=True,
            text=True,
            timeout=2 * SECONDS,
        )
    took = time.monotonic() - began
    (folder / f"{scenario}-{number}.log").write_text(done.stdout + done.stderr)
    try:
        fleet: dict[str, Any] = json.loads(done.stdout)["fleet"]
    except (ValueError, KeyError):
        return (
            False,
            f"{scenario} {number}: exit {done.returncode}, no verdict: {done.stderr[-300:]}",
        )
    expected = {
        "healthy": ("HEALTHY", [], []),
        "slow-host": ("NOT HEALTHY", [f"h{one}"], []),
        "slow-link": ("NOT HEALTHY", [], [[f"h{one}", f"h{two}"]]),
        "hang": ("NOT HEALTHY", [f"h{one}"], []),
    }[scenario]
    found = fleet["verdict"], fleet["nodes"], fleet["links"]
    right = (
        found == expected and done.returncode == int(scenario != "healthy") and took < SECONDS
    )
    load = os.getloadavg()[0]
    text = f"{scenario} {number}: {'right' if right else f'WRONG, wanted {expected}'}: {found}"
    return right, f"{text}, exit {done.returncode}, {took:.0f} s, load {load:.1f}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the trials; 0 where all were right."""
    parser = argparse.ArgumentParser(
        description="Plant faults in a fleet of namespaces and have them named."
    )
    parser.add_argument("--trials", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first trial")
    parser.add_argument("--scenario", action="append", choices=SCENARIOS)
    parser.add_argument("-o", "--output", type=Path, help="keep run folders and logs there")
    options = parser.parse_args(arguments)
    if reason := why_not():
        print(f"fleet_namespaces: {reason}", file=sys.stderr)
        return 2
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(143)
    )  # the namespaces are removed then, too
    scenarios = options.scenario or SCENARIOS
    right: dict[str, int] = defaultdict(int)
    with tempfile.TemporaryDirectory() as own, hosts(HOSTS, RATE) as network:
        folder = options.output or Path(own)
        folder.mkdir(parents=True, exist_ok=True)
        with warm(network, Path(own)) as launcher:
            for number in range(options.first, options.first + options.trials):
                for scenario in scenarios:
                    good, line = trial(network, launcher, scenario, number, folder)
                    right[scenario] += good
                    print(line, flush=True)
    for scenario in scenarios:
        print(f"{scenario}: {right[scenario]} of {options.trials} right")
    return int(sum(right.values()) < options.trials * len(scenarios))


if __name__ == "__main__":
    sys.exit(main())
