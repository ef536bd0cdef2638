"""Rank discovery: how many ranks a launcher starts, on which hosts, and what these are.

Done once before a run's first case: the launcher starts agents, which connect to the runner as ranks do to
their leader, or has started them already, and one of each host describes it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from ccbench.backends.base import TeamLaunch
from ccbench.errors import UsageError
from ccbench.runner.workers.channel import Listener, Peer, tell_all
from ccbench.runner.workers.facts import HostFacts
from ccbench.runner.workers.launcher import LAUNCHER_END_SECONDS, gather, started
from ccbench.runner.workers.messages import HOST, PLACE, Place, Question, Stop

if TYPE_CHECKING:
    from ccbench.runner.workers.hub import AgentHub

ANSWER_SECONDS = 30.0
WHO = "--launch"
"""Beginning of messages."""


@dataclass(frozen=True)
class LaunchedRanks:
    """Ranks that a launcher starts. hosts: of each rank; facts: of each host, in the order of nodes."""

    hosts: tuple[str, ...]
    facts: tuple[HostFacts, ...]

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return len(self.hosts)

    @property
    def nodes(self) -> int:
        """Number of hosts that they are on."""
        return len(self.facts)

    @property
    def gpus(self) -> int:
        """GPUs of all hosts."""
        return sum(len(host.gpus) for host in self.facts)

    @property
    def no_gpus(self) -> str:
        """Reason why ranks on one of the hosts can use no GPUs; '' where all can."""
        return next((f"{host.name}: {host.no_gpus}" for host in self.facts if host.no_gpus), "")


def discover_ranks(
    launch: TeamLaunch,
    ranks: int | None = None,
    hub: AgentHub | None = None,
    limit_seconds: float = math.inf,
) -> LaunchedRanks:
    """See who comes when the launcher is started once, or who has come to the hub already.

    ranks: how many were asked for, None for as many as it starts. limit_seconds: to wait for them. UsageError
    when none come in time, when they are fewer or more, or when every one believes it is alone; the message
    says what to change.
    """
    if hub is not None:
        agents = enumerate(hub.agents)
        launched = _described(
            [(answer_of(agent, PLACE, f"rank {rank}"), agent) for rank, agent in agents]
        )
        hub.listen()
        return launched
    with Listener(several_hosts=launch.several_hosts) as listener:
        launcher = started(launch, ranks or 1, listener.address, {})
        arrived: list[Peer] = []

        def why(came: Sequence[Peer], expected: int) -> str:
            return f"{launcher.why_so_few(came, expected)}; try 'hostname' in place of ccbench"

        try:
            peers = gather(
                listener,
                WHO,
                ranks,
                why,
                arrived,
                limit_seconds=limit_seconds,
                lost=launcher.lost,
            )
            launched = _described([(peer.hello.place, peer.connection) for peer in peers])
            tell_all([peer.connection for peer in arrived], Stop())
            launcher.wait(LAUNCHER_END_SECONDS)
        finally:
            for peer in arrived:
                peer.connection.close()
            launcher.kill()
    return launched


def _described(agents: Sequence[tuple[Place, Connection]]) -> LaunchedRanks:
    """Ask one agent of each host, which all see the same, what the host is."""
    refuse_duplicate_names([place for place, _ in agents])
    hosts = tuple(place.host for place, _ in agents)

    def facts_of(host: str) -> HostFacts:
        facts: HostFacts = answer_of(agents[hosts.index(host)][1], HOST, host)
        return replace(facts, ranks=hosts.count(host))

    return LaunchedRanks(hosts, tuple(map(facts_of, dict.fromkeys(hosts))))


def answer_of(agent: Connection, about: str, whom: str) -> Any:
    """Return an agent's answer; UsageError when none comes."""
    with suppress(EOFError, OSError):
        agent.send(Question(about))
        if agent.poll(ANSWER_SECONDS):
            return agent.recv()
    raise UsageError(
        f"{WHO}: {whom} does not answer any more; look whether the process there was killed"
    )


def refuse_duplicate_names(places: Sequence[Place]) -> None:
    """Hosts are told apart by name; two of one name would be taken for one, with all ranks inside it."""
    first: dict[str, int] = {}
    for rank, place in enumerate(places):
        before = first.setdefault(place.host, rank)
        if places[before].clock != place.clock:
            raise UsageError(
                f"{WHO}: ranks {before} and {rank} are on different machines that are both called "
                f"{place.host!r}; give each a name of its own (hostnamectl, or hostname in a container)"
            )
