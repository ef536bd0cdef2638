"""Hosts that share a machine but no network: ``python -m tests.network.namespaces --hosts 4 -- COMMAND...``.

Every host is a network namespace with an address of its own, a host name of its own and one link to a
switch, which is a bridge in one more namespace. Both ends of each link are shaped with tc's token bucket, so
that a host neither sends nor receives faster than the rate, as at a real port. COMMAND runs on host ``h0``;
``$CCBENCH_AGENT HOST COMMAND`` is what ssh would be, for launchers:

    mpirun --mca plm_rsh_agent $CCBENCH_AGENT -H h0,h1 --bind-to none ...          (Open MPI)
    mpiexec -launcher ssh -launcher-exec $CCBENCH_AGENT -hosts h0,h1 ...            (MPICH, Intel MPI)

Nothing outside the namespaces is changed, and all of it goes when the command has ended, whatever became of
it. Needs Linux, root and the tools ``ip``, ``tc`` and ``unshare``; ``why_not`` says what is missing.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

TOOLS = ("ip", "tc", "unshare", "mount", "hostname")

AGENT_VARIABLE = "CCBENCH_AGENT"

PREFIX = "ccbench"

BURST_BYTES = 20_000
"""What a link passes at once: two full frames of 9000 bytes. A larger bucket would let short messages
through at the speed of memory (tc-tbf(8): bigger packets are cut to fit it)."""

QUEUE_SECONDS = 0.05
"""Traffic that may wait at a link: enough that a few hosts sending to one lose nothing."""

WRITTEN_SECONDS = 0.001
"""What one connection may have waiting at its host's port, in time at the link's rate. Linux lets it be what
is sent in a millisecond at the rate that the kernel takes for the connection's (``tcp_small_queue_check`` in
net/ipv4/tcp_output.c). Between namespaces it takes tens of gigabits per second for it, because a round trip
takes a few microseconds before anything waits; so megabytes wait, and what a library says to the other side
before it may send comes after all of them: two ranks that swap messages then send by turns."""

AGENT = """#!/bin/sh
# What ssh is between real hosts: AGENT [-options] HOST COMMAND...
while [ "${{1#-}}" != "$1" ]; do shift; done
host=$1
shift
exec ip netns exec "{prefix}-$host" unshare --uts sh -c '
    hostname "$1" && mount --bind {hosts_file} /etc/hosts && shift && exec sh -c "$*"' sh "$host" "$@"
"""


@dataclass(frozen=True)
class Network:
    """Hosts that are up. names: host names; addresses: IPv4, one each; agent: the stand-in for ssh."""

    prefix: str
    names: tuple[str, ...]
    addresses: tuple[str, ...]
    agent: Path

    def command(self, host: int, command: Sequence[str]) -> list[str]:
        """``command`` as it must be started from outside to run on a host."""
        return [str(self.agent), self.names[host], shlex.join(command)]

    def run(
        self, host: int, command: Sequence[str], seconds: float
    ) -> subprocess.CompletedProcess[str]:
        """Run ``command`` on a host and wait; TimeoutExpired after ``seconds``."""
        return subprocess.run(
            self.command(host, command),
            capture_output=True,
            text=True,
            timeout=seconds,
            env={**os.environ, AGENT_VARIABLE: str(self.agent)},
        )

    def cut(self, host: int) -> None:
        """Pull the host's cable; connections notice nothing but silence."""
        _do("ip", "-n", f"{self.prefix}-switch", "link", "set", f"port{host}", "down")

    def mend(self, host: int) -> None:
        """Plug it in again."""
        _do("ip", "-n", f"{self.prefix}-switch", "link", "set", f"port{host}", "up")


