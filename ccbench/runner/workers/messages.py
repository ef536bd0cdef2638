"""The messages between the runner, its leaders, their ranks and agents, and the variables that go with them.

A runner's first message to a leader is a ``TeamRequest``; whoever cannot take part, or does not let the other side,
sends an error that says why and what to do. All are plain frozen values or errors, sent as pickles over a pipe
between parent and child, or over a session, whose two sides have proven that they know its key
(``ccbench.runner.workers.session``); Hello goes as JSON.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from ccbench.cases.measurement import CaseFacts, Conditions, Status
from ccbench.machine.files import Files
from ccbench.runner.measure import RankResult

LEADER_VARIABLE = "CCBENCH_LEADER"
"""Addresses of the leader, and its key: ``address:port 127.0.0.1:port@network|key``; the latter leads there
only in the network of that name. In the environment only, because anybody can read command lines."""

LOCAL_VARIABLE = "CCBENCH_LEADER_IS_HERE"
"""Set when all ranks are on the leader's host: ranks then exit when their parent does."""

RANK_VARIABLE, RANKS_VARIABLE = "CCBENCH_RANK", "CCBENCH_RANKS"

RUNNER_VARIABLE = "CCBENCH_RUNNER"
"""Number of the runner's process, with which its leaders end."""

AGENTS_VARIABLE = "CCBENCH_AGENTS"
"""Connections to this run's agents, in rank order, as their sessions are handed over, and the launcher that
started these: ``5 6:1:2:key 7:1:2:key|srun``. In the environment of the runner alone."""


@dataclass(frozen=True)
class RankReport:
    """A rank's answer to a case. others_wait: it left the case alone, and the team is lost with it."""

    status: Status
    detail: str = ""
    result: RankResult | None = None
    processor_share: float = 0.0
    queued_share: float | None = None
    conditions: Conditions = field(default_factory=Conditions)
    flags: tuple[str, ...] = ()
    facts: CaseFacts = field(default_factory=CaseFacts)
    others_wait: bool = False


# -- whoever connects -------------------------------------------------------------------------------------

NETWORK_DIGITS = 16


@dataclass(frozen=True)
class Place:
    """Host and number of a process.

    clock, pid_namespace: name what its monotonic clock and its number belong to; containers may have their
    own.
    """

    host: str
    pid: int
    clock: str
    pid_namespace: str

    def sees(self, other: Place) -> bool:
        """Return True when the other's process number means the same process here."""
        return (self.host, self.pid_namespace) == (other.host, other.pid_namespace)


def _namespace(kind: str) -> str:
    """Name this process's namespace of a kind, on this host since it was booted."""
    boot = Files().text("/proc/sys/kernel/random/boot_id") or sys.platform
    machine = f"{socket.gethostname()} {boot}"
    try:
        return f"{machine} {os.readlink(f'/proc/self/ns/{kind}')}"
    except OSError:
        return f"{machine} "


def this_place() -> Place:
    """Return this process's place."""
    return Place(socket.gethostname(), os.getpid(), _namespace("time"), _namespace("pid"))


def this_network() -> str:
    """Name the network to which this process's loopback addresses belong: its host's or its container's."""
    return hashlib.sha256(_namespace("net").encode()).hexdigest()[:NETWORK_DIGITS]


@dataclass(frozen=True)
class Hello:
    """First message of whoever connects. rank, ranks: as its launcher told it, -1 where it told nothing.

    stays: it goes on without its leader, so nobody may end it with that.
    """

    place: Place
    rank: int = -1
    ranks: int = -1
    stays: bool = False

    def as_json(self) -> bytes:
        """Return the text that ``hello_of`` reads."""
        return json.dumps(asdict(self)).encode()


def hello_of(text: bytes) -> Hello:
    """Return what a peer says of itself; ValueError, TypeError or KeyError where the text is no Hello."""
    fields = json.loads(text)
    return Hello(Place(**fields.pop("place")), **fields)


@dataclass(frozen=True)
class Stop:
    """All is over: finish the library properly, then end. exit_code: of the run, for agents that stay."""

    exit_code: int = 0


# -- a leader and its ranks -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Start:
    """Become this rank. processor: where it shall stay, -1 anywhere."""

    backend: str
    rank: int
    ranks: int
    hosts: tuple[str, ...]
    one_clock: bool
    oversubscribed: bool = False
    processor: int = -1


@dataclass(frozen=True)
class Ready:
    """The rank's library works.

    processors: where the rank may run. quota_cores: how many its control group may use at once, None for all.
    """

    version: str
    processors: tuple[int, ...]
    quota_cores: float | None = None


@dataclass(frozen=True)
class AllGather:
    """Parts of an all-gather over the control channel: a rank's own, then, to all, everybody's by rank."""

    payloads: tuple[bytes, ...]


POSITION, PLACE, HOST = "position", "place", "host"


@dataclass(frozen=True)
class Question:
    """Ask an agent where its rank is in the case, for its place, or what its host is."""

    about: str


# -- a leader, the hub in the runner, and its agents ------------------------------------------------------


@dataclass(frozen=True)
class Spawn:
    """Have every agent start a rank's process, or run it in its own process. group: the hub's number."""

    variables: Mapping[str, str]
    in_process: bool = False
    group: int = 0


@dataclass(frozen=True)
class Kill:
    """Request to end a group that is waited for no more."""

    group: int


@dataclass(frozen=True)
class Ended:
    """A rank that was spawned for a group has ended; output: its last lines."""

    group: int
    rank: int
    exit_code: int
    output: str
