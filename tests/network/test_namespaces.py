"""Hosts made of namespaces are hosts: names and addresses of their own, links to be cut, no leftovers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress

import pytest

from .namespaces import Network, hosts

pytestmark = pytest.mark.network

SECONDS = 20.0

FETCH = (
    "import socket, sys\n"
    "with socket.create_connection((sys.argv[1], 7777), timeout=5) as line:\n"
    "    print(line.makefile().read(), end='')\n"
)
SERVE = (
    "import socket\n"
    "with socket.create_server(('', 7777)) as server:\n"
    "    print('listening', flush=True)\n"
    "    line, origin = server.accept()\n"
    "    line.sendall(f'{socket.gethostname()} greets {origin[0]}'.encode())\n"
)


def listed() -> list[str]:
    found = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
    return [line.split()[0] for line in found.splitlines()]


def greeting(network: Network, host: int, server: int) -> str:
    """What a server on one host says to a client on another, '' when nothing gets through."""
    command = network.command(server, [sys.executable, "-c", SERVE])
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as serving:
        assert serving.stdout is not None
        assert serving.stdout.readline() == "listening\n"
        done = network.run(host, [sys.executable, "-c", FETCH, network.names[server]], SECONDS)
        with suppress(ProcessLookupError):
            os.killpg(serving.pid, signal.SIGKILL)  # the shell between may not pass a signal on
    return done.stdout


def test_hosts_have_names_and_reach_each_other_by_them(network: Network) -> None:
    names = [network.run(host, ["hostname"], SECONDS).stdout.strip() for host in range(3)]
    assert names == ["h0", "h1", "h2"]
    assert greeting(network, 0, 2) == f"h2 greets {network.addresses[0]}"


def test_the_agent_hands_arguments_on_as_ssh_does(network: Network) -> None:
    done = subprocess.run(
        [network.agent, "-x", "h1", "echo", "two  words;", "hostname"],
        capture_output=True,
        text=True,
    )
    assert done.stdout == "two words\nh1\n"
    spaced = network.run(1, ["printf", "%s|", "two  words;", "$HOME"], SECONDS)
    assert spaced.stdout == "two  words;|$HOME|"


def test_a_cut_link_carries_nothing_until_it_is_mended(network: Network) -> None:
    network.cut(2)
    assert greeting(network, 0, 2) == ""
    network.mend(2)
    assert greeting(network, 0, 2) != ""


def test_both_ends_of_a_link_have_the_rate(network: Network) -> None:
    for namespace, device in (
        (f"{network.prefix}-h0", "eth0"),
        (f"{network.prefix}-switch", "port0"),
    ):
        shown = subprocess.run(
            ["tc", "-n", namespace, "qdisc", "show", "dev", device],
            capture_output=True,
            text=True,
        ).stdout
        assert "tbf" in shown
        assert "rate 1Gbit" in shown


@pytest.mark.usefixtures("_namespaces")
def test_hosts_go_with_everything_on_them_even_after_a_failure() -> None:
    started: list[tuple[str, subprocess.Popen[str]]] = []

    def fail() -> None:
        with hosts(2) as network:
            command = network.command(1, ["sh", "-c", "echo up; exec sleep 600"])
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            started.append((network.prefix, process))
            assert process.stdout is not None
            assert process.stdout.readline() == "up\n"
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    ((prefix, left),) = started
    left.communicate(timeout=SECONDS)
    assert left.returncode != 0
    assert [name for name in listed() if name.startswith(f"{prefix}-")] == []


@pytest.mark.usefixtures("_namespaces")
def test_what_a_killed_process_left_goes_with_the_next_one() -> None:
    program = (
        "import time\nfrom tests.network.namespaces import hosts\n"
        "with hosts(1) as network:\n    print(network.prefix, flush=True)\n    time.sleep(600)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        prefix = owner.stdout.readline().strip()
        assert f"{prefix}-h0" in listed()
        owner.send_signal(signal.SIGKILL)
    with hosts(1):
        assert f"{prefix}-h0" not in listed()


@pytest.mark.usefixtures("_namespaces")
def test_the_command_line_gives_back_the_commands_status() -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.network.namespaces",
            "--hosts",
            "1",
            "--",
            "sh",
            "-c",
            "exit 7",
        ],
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )
    assert done.returncode == 7