def _do(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise OSError(
            f"{shlex.join(command)}: {done.stderr.strip() or f'exit status {done.returncode}'}"
        )


def why_not() -> str:
    """Why hosts cannot be made here, or ''. Tries it with one host, because only the kernel knows."""
    if not sys.platform.startswith("linux"):
        return f"network namespaces need Linux, this is {sys.platform}"
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        return f"network namespaces need {', '.join(missing)}; install iproute2 and util-linux"
    if os.geteuid():
        return "network namespaces need root"
    try:
        with hosts(1) as network:
            done = network.run(0, ["hostname"], seconds=10)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"network namespaces cannot be made here: {error}"
    if done.stdout.strip() != network.names[0]:
        return f"namespaces have no host names of their own here: {done.stderr.strip()}"
    return ""


@contextmanager
def hosts(
    count: int, rate_bits_per_second: float = 1e9, mtu_bytes: int = 9000
) -> Iterator[Network]:
    """``count`` hosts on one switch, taken down at the end with everything that runs in them.

    Raises OSError, with the command that failed, where the kernel or the rights do not allow it.
    """
    _sweep_up()
    prefix = f"{PREFIX}-{os.getpid()}"
    names = tuple(f"h{host}" for host in range(count))
    addresses = tuple(f"10.99.{host // 250}.{host % 250 + 1}" for host in range(count))
    with tempfile.TemporaryDirectory(prefix=f"{prefix}-") as folder:
        hosts_file, agent = Path(folder, "hosts"), Path(folder, "agent")
        lines = ["127.0.0.1 localhost", *map(" ".join, zip(addresses, names, strict=True))]
        hosts_file.write_text("\n".join(lines) + "\n")
        agent.write_text(AGENT.format(prefix=prefix, hosts_file=hosts_file))
        agent.chmod(0o755)
        try:
            _switch(prefix)
            for host, address in enumerate(addresses):
                _plug_in(prefix, host, address, rate_bits_per_second, mtu_bytes)
            yield Network(prefix, names, addresses, agent)
        finally:
            _take_down(prefix)


def _switch(prefix: str) -> None:
    switch = f"{prefix}-switch"
    _do("ip", "netns", "add", switch)
    _do("ip", "-n", switch, "link", "add", "bridge", "type", "bridge", "forward_delay", "0")
    _do("ip", "-n", switch, "link", "set", "bridge", "up")


def _plug_in(prefix: str, host: int, address: str, rate: float, mtu_bytes: int) -> None:
    name, switch, port = f"{prefix}-h{host}", f"{prefix}-switch", f"port{host}"
    _do("ip", "netns", "add", name)
    _do(
        *("ip", "-n", switch, "link", "add", port, "mtu", str(mtu_bytes), "type", "veth"),
        *("peer", "name", "eth0", "mtu", str(mtu_bytes), "netns", name),
    )
    _do("ip", "-n", switch, "link", "set", port, "master", "bridge", "up")
    _do("ip", "-n", name, "address", "add", f"{address}/16", "dev", "eth0")
    for device in ("lo", "eth0"):
        _do("ip", "-n", name, "link", "set", device, "up")
    # Not every kernel has one congestion control as its default; hosts behave alike with the oldest.
    settings = {
        "tcp_congestion_control": "reno",
        "tcp_limit_output_bytes": int(rate / 8 * WRITTEN_SECONDS),
    }
    for setting, value in settings.items():
        _do(
            *("ip", "netns", "exec", name),
            "sh",
            "-c",
            f"echo {value} > /proc/sys/net/ipv4/{setting}",
        )
    queue_bytes = max(10 * BURST_BYTES, int(rate / 8 * QUEUE_SECONDS))
    for namespace, device in ((name, "eth0"), (switch, port)):
        _do(
            *("tc", "-n", namespace, "qdisc", "add", "dev", device, "root", "tbf"),
            *("rate", f"{rate:.0f}bit", "burst", str(BURST_BYTES), "limit", str(queue_bytes)),
        )


def _namespaces() -> list[str]:
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
    return [line.split()[0] for line in listed.splitlines() if line.startswith(f"{PREFIX}-")]


def _sweep_up() -> None:
    """Take down what a killed process left behind."""
    owners = {name.split("-")[1] for name in _namespaces()}
    for owner in owners:
        if owner.isdigit() and not Path("/proc", owner).exists():
            _take_down(f"{PREFIX}-{owner}")
            for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}-{owner}-*"):
                shutil.rmtree(folder, ignore_errors=True)


def _processes(namespace: str) -> list[int]:
    listed = subprocess.run(
        ["ip", "netns", "pids", namespace], capture_output=True, text=True
    ).stdout
    return [int(number) for number in listed.split()]


def _take_down(prefix: str) -> None:
    mine = [name for name in _namespaces() if name.startswith(f"{prefix}-")]
    for _ in range(50):
        left = [process for name in mine for process in _processes(name)]
        if not left:
            break
        for process in left:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.02)
    for name in mine:
        subprocess.run(["ip", "netns", "delete", name], capture_output=True)


def main() -> int:
    """Run a command on host h0 of a network of its own; its exit status."""
    parser = argparse.ArgumentParser(
        description="Run a command on the first of several hosts made for it."
    )
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--rate", type=float, default=1e9, help="of a link, in bits per second")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    reason = why_not()
    if reason:
        print(f"namespaces: {reason}", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with hosts(options.hosts, options.rate) as network:
        environment = {**os.environ, AGENT_VARIABLE: str(network.agent)}
        return subprocess.run(network.command(0, options.command), env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())
